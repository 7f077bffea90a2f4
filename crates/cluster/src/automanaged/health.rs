//! What `/_health` says: one JSON object, as protoactor-go's automanaged provider writes and reads it.
//!
//! ```json
//! {"id":"7gJoHJ","address":"127.0.0.1","auto_manage_port":6331,"port":8081,"kinds":["echo"],"cluster_name":"c"}
//! ```
//!
//! Ours has one key more, `"runtime":"synod"`, which Go does not look at. Reading is as lenient as Go's decoder (keys in
//! any case, unknown keys and `null` skipped, the last of doubled keys counts), but what was read is checked: it becomes
//! names and addresses that this node goes by.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeStruct, Serializer};
use synod_core::gossip::{GossipMemberId, GossipNameError};
use synod_core::roster::{PeerRuntime, RosterMember};
use synod_core::{Authority, AuthorityError};

/// What a node says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthReport {
    /// Who it is, where its peers reach it, and what it hosts.
    pub member: RosterMember,
    /// The port of its health endpoint, for information; 0 if it does not say.
    pub health_port: u16,
    /// The cluster that it belongs to.
    pub cluster_name: String,
}

impl HealthReport {
    /// The report as JSON. The keys come in protoactor-go's order, and ours last.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let encoded = serde_json::to_vec(self);
        assert!(encoded.is_ok(), "strings and numbers have a JSON form: {encoded:?}");
        encoded.unwrap_or_default()
    }
}

/// Reads a report.
///
/// # Errors
/// [`HealthError`] says what cannot be used. Nothing else is affected.
pub fn decode_health(body: &[u8]) -> Result<HealthReport, HealthError> {
    if body.len() > HEALTH_BYTES_MAX {
        return Err(HealthError::TooLarge);
    }
    let read: ReadReport =
        serde_json::from_slice(body).map_err(|error| HealthError::NotAReport { reason: excerpt(&error) })?;
    let id = GossipMemberId::new(&read.id).map_err(HealthError::Id)?;
    let port = port("port", read.port)?;
    let authority = authority(&read.address, port).map_err(HealthError::Address)?;
    let health_port =
        if read.auto_manage_port == 0 { 0 } else { self::port("auto_manage_port", read.auto_manage_port)? };
    check_kinds(&read.kinds)?;
    let runtime = if read.runtime_is_synod { PeerRuntime::Synod } else { PeerRuntime::Protoactor };
    let member = RosterMember { id, authority, kinds: read.kinds, runtime };
    Ok(HealthReport { member, health_port, cluster_name: read.cluster_name })
}

/// An answer cannot be used. It counts as no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HealthError {
    /// It is larger than [`HEALTH_BYTES_MAX`].
    #[error("the answer has more than {HEALTH_BYTES_MAX} bytes")]
    TooLarge,
    /// It is not a JSON object with values of the right types.
    #[error("the answer is no health report ({reason})")]
    NotAReport {
        /// What the parser said, cut short.
        reason: String,
    },
    /// The id is none.
    #[error("the id cannot be used: {0}")]
    Id(#[source] GossipNameError),
    /// A port is none.
    #[error("{field} is {value}, which is no port")]
    Port {
        /// Which.
        field: &'static str,
        /// The refused number.
        value: i64,
    },
    /// The host is none.
    #[error("the address cannot be used: {0}")]
    Address(#[source] AuthorityError),
    /// There are too many kinds.
    #[error("{kinds} kinds are too many, at most {KINDS_MAX} are taken")]
    TooManyKinds {
        /// How many.
        kinds: usize,
    },
    /// A kind is not a printable name of a bounded length.
    #[error("kind number {index} is no name of 1 to {KIND_BYTES_MAX} printable bytes")]
    Kind {
        /// Its position, from zero.
        index: usize,
    },
}

/// Whether every kind is a name that a member may announce.
pub(crate) fn check_kinds(kinds: &[String]) -> Result<(), HealthError> {
    if kinds.len() > KINDS_MAX {
        return Err(HealthError::TooManyKinds { kinds: kinds.len() });
    }
    let is_name =
        |kind: &String| (1..=KIND_BYTES_MAX).contains(&kind.len()) && !kind.chars().any(char::is_control);
    match kinds.iter().position(|kind| !is_name(kind)) {
        Some(index) => Err(HealthError::Kind { index }),
        None => Ok(()),
    }
}

fn port(field: &'static str, value: i64) -> Result<u16, HealthError> {
    match u16::try_from(value) {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(HealthError::Port { field, value }),
    }
}

/// Go writes the bare host; of an IPv6 address that is without the brackets it needs beside a port.
fn authority(host: &str, port: u16) -> Result<Authority, AuthorityError> {
    if host.contains(':') && !host.starts_with('[') {
        Authority::new(&format!("[{host}]:{port}"))
    } else {
        Authority::new(&format!("{host}:{port}"))
    }
}

/// The parser's words may repeat what was sent. They go to logs, so they are cut short and made printable.
fn excerpt(error: &serde_json::Error) -> String {
    error.to_string().chars().take(REASON_CHARS_MAX).flat_map(char::escape_debug).collect()
}

impl Serialize for HealthReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("HealthReport", 7)?;
        object.serialize_field("id", self.member.id.as_str())?;
        object.serialize_field("address", self.member.authority.host())?;
        object.serialize_field("auto_manage_port", &self.health_port)?;
        object.serialize_field("port", &self.member.authority.port())?;
        object.serialize_field("kinds", &self.member.kinds)?;
        object.serialize_field("cluster_name", &self.cluster_name)?;
        if self.member.runtime == PeerRuntime::Synod {
            object.serialize_field("runtime", SYNOD)?;
        }
        object.end()
    }
}

/// A report as it stands in the JSON, unchecked. What is missing has Go's zero value.
#[derive(Debug, Default)]
struct ReadReport {
    id: String,
    address: String,
    auto_manage_port: i64,
    port: i64,
    kinds: Vec<String>,
    cluster_name: String,
    runtime_is_synod: bool,
}

impl<'de> Deserialize<'de> for ReadReport {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ReportVisitor)
    }
}

struct ReportVisitor;

impl<'de> Visitor<'de> for ReportVisitor {
    type Value = ReadReport;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ReadReport, A::Error> {
        let mut read = ReadReport::default();
        while let Some(mut key) = map.next_key::<String>()? {
            key.make_ascii_lowercase();
            match key.as_str() {
                "id" => set(&mut read.id, map.next_value()?),
                "address" => set(&mut read.address, map.next_value()?),
                "auto_manage_port" => set(&mut read.auto_manage_port, map.next_value()?),
                "port" => set(&mut read.port, map.next_value()?),
                "kinds" => set(&mut read.kinds, map.next_value()?),
                "cluster_name" => set(&mut read.cluster_name, map.next_value()?),
                // To a Go node this is an unknown key, of whatever type.
                "runtime" => read.runtime_is_synod = map.next_value::<serde_json::Value>()? == SYNOD,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(read)
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

/// Largest answer that is read, in bytes.
pub const HEALTH_BYTES_MAX: usize = 64 * 1024;
/// Most kinds of one member.
pub const KINDS_MAX: usize = 1024;
/// Longest name of a kind, in bytes.
pub const KIND_BYTES_MAX: usize = 256;
/// How much of a parser's complaint is kept, in characters.
const REASON_CHARS_MAX: usize = 160;
const SYNOD: &str = "synod";

#[cfg(test)]
mod tests;
