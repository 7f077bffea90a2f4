//! The least that three replicas with three disks can take for one job at a time, on this machine: nothing but the messages
//! and the syncs that an acknowledgement cannot do without.
//!
//! ```text
//!   client ──► leader ──┬──► follower: write, sync ──► answer ┬──► two of three are durable ──► client
//!                       ├──► write, sync ─────────────────────┘
//!                       └──► follower: write, sync, which nobody waits for
//! ```
//!
//! Each node is a process with blocking sockets and a file that is filled with zeros ahead, so that a sync has only data to
//! write. There is no term, no index, no checksum, no queue, no memory of what was done: whatever keeps a promise is slower.
//! One job under way at a time is all it can do. LIFE is two such rounds, one for the submission and one for the
//! acknowledgement, without the way to the worker and back.
//!
//! It needs nothing but the compiler: `rustc -O floor.rs`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        Some("node") => node(&arguments[1..]),
        _ => load(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("floor: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `node FILE BYTES [FOLLOWER...]`: tells its address, takes one connection, and makes durable what comes on it, BYTES at a
/// time. With followers it leads.
fn node(arguments: &[String]) -> io::Result<()> {
    let [file, bytes, followers @ ..] = arguments else { return Err(wrong("node FILE BYTES [FOLLOWER...]")) };
    let bytes = bytes.parse().map_err(io::Error::other)?;
    let mut disk = Disk::open(Path::new(file))?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let followers = followers.iter().map(connect).collect::<io::Result<Vec<_>>>()?;
    let (mut client, _) = listener.accept()?;
    client.set_nodelay(true)?;
    let mut body = vec![0; bytes];
    if followers.is_empty() {
        while client.read_exact(&mut body).is_ok() {
            disk.write(&body)?;
            client.write_all(&ANSWER)?;
        }
        return Ok(());
    }
    // Its own disk and that of the first follower are a majority. The second one has as much to do, and nobody waits for it.
    let [first, second] =
        <[TcpStream; 2]>::try_from(followers).map_err(|_| wrong("a leader has two followers"))?;
    let (mut first, mut second, mut unread) = (first, second.try_clone()?, second);
    thread::spawn(move || io::copy(&mut unread, &mut io::sink()));
    while client.read_exact(&mut body).is_ok() {
        first.write_all(&body)?;
        second.write_all(&body)?;
        disk.write(&body)?;
        first.read_exact(&mut [0; 1])?;
        client.write_all(&ANSWER)?;
    }
    Ok(())
}

/// A file that is written in one direction, over and over.
struct Disk {
    file: File,
    end: u64,
}

impl Disk {
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        file.write_all_at(&vec![0; FILE_BYTES as usize], 0)?;
        file.sync_all()?;
        Ok(Self { file, end: 0 })
    }

    fn write(&mut self, body: &[u8]) -> io::Result<()> {
        if self.end + body.len() as u64 > FILE_BYTES {
            self.end = 0;
        }
        self.file.write_all_at(body, self.end)?;
        self.end += body.len() as u64;
        self.file.sync_data()
    }
}

/// `--dir DIR [--bytes N] [--seconds S] [--in-flight N,N...]`: starts the nodes, puts a load on them, and prints the rows.
fn load(arguments: &[String]) -> io::Result<()> {
    let (mut dir, mut bytes, mut seconds, mut in_flight) = (None, 200, 5.0, "1".to_owned());
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| wrong("every option has a value"))?;
        match word.as_str() {
            "--dir" => dir = Some(PathBuf::from(value)),
            "--bytes" => bytes = value.parse().map_err(io::Error::other)?,
            "--seconds" => seconds = value.parse().map_err(io::Error::other)?,
            "--in-flight" => in_flight.clone_from(value),
            _ => return Err(wrong("the options are --dir, --bytes, --seconds and --in-flight")),
        }
    }
    let dir = dir.ok_or_else(|| wrong("--dir is missing"))?;
    if !(1..=1 << 20).contains(&bytes) {
        return Err(wrong("--bytes must be 1 to 1048576"));
    }
    std::fs::create_dir_all(&dir)?;
    let mut rows = Vec::new();
    for (operation, rounds) in [("ENQUEUE", 1), ("LIFE", 2)] {
        // With more than one at a time other things decide: there is no such row here.
        if in_flight.split(',').any(|count| count == "1") {
            rows.push(row(&dir, operation, rounds, bytes, Duration::from_secs_f64(seconds))?);
        }
    }
    println!("[{}]", rows.join(","));
    Ok(())
}

/// One row as the other loads print it, as JSON.
fn row(dir: &Path, operation: &str, rounds: u32, bytes: usize, time: Duration) -> io::Result<String> {
    let (second, third) = (Node::start(dir, 2, bytes, &[])?, Node::start(dir, 3, bytes, &[])?);
    let leader = Node::start(dir, 1, bytes, &[&second.address, &third.address])?;
    let mut stream = connect(&leader.address)?;
    let body = vec![b'x'; bytes];
    let (mut latencies, began) = (Vec::new(), Instant::now());
    while began.elapsed() < time {
        for round in 0..rounds {
            let sent = Instant::now();
            stream.write_all(&body)?;
            stream.read_exact(&mut [0; 1])?;
            if round == 0 {
                latencies.push(sent.elapsed());
            }
        }
    }
    let (took, jobs) = (began.elapsed().as_secs_f64(), latencies.len());
    latencies.sort_unstable();
    let at = |share: f64| latencies[((jobs - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    let (per_second, per_job) = (jobs as f64 / took, if rounds == 1 { 1.0 } else { 3.0 });
    eprintln!(
        "{operation:<7} {:>5} in flight: {per_second:>9.1} jobs/s, p50 {:.3} ms, p99 {:.3} ms",
        1,
        at(0.5),
        at(0.99)
    );
    Ok(format!(
        "{{\"operation\":\"{operation}\",\"bytes\":{bytes},\"in_flight\":1,\"jobs_per_second\":{per_second},\
         \"operations_per_second\":{},\"p50_ms\":{},\"p99_ms\":{},\"jobs\":{jobs},\"errors\":0}}",
        per_second * per_job,
        at(0.5),
        at(0.99)
    ))
}

/// A process, for as long as this lives.
struct Node {
    child: Child,
    address: String,
}

impl Node {
    fn start(dir: &Path, number: u32, bytes: usize, followers: &[&str]) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("node").arg(dir.join(format!("floor-{number}"))).arg(bytes.to_string()).args(followers);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut told = child.stdout.take().ok_or_else(|| wrong("a node has no output"))?;
        let mut node = Self { child, address: String::new() };
        let mut letter = [0; 1];
        while told.read(&mut letter)? == 1 && letter != *b"\n" {
            node.address.push(char::from(letter[0]));
        }
        Ok(node)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn connect(address: impl AsRef<str>) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address.as_ref())?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn wrong(what: &str) -> io::Error {
    io::Error::other(what)
}

/// What says that something is durable.
const ANSWER: [u8; 1] = [1];
/// How large the file of a node is.
const FILE_BYTES: u64 = 8 << 20;
