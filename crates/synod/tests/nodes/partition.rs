//! Nodes on machines of their own, as far as the network can tell, and a network that breaks. Without root the tests say
//! so and end.

use std::time::{Duration, Instant};

use crate::cluster::{Layout, TestCluster, eventually, is_long_run};
use crate::network::Network;

const ALL: &[usize] = &[0, 1, 2];
const SLOTS: u16 = 30;

/// Acceptance 3: the majority goes on, the minority does nothing, and afterwards there is one map.
#[test]
fn a_node_that_is_cut_off_commits_nothing_and_agrees_when_it_is_back() {
    let Some((cluster, network)) = start() else { return };
    cluster.write_all(ALL, "before ");
    let lost = cluster.busiest();
    let others = [(lost + 1) % 3, (lost + 2) % 3];
    let before = cluster.slots(0).expect("slots");
    let first = |is_own: bool| {
        let mut slots = before.iter().filter(|slot| cluster.is_served_by(slot, lost) == is_own);
        slots.next().map(|slot| slot.slot)
    };
    let (own, foreign) = (first(true).expect("a slot of the busiest"), first(false));

    network.cut(lost);
    // Asked at once, while it still believes in its slots, and for as long as it takes to answer.
    std::thread::scope(|scope| {
        let asked = [("PUT", Some(own)), ("PUT", foreign), ("GET", Some(own))];
        let asked = asked.into_iter().filter_map(|(method, slot)| Some((method, slot?)));
        let minority: Vec<_> = asked
            .map(|(method, slot)| {
                let cluster = &cluster;
                let path = format!("/v1/slots/{slot}/register");
                scope.spawn(move || (method, slot, cluster.ask(lost, method, &path, "of the minority")))
            })
            .collect();
        for index in others {
            cluster.until_fenced(index, lost, &before);
        }
        for old in before.iter().filter(|old| old.slot != own) {
            let slot = old.slot;
            let tag = cluster.write(others[usize::from(slot) % 2], slot, &format!("after {slot}"));
            let tag = tag.expect("a write");
            assert!(!cluster.is_served_by(old, lost) || tag.0 > old.epoch, "{tag:?} after {old:?}");
        }
        for asked in minority {
            let (method, slot, reply) = asked.join().expect("a client");
            let reply = reply.expect("the minority answers");
            assert!([503, 504].contains(&reply.status), "{method} of slot {slot} by the minority: {reply:?}");
        }
    });
    eventually("it knows that it is not ready", || match cluster.get(lost, "/readyz")?.status {
        503 => Ok(()),
        status => Err(format!("status {status}")),
    });
    cluster.write(others[0], own, &format!("after {own}")).expect("a write");

    network.mend(lost);
    let mended = Instant::now();
    eventually("one map", || {
        let digests = ALL.iter().map(|index| Ok(cluster.status(*index)?.slot_map_digest));
        let digests = digests.collect::<Result<Vec<_>, String>>()?;
        if digests.iter().all(|digest| *digest == digests[0]) { Ok(()) } else { Err(format!("{digests:?}")) }
    });
    eprintln!("one map {:?} after the network was mended", mended.elapsed());
    cluster.until_agreed(ALL);
    eprintln!("all ready {:?} after the network was mended", mended.elapsed());
    // What the minority passed on to another primary was not confirmed. It may still have been on the wire, so it may have
    // taken effect since.
    cluster.read_all_but(&foreign.into_iter().collect::<Vec<_>>(), lost, "after ");
}

/// Acceptance 4, the hard way: a primary is cut off in the middle of its writes, and when its orders arrive at last, others
/// have been promised a later epoch.
#[test]
fn a_write_that_was_under_way_in_an_old_epoch_is_never_confirmed() {
    let Some((cluster, network)) = start() else { return };
    let lost = cluster.busiest();
    let before = cluster.slots(0).expect("slots");
    let served: Vec<_> = before.iter().filter(|slot| cluster.is_served_by(slot, lost)).take(8).collect();
    network.cut(lost);
    std::thread::scope(|scope| {
        let cluster = &cluster;
        let late: Vec<_> = served
            .iter()
            .map(|old| scope.spawn(move || (*old, cluster.write(lost, old.slot, "of the old epoch"))))
            .collect();
        let other = (lost + 1) % 3;
        cluster.until_fenced(other, lost, &before);
        for old in &served {
            let tag = cluster.write(other, old.slot, &format!("after {}", old.slot)).expect("a write");
            assert!(tag.0 > old.epoch, "{tag:?} after {old:?}");
        }
        network.mend(lost);
        for late in late {
            let (old, written) = late.join().expect("a client");
            // Not confirmed, or passed on to the new primary.
            assert!(written.as_ref().map_or(true, |tag| tag.0 > old.epoch), "{written:?} after {old:?}");
            if written.is_err() {
                let reply = cluster.get(other, &format!("/v1/slots/{}/register", old.slot));
                assert_eq!(reply.expect("an answer").body, format!("after {}", old.slot));
            }
        }
    });
    cluster.until_agreed(ALL);
}

/// Packets vanish without a word for so long that every connection is a ghost. Nobody has to be restarted.
#[test]
fn a_black_hole_is_survived_without_a_restart() {
    let Some((cluster, network)) = start() else { return };
    cluster.write_all(ALL, "before ");
    let before = cluster.slots(0).expect("slots");
    network.swallow(2);
    for index in [0, 1] {
        cluster.until_fenced(index, 2, &before);
        cluster.until_opinion(index, 2, &["failed"]);
    }
    cluster.write_all(&[0, 1], "meanwhile ");
    // Nothing is awaited here: that it lasts is the point.
    std::thread::sleep(Duration::from_secs(if is_long_run() { 60 } else { 7 }));
    network.mend(2);
    let mended = Instant::now();
    cluster.until_agreed(ALL);
    eprintln!("all ready {:?} after the black hole", mended.elapsed());
    cluster.read_all(2, "meanwhile ");
    cluster.write_all(&[2], "by the one that was gone ");
    cluster.read_all(0, "by the one that was gone ");
}

/// A node that hears everything and is heard by nobody.
#[test]
fn a_node_that_nobody_hears_loses_its_slots_until_it_is_heard() {
    let Some((cluster, network)) = start() else { return };
    cluster.write_all(ALL, "before ");
    let before = cluster.slots(0).expect("slots");
    network.silence(1, true);
    for index in [0, 2] {
        cluster.until_fenced(index, 1, &before);
    }
    cluster.write_all(&[0, 2], "after ");
    network.silence(1, false);
    cluster.until_agreed(ALL);
    cluster.read_all(1, "after ");
}

/// Whoever can reach a node could speak to it, so it does not start without a secret.
#[test]
fn a_node_that_others_can_reach_needs_the_secret_of_the_cluster() {
    let Some(network) = Network::new(3) else { return };
    let layout = Layout { slots: SLOTS, ..Layout::default() };
    let mut cluster = TestCluster::at(&layout, network.places(), "");
    cluster.start(0);
    let ended = cluster.until_ended(0);
    assert_eq!(ended.code(), Some(1));
    assert!(cluster.log(0).contains("without a secret"), "{}", cluster.log(0));
    assert!(cluster.log(0).contains("synod secret new"), "{}", cluster.log(0));
    assert!(!cluster.disk(0).exists(), "nothing was written by a node that may not start");
}

fn start() -> Option<(TestCluster, Network)> {
    let network = Network::new(3)?;
    let cluster = network.start_cluster(&Layout { slots: SLOTS, ..Layout::default() });
    Some((cluster, network))
}
