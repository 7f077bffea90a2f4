// Command grainbench measures calls to grains between two protoactor-go members on one machine.
//
//	grainbench serve --health-port 7001 --hosts 127.0.0.1:7001,127.0.0.1:7002
//	grainbench drive --health-port 7002 --hosts 127.0.0.1:7001,127.0.0.1:7002 --calls 100000 --concurrency 64
//	grainbench local --calls 100000 --concurrency 1
//	grainbench idle --grains 100000
//
// The grains are of the kind Bench. Method 0 takes a google.protobuf.BytesValue and answers with it. They are written and
// called as protoc-gen-go-grain's generated code does it.
//
//   - serve hosts them until its standard input ends.
//   - drive hosts none. C goroutines call a grain each, one call after another, N calls together. They call once each
//     before the clock starts, so that all grains run.
//   - local does the same on one member that hosts them itself.
//   - idle starts that many grains on one member and leaves them alone.
//
// drive and local print {"per_second", "p50_us", "p99_us", "allocs_per_call"}, idle prints {"bytes_per_grain"}: what the
// resident memory of the process grew by, after a collection, with one grain of a million in the cache of places.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/cluster"
	"github.com/asynkron/protoactor-go/cluster/clusterproviders/automanaged"
	"github.com/asynkron/protoactor-go/cluster/identitylookup/disthash"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	kind        = "Bench"
	callTimeout = 30 * time.Second
	pollPause   = 100 * time.Millisecond
	joinPause   = 5 * time.Millisecond
	joinTimeout = 30 * time.Second
)

type load struct{ calls, payload, concurrency int }

func main() {
	log.SetFlags(0)
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	if len(os.Args) < 2 {
		return errors.New("usage: grainbench serve|drive|local|idle FLAGS")
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	health := flags.Int("health-port", 7001, "port of /_health")
	hosts := flags.String("hosts", "127.0.0.1:7001", "health addresses of all members, this one included")
	var load load
	flags.IntVar(&load.calls, "calls", 100_000, "how many calls")
	flags.IntVar(&load.payload, "payload", 64, "bytes in each call and answer")
	flags.IntVar(&load.concurrency, "concurrency", 64, "how many callers, each with a grain")
	grains := flags.Int("grains", 100_000, "how many grains to start")
	if err := flags.Parse(os.Args[2:]); err != nil {
		return err
	}
	// The health server announces its port on whatever os.Stdout is when it starts.
	out := os.Stdout
	os.Stdout = os.Stderr
	switch os.Args[1] {
	case "serve":
		member := join(*health, *hosts, true)
		if _, err := fmt.Fprintf(out, "{\"event\":\"ready\",\"address\":%q}\n", member.ActorSystem.Address()); err != nil {
			return err
		}
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	case "drive", "local":
		figures, err := load.drive(join(*health, *hosts, os.Args[1] == "local"))
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(figures)
	case "idle":
		bytes, err := idle(join(*health, *hosts, true), *grains)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(map[string]any{"lang": "go", "bytes_per_grain": bytes})
	}
	return fmt.Errorf("unknown command %q: it is serve, drive, local or idle", os.Args[1])
}

func join(health int, hosts string, isHost bool) *cluster.Cluster {
	quiet := func(*actor.ActorSystem) *slog.Logger {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	}
	system := actor.NewActorSystem(actor.WithLoggerFactory(quiet))
	provider := automanaged.NewWithConfig(pollPause, health, strings.Split(hosts, ",")...)
	options := []cluster.ConfigOption{}
	if isHost {
		options = append(options, cluster.WithKinds(cluster.NewKind(kind, actor.PropsFromFunc(bench))))
	}
	config := cluster.Configure("bench", provider, disthash.New(), remote.Configure("127.0.0.1", 0), options...)
	member := cluster.New(system, config)
	member.StartMember()
	return member
}

// bench is what a generated grain does with a call.
func bench(context actor.Context) {
	request, ok := context.Message().(*cluster.GrainRequest)
	if !ok {
		return
	}
	argument := &wrapperspb.BytesValue{}
	if err := proto.Unmarshal(request.MessageData, argument); err != nil {
		context.Respond(&cluster.GrainErrorResponse{Reason: "INVALID_ARGUMENT", Message: err.Error()})
		return
	}
	context.Respond(argument)
}

// call is what a generated client does.
func call(member *cluster.Cluster, identity string, content []byte) error {
	bytes, err := proto.Marshal(wrapperspb.Bytes(content))
	if err != nil {
		return err
	}
	request := &cluster.GrainRequest{MethodIndex: 0, MessageData: bytes}
	answer, err := member.Request(identity, kind, request, cluster.WithTimeout(callTimeout))
	if err != nil {
		return err
	}
	if bytes, ok := answer.(*wrapperspb.BytesValue); !ok || len(bytes.Value) != len(content) {
		return fmt.Errorf("%s answered with %T", identity, answer)
	}
	return nil
}

func (l load) drive(member *cluster.Cluster) (map[string]any, error) {
	content := make([]byte, l.payload)
	if err := waitForHost(member, content); err != nil {
		return nil, err
	}
	// Everybody once, so that the grains run, and as often again as it takes to be warm.
	if _, _, err := l.calling(member, content, max(l.calls/10, l.concurrency)); err != nil {
		return nil, fmt.Errorf("warming up: %w", err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	took, latencies, err := l.calling(member, content, l.calls)
	if err != nil {
		return nil, err
	}
	runtime.ReadMemStats(&after)
	slices.Sort(latencies)
	at := func(share float64) float64 {
		return float64(latencies[int(share*float64(len(latencies)-1))].Nanoseconds()) / 1000
	}
	return map[string]any{
		"lang":            "go",
		"per_second":      float64(len(latencies)) / took.Seconds(),
		"p50_us":          at(0.5),
		"p99_us":          at(0.99),
		"allocs_per_call": float64(after.Mallocs-before.Mallocs) / float64(len(latencies)),
	}, nil
}

// waitForHost waits until a first call is answered: a member without kinds has to hear of one that hosts them.
func waitForHost(member *cluster.Cluster, content []byte) error {
	var err error
	for deadline := time.Now().Add(joinTimeout); time.Now().Before(deadline); time.Sleep(joinPause) {
		if member.MemberList.Length() == 0 || member.MemberList.GetActivatorMember(kind, "k0") == "" {
			err = errors.New("no member hosts the grains")
			continue
		}
		if err = call(member, "k0", content); err == nil {
			return nil
		}
	}
	return err
}

func (l load) calling(member *cluster.Cluster, content []byte, calls int) (time.Duration, []time.Duration, error) {
	each := max(calls/l.concurrency, 1)
	latencies := make([]time.Duration, each*l.concurrency)
	failures := make(chan error, l.concurrency)
	var group sync.WaitGroup
	began := time.Now()
	for number := range l.concurrency {
		group.Add(1)
		go func() {
			defer group.Done()
			identity := "k" + strconv.Itoa(number)
			for turn := range each {
				start := time.Now()
				if err := call(member, identity, content); err != nil {
					failures <- err
					return
				}
				latencies[number*each+turn] = time.Since(start)
			}
		}()
	}
	group.Wait()
	took := time.Since(began)
	close(failures)
	return took, latencies, <-failures
}

// idle returns by how many bytes the resident memory grew with each grain.
func idle(member *cluster.Cluster, grains int) (float64, error) {
	if err := waitForHost(member, nil); err != nil {
		return 0, err
	}
	before, err := resident()
	if err != nil {
		return 0, err
	}
	const callers = 64
	failures := make(chan error, callers)
	var group sync.WaitGroup
	for caller := range callers {
		group.Add(1)
		go func() {
			defer group.Done()
			for number := caller; number < grains; number += callers {
				if err := call(member, "idle-"+strconv.Itoa(number), nil); err != nil {
					failures <- err
					return
				}
			}
		}()
	}
	group.Wait()
	close(failures)
	if err := <-failures; err != nil {
		return 0, err
	}
	after, err := resident()
	return float64(after-before) / float64(grains), err
}

func resident() (int, error) {
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(status))
	if len(fields) < 2 {
		return 0, errors.New("/proc/self/statm says nothing")
	}
	pages, err := strconv.Atoi(fields[1])
	return pages * os.Getpagesize(), err
}
