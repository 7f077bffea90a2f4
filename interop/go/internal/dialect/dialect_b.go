//go:build !dialect_a

package dialect

import (
	"github.com/asynkron/protoactor-go/cluster"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Name of the dialect this binary speaks.
const Name = "b"

// HeartbeatKey is the gossip key of heartbeats.
const HeartbeatKey = cluster.HeartbeatKey

// GossipRequest to the member `to` with one value of one member.
func GossipRequest(to, member, key string, value *cluster.GossipKeyValue) *cluster.GossipRequest {
	values := map[string]*cluster.GossipKeyValue{key: value}
	members := map[string]*cluster.GossipMemberState{member: {Values: values}}
	return &cluster.GossipRequest{FromMemberId: to, State: &cluster.GossipState{Members: members}}
}

// SetMapText sets one entry of a gossiped map of the own member.
func SetMapText(gossip *cluster.Gossiper, key, mapKey, text string) error {
	gossip.SetMapState(key, mapKey, wrapperspb.String(text))
	return nil
}

// GetMap returns one entry of a gossiped map of the own member, nil if there is none.
func GetMap(gossip *cluster.Gossiper, key, mapKey string) (*anypb.Any, error) {
	return gossip.GetMapState(key, mapKey), nil
}
