package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/cluster"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"synod/interop/internal/dialect"
)

// leaveDeadline is more than a graceful shutdown takes: 2 s of its own and up to 10 s for open streams.
const leaveDeadline = 20 * time.Second

type peer struct {
	member  *cluster.Cluster
	root    *actor.RootContext
	out     *printer
	watcher *actor.PID
	spawned map[string]*echo
}

func newPeer(member *cluster.Cluster, out *printer) *peer {
	root := member.ActorSystem.Root
	watcher := root.Spawn(actor.PropsFromProducer(func() actor.Actor { return &watcher{out: out} }))
	return &peer{member: member, root: root, out: out, watcher: watcher, spawned: map[string]*echo{}}
}

type command struct {
	usage string
	// How many words it takes at least, itself included.
	words int
	do    func(*peer, arguments) (object, error)
}

// TEXT is the rest of the line up to the words after it, so it may hold spaces.
var commands = map[string]command{
	"members":           {"members", 1, (*peer).members},
	"blocked":           {"blocked", 1, (*peer).blocked},
	"heartbeats":        {"heartbeats", 1, (*peer).heartbeats},
	"set":               {"set KEY TEXT", 3, (*peer).set},
	"get":               {"get KEY", 2, (*peer).get},
	"setmap":            {"setmap KEY MAPKEY TEXT", 4, (*peer).setMap},
	"getmap":            {"getmap KEY MAPKEY", 3, (*peer).getMap},
	"spawn":             {"spawn NAME", 2, (*peer).spawn},
	"received":          {"received NAME", 2, (*peer).received},
	"touch":             {"touch ADDRESS ID TIMEOUT_MS", 4, (*peer).touch},
	"ask":               {"ask ADDRESS ID TEXT TIMEOUT_MS", 5, (*peer).ask},
	"tell":              {"tell ADDRESS ID TEXT", 4, (*peer).tell},
	"grain":             {"grain KIND IDENTITY METHOD TEXT TIMEOUT_MS", 6, (*peer).grain},
	"count":             {"count IDENTITY AMOUNT TIMEOUT_MS", 4, (*peer).count},
	"counted":           {"counted IDENTITY TIMEOUT_MS", 3, (*peer).counted},
	"recount":           {"recount IDENTITY TIMEOUT_MS", 3, (*peer).recount},
	"subscribe":         {"subscribe TOPIC NAME", 3, (*peer).subscribe},
	"unsubscribe":       {"unsubscribe TOPIC NAME", 3, (*peer).unsubscribe},
	"subscribe-grain":   {"subscribe-grain TOPIC KIND IDENTITY", 4, (*peer).subscribeGrain},
	"unsubscribe-grain": {"unsubscribe-grain TOPIC KIND IDENTITY", 4, (*peer).unsubscribeGrain},
	"subscribe-handler": {"subscribe-handler TOPIC NAME", 3, (*peer).subscribeHandler},
	"publish":           {"publish TOPIC TEXT", 3, (*peer).publish},
	"produce":           {"produce TOPIC COUNT", 3, (*peer).produce},
	"broadcast":         {"broadcast TEXT", 2, (*peer).broadcast},
	"watch":             {"watch ADDRESS ID", 3, (*peer).watch},
	"stop":              {"stop ADDRESS ID", 3, (*peer).stop},
	"poison":            {"poison ADDRESS ID", 3, (*peer).poison},
	"leave":             {"leave", 1, (*peer).leave},
	"quit":              {"quit", 1, (*peer).quit},
}

func (p *peer) run(line string) {
	words := strings.Fields(line)
	command, ok := commands[words[0]]
	if !ok {
		p.out.reply(words[0], object{"error": "unknown command"})
		return
	}
	if len(words) < command.words {
		p.out.reply(words[0], object{"error": "usage: " + command.usage})
		return
	}
	fields, err := command.do(p, words)
	if err != nil {
		fields = object{"error": err.Error()}
	}
	p.out.reply(words[0], fields)
	switch words[0] {
	case "leave":
		p.out.event("left", nil)
		os.Exit(0)
	case "quit":
		os.Exit(0)
	}
}

type arguments []string

func (a arguments) pid() *actor.PID { return actor.NewPID(a[1], a[2]) }

func (a arguments) text(from, to int) string { return strings.Join(a[from:to], " ") }

func (a arguments) timeout() (time.Duration, error) {
	n, err := strconv.Atoi(a[len(a)-1])
	return millis(n), err
}

// grain calls a grain as generated clients do.
func (p *peer) grain(a arguments) (object, error) {
	method, err := strconv.Atoi(a[3])
	if err != nil {
		return nil, err
	}
	timeout, err := a.timeout()
	if err != nil {
		return nil, err
	}
	data, err := proto.Marshal(wrapperspb.String(a.text(4, len(a)-1)))
	if err != nil {
		return nil, err
	}
	request := &cluster.GrainRequest{MethodIndex: int32(method), MessageData: data}
	answer, err := p.member.Request(a[2], a[1], request, cluster.WithTimeout(timeout))
	if err != nil {
		return nil, err
	}
	switch answer := answer.(type) {
	case *wrapperspb.StringValue:
		return object{"text": answer.Value}, nil
	case *cluster.GrainErrorResponse:
		return object{"reason": answer.Reason, "text": answer.Message}, nil
	}
	return nil, fmt.Errorf("answered with %T", answer)
}

func (p *peer) members(arguments) (object, error) {
	members := p.member.MemberList.Members()
	return object{"hash": fmt.Sprint(members.TopologyHash()), "members": describe(members.Members())}, nil
}

func (p *peer) blocked(arguments) (object, error) { return object{"blocked": blocked(p.member)}, nil }

// heartbeats tells for how long each member was not heard. Only what this node received counts, not what others wrote.
func (p *peer) heartbeats(arguments) (object, error) {
	state, err := p.member.Gossip.GetState(dialect.HeartbeatKey)
	if err != nil {
		return nil, err
	}
	heard := object{}
	for id, value := range state {
		age := time.Since(time.UnixMilli(value.LocalTimestampUnixMilliseconds)).Milliseconds()
		entry := object{"age_ms": age, "sequence": value.SequenceNumber}
		var heartbeat cluster.MemberHeartbeat
		if err := value.Value.UnmarshalTo(&heartbeat); err != nil {
			entry["error"] = err.Error()
		} else {
			count := heartbeat.GetActorStatistics().GetActorCount()
			if count == nil {
				count = map[string]int64{}
			}
			entry["actor_count"] = count
		}
		heard[id] = entry
	}
	return object{"key": dialect.HeartbeatKey, "members": heard}, nil
}

func (p *peer) set(a arguments) (object, error) {
	err := p.member.Gossip.SetStateRequest(a[1], wrapperspb.String(a.text(2, len(a))))
	return object{"key": a[1]}, err
}

func (p *peer) get(a arguments) (object, error) {
	state, err := p.member.Gossip.GetState(a[1])
	if err != nil {
		return nil, err
	}
	values := object{}
	for id, value := range state {
		values[id] = decoded(value.Value)
	}
	return object{"key": a[1], "values": values}, nil
}

func (p *peer) setMap(a arguments) (object, error) {
	return object{"key": a[1]}, dialect.SetMapText(p.member.Gossip, a[1], a[2], a.text(3, len(a)))
}

func (p *peer) getMap(a arguments) (object, error) {
	value, err := dialect.GetMap(p.member.Gossip, a[1], a[2])
	if err != nil {
		return nil, err
	}
	if value == nil {
		return object{"key": a[1], "value": nil}, nil
	}
	return object{"key": a[1], "value": decoded(value)}, nil
}

// decoded is the text of a StringValue, and of anything else its type.
func decoded(value *anypb.Any) any {
	var text wrapperspb.StringValue
	if value.MessageIs(&text) && value.UnmarshalTo(&text) == nil {
		return text.Value
	}
	return object{"type": string(value.MessageName())}
}

func (p *peer) spawn(a arguments) (object, error) {
	echo := &echo{}
	pid, err := p.root.SpawnNamed(actor.PropsFromFunc(echo.Receive), a[1])
	if err != nil {
		return nil, err
	}
	p.spawned[a[1]] = echo
	return object{"address": pid.Address, "id": pid.Id}, nil
}

func (p *peer) received(a arguments) (object, error) {
	echo, ok := p.spawned[a[1]]
	if !ok {
		return nil, errNotSpawned
	}
	return echo.seen(), nil
}

func (p *peer) touch(a arguments) (object, error) {
	answer, err := p.request(a, &actor.Touch{})
	if err != nil {
		return nil, err
	}
	touched, ok := answer.(*actor.Touched)
	if !ok {
		return nil, fmt.Errorf("answered with %T", answer)
	}
	return object{"who": object{"address": touched.GetWho().GetAddress(), "id": touched.GetWho().GetId()}}, nil
}

func (p *peer) ask(a arguments) (object, error) {
	answer, err := p.request(a, wrapperspb.String(a.text(3, len(a)-1)))
	if err != nil {
		return nil, err
	}
	text, ok := answer.(*wrapperspb.StringValue)
	if !ok {
		return nil, fmt.Errorf("answered with %T", answer)
	}
	return object{"text": text.Value}, nil
}

func (p *peer) request(a arguments, message any) (any, error) {
	timeout, err := a.timeout()
	if err != nil {
		return nil, err
	}
	answer, err := p.root.RequestFuture(a.pid(), message, timeout).Result()
	switch {
	case errors.Is(err, actor.ErrTimeout):
		return nil, errors.New("timeout")
	case errors.Is(err, actor.ErrDeadLetter):
		return nil, errors.New("dead letter")
	}
	return answer, err
}

func (p *peer) tell(a arguments) (object, error) {
	p.root.Send(a.pid(), wrapperspb.String(a.text(3, len(a))))
	return nil, nil
}

func (p *peer) watch(a arguments) (object, error) {
	p.root.Send(p.watcher, &watchRequest{a.pid()})
	return nil, nil
}

func (p *peer) stop(a arguments) (object, error) {
	p.root.Stop(a.pid())
	return nil, nil
}

func (p *peer) poison(a arguments) (object, error) {
	p.root.Poison(a.pid())
	return nil, nil
}

func (p *peer) leave(arguments) (object, error) {
	time.AfterFunc(leaveDeadline, func() {
		p.out.reply("leave", object{"error": "not done in time"})
		os.Exit(1)
	})
	p.member.Shutdown(true)
	return nil, nil
}

func (p *peer) quit(arguments) (object, error) { return nil, nil }
