//! A cluster with an archive, which is the gateway of a node of its own.

use bytes::Bytes;
use synod_s3::client::{Reply, S3Client};
use synod_store::objects::StoreStatusJson;

use crate::cluster::{Layout, Place, TestCluster, eventually, free_ports};

#[test]
fn a_node_that_is_killed_forgets_nothing_that_was_to_be_archived() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut elsewhere = TestCluster::start_new(&Layout { nodes: 1, slots: 8, ..Layout::patient() });
    let (id, secret) = new_key(&elsewhere);
    let archive = client(&elsewhere, 0, &id, &secret);
    good(&runtime.block_on(archive.create_bucket("archive")).expect("an answer"));

    let layout = Layout::default();
    let places = (1..=layout.nodes).map(|number| {
        let api = std::net::SocketAddr::new(layout.host, free_ports(layout.host));
        Place { name: format!("node{number}"), api, namespace: None }
    });
    let endpoint = s3_address(&elsewhere, 0);
    let lines = format!(
        "archive:
  archive_type: s3
  s3:
    bucket: archive
    endpoint: http://{endpoint}
    allow_http: true
    credentials: {{access_key_id: '{id}', secret_access_key: '{secret}'}}
"
    );
    let mut cluster = TestCluster::at(&layout, places.collect(), &lines);
    cluster.start_all();
    cluster.until_agreed(&[0, 1, 2]);
    let (id, secret) = new_key(&cluster);
    let s3 = client(&cluster, 0, &id, &secret);
    good(&runtime.block_on(s3.create_bucket("photos")).expect("an answer"));

    // The archive is gone, and nobody who writes has to know.
    elsewhere.kill(0);
    let body = |number: usize| Bytes::from(vec![b'a' + u8::try_from(number).expect("few"); 100_000 * number]);
    for number in 1..=6 {
        good(
            &runtime
                .block_on(s3.put("photos", &format!("key{number}"), body(number), &[]))
                .expect("an answer"),
        );
    }
    good(&runtime.block_on(s3.put("photos", "large", vec![b'z'; 9 << 20].into(), &[])).expect("an answer"));
    eventually("the nodes say that the archive fails", || {
        let stores = status(&cluster)?;
        let archives: Vec<_> = stores.into_iter().filter_map(|store| store.archive).collect();
        let pending: u64 = archives.iter().map(|archive| archive.pending).sum();
        let is_failing = archives.iter().any(|archive| archive.failing_since_unix_ms.is_some());
        match archives.len() == 3 && pending == 7 && is_failing {
            true => Ok(()),
            false => Err(format!("{archives:?}")),
        }
    });

    // Whoever had to do the most is killed; the others take its slots over, and find what it left.
    let killed = cluster.busiest();
    cluster.kill(killed);
    elsewhere.start(0);
    elsewhere.until_agreed(&[0]);
    for number in 1..=6 {
        until_copied(&runtime, &archive, &format!("default/photos/key{number}"), &body(number));
    }
    until_copied(&runtime, &archive, "default/photos/large", &vec![b'z'; 9 << 20].into());
    cluster.start(killed);
    cluster.until_agreed(&[0, 1, 2]);
    let written = eventually("somebody counts what was archived", || {
        let mut written = 0.0;
        for index in 0..3 {
            let metrics = cluster.get(index, "/metrics")?.body;
            let line = metrics.lines().find_map(|line| line.strip_prefix("synod_archive_archived_total "));
            written += line.ok_or("no number")?.parse::<f64>().map_err(|error| error.to_string())?;
        }
        Ok(written)
    });
    assert!(written >= 1.0, "{written}");
}

fn until_copied(runtime: &tokio::runtime::Runtime, archive: &S3Client, key: &str, body: &Bytes) {
    eventually(&format!("{key} is archived"), || {
        let reply = runtime.block_on(archive.get("archive", key)).map_err(|error| error.to_string())?;
        if reply.body == *body {
            Ok(())
        } else {
            Err(format!("{}, {} bytes", reply.status, reply.body.len()))
        }
    });
}

fn status(cluster: &TestCluster) -> Result<Vec<StoreStatusJson>, String> {
    let api = format!("http://{}", cluster.api(0));
    let shown = cluster.synod(&["store", "status", "--json", "--api", &api]);
    serde_json::from_slice(&shown.stdout).map_err(|error| error.to_string())
}

/// A key that may do everything.
fn new_key(cluster: &TestCluster) -> (String, String) {
    let api = format!("http://{}", cluster.api(0));
    let made: serde_json::Value = eventually("a key", || {
        let made = cluster.synod(&["key", "create", "test", "--json", "--api", &api]);
        serde_json::from_slice(&made.stdout).map_err(|_| String::from_utf8_lossy(&made.stderr).into_owned())
    });
    let text = |name: &str| made[name].as_str().expect("text").to_owned();
    let (id, secret) = (text("access_key_id"), text("secret_access_key"));
    let every = ["--bucket", "*", "--permission", "read,write,owner", "--api", &api];
    let arguments: Vec<&str> = ["key", "allow", id.as_str()].into_iter().chain(every).collect();
    let allowed = cluster.synod(&arguments);
    assert!(allowed.status.success(), "{}", String::from_utf8_lossy(&allowed.stderr));
    (id, secret)
}

fn client(cluster: &TestCluster, index: usize, id: &str, secret: &str) -> S3Client {
    S3Client::new(&format!("http://{}", s3_address(cluster, index)), id, secret)
}

fn s3_address(cluster: &TestCluster, index: usize) -> std::net::SocketAddr {
    let api = cluster.api(index);
    std::net::SocketAddr::new(api.ip(), api.port() + 3)
}

fn good(reply: &Reply) {
    assert!(reply.status.is_success(), "{}: {}", reply.status, reply.text());
}
