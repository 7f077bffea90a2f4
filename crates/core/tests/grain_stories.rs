//! The machines of grains together: several nodes that call, host, lose and hand over the same grains.
//!
//! A small world stands in for the drivers. Messages are delivered in order and one at a time; a grain is a counter that
//! answers how often it was called.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use synod_core::gossip::GossipMemberId;
use synod_core::grains::{
    ActivationCommand, ActivationConfig, ActivationEvent, ActivationOutcome, ActivationRefusal, ActorPid,
    Answer, AttemptFailure, CallEnd, CallRequest, ClaimId, ClaimRecord, ClusterIdentity, ClusterView,
    CorrelationId, GrainHost, GrainKindConfig, GrainRpcRouter, GrainSnapshot, PidCache, PidCacheConfig,
    PlacementHash, RelocationReceipt, RelocationRecord, ResolveResult, Resolver, RetryPolicy, RouterCommand,
    RouterConfig, RouterOutcome, ViewVersion, VirtualActorRegistry,
};
use synod_core::roster::{PeerRuntime, RosterMember};
use synod_core::{Authority, TimerInstant};

#[test]
fn the_first_calls_from_all_nodes_at_once_start_one_grain() {
    let mut world = World::of(&["a", "b", "c"]);
    for caller in ["a", "b", "c", "a", "b", "c"] {
        world.call(caller, "Chat/x");
    }
    world.run();
    assert_eq!(world.spawned.len(), 1, "{:?}", world.spawned);
    assert_eq!(world.answers(), [1, 2, 3, 4, 5, 6], "every call was answered, by the same counter");

    // From now on every node knows where it is and asks nobody.
    let asked = world.activation_requests;
    for caller in ["a", "b", "c"] {
        world.call(caller, "Chat/x");
    }
    world.run();
    assert_eq!((world.activation_requests, world.answers().len()), (asked, 9));
}

#[test]
fn when_the_host_dies_the_call_is_tried_again_at_the_next_host() {
    let mut world = World::of(&["a", "b", "c"]);
    let host = world.owner("Chat/x");
    let caller = if host == "a" { "b" } else { "a" };
    world.call(caller, "Chat/x");
    world.run();
    // The host dies with a request in its hands. Nobody knows yet, and the call waits.
    world.nodes.get_mut(&host).expect("the host").is_dead = true;
    world.call(caller, "Chat/x");
    world.run();
    assert_eq!(world.answers(), [1]);
    // Now they know. The grain starts elsewhere, from nothing: what it was died with its host.
    let rest: Vec<String> = world.nodes.keys().filter(|name| **name != host).cloned().collect();
    world.set_roster(&rest, &rest);
    world.run();
    assert_eq!(world.answers(), [1, 1]);
    assert_eq!(world.spawned.len(), 2);
    assert_ne!(world.spawned[1].0, host);
}

#[test]
fn when_a_node_joins_a_grain_moves_there_with_its_state_and_stale_callers_follow() {
    let mut world = World::of(&["a", "b"]);
    let all = ["a", "b", "c"].map(String::from);
    let grain = world.moving_to("c", &all);
    for _ in 0..5 {
        world.call("a", &grain);
    }
    world.call("b", &grain);
    world.run();
    let (stale, host) = if world.owner(&grain) == "a" { ("b", "a") } else { ("a", "b") };

    // `stale` hears of the newcomer last. It still calls the old host.
    world.set_roster(&all, &["c".into(), host.into()]);
    world.call(stale, &grain);
    world.run();
    assert_eq!(world.answers().len(), 6, "the old host has no such grain any more and refuses to start it");
    assert!(world.node(stale).cache.is_empty(), "the end of the old activation was announced");
    assert_eq!(world.spawned.len(), 1);

    world.set_roster(&all, &[stale.into()]);
    world.run();
    assert_eq!(world.answers(), [1, 2, 3, 4, 5, 6, 7], "the counter went on where it was");
    assert_eq!(world.spawned.last(), Some(&("c".into(), grain.clone(), Some(6))));
    let handed_over =
        |event: &ActivationEvent| matches!(event, ActivationEvent::HandedOver { snapshot: Some(6), .. });
    assert!(world.events.iter().any(handed_over), "{:?}", world.events);
}

#[test]
fn a_grain_that_was_unloaded_while_a_call_was_on_its_way_is_found_again() {
    let mut world = World::of(&["a", "b"]);
    let host = world.owner("Chat/x");
    let caller = if host == "a" { "b" } else { "a" };
    world.call(caller, "Chat/x");
    world.run();
    // The grain is unloaded, but its end has not been heard of when the next call goes out.
    world.now = world.now + Duration::from_secs(60);
    let now = world.now;
    let out = world.node(&host).registry.poll(now);
    world.call(caller, "Chat/x");
    world.do_activations(&host, out);
    world.run();
    assert_eq!(world.answers(), [1, 2], "a dead letter, another look, and the state is still there");
    assert_eq!(world.spawned.len(), 2);
}

#[test]
fn a_node_that_leaves_takes_no_state_with_it() {
    let mut world = World::of(&["a", "b"]);
    let leaver = world.owner("Chat/x");
    let stayer = if leaver == "a" { "b" } else { "a" };
    world.call(stayer, "Chat/x");
    world.run();
    let out = world.node(&leaver).registry.handle_leave(TimerInstant::ZERO);
    world.do_activations(&leaver, out);
    world.run();
    assert!(world.node(&leaver).registry.is_drained());
    world.set_roster(&[stayer.into()], &[stayer.into()]);
    world.call(stayer, "Chat/x");
    world.run();
    assert_eq!(world.answers(), [1, 2]);
    assert_eq!(world.spawned.last(), Some(&(stayer.into(), "Chat/x".into(), Some(1))));
}

// ---- The world ----

/// Who waits for an answer: the node and its call.
type Asker = (String, CorrelationId);

struct Node {
    member: RosterMember,
    router: GrainRpcRouter,
    cache: PidCache,
    resolver: Resolver,
    registry: VirtualActorRegistry<Asker>,
    is_dead: bool,
}

enum Message {
    Activate { grain: ClusterIdentity, asker: Asker },
    Activated { asker: Asker, grain: ClusterIdentity, result: Result<ActorPid, ActivationRefusal> },
    Request { asker: Asker, grain: ClusterIdentity, pid: ActorPid },
    Response { asker: Asker, count: u64 },
    DeadLetter { asker: Asker },
    Terminated { grain: ClusterIdentity, pid: ActorPid },
    Claim(ClaimRecord),
    Outdated { grain: ClusterIdentity, claim: ClaimId, by: GossipMemberId },
    Relocate(RelocationRecord),
    Receipt(RelocationReceipt),
}

struct World {
    nodes: BTreeMap<String, Node>,
    now: TimerInstant,
    version: u64,
    messages: VecDeque<(String, Message)>,
    counters: BTreeMap<ActorPid, u64>,
    spawned: Vec<(String, String, Option<u64>)>,
    events: Vec<ActivationEvent>,
    counted: Vec<u64>,
    activation_requests: usize,
}

impl World {
    /// Nodes that know each other.
    fn of(names: &[&str]) -> Self {
        let mut world = Self {
            nodes: BTreeMap::new(),
            now: TimerInstant::ZERO,
            version: 0,
            messages: VecDeque::new(),
            counters: BTreeMap::new(),
            spawned: Vec::new(),
            events: Vec::new(),
            counted: Vec::new(),
            activation_requests: 0,
        };
        let names: Vec<String> = names.iter().map(|name| (*name).into()).collect();
        world.set_roster(&names, &names);
        world
    }

    /// The nodes `listed` are the cluster, and `told` know it. A node that is new begins with that.
    fn set_roster(&mut self, listed: &[String], told: &[String]) {
        self.version += 1;
        let roster: Vec<_> = listed.iter().map(|name| member(name)).collect();
        for name in told {
            let gone: Vec<_> = match self.nodes.get(name) {
                Some(node) => node.resolver.view().hosts().to_vec(),
                None => Vec::new(),
            };
            let node = self.nodes.entry(name.clone()).or_insert_with(|| new_node(name));
            let view = ClusterView::new(ViewVersion(self.version), &roster, &[], &[]);
            node.resolver.handle_view(view).expect("a newer view");
            node.cache.handle_roster(&roster, PLACEMENT);
            let activations = node.registry.handle_roster(&roster, self.now);
            let mut routed = Vec::new();
            for gone in gone.iter().filter(|gone| roster.iter().all(|member| member.id != gone.id)) {
                routed.push(node.router.handle_peer_gone(&gone.authority, self.now));
            }
            self.do_activations(name, activations);
            for out in routed {
                self.do_calls(name, out);
            }
        }
    }

    fn call(&mut self, caller: &str, grain: &str) {
        let deadline = self.now + Duration::from_secs(60);
        let request = CallRequest {
            grain: parse(grain),
            deadline,
            schema_min: 1,
            retry: None,
            known: None,
            once: false,
        };
        let now = self.now;
        let (_, out) = self.node(caller).router.call(request, now);
        self.do_calls(caller, out);
    }

    /// Delivers everything, and gives retries their time, until a second after nothing happens any more.
    fn run(&mut self) {
        for _ in 0..100 {
            while let Some((to, message)) = self.messages.pop_front() {
                if !self.node(&to).is_dead {
                    self.deliver(&to, message);
                }
            }
            self.now = self.now + Duration::from_millis(10);
            let now = self.now;
            for name in self.nodes.keys().cloned().collect::<Vec<_>>() {
                let out = self.node(&name).router.poll(now);
                self.do_calls(&name, out);
            }
        }
    }

    fn deliver(&mut self, to: &str, message: Message) {
        let now = self.now;
        let name = to.to_string();
        match message {
            Message::Activate { grain, asker } => {
                self.activation_requests += 1;
                let out = self.node(to).registry.handle_activation_request(&grain, asker, now);
                self.do_activations(to, out);
            }
            Message::Activated { asker: (_, call), grain, result } => {
                let node = self.node(to);
                let out = match result {
                    Ok(pid) => {
                        let hosts = node.resolver.view().hosts();
                        let host = hosts.iter().find(|host| host.authority == *pid.authority());
                        if let Some(id) = host.map(|host| host.id.clone()) {
                            node.cache.insert(&grain, pid.clone(), id, now);
                        }
                        node.router.handle_resolved(call, pid, now)
                    }
                    Err(refusal) => {
                        let failure = AttemptFailure::ActivationRefused(refusal.to_string());
                        node.router.handle_failure(call, failure, now)
                    }
                };
                self.do_calls(to, out);
            }
            Message::Request { asker, grain, pid } => {
                let reached = self.node(to).registry.handle_message(&grain, now);
                let answer = if reached.as_ref() == Some(&pid) {
                    let count = self.counters.get_mut(&pid).expect("an activation that runs");
                    *count += 1;
                    Message::Response { asker: asker.clone(), count: *count }
                } else {
                    Message::DeadLetter { asker: asker.clone() }
                };
                if let Some(pid) = reached {
                    self.node(to).registry.handle_turn_done(&grain, &pid, now);
                }
                self.messages.push_back((asker.0, answer));
            }
            Message::Response { asker: (_, call), count } => {
                let out = self.node(to).router.handle_response(call, Answer::Success, 1, now);
                if out.ended.iter().any(|ended| matches!(ended.end, CallEnd::Completed { .. })) {
                    self.counted.push(count);
                }
                self.do_calls(&name, out);
            }
            Message::DeadLetter { asker: (_, call) } => {
                let out = self.node(to).router.handle_failure(call, AttemptFailure::DeadLetter, now);
                self.do_calls(&name, out);
            }
            Message::Terminated { grain, pid } => {
                let node = self.node(to);
                node.cache.handle_failed(&grain, &pid);
            }
            Message::Claim(claim) => {
                let out = self.node(to).registry.handle_claim(claim, now);
                self.do_activations(to, out);
            }
            Message::Outdated { grain, claim, by } => {
                let out = self.node(to).registry.handle_outdated(&grain, &claim, &by);
                self.do_activations(to, out);
            }
            Message::Relocate(record) => {
                let out = self.node(to).registry.handle_relocation(record, now);
                self.do_activations(to, out);
            }
            Message::Receipt(receipt) => {
                let out = self.node(to).registry.handle_receipt(&receipt);
                self.do_activations(to, out);
            }
        }
    }

    fn do_calls(&mut self, name: &str, out: RouterOutcome) {
        let now = self.now;
        for command in out.commands {
            let node = self.nodes.get_mut(name).expect("a node");
            match command {
                RouterCommand::Evict { grain, pid, .. } => drop(node.cache.handle_failed(&grain, &pid)),
                RouterCommand::Resolve { correlation, grain } => {
                    let asker = (name.to_string(), correlation);
                    if let (Some(pid), _) = node.cache.get(&grain, now) {
                        let out = node.router.handle_resolved(correlation, pid, now);
                        self.do_calls(name, out);
                    } else if let Some(owner) = node.resolver.locate(&grain, PLACEMENT) {
                        let owner = owner.id.as_str().replace("#1", "");
                        self.messages.push_back((owner, Message::Activate { grain, asker }));
                    } else {
                        let out = node.router.handle_failure(correlation, AttemptFailure::NoHost, now);
                        self.do_calls(name, out);
                    }
                }
                RouterCommand::Send { correlation, pid, remaining, .. } => {
                    assert!(remaining > Duration::ZERO);
                    let asker = (name.to_string(), correlation);
                    match node.resolver.resolve_pid(pid.clone()) {
                        ResolveResult::Ready { member, .. } => {
                            let grain = grain_of(&pid);
                            let to = member.as_str().replace("#1", "");
                            self.messages.push_back((to, Message::Request { asker, grain, pid }));
                        }
                        ResolveResult::Unreachable { authority, .. }
                        | ResolveResult::Quarantine { authority, .. } => {
                            let failure = AttemptFailure::Unreachable(authority);
                            let out = node.router.handle_failure(correlation, failure, now);
                            self.do_calls(name, out);
                        }
                    }
                }
            }
        }
    }

    fn do_activations(&mut self, name: &str, out: ActivationOutcome<Asker>) {
        let now = self.now;
        self.events.extend(out.events);
        for command in out.commands {
            let node = self.nodes.get_mut(name).expect("a node");
            match command {
                ActivationCommand::Spawn { grain, activation, snapshot } => {
                    let id = format!("partition-activator/{grain}${activation}");
                    let pid = ActorPid::new(node.member.authority.clone(), &id).expect("a PID");
                    let version = snapshot.map(|snapshot| snapshot.version);
                    let is_twin = |running: &ActorPid| {
                        running.authority() == pid.authority() && grain_of(running) == grain
                    };
                    assert!(!self.counters.keys().any(is_twin), "{grain} runs twice on {name}");
                    self.counters.insert(pid.clone(), version.unwrap_or(0));
                    self.spawned.push((name.into(), grain.to_string(), version));
                    let out = node.registry.handle_spawned(&grain, activation, pid, now);
                    self.do_activations(name, out);
                }
                ActivationCommand::Stop { grain, pid, .. } => {
                    let version = self.counters.remove(&pid).expect("an activation that runs");
                    let snapshot = GrainSnapshot { version, bytes: version.to_le_bytes().into() };
                    let out = node.registry.handle_terminated(&grain, &pid, Some(snapshot), now);
                    self.do_activations(name, out);
                }
                ActivationCommand::Claim { to, claim } => self.post(&to, Message::Claim(claim)),
                ActivationCommand::Outdated { to, grain, number } => {
                    let claim = ClaimId { claimer: to.id.clone(), number };
                    let by = node.member.id.clone();
                    self.post(&to, Message::Outdated { grain, claim, by });
                }
                ActivationCommand::Transfer { to, record } => self.post(&to, Message::Relocate(record)),
                ActivationCommand::Confirm { to, receipt } => self.post(&to, Message::Receipt(receipt)),
                ActivationCommand::Announce { grain, pid } => {
                    for to in self.nodes.keys() {
                        let (grain, pid) = (grain.clone(), pid.clone());
                        self.messages.push_back((to.clone(), Message::Terminated { grain, pid }));
                    }
                }
            }
        }
        for reply in out.replies {
            let (grain, result) = (reply.grain, reply.result);
            let to = reply.to.0.clone();
            self.messages.push_back((to, Message::Activated { asker: reply.to, grain, result }));
        }
    }

    fn post(&mut self, to: &GrainHost, message: Message) {
        self.messages.push_back((to.id.as_str().replace("#1", ""), message));
    }

    fn node(&mut self, name: &str) -> &mut Node {
        self.nodes.get_mut(name).expect("a node")
    }

    /// What the counters answered, in the order in which the callers heard it.
    fn answers(&self) -> &[u64] {
        &self.counted
    }

    fn owner(&mut self, grain: &str) -> String {
        let node = self.nodes.values().next().expect("a node");
        let owner = node.resolver.locate(&parse(grain), PLACEMENT).expect("an owner");
        owner.id.as_str().replace("#1", "")
    }

    /// A grain that belongs to `newcomer` as soon as it is there.
    fn moving_to(&self, newcomer: &str, all: &[String]) -> String {
        let roster: Vec<_> = all.iter().map(|name| member(name)).collect();
        let is_its = |grain: &String| {
            PLACEMENT.owner(&parse(grain), &roster).is_some_and(|owner| owner.id == member(newcomer).id)
        };
        (0..).map(|n| format!("Chat/{n}")).find(is_its).expect("one of many")
    }
}

fn new_node(name: &str) -> Node {
    let member = member(name);
    let retry = RetryPolicy::Fixed { retries: 20, delay: Duration::from_millis(100) };
    // Every caller has many calls to one grain under way here.
    let router = RouterConfig { retry, concurrency_limit: 10, ..RouterConfig::default() };
    let kind = GrainKindConfig { idle_limit: Some(Duration::from_secs(30)), ..GrainKindConfig::new("Chat") };
    let activation = ActivationConfig { placement: PLACEMENT, ..ActivationConfig::default() };
    Node {
        router: GrainRpcRouter::new(router, 1).expect("sound settings"),
        cache: PidCache::new(PidCacheConfig::default()).expect("sound settings"),
        resolver: Resolver::new(),
        registry: VirtualActorRegistry::new(GrainHost::from(&member), vec![kind], activation)
            .expect("sound settings"),
        member,
        is_dead: false,
    }
}

fn member(name: &str) -> RosterMember {
    RosterMember {
        id: GossipMemberId::new(&format!("{name}#1")).expect("an id"),
        authority: Authority::new(&format!("{name}:8401")).expect("an authority"),
        kinds: vec!["Chat".into()],
        runtime: PeerRuntime::Synod,
    }
}

fn parse(grain: &str) -> ClusterIdentity {
    grain.parse().expect("a name")
}

/// The grain of an activation, whose id is `partition-activator/<grain>$<number>` here.
fn grain_of(pid: &ActorPid) -> ClusterIdentity {
    let name = pid.id().strip_prefix("partition-activator/").and_then(|rest| rest.rsplit_once('$'));
    parse(name.expect("an id of this world").0)
}

const PLACEMENT: PlacementHash = PlacementHash::Synod;
