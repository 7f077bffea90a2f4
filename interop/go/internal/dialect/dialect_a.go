//go:build dialect_a

package dialect

import (
	"errors"

	"github.com/asynkron/protoactor-go/cluster"
	"google.golang.org/protobuf/types/known/anypb"
)

// Name of the dialect this binary speaks.
const Name = "a"

// HeartbeatKey is the gossip key of heartbeats, misspelt by upstream.
const HeartbeatKey = cluster.HearthbeatKey

// GossipRequest to the member `to` with one value of one member.
func GossipRequest(to, member, key string, value *cluster.GossipKeyValue) *cluster.GossipRequest {
	values := map[string]*cluster.GossipKeyValue{key: value}
	members := map[string]*cluster.GossipState_GossipMemberState{member: {Values: values}}
	return &cluster.GossipRequest{MemberId: to, State: &cluster.GossipState{Members: members}}
}

var errNoMaps = errors.New("dialect a has no map state")

// SetMapText sets one entry of a gossiped map of the own member.
func SetMapText(*cluster.Gossiper, string, string, string) error { return errNoMaps }

// GetMap returns one entry of a gossiped map of the own member, nil if there is none.
func GetMap(*cluster.Gossiper, string, string) (*anypb.Any, error) { return nil, errNoMaps }
