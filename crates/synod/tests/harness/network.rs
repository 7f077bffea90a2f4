//! A network that breaks.
//!
//! Each node has a network namespace, with one cable to a switch in another one. That takes root.
//!
//! ```text
//!   node1 ──┐
//!   node2 ──┼── switch
//!   node3 ──┘
//! ```

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cluster::{Layout, Place, TestCluster};

/// A switch and cables, which are gone with this value.
pub(crate) struct Network {
    /// The namespace of the switch, then one for each node.
    namespaces: Vec<String>,
}

impl Network {
    /// `None`, with a notice, where this may not be done.
    pub(crate) fn new(nodes: usize) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("synod-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut network = Self { namespaces: Vec::new() };
        for number in 0..=nodes {
            let namespace = format!("{name}-{number}");
            if let Err(reason) = ip(&["netns", "add", &namespace]) {
                eprintln!("skipped: there are no network namespaces here: {reason}");
                return None;
            }
            network.namespaces.push(namespace);
        }
        let switch = &network.namespaces[0];
        must(&["-n", switch, "link", "add", SWITCH, "type", "bridge"]);
        must(&["-n", switch, "link", "set", SWITCH, "up"]);
        for (index, namespace) in network.namespaces[1..].iter().enumerate() {
            let port = port(index);
            let peer = ["peer", "name", "eth0", "netns", namespace];
            must(&[&["-n", switch, "link", "add", &port, "type", "veth"][..], &peer].concat());
            must(&["-n", switch, "link", "set", &port, "master", SWITCH, "up"]);
            must(&["-n", namespace, "addr", "add", &format!("{}/24", address(index).ip()), "dev", "eth0"]);
            must(&["-n", namespace, "link", "set", "lo", "up"]);
            must(&["-n", namespace, "link", "set", "eth0", "up"]);
        }
        Some(network)
    }

    /// A cluster on this network that runs and is ready. Others can reach it, so it has a secret.
    pub(crate) fn start_cluster(&self, layout: &Layout) -> TestCluster {
        let more = format!("secret_file: {SECRET_FILE}\n");
        let mut cluster = TestCluster::at(layout, self.places(), &more);
        let secret = cluster.synod(&["secret", "new"]);
        let file = cluster.dir.join(SECRET_FILE);
        fs::write(&file, secret.stdout).expect("a secret");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a file of one's own");
        cluster.start_all();
        cluster.until_agreed(&(0..layout.nodes).collect::<Vec<_>>());
        cluster
    }

    /// Gives this process a way to every node that is not the network between them. Only for a process that [`is_inside`].
    ///
    /// A node that the others cannot reach can still be asked, and must not give wrong answers.
    pub(crate) fn open_to_clients(&self) {
        for (index, namespace) in self.namespaces[1..].iter().enumerate() {
            let (own, own_ip, its_ip) =
                (format!("client{index}"), format!("10.78.{index}.1"), format!("10.78.{index}.2"));
            must(&["link", "add", &own, "type", "veth", "peer", "name", "eth1", "netns", namespace]);
            must(&["addr", "add", &format!("{own_ip}/24"), "dev", &own]);
            must(&["link", "set", &own, "up"]);
            must(&["-n", namespace, "addr", "add", &format!("{its_ip}/24"), "dev", "eth1"]);
            must(&["-n", namespace, "link", "set", "eth1", "up"]);
            must(&["route", "add", &address(index).ip().to_string(), "via", &its_ip]);
        }
    }

    pub(crate) fn places(&self) -> Vec<Place> {
        let places = self.namespaces[1..].iter().enumerate().map(|(index, namespace)| Place {
            name: format!("node{}", index + 1),
            api: address(index),
            namespace: Some(namespace.clone()),
        });
        places.collect()
    }

    /// Pulls the cable out.
    pub(crate) fn cut(&self, index: usize) {
        must(&["-n", &self.namespaces[0], "link", "set", &port(index), "down"]);
    }

    /// Leaves the cable in, and forwards nothing.
    pub(crate) fn swallow(&self, index: usize) {
        must(&["-n", &self.namespaces[0], "link", "set", &port(index), "nomaster"]);
    }

    pub(crate) fn mend(&self, index: usize) {
        must(&["-n", &self.namespaces[0], "link", "set", &port(index), "master", SWITCH, "up"]);
    }

    /// Drops what a node sends to the others, and nothing of what they send.
    pub(crate) fn silence(&self, index: usize, is_silent: bool) {
        for other in (0..self.namespaces.len() - 1).filter(|other| *other != index) {
            let verb = if is_silent { "add" } else { "del" };
            let to = address(other).ip().to_string();
            must(&["-n", &self.namespaces[index + 1], "route", verb, "blackhole", &to]);
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            // What is left behind does no harm.
            ip(&["netns", "del", namespace]).ok();
        }
    }
}

/// Whether this process has a network namespace of its own, to which cables can be led.
pub(crate) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs one test of this binary again in a network namespace of its own, or says why that cannot be.
pub(crate) fn run_inside(test: &str) {
    let namespace = format!("synod-{}-inside", std::process::id());
    if let Err(reason) = ip(&["netns", "add", &namespace]) {
        eprintln!("skipped: there are no network namespaces here: {reason}");
        return;
    }
    let binary = std::env::current_exe().expect("this binary");
    let ended = Command::new("ip")
        .args(["netns", "exec", &namespace])
        .arg(binary)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status();
    // What is left behind does no harm.
    ip(&["netns", "del", &namespace]).ok();
    assert!(ended.is_ok_and(|status| status.success()), "{test} failed inside");
}

fn address(index: usize) -> SocketAddr {
    let host = u8::try_from(index + 1).expect("few nodes");
    SocketAddr::from(([10, 77, 0, host], 8400))
}

fn port(index: usize) -> String {
    format!("port{index}")
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| error.to_string())?;
    let failed = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    output.status.success().then_some(()).ok_or_else(failed)
}

fn must(arguments: &[&str]) {
    ip(arguments).unwrap_or_else(|reason| panic!("ip {arguments:?}: {reason}"));
}

const INSIDE: &str = "SYNOD_TEST_INSIDE";
const SWITCH: &str = "switch";
/// The file with the secret of the cluster, in its directory.
pub(crate) const SECRET_FILE: &str = "secret";
