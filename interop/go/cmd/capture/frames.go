package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/cluster"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// raw hands messages through as the bytes that they are on the wire.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (raw) Unmarshal(bytes []byte, message any) error {
	*message.(*[]byte) = append([]byte(nil), bytes...)
	return nil
}

// captureFrames lets a real Go node open a stream to a stand-in, and opens one to the node.
func captureFrames() ([]vector, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	received := make(chan []byte, 16)
	standIn := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(answer(received)))
	go func() { _ = standIn.Serve(listener) }()
	defer standIn.Stop()

	// Whatever address it is told, the node reaches the stand-in.
	dialStandIn := func(context.Context, string) (net.Conn, error) { return net.Dial("tcp", listener.Addr().String()) }
	system := actor.NewActorSystem()
	system.ID = goID
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	node := remote.NewRemote(system, remote.Configure("127.0.0.1", port,
		remote.WithAdvertisedHost(goAddress),
		remote.WithDialOptions(
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dialStandIn))))
	node.Start()

	vectors, err := outbound(system, received)
	if err != nil {
		return nil, err
	}
	inbound, err := inbound(node, fmt.Sprintf("127.0.0.1:%d", port))
	return append(vectors, inbound...), err
}

// outbound is what the node sends on a stream that it opened.
func outbound(system *actor.ActorSystem, received <-chan []byte) ([]vector, error) {
	var vectors []vector
	expect := func(name string) error {
		select {
		case bytes := <-received:
			vectors = append(vectors, vector{name, bytes})
			return nil
		case <-time.After(5 * time.Second):
			return fmt.Errorf("no %s came", name)
		}
	}
	request := &cluster.ActivationRequest{
		ClusterIdentity: &cluster.ClusterIdentity{Identity: "abc", Kind: "Hello"},
	}
	steps := []struct {
		name string
		send func()
	}{
		{"frame_batch_activation_request", func() {
			system.Root.RequestWithCustomSender(
				actor.NewPID(rustAddress, "partition-activator"), request, actor.NewPID(goAddress, "future$1"))
		}},
		{"frame_batch_tell", func() { system.Root.Send(actor.NewPID(rustAddress, "x"), wrapperspb.String("hi")) }},
		{"frame_batch_request_ids", func() {
			target, sender := actor.NewPID(rustAddress, "x"), actor.NewPID(goAddress, "y")
			target.RequestId, sender.RequestId = 11, 300
			system.Root.RequestWithCustomSender(target, &actor.Touch{}, sender)
		}},
		{"frame_batch_header", func() {
			envelope := &actor.MessageEnvelope{Header: map[string]string{"trace": "1"}, Message: &actor.Touch{}}
			system.Root.Send(actor.NewPID(rustAddress, "x"), envelope)
		}},
		{"frame_batch_dead_letter_response", func() {
			system.Root.RequestWithCustomSender(
				actor.NewPID(goAddress, "nope"), &actor.Touch{}, actor.NewPID(rustAddress, "x"))
		}},
		{"frame_batch_watch", func() {
			watcher := actor.NewPID(goAddress, "$5")
			pid := actor.NewPID(rustAddress, "x")
			process, _ := system.ProcessRegistry.Get(pid)
			process.SendSystemMessage(pid, &actor.Watch{Watcher: watcher})
		}},
		{"frame_batch_stop", func() { system.Root.Stop(actor.NewPID(rustAddress, "x")) }},
		{"frame_batch_poison", func() { system.Root.Poison(actor.NewPID(rustAddress, "x")) }},
	}
	for i, step := range steps {
		step.send()
		if i == 0 {
			if err := expect("frame_connect_request"); err != nil {
				return nil, err
			}
		}
		if err := expect(step.name); err != nil {
			return nil, err
		}
	}
	return vectors, nil
}

// inbound is what the node sends on a stream that was opened to it.
func inbound(node *remote.Remote, address string) ([]vector, error) {
	conn, err := grpc.Dial(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	connect, err := proto.Marshal(&remote.RemoteMessage{MessageType: &remote.RemoteMessage_ConnectRequest{
		ConnectRequest: &remote.ConnectRequest{ConnectionType: &remote.ConnectRequest_ServerConnection{
			ServerConnection: serverConnection(rustID, rustAddress),
		}},
	}})
	if err != nil {
		return nil, err
	}
	open := func() (grpc.ClientStream, []byte, error) {
		description := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
		stream, err := conn.NewStream(context.Background(), description, "/remote.Remoting/Receive")
		if err != nil {
			return nil, nil, err
		}
		if err := stream.SendMsg(&connect); err != nil {
			return nil, nil, err
		}
		var response []byte
		err = stream.RecvMsg(&response)
		return stream, response, err
	}
	_, accepted, err := open()
	if err != nil {
		return nil, err
	}
	node.BlockList().Block(rustID)
	stream, blocked, err := open()
	if err != nil {
		return nil, err
	}
	go node.Shutdown(true)
	var disconnect []byte
	if err := stream.RecvMsg(&disconnect); err != nil {
		return nil, err
	}
	return []vector{
		{"frame_connect_response", accepted},
		{"frame_connect_response_blocked", blocked},
		{"frame_disconnect_request", disconnect},
	}, nil
}

// answer plays the other side of a stream: it keeps every frame, and answers the first as a node would.
func answer(received chan<- []byte) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		for isFirst := true; ; isFirst = false {
			var frame []byte
			if err := stream.RecvMsg(&frame); err != nil {
				return err
			}
			received <- frame
			if isFirst {
				response, err := proto.Marshal(&remote.RemoteMessage{MessageType: &remote.RemoteMessage_ConnectResponse{
					ConnectResponse: &remote.ConnectResponse{MemberId: rustID},
				}})
				if err != nil {
					return err
				}
				if err := stream.SendMsg(&response); err != nil {
					return err
				}
			}
		}
	}
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}
