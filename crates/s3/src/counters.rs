//! What a gateway has done, in numbers.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::lock;

/// What a gateway has done since it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayCounters {
    /// Requests by operation; those that nothing was asked of are left out.
    pub operations: Vec<OperationCounters>,
    /// Answers with an error, by its code.
    pub errors: BTreeMap<String, u64>,
    /// Bytes of bodies that came in.
    pub bytes_in: u64,
    /// Bytes of bodies that went out.
    pub bytes_out: u64,
    /// Connections that are open.
    pub connections: u64,
    /// Connections that were taken.
    pub connections_total: u64,
    /// How often a connection had to wait because as many as allowed were open.
    pub connections_delayed: u64,
}

/// What became of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationCounters {
    /// The operation as S3 calls it, or `Other`.
    pub operation: &'static str,
    /// Answers by status.
    pub statuses: BTreeMap<u16, u64>,
    /// How many answers took at most so many microseconds until their first byte; the last has no limit.
    pub latency: Vec<(Option<u64>, u64)>,
    /// Microseconds of all answers together.
    pub latency_sum_us: u64,
}

/// The counters themselves.
#[derive(Debug)]
pub(crate) struct Counted {
    operations: Vec<Operation>,
    errors: Mutex<BTreeMap<String, u64>>,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) connections_total: AtomicU64,
    pub(crate) connections_delayed: AtomicU64,
}

#[derive(Debug)]
struct Operation {
    statuses: [AtomicU64; STATUSES.len() + 1],
    latency: [AtomicU64; LATENCY_US.len() + 1],
    latency_sum_us: AtomicU64,
}

impl Counted {
    pub(crate) fn new() -> Self {
        let operation = || Operation {
            statuses: std::array::from_fn(|_| AtomicU64::new(0)),
            latency: std::array::from_fn(|_| AtomicU64::new(0)),
            latency_sum_us: AtomicU64::new(0),
        };
        Self {
            operations: (0..=OPERATIONS.len()).map(|_| operation()).collect(),
            errors: Mutex::new(BTreeMap::new()),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            connections_total: AtomicU64::new(0),
            connections_delayed: AtomicU64::new(0),
        }
    }

    /// An answer is about to be sent.
    pub(crate) fn answered(&self, operation: usize, status: u16, after: Duration) {
        let operation = &self.operations[operation.min(OPERATIONS.len())];
        let place = STATUSES.iter().position(|known| *known == status).unwrap_or(STATUSES.len());
        operation.statuses[place].fetch_add(1, Ordering::Relaxed);
        let us = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        let place = LATENCY_US.iter().position(|limit| us <= *limit).unwrap_or(LATENCY_US.len());
        operation.latency[place].fetch_add(1, Ordering::Relaxed);
        operation.latency_sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// An answer is an error.
    pub(crate) fn failed(&self, code: &str) {
        let mut errors = lock(&self.errors);
        if let Some(count) = errors.get_mut(code) {
            *count += 1;
        } else if errors.len() < ERROR_CODES_MAX {
            // Codes are ours and few; a bound holds even if they were not.
            errors.insert(code.to_owned(), 1);
        }
    }

    pub(crate) fn shown(&self) -> GatewayCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let names = OPERATIONS.iter().copied().chain(["Other"]);
        let operations = names.zip(&self.operations).filter_map(|(name, operation)| {
            let statuses: BTreeMap<u16, u64> = STATUSES
                .iter()
                .copied()
                .chain([0])
                .zip(&operation.statuses)
                .map(|(status, count)| (status, read(count)))
                .filter(|(_, count)| *count > 0)
                .collect();
            let limits = LATENCY_US.iter().copied().map(Some).chain([None]);
            let latency = limits.zip(&operation.latency).map(|(limit, count)| (limit, read(count))).collect();
            let latency_sum_us = read(&operation.latency_sum_us);
            let is_used = !statuses.is_empty();
            is_used.then_some(OperationCounters { operation: name, statuses, latency, latency_sum_us })
        });
        GatewayCounters {
            operations: operations.collect(),
            errors: lock(&self.errors).clone(),
            bytes_in: read(&self.bytes_in),
            bytes_out: read(&self.bytes_out),
            connections: read(&self.connections),
            connections_total: read(&self.connections_total),
            connections_delayed: read(&self.connections_delayed),
        }
    }
}

/// Operations that are counted by name.
pub(crate) const OPERATIONS: [&str; 37] = [
    "AbortMultipartUpload",
    "CompleteMultipartUpload",
    "CopyObject",
    "CreateBucket",
    "CreateMultipartUpload",
    "DeleteBucket",
    "DeleteBucketCors",
    "DeleteBucketLifecycle",
    "DeleteObject",
    "DeleteObjectTagging",
    "DeleteObjects",
    "GetBucketAcl",
    "GetBucketCors",
    "GetBucketLifecycleConfiguration",
    "GetBucketLocation",
    "GetBucketVersioning",
    "GetObject",
    "GetObjectAcl",
    "GetObjectAttributes",
    "GetObjectTagging",
    "HeadBucket",
    "HeadObject",
    "ListBuckets",
    "ListMultipartUploads",
    "ListObjectVersions",
    "ListObjects",
    "ListObjectsV2",
    "ListParts",
    "Preflight",
    "PutBucketAcl",
    "PutBucketCors",
    "PutBucketLifecycleConfiguration",
    "PutObject",
    "PutObjectAcl",
    "PutObjectTagging",
    "UploadPart",
    "UploadPartCopy",
];

/// Statuses that are counted by number; the others are 0.
const STATUSES: [u16; 17] =
    [200, 204, 206, 304, 400, 403, 404, 405, 408, 409, 411, 412, 416, 500, 501, 503, 507];
/// Limits of the latencies that are counted apart, in microseconds.
const LATENCY_US: [u64; 12] =
    [250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 2_500_000, 10_000_000];
/// How many codes are counted apart.
const ERROR_CODES_MAX: usize = 128;
