//! A small cluster of coordinators over disks in memory, whose messages are delivered by hand.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use core::convert::Infallible;
use core::time::Duration;

use bytes::Bytes;

use super::super::head::{Condition, SlotSummary};
use super::super::name::Space;
use super::super::replica::{EntryTable, SlotFence, handle_message};
use super::*;
use crate::slots::{BootstrapNode, HlcTimestamp, Pace, Replication};

/// A disk that keeps everything at once.
#[derive(Default)]
struct Disk {
    fences: BTreeMap<SlotId, SlotFence>,
    heads: BTreeMap<EntryName, EntryHead>,
    /// Heads with these contents lack their parts.
    missing: BTreeSet<Bytes>,
}

impl EntryTable for Disk {
    type Error = Infallible;

    fn fence(&mut self, slot: SlotId) -> Result<SlotFence, Infallible> {
        Ok(self.fences.get(&slot).copied().unwrap_or_default())
    }
    fn set_fence(&mut self, slot: SlotId, fence: SlotFence) -> Result<(), Infallible> {
        self.fences.insert(slot, fence);
        Ok(())
    }
    fn summary(&mut self, slot: SlotId) -> Result<SlotSummary, Infallible> {
        let mut summary = SlotSummary::default();
        for (name, head) in self.heads.iter().filter(|(name, _)| name.slot(SLOTS) == slot) {
            summary.add(name, head.rank());
        }
        Ok(summary)
    }
    fn rank(&mut self, _: SlotId, name: &EntryName) -> Result<Option<HeadRank>, Infallible> {
        Ok(self.heads.get(name).map(EntryHead::rank))
    }
    fn head(&mut self, _: SlotId, name: &EntryName) -> Result<Option<EntryHead>, Infallible> {
        Ok(self.heads.get(name).cloned())
    }
    fn ranks(
        &mut self,
        slot: SlotId,
        after: Option<&EntryName>,
        upto: Option<&EntryName>,
        limit: usize,
    ) -> Result<Vec<(EntryName, HeadRank)>, Infallible> {
        let is_asked = |name: &EntryName| {
            name.slot(SLOTS) == slot
                && after.is_none_or(|after| name > after)
                && upto.is_none_or(|upto| name <= upto)
        };
        let asked = self.heads.iter().filter(|(name, _)| is_asked(name));
        Ok(asked.map(|(name, head)| (name.clone(), head.rank())).take(limit).collect())
    }
    fn put(&mut self, _: SlotId, name: &EntryName, head: &EntryHead) -> Result<(), Infallible> {
        self.heads.insert(name.clone(), head.clone());
        Ok(())
    }
    fn remove(&mut self, _: SlotId, name: &EntryName) -> Result<(), Infallible> {
        self.heads.remove(name);
        Ok(())
    }
    fn has_parts(&mut self, head: &EntryHead) -> Result<bool, Infallible> {
        Ok(!self.missing.contains(&head.content))
    }
}

const SLOTS: u16 = 4;
const NAMES: [&str; 3] = ["a", "b", "c"];

type Answered = Result<EntryAnswer, EntryError>;

/// Nodes that talk over a network without delay. A node that is down hears and says nothing.
struct Cluster {
    bootstrap: Arc<BootstrapState>,
    now: TimerInstant,
    nodes: BTreeMap<NodeId, (ObjectCoordinator, Disk)>,
    down: BTreeSet<NodeId>,
    answers: BTreeMap<u64, Answered>,
    events: Vec<(NodeId, ObjectEvent)>,
    next_timeout: BTreeMap<NodeId, TimerInstant>,
    requests: u64,
    /// While there is something here, what a node tells its own disk to keep waits in it.
    held: Option<Vec<(NodeId, ObjectMessage)>>,
    /// Every message, in order.
    sent: Vec<(NodeId, NodeId, ObjectMessage)>,
}

fn id(name: &str) -> NodeId {
    NodeId::new(name).expect("a name")
}

fn key(text: &str) -> EntryName {
    EntryName::new(Space::Object, "bucket", text).expect("a name")
}

fn epoch(number: u64) -> SlotEpoch {
    SlotEpoch::new(number)
}

fn slot_of(text: &str) -> SlotId {
    key(text).slot(SLOTS)
}

fn write(etag: &str, condition: Condition) -> EntryOperation {
    EntryOperation::Write { condition, etag: etag.into(), content: Bytes::copy_from_slice(etag.as_bytes()) }
}

fn put(etag: &str) -> EntryOperation {
    write(etag, Condition::Any)
}

fn if_etag(etag: &str) -> Condition {
    Condition::EtagIn([etag.into()].into())
}

fn delete(condition: Condition) -> EntryOperation {
    EntryOperation::Delete { condition, content: Bytes::new() }
}

impl Cluster {
    fn new(count: usize) -> Self {
        let nodes = NAMES[..count].iter().zip([9000u16, 9010, 9020]).map(|(name, port)| {
            let bind = ([127, 0, 0, 1], port).into();
            BootstrapNode::new(id(name), bind, vec!["disk".to_string()]).expect("a node")
        });
        let state = BootstrapState {
            initialized_at: HlcTimestamp::default(),
            initialized_by: id("a"),
            namespace: "test".to_string(),
            nodes: nodes.collect(),
            replication: Replication { total_slots: SLOTS, ..Replication::default() },
            pace: Pace::default(),
            archive: None,
            queue: crate::slots::QueueLayout::default(),
        };
        let mut cluster = Self {
            bootstrap: Arc::new(state.checked().expect("a good state")),
            now: TimerInstant::from_millis(1000),
            nodes: BTreeMap::new(),
            down: BTreeSet::new(),
            answers: BTreeMap::new(),
            events: Vec::new(),
            next_timeout: BTreeMap::new(),
            requests: 0,
            held: None,
            sent: Vec::new(),
        };
        for name in &NAMES[..count] {
            let mut disk = Disk::default();
            for slot in cluster.bootstrap.slots() {
                disk.fences.insert(slot, SlotFence { fence: SlotEpoch::ZERO, is_learned: true });
            }
            cluster.start(name, disk);
        }
        cluster
    }

    fn start(&mut self, name: &str, disk: Disk) {
        let stored =
            self.bootstrap.slots().filter(|slot| self.bootstrap.replicas(*slot).any(|one| *one == id(name)));
        let unlearned =
            stored.filter(|slot| disk.fences.get(slot).is_none_or(|fence| !fence.is_learned)).collect();
        let config = ObjectConfig { instance: self.now.as_nanos(), ..ObjectConfig::default() };
        let (machine, outcome) =
            ObjectCoordinator::new(id(name), Arc::clone(&self.bootstrap), config, unlearned, self.now);
        self.down.remove(&id(name));
        self.nodes.insert(id(name), (machine, disk));
        self.perform(&id(name), outcome);
    }

    fn call(&mut self, name: &str, call: impl FnOnce(&mut ObjectCoordinator, TimerInstant) -> ObjectOutcome) {
        let outcome = call(&mut self.nodes.get_mut(&id(name)).expect("a node").0, self.now);
        self.perform(&id(name), outcome);
    }

    /// Delivers everything until nothing more is said.
    fn perform(&mut self, node: &NodeId, outcome: ObjectOutcome) {
        let mut todo = VecDeque::from([(node.clone(), outcome)]);
        while let Some((node, outcome)) = todo.pop_front() {
            let now = self.now;
            self.answers.extend(outcome.answers);
            self.events.extend(outcome.events.into_iter().map(|event| (node.clone(), event)));
            match outcome.next_timeout {
                Some(at) => self.next_timeout.insert(node.clone(), at),
                None => self.next_timeout.remove(&node),
            };
            for (to, message) in outcome.send {
                self.sent.push((node.clone(), to.clone(), message.clone()));
                if self.down.contains(&to) || self.down.contains(&node) {
                    continue;
                }
                if to == node
                    && matches!(message, ObjectMessage::Store { .. } | ObjectMessage::Adopt { .. })
                    && let Some(held) = &mut self.held
                {
                    held.push((node.clone(), message));
                    continue;
                }
                let (_, disk) = self.nodes.get_mut(&to).expect("a node");
                let Ok(answer) = handle_message(disk, &message);
                if let Some(answer) = answer {
                    let (machine, _) = self.nodes.get_mut(&node).expect("a node");
                    todo.push_back((node.clone(), machine.handle_message(now, &to, answer)));
                }
            }
            let (machine, disk) = self.nodes.get_mut(&node).expect("a node");
            for name in outcome.load {
                let head = disk.heads.get(&name).cloned();
                todo.push_back((node.clone(), machine.handle_loaded(now, &name, head)));
            }
            for RanksQuery { slot, round, after, limit } in outcome.load_ranks {
                let Ok(ranks) = disk.ranks(slot, after.as_ref(), None, limit);
                todo.push_back((node.clone(), machine.handle_ranks(now, slot, round, ranks)));
            }
        }
    }

    /// Gives disks what was held back from them.
    fn let_go(&mut self) {
        for (node, message) in self.held.take().expect("messages were held back") {
            let outcome = ObjectOutcome { send: vec![(node.clone(), message)], ..ObjectOutcome::default() };
            self.perform(&node, outcome);
        }
    }

    /// Lets time pass.
    fn pass(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        loop {
            let next = self.next_timeout.iter().filter(|(node, _)| !self.down.contains(*node));
            let Some((at, node)) =
                next.map(|(node, at)| (*at, node.clone())).min().filter(|(at, _)| *at <= end)
            else {
                break;
            };
            self.now = self.now.max(at);
            self.call(node.as_str(), ObjectCoordinator::handle_timeout);
        }
        self.now = end;
    }

    fn elect(&mut self, name: &str, slot: SlotId, number: u64) {
        self.call(name, |machine, now| machine.handle_elected(now, slot, epoch(number)));
    }

    fn ask(&mut self, name: &str, entry: &str, operation: EntryOperation) -> u64 {
        self.requests += 1;
        let (id, name_of) = (self.requests, key(entry));
        self.call(name, |machine, now| {
            let expires_at = now + Duration::from_secs(2);
            machine.handle_request(now, EntryRequest { id, name: name_of, operation, expires_at })
        });
        id
    }

    fn done(&mut self, name: &str, entry: &str, operation: EntryOperation) -> Answered {
        let id = self.ask(name, entry, operation);
        if !self.answers.contains_key(&id) {
            self.pass(2500);
        }
        self.answers.remove(&id).expect("every request is answered in its time")
    }

    /// The `ETag` that a read finds.
    fn read(&mut self, name: &str, entry: &str) -> Result<Option<String>, EntryError> {
        match self.done(name, entry, EntryOperation::Read) {
            Ok(EntryAnswer::Found(head)) => Ok(head.map(|head| head.etag.to_string())),
            Ok(other) => panic!("a read was answered with {other:?}"),
            Err(error) => Err(error),
        }
    }

    fn disk(&mut self, name: &str) -> &mut Disk {
        &mut self.nodes.get_mut(&id(name)).expect("a node").1
    }

    fn progress(&self, name: &str) -> ObjectProgress {
        self.nodes[&id(name)].0.progress()
    }

    fn counters(&self, name: &str) -> ObjectCounters {
        self.nodes[&id(name)].0.counters()
    }
}

fn tag(number: u64, sequence: u64) -> Tag {
    Tag { epoch: epoch(number), sequence }
}

#[test]
fn a_primary_writes_reads_and_compares() {
    let mut cluster = Cluster::new(3);
    let slot = slot_of("k");
    assert_eq!(
        cluster.done("a", "k", EntryOperation::Read),
        Err(EntryError::NotPrimary { primary_epoch: SlotEpoch::ZERO })
    );
    cluster.elect("a", slot, 1);
    assert_eq!(cluster.nodes[&id("a")].0.serves(slot), Some(epoch(1)));
    assert_eq!(cluster.progress("a").clean, 1, "all replicas were empty");

    assert_eq!(cluster.read("a", "k"), Ok(None));
    assert_eq!(cluster.done("a", "k", write("1", Condition::Absent)), Ok(EntryAnswer::Written(tag(1, 1))));
    assert_eq!(cluster.read("a", "k"), Ok(Some("1".to_string())));
    let refused = cluster.done("a", "k", write("2", Condition::Absent));
    assert!(matches!(refused, Ok(EntryAnswer::Refused(Some(head))) if head.tag == tag(1, 1)));
    assert_eq!(cluster.done("a", "k", write("3", if_etag("1"))), Ok(EntryAnswer::Written(tag(1, 2))));
    assert_eq!(cluster.done("a", "k", delete(Condition::Any)), Ok(EntryAnswer::Written(tag(1, 3))));
    assert_eq!(cluster.read("a", "k"), Ok(None));
    assert_eq!(cluster.done("a", "k", delete(Condition::Any)), Ok(EntryAnswer::NothingDeleted));
    assert_eq!(cluster.done("a", "k", delete(Condition::Present)), Ok(EntryAnswer::Refused(None)));
    // Every replica has the tombstone.
    for name in NAMES {
        assert!(cluster.disk(name).heads[&key("k")].is_deleted);
    }
}

#[test]
fn what_was_never_there_is_written_once_and_not_after_a_deletion_of_nothing() {
    let mut cluster = Cluster::new(3);
    for (entry, number) in [("k", 1), ("l", 2)] {
        cluster.elect("a", slot_of(entry), number);
    }
    assert!(matches!(cluster.done("a", "k", write("1", Condition::Never)), Ok(EntryAnswer::Written(_))));
    assert!(matches!(
        cluster.done("a", "k", write("2", Condition::Never)),
        Ok(EntryAnswer::Refused(Some(_)))
    ));
    assert!(matches!(cluster.done("a", "k", delete(Condition::Never)), Ok(EntryAnswer::Refused(Some(_)))));
    assert!(matches!(cluster.done("a", "k", delete(Condition::Any)), Ok(EntryAnswer::Written(_))));
    assert_eq!(cluster.done("a", "k", write("3", Condition::Never)), Ok(EntryAnswer::Refused(None)));
    // A tombstone in place of nothing: whoever is late is refused, and nobody else is.
    assert!(matches!(cluster.done("a", "l", delete(Condition::Never)), Ok(EntryAnswer::Written(_))));
    assert_eq!(cluster.done("a", "l", delete(Condition::Never)), Ok(EntryAnswer::Refused(None)));
    assert_eq!(cluster.done("a", "l", write("1", Condition::Never)), Ok(EntryAnswer::Refused(None)));
    assert_eq!(cluster.read("a", "l"), Ok(None));
    assert!(matches!(cluster.done("a", "l", write("2", Condition::Absent)), Ok(EntryAnswer::Written(_))));
}

#[test]
fn a_cluster_of_one_serves_itself() {
    let mut cluster = Cluster::new(1);
    cluster.start("a", Disk::default());
    assert_eq!(cluster.progress("a").learning_left, 0, "there is nobody to learn from");
    cluster.elect("a", slot_of("k"), 3);
    assert_eq!(cluster.done("a", "k", put("1")), Ok(EntryAnswer::Written(tag(3, 1))));
    assert_eq!(cluster.read("a", "k"), Ok(Some("1".to_string())));
}

#[test]
fn a_successor_takes_over_what_was_committed() {
    let mut cluster = Cluster::new(3);
    let slot = slot_of("k");
    cluster.elect("a", slot, 1);
    // c misses the write.
    cluster.down.insert(id("c"));
    assert!(cluster.done("a", "k", put("1")).is_ok());
    cluster.down.clear();
    cluster.down.insert(id("a"));
    cluster.elect("c", slot, 2);
    assert_eq!(cluster.read("c", "k"), Ok(Some("1".to_string())));
    assert!(
        cluster.events.contains(&(id("c"), ObjectEvent::SlotServing { slot, epoch: epoch(2), adopted: 1 }))
    );
    // Before it was shown it was stored again, as accepted in this epoch.
    assert_eq!(cluster.counters("c").renewals, 1);
    assert_eq!(cluster.disk("b").heads[&key("k")].rank(), HeadRank { accepted: epoch(2), tag: tag(1, 1) });
    // The one before comes back and learns that it is over, by the first thing it tries.
    cluster.down.clear();
    assert_eq!(
        cluster.done("a", "k", EntryOperation::Read),
        Err(EntryError::NotPrimary { primary_epoch: epoch(2) })
    );
    assert!(
        cluster.events.contains(&(id("a"), ObjectEvent::SlotLost { slot, epoch: epoch(1), by: epoch(2) }))
    );
    assert_eq!(cluster.done("c", "k", write("2", if_etag("1"))), Ok(EntryAnswer::Written(tag(2, 1))));
}

#[test]
fn a_successor_serves_when_its_disk_has_all_that_it_was_told_to_adopt() {
    let mut cluster = Cluster::new(3);
    let slot = slot_of("k");
    cluster.elect("c", slot, 1);
    cluster.down.extend([id("a"), id("b")]);
    assert_eq!(cluster.done("c", "k", put("1")), Err(EntryError::Indeterminate));
    cluster.down.clear();
    // It begins to take over what c has; then b grants too, and has nothing that it lacks.
    cluster.down.insert(id("b"));
    cluster.held = Some(Vec::new());
    cluster.elect("a", slot, 2);
    cluster.down.clear();
    cluster.pass(300);
    // A majority would do without c, but the disk might show what is adopted at any time.
    assert_eq!((cluster.progress("a").recovering, cluster.progress("a").serving), (1, 0));
    cluster.let_go();
    assert_eq!((cluster.progress("a").recovering, cluster.progress("a").serving), (0, 1));
    assert_eq!(cluster.read("a", "k"), Ok(Some("1".to_string())));
}

#[test]
fn without_a_majority_nothing_is_shown_and_a_write_has_no_known_end() {
    let mut cluster = Cluster::new(3);
    let slot = slot_of("k");
    cluster.elect("a", slot, 1);
    cluster.down.extend([id("b"), id("c")]);
    assert_eq!(cluster.done("a", "k", put("1")), Err(EntryError::Indeterminate));
    assert_eq!(cluster.done("a", "k", EntryOperation::Read), Err(EntryError::Expired));
    assert_eq!(cluster.done("a", "k", write("2", Condition::Absent)), Err(EntryError::Expired));
    // The own disk alone has it. With a majority it is stored again and shown: it has taken effect.
    cluster.down.clear();
    assert_eq!(cluster.read("a", "k"), Ok(Some("1".to_string())));
    assert_eq!(cluster.counters("a").renewals, 3, "each who looked tried");
    let holders = NAMES.into_iter().filter(|name| cluster.nodes[&id(name)].1.heads.contains_key(&key("k")));
    assert_eq!(holders.count(), 3);
    // Settled, it is shown without.
    assert_eq!(cluster.read("a", "k"), Ok(Some("1".to_string())));
    assert_eq!(cluster.counters("a").renewals, 3);
}

#[test]
fn a_write_that_was_given_up_is_waited_for_until_the_own_disk_has_it() {
    let mut cluster = Cluster::new(3);
    cluster.elect("a", slot_of("k"), 1);
    // Neither its own disk nor another one takes it in time.
    cluster.held = Some(Vec::new());
    cluster.down.extend([id("b"), id("c")]);
    assert_eq!(cluster.done("a", "k", put("1")), Err(EntryError::Indeterminate));
    cluster.down.clear();
    // The disk shows nothing, and yet it would be wrong to say so: the write may come to light at any time.
    let conditional = cluster.ask("a", "k", write("2", Condition::Absent));
    cluster.pass(500);
    assert!(!cluster.answers.contains_key(&conditional));
    cluster.let_go();
    cluster.call("a", ObjectCoordinator::handle_timeout);
    cluster.pass(500);
    let refused = cluster.answers.remove(&conditional);
    assert!(matches!(refused, Some(Ok(EntryAnswer::Refused(Some(head)))) if head.tag == tag(1, 1)));
}

#[test]
fn requests_wait_for_the_takeover_and_fall_with_it() {
    let mut cluster = Cluster::new(3);
    let slot = slot_of("k");
    cluster.down.extend([id("b"), id("c")]);
    cluster.elect("a", slot, 1);
    assert_eq!(cluster.progress("a").fencing, 1);
    let early = cluster.ask("a", "k", put("1"));
    cluster.down.clear();
    cluster.pass(300);
    assert_eq!(cluster.answers.remove(&early), Some(Ok(EntryAnswer::Written(tag(1, 1)))));
    // A write that was sent, and one behind it, when a later epoch is heard of.
    cluster.down.extend([id("b"), id("c")]);
    let sent = cluster.ask("a", "k", put("2"));
    let behind = cluster.ask("a", "k", put("3"));
    cluster.call("a", |machine, now| machine.handle_deposed(now, slot, epoch(9)));
    assert_eq!(cluster.answers.remove(&sent), Some(Err(EntryError::Indeterminate)));
    let elsewhere = EntryError::NotPrimary { primary_epoch: epoch(9) };
    assert_eq!(cluster.answers.remove(&behind), Some(Err(elsewhere)));
    // An epoch that it had does not come back, and neither does one that is over.
    cluster.elect("a", slot, 1);
    cluster.elect("a", slot, 8);
    assert_eq!(cluster.progress("a").fencing, 0);
}

#[test]
fn what_lacks_its_parts_does_not_count() {
    let mut cluster = Cluster::new(3);
    cluster.elect("a", slot_of("k"), 1);
    for name in ["b", "c"] {
        cluster.disk(name).missing.insert(Bytes::from_static(b"1"));
    }
    let id = cluster.ask("a", "k", put("1"));
    cluster.pass(500);
    assert!(!cluster.answers.contains_key(&id));
    cluster.disk("c").missing.clear();
    cluster.pass(500);
    assert_eq!(cluster.answers.remove(&id), Some(Ok(EntryAnswer::Written(tag(1, 1)))));
}

#[test]
fn a_lost_disk_learns_from_all_before_it_takes_part() {
    let mut cluster = Cluster::new(3);
    let slot = slot_of("k");
    cluster.elect("a", slot, 1);
    cluster.down.insert(id("c"));
    assert!(cluster.done("a", "k", put("1")).is_ok());
    cluster.down.clear();
    // b loses its disk while a is away: c alone does not know of the write.
    cluster.down.insert(id("a"));
    cluster.start("b", Disk::default());
    cluster.elect("c", slot, 2);
    cluster.pass(3000);
    assert_eq!((cluster.progress("c").serving, cluster.progress("c").fencing), (0, 1));
    assert_eq!(cluster.progress("b").learning_left, usize::from(SLOTS));
    cluster.down.clear();
    cluster.pass(3000);
    assert_eq!(cluster.progress("b").learning_left, 0);
    assert!(cluster.events.contains(&(id("b"), ObjectEvent::Learned { slot })));
    assert_eq!(cluster.read("c", "k"), Ok(Some("1".to_string())));
}

#[test]
fn healing_makes_all_replicas_equal_and_forgets_old_tombstones() {
    let mut cluster = Cluster::new(3);
    let slot = slot_of("k");
    cluster.elect("a", slot, 1);
    assert!(cluster.done("a", "k", put("0")).is_ok());
    cluster.down.insert(id("c"));
    let others: Vec<String> =
        (0..40).map(|number| format!("k{number}")).filter(|entry| slot_of(entry) == slot).collect();
    for entry in &others {
        assert!(cluster.done("a", entry, put("1")).is_ok());
    }
    assert!(cluster.done("a", "k", delete(Condition::Any)).is_ok());
    cluster.down.clear();
    cluster.call("a", |machine, now| machine.handle_heal(now, None));
    let entries = others.len() as u64 + 1;
    let healed = ObjectEvent::HealFinished { checked: 1, repaired: entries, failed: 0 };
    assert!(cluster.events.contains(&(id("a"), healed)), "{:?}", cluster.events);
    let reference = cluster.disk("a").heads.clone();
    assert_eq!(cluster.disk("c").heads, reference);
    // The tombstone goes when every replica has it, and not before.
    let old = vec![(key("k"), tag(1, reference[&key("k")].tag.sequence))];
    cluster.down.insert(id("b"));
    cluster.call("a", |machine, now| machine.handle_old_tombstones(now, slot, old.clone()));
    cluster.pass(10_000);
    assert!(cluster.disk("c").heads.contains_key(&key("k")));
    cluster.down.clear();
    cluster.call("a", |machine, now| machine.handle_old_tombstones(now, slot, old));
    for name in NAMES {
        assert!(!cluster.disk(name).heads.contains_key(&key("k")));
    }
}

#[test]
fn a_listing_is_settled_before_it_is_shown() {
    let mut cluster = Cluster::new(3);
    let slot = slot_of("k");
    cluster.elect("a", slot, 1);
    cluster.down.extend([id("b"), id("c")]);
    // On one disk only.
    assert_eq!(cluster.done("a", "k", put("1")), Err(EntryError::Indeterminate));
    let rank = cluster.disk("a").heads[&key("k")].rank();
    let list = |cluster: &mut Cluster, id: u64, number: u64| {
        cluster.call("a", |machine, now| {
            let expires_at = now + Duration::from_secs(2);
            machine.handle_settle(now, id, vec![(key("k"), rank)], vec![(slot, epoch(number))], expires_at)
        });
    };
    list(&mut cluster, 100, 1);
    cluster.pass(3000);
    assert_eq!(cluster.answers.remove(&100), Some(Err(EntryError::Expired)));
    cluster.down.clear();
    list(&mut cluster, 101, 1);
    assert_eq!(cluster.answers.remove(&101), Some(Ok(EntryAnswer::Settled)));
    assert!(cluster.disk("b").heads.contains_key(&key("k")));
    list(&mut cluster, 102, 2);
    assert_eq!(cluster.answers.remove(&102), Some(Err(EntryError::NotPrimary { primary_epoch: epoch(1) })));
}

#[test]
fn readers_of_a_key_share_one_look_and_one_question() {
    let mut cluster = Cluster::new(3);
    cluster.elect("a", slot_of("k"), 1);
    assert!(cluster.done("a", "k", put("1")).is_ok());
    let (machine, _) = cluster.nodes.get_mut(&id("a")).expect("a node");
    let now = cluster.now;
    let mut loads = 0;
    for id in 10..20 {
        let (name, operation) = (key("k"), EntryOperation::Read);
        let expires_at = now + Duration::from_secs(1);
        let outcome = machine.handle_request(now, EntryRequest { id, name, operation, expires_at });
        loads += outcome.load.len();
    }
    assert_eq!(loads, 1);
    // The first asked before the others came; they need a question of their own, together.
    let before = machine.counters().confirm_rounds;
    let head = cluster.disk("a").heads.get(&key("k")).cloned();
    let outcome = cluster.nodes.get_mut(&id("a")).expect("a node").0.handle_loaded(now, &key("k"), head);
    assert_eq!(outcome.answers, vec![], "nobody has said yet that the epoch lasts");
    cluster.perform(&id("a"), outcome);
    cluster.pass(300);
    assert_eq!(cluster.answers.len(), 10);
    assert!(cluster.counters("a").confirm_rounds <= before + 1);
}

#[test]
fn there_are_bounds() {
    let mut cluster = Cluster::new(3);
    let config = ObjectConfig { requests_max: 2, ..ObjectConfig::default() };
    let (mut machine, _) =
        ObjectCoordinator::new(id("a"), Arc::clone(&cluster.bootstrap), config, BTreeSet::new(), cluster.now);
    machine.handle_elected(cluster.now, slot_of("k"), epoch(1));
    let mut ask = |id| {
        let expires_at = cluster.now + Duration::from_secs(1);
        let request = EntryRequest { id, name: key("k"), operation: put("1"), expires_at };
        machine.handle_request(cluster.now, request).answers
    };
    assert_eq!((ask(1), ask(2)), (vec![], vec![]));
    assert_eq!(ask(3), vec![(3, Err(EntryError::TooManyRequests))]);
    cluster.now = cluster.now + Duration::from_secs(2);
    let expired = machine.handle_timeout(cluster.now).answers;
    assert_eq!(expired, vec![(1, Err(EntryError::Expired)), (2, Err(EntryError::Expired))]);
    let bad = ObjectConfig { repairs_max: 0, ..ObjectConfig::default() };
    assert_eq!(bad.validate(), Err(ObjectConfigError::Count { field: "repairs_max", value: 0, max: 4096 }));
}
