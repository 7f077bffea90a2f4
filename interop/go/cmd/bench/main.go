// Command bench measures messages between two protoactor-go nodes on one machine, without a cluster.
//
//	bench serve --port 9001
//	bench drive --port 9002 --to 127.0.0.1:9001 --mode tell --messages 1000000 --payload 64
//
// Any implementation of the two sides can be put in the place of the other, as long as it speaks this protocol:
//
//   - Every measured message is a google.protobuf.BytesValue. Control messages and their answers are
//     google.protobuf.StringValue, sent to `sink` as requests.
//   - Actor `sink` counts the BytesValues it receives and answers none of them. It answers
//     "reset" with "ok" and counts from 0 again,
//     "count" with the count in decimal,
//     "stats" with a JSON object of totals since the process started: "mallocs" (heap allocations), "written" and
//     "read" (bytes of all TCP connections that the server opened).
//     A mailbox is a queue, so the answer to "count" that follows N messages is N, once those were handled.
//   - Actor `echo` answers each request with the BytesValue it carries.
//
// Modes of the driver, each run once to warm up and once measured:
//
//   - tell: N messages to `sink`. The clock stops when it has counted them all.
//   - echo: N requests to `echo` on behalf of one actor, without waiting. The clock stops at the Nth answer.
//   - ask: N requests to `echo` by C goroutines, each waiting for its answer before it asks again.
//
// The driver prints one JSON object. A node opens connections only to send, so what the driver opened and what the
// server opened together are all there are: bytes_out_per_message is what the driver wrote on its own and the server
// read on its own, bytes_in_per_message is the reverse, HTTP/2 included. The few control messages are in these numbers.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// frameBytesMax lets batches of 1000 large messages through, which the 4 MiB of grpc would not.
const frameBytesMax = 256 << 20

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	if len(os.Args) < 2 {
		return errors.New("usage: bench serve|drive FLAGS")
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	port := flags.Int("port", 0, "port of this node, on 127.0.0.1")
	switch os.Args[1] {
	case "serve":
		if err := flags.Parse(os.Args[2:]); err != nil {
			return err
		}
		return serve(*port)
	case "drive":
		var load load
		flags.StringVar(&load.to, "to", "", "address of the server")
		flags.StringVar(&load.mode, "mode", "tell", "tell, echo or ask")
		flags.IntVar(&load.messages, "messages", 1_000_000, "how many messages")
		flags.IntVar(&load.payload, "payload", 64, "bytes in each message")
		flags.IntVar(&load.concurrency, "concurrency", 64, "how many ask at the same time")
		if err := flags.Parse(os.Args[2:]); err != nil {
			return err
		}
		return load.drive(*port)
	}
	return fmt.Errorf("unknown command %q: it is serve or drive", os.Args[1])
}

// start returns a node that can be reached, and the bytes on the connections that it opens.
func start(port int) (*actor.ActorSystem, *traffic) {
	traffic := &traffic{}
	quiet := func(*actor.ActorSystem) *slog.Logger {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	system := actor.NewActorSystem(actor.WithLoggerFactory(quiet))
	remote.NewRemote(system, remote.Configure("127.0.0.1", port,
		remote.WithServerOptions(grpc.MaxRecvMsgSize(frameBytesMax)),
		remote.WithDialOptions(
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(traffic.dial)))).Start()
	return system, traffic
}
