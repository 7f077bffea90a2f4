//! One simulated process with grains, and the actors that run in it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use synod_core::gossip::GossipMemberId;
use synod_core::grains::{
    ActivationConfig, ActorPid, ClusterIdentity, CorrelationId, GrainHost, GrainKindConfig, GrainRpcRouter,
    PidCache, PidCacheConfig, PlacementHash, RetryPolicy, RouterConfig, VirtualActorRegistry,
};
use synod_core::roster::{PeerRuntime, RosterMember};
use synod_core::{Authority, TimerInstant};

/// Who asks: a call of a life of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asker {
    pub(super) node: usize,
    pub(super) process: u64,
    pub(super) call: CorrelationId,
}

pub(super) struct Process {
    /// Tells one run of the program from the next.
    pub(super) number: u64,
    pub(super) member: RosterMember,
    pub(super) registry: VirtualActorRegistry<Asker>,
    pub(super) router: GrainRpcRouter,
    pub(super) cache: PidCache,
    pub(super) roster: Vec<RosterMember>,
    /// The change of the membership that the roster is from.
    pub(super) heard: u64,
    pub(super) actors: BTreeMap<ActorPid, Actor>,
    /// When registry and router want to be polled.
    pub(super) wake_at: [Option<TimerInstant>; 2],
    pub(super) is_leaving: bool,
    /// Ends of activations that it knows of, and has yet to tell somebody else, for all that was confirmed.
    pub(super) untold: BTreeMap<ClusterIdentity, BTreeSet<ActorPid>>,
    /// Calls that are not over, with their deadline.
    pub(super) calls: BTreeMap<CorrelationId, TimerInstant>,
}

/// A counter: it knows how often it was called, and that is its state.
pub(super) struct Actor {
    pub(super) grain: ClusterIdentity,
    pub(super) count: u64,
    pub(super) mailbox: VecDeque<Request>,
    pub(super) is_busy: bool,
    pub(super) is_stopping: bool,
    /// The last call of each caller that it has begun.
    pub(super) order: BTreeMap<u64, CorrelationId>,
    pub(super) started: Duration,
    pub(super) number: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) grain: ClusterIdentity,
    pub(super) pid: ActorPid,
    pub(super) asker: Asker,
    pub(super) deadline: TimerInstant,
}

impl Process {
    pub(super) fn new(index: usize, number: u64, seed: u64, has_idle: bool) -> Self {
        let member = member(index, number);
        let idle_limit = has_idle.then_some(Duration::from_millis(700));
        let kind = GrainKindConfig { idle_limit, ..GrainKindConfig::new(KIND) };
        let activation = ActivationConfig { placement: PLACEMENT, ..ActivationConfig::default() };
        let (base, cap) = (Duration::from_millis(20), Duration::from_millis(500));
        let router = RouterConfig {
            retry: RetryPolicy::Backoff { retries: 50, base, cap },
            attempt_timeout: Duration::from_secs(1),
            ..RouterConfig::default()
        };
        let sound = "settings of the simulator are sound";
        Self {
            number,
            registry: VirtualActorRegistry::new(GrainHost::from(&member), vec![kind], activation)
                .expect(sound),
            router: GrainRpcRouter::new(router, seed).expect(sound),
            cache: PidCache::new(PidCacheConfig::default()).expect(sound),
            member,
            roster: Vec::new(),
            heard: 0,
            actors: BTreeMap::new(),
            wake_at: [None; 2],
            is_leaving: false,
            untold: BTreeMap::new(),
            calls: BTreeMap::new(),
        }
    }
}

pub(super) fn member(index: usize, number: u64) -> RosterMember {
    RosterMember {
        id: GossipMemberId::new(&format!("n{index}#{number}")).expect("an id"),
        authority: Authority::new(&format!("n{index}:1")).expect("an authority"),
        kinds: vec![KIND.into()],
        runtime: PeerRuntime::Synod,
    }
}

/// The node at an address.
pub(super) fn index_of(authority: &Authority) -> usize {
    authority.host().trim_start_matches('n').parse().expect("an address of this world")
}

pub(super) const KIND: &str = "Chat";
pub(super) const PLACEMENT: PlacementHash = PlacementHash::Synod;
