//! `synod bench s3`: PUT, GET and LIST at several sizes and numbers of clients.
//!
//! Every client is a loop: the next request goes out when the answer to the last one is in. Clients are spread over the
//! endpoints. A row runs for some seconds, and at least once per client; what is put in a row of PUT is what the row of GET
//! of the same size gets. LIST reads a page of [`LISTED`] keys that are put for it, so that every service lists as much.
//! COPY is what GET of the largest size is held against: a file of that size, warm, sent over a loopback connection by the
//! operating system and read to its end.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anstream::eprintln;
use bytes::Bytes;
use http::Method;
use serde::Serialize;
use synod_s3::client::{ClientError, Reply, S3Client};

use crate::inspect::{json, print};
use crate::terminal::{RED, table, with_runtime};

/// How many keys LIST finds, which is one page.
const LISTED: u64 = 1000;

/// How many of them are put at once.
const LISTED_AT_ONCE: u64 = 32;

/// Arguments of `synod bench s3`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the service listens: `http://HOST:PORT`, several with commas.
    #[arg(long, value_name = "URL", value_delimiter = ',', required = true)]
    endpoint: Vec<String>,
    /// The id of an access key.
    #[arg(long, value_name = "ID")]
    access_key: String,
    /// Its secret.
    #[arg(long, value_name = "SECRET")]
    secret_key: String,
    /// The region to sign for.
    #[arg(long, default_value = "us-east-1")]
    region: String,
    /// A bucket that may be written to. It is created if it is not there.
    #[arg(long, default_value = "bench")]
    bucket: String,
    /// The sizes of objects in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [4096, 1 << 20, 64 << 20])]
    bytes: Vec<usize>,
    /// The numbers of clients.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64])]
    clients: Vec<usize>,
    /// How long a row runs.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// One line of the result.
#[derive(Clone, Debug, Serialize)]
struct Row {
    operation: &'static str,
    bytes: usize,
    clients: usize,
    per_second: f64,
    mib_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    requests: usize,
    errors: usize,
    /// What the first request that failed was answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_error: Option<String>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    with_runtime(async {
        let clients: Vec<Arc<S3Client>> = args
            .endpoint
            .iter()
            .map(|url| {
                Arc::new(S3Client::new(url, &args.access_key, &args.secret_key).with_region(&args.region))
            })
            .collect();
        if let Err(reason) = prepare(&clients, &args.bucket).await {
            eprintln!("{RED}error:{RED:#} {reason}");
            return ExitCode::FAILURE;
        }
        let mut rows = Vec::new();
        for bytes in &args.bytes {
            let body = random_bytes(*bytes);
            for count in &args.clients {
                let load = Load { clients: &clients, args, count: *count, bytes: *bytes };
                let stored = AtomicU64::new(0);
                rows.push(load.put(&body, &stored).await);
                rows.push(load.get(stored.load(Ordering::Relaxed)).await);
                for row in rows.iter().rev().take(2).rev() {
                    progress(row);
                }
            }
        }
        if let Some(largest) = args.bytes.iter().max() {
            match copy::run(*largest, args.seconds) {
                Ok(row) => rows.push(row),
                Err(error) => {
                    eprintln!("{RED}error:{RED:#} a file cannot be copied over loopback: {error}");
                    return ExitCode::FAILURE;
                }
            }
            progress(&rows[rows.len() - 1]);
        }
        if let Err(reason) = put_listed(&clients, &args.bucket).await {
            eprintln!("{RED}error:{RED:#} the keys to list cannot be put: {reason}");
            return ExitCode::FAILURE;
        }
        for count in &args.clients {
            let load = Load { clients: &clients, args, count: *count, bytes: 0 };
            rows.push(load.list().await);
            progress(&rows[rows.len() - 1]);
        }
        let is_clean = rows.iter().all(|row| row.errors == 0);
        print(&if args.json { json(&rows) } else { show(&rows) });
        match is_clean {
            true => ExitCode::SUCCESS,
            false => {
                for row in rows.iter().filter(|row| row.errors > 0) {
                    eprintln!(
                        "{RED}error:{RED:#} {} of {} requests failed in {} of {} bytes by {} clients: {}",
                        row.errors,
                        row.requests,
                        row.operation,
                        row.bytes,
                        row.clients,
                        row.first_error.as_deref().unwrap_or_default()
                    );
                }
                ExitCode::FAILURE
            }
        }
    })
}

struct Load<'a> {
    clients: &'a [Arc<S3Client>],
    args: &'a Args,
    count: usize,
    bytes: usize,
}

impl Load<'_> {
    async fn put(&self, body: &Bytes, stored: &AtomicU64) -> Row {
        let next = Arc::new(AtomicU64::new(0));
        let (body, bucket, prefix, drawn) =
            (body.clone(), self.args.bucket.clone(), self.prefix(), Arc::clone(&next));
        let row = self
            .run("PUT", move |client, _| {
                let (body, bucket) = (body.clone(), bucket.clone());
                let key = format!("{prefix}{:08}", drawn.fetch_add(1, Ordering::Relaxed));
                async move { succeeded(client.put(&bucket, &key, body, &[]).await) }
            })
            .await;
        stored.store(next.load(Ordering::Relaxed), Ordering::Relaxed);
        row
    }

    async fn get(&self, stored: u64) -> Row {
        let (expected, bucket, prefix) = (self.bytes as u64, self.args.bucket.clone(), self.prefix());
        self.run("GET", move |client, draw| {
            let bucket = bucket.clone();
            let key = format!("{prefix}{:08}", draw % stored.max(1));
            async move {
                match client.count(&bucket, &key).await {
                    Ok((status, bytes)) if status.is_success() && bytes == expected => Ok(()),
                    Ok((status, bytes)) => Err(format!("{status} with {bytes} bytes")),
                    Err(error) => Err(error.to_string()),
                }
            }
        })
        .await
    }

    async fn list(&self) -> Row {
        let bucket = self.args.bucket.clone();
        self.run("LIST", move |client, _| {
            let bucket = bucket.clone();
            async move {
                let query = [("list-type", "2"), ("max-keys", "1000"), ("prefix", "listed/")];
                let reply = client.call(Method::GET, &format!("/{bucket}"), &query, &[], Bytes::new()).await;
                match reply.as_ref().map_or(0, |reply| reply.text().matches("<Key>").count() as u64) {
                    LISTED => Ok(()),
                    found => succeeded(reply).and_then(|()| Err(format!("{found} keys instead of {LISTED}"))),
                }
            }
        })
        .await
    }

    fn prefix(&self) -> String {
        format!("{}/{}/", self.bytes, self.count)
    }

    async fn run<F>(
        &self,
        operation: &'static str,
        request: impl Fn(Arc<S3Client>, u64) -> F + Send + Sync + 'static,
    ) -> Row
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let began = Instant::now();
        let until = began + Duration::from_secs_f64(self.args.seconds);
        let request = Arc::new(request);
        let mut loops = tokio::task::JoinSet::new();
        for index in 0..self.count {
            let client = Arc::clone(&self.clients[index % self.clients.len()]);
            let request = Arc::clone(&request);
            loops.spawn(async move {
                let mut tally = Tally::default();
                let mut draws = fastrand::Rng::with_seed(index as u64);
                loop {
                    let sent = Instant::now();
                    if let Err(reason) = request(Arc::clone(&client), draws.u64(..)).await {
                        tally.errors += 1;
                        tally.first_error.get_or_insert(reason);
                    }
                    tally.times.push(sent.elapsed());
                    if Instant::now() >= until {
                        return tally;
                    }
                }
            });
        }
        let mut tally = Tally::default();
        for some in loops.join_all().await {
            tally.times.extend(some.times);
            tally.errors += some.errors;
            tally.first_error = tally.first_error.or(some.first_error);
        }
        tally.into_row(operation, self.bytes, self.count, began.elapsed())
    }
}

/// What a loop of requests saw.
#[derive(Default)]
struct Tally {
    times: Vec<Duration>,
    errors: usize,
    first_error: Option<String>,
}

impl Tally {
    fn into_row(mut self, operation: &'static str, bytes: usize, clients: usize, ran: Duration) -> Row {
        self.times.sort_unstable();
        let at = |part: f64| {
            let index = (self.times.len().saturating_sub(1) as f64 * part).round() as usize;
            self.times.get(index).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
        };
        let per_second = self.times.len() as f64 / ran.as_secs_f64();
        Row {
            operation,
            bytes,
            clients,
            per_second,
            mib_per_second: per_second * bytes as f64 / f64::from(1 << 20),
            p50_ms: at(0.50),
            p99_ms: at(0.99),
            requests: self.times.len(),
            errors: self.errors,
            first_error: self.first_error,
        }
    }
}

fn succeeded(reply: Result<Reply, ClientError>) -> Result<(), String> {
    match reply {
        Ok(reply) if reply.status.is_success() => Ok(()),
        Ok(reply) => Err(format!("{} {}", reply.status, reply.text())),
        Err(error) => Err(error.to_string()),
    }
}

async fn put_listed(clients: &[Arc<S3Client>], bucket: &str) -> Result<(), String> {
    let next = Arc::new(AtomicU64::new(0));
    let mut loops = tokio::task::JoinSet::new();
    for index in 0..LISTED_AT_ONCE {
        let client = Arc::clone(&clients[index as usize % clients.len()]);
        let (next, bucket) = (Arc::clone(&next), bucket.to_owned());
        loops.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= LISTED {
                    return Ok(());
                }
                succeeded(client.put(&bucket, &format!("listed/{number:08}"), Bytes::new(), &[]).await)?;
            }
        });
    }
    loops.join_all().await.into_iter().collect()
}

/// What the operating system does alone.
mod copy {
    use std::fs::File;
    use std::io::{self, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::{Row, Tally, random_bytes};

    /// How much the reader takes at a time.
    const TAKEN: usize = 256 << 10;

    /// Sends a file over loopback again and again, by one sender to one reader.
    pub(super) fn run(bytes: usize, seconds: f64) -> io::Result<Row> {
        // It needs no name once it is open.
        let path = std::env::temp_dir().join(format!("synod-bench-copy-{}", std::process::id()));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        file.write_all(&random_bytes(bytes))?;
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let began = Instant::now();
        let until = began + Duration::from_secs_f64(seconds);
        let sender = std::thread::spawn(move || -> io::Result<()> {
            loop {
                let (mut connection, _) = listener.accept()?;
                io::Seek::rewind(&mut file)?;
                io::copy(&mut file, &mut connection)?;
                if Instant::now() >= until {
                    return Ok(());
                }
            }
        });
        let (mut tally, mut buffer) = (Tally::default(), vec![0; TAKEN]);
        while let Ok(mut connection) = TcpStream::connect(address) {
            let (sent, mut taken) = (Instant::now(), 0);
            loop {
                match connection.read(&mut buffer)? {
                    0 => break,
                    count => taken += count,
                }
            }
            if taken < bytes {
                break;
            }
            tally.times.push(sent.elapsed());
        }
        let ran = began.elapsed();
        match sender.join() {
            Ok(ended) => ended.map(|()| tally.into_row("COPY", bytes, 1, ran)),
            Err(_) => Err(io::Error::other("the sender panicked")),
        }
    }
}

async fn prepare(clients: &[Arc<S3Client>], bucket: &str) -> Result<(), String> {
    for client in clients {
        let head = client.call(Method::HEAD, &format!("/{bucket}"), &[], &[], Bytes::new()).await;
        let head = head.map_err(|error| error.to_string())?;
        if head.status.as_u16() == 404 {
            let made = client.create_bucket(bucket).await.map_err(|error| error.to_string())?;
            if !made.status.is_success() {
                return Err(format!("the bucket {bucket} cannot be created: {}", made.text()));
            }
        } else if !head.status.is_success() {
            return Err(format!("the bucket {bucket} cannot be used: {}", head.status));
        }
    }
    Ok(())
}

/// Bytes that nothing can compress.
fn random_bytes(count: usize) -> Bytes {
    let mut bytes = vec![0; count];
    fastrand::Rng::with_seed(7).fill(&mut bytes);
    bytes.into()
}

fn progress(row: &Row) {
    eprintln!(
        "{:<4} {:>9} B {:>3} clients: {:>9.1}/s {:>8.1} MiB/s, p50 {:.2} ms, p99 {:.2} ms",
        row.operation, row.bytes, row.clients, row.per_second, row.mib_per_second, row.p50_ms, row.p99_ms
    );
}

fn show(rows: &[Row]) -> String {
    let lines = rows.iter().map(|row| {
        vec![
            row.operation.to_owned(),
            row.bytes.to_string(),
            row.clients.to_string(),
            format!("{:.1}", row.per_second),
            format!("{:.1}", row.mib_per_second),
            format!("{:.2}", row.p50_ms),
            format!("{:.2}", row.p99_ms),
            row.errors.to_string(),
        ]
    });
    let head = ["OPERATION", "BYTES", "CLIENTS", "PER SECOND", "MIB/S", "P50 MS", "P99 MS", "ERRORS"];
    table(&head, &lines.collect::<Vec<_>>())
}
