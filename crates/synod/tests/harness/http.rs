//! One request and its answer, over a connection of its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::de::DeserializeOwned;

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) etag: Option<String>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, String> {
        if self.status != 200 {
            return Err(format!("status {}: {}", self.status, self.body));
        }
        serde_json::from_str(&self.body).map_err(|error| format!("{error} in {}", self.body))
    }

    /// The epoch and the sequence of the tag.
    pub(crate) fn tag(&self) -> Option<(u64, u64)> {
        let (epoch, sequence) = self.etag.as_deref()?.trim_matches('"').split_once('.')?;
        Some((epoch.parse().ok()?, sequence.parse().ok()?))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| format!("no answer: {text:?}"))?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or("no status")?;
        let etag = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("etag").then(|| value.to_owned())
        });
        Ok(Self { status, etag, body: body.to_owned() })
    }
}

/// A request that was sent, and whose answer nobody has read yet.
pub(crate) struct Sent(TcpStream);

impl Sent {
    pub(crate) fn reply(mut self) -> Result<Reply, String> {
        let mut text = String::new();
        self.0.read_to_string(&mut text).map_err(|error| error.to_string())?;
        Reply::parse(&text)
    }
}

pub(crate) fn send(to: SocketAddr, method: &str, path: &str, body: &str) -> Result<Sent, String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.write_all(request(to, method, path, body).as_bytes()).map_err(failed)?;
    Ok(Sent(stream))
}

/// The same from inside a network namespace, where this process is not.
pub(crate) fn ask_in(
    namespace: &str,
    to: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> Result<Reply, String> {
    let script = "exec 3<>\"/dev/tcp/$0/$1\" && cat >&3 && cat <&3";
    let (host, port) = (to.ip().to_string(), to.port().to_string());
    let patience = PATIENCE.as_secs().to_string();
    let mut shell = Command::new("ip")
        .args(["netns", "exec", namespace, "timeout", &patience, "bash", "-c", script, &host, &port])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    // Without a connection nobody reads it; the output says why.
    let written =
        shell.stdin.take().map(|mut stdin| stdin.write_all(request(to, method, path, body).as_bytes()));
    let output = shell.wait_with_output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("{written:?}, {}", String::from_utf8_lossy(&output.stderr)));
    }
    Reply::parse(&String::from_utf8_lossy(&output.stdout))
}

fn request(to: SocketAddr, method: &str, path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// Longer than a node takes to give a request up.
const PATIENCE: Duration = Duration::from_secs(25);
