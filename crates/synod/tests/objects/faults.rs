//! Whatever happens to nodes and networks, clients see objects change one request after the other.

use std::time::{Duration, Instant};

use crate::clients::Clients;
use crate::cluster::{Layout, is_long_run};
use crate::network::{Network, is_inside, run_inside};
use crate::store::{ALL, Store};

#[test]
fn objects_are_linearizable_while_nodes_are_killed() {
    let mut store = Store::started(&Layout::default());
    torment(&mut store, |store, clients, random| {
        let victim = random.usize(..3);
        store.cluster.kill(victim);
        if random.u32(..3) == 0 {
            // Now nobody has a majority.
            let second = (victim + 1) % 3;
            store.cluster.kill(second);
            wait(random.u64(200..1500));
            store.cluster.start(second);
        } else if random.bool() {
            clients.until_more(100);
        }
        store.cluster.start(victim);
        store.cluster.until_agreed(ALL);
        clients.until_more(100);
    });
}

#[test]
fn objects_are_linearizable_while_nodes_are_frozen() {
    let mut store = Store::started(&Layout::default());
    torment(&mut store, |store, clients, random| {
        let victim = random.usize(..3);
        store.cluster.signal(victim, "STOP");
        // From a hiccup to longer than an election takes: then it wakes up and believes in epochs that are over.
        wait(random.u64(100..6000));
        if random.bool() {
            let second = (victim + 1) % 3;
            store.cluster.signal(second, "STOP");
            wait(random.u64(100..2000));
            store.cluster.signal(second, "CONT");
        }
        store.cluster.signal(victim, "CONT");
        clients.until_more(100);
    });
}

#[test]
fn objects_are_linearizable_while_the_network_breaks() {
    if !is_inside() {
        return run_inside("faults::objects_are_linearizable_while_the_network_breaks");
    }
    let Some(network) = Network::new(3) else { return };
    network.open_to_clients();
    let mut store = Store::on(&network, &Layout { slots: 30, ..Layout::default() });
    torment(&mut store, |_, clients, random| {
        let victim = random.usize(..3);
        let is_silence = random.bool();
        match random.bool() {
            _ if is_silence => network.silence(victim, true),
            true => network.cut(victim),
            false => network.swallow(victim),
        }
        wait(random.u64(500..6000));
        if is_silence {
            network.silence(victim, false)
        } else {
            network.mend(victim)
        }
        clients.until_more(100);
    });
}

/// Does something bad again and again while clients are busy, then lets everything heal, and checks what they saw.
fn torment(store: &mut Store, mut harm: impl FnMut(&mut Store, &Clients, &mut fastrand::Rng)) {
    let seed = std::env::var("SYNOD_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..));
    eprintln!("SYNOD_SEED={seed} makes the same choices again");
    let mut random = fastrand::Rng::with_seed(seed);
    let clients = Clients::start(store, 2, seed);
    clients.until_more(100);
    let deadline = Instant::now() + Duration::from_secs(if is_long_run() { 180 } else { 20 });
    let mut rounds = 0;
    while Instant::now() < deadline {
        harm(store, &clients, &mut random);
        rounds += 1;
    }
    store.cluster.until_agreed(ALL);
    clients.until_more(100);
    eprintln!("{rounds} rounds");
    clients.stop_and_check(store);
    store.until_whole();
}

/// Lets it last: that is the point.
fn wait(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}
