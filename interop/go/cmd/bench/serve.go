package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
	"strconv"

	"github.com/asynkron/protoactor-go/actor"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// stats of a process since its start.
type stats struct {
	Mallocs uint64 `json:"mallocs"`
	Written int64  `json:"written"`
	Read    int64  `json:"read"`
}

func statsNow(traffic *traffic) stats {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return stats{memory.Mallocs, traffic.written.Load(), traffic.read.Load()}
}

// serve runs until its standard input ends, so that it does not outlive whoever started it.
func serve(port int) error {
	system, traffic := start(port)
	counting := actor.PropsFromProducer(func() actor.Actor { return &sink{traffic: traffic} })
	if _, err := system.Root.SpawnNamed(counting, "sink"); err != nil {
		return err
	}
	if _, err := system.Root.SpawnNamed(actor.PropsFromFunc(echo), "echo"); err != nil {
		return err
	}
	fmt.Printf("{\"event\":\"ready\",\"address\":%q}\n", system.Address())
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func echo(context actor.Context) {
	if message, ok := context.Message().(*wrapperspb.BytesValue); ok {
		context.Respond(message)
	}
}

type sink struct {
	traffic *traffic
	count   int
}

func (s *sink) Receive(context actor.Context) {
	switch message := context.Message().(type) {
	case *wrapperspb.BytesValue:
		s.count++
	case *wrapperspb.StringValue:
		context.Respond(wrapperspb.String(s.control(message.Value)))
	}
}

func (s *sink) control(command string) string {
	switch command {
	case "reset":
		s.count = 0
		return "ok"
	case "count":
		return strconv.Itoa(s.count)
	case "stats":
		text, err := json.Marshal(statsNow(s.traffic))
		if err != nil {
			log.Fatal(err)
		}
		return string(text)
	}
	return "unknown control message"
}
