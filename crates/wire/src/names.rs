//! Words that mean something to a Go node.
//!
//! They are part of the protocol as much as the field numbers are: a Go node of the older dialect dies when it is sent
//! the name of a type that it does not have, and finds nobody when an actor id is off by a letter. Some are misspelt,
//! and must stay so.

// ---- gRPC ----

/// The one method that nodes call: a stream of frames.
pub const RECEIVE_METHOD: &str = "/remote.Remoting/Receive";

// ---- Type names: package `actor` ----

/// Wants to be told when an actor ends.
pub const WATCH: &str = "actor.Watch";
/// No longer wants to be told.
pub const UNWATCH: &str = "actor.Unwatch";
/// An actor ended.
pub const TERMINATED: &str = "actor.Terminated";
/// Stop at once.
pub const STOP: &str = "actor.Stop";
/// Stop after the messages before this one.
pub const POISON_PILL: &str = "actor.PoisonPill";
/// Are you there?
pub const TOUCH: &str = "actor.Touch";
/// I am.
pub const TOUCHED: &str = "actor.Touched";
/// There is no such actor.
pub const DEAD_LETTER_RESPONSE: &str = "actor.DeadLetterResponse";
/// The name of an actor.
pub const PID: &str = "actor.PID";

// ---- Type names: package `remote` ----

/// A frame.
pub const REMOTE_MESSAGE: &str = "remote.RemoteMessage";
/// A batch of messages.
pub const MESSAGE_BATCH: &str = "remote.MessageBatch";
/// One message of a batch.
pub const MESSAGE_ENVELOPE: &str = "remote.MessageEnvelope";
/// The first frame of a stream.
pub const CONNECT_REQUEST: &str = "remote.ConnectRequest";
/// The answer to it.
pub const CONNECT_RESPONSE: &str = "remote.ConnectResponse";
/// The end of a stream.
pub const DISCONNECT_REQUEST: &str = "remote.DisconnectRequest";
/// Start an actor.
pub const ACTOR_PID_REQUEST: &str = "remote.ActorPidRequest";
/// It was started.
pub const ACTOR_PID_RESPONSE: &str = "remote.ActorPidResponse";

// ---- Type names: package `cluster` ----

/// What is new in the gossip.
pub const GOSSIP_REQUEST: &str = "cluster.GossipRequest";
/// The answer to it.
pub const GOSSIP_RESPONSE: &str = "cluster.GossipResponse";
/// A gossip value that is a map.
pub const GOSSIP_MAP: &str = "cluster.GossipMap";
/// Who is in the cluster.
pub const CLUSTER_TOPOLOGY: &str = "cluster.ClusterTopology";
/// A sign of life.
pub const MEMBER_HEARTBEAT: &str = "cluster.MemberHeartbeat";
/// Where does this grain run?
pub const ACTIVATION_REQUEST: &str = "cluster.ActivationRequest";
/// There.
pub const ACTIVATION_RESPONSE: &str = "cluster.ActivationResponse";
/// It runs no longer.
pub const ACTIVATION_TERMINATED: &str = "cluster.ActivationTerminated";
/// A call of a grain.
pub const GRAIN_REQUEST: &str = "cluster.GrainRequest";
/// A result in the form of older Go nodes.
pub const GRAIN_RESPONSE: &str = "cluster.GrainResponse";
/// A call that failed.
pub const GRAIN_ERROR_RESPONSE: &str = "cluster.GrainErrorResponse";
/// Prepare a topic.
pub const INITIALIZE: &str = "cluster.Initialize";
/// It is prepared.
pub const ACKNOWLEDGE: &str = "cluster.Acknowledge";
/// The subscribers of a topic, as a store keeps them.
pub const SUBSCRIBERS: &str = "cluster.Subscribers";
/// Subscribe to a topic.
pub const SUBSCRIBE_REQUEST: &str = "cluster.SubscribeRequest";
/// Subscribed.
pub const SUBSCRIBE_RESPONSE: &str = "cluster.SubscribeResponse";
/// Unsubscribe from a topic.
pub const UNSUBSCRIBE_REQUEST: &str = "cluster.UnsubscribeRequest";
/// Unsubscribed.
pub const UNSUBSCRIBE_RESPONSE: &str = "cluster.UnsubscribeResponse";
/// Messages for a topic.
pub const PUB_SUB_BATCH_TRANSPORT: &str = "cluster.PubSubBatchTransport";
/// Messages from a topic for the subscribers of one node.
pub const DELIVER_BATCH_REQUEST_TRANSPORT: &str = "cluster.DeliverBatchRequestTransport";
/// Messages from a topic for one subscriber.
pub const PUB_SUB_AUTO_RESPOND_BATCH_TRANSPORT: &str = "cluster.PubSubAutoRespondBatchTransport";
/// They were taken.
pub const PUBLISH_RESPONSE: &str = "cluster.PublishResponse";
/// Deliveries failed.
pub const NOTIFY_ABOUT_FAILING_SUBSCRIBERS_REQUEST: &str = "cluster.NotifyAboutFailingSubscribersRequest";
/// Noted.
pub const NOTIFY_ABOUT_FAILING_SUBSCRIBERS_RESPONSE: &str = "cluster.NotifyAboutFailingSubscribersResponse";

// ---- Type names: well-known types that every Go cluster node has ----

/// A message without content; also the value of the gossip key [`GOSSIP_KEY_LEFT`].
pub const EMPTY: &str = "google.protobuf.Empty";
/// What stands before a type name in the type URL of an `Any`.
pub const TYPE_URL_PREFIX: &str = "type.googleapis.com/";

// ---- Type names: between synod nodes only ----

/// Begins the name of every type that no Go node has. None of them is ever sent to one.
pub const SYNOD_PREFIX: &str = "synod.";
/// What the coordinators of the membership say to each other.
pub const MEMBERSHIP_MESSAGE: &str = "synod.membership.Message";

// ---- Gossip keys ----

/// The members as their owner sees them.
pub const GOSSIP_KEY_TOPOLOGY: &str = "topology";
/// The sign of life of Go nodes since about April 2024.
pub const GOSSIP_KEY_HEARTBEAT: &str = "heartbeat";
/// The sign of life of Go nodes before that. The letters are swapped on the wire too; a node that wants to be seen by
/// all publishes both keys.
pub const GOSSIP_KEY_HEARTBEAT_OLD: &str = "heathbeat";
/// Its owner leaves the cluster.
pub const GOSSIP_KEY_LEFT: &str = "left";

// ---- Actor ids with a meaning ----

/// Takes gossip.
pub const ACTOR_GOSSIP: &str = "gossip";
/// Starts grains.
pub const ACTOR_PARTITION_ACTIVATOR: &str = "partition-activator";
/// Delivers published messages to the subscribers of its node.
pub const ACTOR_PUBSUB_DELIVERY: &str = "$pubsub-delivery";
/// Publishes what it receives on the event stream of its node.
pub const ACTOR_EVENT_STREAM: &str = "eventstream";
/// Starts actors by request of other nodes.
pub const ACTOR_ACTIVATOR: &str = "activator";
/// Takes what nobody else does.
pub const ACTOR_DEAD_LETTER: &str = "deadletter";
/// Watches over the connections of a Go node; its children are `EndpointSupervisor/$n`.
pub const ACTOR_ENDPOINT_SUPERVISOR: &str = "EndpointSupervisor";
/// Belongs to the Consul provider of Go.
pub const ACTOR_CONSUL_PROVIDER: &str = "consul-provider";
/// Belongs to the Kubernetes provider of Go.
pub const ACTOR_KUBERNETES_MONITOR: &str = "k8s-cluster-monitor";
/// Begins the id of the actor that waits for one answer.
pub const ACTOR_PREFIX_FUTURE: &str = "future$";
/// Begins the id of a supervisor. A Go node panics when one is sent a user message.
pub const ACTOR_PREFIX_GUARDIAN: &str = "guardian$";

// ---- Other words ----

/// The kind of grain that topics are.
pub const KIND_TOPIC: &str = "prototopic";
/// The address of an actor on a Go node without remoting.
pub const ADDRESS_LOCAL: &str = "nonhost";
