use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use core::time::Duration;

use super::*;

#[test]
fn this_node_is_always_on_its_roster_and_a_client_never() {
    let mut roster = roster();
    let update = roster.start().update.expect("the first roster");
    assert_eq!(ids(&update.members), ["own#1"]);
    assert_eq!((update.joined.clone(), update.left), (update.members, vec![]));
    assert_eq!(update.joined[0].kinds, ["echo", "topic"], "in order, and each once");
    // A topology without it, as the first ones are, takes nothing away, and tells nothing new.
    assert_eq!(roster.handle_topology(&topology(&[])), Ok(RosterOutcome::default()));

    let mut client = Roster::client(RosterConfig::default()).expect("sound settings");
    assert_eq!(client.start(), RosterOutcome::default());
    let update = client.handle_topology(&topology(&["own#1"])).expect("a sound topology").update;
    assert_eq!(update.map(|update| update.joined.len()), Some(1), "to a client every member is another");
}

#[test]
fn members_of_both_runtimes_are_one_list_with_the_hash_of_protoactor_go() {
    let mut roster = roster();
    roster.start();
    roster.handle_topology(&topology(&["own#1", "zoe#2"])).expect("a sound topology");
    let update = roster.handle_poll(answers(&[go("memberId-0", "go0:1")]), at(0)).update.expect("a change");
    assert_eq!(ids(&update.members), ["memberId-0", "own#1", "zoe#2"]);
    assert_eq!(update.hash, murmur3_64(b"memberId-0own#1zoe#2"));
    assert_eq!(ids(&update.joined), ["memberId-0"]);
    let runtimes: Vec<_> = update.members.iter().map(|member| member.runtime).collect();
    assert_eq!(runtimes, [PeerRuntime::Protoactor, PeerRuntime::Synod, PeerRuntime::Synod]);
    // The same again is no news.
    assert_eq!(roster.handle_poll(answers(&[go("memberId-0", "go0:1")]), at(1)), RosterOutcome::default());
}

#[test]
fn a_foreign_member_may_miss_as_many_polls_as_configured_and_goes_with_the_next() {
    let mut roster = roster();
    roster.handle_poll(answers(&[go("g", "go:1")]), at(0));
    for _ in 0..2 {
        for _ in 0..3 {
            assert_eq!(roster.handle_poll(one_other(), at(1)).update, None);
        }
        // An answer in between makes up for all of them.
        assert_eq!(roster.handle_poll(answers(&[go("g", "go:1")]), at(2)).update, None);
    }
    for _ in 0..3 {
        assert_eq!(roster.handle_poll(one_other(), at(3)).update, None);
    }
    let update = roster.handle_poll(one_other(), at(4)).update.expect("a change");
    assert_eq!((ids(&update.left), ids(&update.members)), (vec!["g"], vec!["own#1"]));
    // Polls alone end no life: it may have been the network.
    let update = roster.handle_poll(answers(&[go("g", "go:1")]), at(5)).update.expect("a change");
    assert_eq!(ids(&update.joined), ["g"]);
}

#[test]
fn a_missed_poll_does_not_count_while_the_member_gossips() {
    let mut roster = roster();
    roster.handle_poll(answers(&[go("g", "go:1")]), at(0));
    for second in 0..20 {
        roster.handle_alive(&id("g"), at(second));
        assert_eq!(roster.handle_poll(one_other(), at(second + 5)).update, None);
    }
    // Its last heartbeat was at 19 s. Beyond 24 s the misses count, from zero.
    for second in 25..28 {
        assert_eq!(roster.handle_poll(one_other(), at(second)).update, None);
    }
    assert!(roster.handle_poll(one_other(), at(28)).update.is_some());
}

#[test]
fn when_nobody_answers_the_roster_stands() {
    let mut roster = roster();
    roster.handle_poll(answers(&[go("g", "go:1")]), at(0));
    let nobody = PollResult { members: vec![], strangers: 0, missing: 3 };
    for second in 1..50 {
        assert_eq!(roster.handle_poll(nobody.clone(), at(second)), RosterOutcome::default());
    }
    assert_eq!(roster.members().count(), 2);
}

#[test]
fn a_restarted_member_takes_the_place_of_its_last_life_at_once() {
    let mut roster = roster();
    roster.handle_poll(answers(&[go("old", "go:1")]), at(0));
    roster.handle_alive(&id("old"), at(0));
    let update = roster.handle_poll(answers(&[go("new", "go:1")]), at(1)).update.expect("a change");
    assert_eq!((ids(&update.joined), ids(&update.left)), (vec!["new"], vec!["old"]));

    // Two that claim one address in the same round: whoever has it keeps it.
    let both = answers(&[go("intruder", "go:1"), go("new", "go:1")]);
    let out = roster.handle_poll(both, at(2));
    let (authority, holder) = (address("go:1"), id("new"));
    let refusal = RosterRefusal::AddressTaken { id: id("intruder"), authority, holder };
    assert_eq!((out.refusals, out.update), (vec![refusal], None));

    // One life that claims two addresses has the one that it had.
    let out = roster.handle_poll(answers(&[go("new", "elsewhere:1"), go("new", "go:1")]), at(3));
    let (authority, known) = (address("elsewhere:1"), address("go:1"));
    assert_eq!(out.refusals, [RosterRefusal::Moved { id: id("new"), authority, known }]);
    assert_eq!(out.update, None);
}

#[test]
fn whoever_gossip_says_is_over_goes_at_once_and_comes_back_under_a_new_id_only() {
    let mut roster = roster();
    roster.handle_poll(answers(&[go("g", "go:1")]), at(0));
    roster.handle_alive(&id("g"), at(0));
    let update = roster.handle_blocked(&id("g")).update.expect("a change");
    assert_eq!(ids(&update.left), ["g"]);
    assert_eq!(roster.handle_blocked(&id("g")), RosterOutcome::default());

    let out = roster.handle_poll(answers(&[go("g", "go:1")]), at(1));
    let refusal = RosterRefusal::Gone { id: id("g"), authority: address("go:1") };
    assert_eq!((out.refusals, out.update), (vec![refusal], None));
    let update = roster.handle_poll(answers(&[go("g2", "go:1")]), at(2)).update.expect("a change");
    assert_eq!(ids(&update.joined), ["g2"]);

    // A node that begins a new life was told nothing yet.
    roster.handle_blocked(&id("g2"));
    roster.handle_rejoin(&member("own#2").id);
    let update = roster.handle_poll(answers(&[go("g2", "go:1")]), at(3)).update.expect("a change");
    assert_eq!(ids(&update.members), ["g2", "own#2"]);
}

#[test]
fn the_memory_of_lives_that_are_over_is_bounded() {
    let mut roster = roster();
    for number in 0..=GONE_MAX {
        roster.handle_blocked(&id(&format!("g{number}")));
    }
    assert_eq!((roster.gone.len(), roster.gone_order.len()), (GONE_MAX, GONE_MAX));
    let out = roster.handle_poll(answers(&[go("g0", "go0:1"), go("g1", "go1:1")]), at(0));
    assert_eq!(out.refusals, [RosterRefusal::Gone { id: id("g1"), authority: address("go1:1") }]);
}

#[test]
fn about_synod_members_membership_decides() {
    let mut roster = roster();
    roster.start();
    let out = roster.handle_poll(answers(&[synod("b#1")]), at(0));
    assert_eq!(out.update, None, "an answer makes nobody a member");
    assert_eq!(out.join_hints, [member("b#1")]);

    let update =
        roster.handle_topology(&topology(&["b#1", "own#1"])).expect("sound").update.expect("a change");
    assert_eq!(update.joined[0].kinds, ["b-kind"], "its kinds are known from the poll");
    assert_eq!(roster.handle_poll(answers(&[synod("b#1")]), at(1)), RosterOutcome::default());
    // Neither silence nor gossip takes it away.
    for second in 0..20 {
        assert_eq!(roster.handle_poll(one_other(), at(second)), RosterOutcome::default());
    }
    assert_eq!(roster.handle_blocked(&id("b#1")), RosterOutcome::default());

    // An echo of an earlier life is no reason to join; a later life is.
    roster.handle_topology(&topology(&["b#3", "own#1"])).expect("sound");
    assert_eq!(roster.handle_poll(answers(&[synod("b#2")]), at(30)).join_hints, []);
    assert_eq!(roster.handle_poll(answers(&[synod("b#4")]), at(31)).join_hints, [member("b#4")]);
    // Nor is this node itself, which answers like everyone.
    assert_eq!(roster.handle_poll(answers(&[synod("own#1")]), at(32)).join_hints, []);

    let stranger = RosterMember { runtime: PeerRuntime::Synod, ..go("no-life", "x:1") };
    let out = roster.handle_poll(answers(&[stranger]), at(33));
    assert!(matches!(&out.refusals[..], [RosterRefusal::NotASynodId { .. }]), "{out:?}");
}

#[test]
fn kinds_learned_after_a_join_are_told_without_a_departure() {
    let mut roster = roster();
    roster.start();
    let update = roster.handle_topology(&topology(&["b#1"])).expect("sound").update.expect("a change");
    assert_eq!(update.joined[0].kinds, [""; 0]);
    let hash = update.hash;
    let update = roster.handle_poll(answers(&[synod("b#1")]), at(0)).update.expect("a change");
    assert_eq!((ids(&update.joined), update.left.len()), (vec!["b#1"], 0));
    assert_eq!((update.joined[0].kinds.clone(), update.hash), (vec!["b-kind".to_string()], hash));
}

#[test]
fn a_foreign_member_waits_while_membership_has_its_address() {
    let mut roster = roster();
    roster.start();
    roster.handle_topology(&topology(&["b#1"])).expect("sound");
    assert_eq!(roster.handle_poll(answers(&[go("g", "b:8401")]), at(0)).update, None);
    let update = roster.handle_topology(&topology(&[])).expect("sound").update.expect("a change");
    assert_eq!((ids(&update.joined), ids(&update.left)), (vec!["g"], vec!["b#1"]));
    // This node's own address is nobody else's, ever.
    let out = roster.handle_poll(answers(&[go("thief", "own:8401")]), at(1));
    assert!(matches!(&out.refusals[..], [RosterRefusal::AddressTaken { .. }]), "{out:?}");
}

#[test]
fn a_new_life_of_this_node_is_learned_from_whoever_tells_first() {
    let mut told = roster();
    told.start();
    let update = told.handle_rejoin(&member("own#4").id).update.expect("a change");
    assert_eq!((ids(&update.joined), ids(&update.left)), (vec!["own#4"], vec!["own#1"]));
    assert_eq!(update.joined[0].kinds, ["echo", "topic"]);
    // A topology that was on its way does not bring the old life back.
    assert_eq!(told.handle_topology(&topology(&["own#1"])), Ok(RosterOutcome::default()));
    assert_eq!(told.handle_rejoin(&member("other#9").id), RosterOutcome::default());

    let mut read = roster();
    read.start();
    let update = read.handle_topology(&topology(&["own#4"])).expect("sound").update.expect("a change");
    assert_eq!(ids(&update.members), ["own#4"]);
}

#[test]
fn the_roster_is_bounded_and_says_whom_it_refused() {
    let config = RosterConfig { members_max: 3, ..RosterConfig::default() };
    let mut roster = Roster::member(member("own#1"), vec![], config).expect("sound settings");
    let out = roster.handle_poll(answers(&[go("a", "a:1"), go("b", "b:1"), go("c", "c:1")]), at(0));
    assert_eq!(out.update.map(|update| update.members.len()), Some(3));
    assert_eq!(out.refusals, [RosterRefusal::TooMany { id: id("c"), authority: address("c:1"), max: 3 }]);
    // A restart takes the place of the last life, also when the roster is full.
    let out = roster.handle_poll(answers(&[go("a2", "a:1"), go("b", "b:1")]), at(1));
    assert_eq!((out.refusals, out.update.is_some()), (vec![], true));

    let before: Vec<_> = roster.members().cloned().collect();
    let refused = roster.handle_topology(&topology(&["d#1"]));
    assert_eq!(refused, Err(RosterError::TooManyMembers { members: 4, max: 3 }));
    let twice =
        TopologyUpdate::new(vec![], vec![], vec![], vec![member("d#1"), member("d#2")], vec![], at(0));
    assert!(matches!(roster.handle_topology(&twice), Err(RosterError::InvalidTopology(_))));
    assert_eq!(roster.members().cloned().collect::<Vec<_>>(), before, "a refusal changes nothing");

    // Signs of life and kinds of strangers are bounded like the roster.
    for number in 0..10 {
        roster.handle_alive(&id(&format!("s{number}")), at(2));
        roster.handle_poll(answers(&[synod(&format!("s{number}#1"))]), at(2));
    }
    assert!(roster.alive_at.len() <= 3 && roster.kinds.len() <= 4, "{roster:?}");
}

fn roster() -> Roster {
    let kinds = ["topic", "echo", "topic"].map(Into::into).to_vec();
    Roster::member(member("own#1"), kinds, RosterConfig::default()).expect("sound settings")
}

fn topology(members: &[&str]) -> TopologyUpdate {
    let members = members.iter().map(|text| member(text)).collect();
    TopologyUpdate::new(vec![], vec![], vec![], members, vec![], TimerInstant::ZERO)
}

fn member(text: &str) -> Member {
    let id: MemberId = text.parse().expect("a member id");
    Member { authority: address(&format!("{}:8401", id.node)), id }
}

fn go(text: &str, authority: &str) -> RosterMember {
    let kinds = vec!["prototopic".into()];
    RosterMember { id: id(text), authority: address(authority), kinds, runtime: PeerRuntime::Protoactor }
}

fn synod(text: &str) -> RosterMember {
    let Member { id: member, authority } = member(text);
    let kinds = vec![format!("{}-kind", member.node)];
    RosterMember { id: id(text), authority, kinds, runtime: PeerRuntime::Synod }
}

fn answers(members: &[RosterMember]) -> PollResult {
    PollResult { members: members.to_vec(), strangers: 0, missing: 0 }
}

/// A round in which only a node of another cluster answered.
fn one_other() -> PollResult {
    PollResult { members: vec![], strangers: 1, missing: 2 }
}

fn ids(members: &[RosterMember]) -> Vec<&str> {
    members.iter().map(|member| member.id.as_str()).collect()
}

fn id(text: &str) -> GossipMemberId {
    GossipMemberId::new(text).expect("an id")
}

fn address(text: &str) -> Authority {
    Authority::new(text).expect("an authority")
}

fn at(seconds: u64) -> TimerInstant {
    TimerInstant::ZERO + Duration::from_secs(seconds)
}
