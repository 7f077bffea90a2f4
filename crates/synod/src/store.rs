//! `synod store`: how the objects of the nodes are, and a look at all of them now.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anstream::{eprintln, stderr};
use clap::Subcommand;
use http::Method;
use synod_store::admin::AdminToken;
use synod_store::api::{MemberJson, StatusJson};
use synod_store::http_client::{HttpError, call_json, get_json};
use synod_store::objects::StoreStatusJson;

use crate::inspect::{AskArgs, ListArgs, TIMEOUT, fail, json, print};
use crate::terminal::{RED, table, with_runtime};

/// What to do with the objects of a cluster.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Store {
    /// Show what each node stores, what it still fetches, and what it could not repair.
    Status(ListArgs),
    /// Read all parts on all nodes, verify them, and fetch damaged ones from other replicas.
    Scrub(AskArgs),
    /// Compare all entries with the other replicas, and store again what differs.
    Repair(AskArgs),
}

pub(crate) fn run(command: &Store) -> ExitCode {
    match command {
        Store::Status(args) => with_runtime(status(args)),
        Store::Scrub(ask) => with_runtime(work(ask, "scrub", |store| Work {
            is_running: store.scrub.running,
            done: store.scrub.parts,
            total: store.scrub.parts_total,
        })),
        Store::Repair(ask) => with_runtime(work(ask, "repair", |store| Work {
            is_running: store.heal.running || store.parts_missing > 0,
            done: store.heal.slots_checked,
            total: store.heal.slots_total,
        })),
    }
}

/// How far one node is.
struct Work {
    is_running: bool,
    done: u64,
    total: u64,
}

async fn status(args: &ListArgs) -> ExitCode {
    loop {
        let stores = match nodes(&args.ask).await {
            Ok(nodes) => ask_all(&nodes, Method::GET, "", None).await,
            Err(error) => return fail(&error),
        };
        let text = if args.ask.json { json(&stores) } else { show(&stores) };
        if !args.watch {
            return print(&text);
        }
        let page = if args.ask.json { text } else { format!("\x1b[H\x1b[2J{text}") };
        if print(&page) != ExitCode::SUCCESS {
            return ExitCode::SUCCESS;
        }
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            _ = tokio::signal::ctrl_c() => return ExitCode::SUCCESS,
        }
    }
}

/// Has all nodes begin something, and shows how far they are until they are done. Fails when something stays unrepaired.
async fn work(ask: &AskArgs, what: &str, progress: impl Fn(&StoreStatusJson) -> Work) -> ExitCode {
    let token = match ask.token() {
        Ok(token) => token,
        Err(code) => return code,
    };
    let nodes = match nodes(ask).await {
        Ok(nodes) => nodes,
        Err(error) => return fail(&error),
    };
    let begun = ask_all(&nodes, Method::POST, &format!("/{what}"), token.as_ref()).await;
    let mut is_complete = begun.len() == nodes.len();
    let bar = ProgressBar::new(what);
    let stores = loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let stores = ask_all(&nodes, Method::GET, "", None).await;
        is_complete &= stores.len() == nodes.len();
        let works: Vec<Work> = stores.iter().map(&progress).collect();
        let (done, total) =
            works.iter().fold((0, 0), |(done, total), work| (done + work.done, total + work.total));
        bar.show(done, total);
        if !works.iter().any(|work| work.is_running) {
            break stores;
        }
    };
    bar.end();
    let is_whole =
        stores.iter().all(|store| store.unrepaired.is_empty() && store.heal.entries_unrepaired == 0);
    let printed = print(&if ask.json { json(&stores) } else { show(&stores) });
    match is_whole && is_complete {
        true => printed,
        false => {
            let why = if is_complete { "not everything could be repaired" } else { "not all nodes answered" };
            eprintln!("{RED}error:{RED:#} {why}");
            ExitCode::FAILURE
        }
    }
}

/// The api addresses of all nodes, with their names.
async fn nodes(ask: &AskArgs) -> Result<Vec<(String, String)>, HttpError> {
    let members: Vec<MemberJson> = get_json(&format!("{}/v1/members", ask.api), TIMEOUT).await?;
    let status: StatusJson = get_json(&format!("{}/v1/status", ask.api), TIMEOUT).await?;
    let address = |member: MemberJson| match member.node_id == status.node_id {
        true => (member.node_id, ask.api.clone()),
        false => (member.node_id, format!("http://{}", member.api)),
    };
    Ok(members.into_iter().map(address).collect())
}

/// What all nodes say. Those that do not answer are named and left out.
async fn ask_all(
    nodes: &[(String, String)],
    method: Method,
    path: &str,
    token: Option<&AdminToken>,
) -> Vec<StoreStatusJson> {
    let mut stores = Vec::new();
    for (name, api) in nodes {
        let url = format!("{api}/v1/store{path}");
        match call_json(method.clone(), &url, None, token, TIMEOUT).await {
            Ok(store) => stores.push(store),
            Err(error) => eprintln!("note: {name} does not answer: {error}"),
        }
    }
    stores
}

fn show(stores: &[StoreStatusJson]) -> String {
    let rows = stores.iter().map(|store| {
        let learning = match store.slots_learning_total {
            0 => "-".to_owned(),
            total => format!("{}/{total}", total - store.slots_learning),
        };
        let scrub = match (&store.scrub.running, store.scrub.finished_unix_ms) {
            (true, _) => format!("{}/{}", store.scrub.parts, store.scrub.parts_total),
            (false, Some(_)) => format!("{} damaged, {} repaired", store.scrub.damaged, store.scrub.repaired),
            (false, None) => "-".to_owned(),
        };
        vec![
            store.node_id.clone(),
            store.slots_served.to_string(),
            learning,
            store.entries.to_string(),
            store.parts.to_string(),
            mebibytes(store.part_bytes),
            store.parts_missing.to_string(),
            store.heal.entries_repaired.to_string(),
            scrub,
            (store.unrepaired.len() as u64 + store.heal.entries_unrepaired).to_string(),
        ]
    });
    let head =
        ["NODE", "SLOTS", "LEARNED", "ENTRIES", "PARTS", "MIB", "MISSING", "REPAIRED", "SCRUB", "UNREPAIRED"];
    let mut text = table(&head, &rows.collect::<Vec<_>>());
    for store in stores {
        if let Some(archive) = &store.archive {
            text += &format!(
                "\n{} archive: {} pending, {} archived, {} deleted, {} restored, {} rescued",
                store.node_id,
                archive.pending,
                archive.archived,
                archive.deleted,
                archive.restored,
                archive.rescued
            );
            if let Some(error) = &archive.last_error {
                text += &format!("; it fails: {error}");
            }
        }
        for one in &store.unrepaired {
            text += &format!("\n{} lacks part {}: {}", store.node_id, one.part, one.reason);
        }
    }
    text
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / (1024.0 * 1024.0))
}

/// A bar on a terminal, and nothing elsewhere.
pub(crate) struct ProgressBar {
    what: String,
    is_shown: bool,
}

impl ProgressBar {
    pub(crate) fn new(what: &str) -> Self {
        Self { what: what.to_owned(), is_shown: std::io::stderr().is_terminal() }
    }

    pub(crate) fn show(&self, done: u64, total: u64) {
        if !self.is_shown {
            return;
        }
        let part = (done.min(total) * WIDTH).checked_div(total).unwrap_or(0) as usize;
        let (full, empty) = ("=".repeat(part), " ".repeat(WIDTH as usize - part));
        // A terminal that is gone needs no bar.
        drop(write!(stderr(), "\r{} [{full}{empty}] {done}/{total} ", self.what));
    }

    pub(crate) fn end(&self) {
        if self.is_shown {
            drop(writeln!(stderr()));
        }
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(500);
const WIDTH: u64 = 30;
