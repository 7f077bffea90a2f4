//! A registry of slots that the nodes keep among themselves: it forms, survives deaths, freezes and lost disks, and never
//! lets two primaries write.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Instant;

use synod_store::api::SlotJson;

use crate::cluster::{Layout, TestCluster, eventually, is_long_run};
use crate::history::{Clients, History};
use crate::http;

const ALL: &[usize] = &[0, 1, 2];

/// Acceptance 1: initialised, routed, written and read back, with nothing but these three processes.
#[test]
fn three_nodes_form_a_cluster_and_each_of_them_serves_every_slot() {
    let mut cluster = TestCluster::new(&Layout { slots: 2048, ..Layout::default() });
    cluster.start_all();
    cluster.until_agreed(ALL);

    let slots = cluster.slots(0).expect("slots");
    assert_eq!(slots.len(), 2048);
    for (slot, at) in slots.iter().zip(0..) {
        assert_eq!((slot.slot, slot.replicas.len(), slot.state.as_str()), (at, 3, "stable"));
        assert!(slot.epoch > 0 && slot.primary.is_some(), "{slot:?}");
    }
    let mut shares: BTreeMap<_, usize> = BTreeMap::new();
    for slot in &slots {
        *shares.entry(slot.primary.as_deref()).or_default() += 1;
    }
    assert_eq!(shares.len(), 3, "{shares:?}");
    assert!(shares.values().all(|share| *share > 2048 / 6), "primaries are spread: {shares:?}");

    // Slots of all three primaries, written through each node in turn and read through all of them.
    for slot in (0..2048).step_by(97) {
        let value = format!("of slot {slot}");
        let tag = cluster.write(usize::from(slot) % 3, slot, &value).expect("a write");
        for index in ALL {
            let reply = cluster.get(*index, &format!("/v1/slots/{slot}/register")).expect("an answer");
            assert_eq!((reply.status, &reply.body, reply.tag()), (200, &value, Some(tag)), "by {index}");
        }
    }
    assert_eq!(cluster.get(0, "/v1/slots/1/register").expect("an answer").status, 404, "nothing there");
    assert_eq!(cluster.get(1, "/v1/slots/2048/register").expect("an answer").status, 404, "no such slot");
    let digests: BTreeSet<_> = ALL.iter().map(|index| cluster.status(*index).expect("status").slot_map_digest).collect();
    assert_eq!(digests.len(), 1, "writes change no map");
}

/// Acceptance 2: after `kill -9` every slot has a primary again, and all that was acknowledged is there.
#[test]
fn a_killed_node_costs_nothing_that_was_acknowledged_and_comes_back_at_once() {
    let mut cluster = TestCluster::started();
    cluster.write_all(ALL, "before ");
    let before = cluster.slots(0).expect("slots");
    let life = cluster.status(1).expect("status").incarnation;

    let clients = Clients::start(&[cluster.api(0), cluster.api(2)], &[0, 1, 2, 40]);
    clients.until_more(20);
    let killed = Instant::now();
    cluster.kill(1);
    for index in [0, 2] {
        until_fenced(&cluster, index, "node2", &before);
    }
    eprintln!("every slot of the killed node was fenced after {:?}", killed.elapsed());
    clients.until_more(40);
    cluster.until_opinion(0, 1, &["failed"]);
    // Slots that no client writes to: they have what was acknowledged before the death.
    for slot in 3..40 {
        let reply = cluster.get(2, &format!("/v1/slots/{slot}/register")).expect("an answer");
        assert_eq!(reply.body, format!("before {slot}"));
    }
    // The slots of the dead node can be written to.
    let orphans = before.iter().filter(|slot| slot.primary.as_deref() == Some("node2") && slot.slot > 40);
    for SlotJson { slot, epoch, .. } in orphans {
        let tag = cluster.write(0, *slot, "after").expect("a write");
        assert!(tag.0 > *epoch, "{tag:?} of slot {slot}, which was in epoch {epoch}");
    }

    // The same name with the same disk is the same node, in a later life.
    cluster.start(1);
    cluster.until_agreed(ALL);
    assert!(cluster.status(1).expect("status").incarnation > life);
    clients.until_more(20);
    clients.stop().check();
    if is_long_run() {
        eventually("the node is given its slots back", || {
            let served = cluster.status(1)?.slots_served_here;
            if served == 20 { Ok(()) } else { Err(format!("{served} slots")) }
        });
    }
}

/// Acceptance 4: whoever was the primary and does not know yet that it is no more, writes nothing and reads nothing old.
#[test]
fn a_primary_that_was_frozen_cannot_write_in_its_old_epoch() {
    let cluster = TestCluster::started();
    let history = History::default();
    let before = cluster.slots(0).expect("slots");
    let served: Vec<_> = before.iter().filter(|slot| slot.primary.as_deref() == Some("node1")).collect();
    assert!(served.len() > 6, "{before:?}");
    for slot in &served {
        history.write(cluster.api(0), slot.slot).expect("a write");
    }

    cluster.signal(0, "STOP");
    until_fenced(&cluster, 1, "node1", &before);
    until_fenced(&cluster, 2, "node1", &before);
    for slot in &served {
        let tag = history.write(cluster.api(1), slot.slot).expect("a write in the new epoch");
        assert!(tag.0 > slot.epoch);
    }
    // These requests are in the hands of the old primary before it runs again, and it still believes in its epochs.
    let mut sent = Vec::new();
    for (slot, is_write) in served.iter().zip([true, false].into_iter().cycle()) {
        let path = format!("/v1/slots/{}/register", slot.slot);
        let (method, value) =
            if is_write { ("PUT", format!("late {}", slot.slot)) } else { ("GET", String::new()) };
        let request = http::send(cluster.api(0), method, &path, &value).expect("a listener");
        sent.push((slot, is_write, value, Instant::now(), request));
    }
    cluster.signal(0, "CONT");
    let clients = Clients::start(&[cluster.api(0), cluster.api(2)], &[served[0].slot, served[1].slot]);
    let mut answers = 0;
    for (slot, is_write, value, began, request) in sent {
        let reply = request.reply().map(|reply| match is_write {
            true => http::Reply { body: value, ..reply },
            false => reply,
        });
        // To be refused is right as well.
        if let Ok(tag) = history.note(slot.slot, is_write, began, reply) {
            assert!(tag.0 > slot.epoch, "{tag:?} of slot {}, whose epoch {} is over", slot.slot, slot.epoch);
            answers += 1;
        }
    }
    eprintln!("{answers} of {} late requests were carried out, in later epochs", served.len());
    clients.until_more(100);
    clients.stop().check();
    history.check();
    cluster.until_agreed(ALL);
}

/// A node that is told to stop hands its slots over first, and clients of the others notice nothing.
#[test]
fn a_node_that_leaves_hands_its_slots_over_and_no_write_fails() {
    let mut cluster = TestCluster::started();
    let before = cluster.slots(0).expect("slots");
    let slots: Vec<u16> = (0..30).collect();
    let clients = Clients::start(&[cluster.api(0), cluster.api(2), cluster.api(0)], &slots);
    clients.until_more(60);

    cluster.signal(1, "TERM");
    let ended = cluster.until_ended(1);
    assert!(ended.success(), "{ended}");
    for index in [0, 2] {
        let status = cluster.opinion(index, 1).expect("a member").status;
        assert!(["leaving", "failed"].contains(&status.as_str()), "{index} holds it for {status}");
        let left: Vec<_> = cluster.slots(index).expect("slots").into_iter().filter(is_of("node2")).collect();
        assert!(left.is_empty(), "{index} sees slots of the one that left: {left:?}");
    }
    assert!(cluster.log(1).ends_with("left\n"), "{}", cluster.log(1));
    clients.until_more(60);
    let history = clients.stop();
    assert_eq!(history.failures(), Vec::<String>::new());
    history.check();
    until_fenced(&cluster, 0, "node2", &before);

    cluster.start(1);
    cluster.until_agreed(ALL);
}

/// All of it ends at once, and nothing is forgotten.
#[test]
fn a_cluster_that_was_killed_whole_remembers_everything() {
    let mut cluster = TestCluster::started();
    cluster.write_all(ALL, "kept ");
    let (before, digest) = (cluster.slots(0).expect("slots"), cluster.status(0).expect("status"));
    let lives: Vec<_> = ALL.iter().map(|index| cluster.status(*index).expect("status").incarnation).collect();

    for index in ALL {
        cluster.kill(*index);
    }
    cluster.start_all();
    cluster.until_agreed(ALL);
    for (index, life) in ALL.iter().zip(lives) {
        let status = cluster.status(*index).expect("status");
        assert!(status.incarnation > life, "a later life of {index}");
        assert_eq!(status.cluster_id, digest.cluster_id);
        cluster.read_all(*index, "kept ");
    }
    for (old, new) in before.iter().zip(cluster.slots(0).expect("slots")) {
        assert!(new.epoch > old.epoch, "a primary that forgot its reign needs a new epoch: {old:?} {new:?}");
    }
}

/// A node with an empty disk may have promised anything, so it says nothing before it has heard all others.
#[test]
fn a_node_with_a_new_disk_does_not_vote_before_it_has_heard_everyone() {
    let mut cluster = TestCluster::started();
    cluster.write_all(ALL, "kept ");
    cluster.kill(1);
    cluster.kill(2);
    cluster.until_opinion(0, 1, &["failed"]);
    fs::remove_dir_all(cluster.disk(1)).expect("a disk to replace");

    cluster.start(1);
    let reason = eventually("it says what it waits for", || {
        let status = cluster.status(1)?;
        if status.slots_learning > 0 && status.nodes_alive == 2 {
            status.reason.ok_or_else(|| "it is ready".to_owned())
        } else {
            Err(format!("{status:?}"))
        }
    });
    assert!(reason.contains("no memory") && reason.contains("hear node3"), "{reason}");
    eventually("whoever asks whether it is ready hears the same", || {
        let ready = cluster.get(1, "/readyz")?;
        assert_eq!(ready.status, 503);
        if ready.body.contains("hear node3") { Ok(()) } else { Err(ready.body) }
    });
    // Two nodes are there, and only one of them may vote: nothing is written.
    let refused = cluster.write(0, 7, "too early").expect_err("there is no majority");
    assert!(refused.contains("503") || refused.contains("504"), "{refused}");

    cluster.start(2);
    cluster.until_agreed(ALL);
    for slot in (0..60).filter(|slot| *slot != 7) {
        let reply = cluster.get(1, &format!("/v1/slots/{slot}/register")).expect("an answer");
        assert_eq!((reply.status, reply.body), (200, format!("kept {slot}")));
    }
}

/// A node that stood still for so long that it was given up finds back by itself.
#[test]
fn a_node_that_was_frozen_for_longer_than_fail_timeout_comes_back_by_itself() {
    let cluster = TestCluster::started();
    let clients = Clients::start(&[cluster.api(0), cluster.api(1)], &[0, 1, 2]);
    cluster.signal(2, "STOP");
    for index in [0, 1] {
        cluster.until_opinion(index, 2, &["failed"]);
    }
    cluster.signal(2, "CONT");
    let thawed = Instant::now();
    cluster.until_agreed(ALL);
    eprintln!("all agree {:?} after the thaw", thawed.elapsed());
    clients.until_more(20);
    clients.stop().check();
    cluster.write(2, 5, "by the one that was frozen").expect("a write");
}

/// Waits until, as a node sees it, none of the slots that `node` served is served by it in its old epoch.
fn until_fenced(cluster: &TestCluster, index: usize, node: &str, before: &[SlotJson]) {
    eventually(&format!("{index} sees the slots of {node} fenced"), || {
        let now = cluster.slots(index)?;
        let left: Vec<_> = now.iter().filter(|slot| is_of(node)(slot)).collect();
        if !left.is_empty() {
            return Err(format!("{left:?}"));
        }
        for (old, new) in before.iter().zip(&now).filter(|(old, _)| is_of(node)(old)) {
            assert!(new.epoch > old.epoch, "a new primary without a new epoch: {old:?} {new:?}");
        }
        Ok(())
    });
}

fn is_of(node: &str) -> impl Fn(&SlotJson) -> bool {
    move |slot| slot.primary.as_deref() == Some(node)
}
