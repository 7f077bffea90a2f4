//! The laws of the roster.
//!
//! Few names, lives and addresses, so that the sources keep speaking of the same members.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, Strategy, any, prop_oneof, proptest};
use proptest::sample::{select, subsequence};
use proptest::test_runner::FileFailurePersistence;
use proptest::{prop_assert, prop_assert_eq};
use synod_core::gossip::GossipMemberId;
use synod_core::membership::{Member, TopologyUpdate};
use synod_core::roster::{
    PeerRuntime, PollResult, Roster, RosterConfig, RosterMember, RosterOutcome, RosterUpdate,
};
use synod_core::{MemberId, TimerInstant};

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_order_of_inputs_from_different_sources_does_not_matter(
        topologies in vec(topology(), 0..6),
        polls in vec(poll(), 0..8),
        blocks in vec(block(), 0..4),
        rest in found(),
        turns in vec(0..3_usize, 0..40),
    ) {
        // Polls go on. Of two that claim one address, the next poll tells who is left when the other is blocked.
        let rest = vec![Input::Poll(PollResult { strangers: 1, ..rest }); MISSES_MAX as usize + 1];
        let sources = [topologies, polls, blocks];
        let orders = [
            sources.concat(),
            sources.iter().rev().flatten().cloned().collect(),
            interleave(&sources, &turns),
        ];
        let [forth, back, mixed] = orders.map(|order| roster_after(&[order, rest.clone()].concat()));
        prop_assert_eq!(&forth, &back);
        prop_assert_eq!(&forth, &mixed);
    }

    #[test]
    fn each_update_leads_from_the_last_list_to_the_next(inputs in vec(input(), 0..60)) {
        let mut listed: BTreeMap<GossipMemberId, RosterMember> = BTreeMap::new();
        let mut roster = roster();
        let mut outcomes = vec![roster.start()];
        let mut over = BTreeSet::new();
        for (second, input) in (0..).zip(&inputs) {
            outcomes.push(input.apply_to(&mut roster, second));
            if let Input::Block(id) = input {
                over.insert(id.clone());
            }
            let foreign_and_over = roster
                .members()
                .find(|member| member.runtime == PeerRuntime::Protoactor && over.contains(&member.id));
            prop_assert_eq!(foreign_and_over, None);
        }
        for update in outcomes.into_iter().filter_map(|outcome| outcome.update) {
            let RosterUpdate { members, joined, left, .. } = update;
            prop_assert!(!(joined.is_empty() && left.is_empty()), "an update without a change");
            for member in &left {
                let was_listed = listed.remove(&member.id);
                prop_assert_eq!(was_listed.as_ref(), Some(member));
            }
            for member in joined {
                prop_assert!(listed.get(&member.id) != Some(&member), "joined although it was there");
                listed.insert(member.id.clone(), member);
            }
            prop_assert_eq!(listed.values().cloned().collect::<Vec<_>>(), members.clone());
            prop_assert!(members.is_sorted_by(|a, b| a.id < b.id));
            prop_assert!(members.iter().any(|member| member.id.as_str() == "own#1"));
            let authorities: BTreeSet<_> = members.iter().map(|member| &member.authority).collect();
            prop_assert_eq!(authorities.len(), members.len(), "an address is listed once");
        }
        prop_assert_eq!(listed.values().collect::<Vec<_>>(), roster.members().collect::<Vec<_>>());
    }
}

#[derive(Clone, Debug)]
enum Input {
    Topology(TopologyUpdate),
    Poll(PollResult),
    Block(GossipMemberId),
    Alive(GossipMemberId),
}

impl Input {
    fn apply_to(&self, roster: &mut Roster, second: u64) -> RosterOutcome {
        let now = TimerInstant::ZERO + Duration::from_secs(second);
        match self {
            Self::Topology(update) => roster.handle_topology(update).expect("a sound topology"),
            Self::Poll(result) => roster.handle_poll(result.clone(), now),
            Self::Block(id) => roster.handle_blocked(id),
            Self::Alive(id) => {
                roster.handle_alive(id, now);
                RosterOutcome::default()
            }
        }
    }
}

fn roster_after(inputs: &[Input]) -> Vec<RosterMember> {
    let mut roster = roster();
    roster.start();
    for (second, input) in (0..).zip(inputs) {
        input.apply_to(&mut roster, second);
    }
    roster.members().cloned().collect()
}

/// Takes from the sources by turns, and in the end what is left. The order within a source stays.
fn interleave(sources: &[Vec<Input>; 3], turns: &[usize]) -> Vec<Input> {
    let mut waiting = sources.clone().map(|source| source.into_iter().peekable());
    let mut inputs: Vec<_> = turns.iter().filter_map(|source| waiting[*source].next()).collect();
    waiting.into_iter().for_each(|source| inputs.extend(source));
    inputs
}

fn roster() -> Roster {
    let config = RosterConfig { poll_misses_max: MISSES_MAX, ..RosterConfig::default() };
    Roster::member(member("own#1"), vec!["k".into()], config).expect("sound settings")
}

fn input() -> impl Strategy<Value = Input> {
    let alive = select(&FOREIGN[..]).prop_map(|(text, _)| Input::Alive(id(text)));
    prop_oneof![2 => topology(), 4 => poll(), 1 => block(), 2 => alive]
}

fn topology() -> impl Strategy<Value = Input> {
    // One life of each name at most.
    (subsequence(vec!["b", "c", "own"], 0..=3), 1..3_u64).prop_map(|(names, life)| {
        let life = |name: &str| if name == "own" { 1 } else { life };
        let members = names.into_iter().map(|name| member(&format!("{name}#{}", life(name)))).collect();
        Input::Topology(TopologyUpdate::new(vec![], vec![], vec![], members, vec![], TimerInstant::ZERO))
    })
}

fn poll() -> impl Strategy<Value = Input> {
    found().prop_map(Input::Poll)
}

fn found() -> impl Strategy<Value = PollResult> {
    let foreign = subsequence(FOREIGN.to_vec(), 0..=FOREIGN.len());
    let synod = subsequence(vec!["b#1", "b#2", "c#1"], 0..=3);
    (foreign, synod, 0..2_usize, any::<bool>()).prop_map(|(foreign, synod, strangers, is_missing)| {
        let foreign = foreign.into_iter().map(|(text, authority)| RosterMember {
            id: id(text),
            authority: authority.parse().expect("an authority"),
            kinds: vec![format!("kind of {text}")],
            runtime: PeerRuntime::Protoactor,
        });
        let synod = synod.into_iter().map(|text| RosterMember {
            id: id(text),
            authority: member(text).authority,
            kinds: vec![format!("kind of {text}")],
            runtime: PeerRuntime::Synod,
        });
        let members = foreign.chain(synod).collect();
        PollResult { members, strangers, missing: usize::from(is_missing) }
    })
}

fn block() -> impl Strategy<Value = Input> {
    select(&FOREIGN[..]).prop_map(|(text, _)| Input::Block(id(text)))
}

fn member(text: &str) -> Member {
    let id: MemberId = text.parse().expect("a member id");
    Member { authority: format!("{}:8401", id.node).parse().expect("an authority"), id }
}

fn id(text: &str) -> GossipMemberId {
    GossipMemberId::new(text).expect("an id")
}

const MISSES_MAX: u32 = 1;
/// Two lives at one address, one at the address of a synod member, one under a synod member's id, one at this node's
/// address, and one that is just another node.
const FOREIGN: [(&str, &str); 6] =
    [("x", "go:1"), ("y", "go:1"), ("z", "b:8401"), ("c#1", "go:2"), ("thief", "own:8401"), ("w", "go:3")];
