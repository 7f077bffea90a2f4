//! How a grain changes its host, as synod nodes say it to each other. A Go node is never told any of this.
//!
//! ```text
//!   new owner ── Claim ──────────────────────► previous owner
//!             ◄── Relocation, or Outdated ────
//!             ── Receipt ────────────────────►
//! ```
//!
//! Whatever comes in is read into the types of the machine, or refused: names have the bounds of names, and no list is
//! longer than it needs to be. How large a state may be the machine knows.

use bytes::Bytes;
use synod_core::gossip::GossipMemberId;
use synod_core::grains::{
    ActorPid, BEFORE_MAX, ClaimId, ClaimRecord, ClusterIdentity, GrainHost, GrainSnapshot, RelocationReceipt,
    RelocationRecord, STOPPED_MAX,
};

use crate::remote::Message;

/// What one node says to another about a grain that changes its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HandoverMessage {
    /// Yield it.
    Claim(ClaimRecord),
    /// You lag behind.
    Outdated { grain: ClusterIdentity, claim: ClaimId, by: GossipMemberId },
    /// It is yielded.
    Relocation(RelocationRecord),
    /// It has arrived.
    Receipt(RelocationReceipt),
}

impl HandoverMessage {
    pub(super) fn write(&self) -> Message {
        match self {
            Self::Claim(claim) => Message::new(&Claim {
                grain: Some((&claim.grain).into()),
                from: Some((&claim.from).into()),
                number: claim.number,
                roster: claim.roster,
            }),
            Self::Outdated { grain, claim, by } => Message::new(&Outdated {
                grain: Some(grain.into()),
                claimer: claim.claimer.to_string(),
                number: claim.number,
                by: by.to_string(),
            }),
            Self::Relocation(record) => Message::new(&Relocation {
                grain: Some((&record.grain).into()),
                from: Some((&record.from).into()),
                stopped: record.stopped.iter().map(ToString::to_string).collect(),
                state: record.snapshot.as_ref().map(|snapshot| State {
                    version: snapshot.version,
                    bytes: Bytes::copy_from_slice(&snapshot.bytes),
                }),
                claimer: record.claim.as_ref().map(|claim| claim.claimer.to_string()),
                number: record.claim.as_ref().map_or(0, |claim| claim.number),
                before: record.before.iter().map(Host::from).collect(),
                went: record.went.as_ref().map(Host::from),
                is_leaving: record.is_leaving,
            }),
            Self::Receipt(receipt) => Message::new(&Receipt {
                grain: Some((&receipt.grain).into()),
                by: receipt.by.to_string(),
                stopped: receipt.stopped.iter().map(ToString::to_string).collect(),
                version: receipt.version,
            }),
        }
    }

    /// Reads a message. `None` when it is about something else.
    pub(super) fn read(message: &Message) -> Option<Result<Self, String>> {
        if message.is::<Claim>() {
            Some(decoded(message).and_then(Claim::read))
        } else if message.is::<Relocation>() {
            Some(decoded(message).and_then(Relocation::read))
        } else if message.is::<Receipt>() {
            Some(decoded(message).and_then(Receipt::read))
        } else if message.is::<Outdated>() {
            Some(decoded(message).and_then(Outdated::read))
        } else {
            None
        }
    }
}

fn decoded<M: prost::Message + prost::Name + Default>(message: &Message) -> Result<M, String> {
    message.decode().map_err(|error| error.to_string())
}

#[derive(Clone, PartialEq, prost::Message)]
struct Grain {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    identity: String,
}

impl From<&ClusterIdentity> for Grain {
    fn from(grain: &ClusterIdentity) -> Self {
        Self { kind: grain.kind().to_owned(), identity: grain.identity().to_owned() }
    }
}

impl Grain {
    fn read(grain: Option<Self>) -> Result<ClusterIdentity, String> {
        let Self { kind, identity } = grain.ok_or("a hand-over of no grain")?;
        ClusterIdentity::new(&kind, &identity).map_err(|error| error.to_string())
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct Host {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    authority: String,
}

impl From<&GrainHost> for Host {
    fn from(host: &GrainHost) -> Self {
        Self { id: host.id.to_string(), authority: host.authority.to_string() }
    }
}

impl Host {
    fn read(self) -> Result<GrainHost, String> {
        let authority = self.authority.parse().map_err(|error| format!("a host of a grain: {error}"))?;
        Ok(GrainHost { id: member(&self.id)?, authority })
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct Claim {
    #[prost(message, optional, tag = "1")]
    grain: Option<Grain>,
    #[prost(message, optional, tag = "2")]
    from: Option<Host>,
    #[prost(uint64, tag = "3")]
    number: u64,
    #[prost(fixed64, tag = "4")]
    roster: u64,
}

impl Claim {
    fn read(self) -> Result<HandoverMessage, String> {
        let Self { grain, from, number, roster } = self;
        let from = from.ok_or("a claim of nobody")?.read()?;
        Ok(HandoverMessage::Claim(ClaimRecord { grain: Grain::read(grain)?, from, number, roster }))
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct Outdated {
    #[prost(message, optional, tag = "1")]
    grain: Option<Grain>,
    #[prost(string, tag = "2")]
    claimer: String,
    #[prost(uint64, tag = "3")]
    number: u64,
    #[prost(string, tag = "4")]
    by: String,
}

impl Outdated {
    fn read(self) -> Result<HandoverMessage, String> {
        let Self { grain, claimer, number, by } = self;
        let claim = ClaimId { claimer: member(&claimer)?, number };
        Ok(HandoverMessage::Outdated { grain: Grain::read(grain)?, claim, by: member(&by)? })
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct State {
    #[prost(uint64, tag = "1")]
    version: u64,
    #[prost(bytes = "bytes", tag = "2")]
    bytes: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Relocation {
    #[prost(message, optional, tag = "1")]
    grain: Option<Grain>,
    #[prost(message, optional, tag = "2")]
    from: Option<Host>,
    #[prost(string, repeated, tag = "3")]
    stopped: Vec<String>,
    #[prost(message, optional, tag = "4")]
    state: Option<State>,
    #[prost(string, optional, tag = "5")]
    claimer: Option<String>,
    #[prost(uint64, tag = "6")]
    number: u64,
    #[prost(message, repeated, tag = "7")]
    before: Vec<Host>,
    #[prost(message, optional, tag = "8")]
    went: Option<Host>,
    #[prost(bool, tag = "9")]
    is_leaving: bool,
}

impl Relocation {
    fn read(self) -> Result<HandoverMessage, String> {
        let Self { grain, from, stopped, state, claimer, number, before, went, is_leaving } = self;
        if before.len() > BEFORE_MAX {
            return Err(format!("a hand-over that names {} hosts", before.len()));
        }
        let from = from.ok_or("a hand-over of nobody")?.read()?;
        let stopped = activations(&stopped)?;
        let claim = match claimer {
            Some(claimer) => Some(ClaimId { claimer: member(&claimer)?, number }),
            None => None,
        };
        Ok(HandoverMessage::Relocation(RelocationRecord {
            grain: Grain::read(grain)?,
            from,
            stopped,
            snapshot: state.map(|State { version, bytes }| GrainSnapshot { version, bytes: (*bytes).into() }),
            claim,
            before: before.into_iter().map(Host::read).collect::<Result<_, _>>()?,
            went: went.map(Host::read).transpose()?,
            is_leaving,
        }))
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct Receipt {
    #[prost(message, optional, tag = "1")]
    grain: Option<Grain>,
    #[prost(string, tag = "2")]
    by: String,
    #[prost(string, repeated, tag = "3")]
    stopped: Vec<String>,
    #[prost(uint64, optional, tag = "4")]
    version: Option<u64>,
}

impl Receipt {
    fn read(self) -> Result<HandoverMessage, String> {
        let Self { grain, by, stopped, version } = self;
        let (grain, by, stopped) = (Grain::read(grain)?, member(&by)?, activations(&stopped)?);
        Ok(HandoverMessage::Receipt(RelocationReceipt { grain, by, stopped, version }))
    }
}

fn member(id: &str) -> Result<GossipMemberId, String> {
    GossipMemberId::new(id).map_err(|error| error.to_string())
}

fn activations(pids: &[String]) -> Result<Vec<ActorPid>, String> {
    if pids.len() > STOPPED_MAX {
        return Err(format!("a hand-over that names {} activations", pids.len()));
    }
    let read = pids.iter().map(|pid| pid.parse());
    read.collect::<Result<_, _>>().map_err(|error: synod_core::grains::PidError| error.to_string())
}

macro_rules! names {
    ($($message:ident),*) => {
        $(impl prost::Name for $message {
            const NAME: &'static str = stringify!($message);
            const PACKAGE: &'static str = "synod.grains";
        })*
    };
}

names!(Claim, Outdated, Relocation, Receipt);

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> GrainHost {
        let id = GossipMemberId::new(&format!("{name}#1")).expect("an id");
        GrainHost { id, authority: format!("{name}:1").parse().expect("an authority") }
    }

    fn grain() -> ClusterIdentity {
        "Chat/a/b".parse().expect("a name")
    }

    fn relocation() -> RelocationRecord {
        RelocationRecord {
            grain: grain(),
            from: host("one"),
            stopped: ["one:1/x$1", "six:1/x$2"].map(|pid| pid.parse().expect("a PID")).into(),
            snapshot: Some(GrainSnapshot { version: 0, bytes: [].into() }),
            claim: Some(ClaimId { claimer: host("two").id, number: 7 }),
            before: vec![host("three"), host("four")],
            went: Some(host("five")),
            is_leaving: true,
        }
    }

    #[test]
    fn what_is_said_is_understood() {
        let nothing = RelocationRecord {
            stopped: vec![],
            snapshot: None,
            claim: None,
            before: vec![],
            went: None,
            is_leaving: false,
            ..relocation()
        };
        let (grain, by) = (grain(), host("one").id);
        let claim = ClaimId { claimer: host("two").id, number: u64::MAX };
        let messages = [
            HandoverMessage::Claim(ClaimRecord {
                grain: grain.clone(),
                from: host("two"),
                number: 1,
                roster: 2,
            }),
            HandoverMessage::Outdated { grain: grain.clone(), claim, by: by.clone() },
            HandoverMessage::Relocation(relocation()),
            HandoverMessage::Relocation(nothing),
            HandoverMessage::Receipt(RelocationReceipt {
                grain,
                by,
                stopped: relocation().stopped,
                version: Some(0),
            }),
        ];
        for message in messages {
            assert_eq!(HandoverMessage::read(&message.write()), Some(Ok(message)));
        }
        assert_eq!(HandoverMessage::read(&Message::new(&String::new())), None);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let sound =
            || -> Relocation { decoded(&HandoverMessage::Relocation(relocation()).write()).expect("sound") };
        let stranger = Host { id: "one#1".into(), authority: "nowhere".into() };
        let cases = [
            Relocation { grain: None, ..sound() },
            Relocation { grain: Some(Grain { kind: "a/b".into(), identity: "c".into() }), ..sound() },
            Relocation { from: None, ..sound() },
            Relocation { from: Some(stranger.clone()), ..sound() },
            Relocation { stopped: vec!["no pid".into()], ..sound() },
            Relocation { stopped: vec!["one:1/x$1".into(); STOPPED_MAX + 1], ..sound() },
            Relocation { claimer: Some(String::new()), ..sound() },
            Relocation { before: vec![(&host("three")).into(); BEFORE_MAX + 1], ..sound() },
            Relocation { went: Some(stranger), ..sound() },
        ];
        for hostile in cases {
            let read = HandoverMessage::read(&Message::new(&hostile));
            assert!(matches!(read, Some(Err(_))), "{hostile:?}");
        }
        let claim = Claim { grain: Some((&grain()).into()), from: None, number: 1, roster: 1 };
        assert!(matches!(HandoverMessage::read(&Message::new(&claim)), Some(Err(_))));
    }
}
