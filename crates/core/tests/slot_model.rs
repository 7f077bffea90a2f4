//! One slot, three replicas, and every order in which things can happen to them.
//!
//! The transitions of the model are the very functions that the registry runs: a [`SlotReplica`] promises and stores, a
//! [`Candidacy`] counts grants, a [`Reign`] recovers, writes and counts who stored. What the model adds is the world around
//! them. A message that was sent stays in the air: it may be delivered never, late, twice and in any order. A replica may
//! crash at any time and keeps its disk, or, where a test says so, loses it.
//!
//! Each rule of the protocol can be switched off, and the checker must then find the disaster that the rule prevents. The
//! path it prints is the shortest one.

#![allow(
    clippy::print_stdout,
    reason = "the numbers of states and the shortest paths are what one runs it for"
)]

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock, Mutex};

use stateright::{Checker, HasDiscoveries, Model, Property};
use synod_core::NodeId;
use synod_core::slots::{
    Candidacy, ElectionCause, Head, HeadRank, HlcTimestamp, Reign, ReignPhase, SlotEpoch, SlotId, SlotMap,
    SlotRecord, SlotReplica, SlotState, Tag,
};

#[test]
fn no_order_of_events_breaks_a_promise_or_loses_a_write() {
    assert_eq!(holds(&Rules { epochs: 3, writes: 2, ..Rules::default() }), 559_309);
}

#[test]
#[ignore = "takes long without being the first to find anything; CI runs it"]
fn four_epochs_in_a_row_show_one_line_of_values() {
    assert_eq!(
        holds(&Rules { epochs: 4, crashes: false, answers_at_once: true, ..Rules::default() }),
        1_372_451
    );
}

#[test]
fn a_lost_disk_does_no_harm_to_one_who_learns_before_it_votes() {
    let rules = Rules { epochs: 2, disks_lost: 2, crashes: false, answers_at_once: true, ..Rules::default() };
    assert_eq!(holds(&rules), 414_035);
}

#[test]
fn a_candidate_without_a_majority_makes_two_primaries() {
    let rules = Rules { needs_majority: false, ..Rules::default() };
    assert_eq!(steps_to(&rules, ONE_PRIMARY), 6);
}

#[test]
fn a_primary_that_does_not_recover_loses_a_write() {
    let rules = Rules { recovers: false, ..Rules::default() };
    assert_eq!(steps_to(&rules, NO_LOST_WRITE), 9);
}

#[test]
fn a_promise_that_a_crash_erases_makes_two_primaries() {
    let rules = Rules { promises_durably: false, ..Rules::default() };
    assert_eq!(steps_to(&rules, ONE_PRIMARY), 7);
}

#[test]
fn a_head_that_keeps_its_old_rank_lets_two_conditional_writes_both_win() {
    let rules =
        Rules { epochs: 4, renews_heads: false, crashes: false, answers_at_once: true, ..Rules::default() };
    assert_eq!(steps_to(&rules, ONE_LINE), 13);
}

#[test]
fn one_who_lost_its_disk_and_votes_at_once_makes_two_primaries() {
    let rules = Rules { disks_lost: 1, learns: false, ..Rules::default() };
    assert_eq!(steps_to(&rules, ONE_PRIMARY), 7);
}

#[test]
fn lessons_for_an_earlier_life_make_two_primaries() {
    let rules = Rules { epochs: 1, disks_lost: 2, tells_lives_apart: false, ..Rules::default() };
    assert_eq!(steps_to(&rules, ONE_PRIMARY), 14);
}

/// How far the model goes, and which rules of the protocol it follows.
#[derive(Clone, Debug)]
struct Rules {
    epochs: u64,
    writes: u8,
    /// Replicas lose what they did not write down, at any time.
    crashes: bool,
    /// An answer comes with its question, if it comes at all. It makes the world smaller, so that one can look further.
    answers_at_once: bool,
    /// How many disks are lost, one after the other.
    disks_lost: u8,
    needs_majority: bool,
    recovers: bool,
    promises_durably: bool,
    /// What a new primary inherits counts from then on as accepted in its own epoch.
    renews_heads: bool,
    /// One who lost its disk hears all others before it votes.
    learns: bool,
    /// What was told to an earlier life is not taken for an answer to this one.
    tells_lives_apart: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            epochs: 3,
            writes: 2,
            crashes: true,
            answers_at_once: false,
            disks_lost: 0,
            needs_majority: true,
            recovers: true,
            promises_durably: true,
            renews_heads: true,
            learns: true,
            tells_lives_apart: true,
        }
    }
}

/// Explores everything, and returns how many states there are.
fn holds(rules: &Rules) -> usize {
    let checker = rules.clone().checker().threads(2).spawn_bfs().join();
    println!("{} states, {} of them different", checker.state_count(), checker.unique_state_count());
    checker.assert_properties();
    checker.unique_state_count()
}

/// Explores until `property` is violated, and returns in how many steps that can happen.
fn steps_to(rules: &Rules, property: &'static str) -> usize {
    let finish = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    let checker = rules.clone().checker().finish_when(finish).spawn_bfs().join();
    let path = checker.assert_any_discovery(property);
    let actions = path.into_actions();
    println!("{property:?} is violated in {} steps:", actions.len());
    actions.iter().for_each(|action| println!("  {action:?}"));
    actions.len()
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    nodes: [Node; 3],
    /// Every message that may still do something.
    air: BTreeSet<Message>,
    writes: u8,
    disks_lost: u8,
    /// Who was ever primary of which epoch.
    claims: BTreeSet<(SlotEpoch, usize)>,
    /// What was ever acknowledged or shown, with the epoch in which it was.
    committed: BTreeSet<(HeadRank, Arc<[u8]>)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    replica: SlotReplica,
    candidacy: Option<Candidacy>,
    reign: Option<Reign>,
    /// Whom it has to hear before it votes.
    learning_from: BTreeSet<usize>,
    /// The most it ever promised.
    highest: SlotEpoch,
}

/// A message in the air. The value of a head is the list of the writes that led to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    AskGrant { candidate: usize, epoch: SlotEpoch },
    Grant { from: usize, to: usize, epoch: SlotEpoch, stored: Option<HeadRank> },
    AskHead { by: usize, of: usize, epoch: SlotEpoch },
    Head { to: usize, rank: HeadRank, value: Arc<[u8]> },
    Store { primary: usize, epoch: SlotEpoch, rank: HeadRank, value: Arc<[u8]> },
    Stored { from: usize, to: usize, epoch: SlotEpoch, tag: Tag },
    Promise { from: usize, to: usize, promised: SlotEpoch, head: Option<(HeadRank, Arc<[u8]>)> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Stand(usize),
    Deliver {
        message: Message,
        to: usize,
    },
    Write(usize),
    /// Asks `of` what it promised, for `by` who does not remember.
    Ask {
        by: usize,
        of: usize,
    },
    Crash(usize),
    LoseDisk(usize),
}

impl Step {
    /// To whom it happens.
    const fn at(&self) -> usize {
        match self {
            Self::Stand(at) | Self::Write(at) | Self::Crash(at) | Self::LoseDisk(at) => *at,
            Self::Deliver { to, .. } => *to,
            Self::Ask { by, .. } => *by,
        }
    }
}

impl Model for Rules {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let nodes = [0, 1, 2].map(|_| Node::default());
        let (claims, committed) = (BTreeSet::new(), BTreeSet::new());
        vec![World { nodes, air: BTreeSet::new(), writes: 0, disks_lost: 0, claims, committed }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        for message in &world.air {
            let to = match message {
                Message::AskGrant { candidate: from, .. } | Message::Store { primary: from, .. } => {
                    others(*from)
                }
                Message::AskHead { of: to, .. }
                | Message::Grant { to, .. }
                | Message::Head { to, .. }
                | Message::Stored { to, .. }
                | Message::Promise { to, .. } => vec![*to],
            };
            steps.extend(to.into_iter().map(|to| Step::Deliver { message: message.clone(), to }));
        }
        for at in 0..3 {
            let node = &world.nodes[at];
            steps.extend(node.learning_from.iter().map(|of| Step::Ask { by: at, of: *of }));
            steps.extend([Step::Stand(at), Step::Write(at), Step::Crash(at)]);
            // Two that have forgotten cannot teach each other.
            if world.nodes.iter().all(|node| node.learning_from.is_empty()) {
                steps.push(Step::LoseDisk(at));
            }
        }
        // Replicas that nothing has happened to yet are alike, so it may as well happen to the first of them.
        let untouched = world.nodes.iter().position(|node| *node == Node::default()).unwrap_or(3);
        steps.retain(|step| step.at() <= untouched || world.nodes[step.at()] != Node::default());
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        match step {
            Step::Stand(at) => self.stand(&mut world, at)?,
            Step::Deliver { message, to } => self.deliver(&mut world, message, to)?,
            Step::Write(at) => self.write(&mut world, at)?,
            Step::Ask { by, of } => {
                let replica = &world.nodes[of].replica;
                let head = replica.head().map(|head| (head.rank(), Arc::clone(&head.value)));
                let promised = replica.promised();
                self.answer(&mut world, Message::Promise { from: of, to: by, promised, head }, by);
            }
            Step::Crash(at) if self.crashes => {
                let node = &mut world.nodes[at];
                (node.candidacy, node.reign) = (None, None);
                if !self.promises_durably {
                    node.replica = SlotReplica::restored(SlotEpoch::ZERO, None, node.replica.head().cloned());
                }
            }
            Step::LoseDisk(at) if world.disks_lost < self.disks_lost => {
                world.disks_lost += 1;
                world.nodes[at] = Node::default();
                if self.learns {
                    world.nodes[at].learning_from = others(at).into_iter().collect();
                }
                if self.tells_lives_apart {
                    world.air.retain(|one| !matches!(one, Message::Promise { to, .. } if *to == at));
                }
            }
            Step::Crash(_) | Step::LoseDisk(_) => return None,
        }
        self.forget_what_is_void(&mut world);
        (world != *before).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ONE_PRIMARY, |_, world: &World| {
                world.claims.iter().zip(world.claims.iter().skip(1)).all(|(a, b)| a.0 != b.0)
            }),
            Property::always(NO_LOST_WRITE, |_, world: &World| {
                let keeps_all = |node: &Node| {
                    let Some(reign) = node.reign.as_ref().filter(|reign| reign.is_serving()) else {
                        return true;
                    };
                    let mut earlier =
                        world.committed.iter().filter(|(rank, _)| rank.accepted < reign.epoch());
                    earlier.all(|(rank, value)| {
                        node.replica
                            .head()
                            .is_some_and(|head| head.rank() >= *rank && head.value.starts_with(value))
                    })
                };
                world.nodes.iter().all(keeps_all)
            }),
            Property::always(ONE_LINE, |_, world: &World| {
                let values = || world.committed.iter().map(|(_, value)| value);
                values().all(|a| values().all(|b| a.starts_with(b) || b.starts_with(a)))
            }),
            Property::always(ONE_MAP, |_, world: &World| converges(&world.claims)),
            Property::sometimes("a second primary serves", |_, world: &World| {
                let is_second = |node: &Node| {
                    node.reign.as_ref().is_some_and(|reign| reign.is_serving() && reign.epoch().get() > 1)
                };
                world.nodes.iter().any(is_second) && world.claims.len() > 1
            }),
            Property::sometimes("what one primary committed, the next one adds to", |_, world: &World| {
                world.committed.iter().any(|(rank, value)| rank.tag.epoch.get() > 1 && value.len() > 1)
            }),
        ];
        // What a lost disk had promised to nobody but itself may well be forgotten.
        if self.disks_lost == 0 {
            properties.push(Property::always(NEVER_FALLS, |_, world: &World| {
                world.nodes.iter().all(|node| node.replica.promised() == node.highest)
            }));
        }
        properties
    }
}

impl Rules {
    /// Whether no rule of the protocol is switched off.
    const fn are_kept(&self) -> bool {
        let Self { needs_majority, recovers, promises_durably, learns, tells_lives_apart, .. } = self;
        *needs_majority && *recovers && *promises_durably && *learns && *tells_lives_apart
    }

    const fn quorum(&self) -> usize {
        if self.needs_majority { 2 } else { 1 }
    }

    fn stand(&self, world: &mut World, at: usize) -> Option<()> {
        let node = &mut world.nodes[at];
        let epoch = node.replica.promised().next();
        if epoch.get() > self.epochs || !node.learning_from.is_empty() {
            return None;
        }
        node.replica.grant(epoch, &NAMES[at]).expect("it is above all it promised");
        node.reign = None;
        node.candidacy = Some(Candidacy::new(epoch, &NAMES[at], node.replica.rank()));
        world.air.insert(Message::AskGrant { candidate: at, epoch });
        self.win_if_granted(world, at)
    }

    fn deliver(&self, world: &mut World, message: Message, at: usize) -> Option<()> {
        let node = &mut world.nodes[at];
        let is_learning = !node.learning_from.is_empty();
        match message {
            Message::AskGrant { candidate, epoch } if !is_learning => {
                node.replica.grant(epoch, &NAMES[candidate]).ok()?;
                let stored = node.replica.rank();
                node.bow_to(epoch);
                self.answer(world, Message::Grant { from: at, to: candidate, epoch, stored }, candidate);
            }
            Message::Grant { from, epoch, stored, .. } => {
                node.candidacy.as_mut()?.handle_grant(&NAMES[from], epoch, stored);
                self.win_if_granted(world, at)?;
            }
            Message::AskHead { by, epoch, .. } => {
                let head = node.replica.head().filter(|_| node.replica.promised() == epoch)?;
                let head = Message::Head { to: by, rank: head.rank(), value: Arc::clone(&head.value) };
                self.answer(world, head, by);
            }
            Message::Head { rank, value, .. } => {
                let reign = node.reign.as_mut().filter(|reign| !reign.is_serving())?;
                node.replica.store(&head(rank, value));
                if reign.handle_recovered(&node.replica) {
                    self.serve(world, at)?;
                }
            }
            Message::Store { primary, epoch, rank, value } if !is_learning => {
                node.replica.accept(epoch).ok()?;
                node.replica.store(&head(rank, value));
                node.bow_to(epoch);
                let tag = rank.tag;
                self.answer(world, Message::Stored { from: at, to: primary, epoch, tag }, primary);
            }
            Message::Stored { from, epoch, tag, .. } => self.count(world, at, from, epoch, tag),
            Message::Promise { from, promised, head: told, .. } => {
                if !node.learning_from.remove(&from) {
                    return None;
                }
                let told = told.map(|(rank, value)| head(rank, value));
                let newest = [node.replica.head().cloned(), told].into_iter().flatten();
                let newest = newest.max_by_key(Head::rank);
                node.replica = SlotReplica::restored(promised.max(node.replica.promised()), None, newest);
                node.highest = node.replica.promised();
            }
            Message::AskGrant { .. } | Message::Store { .. } => return None,
        }
        Some(())
    }

    fn answer(&self, world: &mut World, message: Message, to: usize) {
        if self.answers_at_once {
            // An answer that means nothing any more changes nothing.
            let _: Option<()> = self.deliver(world, message, to);
        } else {
            world.air.insert(message);
        }
    }

    fn win_if_granted(&self, world: &mut World, at: usize) -> Option<()> {
        let node = &mut world.nodes[at];
        let won = node.candidacy.as_ref().filter(|candidacy| candidacy.is_won(self.quorum()));
        let Some(candidacy) = won.filter(|one| one.epoch() == node.replica.promised()) else {
            return Some(());
        };
        if node.reign.is_some() {
            return Some(());
        }
        // One who does not recover knows of no head but its own.
        let unaware = Candidacy::new(candidacy.epoch(), &NAMES[at], node.replica.rank());
        let reign = Reign::new(if self.recovers { candidacy } else { &unaware }, &node.replica);
        if let ReignPhase::Recovering { from, .. } = reign.phase() {
            let of = NAMES.iter().position(|name| name == from).expect("a replica");
            world.air.insert(Message::AskHead { by: at, of, epoch: reign.epoch() });
        }
        node.reign = Some(reign);
        self.serve(world, at)
    }

    fn serve(&self, world: &mut World, at: usize) -> Option<()> {
        let node = &mut world.nodes[at];
        let Some(reign) = node.reign.as_mut().filter(|reign| reign.is_serving()) else { return Some(()) };
        node.candidacy = None;
        let epoch = reign.epoch();
        world.claims.insert((epoch, at));
        if let Some(head) = node.replica.head().cloned() {
            let accepted = head.accepted;
            let mut head = reign.spread(&NAMES[at], head);
            if self.renews_heads {
                self.keep(&mut node.replica, &head)?;
            } else {
                head.accepted = accepted;
            }
            self.spread(world, at, epoch, &head);
        }
        Some(())
    }

    fn write(&self, world: &mut World, at: usize) -> Option<()> {
        let node = &mut world.nodes[at];
        let reign = node.reign.as_mut().filter(|reign| reign.is_serving() && reign.is_settled())?;
        if world.writes == self.writes {
            return None;
        }
        world.writes += 1;
        let mut history = node.replica.head().map_or(Vec::new(), |head| head.value.to_vec());
        history.push(world.writes);
        let head = reign.begin_write(&NAMES[at], history.into());
        let epoch = reign.epoch();
        self.keep(&mut node.replica, &head)?;
        self.spread(world, at, epoch, &head);
        Some(())
    }

    /// What a primary writes is the newest it knows. Where that fails, the registry stops, and so does this path.
    fn keep(&self, replica: &mut SlotReplica, head: &Head) -> Option<()> {
        let is_newest = replica.store(head);
        assert!(is_newest || !self.are_kept(), "a primary knows something newer than what it writes");
        is_newest.then_some(())
    }

    fn spread(&self, world: &mut World, at: usize, epoch: SlotEpoch, head: &Head) {
        let (rank, value) = (head.rank(), Arc::clone(&head.value));
        world.air.insert(Message::Store { primary: at, epoch, rank, value });
        self.count(world, at, at, epoch, head.tag);
    }

    fn count(&self, world: &mut World, at: usize, from: usize, epoch: SlotEpoch, tag: Tag) {
        let node = &mut world.nodes[at];
        let Some(reign) = node.reign.as_mut().filter(|reign| reign.epoch() == epoch) else { return };
        if reign.handle_stored(&NAMES[from], tag, self.quorum()) {
            let head = node.replica.head().expect("a primary stores first");
            assert_eq!(head.tag, tag, "a primary waits for one write before it begins another");
            world.committed.insert((head.rank(), Arc::clone(&head.value)));
        }
    }

    /// A message that can do nothing any more is as good as lost. Forgetting it makes equal worlds equal.
    fn forget_what_is_void(&self, world: &mut World) {
        for node in &mut world.nodes {
            node.highest = node.highest.max(node.replica.promised());
        }
        let nodes = &world.nodes;
        let is_reign = |at: &usize, epoch: &SlotEpoch| {
            nodes[*at].reign.as_ref().is_some_and(|reign| reign.epoch() == *epoch)
        };
        world.air.retain(|message| match message {
            Message::AskGrant { candidate, epoch } => {
                let is_open = |at: usize| nodes[at].replica.promised() < *epoch;
                others(*candidate).into_iter().any(is_open)
            }
            Message::Grant { from, to, epoch, .. } => {
                let is_new =
                    |one: &Candidacy| one.epoch() == *epoch && !one.granters().contains(&NAMES[*from]);
                nodes[*to].reign.is_none() && nodes[*to].candidacy.as_ref().is_some_and(is_new)
            }
            Message::AskHead { by, epoch, .. } => is_reign(by, epoch),
            Message::Head { to, .. } => nodes[*to].reign.as_ref().is_some_and(|reign| !reign.is_serving()),
            Message::Store { primary, epoch, rank, .. } => {
                let is_open = |at: usize| {
                    nodes[at].replica.promised() < *epoch
                        || nodes[at].replica.promised() == *epoch && nodes[at].replica.rank() < Some(*rank)
                };
                others(*primary).into_iter().any(is_open)
            }
            Message::Stored { from, to, epoch, tag } => {
                let lacks = |reign: &Reign| {
                    reign
                        .spreading([&NAMES[*from]].into_iter())
                        .is_some_and(|(head, mut lacking)| head.tag == *tag && lacking.next().is_some())
                };
                is_reign(to, epoch) && nodes[*to].reign.as_ref().is_some_and(lacks)
            }
            Message::Promise { from, to, .. } => {
                !self.tells_lives_apart || nodes[*to].learning_from.contains(from)
            }
        });
    }
}

impl Node {
    /// It promised `epoch` to another: whatever it was before is over.
    fn bow_to(&mut self, epoch: SlotEpoch) {
        if self.reign.as_ref().is_some_and(|reign| reign.epoch() < epoch) {
            self.reign = None;
        }
        if self.candidacy.as_ref().is_some_and(|candidacy| candidacy.epoch() < epoch) {
            self.candidacy = None;
        }
    }
}

fn head(rank: HeadRank, value: Arc<[u8]>) -> Head {
    Head { tag: rank.tag, accepted: rank.accepted, value }
}

/// Whether the records that these primaries published give the same map in whatever order they come, some of them twice.
fn converges(claims: &BTreeSet<(SlotEpoch, usize)>) -> bool {
    static KNOWN: Mutex<BTreeSet<BTreeSet<(SlotEpoch, usize)>>> = Mutex::new(BTreeSet::new());
    if claims.len() < 2 || KNOWN.lock().expect("no panic").contains(claims) {
        return true;
    }
    let records: Vec<SlotRecord> = claims.iter().map(|(epoch, at)| record(*epoch, *at)).collect();
    let map = |order: &[usize]| {
        let mut map = SlotMap::new(1);
        for at in order.iter().chain(order) {
            // Two primaries of one epoch are told by another property, and must converge all the same.
            drop(map.merge(records[*at].clone()));
        }
        map
    };
    let mut orders = orders(records.len()).into_iter().map(|order| map(&order));
    let first = orders.next();
    let is_one = orders.all(|map| Some(map) == first);
    KNOWN.lock().expect("no panic").insert(claims.clone());
    is_one
}

fn record(epoch: SlotEpoch, at: usize) -> SlotRecord {
    SlotRecord {
        slot: SlotId::new(0),
        epoch,
        primary: NAMES[at].clone(),
        replicas: NAMES.to_vec(),
        state: SlotState::Stable,
        updated_at: HlcTimestamp::default(),
        granted_by: Vec::new(),
        cause: ElectionCause::First,
    }
}

/// All orders of the numbers below `count`.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = orders(count - 1);
    let with_last = |order: &Vec<usize>, place: usize| {
        let mut order = order.clone();
        order.insert(place, count - 1);
        order
    };
    shorter.iter().flat_map(|order| (0..count).map(|place| with_last(order, place))).collect()
}

fn others(at: usize) -> Vec<usize> {
    (0..3).filter(|other| *other != at).collect()
}

static NAMES: LazyLock<[NodeId; 3]> =
    LazyLock::new(|| ["a", "b", "c"].map(|name| NodeId::new(name).expect("a name")));

const ONE_PRIMARY: &str = "an epoch has at most one primary";
const NEVER_FALLS: &str = "what is promised never falls";
const NO_LOST_WRITE: &str = "a primary has all that was committed before it";
const ONE_LINE: &str = "of any two committed values one was made from the other";
const ONE_MAP: &str = "published records give one map in any order";
