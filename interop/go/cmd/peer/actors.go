package main

import (
	"fmt"
	"sync"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/cluster"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// echo answers every request with what it was asked, and remembers what it saw.
type echo struct {
	mutex sync.Mutex
	count int
	// How many texts were not greater than the one before.
	disordered int
	last       string
}

func (e *echo) Receive(context actor.Context) {
	switch message := context.Message().(type) {
	case *wrapperspb.StringValue:
		e.note(message.Value)
	case *wrapperspb.BytesValue:
		e.note(string(message.Value))
	default:
		return
	}
	if context.Sender() != nil {
		context.Respond(context.Message())
	}
}

func (e *echo) note(text string) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if e.count > 0 && text <= e.last {
		e.disordered++
	}
	e.count++
	e.last = text
}

func (e *echo) seen() object {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return object{"count": e.count, "disordered": e.disordered, "last": e.last}
}

// grainKind is a kind of grains that count their calls and answer each with "go METHOD COUNT TEXT". Method 7 answers with
// what the grain heard from topics, "go 7 COUNT DISORDERED LAST". It speaks the protocol of generated grains by hand, so
// that no code has to be generated here.
func grainKind(name string) *cluster.Kind {
	return cluster.NewKind(name, actor.PropsFromProducer(func() actor.Actor { return &grain{} }))
}

type grain struct {
	count int
	heard echo
}

func (g *grain) Receive(context actor.Context) {
	if published, ok := context.Message().(*wrapperspb.StringValue); ok {
		g.heard.note(published.Value)
		return
	}
	request, ok := context.Message().(*cluster.GrainRequest)
	if !ok {
		return
	}
	var text wrapperspb.StringValue
	if err := proto.Unmarshal(request.MessageData, &text); err != nil {
		context.Respond(&cluster.GrainErrorResponse{Reason: "INVALID_ARGUMENT", Message: err.Error()})
		return
	}
	if request.MethodIndex == 9 {
		context.Respond(&cluster.GrainErrorResponse{Reason: "NOT_FOUND", Message: text.Value})
		return
	}
	if request.MethodIndex == 7 {
		context.Respond(wrapperspb.String(fmt.Sprintf("go 7 %d %d %s", g.heard.count, g.heard.disordered, g.heard.last)))
		return
	}
	g.count++
	context.Respond(wrapperspb.String(fmt.Sprintf("go %d %d %s", request.MethodIndex, g.count, text.Value)))
}

// watcher tells about the end of those it was asked to watch.
type watcher struct{ out *printer }

type watchRequest struct{ pid *actor.PID }

func (w *watcher) Receive(context actor.Context) {
	switch message := context.Message().(type) {
	case *watchRequest:
		context.Watch(message.pid)
	case *actor.Terminated:
		who := message.GetWho()
		w.out.event("terminated", object{"address": who.GetAddress(), "id": who.GetId(), "why": int(message.Why)})
	}
}
