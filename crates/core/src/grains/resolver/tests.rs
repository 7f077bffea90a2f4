use alloc::vec;

use super::*;
use crate::id::AuthorityError;
use crate::membership::Refutation;

fn authority(text: &str) -> Authority {
    Authority::new(text).expect("an authority")
}

fn record(id: &str, at: &str, status: NodeStatus) -> NodeRecord {
    let member = id.parse().expect("a member id");
    NodeRecord { member, authority: authority(at), status, refutation: Refutation(0) }
}

fn listed(id: &str, at: &str, runtime: PeerRuntime) -> RosterMember {
    let id = GossipMemberId::new(id).expect("an id");
    RosterMember { id, authority: authority(at), kinds: vec!["Chat".into()], runtime }
}

/// A roster as it follows from the records: everyone who is active.
fn view(version: u64, records: &[NodeRecord], quarantine: &[QuarantineEntry]) -> ClusterView {
    let roster: Vec<_> = records
        .iter()
        .filter(|record| record.status.is_active())
        .map(|record| listed(&record.member.to_string(), record.authority.as_str(), PeerRuntime::Synod))
        .collect();
    ClusterView::new(ViewVersion(version), &roster, records, quarantine)
}

fn quarantined(at: &str, reason: QuarantineReason) -> QuarantineEntry {
    QuarantineEntry { authority: authority(at), reason, expires_at: None }
}

fn resolver(view: ClusterView) -> Resolver {
    let mut resolver = Resolver::new();
    resolver.handle_view(view).expect("a first view");
    resolver
}

fn resolve(resolver: &Resolver, pid: &str) -> ResolveResult {
    resolver.resolve(pid).expect("a PID")
}

#[test]
fn every_state_of_a_node_decides_whether_its_actors_can_be_reached() {
    let ready = |hint| Some(hint);
    let cases = [
        (NodeStatus::Joining, ready(None)),
        (NodeStatus::Up, ready(None)),
        (NodeStatus::Suspect, ready(Some(RouteHint::Suspect))),
        (NodeStatus::Leaving, ready(Some(RouteHint::Leaving))),
        (NodeStatus::Dead, None),
        (NodeStatus::Removed, None),
    ];
    for (status, expected) in cases {
        let resolver = resolver(view(7, &[record("a#1", "h:1", status)], &[]));
        let member = GossipMemberId::new("a#1").expect("an id");
        let version = ViewVersion(7);
        let expected = match expected {
            Some(hint) => {
                let pid = "h:1/Chat/7".parse().expect("a PID");
                ResolveResult::Ready { pid, member, hint, version }
            }
            None => {
                let node = Some((member, status));
                ResolveResult::Unreachable { authority: authority("h:1"), node, version }
            }
        };
        assert_eq!(resolve(&resolver, "h:1/Chat/7"), expected, "{status}");
    }
}

#[test]
fn nothing_new_is_placed_on_a_node_that_leaves() {
    let grain = ClusterIdentity::new("Chat", "7").expect("a name");
    let mut resolver = resolver(view(1, &[record("a#1", "h:1", NodeStatus::Up)], &[]));
    assert_eq!(resolver.locate(&grain, PlacementHash::Synod).map(|host| host.id.as_str()), Some("a#1"));

    // The record is ahead of the roster: it leaves, and is still listed.
    let roster = [listed("a#1", "h:1", PeerRuntime::Synod)];
    let leaving = [record("a#1", "h:1", NodeStatus::Leaving)];
    resolver.handle_view(ClusterView::new(ViewVersion(2), &roster, &leaving, &[])).expect("a newer view");
    assert_eq!(resolver.locate(&grain, PlacementHash::Synod), None);
    assert!(matches!(resolve(&resolver, "h:1/old"), ResolveResult::Ready { .. }), "what lives there answers");
}

#[test]
fn nobody_is_reached_at_an_unknown_address_or_without_a_view() {
    let unknown = |version| ResolveResult::Unreachable {
        authority: authority("h:9"),
        node: None,
        version: ViewVersion(version),
    };
    assert_eq!(resolve(&Resolver::new(), "h:9/x"), unknown(0));
    let resolver = resolver(view(3, &[record("a#1", "h:1", NodeStatus::Up)], &[]));
    assert_eq!(resolve(&resolver, "h:9/x"), unknown(3));
}

#[test]
fn quarantine_comes_before_everything_but_the_format() {
    let reason = || QuarantineReason::Requested("maintenance".into());
    let up = [record("a#1", "h:1", NodeStatus::Up)];
    let resolver = resolver(view(1, &up, &[quarantined("h:1", reason()), quarantined("h:2", reason())]));
    for at in ["h:1", "h:2"] {
        let expected = ResolveResult::Quarantine {
            authority: authority(at),
            reason: "requested: maintenance".into(),
            version: ViewVersion(1),
        };
        assert_eq!(resolve(&resolver, &[at, "/x"].concat()), expected);
    }
    assert_eq!(resolver.resolve("h:70000/x"), Err(PidError::Authority(AuthorityError::InvalidPort)));
    assert_eq!(resolver.view().hosts(), [], "nothing is placed on a member that is kept out");
}

#[test]
fn a_quarantine_that_follows_a_death_spares_the_next_life_and_strangers() {
    let dead = quarantined("h:1", QuarantineReason::Dead("a#1".parse().expect("an id")));
    // The dead life is kept out, the next one at the address is not.
    let same = resolver(view(1, &[record("a#1", "h:1", NodeStatus::Dead)], core::slice::from_ref(&dead)));
    assert!(matches!(resolve(&same, "h:1/x"), ResolveResult::Quarantine { .. }));
    let next = resolver(view(1, &[record("a#2", "h:1", NodeStatus::Up)], core::slice::from_ref(&dead)));
    assert!(matches!(resolve(&next, "h:1/x"), ResolveResult::Ready { .. }));
    // So is a Go node that took over the address, although the record of the dead one is still there.
    let roster = [listed("k3jh", "h:1", PeerRuntime::Protoactor)];
    let records = [record("a#1", "h:1", NodeStatus::Dead)];
    let foreign = resolver(ClusterView::new(ViewVersion(1), &roster, &records, &[dead]));
    let ResolveResult::Ready { member, hint: None, .. } = resolve(&foreign, "h:1/x") else {
        panic!("the Go node is there");
    };
    assert_eq!(member.as_str(), "k3jh");
}

#[test]
fn only_the_newest_view_counts() {
    let mut resolver = resolver(view(1, &[record("a#1", "h:1", NodeStatus::Up)], &[]));
    assert!(matches!(resolve(&resolver, "h:1/x"), ResolveResult::Ready { version: ViewVersion(1), .. }));
    resolver.handle_view(view(3, &[record("a#1", "h:1", NodeStatus::Removed)], &[])).expect("a newer view");

    // A view that was overtaken, and one that comes twice, change nothing.
    for late in [2, 3] {
        let stale = resolver.handle_view(view(late, &[record("a#1", "h:1", NodeStatus::Up)], &[]));
        assert_eq!(stale, Err(StaleView { offered: ViewVersion(late), current: ViewVersion(3) }));
    }
    assert!(matches!(
        resolve(&resolver, "h:1/x"),
        ResolveResult::Unreachable { version: ViewVersion(3), .. }
    ));
}
