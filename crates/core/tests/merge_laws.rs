//! The laws that let views converge whatever the network does to them.
//!
//! Records are drawn from few names, lives and addresses, so that nearly every pair of them meets.

use std::slice;

use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use proptest::sample::{Index, select};
use proptest::test_runner::FileFailurePersistence;
use proptest::{prop_assert, prop_assert_eq};
use synod_core::membership::{
    MembershipDelta, MembershipTable, MembershipVersion, NodeRecord, NodeStatus, Refutation,
};
use synod_core::{Authority, Incarnation, MemberId, NodeId};

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn merging_views_commutes(a in records(), b in records()) {
        let (a, b) = (table(&a), table(&b));
        let (ab, ba) = (merged(&a, &b), merged(&b, &a));
        prop_assert_eq!(contents(&ab), contents(&ba));
        prop_assert_eq!(ab.digest(), ba.digest());
    }

    #[test]
    fn merging_views_associates(a in records(), b in records(), c in records()) {
        let (a, b, c) = (table(&a), table(&b), table(&c));
        let left = merged(&merged(&a, &b), &c);
        let right = merged(&a, &merged(&b, &c));
        prop_assert_eq!(contents(&left), contents(&right));
        prop_assert_eq!(left.digest(), right.digest());
    }

    #[test]
    fn merging_what_is_known_changes_nothing(a in records(), b in records()) {
        let once = merged(&table(&a), &table(&b));
        for known in [&once, &table(&a), &table(&b)] {
            let twice = merged(&once, known);
            prop_assert_eq!(contents(&twice), contents(&once));
            // Not even a version is spent, so nothing is gossiped on.
            prop_assert_eq!((twice.version(), twice.digest()), (once.version(), once.digest()));
        }
    }

    #[test]
    fn a_record_is_only_ever_replaced_by_a_greater_one(inputs in vec(input(), 0..40)) {
        let mut table = table(&[]);
        for input in inputs {
            let before = table.clone();
            input.apply_to(&mut table);
            let mut changes = 0;
            for record in table.records() {
                match before.record(&record.member.node) {
                    Some(old) if old == record => {}
                    Some(old) => {
                        prop_assert!(record.supersedes(old), "{:?} replaced {:?} by {:?}", input, old, record);
                        changes += 1;
                    }
                    None => changes += 1,
                }
            }
            // Each step is one change, and the version counts it.
            prop_assert!(table.records().count() >= before.records().count());
            prop_assert_eq!(table.version().get(), before.version().get() + changes, "{:?}", input);
            prop_assert!(changes <= 1);
        }
    }

    #[test]
    fn any_order_and_any_doubling_of_the_same_news_gives_one_view(
        (news, shuffled, doubled) in records().prop_flat_map(|news| {
            let doubled = vec(any::<Index>(), news.len()..=2 * news.len()).prop_map({
                let news = news.clone();
                move |again| {
                    let again = again.iter().filter(|_| !news.is_empty()).map(|index| index.get(&news).clone());
                    news.iter().cloned().chain(again).collect::<Vec<_>>()
                }
            });
            (Just(news.clone()), Just(news).prop_shuffle(), doubled.prop_shuffle())
        })
    ) {
        let straight = table(&news);
        for other in [table(&shuffled), table(&doubled)] {
            prop_assert_eq!(contents(&other), contents(&straight));
            prop_assert_eq!(other.digest(), straight.digest());
        }
    }

    #[test]
    fn a_life_that_is_over_never_returns(
        past in records(),
        verdict in (record(), select(&[NodeStatus::Dead, NodeStatus::Removed][..])),
        inputs in vec(input(), 0..40),
    ) {
        let verdict = NodeRecord { status: verdict.1, ..verdict.0 };
        let MemberId { node, incarnation } = verdict.member.clone();
        let mut table = table(&past);
        merge(&mut table, &verdict);
        for input in inputs {
            // Anything may happen to others; of this name only lives up to the one that ended are heard.
            let input = input.limited_to(&node, incarnation);
            input.apply_to(&mut table);
            let record = table.record(&node).expect("a record is never lost");
            prop_assert!(
                record.member.incarnation > incarnation || record.status.is_final(),
                "{:?} brought {:?} back as {:?}", input, verdict, record
            );
        }
    }

    #[test]
    fn concurrent_changes_converge_however_the_deltas_travel(
        common in records(),
        steps in vec(step(), 0..60),
    ) {
        // Two nodes that agreed once, and for each the other's versions that it holds for certain.
        let mut tables = [table(&common), table(&common)];
        let mut held = [tables[0].version(), tables[1].version()];
        let mut in_flight: Vec<MembershipDelta> = Vec::new();
        for step in steps {
            match step {
                Step::Change(at, input) => input.apply_to(&mut tables[usize::from(at)]),
                Step::Exchange(from, fate) => {
                    let from = usize::from(from);
                    let delta = tables[from].delta_since(held[from]);
                    if fate == Fate::Arrives {
                        deliver(&mut tables[1 - from], &delta);
                        held[from] = delta.to();
                    }
                    // Whether or not it arrived in time, it may turn up again at any time, at either of them.
                    in_flight.push(delta);
                }
                Step::Straggler(to, index) => {
                    if !in_flight.is_empty() {
                        deliver(&mut tables[usize::from(to)], index.get(&in_flight));
                    }
                }
            }
        }
        // One exchange that arrives, with nothing but what the watermarks say is missing, settles everything.
        for from in [0, 1] {
            let delta = tables[from].delta_since(held[from]);
            deliver(&mut tables[1 - from], &delta);
        }
        prop_assert_eq!(contents(&tables[0]), contents(&tables[1]));
        prop_assert_eq!(tables[0].digest(), tables[1].digest());
        // And a newcomer that is told everything agrees with both.
        let mut newcomer = table(&[]);
        deliver(&mut newcomer, &tables[0].delta_since(MembershipVersion::ZERO));
        prop_assert_eq!(newcomer.digest(), tables[0].digest());
    }
}

/// Random views rarely hold three statements that differ in one field only, so these are tried without exception.
#[test]
fn any_three_statements_about_a_node_merge_to_the_same_in_any_grouping() {
    let mut statements = Vec::new();
    for life in [1, 2] {
        for authority in ["host:1", "host:2"] {
            for status in NodeStatus::ALL {
                for refutation in [0, 1] {
                    statements.push(NodeRecord {
                        member: MemberId::new(
                            NodeId::new("a").expect("a node name"),
                            Incarnation::new(life).expect("an incarnation"),
                        ),
                        authority: Authority::new(authority).expect("an authority"),
                        status,
                        refutation: Refutation(refutation),
                    });
                }
            }
        }
    }
    let views: Vec<_> = statements.iter().map(|statement| table(slice::from_ref(statement))).collect();
    for a in &views {
        for b in &views {
            let ab = merged(a, b);
            assert_eq!(contents(&ab), contents(&merged(b, a)));
            for c in &views {
                assert_eq!(contents(&merged(&ab, c)), contents(&merged(a, &merged(b, c))));
            }
        }
    }
}

/// What can happen to one table.
#[derive(Clone, Debug)]
enum Input {
    Join(MemberId, Authority),
    Merge(NodeRecord),
    Move(NodeId, NodeStatus),
}

impl Input {
    /// Refusals are part of the game; that they change nothing is checked elsewhere.
    fn apply_to(&self, table: &mut MembershipTable) {
        match self {
            Self::Join(member, authority) => drop(table.try_join(member, authority)),
            Self::Merge(record) => merge(table, record),
            Self::Move(node, status) => drop(table.transition(node, *status)),
        }
    }

    fn limited_to(mut self, node: &NodeId, incarnation: Incarnation) -> Self {
        if let Self::Join(member, _) | Self::Merge(NodeRecord { member, .. }) = &mut self
            && member.node == *node
        {
            member.incarnation = member.incarnation.min(incarnation);
        }
        self
    }
}

/// What can happen to two nodes.
#[derive(Clone, Debug)]
enum Step {
    Change(bool, Input),
    Exchange(bool, Fate),
    Straggler(bool, Index),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    Lost,
}

fn node() -> impl Strategy<Value = NodeId> {
    select(&["a", "b", "c"][..]).prop_map(|name| NodeId::new(name).expect("a node name"))
}

fn member() -> impl Strategy<Value = MemberId> {
    (node(), 1..=3_u64)
        .prop_map(|(node, life)| MemberId::new(node, Incarnation::new(life).expect("an incarnation")))
}

fn authority() -> impl Strategy<Value = Authority> {
    select(&["host:1", "host:2"][..]).prop_map(|text| Authority::new(text).expect("an authority"))
}

fn record() -> impl Strategy<Value = NodeRecord> {
    (member(), authority(), select(&NodeStatus::ALL[..]), 0..=2_u32).prop_map(
        |(member, authority, status, refutation)| NodeRecord {
            member,
            authority,
            status,
            refutation: Refutation(refutation),
        },
    )
}

fn records() -> impl Strategy<Value = Vec<NodeRecord>> {
    vec(record(), 0..12)
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        (member(), authority()).prop_map(|(member, authority)| Input::Join(member, authority)),
        record().prop_map(Input::Merge),
        (node(), select(&NodeStatus::ALL[..])).prop_map(|(node, status)| Input::Move(node, status)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let fate = select(&[Fate::Arrives, Fate::Lost][..]);
    prop_oneof![
        3 => (any::<bool>(), input()).prop_map(|(at, input)| Step::Change(at, input)),
        2 => (any::<bool>(), fate).prop_map(|(from, fate)| Step::Exchange(from, fate)),
        1 => (any::<bool>(), any::<Index>()).prop_map(|(to, index)| Step::Straggler(to, index)),
    ]
}

fn table(records: &[NodeRecord]) -> MembershipTable {
    let mut table = MembershipTable::new(100);
    for record in records {
        merge(&mut table, record);
    }
    table
}

fn merge(table: &mut MembershipTable, record: &NodeRecord) {
    table.merge(record).expect("the table has room for all names");
}

fn merged(into: &MembershipTable, from: &MembershipTable) -> MembershipTable {
    let mut table = into.clone();
    for record in from.records() {
        merge(&mut table, record);
    }
    table
}

fn deliver(table: &mut MembershipTable, delta: &MembershipDelta) {
    for record in delta.records() {
        merge(table, record);
    }
}

/// All records, tombstones included: more than the digest covers.
fn contents(table: &MembershipTable) -> Vec<NodeRecord> {
    table.records().cloned().collect()
}
