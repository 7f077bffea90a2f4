//! The laws of grains.
//!
//! Few names and short times, so that calls, activations and rosters keep getting into each other's way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use proptest::sample::{Index, subsequence};
use proptest::test_runner::FileFailurePersistence;
use proptest::{prop_assert, prop_assert_eq};
use synod_core::gossip::GossipMemberId;
use synod_core::grains::{
    ActivationCommand, ActivationConfig, ActivationId, ActivationOutcome, ActorPid, Answer, AttemptFailure,
    CallEnd, CallRequest, ClaimId, ClusterIdentity, CorrelationId, GrainHost, GrainKindConfig,
    GrainRpcRouter, GrainSnapshot, PidCache, PidCacheConfig, PlacementHash, RetryPolicy, RouterCommand,
    RouterConfig, RouterOutcome, VirtualActorRegistry,
};
use synod_core::outbound::OverflowPolicy;
use synod_core::roster::{PeerRuntime, RosterMember};
use synod_core::{Authority, TimerInstant};

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_order_of_members_does_not_matter(
        identity in "[a-z0-9/]{1,12}",
        listed in vec(any::<Index>(), 0..12),
        hash in placement(),
    ) {
        let grain = ClusterIdentity::new("Chat", &identity).expect("a name");
        let all = members();
        let shuffled: Vec<_> = listed.iter().map(|index| index.get(&all).clone()).collect();
        let mut sorted = shuffled.clone();
        sorted.sort_by(|a, b| a.id.cmp(&b.id));
        prop_assert_eq!(hash.owner(&grain, &shuffled), hash.owner(&grain, &sorted));
    }

    #[test]
    fn names_and_pids_are_read_as_they_are_written(text in "[a-z:/$.\\[\\]0-9 #\\PC]{0,24}") {
        if let Ok(grain) = text.parse::<ClusterIdentity>() {
            prop_assert_eq!(grain.to_string(), text.clone());
            prop_assert_eq!(ClusterIdentity::new(grain.kind(), grain.identity()), Ok(grain));
        }
        for pid in [text.clone(), format!("host:80/{text}"), format!("{text}:80/x")] {
            if let Ok(pid) = pid.parse::<ActorPid>() {
                prop_assert_eq!(pid.to_string().parse::<ActorPid>(), Ok(pid));
            }
        }
    }

    #[test]
    fn only_the_grains_of_a_member_that_goes_move(
        identity in "[a-z0-9/]{1,12}",
        before in subsequence(members(), 2..8),
        gone in any::<Index>(),
        hash in placement(),
    ) {
        let grain = ClusterIdentity::new("Chat", &identity).expect("a name");
        let mut after = before.clone();
        let gone = after.remove(gone.index(before.len()));
        let owner = hash.owner(&grain, &before);
        if owner != Some(&gone) {
            prop_assert_eq!(owner, hash.owner(&grain, &after));
        }
    }

    #[test]
    fn a_cache_never_exceeds_its_capacity_and_every_entry_is_told_once(
        inserts in vec((0..6_u8, 0..3_u8, 0..40_u64), 0..60),
        capacity in 1..5_usize,
    ) {
        let config = PidCacheConfig { capacity, ttl: Duration::from_millis(100) };
        let mut cache = PidCache::new(config).expect("sound settings");
        let mut held = BTreeSet::new();
        let mut now = TimerInstant::ZERO;
        for (name, host, pause) in inserts {
            now = now + Duration::from_millis(pause);
            let host = &members()[usize::from(host)];
            let grain = grain(name);
            let pid = ActorPid::new(host.authority.clone(), "x").expect("a PID");
            let out = cache.insert(&grain, pid, host.id.clone(), now);
            held.insert(grain.clone());
            for dropped in out.dropped {
                // An entry that expired in the very moment in which it was found again is dropped and kept.
                prop_assert!(dropped.grain == grain || held.remove(&dropped.grain), "dropped, but not held");
            }
            prop_assert!(cache.len() <= capacity);
            prop_assert_eq!(cache.len(), held.len());
            prop_assert!(cache.get(&grain, now).0.is_some(), "what was found last is known");
        }
    }

    #[test]
    fn a_router_keeps_its_limits_its_accounts_and_the_order_of_calls(
        config in router_config(),
        steps in vec(router_step(), 0..120),
    ) {
        let mut run = RouterRun::new(&config);
        for step in &steps {
            run.apply(step)?;
        }
        // Everything comes to an end by its deadline, whatever was lost on the way.
        run.now = run.now + Duration::from_secs(100);
        let out = run.router.poll(run.now);
        run.check(&out)?;
        prop_assert!(run.router.is_empty());
        prop_assert_eq!(out.wake_at, None);
        prop_assert_eq!(&run.accepted, &run.ended);
    }

    #[test]
    fn a_grain_never_runs_twice_on_a_node_and_everyone_who_asks_is_answered(
        steps in vec(registry_step(), 0..120),
    ) {
        let mut run = RegistryRun::new();
        for step in &steps {
            run.apply(step)?;
        }
        // Nobody waits longer than the patience for peers that never answer here.
        run.apply(&RegistryStep::Pass(60_000))?;
        // The driver answers what is left, and nothing is starting, stopping or waiting any more.
        for _ in 0..100 {
            run.apply(&RegistryStep::Spawned(true))?;
            run.apply(&RegistryStep::Terminated(None))?;
        }
        prop_assert_eq!(run.asked, run.answered);
        let counted: usize = run.registry.counts().map(|(_, count)| count).sum();
        prop_assert_eq!(counted, run.running.len());
    }

    #[test]
    fn members_that_go_through_the_same_rosters_never_run_a_grain_twice_and_lose_no_state(
        rosters in vec(subsequence(vec![0, 1, 2, 3], 1..4), 1..6),
        steps in vec(cluster_step(), 0..200),
    ) {
        let mut run = ClusterRun::new(&rosters);
        for step in &steps {
            run.apply(step)?;
        }
        // All go on to the last roster, and everything arrives.
        for node in 0..4 {
            for _ in &rosters {
                run.apply(&ClusterStep::Advance(node))?;
            }
        }
        run.settle()?;
        prop_assert_eq!(run.asked, run.answered);
        // Everybody finds it where it belongs, and with everything that was ever done to it.
        for name in 0..2 {
            for node in 0..4 {
                run.apply(&ClusterStep::Ask(node, name))?;
            }
            run.settle()?;
        }
        prop_assert_eq!(run.asked, run.answered);
        prop_assert_eq!(run.running.len(), 2);
    }
}

// ---- Routers ----

#[derive(Clone, Debug)]
enum RouterStep {
    Call { name: u8, millis: u64 },
    Resolve(Index),
    Answer(Index),
    Fail(Index, bool),
    Cancel(Index),
    Pass(u64),
    Gone(u8),
}

fn router_step() -> impl Strategy<Value = RouterStep> {
    prop_oneof![
        6 => (0..3_u8, 1..300_u64).prop_map(|(name, millis)| RouterStep::Call { name, millis }),
        4 => any::<Index>().prop_map(RouterStep::Resolve),
        4 => any::<Index>().prop_map(RouterStep::Answer),
        2 => (any::<Index>(), any::<bool>()).prop_map(|(call, passing)| RouterStep::Fail(call, passing)),
        1 => any::<Index>().prop_map(RouterStep::Cancel),
        4 => (0..120_u64).prop_map(RouterStep::Pass),
        1 => (0..3_u8).prop_map(RouterStep::Gone),
    ]
}

fn router_config() -> impl Strategy<Value = RouterConfig> {
    let retry = prop_oneof![
        Just(RetryPolicy::None),
        Just(RetryPolicy::Fixed { retries: 2, delay: Duration::from_millis(20) }),
        Just(RetryPolicy::Backoff {
            retries: 3,
            base: Duration::from_millis(5),
            cap: Duration::from_millis(40)
        }),
    ];
    (1..4_usize, 0..4_usize, any::<bool>(), retry).prop_map(
        |(concurrency_limit, queue_depth, drops, retry)| {
            let overflow = if drops { OverflowPolicy::DropOldest } else { OverflowPolicy::RejectNew };
            let attempt_timeout = Duration::from_millis(60);
            RouterConfig {
                concurrency_limit,
                queue_depth,
                overflow,
                attempt_timeout,
                retry,
                calls_max: 10,
                ..RouterConfig::default()
            }
        },
    )
}

struct RouterRun {
    router: GrainRpcRouter,
    config: RouterConfig,
    now: TimerInstant,
    issued: Vec<CorrelationId>,
    accepted: BTreeSet<CorrelationId>,
    ended: BTreeSet<CorrelationId>,
    deadlines: BTreeMap<CorrelationId, TimerInstant>,
    /// Calls by grain in the order of their first attempt.
    begun: BTreeMap<ClusterIdentity, Vec<CorrelationId>>,
    seen: BTreeSet<CorrelationId>,
}

impl RouterRun {
    fn new(config: &RouterConfig) -> Self {
        Self {
            router: GrainRpcRouter::new(config.clone(), 7).expect("sound settings"),
            config: config.clone(),
            now: TimerInstant::ZERO,
            issued: Vec::new(),
            accepted: BTreeSet::new(),
            ended: BTreeSet::new(),
            deadlines: BTreeMap::new(),
            begun: BTreeMap::new(),
            seen: BTreeSet::new(),
        }
    }

    fn apply(&mut self, step: &RouterStep) -> Result<(), proptest::test_runner::TestCaseError> {
        let now = self.now;
        let pick = |index: &Index, issued: &[CorrelationId]| {
            (!issued.is_empty()).then(|| issued[index.index(issued.len())])
        };
        let out = match step {
            RouterStep::Call { name, millis } => {
                let deadline = now + Duration::from_millis(*millis);
                let request = CallRequest {
                    grain: grain(*name),
                    deadline,
                    schema_min: 1,
                    retry: None,
                    known: None,
                    once: false,
                };
                let (id, out) = self.router.call(request, now);
                self.issued.push(id);
                self.deadlines.insert(id, deadline);
                let is_rejected = |ended: &&synod_core::grains::EndedCall| {
                    ended.correlation == id && matches!(ended.end, CallEnd::Rejected(_))
                };
                if out.ended.iter().find(is_rejected).is_none() {
                    self.accepted.insert(id);
                }
                out
            }
            RouterStep::Resolve(call) => match pick(call, &self.issued) {
                Some(id) => self.router.handle_resolved(id, pid(id.get() % 3), now),
                None => return Ok(()),
            },
            RouterStep::Answer(call) => match pick(call, &self.issued) {
                Some(id) => self.router.handle_response(id, Answer::Success, 1, now),
                None => return Ok(()),
            },
            RouterStep::Fail(call, passing) => match pick(call, &self.issued) {
                Some(id) => {
                    let failure = if *passing {
                        AttemptFailure::DeadLetter
                    } else {
                        AttemptFailure::Uncodable("no".into())
                    };
                    self.router.handle_failure(id, failure, now)
                }
                None => return Ok(()),
            },
            RouterStep::Cancel(call) => match pick(call, &self.issued) {
                Some(id) => self.router.cancel(id, now),
                None => return Ok(()),
            },
            RouterStep::Pass(millis) => {
                self.now = now + Duration::from_millis(*millis);
                self.router.poll(self.now)
            }
            RouterStep::Gone(host) => {
                self.router.handle_peer_gone(&members()[usize::from(*host)].authority, now)
            }
        };
        self.check(&out)
    }

    fn check(&mut self, out: &RouterOutcome) -> Result<(), proptest::test_runner::TestCaseError> {
        for ended in &out.ended {
            if matches!(ended.end, CallEnd::Rejected(_)) {
                prop_assert!(!self.accepted.contains(&ended.correlation));
                continue;
            }
            prop_assert!(self.accepted.contains(&ended.correlation), "ended, but never accepted");
            prop_assert!(self.ended.insert(ended.correlation), "{} ended twice", ended.correlation);
            if matches!(ended.end, CallEnd::Completed { .. }) {
                prop_assert!(self.deadlines[&ended.correlation] > self.now, "completed after its deadline");
            }
        }
        for command in &out.commands {
            match command {
                RouterCommand::Resolve { correlation, grain } => {
                    prop_assert!(self.deadlines[correlation] > self.now, "an attempt after the deadline");
                    if self.seen.insert(*correlation) {
                        self.begun.entry(grain.clone()).or_default().push(*correlation);
                    }
                }
                RouterCommand::Send { correlation, .. } => prop_assert!(!self.ended.contains(correlation)),
                RouterCommand::Evict { .. } => {}
            }
        }
        for begun in self.begun.values() {
            prop_assert!(begun.is_sorted(), "calls to one grain begin in order: {begun:?}");
        }
        for name in 0..3 {
            let (running, queued) = self.router.lane(&grain(name));
            prop_assert!(running <= self.config.concurrency_limit);
            prop_assert!(queued <= self.config.queue_depth);
            prop_assert!(
                queued == 0 || running == self.config.concurrency_limit,
                "somebody waits for nothing"
            );
        }
        let counts = self.router.counts();
        let over = counts.completed + counts.failed + counts.dropped + counts.timed_out + counts.cancelled;
        prop_assert_eq!(counts.accepted, over + self.router.len() as u64);
        prop_assert_eq!(counts.accepted, self.accepted.len() as u64);
        prop_assert!(out.wake_at.is_some() || self.router.is_empty());
        Ok(())
    }
}

// ---- Registries ----

#[derive(Clone, Debug)]
enum RegistryStep {
    Ask(u8),
    /// The oldest start that was asked for succeeds or fails.
    Spawned(bool),
    /// The oldest activation that runs ends; `None` for one that was asked to stop.
    Terminated(Option<u8>),
    Message(u8),
    Pass(u64),
    Roster(Vec<RosterMember>),
    Leave,
}

fn registry_step() -> impl Strategy<Value = RegistryStep> {
    prop_oneof![
        8 => (0..3_u8).prop_map(RegistryStep::Ask),
        4 => any::<bool>().prop_map(RegistryStep::Spawned),
        2 => (0..3_u8).prop_map(|name| RegistryStep::Terminated(Some(name))),
        4 => Just(RegistryStep::Terminated(None)),
        2 => (0..3_u8).prop_map(RegistryStep::Message),
        4 => (0..150_u64).prop_map(RegistryStep::Pass),
        3 => subsequence(members(), 0..4).prop_map(|mut others| {
            others.retain(|member| member.id != members()[0].id);
            others.insert(0, members()[0].clone());
            RegistryStep::Roster(others)
        }),
        1 => Just(RegistryStep::Leave),
    ]
}

struct RegistryRun {
    registry: VirtualActorRegistry<u32>,
    now: TimerInstant,
    asked: u32,
    answered: u32,
    answers: BTreeSet<u32>,
    starting: Vec<(ClusterIdentity, ActivationId)>,
    running: BTreeMap<ClusterIdentity, ActorPid>,
    stopping: Vec<(ClusterIdentity, ActorPid)>,
}

impl RegistryRun {
    fn new() -> Self {
        let kinds = vec![GrainKindConfig {
            idle_limit: Some(Duration::from_millis(100)),
            ..GrainKindConfig::new("Chat")
        }];
        let config = ActivationConfig { placement: PlacementHash::Synod, ..ActivationConfig::default() };
        let own = GrainHost::from(&members()[0]);
        let mut registry = VirtualActorRegistry::new(own, kinds, config).expect("sound settings");
        registry.handle_roster(&members()[..1], TimerInstant::ZERO);
        Self {
            registry,
            now: TimerInstant::ZERO,
            asked: 0,
            answered: 0,
            answers: BTreeSet::new(),
            starting: Vec::new(),
            running: BTreeMap::new(),
            stopping: Vec::new(),
        }
    }

    fn apply(&mut self, step: &RegistryStep) -> Result<(), proptest::test_runner::TestCaseError> {
        let now = self.now;
        let out = match step {
            RegistryStep::Ask(name) => {
                self.asked += 1;
                self.registry.handle_activation_request(&grain(*name), self.asked, now)
            }
            RegistryStep::Spawned(succeeds) => {
                if self.starting.is_empty() {
                    return Ok(());
                }
                let (grain, activation) = self.starting.remove(0);
                if *succeeds {
                    let authority = members()[0].authority.clone();
                    let pid = ActorPid::new(authority, &format!("a{activation}")).expect("a PID");
                    let before = self.running.insert(grain.clone(), pid.clone());
                    prop_assert_eq!(before, None, "{} runs twice", grain);
                    self.registry.handle_spawned(&grain, activation, pid, now)
                } else {
                    self.registry.handle_spawn_failed(&grain, activation, "no")
                }
            }
            RegistryStep::Terminated(which) => {
                let ended = match which {
                    None if self.stopping.is_empty() => None,
                    None => Some(self.stopping.remove(0)),
                    Some(name) => self.running.get(&grain(*name)).map(|pid| (grain(*name), pid.clone())),
                };
                let Some((grain, pid)) = ended else { return Ok(()) };
                if self.running.get(&grain) != Some(&pid) {
                    return Ok(());
                }
                self.running.remove(&grain);
                let snapshot = GrainSnapshot { version: now.as_nanos(), bytes: [1, 2, 3].into() };
                self.registry.handle_terminated(&grain, &pid, Some(snapshot), now)
            }
            RegistryStep::Message(name) => {
                let reached = self.registry.handle_message(&grain(*name), now);
                if let Some(pid) = &reached {
                    prop_assert_eq!(self.running.get(&grain(*name)), Some(pid));
                    self.registry.handle_turn_done(&grain(*name), pid, now);
                }
                return Ok(());
            }
            RegistryStep::Pass(millis) => {
                self.now = now + Duration::from_millis(*millis);
                self.registry.poll(self.now)
            }
            RegistryStep::Roster(members) => self.registry.handle_roster(members, now),
            RegistryStep::Leave => self.registry.handle_leave(now),
        };
        self.check(out)
    }

    fn check(&mut self, out: ActivationOutcome<u32>) -> Result<(), proptest::test_runner::TestCaseError> {
        for command in out.commands {
            match command {
                ActivationCommand::Spawn { grain, activation, .. } => {
                    prop_assert!(!self.running.contains_key(&grain), "{} is started while it runs", grain);
                    prop_assert!(self.starting.iter().all(|(starting, _)| *starting != grain));
                    self.starting.push((grain, activation));
                }
                ActivationCommand::Stop { grain, pid, .. } => self.stopping.push((grain, pid)),
                ActivationCommand::Claim { .. }
                | ActivationCommand::Outdated { .. }
                | ActivationCommand::Transfer { .. }
                | ActivationCommand::Confirm { .. }
                | ActivationCommand::Announce { .. } => {}
            }
        }
        for reply in out.replies {
            prop_assert!(self.answers.insert(reply.to), "{} was answered twice", reply.to);
            self.answered += 1;
            if let Ok(pid) = reply.result {
                prop_assert_eq!(
                    self.running.get(&reply.grain),
                    Some(&pid),
                    "an activation that does not run"
                );
            }
        }
        Ok(())
    }
}

// ---- Several registries ----

#[derive(Clone, Debug)]
enum ClusterStep {
    /// A node hears of its next roster.
    Advance(usize),
    /// Somebody asks a node for a grain.
    Ask(usize, u8),
    /// One of the messages under way arrives, and perhaps a copy of it stays under way.
    Deliver(Index, bool),
    /// One of the activations that were told to stop is over.
    End(Index),
}

fn cluster_step() -> impl Strategy<Value = ClusterStep> {
    prop_oneof![
        2 => (0..4_usize).prop_map(ClusterStep::Advance),
        4 => (0..4_usize, 0..2_u8).prop_map(|(node, name)| ClusterStep::Ask(node, name)),
        8 => (any::<Index>(), proptest::bool::weighted(0.1))
            .prop_map(|(index, copy)| ClusterStep::Deliver(index, copy)),
        3 => any::<Index>().prop_map(ClusterStep::End),
    ]
}

/// Four nodes that hear of the same rosters in the same order, each in its own time. Time stands still, so nobody runs out
/// of patience. A grain counts its activations: that is its state.
struct ClusterRun {
    nodes: Vec<VirtualActorRegistry<u32>>,
    rosters: Vec<Vec<RosterMember>>,
    heard: Vec<usize>,
    mail: Vec<(GrainHost, ActivationCommand)>,
    running: BTreeMap<ClusterIdentity, (usize, ActorPid, u64)>,
    stopping: Vec<ClusterIdentity>,
    /// The state in which each grain stopped last.
    last: BTreeMap<ClusterIdentity, u64>,
    asked: u32,
    answered: u32,
}

impl ClusterRun {
    fn new(rosters: &[Vec<usize>]) -> Self {
        let members = &members()[..4];
        let roster = |hosts: &Vec<usize>| {
            let hosts = |index: &usize| if hosts.contains(index) { vec!["Chat".into()] } else { vec![] };
            (0..4).map(|index| RosterMember { kinds: hosts(&index), ..members[index].clone() }).collect()
        };
        let config = ActivationConfig { placement: PlacementHash::Synod, ..ActivationConfig::default() };
        let node = |member| {
            let kinds = vec![GrainKindConfig { idle_limit: None, ..GrainKindConfig::new("Chat") }];
            VirtualActorRegistry::new(GrainHost::from(member), kinds, config.clone()).expect("sound settings")
        };
        Self {
            nodes: members.iter().map(node).collect(),
            rosters: rosters.iter().map(roster).collect(),
            heard: vec![0; 4],
            mail: Vec::new(),
            running: BTreeMap::new(),
            stopping: Vec::new(),
            last: BTreeMap::new(),
            asked: 0,
            answered: 0,
        }
    }

    fn apply(&mut self, step: &ClusterStep) -> Result<(), proptest::test_runner::TestCaseError> {
        let now = TimerInstant::ZERO;
        match step {
            ClusterStep::Advance(node) => {
                let Some(roster) = self.rosters.get(self.heard[*node]) else { return Ok(()) };
                self.heard[*node] += 1;
                let out = self.nodes[*node].handle_roster(roster, now);
                self.perform(*node, out)
            }
            ClusterStep::Ask(node, name) => {
                self.asked += 1;
                let out = self.nodes[*node].handle_activation_request(&grain(*name), self.asked, now);
                self.perform(*node, out)
            }
            ClusterStep::Deliver(index, copy) => {
                if self.mail.is_empty() {
                    return Ok(());
                }
                let index = index.index(self.mail.len());
                let (to, message) =
                    if *copy { self.mail[index].clone() } else { self.mail.swap_remove(index) };
                self.deliver(&to, message)
            }
            ClusterStep::End(index) => {
                if self.stopping.is_empty() {
                    return Ok(());
                }
                let grain = self.stopping.swap_remove(index.index(self.stopping.len()));
                self.end(&grain)
            }
        }
    }

    fn end(&mut self, grain: &ClusterIdentity) -> Result<(), proptest::test_runner::TestCaseError> {
        let (node, pid, count) = self.running.remove(grain).expect("it runs");
        self.last.insert(grain.clone(), count);
        let snapshot = GrainSnapshot { version: count, bytes: [].into() };
        let out = self.nodes[node].handle_terminated(grain, &pid, Some(snapshot), TimerInstant::ZERO);
        self.perform(node, out)
    }

    /// Everything arrives and ends, and what got no answer is asked again.
    fn settle(&mut self) -> Result<(), proptest::test_runner::TestCaseError> {
        for _ in 0..20 {
            while !self.mail.is_empty() || !self.stopping.is_empty() {
                while !self.mail.is_empty() {
                    let (to, message) = self.mail.remove(0);
                    self.deliver(&to, message)?;
                }
                if let Some(grain) = self.stopping.pop() {
                    self.end(&grain)?;
                }
            }
            for node in 0..4 {
                // Too early for anybody to run out of patience.
                let out = self.nodes[node].poll(TimerInstant::from_millis(1900));
                self.perform(node, out)?;
            }
        }
        Ok(())
    }

    fn deliver(
        &mut self,
        to: &GrainHost,
        message: ActivationCommand,
    ) -> Result<(), proptest::test_runner::TestCaseError> {
        let now = TimerInstant::ZERO;
        let node = members().iter().position(|member| member.id == to.id).expect("a node");
        let registry = &mut self.nodes[node];
        let out = match message {
            ActivationCommand::Claim { claim, .. } => registry.handle_claim(claim, now),
            ActivationCommand::Outdated { to, grain, number } => {
                let claim = ClaimId { claimer: to.id, number };
                registry.handle_outdated(&grain, &claim, &members()[0].id)
            }
            ActivationCommand::Transfer { record, .. } => registry.handle_relocation(record, now),
            ActivationCommand::Confirm { receipt, .. } => registry.handle_receipt(&receipt),
            other => panic!("{other:?} is no message"),
        };
        self.perform(node, out)
    }

    fn perform(
        &mut self,
        node: usize,
        out: ActivationOutcome<u32>,
    ) -> Result<(), proptest::test_runner::TestCaseError> {
        self.answered += u32::try_from(out.replies.len()).expect("few");
        for command in out.commands {
            match command {
                ActivationCommand::Spawn { grain, activation, snapshot } => {
                    let before = snapshot.map(|snapshot| snapshot.version);
                    prop_assert_eq!(before, self.last.get(&grain).copied(), "{} lost its state", grain);
                    let authority = members()[node].authority.clone();
                    let pid = ActorPid::new(authority, &format!("a{activation}")).expect("a PID");
                    let started = (node, pid.clone(), before.unwrap_or(0) + 1);
                    let twin = self.running.insert(grain.clone(), started);
                    prop_assert_eq!(twin, None, "{} runs twice", grain);
                    let out = self.nodes[node].handle_spawned(&grain, activation, pid, TimerInstant::ZERO);
                    self.perform(node, out)?;
                }
                ActivationCommand::Stop { grain, .. } => self.stopping.push(grain),
                ActivationCommand::Announce { .. } => {}
                ActivationCommand::Claim { ref to, .. }
                | ActivationCommand::Outdated { ref to, .. }
                | ActivationCommand::Transfer { ref to, .. }
                | ActivationCommand::Confirm { ref to, .. } => self.mail.push((to.clone(), command)),
            }
        }
        Ok(())
    }
}

// ---- Names ----

fn placement() -> impl Strategy<Value = PlacementHash> {
    prop_oneof![Just(PlacementHash::Protoactor), Just(PlacementHash::Synod)]
}

fn members() -> Vec<RosterMember> {
    (0..8)
        .map(|number| RosterMember {
            id: GossipMemberId::new(&format!("node{number}#1")).expect("an id"),
            authority: Authority::new(&format!("10.0.0.{number}:8401")).expect("an authority"),
            kinds: vec!["Chat".into()],
            runtime: PeerRuntime::Synod,
        })
        .collect()
}

fn grain(name: u8) -> ClusterIdentity {
    ClusterIdentity::new("Chat", &name.to_string()).expect("a name")
}

fn pid(host: u64) -> ActorPid {
    let authority = members()[usize::try_from(host).expect("a small number")].authority.clone();
    ActorPid::new(authority, "x").expect("a PID")
}
