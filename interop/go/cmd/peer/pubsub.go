package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/cluster"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// produceDeadline is more than publishing some thousand messages takes.
const produceDeadline = 20 * time.Second

var errNotSpawned = errors.New("not spawned here")

// subscribe makes an actor that was spawned here hear a topic.
func (p *peer) subscribe(a arguments) (object, error) {
	if _, ok := p.spawned[a[2]]; !ok {
		return nil, errNotSpawned
	}
	_, err := p.member.SubscribeByPid(a[1], p.member.ActorSystem.NewLocalPID(a[2]))
	return nil, err
}

func (p *peer) unsubscribe(a arguments) (object, error) {
	_, err := p.member.UnsubscribeByPid(a[1], p.member.ActorSystem.NewLocalPID(a[2]))
	return nil, err
}

func (p *peer) subscribeGrain(a arguments) (object, error) {
	_, err := p.member.SubscribeByClusterIdentity(a[1], cluster.NewClusterIdentity(a[3], a[2]))
	return nil, err
}

func (p *peer) unsubscribeGrain(a arguments) (object, error) {
	_, err := p.member.UnsubscribeByIdentityAndKind(a[1], a[3], a[2])
	return nil, err
}

// subscribeHandler makes a function hear a topic; `received` tells what it heard.
func (p *peer) subscribeHandler(a arguments) (object, error) {
	handler := &echo{}
	p.spawned[a[2]] = handler
	_, err := p.member.SubscribeWithReceive(a[1], handler.Receive)
	return nil, err
}

func (p *peer) publish(a arguments) (object, error) {
	ctx, cancel := context.WithTimeout(context.Background(), produceDeadline)
	defer cancel()
	answer, err := p.member.Publisher().Publish(ctx, a[1], wrapperspb.String(a.text(2, len(a))))
	if err != nil {
		return nil, err
	}
	return object{"status": int(answer.Status)}, nil
}

// produce publishes numbers through a batching producer and waits until all are published.
func (p *peer) produce(a arguments) (object, error) {
	count, err := strconv.Atoi(a[2])
	if err != nil {
		return nil, err
	}
	producer := p.member.BatchingProducer(a[1])
	defer producer.Dispose()
	infos := make([]*cluster.ProduceProcessInfo, 0, count)
	for number := range count {
		info, err := producer.Produce(context.Background(), wrapperspb.String(fmt.Sprintf("%06d", number)))
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	deadline := time.After(produceDeadline)
	for _, info := range infos {
		select {
		case <-info.Finished:
			if info.Err != nil {
				return nil, info.Err
			}
		case <-deadline:
			return nil, errors.New("not published in time")
		}
	}
	return object{"count": count}, nil
}

// broadcast tells every other member.
func (p *peer) broadcast(a arguments) (object, error) {
	p.member.MemberList.BroadcastEvent(wrapperspb.String(a.text(1, len(a))), false)
	return nil, nil
}

// tellBroadcasts prints what others broadcast.
func tellBroadcasts(system *actor.ActorSystem, out *printer) {
	system.EventStream.Subscribe(func(event any) {
		if text, ok := event.(*wrapperspb.StringValue); ok {
			out.event("broadcast", object{"text": text.Value})
		}
	})
}
