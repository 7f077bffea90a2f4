package main

import (
	"math"
	"strconv"
	"time"

	"github.com/asynkron/protoactor-go/cluster"
	"google.golang.org/protobuf/types/known/emptypb"

	"synod/interop/internal/counter"
)

// counterKind is the kind of grains that protoc-gen-go-grain made of examples/counter/proto/counter.proto. Nodes written
// in Rust host the same.
func counterKind() *cluster.Kind {
	return counter.NewCounterKind(func() counter.Counter { return &goCounter{} }, time.Minute)
}

type goCounter struct{ total int64 }

func (*goCounter) Init(cluster.GrainContext)           {}
func (*goCounter) Terminate(cluster.GrainContext)      {}
func (*goCounter) ReceiveDefault(cluster.GrainContext) {}

func (c *goCounter) Add(request *counter.AddRequest, _ cluster.GrainContext) (*counter.Total, error) {
	if request.Amount > 0 && c.total > math.MaxInt64-request.Amount {
		return nil, counter.ErrTooMuch("the total would be too large")
	}
	if c.total+request.Amount < 0 {
		return nil, counter.ErrOverdrawn("the total would be %d", c.total+request.Amount)
	}
	c.total += request.Amount
	return c.told(), nil
}

func (c *goCounter) Current(*emptypb.Empty, cluster.GrainContext) (*counter.Total, error) {
	return c.told(), nil
}

func (c *goCounter) Reset(*emptypb.Empty, cluster.GrainContext) (*emptypb.Empty, error) {
	c.total = 0
	return &emptypb.Empty{}, nil
}

func (c *goCounter) told() *counter.Total { return &counter.Total{Value: c.total, Node: "go"} }

// counterClient is the generated client of the counter that the first word after the command names.
func (p *peer) counterClient(a arguments) (*counter.CounterGrainClient, cluster.GrainCallOption, error) {
	timeout, err := a.timeout()
	return counter.GetCounterGrainClient(p.member, a[1]), cluster.WithTimeout(timeout), err
}

func (p *peer) count(a arguments) (object, error) {
	amount, err := strconv.ParseInt(a[2], 10, 64)
	if err != nil {
		return nil, err
	}
	client, timeout, err := p.counterClient(a)
	if err != nil {
		return nil, err
	}
	total, err := client.Add(&counter.AddRequest{Amount: amount}, timeout)
	if counter.IsOverdrawn(err) {
		return object{"overdrawn": cluster.FromError(err).Message}, nil
	}
	if err != nil {
		return nil, err
	}
	return object{"value": total.Value, "node": total.Node}, nil
}

func (p *peer) counted(a arguments) (object, error) {
	client, timeout, err := p.counterClient(a)
	if err != nil {
		return nil, err
	}
	total, err := client.Current(&emptypb.Empty{}, timeout)
	if err != nil {
		return nil, err
	}
	return object{"value": total.Value, "node": total.Node}, nil
}

func (p *peer) recount(a arguments) (object, error) {
	client, timeout, err := p.counterClient(a)
	if err != nil {
		return nil, err
	}
	_, err = client.Reset(&emptypb.Empty{}, timeout)
	return object{}, err
}
