//! A registry of slots that the nodes keep among themselves: it forms, survives deaths, freezes and lost disks, and never
//! lets two primaries write.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::cluster::{Layout, TestCluster, eventually, is_long_run};
use crate::history::{Clients, History};
use crate::http;

const ALL: &[usize] = &[0, 1, 2];

/// No listener of a node answers a client of Redis as Redis would, by one word or by the map of its slots.
#[test]
fn no_port_of_a_node_speaks_the_protocol_of_redis() {
    let cluster = TestCluster::start_new(&Layout { nodes: 1, ..Layout::patient() });
    let api = cluster.api(0);
    let mut answered = 0;
    // The ports of a node follow each other: api, peers, gossip, S3.
    for port in api.port()..api.port() + 4 {
        for asked in ["PING\r\n", "*1\r\n$4\r\nPING\r\n", "*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n"] {
            let Ok(mut connection) = TcpStream::connect((api.ip(), port)) else { continue };
            connection.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
            connection.write_all(asked.as_bytes()).expect("it is heard");
            let mut answer = [0; 16];
            // It may hang up, or wait for more of what it takes for its own protocol.
            let count = connection.read(&mut answer).unwrap_or(0);
            answered += 1;
            let is_redis = matches!(answer[..count].first(), Some(b'+' | b'-' | b'*' | b':' | b'$'));
            assert!(
                !is_redis,
                "port {port} answers {:?} to {asked:?}",
                String::from_utf8_lossy(&answer[..count])
            );
        }
    }
    assert!(answered >= 9, "only {answered} questions were heard");
}

/// Acceptance 1: initialised, routed, written and read back, with nothing but these three processes.
#[test]
fn three_nodes_form_a_cluster_and_each_of_them_serves_every_slot() {
    let cluster = TestCluster::start_new(&Layout { slots: 2048, ..Layout::patient() });
    let slots = cluster.slots(0).expect("slots");
    assert_eq!(slots.len(), 2048);
    for (slot, at) in slots.iter().zip(0..) {
        assert_eq!((slot.slot, slot.replicas.len(), slot.state.as_str()), (at, 3, "stable"));
        assert!(slot.epoch > 0 && slot.primary.is_some(), "{slot:?}");
    }
    // At once, or on a busy machine when those that were late are given back what is theirs.
    eventually("the primaries are spread", || {
        let mut shares: BTreeMap<_, usize> = BTreeMap::new();
        for slot in cluster.slots(1)? {
            *shares.entry(slot.primary).or_default() += 1;
        }
        let is_spread = shares.len() == 3 && shares.values().all(|share| *share > 2048 / 6);
        if is_spread { Ok(()) } else { Err(format!("{shares:?}")) }
    });
    cluster.until_agreed(ALL);

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
    let digests: BTreeSet<_> =
        ALL.iter().map(|index| cluster.status(*index).expect("status").slot_map_digest).collect();
    assert_eq!(digests.len(), 1, "writes change no map");
}

/// Acceptance 2: after `kill -9` every slot has a primary again, and all that was acknowledged is there.
#[test]
fn a_killed_node_costs_nothing_that_was_acknowledged_and_comes_back_at_once() {
    let mut cluster = TestCluster::started();
    cluster.write_all(ALL, "before ");
    let victim = cluster.busiest();
    let others: Vec<usize> = (0..3).filter(|index| *index != victim).collect();
    let before = cluster.slots(0).expect("slots");
    let life = cluster.status(victim).expect("status").incarnation;

    let clients =
        Clients::start(&others.iter().map(|index| cluster.api(*index)).collect::<Vec<_>>(), &[0, 1, 2]);
    clients.until_more(20);
    let killed = Instant::now();
    cluster.kill(victim);
    for index in &others {
        cluster.until_fenced(*index, victim, &before);
    }
    eprintln!("every slot of the killed node was fenced after {:?}", killed.elapsed());
    clients.until_more(40);
    for index in &others {
        cluster.until_opinion(*index, victim, &["failed"]);
    }
    // Slots that no client writes to have what was acknowledged before the death, and can be written to.
    for old in &before[3..] {
        let slot = old.slot;
        let reply = cluster.get(others[0], &format!("/v1/slots/{slot}/register")).expect("an answer");
        assert_eq!(reply.body, format!("before {slot}"));
        let tag = cluster.write(others[1], slot, "after").expect("a write");
        assert!(!cluster.is_served_by(old, victim) || tag.0 > old.epoch, "{tag:?} after {old:?}");
    }

    // The same name with the same disk is the same node, in a later life.
    cluster.start(victim);
    cluster.until_agreed(ALL);
    assert!(cluster.status(victim).expect("status").incarnation > life);
    clients.until_more(20);
    clients.stop().check();
    if is_long_run() {
        eventually("the node is given its slots back", || {
            let served = cluster.status(victim)?.slots_served_here;
            if served == 20 { Ok(()) } else { Err(format!("{served} slots")) }
        });
    }
}

/// Acceptance 4: whoever was the primary and does not know yet that it is no more, writes nothing and reads nothing old.
#[test]
fn a_primary_that_was_frozen_cannot_write_in_its_old_epoch() {
    let cluster = TestCluster::started();
    let history = History::default();
    let frozen = cluster.busiest();
    let (one, other) = ((frozen + 1) % 3, (frozen + 2) % 3);
    let before = cluster.slots(0).expect("slots");
    let served: Vec<_> = before.iter().filter(|slot| cluster.is_served_by(slot, frozen)).collect();
    assert!(served.len() >= 20, "{before:?}");
    for slot in &served {
        history.write(cluster.api(frozen), slot.slot).expect("a write");
    }

    cluster.signal(frozen, "STOP");
    cluster.until_fenced(one, frozen, &before);
    cluster.until_fenced(other, frozen, &before);
    for slot in &served {
        let tag = history.write(cluster.api(one), slot.slot).expect("a write in the new epoch");
        assert!(tag.0 > slot.epoch);
    }
    // These requests are in the hands of the old primary before it runs again, and it still believes in its epochs.
    let mut sent = Vec::new();
    for (slot, is_write) in served.iter().zip([true, false].into_iter().cycle()) {
        let path = format!("/v1/slots/{}/register", slot.slot);
        let written = is_write.then(|| format!("late {}", slot.slot));
        let method = if is_write { "PUT" } else { "GET" };
        let body = written.as_deref().unwrap_or_default();
        let request = http::send(cluster.api(frozen), method, &path, body).expect("a listener");
        sent.push((slot, written, Instant::now(), request));
    }
    cluster.signal(frozen, "CONT");
    let apis = [cluster.api(frozen), cluster.api(other)];
    let clients = Clients::start(&apis, &[served[0].slot, served[1].slot]);
    let mut answers = 0;
    for (slot, written, began, request) in sent {
        // To be refused is right as well.
        if let Ok(tag) = history.note(slot.slot, written, began, request.reply()) {
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

/// A node that is told to stop hands its slots over first, and clients of the others hardly notice.
#[test]
fn a_node_that_leaves_hands_its_slots_over() {
    // Clients of the others notice nothing at all.
    assert_eq!(leave_under_load(), Vec::<String>::new());
}

/// Lets one of three nodes leave and come back while clients of the others go on; returns what failed for them.
fn leave_under_load() -> Vec<String> {
    let mut cluster = TestCluster::start_new(&Layout::patient());
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
        let slots = cluster.slots(index).expect("slots");
        let left: Vec<_> = slots.iter().filter(|slot| cluster.is_served_by(slot, 1)).collect();
        assert!(left.is_empty(), "{index} sees slots of the one that left: {left:?}");
        cluster.until_fenced(index, 1, &before);
    }
    assert!(cluster.log(1).ends_with("left\n"), "{}", cluster.log(1));
    clients.until_more(60);
    let history = clients.stop();
    history.check();

    cluster.start(1);
    cluster.until_agreed(ALL);
    history.failures()
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
    // What was not confirmed may have taken effect.
    cluster.read_all_but(&[7], 1, "kept ");
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
