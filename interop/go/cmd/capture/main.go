// Command capture prints messages as protoactor-go itself encodes them, one `name hex` a line.
//
// Frames are taken off a real connection: a node of Go talks to a stand-in that keeps the bytes. The other messages are
// built from the types of protoactor-go and marshalled deterministically. The Go node is `goA` at 127.0.0.1:8080, the
// other is `rustA` at 127.0.0.1:9090; neither port is really listened on.
//
//	go run ./cmd/capture > golden-b.txt
//	go run -modfile=dialect-a.mod -tags dialect_a ./cmd/capture > golden-a.txt
package main

import (
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/cluster"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"synod/interop/internal/dialect"
)

const (
	goID, goAddress     = "goA", "127.0.0.1:8080"
	rustID, rustAddress = "rustA", "127.0.0.1:9090"
)

type vector struct {
	name  string
	bytes []byte
}

func main() {
	frames, err := captureFrames()
	if err != nil {
		log.Fatal(err)
	}
	var text strings.Builder
	for _, vector := range append(frames, messages()...) {
		fmt.Fprintf(&text, "%s %x\n", vector.name, vector.bytes)
	}
	if _, err := os.Stdout.WriteString(text.String()); err != nil {
		log.Fatal(err)
	}
}

func messages() []vector {
	heartbeat := &cluster.MemberHeartbeat{ActorStatistics: &cluster.ActorStatistics{}}
	if dialect.Name == "b" {
		// Only this dialect fills in the counts.
		heartbeat.ActorStatistics.ActorCount = map[string]int64{"Hello": 3, "prototopic": 0}
	}
	return []vector{
		marshal("watch", &actor.Watch{Watcher: actor.NewPID(goAddress, "$5")}),
		marshal("terminated", &actor.Terminated{
			Who: actor.NewPID(rustAddress, "x"), Why: actor.TerminatedReason_NotFound,
		}),
		marshal("dead_letter_response", &actor.DeadLetterResponse{Target: actor.NewPID(rustAddress, "nope")}),
		marshal("dead_letter_response_without_target", &actor.DeadLetterResponse{}),
		marshal("touched", &actor.Touched{Who: actor.NewPID(rustAddress, "x")}),
		marshal("member", &cluster.Member{
			Host: "127.0.0.1", Port: 9090, Id: rustID, Kinds: []string{"Hello", "prototopic"},
		}),
		marshal("topology", topologyOfTen()),
		marshal("gossip_request_with_heartbeat", gossip(dialect.HeartbeatKey, heartbeat)),
		marshal("gossip_request_with_left", gossip(cluster.GracefullyLeftKey, &emptypb.Empty{})),
		marshal("gossip_response", &cluster.GossipResponse{}),
		marshal("activation_response", &cluster.ActivationResponse{
			Pid: actor.NewPID(goAddress, "partition-activator/abc$1"),
		}),
		marshal("activation_response_failed", &cluster.ActivationResponse{Failed: true}),
	}
}

func gossip(key string, value proto.Message) *cluster.GossipRequest {
	packed, err := anypb.New(value)
	if err != nil {
		log.Fatal(err)
	}
	entry := &cluster.GossipKeyValue{
		SequenceNumber: 7, Value: packed, LocalTimestampUnixMilliseconds: 1_700_000_000_000,
	}
	return dialect.GossipRequest(rustID, goID, key, entry)
}

// topologyOfTen has its hash computed by protoactor-go.
func topologyOfTen() *cluster.ClusterTopology {
	var members cluster.Members
	for i := range 10 {
		members = append(members, &cluster.Member{
			Host: "127.0.0.1", Port: int32(9000 + i), Id: fmt.Sprintf("memberId-%d", i), Kinds: []string{"Hello"},
		})
	}
	return &cluster.ClusterTopology{
		TopologyHash: cluster.TopologyHash(members),
		Members:      members,
		Joined:       members[9:],
		Left:         []*cluster.Member{{Host: "127.0.0.1", Port: 9100, Id: "gone", Kinds: []string{"Hello"}}},
	}
}

func marshal(name string, message proto.Message) vector {
	bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		log.Fatalf("%s: %v", name, err)
	}
	return vector{name, bytes}
}
