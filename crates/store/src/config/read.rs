//! The settings, one after the other.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_saphyr::Spanned;
use synod_core::id::{Authority, NodeId};
use synod_core::slots::{
    BootstrapError, BootstrapNode, BootstrapState, HlcTimestamp, NodePorts, Pace, QUEUE_GROUPS_MAX,
    QueueLayout, REPLICAS_MAX, Replication, SLOTS_MAX,
};

use super::error::{ConfigError, ConfigErrors, ConfigProblem};
use super::secret::ArchiveSecret;
use super::tree::{self, Found, Place, Section, Tree};
use super::{NAMESPACE_DEFAULT, NodeConfig, all_nodes};
use crate::cluster_url::parse_seed;

pub(super) fn read(text: &str) -> Result<NodeConfig, ConfigErrors> {
    let tree = Tree::parse(text).map_err(|error| ConfigErrors::new(vec![error]))?;
    let mut errors = Vec::new();
    let config = read_root(&tree, &mut errors);
    match config {
        Some(config) if errors.is_empty() => Ok(config),
        _ => Err(ConfigErrors::new(errors)),
    }
}

fn read_root(tree: &Spanned<Tree>, errors: &mut Vec<ConfigError>) -> Option<NodeConfig> {
    let keys = &["registry", "initial_cluster", "queue", "archive", "secret_file"];
    let root = Section::new(tree, Place::new(String::new(), tree.referenced), keys, errors)?;

    let registry = root.section("registry", &["backend", "namespace", "gossip"], errors);
    let registry = registry.map(|section| read_registry(&section, errors));
    let cluster = if root.has("initial_cluster") {
        let section = root.section("initial_cluster", &["nodes", "replication"], errors);
        section.map(|section| read_cluster(&section, errors))
    } else {
        errors.push(root.place.error(ConfigProblem::Missing { key: "initial_cluster" }));
        None
    };
    let archive = if root.has("archive") {
        let section = root.section("archive", &["archive_type", "s3"], errors);
        section.map(|section| read_archive(&section, errors))
    } else {
        Some(Archive::default())
    };
    let queue = root.section("queue", QUEUE_KEYS, errors);
    let queue = queue.map(|section| read_queue(&section, errors));
    let secret_file = root.text("secret_file", errors).map(|found| PathBuf::from(found.value));

    let (registry, cluster, archive, queue) = (registry?, cluster?, archive?, queue?);
    // What follows would only repeat what is wrong already.
    let initialized_by =
        cluster.nodes.first().filter(|_| errors.is_empty()).map(|(node, _)| node.node.clone());
    let Some(initialized_by) = initialized_by else {
        if errors.is_empty() {
            errors
                .push(cluster.place.error(ConfigProblem::Bootstrap(BootstrapError::NodeCount { count: 0 })));
        }
        return None;
    };
    let (nodes, places): (Vec<_>, Vec<_>) = cluster.nodes.into_iter().unzip();
    let named: Vec<(NodeId, Place)> = nodes.iter().map(|node| node.node.clone()).zip(places).collect();
    let bootstrap = BootstrapState {
        initialized_at: HlcTimestamp::default(),
        initialized_by,
        namespace: registry.namespace.value,
        nodes,
        replication: cluster.replication,
        pace: registry.pace,
        archive: archive.text,
        queue: queue.layout,
    };
    match bootstrap.checked() {
        Ok(bootstrap) => {
            let seeds = registry.seeds.unwrap_or_else(|| all_nodes(&bootstrap));
            let (persist_dir, archive_secret) = (registry.persist_dir, archive.secret);
            Some(NodeConfig { bootstrap, seeds, persist_dir, secret_file, secret: None, archive_secret })
        }
        Err(error) => {
            // With several nodes of one name the last of them is the one too many.
            let of =
                |node: &NodeId| named.iter().rev().find(|(name, _)| name == node).map(|(_, place)| place);
            let place = match &error {
                BootstrapError::Namespace => Some(&registry.namespace.place),
                BootstrapError::NodeTwice { node }
                | BootstrapError::Address { node, .. }
                | BootstrapError::AddressTwice { node, .. }
                | BootstrapError::Ports { node }
                | BootstrapError::Disks { node } => of(node),
                BootstrapError::Range { field, .. } => {
                    let mut places = registry.numbers.iter().chain(&cluster.numbers).chain(&queue.numbers);
                    places.find(|(name, _)| field.starts_with(name)).map(|(_, place)| place)
                }
                _ => None,
            };
            errors.push(place.unwrap_or(&cluster.place).error(ConfigProblem::Bootstrap(error)));
            None
        }
    }
}

struct Registry {
    namespace: Found<String>,
    seeds: Option<Vec<Authority>>,
    pace: Pace,
    persist_dir: Option<PathBuf>,
    /// Where the numbers are, by the names that the bootstrap state has for them.
    numbers: Vec<(&'static str, Place)>,
}

fn read_registry(section: &Section<'_>, errors: &mut Vec<ConfigError>) -> Registry {
    if let Some(backend) = section.text("backend", errors)
        && backend.value != "gossip"
    {
        errors.push(backend.place.error(ConfigProblem::Backend { value: backend.value }));
    }
    let namespace = section
        .text("namespace", errors)
        .unwrap_or_else(|| Found { value: NAMESPACE_DEFAULT.into(), place: section.place_of("namespace") });
    let gossip = section.section("gossip", GOSSIP_KEYS, errors);
    let Some(gossip) = gossip else {
        return Registry {
            namespace,
            seeds: None,
            pace: Pace::default(),
            persist_dir: None,
            numbers: Vec::new(),
        };
    };
    if let Some(transport) = gossip.text("transport", errors)
        && !matches!(transport.value.as_str(), "internal_http" | "memberlist")
    {
        errors.push(transport.place.error(ConfigProblem::Transport { value: transport.value }));
    }
    let seeds = gossip.list("seeds", errors).map(|items| {
        let mut seeds = Vec::new();
        for (item, place) in items {
            let Some(found) = tree::text(&item.value, place, errors) else { continue };
            match parse_seed(&found.value) {
                Ok(seed) if !seeds.contains(&seed) => seeds.push(seed),
                Ok(_) => {}
                Err(error) => errors.push(found.place.error(ConfigProblem::Seed(error))),
            }
        }
        seeds
    });
    let pace = Pace::default();
    let pace = Pace {
        gossip_interval: gossip
            .integer::<u32>("gossip_interval_ms", 1..=u32::MAX.into(), errors)
            .map_or(pace.gossip_interval, |millis| Duration::from_millis(millis.into())),
        full_sync_interval: gossip
            .seconds("full_sync_interval_sec", errors)
            .unwrap_or(pace.full_sync_interval),
        suspect_timeout: gossip.seconds("suspect_timeout_sec", errors).unwrap_or(pace.suspect_timeout),
        fail_timeout: gossip.seconds("fail_timeout_sec", errors).unwrap_or(pace.fail_timeout),
        fanout: gossip.integer("fanout", 1..=u8::MAX.into(), errors).unwrap_or(pace.fanout),
    };
    let numbers = [
        ("gossip_interval", "gossip_interval_ms"),
        ("full_sync_interval", "full_sync_interval_sec"),
        ("suspect_timeout", "suspect_timeout_sec"),
        ("fail_timeout", "fail_timeout_sec"),
        ("fanout", "fanout"),
    ];
    let persist_dir = gossip.has("persist_dir").then(|| gossip.needed_text("persist_dir", errors)).flatten();
    Registry {
        namespace,
        // An empty list would leave nobody to ask.
        seeds: seeds.filter(|seeds| !seeds.is_empty()),
        pace,
        persist_dir: persist_dir.map(|found| PathBuf::from(found.value)),
        numbers: numbers.map(|(name, key)| (name, gossip.place_of(key))).into(),
    }
}

struct Queue {
    layout: QueueLayout,
    numbers: Vec<(&'static str, Place)>,
}

fn read_queue(section: &Section<'_>, errors: &mut Vec<ConfigError>) -> Queue {
    let set = QueueLayout::default();
    let mut millis = |name: &str, default: Duration| {
        let found = section.integer::<u32>(name, 1..=u32::MAX.into(), errors);
        found.map_or(default, |millis| Duration::from_millis(millis.into()))
    };
    let (heartbeat, election_min, election_max) = (
        millis("heartbeat_ms", set.heartbeat),
        millis("election_min_ms", set.election_min),
        millis("election_max_ms", set.election_max),
    );
    let layout = QueueLayout {
        is_enabled: section.boolean("enabled", errors).unwrap_or(set.is_enabled),
        voters: section.integer("voters", 1..=REPLICAS_MAX.into(), errors).unwrap_or(set.voters),
        groups: section.integer("groups", 1..=QUEUE_GROUPS_MAX.into(), errors).unwrap_or(set.groups),
        heartbeat,
        election_min,
        election_max,
    };
    Queue { layout, numbers: QUEUE_KEYS.iter().map(|key| (*key, section.place_of(key))).collect() }
}

struct Cluster {
    place: Place,
    nodes: Vec<(BootstrapNode, Place)>,
    replication: Replication,
    numbers: Vec<(&'static str, Place)>,
}

fn read_cluster(section: &Section<'_>, errors: &mut Vec<ConfigError>) -> Cluster {
    let mut nodes = Vec::new();
    if section.has("nodes") {
        for (item, place) in section.list("nodes", errors).unwrap_or_default() {
            let Some(node) = Section::new(item, place.clone(), NODE_KEYS, errors) else { continue };
            nodes.extend(read_node(&node, errors).map(|node| (node, place)));
        }
    } else {
        errors.push(section.place.error(ConfigProblem::Missing { key: "nodes" }));
    }
    let keys = &["total_slots", "replicas", "min_write_replicas"];
    let (mut replication, mut numbers) = (Replication::default(), Vec::new());
    if let Some(found) = section.section("replication", keys, errors) {
        let Replication { total_slots, replicas, min_write_replicas } = replication;
        replication = Replication {
            total_slots: found.integer("total_slots", 1..=SLOTS_MAX.into(), errors).unwrap_or(total_slots),
            replicas: found.integer("replicas", 1..=REPLICAS_MAX.into(), errors).unwrap_or(replicas),
            min_write_replicas: found
                .integer("min_write_replicas", 1..=REPLICAS_MAX.into(), errors)
                .unwrap_or(min_write_replicas),
        };
        numbers = keys.map(|key| (key, found.place_of(key))).into();
    }
    Cluster { place: section.place.clone(), nodes, replication, numbers }
}

fn read_node(section: &Section<'_>, errors: &mut Vec<ConfigError>) -> Option<BootstrapNode> {
    let node = section.needed_text("node_id", errors).and_then(|found| {
        NodeId::new(&found.value)
            .map_err(|error| errors.push(found.place.error(ConfigProblem::NodeId(error))))
            .ok()
    });
    let bind = section.needed_text("bind_addr", errors).and_then(|found| {
        let bind = found.value.parse::<SocketAddr>();
        let problem = |_| found.place.error(ConfigProblem::BindAddress { value: found.value.clone() });
        bind.map_err(|error| errors.push(problem(error))).ok()
    });
    let advertise = section.text("advertise_addr", errors);
    let advertise_host = bind.and_then(|bind| match &advertise {
        Some(found) => {
            read_host(found, bind.port()).map_err(|problem| errors.push(found.place.error(problem))).ok()
        }
        // An address of the wrong type was noted already.
        None if section.has("advertise_addr") => None,
        None if bind.ip().is_unspecified() => {
            let bind = bind.to_string();
            errors.push(section.place.error(ConfigProblem::AdvertiseMissing { bind }));
            None
        }
        None => Some(host_text(bind.ip())),
    });
    let ports = section.section("ports", &["peer", "gossip", "s3", "jobs"], errors);
    let ports = ports.zip(bind).zip(node.as_ref()).and_then(|((ports, bind), node)| {
        let derived = NodePorts::after(bind.port());
        let mut port = |key: &str, derived: Option<u16>| {
            if ports.has(key) { ports.integer(key, 1..=u16::MAX.into(), errors) } else { derived }
        };
        let given = (
            port("peer", derived.map(|ports| ports.peer)),
            port("gossip", derived.map(|ports| ports.gossip)),
            port("s3", derived.map(|ports| ports.s3)),
            port("jobs", derived.map(|ports| ports.jobs)),
        );
        if let (Some(peer), Some(gossip), Some(s3), Some(jobs)) = given {
            return Some(NodePorts { peer, gossip, s3, jobs });
        }
        if derived.is_none() {
            let problem = ConfigProblem::Bootstrap(BootstrapError::Ports { node: node.clone() });
            errors.push(section.place_of("bind_addr").error(problem));
        }
        None
    });
    if !section.has("disks") {
        errors.push(section.place.error(ConfigProblem::Missing { key: "disks" }));
    }
    let mut disks = Vec::new();
    for (item, place) in section.list("disks", errors).unwrap_or_default() {
        let Some(disk) = Section::new(item, place, &["path"], errors) else { continue };
        disks.extend(disk.needed_text("path", errors).map(|found| found.value));
    }
    Some(BootstrapNode { node: node?, bind: bind?, advertise_host: advertise_host?, ports: ports?, disks })
}

/// The host of `host`, `host:port` or an IPv6 address with or without brackets.
fn read_host(found: &Found<String>, bind_port: u16) -> Result<String, ConfigProblem> {
    let value = found.value.as_str();
    let bad = || ConfigProblem::Advertise { value: value.into() };
    let bare = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(value);
    let host = match bare.parse::<IpAddr>() {
        Ok(ip) => host_text(ip),
        Err(_) if !value.contains(':') => value.to_owned(),
        Err(_) => {
            let address = Authority::new(value).map_err(|_| bad())?;
            if address.port() != bind_port {
                return Err(ConfigProblem::AdvertisePort { advertised: address.port(), bind: bind_port });
            }
            address.host().to_owned()
        }
    };
    let is_nowhere = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified()) || host == "[::]";
    let canonical = Authority::new(&format!("{host}:1")).map_err(|_| bad())?;
    if is_nowhere { Err(bad()) } else { Ok(canonical.host().to_owned()) }
}

#[derive(Default)]
struct Archive {
    text: Option<String>,
    secret: Option<ArchiveSecret>,
}

/// What travels of an archive, in the order of its canonical text.
#[derive(Serialize)]
struct ArchiveText<'a> {
    archive_type: &'a str,
    s3: S3Text<'a>,
}

#[derive(Serialize)]
struct S3Text<'a> {
    bucket: &'a str,
    region: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<&'a str>,
    allow_http: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    access_key_id: Option<&'a str>,
}

fn read_archive(section: &Section<'_>, errors: &mut Vec<ConfigError>) -> Archive {
    if let Some(kind) = section.needed_text("archive_type", errors)
        && kind.value != "s3"
    {
        errors.push(kind.place.error(ConfigProblem::ArchiveType { value: kind.value }));
    }
    if !section.has("s3") {
        errors.push(section.place.error(ConfigProblem::Missing { key: "s3" }));
        return Archive::default();
    }
    let keys = &["bucket", "region", "endpoint", "allow_http", "credentials"];
    let Some(s3) = section.section("s3", keys, errors) else { return Archive::default() };
    let bucket = s3.needed_text("bucket", errors);
    if let Some(Found { value, place }) = &bucket
        && !value.chars().all(|char| char.is_ascii_alphanumeric() || "-_.".contains(char))
    {
        errors.push(place.error(ConfigProblem::ArchiveBucket { value: value.clone() }));
    }
    let region = if s3.has("region") { s3.needed_text("region", errors) } else { None };
    let endpoint = s3.text("endpoint", errors);
    let allow_http = s3.boolean("allow_http", errors).unwrap_or(false);
    if let Some(Found { value, place }) = &endpoint {
        let (is_plain, is_encrypted) = (value.starts_with("http://"), value.starts_with("https://"));
        let value = value.clone();
        if !is_plain && !is_encrypted || !is_host(&value) {
            errors.push(place.error(ConfigProblem::Endpoint { value }));
        } else if is_plain && !allow_http {
            errors.push(place.error(ConfigProblem::PlainEndpoint { value }));
        }
    }
    let keys = &["access_key_id", "secret_access_key"];
    let credentials = s3.section("credentials", keys, errors).filter(|_| s3.has("credentials"));
    let access_key = credentials.as_ref().and_then(|found| found.needed_text("access_key_id", errors));
    let secret = credentials.as_ref().and_then(|found| found.text("secret_access_key", errors));
    let Some(bucket) = bucket else { return Archive::default() };
    let s3 = S3Text {
        bucket: &bucket.value,
        region: region.as_ref().map_or(REGION_DEFAULT, |found| &found.value),
        endpoint: endpoint.as_ref().map(|found| found.value.as_str()),
        allow_http,
        access_key_id: access_key.as_ref().map(|found| found.value.as_str()),
    };
    // Plain text fields under fixed names always make JSON.
    let text = serde_json::to_string(&ArchiveText { archive_type: "s3", s3 }).ok();
    Archive { text, secret: secret.map(|found| ArchiveSecret::new(found.value)) }
}

/// Whether there is a host in an endpoint, and nothing that requests are made with.
fn is_host(endpoint: &str) -> bool {
    let host = endpoint.split_once("://").map_or("", |(_, host)| host);
    let is_plain = |char: char| char.is_ascii_graphic() && !"?#@".contains(char);
    !host.trim_end_matches('/').is_empty() && !host.starts_with(['/', ':']) && host.chars().all(is_plain)
}

fn host_text(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

const GOSSIP_KEYS: &[&str] = &[
    "transport",
    "seeds",
    "gossip_interval_ms",
    "full_sync_interval_sec",
    "suspect_timeout_sec",
    "fail_timeout_sec",
    "fanout",
    "persist_dir",
];
const QUEUE_KEYS: &[&str] =
    &["enabled", "voters", "groups", "heartbeat_ms", "election_min_ms", "election_max_ms"];
const NODE_KEYS: &[&str] = &["node_id", "bind_addr", "advertise_addr", "ports", "disks"];
const REGION_DEFAULT: &str = "us-east-1";
