//! Whatever happens to nodes and networks, clients see objects change one request after the other.

use std::time::{Duration, Instant};

use crate::clients::Clients;
use crate::cluster::{Layout, eventually, is_long_run};
use crate::network::{Network, is_inside, run_inside};
use crate::store::{ALL, BUCKET, Store};

/// Few, so that every object is in a slot of a node that something happens to.
const SLOTS: u16 = 6;

#[test]
fn objects_are_linearizable_while_nodes_are_killed() {
    let mut store = Store::started(&Layout { slots: SLOTS, ..Layout::default() });
    torment(&mut store, |store, clients, random, victim| {
        store.cluster.kill(victim);
        if random.u32(..3) == 0 {
            // Now nobody has a majority.
            let second = (victim + 1) % 3;
            store.cluster.kill(second);
            wait(random.u64(200..1500));
            store.cluster.start(second);
        } else if random.bool() {
            clients.until_written(40);
        }
        store.cluster.start(victim);
        store.cluster.until_agreed(ALL);
    });
}

#[test]
fn objects_are_linearizable_while_nodes_are_frozen() {
    let mut store = Store::started(&Layout { slots: SLOTS, ..Layout::default() });
    torment(&mut store, |store, clients, random, victim| {
        let before = store.cluster.slots(0).expect("slots");
        store.cluster.signal(victim, "STOP");
        match random.u32(..4) {
            // A hiccup, from which it wakes up before anybody is sure that it is gone.
            0 => wait(random.u64(100..1500)),
            // Two at once: nobody has a majority.
            1 => {
                let second = (victim + 1) % 3;
                store.cluster.signal(second, "STOP");
                wait(random.u64(100..3000));
                store.cluster.signal(second, "CONT");
            }
            // It wakes up and believes in epochs that are over, with requests of clients in its hands.
            _ => {
                store.cluster.until_fenced((victim + 1) % 3, victim, &before);
                clients.until_written(40);
            }
        }
        store.cluster.signal(victim, "CONT");
    });
}

#[test]
fn objects_are_linearizable_while_the_network_breaks() {
    if !is_inside() {
        return run_inside("faults::objects_are_linearizable_while_the_network_breaks");
    }
    let Some(network) = Network::new(3) else { return };
    network.open_to_clients();
    let mut store = Store::on(&network, &Layout { slots: SLOTS, ..Layout::default() });
    torment(&mut store, |store, clients, random, victim| {
        let before = store.cluster.slots(0).expect("slots");
        let is_silence = random.u32(..3) == 0;
        match random.bool() {
            _ if is_silence => network.silence(victim, true),
            true => network.cut(victim),
            false => network.swallow(victim),
        }
        if random.u32(..3) == 0 {
            wait(random.u64(200..2000));
        } else {
            store.cluster.until_fenced((victim + 1) % 3, victim, &before);
            clients.until_written(40);
        }
        if is_silence {
            network.silence(victim, false);
        } else {
            network.mend(victim);
        }
    });
}

/// A node that is back before anybody misses it is another life of a primary, and must not go on where the last one was:
/// what that one had numbered is stored already, and would count more than what is numbered alike now.
#[test]
fn a_primary_that_restarts_at_once_overwrites_what_it_wrote_before() {
    let mut store = Store::started(&Layout { slots: SLOTS, ..Layout::patient() });
    let keys: Vec<String> = (0..12).map(|number| format!("key {number}")).collect();
    for round in 0..4 {
        for version in 0..3 {
            for key in &keys {
                store.put(version, key, format!("{key}, {round}.{version}").into());
            }
        }
        let victim = store.cluster.busiest();
        store.cluster.kill(victim);
        store.cluster.start(victim);
        // As soon as anybody confirms a write, that is what is there.
        let (writer, reader) = (store.s3((victim + 1) % 3), store.s3((victim + 2) % 3));
        for key in &keys {
            let body = format!("{key}, after restart {round}");
            eventually("a write is confirmed", || {
                let put = store.run(writer.put(BUCKET, key, body.clone().into(), &[]));
                let put = put.map_err(|error| error.to_string())?;
                if put.status.is_success() { Ok(()) } else { Err(put.text()) }
            });
            let read = eventually("a read is answered", || {
                let read = store.run(reader.get(BUCKET, key)).map_err(|error| error.to_string())?;
                if read.status.as_u16() == 503 { Err(read.text()) } else { Ok(read.text()) }
            });
            assert_eq!(read, body, "round {round}");
        }
        store.cluster.until_agreed(ALL);
    }
}

/// Does something bad to a node again and again while clients are busy, then lets everything heal, and checks what they
/// saw.
fn torment(store: &mut Store, mut harm: impl FnMut(&mut Store, &Clients, &mut fastrand::Rng, usize)) {
    let seed = std::env::var("SYNOD_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("SYNOD_SEED={seed} makes the same choices again");
    let mut random = fastrand::Rng::with_seed(seed);
    let clients = Clients::start(store, 2, seed);
    clients.until_written(40);
    let deadline = Instant::now() + Duration::from_secs(if is_long_run() { 180 } else { 20 });
    let mut rounds = 0;
    while Instant::now() < deadline {
        // Whoever serves the most has the most to do wrong.
        let victim = if random.u32(..3) == 0 { random.usize(..3) } else { store.cluster.busiest() };
        harm(store, &clients, &mut random, victim);
        clients.until_written(40);
        rounds += 1;
    }
    store.cluster.until_agreed(ALL);
    clients.until_written(40);
    eprintln!("{rounds} rounds");
    clients.stop_and_check(store);
    store.until_whole();
}

/// Lets it last: that is the point.
fn wait(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}
