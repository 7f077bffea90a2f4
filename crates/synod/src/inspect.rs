//! `synod status`, `members`, `slots` and `explain`: what the nodes of a cluster say about it.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anstream::{eprintln, stdout};
use clap::Subcommand;
use serde::Serialize;
use serde::de::DeserializeOwned;
use synod_core::NodeId;
use synod_core::jobs::JobId;
use synod_store::admin::AdminToken;
use synod_store::api::{MemberExplanation, MemberJson, SlotExplanation, SlotJson, StatusJson};
use synod_store::config::ClusterSecret;
use synod_store::http_client::{HttpError, call_json, get_json};

use crate::terminal::{BOLD, GREEN, RED, USAGE_ERROR, table, with_runtime};

/// Whom to ask, and how to tell.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AskArgs {
    /// The api of any node of the cluster.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8400", value_parser = api_url)]
    pub(crate) api: String,
    /// The file with the secret of the cluster, if it has one: what changes something needs it.
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl AskArgs {
    /// What is shown to nodes, so that they do what they are told.
    pub(crate) fn token(&self) -> Result<Option<AdminToken>, ExitCode> {
        let secret = self.secret_file.as_deref().map(ClusterSecret::read).transpose();
        secret.map(|secret| secret.as_ref().map(AdminToken::of)).map_err(|error| {
            eprintln!("{RED}error:{RED:#} {error}");
            ExitCode::from(USAGE_ERROR)
        })
    }
}

/// Arguments of a listing.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    /// Ask again every second, until interrupted.
    #[arg(long)]
    pub(crate) watch: bool,
}

/// Arguments of `synod slots`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SlotsArgs {
    /// Only the slots that this node stores.
    #[arg(long, value_name = "NAME")]
    node: Option<NodeId>,
    /// Only this slot.
    #[arg(long, value_name = "N")]
    slot: Option<u16>,
    #[command(flatten)]
    list: ListArgs,
}

/// What to explain.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Explain {
    /// Why a slot is in its state: who serves it, who voted, what each replica keeps.
    Slot {
        /// The slot.
        slot: u16,
        #[command(flatten)]
        ask: AskArgs,
    },
    /// What became of a job: every event of its life that is remembered, with its time, and who had to do with it.
    Job {
        /// The job.
        #[arg(value_parser = crate::queue::job_id)]
        job: JobId,
        #[command(flatten)]
        ask: AskArgs,
    },
    /// Why a member is in its state: what each node thinks of it, and on which evidence.
    Member {
        /// The member.
        name: NodeId,
        #[command(flatten)]
        ask: AskArgs,
    },
}

pub(crate) fn status(args: &ListArgs) -> ExitCode {
    let url = format!("{}/v1/status", args.ask.api);
    list(args, &url, |status: &StatusJson| {
        let mut lines = vec![format!(
            "{BOLD}{}{BOLD:#}, life {}, of cluster {}",
            status.node_id, status.incarnation, status.cluster_id
        )];
        lines.push(match &status.reason {
            None => format!("{GREEN}ready{GREEN:#}"),
            Some(reason) => format!("{RED}not ready{RED:#}: {reason}"),
        });
        lines.push(format!("nodes   {} of {} alive", status.nodes_alive, status.nodes));
        let StatusJson { slots, slots_served_here, slots_vacant, slots_learning, .. } = status;
        lines.push(format!(
            "slots   {slots}, {slots_served_here} served here, {slots_vacant} without a primary"
        ));
        if *slots_learning > 0 {
            lines.push(format!("memory  {slots_learning} slots to be learned about"));
        }
        lines.push(format!("uptime  {} s, synod {}", status.uptime_sec, status.version));
        lines.join("\n")
    })
}

pub(crate) fn members(args: &ListArgs) -> ExitCode {
    let url = format!("{}/v1/members", args.ask.api);
    list(args, &url, |members: &Vec<MemberJson>| {
        let rows = members.iter().map(|member| {
            let heard = member.last_heard_ms.map_or_else(|| "-".to_owned(), |age| format!("{age} ms ago"));
            vec![
                member.node_id.clone(),
                member.incarnation.to_string(),
                member.status.clone(),
                member.address.clone(),
                member.slots.to_string(),
                heard,
            ]
        });
        table(&["NODE", "LIFE", "STATUS", "ADDRESS", "SLOTS", "HEARD"], &rows.collect::<Vec<_>>())
    })
}

pub(crate) fn slots(args: &SlotsArgs) -> ExitCode {
    let mut asked = Vec::new();
    asked.extend(args.node.as_ref().map(|node| format!("node={node}")));
    asked.extend(args.slot.map(|slot| format!("slot={slot}")));
    let url = format!("{}/v1/slots?{}", args.list.ask.api, asked.join("&"));
    list(&args.list, &url, |slots: &Vec<SlotJson>| {
        let rows = slots.iter().map(|slot| {
            vec![
                slot.slot.to_string(),
                slot.epoch.to_string(),
                slot.primary.clone().unwrap_or_else(|| "-".to_owned()),
                slot.replicas.join(","),
                slot.state.clone(),
            ]
        });
        table(&["SLOT", "EPOCH", "PRIMARY", "REPLICAS", "STATE"], &rows.collect::<Vec<_>>())
    })
}

pub(crate) fn explain(what: &Explain) -> ExitCode {
    match what {
        Explain::Slot { slot, ask } => with_runtime(explain_slot(*slot, ask)),
        Explain::Job { job, ask } => crate::queue::explain(*job, ask),
        Explain::Member { name, ask } => with_runtime(explain_member(name, ask)),
    }
}

async fn explain_slot(slot: u16, ask: &AskArgs) -> ExitCode {
    let opinions: Vec<SlotExplanation> = match opinions(ask, &format!("/v1/slots/{slot}")).await {
        Ok(opinions) => opinions,
        Err(error) => return fail(&error),
    };
    if ask.json {
        return print(&json(&opinions));
    }
    let Some(newest) = opinions.iter().max_by_key(|opinion| opinion.slot.epoch) else {
        return ExitCode::FAILURE;
    };
    let mut lines = Vec::new();
    match &newest.slot.primary {
        None => lines.push(format!("slot {slot} never had a primary")),
        Some(primary) => {
            let epoch = newest.slot.epoch;
            lines.push(format!("slot {slot} is served by {BOLD}{primary}{BOLD:#} in epoch {epoch}"));
            let since = newest.since_unix_ms.map_or_else(String::new, ago);
            lines.push(format!("since    {since}"));
            lines.push(format!("because  {}", newest.cause.as_deref().unwrap_or("nobody knows")));
            lines.push(format!("votes    {}", newest.granted_by.join(", ")));
        }
    }
    lines.push(format!("stored by {}", newest.slot.replicas.join(", ")));
    for opinion in &opinions {
        let primary = opinion.slot.primary.as_deref().unwrap_or("nobody");
        let standing = opinion.primary_status.as_deref().unwrap_or("unknown");
        lines.push(format!("{} sees {primary} ({standing}) in epoch {}", opinion.by, opinion.slot.epoch));
        let Some(replica) = &opinion.replica else { continue };
        let to = replica.granted_to.as_ref().map_or_else(String::new, |to| format!(" to {to}"));
        lines.push(format!("  promised epoch {}{to}", replica.promised));
        lines.push(format!("  stores {}", replica.stored.as_deref().unwrap_or("nothing")));
        if replica.serves {
            lines.push("  serves the slot".to_owned());
        } else {
            lines.push(format!("  heard the primary's claim {} ms ago", replica.claim_age_ms));
        }
        if !replica.learning_from.is_empty() {
            lines.push(format!("  does not vote before it has heard {}", replica.learning_from.join(", ")));
        }
        if let Some(epoch) = replica.asks_for {
            lines.push(format!("  asks for epoch {epoch}"));
        }
        if !replica.refused_by.is_empty() {
            lines.push(format!("  was refused by {}", replica.refused_by.join(", ")));
        }
    }
    print(&lines.join("\n"))
}

async fn explain_member(name: &NodeId, ask: &AskArgs) -> ExitCode {
    let opinions: Vec<MemberExplanation> = match opinions(ask, &format!("/v1/members/{name}")).await {
        Ok(opinions) => opinions,
        Err(error) => return fail(&error),
    };
    if ask.json {
        return print(&json(&opinions));
    }
    let mut lines = Vec::new();
    for opinion in &opinions {
        let MemberJson { node_id, status, incarnation, .. } = &opinion.member;
        lines.push(format!("{} holds {BOLD}{node_id}{BOLD:#} for {status} (life {incarnation})", opinion.by));
        if let Some(membership) = &opinion.membership {
            lines.push(format!("  membership: {membership}"));
        }
        if let Some(is_online) = opinion.swim_online {
            let heard = opinion
                .member
                .last_heard_ms
                .map_or_else(|| "never".to_owned(), |age| format!("{age} ms ago"));
            lines.push(format!("  SWIM: {}, heard {heard}", if is_online { "online" } else { "offline" }));
        }
        if opinion.leaving_announced {
            lines.push("  it said that it leaves".to_owned());
        }
        if let Some(at) = opinion.record_unix_ms {
            lines.push(format!("  its record is of {}", ago(at)));
        }
    }
    print(&lines.join("\n"))
}

/// Asks the node, then all others that it names, for `path`. Those that do not answer are named and left out.
async fn opinions<T: DeserializeOwned>(ask: &AskArgs, path: &str) -> Result<Vec<T>, HttpError> {
    let mut opinions = vec![get_json(&format!("{}{path}", ask.api), TIMEOUT).await?];
    let members: Vec<MemberJson> = get_json(&format!("{}/v1/members", ask.api), TIMEOUT).await?;
    let status: StatusJson = get_json(&format!("{}/v1/status", ask.api), TIMEOUT).await?;
    for member in members.iter().filter(|member| member.node_id != status.node_id) {
        match get_json(&format!("http://{}{path}", member.api), TIMEOUT).await {
            Ok(opinion) => opinions.push(opinion),
            Err(error) => eprintln!("note: {} has no opinion: {error}", member.node_id),
        }
    }
    Ok(opinions)
}

/// Asks `url` once, or every second, and prints what it says.
pub(crate) fn list<T: DeserializeOwned + Serialize>(
    args: &ListArgs,
    url: &str,
    show: impl Fn(&T) -> String,
) -> ExitCode {
    let token = match args.ask.token() {
        Ok(token) => token,
        Err(code) => return code,
    };
    with_runtime(async {
        loop {
            let answer: T = match call_json(http::Method::GET, url, None, token.as_ref(), TIMEOUT).await {
                Ok(answer) => answer,
                Err(error) => return fail(&error),
            };
            let text = if args.ask.json { json(&answer) } else { show(&answer) };
            if !args.watch {
                return print(&text);
            }
            // Home and clear, so that a listing stays in its place.
            let page = if args.ask.json { format!("{text}\n") } else { format!("\x1b[H\x1b[2J{text}\n") };
            if write!(stdout(), "{page}").is_err() {
                return ExitCode::SUCCESS;
            }
            tokio::select! {
                () = tokio::time::sleep(WATCH_INTERVAL) => {}
                _ = tokio::signal::ctrl_c() => return ExitCode::SUCCESS,
            }
        }
    })
}

pub(crate) fn print(text: &str) -> ExitCode {
    // Whoever reads may have stopped reading.
    let written = writeln!(stdout(), "{text}");
    if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub(crate) fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

pub(crate) fn fail(error: &HttpError) -> ExitCode {
    eprintln!("{RED}error:{RED:#} {error}");
    if matches!(error, HttpError::Unreachable { .. }) {
        eprintln!("tip: is a node running? `synod start` starts one; --api names another");
    }
    ExitCode::FAILURE
}

fn ago(unix_ms: u64) -> String {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(unix_ms);
    let age = SystemTime::now().duration_since(at).unwrap_or_default();
    format!("{:.1} s ago", age.as_secs_f64())
}

/// `host:port` and `http://host:port/` mean the same.
fn api_url(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    match synod_core::Authority::new(rest) {
        Ok(authority) => Ok(format!("http://{authority}")),
        Err(error) => Err(format!("{error}; an api is http://HOST:PORT")),
    }
}

pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
