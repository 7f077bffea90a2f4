//! A cluster with an access key, and what S3 and the command line say of it.

use std::fs;
use std::future::Future;
use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use synod_s3::client::{Reply, S3Client};
use synod_store::objects::StoreStatusJson;
use tokio::runtime::{Builder, Runtime};

use crate::cluster::{Layout, TestCluster, eventually};
use crate::network::{Network, SECRET_FILE};

pub(crate) const ALL: &[usize] = &[0, 1, 2];
/// A bucket that every store has.
pub(crate) const BUCKET: &str = "things";

/// An access key, as the command line tells it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Key {
    #[serde(rename = "access_key_id")]
    pub(crate) id: String,
    #[serde(rename = "secret_access_key", default)]
    pub(crate) secret: String,
}

/// A cluster that stores objects, with a key that may do everything and a bucket.
pub(crate) struct Store {
    pub(crate) cluster: TestCluster,
    pub(crate) key: Key,
    has_secret: bool,
    runtime: Runtime,
}

impl Store {
    /// Three nodes that run and are ready.
    pub(crate) fn started(layout: &Layout) -> Self {
        Self::new(TestCluster::start_new(layout), false)
    }

    /// The same on a network that breaks.
    pub(crate) fn on(network: &Network, layout: &Layout) -> Self {
        Self::new(network.start_cluster(layout), true)
    }

    /// A store of a cluster that runs.
    pub(crate) fn new(cluster: TestCluster, has_secret: bool) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let mut store =
            Self { cluster, key: Key { id: String::new(), secret: String::new() }, has_secret, runtime };
        store.key = store.new_key("everything");
        store.must(0, &["key", "allow", &store.key.id, "--bucket", "*", "--permission", "read,write,owner"]);
        let client = store.s3(0);
        let made = store.run(async move { client.create_bucket(BUCKET).await.expect("an answer") });
        assert!(made.status.is_success(), "{made:?}");
        store
    }

    /// Makes a key that may create buckets, and nothing else.
    pub(crate) fn new_key(&self, name: &str) -> Key {
        let made = self.must(0, &["key", "create", name, "--json"]);
        serde_json::from_slice(&made.stdout).expect("a key")
    }

    /// Runs something that waits for clients.
    pub(crate) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    pub(crate) const fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Where a node speaks S3.
    pub(crate) fn endpoint(&self, index: usize) -> String {
        let api = self.cluster.api(index);
        format!("http://{}:{}", api.ip(), api.port() + 3)
    }

    /// A client of one node.
    pub(crate) fn s3(&self, index: usize) -> Arc<S3Client> {
        self.s3_with(index, &self.key)
    }

    /// The same with another key.
    pub(crate) fn s3_with(&self, index: usize, key: &Key) -> Arc<S3Client> {
        Arc::new(S3Client::new(&self.endpoint(index), &key.id, &key.secret))
    }

    /// Puts an object, and waits until it is confirmed.
    pub(crate) fn put(&self, index: usize, key: &str, body: Bytes) {
        let client = self.s3(index);
        let reply = self.run(async move { client.put(BUCKET, key, body, &[]).await.expect("an answer") });
        assert_eq!(reply.status.as_u16(), 200, "{key}: {}", reply.text());
    }

    pub(crate) fn get(&self, index: usize, key: &str) -> Reply {
        let client = self.s3(index);
        self.run(async move { client.get(BUCKET, key).await.expect("an answer") })
    }

    /// Runs the command line against a node.
    pub(crate) fn synod(&self, index: usize, arguments: &[&str]) -> Output {
        let api = format!("http://{}", self.cluster.api(index));
        let mut arguments = arguments.to_vec();
        arguments.extend(["--api", &api]);
        if self.has_secret {
            arguments.extend(["--secret-file", SECRET_FILE]);
        }
        self.cluster.synod(&arguments)
    }

    /// The same, and it must succeed.
    pub(crate) fn must(&self, index: usize, arguments: &[&str]) -> Output {
        let output = self.synod(index, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    /// What `synod store status` says of all nodes.
    pub(crate) fn statuses(&self) -> Vec<StoreStatusJson> {
        let output = self.must(0, &["store", "status", "--json"]);
        serde_json::from_slice(&output.stdout).expect("the objects of all nodes")
    }

    /// What one node says of itself.
    pub(crate) fn status(&self, index: usize) -> Result<StoreStatusJson, String> {
        self.cluster.get(index, "/v1/store")?.json()
    }

    /// Waits until all nodes store the same, and nothing is missing.
    pub(crate) fn until_whole(&self) -> Vec<StoreStatusJson> {
        eventually("all nodes store the same", || {
            let statuses = self.statuses();
            let whole = |one: &StoreStatusJson| {
                (one.entries, one.tombstones, one.parts, one.part_bytes) == {
                    let first = &statuses[0];
                    (first.entries, first.tombstones, first.parts, first.part_bytes)
                } && one.parts_missing == 0
                    && one.slots_learning == 0
                    && one.unrepaired.is_empty()
            };
            if statuses.len() == ALL.len() && statuses.iter().all(whole) {
                Ok(statuses)
            } else {
                Err(format!("{statuses:#?}"))
            }
        })
    }

    /// A line of `/proc/PID/status` of a node that is in KiB, in bytes.
    pub(crate) fn memory(&self, index: usize, name: &str) -> u64 {
        let text =
            fs::read_to_string(format!("/proc/{}/status", self.cluster.pid(index))).expect("a process");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    }

    /// The files of all parts of a node.
    pub(crate) fn part_files(&self, index: usize) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut dirs = vec![self.cluster.disk(index).join("objects/parts")];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).expect("a directory") {
                let path = entry.expect("an entry").path();
                if path.is_dir() { dirs.push(path) } else { files.push(path) }
            }
        }
        files
    }
}

/// Bytes that are different for every name, and cannot be compressed or mistaken for others.
pub(crate) fn bytes_of(name: u64, length: usize) -> Bytes {
    let mut random = fastrand::Rng::with_seed(name);
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes.into()
}
