//! A node with the grains of `examples/counter`, beside Go nodes that made theirs of the same `.proto` file.
//!
//! It speaks the line protocol of `interop/go/cmd/peer` as far as counters go: `members`, `count IDENTITY AMOUNT
//! TIMEOUT_MS`, `counted IDENTITY TIMEOUT_MS` and `recount IDENTITY TIMEOUT_MS`. Each answer is one JSON object on a line.
//! The end of standard input ends the process.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::time::Duration;

use counter::{AddRequest, Counter, CounterClient, ErrorReason, InMemory, Total};
use serde_json::{Value, json};
use synod_cluster::grains::CallError;
use synod_cluster::remote::RemoteConfig;
use synod_cluster::{
    AutomanagedConfig, Cluster, ClusterConfig, ClusterProvider, Discovery, TokioGossiperConfig,
};
use synod_wire::Dialect;
use tokio::sync::mpsc;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    let mut cluster = Cluster::new(settings(std::env::args().skip(1))?)?;
    cluster.start_member().await?;
    let own = cluster.own().ok_or("not running")?.to_string();
    let address = cluster.remote().ok_or("not running")?.authority().to_string();
    print(&json!({"event": "ready", "id": own, "address": address}))?;

    let mut lines = read_commands();
    while let Some(line) = lines.recv().await {
        let mut answer =
            run(&cluster, &line).await.unwrap_or_else(|error| json!({"error": error.to_string()}));
        answer["reply"] = json!(line.split_whitespace().next());
        print(&answer)?;
    }
    Ok(())
}

async fn run(cluster: &Cluster, line: &str) -> Result<Value> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match *words {
        ["members"] => {
            let roster = cluster.roster();
            let members = roster.iter().map(|member| {
                json!({"id": member.id.as_str(), "address": member.authority.as_str(), "kinds": member.kinds})
            });
            Ok(json!({"hash": null, "members": members.collect::<Value>()}))
        }
        ["count", identity, amount, timeout] => {
            let request = AddRequest { amount: amount.parse()? };
            match client(cluster, identity, timeout)?.add(request).await {
                Err(error) if ErrorReason::Overdrawn.caused(&error) => {
                    let CallError::Grain(error) = error else { return Err(error.into()) };
                    Ok(json!({"overdrawn": error.message}))
                }
                total => Ok(told(&total?)),
            }
        }
        ["counted", identity, timeout] => Ok(told(&client(cluster, identity, timeout)?.current().await?)),
        ["recount", identity, timeout] => {
            client(cluster, identity, timeout)?.reset().await?;
            Ok(json!({}))
        }
        _ => Err("unknown command, or not its number of words".into()),
    }
}

fn client(cluster: &Cluster, identity: &str, timeout_ms: &str) -> Result<CounterClient> {
    let timeout = Duration::from_millis(timeout_ms.parse()?);
    Ok(cluster.grain::<Counter>(identity)?.with_timeout(timeout))
}

fn told(total: &Total) -> Value {
    json!({"value": total.value, "node": total.node})
}

/// The node that the flags describe.
fn settings(arguments: impl Iterator<Item = String>) -> Result<ClusterConfig> {
    let arguments: Vec<String> = arguments.collect();
    let flags: BTreeMap<&str, &str> =
        arguments.chunks_exact(2).map(|flag| (flag[0].as_str(), flag[1].as_str())).collect();
    let flag = |name: &str| flags.get(name).copied().ok_or_else(|| format!("{name} is missing"));
    let here = |port: &str| port.parse().map(|port: u16| SocketAddr::from(([127, 0, 0, 1], port)));

    let mut remote = RemoteConfig::new(here(flag("--remote-port")?)?);
    remote.default_dialect = if flag("--default-dialect")? == "a" { Dialect::A } else { Dialect::B };
    let mut config = ClusterConfig::new(flag("--node")?.parse()?, remote);
    config.gossip = TokioGossiperConfig::protoactor();
    config.kinds.push(Counter::kind(|_| InMemory::new("rust")));
    let hosts: std::result::Result<_, _> = flag("--hosts")?.split(',').map(str::parse).collect();
    let mut automanaged = AutomanagedConfig::new(flag("--cluster")?, here(flag("--health-port")?)?, hosts?);
    automanaged.refresh_interval = Duration::from_millis(flag("--refresh-ms")?.parse()?);
    config.discovery = Discovery::Automanaged(automanaged);
    Ok(config)
}

/// Lines from standard input. Their end ends the process, whatever it waits for.
fn read_commands() -> mpsc::UnboundedReceiver<String> {
    let (sender, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let lines = io::stdin().lock().lines().map_while(io::Result::ok);
        for line in lines.filter(|line| !line.trim().is_empty()) {
            if sender.send(line).is_err() {
                return;
            }
        }
        std::process::exit(0)
    });
    lines
}

fn print(object: &Value) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{object}")
}
