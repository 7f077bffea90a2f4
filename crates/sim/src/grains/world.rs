//! The world of grains: processes, a network, a membership that spreads by chance, and callers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use synod_core::gossip::GossipMemberId;
use synod_core::grains::{
    ActivationCommand, ActivationEvent, ActivationId, ActivationOutcome, ActorPid, Answer, AttemptFailure,
    CallEnd, CallRequest, ClaimId, ClaimRecord, ClusterIdentity, GrainSnapshot, RelocationReceipt,
    RelocationRecord, RouterCommand, RouterOutcome,
};
use synod_core::roster::RosterMember;
use synod_core::{Authority, TimerInstant};

use super::checks::{Life, Notes};
use super::node::{Actor, Asker, KIND, PLACEMENT, Process, Request, index_of};
use super::{GrainReport, GrainScenario, GrainSimConfig, GrainViolation};
use crate::network::Network;
use crate::report::{TraceLine, TraceSink};

pub(super) struct World {
    pub(super) config: GrainSimConfig,
    pub(super) now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    scheduled: u64,
    pub(super) rng: fastrand::Rng,
    pub(super) network: Network,
    pub(super) nodes: Vec<Option<Process>>,
    /// Who is a member, by the truth that spreads.
    pub(super) listed: BTreeMap<usize, RosterMember>,
    pub(super) sides: Vec<usize>,
    pub(super) changes: u64,
    pub(super) lives: u64,
    /// When the last call between two nodes arrives: calls do not overtake each other.
    arrivals: BTreeMap<(usize, usize), Duration>,
    pub(super) has_idle: bool,
    is_closing: bool,
    pub(super) notes: Notes,
    report: GrainReport,
    trace: Option<TraceSink>,
    violation: Option<GrainViolation>,
}

pub(super) enum Happening {
    Deliver { to: usize, message: Message },
    Wake { node: usize, process: u64 },
    Spawned { node: usize, process: u64, grain: ClusterIdentity, activation: ActivationId, pid: ActorPid },
    TurnDone { node: usize, process: u64, pid: ActorPid, request: Request },
    Roster { node: usize, process: u64, change: u64, members: Vec<RosterMember> },
    Gone { node: usize, process: u64 },
    Exit { node: usize, process: u64 },
    Calls,
    Fault,
}

#[derive(Clone)]
pub(super) enum Message {
    Activate { grain: ClusterIdentity, asker: Asker },
    Activated { grain: ClusterIdentity, asker: Asker, result: Option<(ActorPid, GossipMemberId)> },
    Request(Request),
    Answered { asker: Asker, is_dead_letter: bool },
    Terminated { grain: ClusterIdentity, pid: ActorPid },
    Claim(ClaimRecord),
    Outdated { grain: ClusterIdentity, claim: ClaimId, by: GossipMemberId },
    Relocation(RelocationRecord),
    Receipt(RelocationReceipt),
}

impl World {
    pub(super) fn new(config: GrainSimConfig, trace: Option<TraceSink>) -> Self {
        let mut rng = fastrand::Rng::with_seed(config.seed);
        let report = GrainReport {
            seed: config.seed,
            nodes: config.nodes,
            scenario: config.scenario.name().to_owned(),
            ..GrainReport::default()
        };
        Self {
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            scheduled: 0,
            network: Network::new(config.network.clone(), config.nodes),
            nodes: (0..config.nodes).map(|_| None).collect(),
            listed: BTreeMap::new(),
            sides: vec![0; config.nodes],
            changes: 0,
            lives: 0,
            arrivals: BTreeMap::new(),
            has_idle: rng.bool(),
            is_closing: false,
            notes: Notes::default(),
            report,
            trace,
            violation: None,
            rng,
            config,
        }
    }

    pub(super) fn run(mut self) -> Result<GrainReport, GrainViolation> {
        for node in 0..self.config.nodes {
            self.start(node);
        }
        self.schedule(Duration::from_millis(10), Happening::Calls);
        self.schedule(Duration::from_secs(3), Happening::Fault);
        self.pass(STORY)?;
        self.heal();
        self.pass(SETTLING)?;
        // Everybody calls every grain. It is there, whatever happened.
        self.is_closing = true;
        self.pass(CALL_TIME_MAX)?;
        let answered = (self.report.calls, self.report.answered);
        for node in 0..self.config.nodes {
            for name in 0..self.config.grains {
                self.call(node, name, CALL_TIME_MAX);
            }
        }
        self.pass(CALL_TIME_MAX)?;
        let (calls, good) = (self.report.calls - answered.0, self.report.answered - answered.1);
        if good < calls {
            self.fail(format!("after everything was healed only {good} of {calls} calls were answered"));
        }
        self.pass(FORGETTING)?;
        self.check_end();
        if let Some(violation) = self.violation {
            return Err(violation);
        }
        self.report.simulated_ms = u64::try_from(self.now.as_millis()).unwrap_or(u64::MAX);
        self.report.overlaps = self.notes.overlaps().len() as u64;
        Ok(self.report)
    }

    fn pass(&mut self, time: Duration) -> Result<(), GrainViolation> {
        let until = self.now + time;
        let mut at_once = 0;
        while let Some(Reverse((at, number))) = self.queue.peek().copied().filter(|next| next.0.0 <= until) {
            self.queue.pop();
            at_once = if at == self.now { at_once + 1 } else { 0 };
            self.now = at;
            if at_once > AT_ONCE_MAX {
                self.fail("a machine wants to be woken again and again, and time stands still".to_owned());
            }
            if let Some(happening) = self.happenings.remove(&number) {
                self.happen(happening);
            }
            if let Some(violation) = &self.violation {
                return Err(violation.clone());
            }
        }
        self.now = until;
        Ok(())
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Deliver { to, message } => self.deliver(to, message),
            Happening::Wake { node, process } => self.wake(node, process),
            Happening::Spawned { node, process, grain, activation, pid } => {
                let now = self.time();
                if let Some(running) = self.process(node, process) {
                    let out = running.registry.handle_spawned(&grain, activation, pid, now);
                    self.do_activations(node, out);
                }
            }
            Happening::TurnDone { node, process, pid, request } => {
                self.turn_done(node, process, &pid, request);
            }
            Happening::Roster { node, process, change, members } => {
                self.hear(node, process, change, &members);
            }
            Happening::Gone { node, process } => {
                if self.process(node, process).is_some() && self.listed.remove(&node).is_some() {
                    self.say(Some(node), "leave", "it is gone".to_owned());
                    self.spread(50, 500);
                    self.schedule(Duration::from_millis(300), Happening::Exit { node, process });
                }
            }
            Happening::Exit { node, process } => {
                if self.process(node, process).is_some() {
                    self.end_process(node);
                }
            }
            Happening::Calls => self.make_calls(),
            Happening::Fault => self.strike(),
        }
    }

    // ---- Callers ----

    fn make_calls(&mut self) {
        if self.is_closing {
            return;
        }
        let (node, name) = (self.rng.usize(..self.nodes.len()), self.rng.usize(..self.config.grains));
        for _ in 0..self.rng.u32(1..4) {
            let time = Duration::from_millis(self.rng.u64(20..10_000)).min(CALL_TIME_MAX);
            self.call(node, name, time);
        }
        let pause = Duration::from_millis(self.rng.u64(1..40));
        self.schedule(pause, Happening::Calls);
    }

    fn call(&mut self, node: usize, name: usize, time: Duration) {
        let now = self.time();
        let Some(process) = &mut self.nodes[node] else { return };
        let overdue = process.calls.values().any(|deadline| *deadline + Duration::from_millis(1) < now);
        let deadline = now + time;
        let request = CallRequest {
            grain: grain(name),
            deadline,
            schema_min: 1,
            retry: None,
            known: None,
            once: false,
        };
        let (call, out) = process.router.call(request, now);
        process.calls.insert(call, deadline);
        self.report.calls += 1;
        if overdue {
            self.fail(format!("a call of n{node} was not over at its deadline"));
        }
        self.do_calls(node, out);
    }

    pub(super) fn do_calls(&mut self, node: usize, out: RouterOutcome) {
        let now = self.time();
        for ended in &out.ended {
            let Some(process) = &mut self.nodes[node] else { return };
            if process.calls.remove(&ended.correlation).is_none() {
                self.fail(format!("a call of n{node} to {} ended twice", ended.grain));
            }
            self.report.answered += u64::from(matches!(ended.end, CallEnd::Completed { .. }));
        }
        for command in out.commands {
            let Some(process) = &mut self.nodes[node] else { return };
            match command {
                RouterCommand::Evict { grain, pid, .. } => drop(process.cache.handle_failed(&grain, &pid)),
                RouterCommand::Resolve { correlation, grain } => {
                    let asker = Asker { node, process: process.number, call: correlation };
                    if let (Some(pid), _) = process.cache.get(&grain, now) {
                        let out = process.router.handle_resolved(correlation, pid, now);
                        self.do_calls(node, out);
                    } else if let Some(owner) = PLACEMENT.owner(&grain, &process.roster) {
                        let to = index_of(&owner.authority);
                        self.send_call(node, to, Message::Activate { grain, asker });
                    } else {
                        let out = process.router.handle_failure(correlation, AttemptFailure::NoHost, now);
                        self.do_calls(node, out);
                    }
                }
                RouterCommand::Send { correlation, pid, deadline, .. } => {
                    let asker = Asker { node, process: process.number, call: correlation };
                    let (to, grain) = (index_of(pid.authority()), grain_of(&pid));
                    self.send_call(node, to, Message::Request(Request { grain, pid, asker, deadline }));
                }
            }
        }
        self.note_wake(node, 1, out.wake_at);
    }

    // ---- Hosts ----

    pub(super) fn do_activations(&mut self, node: usize, out: ActivationOutcome<Asker>) {
        for event in &out.events {
            self.note_event(node, event);
        }
        for command in out.commands {
            let Some(process) = &self.nodes[node] else { return };
            let (number, own) = (process.number, process.member.clone());
            if self.trace.is_some() && !matches!(command, ActivationCommand::Announce { .. }) {
                self.say(Some(node), "command", format!("{command:?}"));
            }
            match command {
                ActivationCommand::Spawn { grain, activation, snapshot } => {
                    self.spawn(node, grain, activation, snapshot);
                }
                ActivationCommand::Stop { pid, .. } => {
                    if let Some(actor) = self.actor(node, number, &pid) {
                        actor.is_stopping = true;
                        self.advance(node, number, &pid);
                    }
                }
                ActivationCommand::Claim { to, claim } => {
                    self.send(node, &to.authority, &Message::Claim(claim));
                }
                ActivationCommand::Outdated { to, grain, number } => {
                    let claim = ClaimId { claimer: to.id, number };
                    self.send(node, &to.authority, &Message::Outdated { grain, claim, by: own.id });
                }
                ActivationCommand::Transfer { to, record } => {
                    self.note_holder(node, &record.grain, &record.stopped);
                    self.send(node, &to.authority, &Message::Relocation(record));
                }
                ActivationCommand::Confirm { to, receipt } => {
                    self.note_holder(node, &receipt.grain, &receipt.stopped);
                    self.send(node, &to.authority, &Message::Receipt(receipt));
                }
                ActivationCommand::Announce { grain, pid } => {
                    let members = self.nodes[node].as_ref().map(|process| process.roster.clone());
                    let members = members.unwrap_or_default();
                    for member in members {
                        let (grain, pid) = (grain.clone(), pid.clone());
                        self.send(node, &member.authority, &Message::Terminated { grain, pid });
                    }
                }
            }
        }
        for reply in out.replies {
            let host = self.nodes[node].as_ref().map(|process| process.member.id.clone());
            let result = reply.result.ok().zip(host);
            let to = reply.to.node;
            self.send_call(node, to, Message::Activated { grain: reply.grain, asker: reply.to, result });
        }
        self.note_wake(node, 0, out.wake_at);
    }

    /// A node knows of these ends, and owes it to somebody to tell of them until that is confirmed.
    fn note_holder(&mut self, node: usize, grain: &ClusterIdentity, stopped: &[ActorPid]) {
        if let Some(process) = &mut self.nodes[node] {
            process.untold.entry(grain.clone()).or_default().extend(stopped.iter().cloned());
        }
    }

    fn note_event(&mut self, node: usize, event: &ActivationEvent) {
        self.say(Some(node), "grain", format!("{event:?}"));
        match event {
            ActivationEvent::Drained => {
                if let Some(process) = self.nodes[node].as_ref().map(|process| process.number) {
                    self.schedule(Duration::ZERO, Happening::Gone { node, process });
                }
            }
            ActivationEvent::Duplicate { stopped, .. } => {
                self.report.duplicates += 1;
                self.notes.told.insert(stopped.clone());
            }
            ActivationEvent::HandoverMissed { grain, silent } => {
                self.report.missed += 1;
                // Who left in good order owes no answer.
                let stays = |process: &&Process| !process.is_leaving && silent.contains(&process.member.id);
                let is_there = self.nodes.iter().flatten().any(|process| stays(&process));
                if self.config.scenario == GrainScenario::Moves && is_there {
                    self.fail(format!("n{node} started {grain} without an answer of {silent:?}"));
                }
            }
            ActivationEvent::SnapshotDropped { .. } => self.report.states_dropped += 1,
            _ => {}
        }
    }

    fn spawn(
        &mut self,
        node: usize,
        grain: ClusterIdentity,
        activation: ActivationId,
        snapshot: Option<GrainSnapshot>,
    ) {
        let Some(process) = &mut self.nodes[node] else { return };
        self.report.started += 1;
        let number = self.report.started;
        let id = format!("{grain}${}.{activation}", process.number);
        let pid = ActorPid::new(process.member.authority.clone(), &id).expect("a PID");
        let actor = Actor {
            grain: grain.clone(),
            count: snapshot.map_or(0, |snapshot| snapshot.version),
            mailbox: std::collections::VecDeque::new(),
            is_busy: false,
            is_stopping: false,
            order: BTreeMap::new(),
            started: self.now,
            number,
        };
        let life =
            Life { grain: grain.clone(), pid: pid.clone(), from: actor.started, to: None, is_killed: false };
        process.actors.insert(pid.clone(), actor);
        let process = process.number;
        self.say(Some(node), "spawn", pid.to_string());
        let twin = self.notes.running(&grain, number).next().map(|twin| twin.pid.clone());
        let is_here = |twin: &ActorPid| index_of(twin.authority()) == node;
        if let Some(twin) = twin
            && (self.config.scenario == GrainScenario::Moves || is_here(&twin))
        {
            self.fail(format!("{pid} is started while {twin} runs"));
        }
        self.notes.lives.insert(number, life);
        let after = Duration::from_millis(self.rng.u64(..5));
        self.schedule(after, Happening::Spawned { node, process, grain, activation, pid });
    }

    /// Begins the next turn of an actor, or ends it.
    fn advance(&mut self, node: usize, process: u64, pid: &ActorPid) {
        let now = self.time();
        let Some(actor) = self.actor(node, process, pid).filter(|actor| !actor.is_busy) else { return };
        if let Some(request) = actor.mailbox.pop_front() {
            actor.is_busy = true;
            let last = actor.order.insert(request.asker.process, request.asker.call);
            if last.is_some_and(|last| last > request.asker.call) {
                self.fail(format!("{pid}: a call of n{} overtook another", request.asker.node));
            }
            let is_slow = self.config.scenario == GrainScenario::Churn && self.rng.u32(..200) == 0;
            let time = Duration::from_millis(self.rng.u64(..if is_slow { 4000 } else { 15 }));
            if let Some(running) = self.process(node, process) {
                running.registry.handle_message(&request.grain, now);
            }
            let pid = pid.clone();
            return self.schedule(time, Happening::TurnDone { node, process, pid, request });
        }
        if !actor.is_stopping {
            return;
        }
        let (grain, number) = (actor.grain.clone(), actor.number);
        let snapshot = GrainSnapshot { version: actor.count, bytes: actor.count.to_le_bytes().into() };
        if let Some(life) = self.notes.lives.get_mut(&number) {
            life.to = Some(self.now);
        }
        if let Some(running) = self.process(node, process) {
            running.actors.remove(pid);
            // A grain that was never called has no state worth speaking of.
            let snapshot = (snapshot.version > 0).then_some(snapshot);
            let out = running.registry.handle_terminated(&grain, pid, snapshot, now);
            drop(running.cache.handle_failed(&grain, pid));
            self.do_activations(node, out);
        }
    }

    fn turn_done(&mut self, node: usize, process: u64, pid: &ActorPid, request: Request) {
        let now = self.time();
        let Some(actor) = self.actor(node, process, pid) else { return };
        actor.is_busy = false;
        actor.count += 1;
        let count = actor.count;
        let executed = self.notes.executed.entry(request.grain.clone()).or_default();
        *executed += 1;
        if self.config.scenario == GrainScenario::Moves && *executed != count {
            let executed = *executed;
            self.fail(format!("{pid} knows {count} of {executed} calls: it lost its state"));
        }
        if let Some(running) = self.process(node, process) {
            let out = running.registry.handle_turn_done(&request.grain, pid, now);
            self.note_wake(node, 0, out.wake_at);
        }
        let to = request.asker.node;
        self.send_call(node, to, Message::Answered { asker: request.asker, is_dead_letter: false });
        self.advance(node, process, pid);
    }

    // ---- Messages ----

    fn deliver(&mut self, to: usize, message: Message) {
        let now = self.time();
        let Some(process) = &mut self.nodes[to] else { return };
        let registry = &mut process.registry;
        match message {
            Message::Activate { grain, asker } => {
                let out = registry.handle_activation_request(&grain, asker, now);
                self.do_activations(to, out);
            }
            Message::Activated { grain, asker, result } => {
                if asker.process != process.number {
                    return;
                }
                let out = match result {
                    Some((pid, host)) => {
                        drop(process.cache.insert(&grain, pid.clone(), host, now));
                        process.router.handle_resolved(asker.call, pid, now)
                    }
                    None => {
                        let failure = AttemptFailure::ActivationRefused(String::new());
                        process.router.handle_failure(asker.call, failure, now)
                    }
                };
                self.do_calls(to, out);
            }
            Message::Request(request) => {
                let number = process.number;
                match process.actors.get_mut(&request.pid).filter(|actor| !actor.is_stopping) {
                    // Who has stopped waiting is not worked for.
                    Some(_) if request.deadline <= now => {}
                    Some(actor) => {
                        let pid = request.pid.clone();
                        actor.mailbox.push_back(request);
                        self.advance(to, number, &pid);
                    }
                    None => {
                        let (back, asker) = (request.asker.node, request.asker);
                        self.send_call(to, back, Message::Answered { asker, is_dead_letter: true });
                    }
                }
            }
            Message::Answered { asker, is_dead_letter } => {
                if asker.process != process.number {
                    return;
                }
                let out = if is_dead_letter {
                    process.router.handle_failure(asker.call, AttemptFailure::DeadLetter, now)
                } else {
                    process.router.handle_response(asker.call, Answer::Success, 1, now)
                };
                self.do_calls(to, out);
            }
            Message::Terminated { grain, pid } => drop(process.cache.handle_failed(&grain, &pid)),
            Message::Claim(claim) => {
                let out = registry.handle_claim(claim, now);
                self.do_activations(to, out);
            }
            Message::Outdated { grain, claim, by } => {
                let out = registry.handle_outdated(&grain, &claim, &by);
                self.do_activations(to, out);
            }
            Message::Relocation(record) => {
                let out = registry.handle_relocation(record, now);
                self.do_activations(to, out);
            }
            Message::Receipt(receipt) => {
                if let Some(held) = process.untold.get_mut(&receipt.grain) {
                    held.retain(|pid| !receipt.stopped.contains(pid));
                }
                let out = registry.handle_receipt(&receipt);
                self.do_activations(to, out);
            }
        }
    }

    /// A message that may come late, twice or never.
    fn send(&mut self, from: usize, to: &Authority, message: &Message) {
        let to = index_of(to);
        let delays = self.network.route(from, to, &mut self.rng);
        if delays.is_empty() {
            self.say(Some(from), "lost", format!("a message to n{to}"));
        }
        for delay in delays {
            self.schedule(delay, Happening::Deliver { to, message: message.clone() });
        }
    }

    /// A message that comes once and in order, or never.
    fn send_call(&mut self, from: usize, to: usize, message: Message) {
        if from == to {
            return self.schedule(Duration::ZERO, Happening::Deliver { to, message });
        }
        let Some(delay) = self.network.route(from, to, &mut self.rng).first().copied() else { return };
        let arrival = self.arrivals.entry((from, to)).or_default();
        *arrival = (*arrival).max(self.now + delay);
        let delay = *arrival - self.now;
        self.schedule(delay, Happening::Deliver { to, message });
    }

    // ---- Time ----

    fn wake(&mut self, node: usize, process: u64) {
        let now = self.time();
        let Some(running) = self.process(node, process) else { return };
        for wake_at in &mut running.wake_at {
            *wake_at = wake_at.filter(|at| *at > now);
        }
        let out = running.registry.poll(now);
        self.do_activations(node, out);
        if let Some(running) = self.process(node, process) {
            let out = running.router.poll(now);
            self.do_calls(node, out);
        }
    }

    fn note_wake(&mut self, node: usize, machine: usize, at: Option<TimerInstant>) {
        let now = self.time();
        let Some(process) = &mut self.nodes[node] else { return };
        if process.wake_at[machine] == at {
            return;
        }
        process.wake_at[machine] = at;
        let number = process.number;
        if let Some(at) = at {
            self.schedule(at.saturating_since(now), Happening::Wake { node, process: number });
        }
    }

    pub(super) fn schedule(&mut self, after: Duration, happening: Happening) {
        self.scheduled += 1;
        self.queue.push(Reverse((self.now + after, self.scheduled)));
        self.happenings.insert(self.scheduled, happening);
    }

    pub(super) fn time(&self) -> TimerInstant {
        TimerInstant::from_nanos(u64::try_from(self.now.as_nanos()).unwrap_or(u64::MAX))
    }

    // ---- The end ----

    fn check_end(&mut self) {
        let now = self.time();
        let mut problems = Vec::new();
        for (node, process) in self.nodes.iter_mut().enumerate() {
            let Some(process) = process else { continue };
            self.report.claimed += process.registry.handover_counts().claimed;
            if !process.router.is_empty() || !process.calls.is_empty() {
                problems.push(format!("n{node} has calls that never ended: {:?}", process.calls));
            }
            let names = (0..self.config.grains).map(grain);
            if names.map(|grain| process.router.lane(&grain)).any(|lane| lane != (0, 0)) {
                problems.push(format!("n{node} has turns that nobody takes"));
            }
            if let Some(at) = process.registry.poll(now).wake_at.filter(|_| !self.has_idle) {
                problems.push(format!("n{node} still waits for something at {at:?}"));
            }
        }
        for name in 0..self.config.grains {
            let grain = grain(name);
            let running: Vec<_> = self.notes.running(&grain, 0).map(|life| life.pid.clone()).collect();
            if running.len() > 1 || running.is_empty() && !self.has_idle {
                problems.push(format!("{grain} runs as {running:?} in the end"));
            }
        }
        if let Some((stopped, kept)) = self.notes.untold() {
            problems.push(format!("nobody told that {} ran beside {}", stopped.pid, kept.pid));
        }
        if let Some(problem) = problems.into_iter().next() {
            self.fail(problem);
        }
    }

    fn fail(&mut self, what: String) {
        self.violation.get_or_insert(GrainViolation { at: self.now, what });
    }

    pub(super) fn say(&mut self, node: Option<usize>, kind: &'static str, text: String) {
        if let Some(trace) = &mut self.trace {
            let node = node.map(|node| format!("n{node}"));
            trace.receive(&TraceLine { at: self.now, node, kind, text });
        }
    }

    /// The process of a node, if it is still that one.
    pub(super) fn process(&mut self, node: usize, number: u64) -> Option<&mut Process> {
        self.nodes[node].as_mut().filter(|process| process.number == number)
    }

    fn actor(&mut self, node: usize, process: u64, pid: &ActorPid) -> Option<&mut Actor> {
        self.process(node, process)?.actors.get_mut(pid)
    }
}

fn grain(name: usize) -> ClusterIdentity {
    ClusterIdentity::new(KIND, &name.to_string()).expect("a name")
}

/// The grain of an activation, whose id is `<grain>$<number>` here.
fn grain_of(pid: &ActorPid) -> ClusterIdentity {
    pid.id().split_once('$').and_then(|(grain, _)| grain.parse().ok()).expect("an id of this world")
}

/// How long things happen to the cluster.
pub(super) const STORY: Duration = Duration::from_secs(40);
/// How long it then has to come to rest: views, claims, and what is handed over.
const SETTLING: Duration = Duration::from_secs(25);
/// The most time a call has.
const CALL_TIME_MAX: Duration = Duration::from_secs(10);
/// Most things that happen at one moment. There are some dozens at most unless a machine goes round in circles.
const AT_ONCE_MAX: u32 = 10_000;
/// After so long nothing of a hand-over is remembered.
const FORGETTING: Duration = Duration::from_secs(70);
