//! `synod start` and `synod join`: a node of a cluster, until it is told to stop.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anstream::eprintln;
use synod_archive::{Archive, ArchiveSettings, ArchiveWorker, WorkerConfig};
use synod_core::NodeId;
use synod_core::slots::SlotRegistryConfig;
use synod_store::cluster_url::{ClusterUrl, DEFAULT_PORT};
use synod_store::config::NodeConfig;
use synod_store::node::{JoinRequest, Node, NodeEnd, NodeError, NodeOptions, Origin};
use synod_store::objects::KeeperConfig;

use crate::gateway::{GatewayApi, credentials_file};
use crate::jobs::JobsApi;
use crate::terminal::{BOLD, RED, USAGE_ERROR, with_runtime};

/// Arguments of `synod start`.
#[derive(Debug, clap::Args)]
pub(crate) struct StartArgs {
    /// The configuration of the cluster. Without it, a cluster of one node on this machine.
    #[arg(long, value_name = "FILE", requires = "node")]
    conf: Option<PathBuf>,
    /// Which node of the configuration this is.
    #[arg(long, value_name = "NAME", requires = "conf")]
    node: Option<NodeId>,
    /// Where the cluster of one node keeps its data.
    #[arg(long, value_name = "DIR", default_value = "./synod-data", conflicts_with = "conf")]
    data: PathBuf,
    /// The first port of the cluster of one node; its listeners are at this one and those after it.
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT, conflicts_with = "conf")]
    port: u16,
    #[command(flatten)]
    common: CommonArgs,
}

/// Arguments of `synod join`.
#[derive(Debug, clap::Args)]
pub(crate) struct JoinArgs {
    /// The cluster: `cluster://HOST:PORT,HOST:PORT`, the api addresses of nodes. One that answers is enough.
    #[arg(value_name = "REGISTRY_URL")]
    url: String,
    /// Which node of the cluster this is.
    #[arg(long, value_name = "NAME")]
    node: NodeId,
    /// Where it is to listen. Only to be sure: it must be what the cluster says.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Where others are to reach it. Only to be sure: it must be what the cluster says.
    #[arg(long, value_name = "HOST")]
    advertise_addr: Option<String>,
    /// The file with the secret of the cluster, if it has one.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct CommonArgs {
    /// Take the name over from a process that is suspected and was silent for fail_timeout.
    #[arg(long)]
    force_takeover: bool,
    /// Vote at once, without hearing the other replicas. Only for a cluster that never served anything.
    #[arg(long)]
    new_cluster: bool,
    /// Serve no S3 on this node.
    #[arg(long)]
    no_s3: bool,
    /// Serve no jobs on this node, and hold none. The queue of the cluster has one replica less.
    #[arg(long)]
    no_queue: bool,
    /// How long the others may take, at the end, to take over what this node serves.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    leave_patience: u64,
}

pub(crate) fn start(args: StartArgs) -> ExitCode {
    let StartArgs { conf, node, data, port, common } = args;
    let loaded = match &conf {
        Some(path) => NodeConfig::load(path).map_err(|error| error.to_string()),
        None => NodeConfig::development(&data, port).map_err(|error| error.to_string()),
    };
    let config = match loaded {
        Ok(config) => config,
        Err(error) => return refuse(&error),
    };
    let node = node.unwrap_or_else(|| config.bootstrap.initialized_by.clone());
    // A cluster of one node on this machine has one user, who gets a key without asking.
    let credentials = conf.is_none().then(|| credentials_file(&data));
    run(node, Origin::Config(Box::new(config)), common, credentials)
}

pub(crate) fn join(args: JoinArgs) -> ExitCode {
    let JoinArgs { url, node, listen, advertise_addr, secret_file, common } = args;
    let (url, repeated) = match ClusterUrl::parse(&url) {
        Ok(parsed) => parsed,
        Err(error) => return refuse(&error.to_string()),
    };
    for seed in repeated {
        eprintln!("note: {seed} is named twice in the URL");
    }
    run(node, Origin::Join(JoinRequest { url, listen, advertise_addr, secret_file }), common, None)
}

fn run(node: NodeId, origin: Origin, common: CommonArgs, credentials: Option<PathBuf>) -> ExitCode {
    let CommonArgs { force_takeover, new_cluster: is_new_cluster, no_s3, no_queue, leave_patience } = common;
    let (gateway, jobs) = (GatewayApi::default(), JobsApi::default());
    // The cluster tells everything but the secret of its archive.
    let archive_secret = match &origin {
        Origin::Config(config) => config.archive_secret.as_ref().map(|secret| secret.expose().to_owned()),
        Origin::Join(_) => None,
    };
    let archive_secret = archive_secret.or_else(|| std::env::var("AWS_SECRET_ACCESS_KEY").ok());
    let options = NodeOptions {
        node,
        origin,
        force_takeover,
        is_new_cluster,
        registry: SlotRegistryConfig::default(),
        keeper: KeeperConfig::default(),
        extensions: vec![Arc::new(gateway.clone()), Arc::new(jobs.clone())],
        services: vec![Arc::new(jobs.clone())],
    };
    log_to_stderr();
    with_runtime(async move {
        let mut stop = Stop::listen();
        let node = match Node::start(options).await {
            Ok(node) => node,
            Err(error @ NodeError::Admission(_)) => return refuse(&error.to_string()),
            Err(error) => {
                eprintln!("{RED}error:{RED:#} {error}");
                return ExitCode::FAILURE;
            }
        };
        welcome(&node);
        let archive = match open_archive(&node, archive_secret.as_deref()) {
            Ok(archive) => archive,
            Err(error) => {
                eprintln!("{RED}error:{RED:#} {error}");
                node.shutdown(Duration::ZERO).await;
                return ExitCode::FAILURE;
            }
        };
        // A node without a gateway serves slots as well, whose objects have to be archived.
        let start_worker =
            |archive: &Archive| ArchiveWorker::start(node.objects(), archive, WorkerConfig::default());
        let worker = archive.as_ref().map(start_worker);
        if !no_s3 && let Err(error) = serve_s3(&node, &gateway, archive, credentials.as_deref()).await {
            eprintln!("{RED}error:{RED:#} {error}");
            node.shutdown(Duration::ZERO).await;
            return ExitCode::FAILURE;
        }
        if !no_queue && let Err(error) = serve_jobs(&node, &jobs, is_new_cluster).await {
            eprintln!("{RED}error:{RED:#} {error}");
            gateway.stop(Duration::ZERO).await;
            node.shutdown(Duration::ZERO).await;
            return ExitCode::FAILURE;
        }
        tokio::select! {
            reason = jobs.ended() => {
                eprintln!("{RED}error:{RED:#} the job queue ended: {reason}");
                ExitCode::FAILURE
            }
            end = node.ended() => {
                eprintln!("{RED}error:{RED:#} {}", describe(&end));
                ExitCode::FAILURE
            }
            () = stop.told() => {
                eprintln!("leaving: the slots and the job queue are handed over");
                jobs.stop(Duration::from_secs(leave_patience)).await;
                gateway.stop(Duration::from_secs(leave_patience)).await;
                // What it leaves behind is found by whoever takes the slots over.
                drop(worker);
                let is_drained = node.shutdown(Duration::from_secs(leave_patience)).await;
                eprintln!("{}", if is_drained { "left" } else { "left, and some slots had nobody to take them" });
                ExitCode::SUCCESS
            }
        }
    })
}

/// Says what runs, and what to do next.
fn welcome(node: &Node) {
    let place = node.place();
    let api = node.cluster().api_address().unwrap_or(place.bind);
    let cluster = node.registry().bootstrap().cluster_id();
    eprintln!("{BOLD}{}{BOLD:#} of cluster {cluster} runs; api on http://{api}", place.node);
    if let Some(takeover) = node.takeover() {
        eprintln!("note: {takeover}");
    }
    eprintln!("tip: synod status --api http://{api}");
}

/// The archive of the cluster, if it has one.
fn open_archive(node: &Node, secret: Option<&str>) -> Result<Option<Archive>, String> {
    let bootstrap = node.registry().bootstrap();
    let Some(text) = &bootstrap.archive else { return Ok(None) };
    let settings = ArchiveSettings::parse(text, secret).map_err(|error| error.to_string())?;
    Archive::open(&settings, &bootstrap.namespace).map(Some).map_err(|error| error.to_string())
}

/// Starts the gateway, makes the first key if there is to be one, and says how to use it.
async fn serve_s3(
    node: &Node,
    gateway: &GatewayApi,
    archive: Option<Archive>,
    credentials: Option<&Path>,
) -> Result<(), String> {
    let address = gateway.start(node, archive).await.map_err(|error| error.to_string())?;
    let Some(file) = credentials else {
        eprintln!("S3 on http://{address}; tip: synod key create NAME");
        return Ok(());
    };
    gateway.first_key(file).await?;
    eprintln!("S3 on http://{address}; try it:");
    eprintln!(
        "  AWS_SHARED_CREDENTIALS_FILE={} aws --endpoint-url http://{address} s3 mb s3://hello",
        file.display()
    );
    Ok(())
}

/// Starts the job queue, and says how to use it.
async fn serve_jobs(node: &Node, jobs: &JobsApi, is_new_cluster: bool) -> Result<(), String> {
    jobs.start(node, is_new_cluster).await.map_err(|error| error.to_string())?;
    if let Some(address) = jobs.beanstalk_address() {
        eprintln!("jobs on {address}, for clients of beanstalkd; tip: synod queue submit NAME BODY");
    }
    Ok(())
}

fn describe(end: &NodeEnd) -> String {
    match end {
        NodeEnd::Registry(exit) => format!("the registry ended: {exit}"),
        NodeEnd::Disk(reason) => reason.clone(),
        NodeEnd::Membership(exit) => format!("the membership of the node ended: {exit:?}"),
    }
}

fn refuse(error: &str) -> ExitCode {
    eprintln!("{RED}error:{RED:#} {error}");
    ExitCode::from(USAGE_ERROR)
}

/// Ctrl-C and SIGTERM, heard from the moment this is made: whoever is told to stop while it starts stops when it has started.
struct Stop(Vec<tokio::signal::unix::Signal>);

impl Stop {
    fn listen() -> Self {
        use tokio::signal::unix::{SignalKind, signal};
        let signals = [SignalKind::terminate(), SignalKind::interrupt()].into_iter().filter_map(|kind| {
            let heard = signal(kind);
            if let Err(error) = &heard {
                eprintln!("{RED}error:{RED:#} a signal cannot be heard: {error}");
            }
            heard.ok()
        });
        Self(signals.collect())
    }

    /// Waits until one of them has come.
    async fn told(&mut self) {
        std::future::poll_fn(|context| {
            match self.0.iter_mut().any(|signal| signal.poll_recv(context).is_ready()) {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            }
        })
        .await;
    }
}

/// Logs warnings and errors, or what `SYNOD_LOG` asks for: a level, or `target=level` pairs.
fn log_to_stderr() {
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;
    // memberlist reports every peer that does not answer as an error. What that means is for membership to say.
    // The S3 library reports every request that it refuses as an error. That is for the client to hear; it is counted.
    // The engine of Raft reports beats that are late and peers that are gone. What that means, the group says.
    let quiet = "warn,memberlist_core=off,memberlist_net=off,openraft=off,s3s=off";
    let asked = std::env::var("SYNOD_LOG").ok();
    let filter = match asked.as_deref().unwrap_or(quiet).parse::<Targets>() {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("note: SYNOD_LOG is not understood and was ignored: {error}");
            quiet.parse().unwrap_or_default()
        }
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    // A second subscriber would mean that somebody else logs already.
    drop(tracing_subscriber::registry().with(lines).with(filter).try_init());
}
