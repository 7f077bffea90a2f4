// Puts the rows of `synod bench queue` on JetStream of NATS, and prints them as JSON.
//
//	nats --servers URL,URL,URL [--bytes 200] [--in-flight 1,64,1024] [--seconds 5]
//
// ENQUEUE publishes messages to a stream that is a work queue, in files on three servers; LIFE has them consumed and
// acknowledged too. A row keeps so many messages under way at a time, from their publication to its acknowledgement by the
// server, or to their acknowledgement by the consumer. The latter is sent and not waited for, which is how JetStream is
// used; a row of LIFE ends when the stream is empty, so that all of them have arrived.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// Messages of one connection at a time, as synod has it.
	laneMax = 512
	// How long what a row has begun may take to end.
	patience = 30 * time.Second
)

// One line of the result.
type row struct {
	Operation           string         `json:"operation"`
	Bytes               int            `json:"bytes"`
	InFlight            int            `json:"in_flight"`
	JobsPerSecond       float64        `json:"jobs_per_second"`
	OperationsPerSecond float64        `json:"operations_per_second"`
	P50                 float64        `json:"p50_ms"`
	P99                 float64        `json:"p99_ms"`
	Jobs                int            `json:"jobs"`
	Errors              int            `json:"errors"`
	Failures            map[string]int `json:"failures,omitempty"`
}

// What a row saw.
type tally struct {
	mutex       sync.Mutex
	submissions []time.Duration
	took        time.Duration
	failures    map[string]int
}

func (t *tally) fail(err error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.failures[err.Error()]++
}

func (t *tally) row(operation string, bytes, inFlight, perJob int) row {
	slices.Sort(t.submissions)
	at := func(part float64) float64 {
		if len(t.submissions) == 0 {
			return 0
		}
		index := int(float64(len(t.submissions)-1)*part + 0.5)
		return t.submissions[index].Seconds() * 1000
	}
	errors := 0
	for _, count := range t.failures {
		errors += count
	}
	perSecond := float64(len(t.submissions)) / t.took.Seconds()
	return row{
		Operation: operation, Bytes: bytes, InFlight: inFlight,
		JobsPerSecond: perSecond, OperationsPerSecond: perSecond * float64(perJob),
		P50: at(0.50), P99: at(0.99), Jobs: len(t.submissions), Errors: errors, Failures: t.failures,
	}
}

type load struct {
	servers  []string
	bytes    int
	inFlight int
	runsFor  time.Duration
	isLife   bool
}

// Runs one row on a stream of its own.
func (l load) run(ctx context.Context, number int) (*tally, error) {
	result := &tally{failures: map[string]int{}}
	name := fmt.Sprintf("bench%d", number)
	connection, err := l.makeStream(ctx, name)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	leader := connection.ConnectedUrl()
	js, err := jetstream.New(connection)
	if err != nil {
		return nil, err
	}
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	// What has a place has not come to its end yet.
	places := make(chan struct{}, l.inFlight)
	for range l.inFlight {
		places <- struct{}{}
	}
	var stops []func()
	lanes := (l.inFlight + laneMax - 1) / laneMax
	if l.isLife {
		consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: l.inFlight,
			AckWait: time.Minute,
		})
		if err != nil {
			return nil, err
		}
		for range lanes {
			stop, err := l.work(ctx, leader, name, consumer.CachedInfo().Name, places, result)
			if err != nil {
				return nil, err
			}
			stops = append(stops, stop)
		}
	}
	publishers := make([]jetstream.JetStream, lanes)
	for lane := range publishers {
		connection, err := nats.Connect(leader)
		if err != nil {
			return nil, err
		}
		defer connection.Close()
		publishers[lane], err = jetstream.New(connection,
			jetstream.WithPublishAsyncMaxPending(laneMax), jetstream.WithPublishAsyncTimeout(patience))
		if err != nil {
			return nil, err
		}
	}
	began := time.Now()
	var wait sync.WaitGroup
	for lane, publisher := range publishers {
		share := l.inFlight / lanes
		if lane < l.inFlight%lanes {
			share++
		}
		wait.Go(func() { l.publish(publisher, name, share, began.Add(l.runsFor), places, result) })
	}
	wait.Wait()
	if l.isLife {
		if err := l.awaitEmpty(ctx, stream); err != nil {
			result.fail(err)
		}
	}
	result.took = time.Since(began)
	for _, stop := range stops {
		stop()
	}
	return result, js.DeleteStream(ctx, name)
}

// Makes a stream, and connects to the server that leads it.
func (l load) makeStream(ctx context.Context, name string) (*nats.Conn, error) {
	connection, err := nats.Connect(l.servers[0])
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	js, err := jetstream.New(connection)
	if err != nil {
		return nil, err
	}
	made, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{name}, Retention: jetstream.WorkQueuePolicy,
		Storage: jetstream.FileStorage, Replicas: len(l.servers),
	})
	if err != nil {
		return nil, err
	}
	for _, server := range l.servers {
		at, err := nats.Connect(server)
		if err != nil {
			return nil, err
		}
		if at.ConnectedServerName() == made.CachedInfo().Cluster.Leader {
			return at, nil
		}
		at.Close()
	}
	return nil, fmt.Errorf("no server leads the stream")
}

// Publishes until its time is over, so many at a time, and waits for the last answer.
func (l load) publish(
	js jetstream.JetStream, subject string, share int, until time.Time, places chan struct{}, result *tally,
) {
	type call struct {
		sent   time.Time
		future jetstream.PubAckFuture
	}
	body := []byte(strings.Repeat("x", l.bytes))
	var calls []call
	var submissions []time.Duration
	defer func() {
		result.mutex.Lock()
		result.submissions = append(result.submissions, submissions...)
		result.mutex.Unlock()
	}()
	for {
	fill:
		for len(calls) < share && time.Now().Before(until) {
			if l.isLife {
				if len(calls) == 0 {
					// Nothing else is to be waited for.
					select {
					case <-places:
					case <-time.After(time.Until(until)):
						return
					}
				} else {
					select {
					case <-places:
					default:
						break fill
					}
				}
			}
			sent := time.Now()
			future, err := js.PublishAsync(subject, body)
			if err != nil {
				result.fail(err)
				return
			}
			calls = append(calls, call{sent, future})
		}
		if len(calls) == 0 {
			return
		}
		first := calls[0]
		calls = calls[1:]
		select {
		case <-first.future.Ok():
			submissions = append(submissions, time.Since(first.sent))
		case err := <-first.future.Err():
			result.fail(err)
			if l.isLife {
				// The place of a job that never was.
				places <- struct{}{}
			}
		}
	}
}

// Acknowledges everything, over a connection of its own.
func (l load) work(
	ctx context.Context, server, stream, consumer string, places chan struct{}, result *tally,
) (func(), error) {
	connection, err := nats.Connect(server)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(connection)
	if err != nil {
		return nil, err
	}
	taker, err := js.Consumer(ctx, stream, consumer)
	if err != nil {
		return nil, err
	}
	consuming, err := taker.Consume(func(message jetstream.Msg) {
		if err := message.Ack(); err != nil {
			result.fail(err)
			return
		}
		places <- struct{}{}
	}, jetstream.PullMaxMessages(max(l.inFlight, 2)),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) { result.fail(err) }))
	if err != nil {
		return nil, err
	}
	return func() {
		consuming.Stop()
		<-consuming.Closed()
		connection.Close()
	}, nil
}

func (l load) awaitEmpty(ctx context.Context, stream jetstream.Stream) error {
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		info, err := stream.Info(ctx)
		if err != nil {
			return err
		}
		if info.State.Msgs == 0 {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("jobs did not come to their end in time")
}

func main() {
	servers := flag.String("servers", "", "the servers, with commas")
	bytes := flag.Int("bytes", 200, "the size of a message")
	inFlight := flag.String("in-flight", "1,64,1024", "how many messages are under way at a time")
	seconds := flag.Float64("seconds", 5, "how long a row runs")
	flag.Parse()
	rows := []row{}
	for _, operation := range []string{"ENQUEUE", "LIFE"} {
		for _, text := range strings.Split(*inFlight, ",") {
			count, err := strconv.Atoi(text)
			if err != nil || count < 1 {
				log.Fatalf("%q is no number of messages", text)
			}
			load := load{
				servers: strings.Split(*servers, ","), bytes: *bytes, inFlight: count,
				runsFor: time.Duration(*seconds * float64(time.Second)), isLife: operation == "LIFE",
			}
			ctx, cancel := context.WithTimeout(context.Background(), load.runsFor+4*patience)
			result, err := load.run(ctx, len(rows))
			cancel()
			if err != nil {
				log.Fatalf("%s with %d in flight: %v", operation, count, err)
			}
			perJob := map[string]int{"ENQUEUE": 1, "LIFE": 3}[operation]
			rows = append(rows, result.row(operation, *bytes, count, perJob))
			log.Printf("%+v", rows[len(rows)-1])
		}
	}
	printed := json.NewEncoder(os.Stdout)
	printed.SetIndent("", "  ")
	if err := printed.Encode(rows); err != nil {
		log.Fatal(err)
	}
	for _, row := range rows {
		if row.Errors > 0 {
			os.Exit(1)
		}
	}
}
