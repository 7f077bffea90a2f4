package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// controlTimeout covers the wait behind a full mailbox, roundTimeout a round that lost a message.
	controlTimeout = 2 * time.Minute
	roundTimeout   = 5 * time.Minute
	askTimeout     = 10 * time.Second
	countPause     = 2 * time.Millisecond
)

type load struct {
	to, mode                       string
	messages, payload, concurrency int
}

type driver struct {
	load
	root       *actor.RootContext
	sink, echo *actor.PID
	// One message is sent again and again, as in upstream's own benchmark.
	message *wrapperspb.BytesValue
}

func (l load) drive(port int) error {
	if l.to == "" || l.messages < 1 || l.payload < 0 || l.concurrency < 1 {
		return errors.New("drive needs --to, and at least one message and one who asks")
	}
	system, traffic := start(port)
	d := &driver{
		load:    l,
		root:    system.Root,
		sink:    actor.NewPID(l.to, "sink"),
		echo:    actor.NewPID(l.to, "echo"),
		message: wrapperspb.Bytes(make([]byte, l.payload)),
	}
	rounds := map[string]func() error{"tell": d.tell, "echo": d.echoes, "ask": d.asks}
	round, ok := rounds[l.mode]
	if !ok {
		return fmt.Errorf("unknown mode %q: it is tell, echo or ask", l.mode)
	}

	if err := d.once(round); err != nil {
		return fmt.Errorf("warming up: %w", err)
	}
	serverBefore, err := d.serverStats()
	if err != nil {
		return err
	}
	before, began := statsNow(traffic), time.Now()
	if err := d.once(round); err != nil {
		return err
	}
	took, after := time.Since(began), statsNow(traffic)
	serverAfter, err := d.serverStats()
	if err != nil {
		return err
	}

	perMessage := func(total float64) float64 { return total / float64(l.messages) }
	out := after.Written - before.Written + serverAfter.Read - serverBefore.Read
	in := after.Read - before.Read + serverAfter.Written - serverBefore.Written
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"lang":                      "go",
		"mode":                      l.mode,
		"messages":                  l.messages,
		"payload":                   l.payload,
		"concurrency":               l.concurrency,
		"seconds":                   took.Seconds(),
		"per_second":                float64(l.messages) / took.Seconds(),
		"bytes_out_per_message":     perMessage(float64(out)),
		"bytes_in_per_message":      perMessage(float64(in)),
		"allocs_per_message":        perMessage(float64(after.Mallocs - before.Mallocs)),
		"server_allocs_per_message": perMessage(float64(serverAfter.Mallocs - serverBefore.Mallocs)),
	})
}

// once resets the count, which also makes sure that both connections stand, and runs a round.
func (d *driver) once(round func() error) error {
	if answer, err := d.control("reset"); err != nil || answer != "ok" {
		return fmt.Errorf("resetting the sink: %q, %w", answer, err)
	}
	return round()
}

func (d *driver) tell() error {
	for range d.messages {
		d.root.Send(d.sink, d.message)
	}
	for deadline := time.Now().Add(roundTimeout); time.Now().Before(deadline); time.Sleep(countPause) {
		answer, err := d.control("count")
		if err != nil {
			return err
		}
		if count, err := strconv.Atoi(answer); err != nil || count >= d.messages {
			return err
		}
	}
	return errors.New("messages were lost: the sink did not count them all in time")
}

func (d *driver) echoes() error {
	done, left := make(chan struct{}), d.messages
	counter := d.root.Spawn(actor.PropsFromFunc(func(context actor.Context) {
		if _, ok := context.Message().(*wrapperspb.BytesValue); ok {
			if left--; left == 0 {
				close(done)
			}
		}
	}))
	defer d.root.Stop(counter)
	for range d.messages {
		d.root.RequestWithCustomSender(d.echo, d.message, counter)
	}
	select {
	case <-done:
		return nil
	case <-time.After(roundTimeout):
		return errors.New("messages were lost: not all answers came in time")
	}
}

func (d *driver) asks() error {
	var next atomic.Int64
	var group sync.WaitGroup
	failures := make(chan error, d.concurrency)
	for range d.concurrency {
		group.Add(1)
		go func() {
			defer group.Done()
			for next.Add(1) <= int64(d.messages) {
				if _, err := d.root.RequestFuture(d.echo, d.message, askTimeout).Result(); err != nil {
					failures <- err
					return
				}
			}
		}()
	}
	group.Wait()
	close(failures)
	return <-failures
}

func (d *driver) serverStats() (stats, error) {
	var stats stats
	answer, err := d.control("stats")
	if err != nil {
		return stats, err
	}
	return stats, json.Unmarshal([]byte(answer), &stats)
}

func (d *driver) control(command string) (string, error) {
	answer, err := d.root.RequestFuture(d.sink, wrapperspb.String(command), controlTimeout).Result()
	if err != nil {
		return "", fmt.Errorf("%s: %w", command, err)
	}
	text, ok := answer.(*wrapperspb.StringValue)
	if !ok {
		return "", fmt.Errorf("%s was answered with %T", command, answer)
	}
	return text.Value, nil
}
