// Command peer is a member of a protoactor-go cluster that does what it is told on standard input.
//
// Each command is one line. Each answer is one JSON object on a line of standard output, {"reply":"<command>",...},
// with "error" if the command failed. Commands are carried out one after another, so answers come in order. Events are
// {"event":"<name>",...} and come whenever they happen. Nothing else is written there; logs go to standard error.
//
// See commands.go for the commands. The end of standard input ends the process at once and without a word to the
// cluster, so that no peer outlives the test that started it.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/cluster"
	"github.com/asynkron/protoactor-go/cluster/clusterproviders/automanaged"
	"github.com/asynkron/protoactor-go/cluster/identitylookup/disthash"
	"github.com/asynkron/protoactor-go/remote"

	"synod/interop/internal/dialect"
)

func main() {
	name := flag.String("cluster", "synod", "name of the cluster")
	remotePort := flag.Int("remote-port", 0, "port for actors, on 127.0.0.1; 0 takes a free one")
	healthPort := flag.Int("health-port", 6330, "port of /_health")
	hosts := flag.String("hosts", "127.0.0.1:6330", "health addresses of all members, this one included")
	refresh := flag.Int("refresh-ms", 500, "pause between two polls of the health addresses")
	expiration := flag.Int("heartbeat-expiration-ms", 20000, "silence after which a member is blocked")
	gossipInterval := flag.Int("gossip-interval-ms", 300, "pause between two rounds of gossip")
	flag.Parse()

	// The health server announces its port on whatever os.Stdout is when it starts.
	out := newPrinter(os.Stdout)
	os.Stdout = os.Stderr
	lines := make(chan string, 1024)
	go readCommands(lines)

	provider := automanaged.NewWithConfig(millis(*refresh), *healthPort, strings.Split(*hosts, ",")...)
	config := cluster.Configure(*name, provider, disthash.New(), remote.Configure("127.0.0.1", *remotePort),
		cluster.WithHeartbeatExpiration(millis(*expiration)),
		cluster.WithKinds(grainKind("GoOnly"), grainKind("Shared"), counterKind()))
	config.GossipInterval = millis(*gossipInterval)
	system := actor.NewActorSystem()
	member := cluster.New(system, config)
	system.EventStream.Subscribe(func(event any) {
		if topology, ok := event.(*cluster.ClusterTopology); ok {
			out.event("topology", object{
				"hash":    fmt.Sprint(topology.TopologyHash),
				"members": describe(topology.Members),
				"joined":  ids(topology.Joined),
				"left":    ids(topology.Left),
				"blocked": blocked(member),
			})
		}
	})
	tellBroadcasts(system, out)
	member.StartMember()
	joined := waitUntilJoined(member)
	out.event("ready", object{
		"id": system.ID, "address": system.Address(), "dialect": dialect.Name, "joined": joined,
	})

	peer := newPeer(member, out)
	for line := range lines {
		peer.run(line)
	}
}

// readCommands passes lines on until there are no more, which ends the process unless it is leaving already.
func readCommands(lines chan<- string) {
	scanner := bufio.NewScanner(os.Stdin)
	scanner.Buffer(nil, 8<<20)
	isLeaving := false
	for scanner.Scan() {
		line := strings.TrimSpace(scanner.Text())
		if line != "" {
			isLeaving = isLeaving || line == "leave"
			lines <- line
		}
	}
	if !isLeaving {
		os.Exit(0)
	}
}

// waitUntilJoined reports whether the member came to see itself. A node learns of itself like of any other, by polling.
func waitUntilJoined(member *cluster.Cluster) bool {
	for range 500 {
		if member.MemberList.ContainsMemberID(member.ActorSystem.ID) {
			return true
		}
		time.Sleep(20 * time.Millisecond)
	}
	return false
}

func describe(members []*cluster.Member) []object {
	described := make([]object, 0, len(members))
	for _, member := range members {
		kinds := slices.Sorted(slices.Values(member.Kinds))
		described = append(described, object{"id": member.Id, "address": member.Address(), "kinds": kinds})
	}
	return described
}

func ids(members []*cluster.Member) []string {
	ids := make([]string, 0, len(members))
	for _, member := range members {
		ids = append(ids, member.Id)
	}
	return ids
}

func blocked(member *cluster.Cluster) []string {
	ids := slices.Sorted(slices.Values(member.GetBlockedMembers().ToSlice()))
	return append([]string{}, ids...)
}

func millis(n int) time.Duration { return time.Duration(n) * time.Millisecond }
