//! Whether a node may start: which cluster it belongs to, and whether its name is free.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use synod_core::slots::{
    BootstrapNode, BootstrapState, ForeignCluster, Hlc, HlcTimestamp, Holder, Standing, Takeover,
    TakeoverRefusal, judge_start,
};
use synod_core::{Authority, Incarnation, NodeId};

use super::{NodeError, NodeOptions, Origin, registry_dir, unix_millis};
use crate::api::{BootstrapReply, MemberJson};
use crate::cluster_url::ClusterUrl;
use crate::config::{ClusterSecret, NodeConfig, SecretError};
use crate::files::{Entry, FilesError, FoundFiles, Recovered, RegistryFiles};
use crate::http_client::{HttpError, get_json};

/// What `synod join` was told.
#[derive(Clone, Debug)]
pub struct JoinRequest {
    /// The nodes to ask; one that answers is enough.
    pub url: ClusterUrl,
    /// Where the node is to listen. It must be what the cluster says, if it is given.
    pub listen: Option<SocketAddr>,
    /// Where others are to reach it, a host or `host:port`. It must be what the cluster says, if it is given.
    pub advertise_addr: Option<String>,
    /// The file with the secret of the cluster.
    pub secret_file: Option<PathBuf>,
}

/// A node may not start. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdmissionError {
    /// Its name is taken, or not part of the cluster.
    #[error(transparent)]
    Name(#[from] TakeoverRefusal),
    /// What it was given is not what the cluster has.
    #[error(
        "{source_text} and the cluster differ in {fields}; the cluster's settings count and cannot be changed here"
    )]
    Differs {
        /// What it was given.
        source_text: String,
        /// The settings that differ.
        fields: String,
    },
    /// Its disk belongs to another cluster.
    #[error("the registry in {dir} belongs to another cluster: {foreign}")]
    ForeignDisk {
        /// Where.
        dir: PathBuf,
        /// Which clusters.
        foreign: ForeignCluster,
    },
    /// None of the nodes of a URL could be asked.
    #[error("none of the nodes of {url} could be asked: {reasons}")]
    NoSeed {
        /// The URL.
        url: String,
        /// What went wrong with each.
        reasons: String,
    },
    /// A parameter differs from what the cluster says.
    #[error("{parameter} is {given}, and the cluster says {known} for node {node}")]
    Parameter {
        /// The parameter.
        parameter: &'static str,
        /// What was given.
        given: String,
        /// What the cluster says.
        known: String,
        /// The node.
        node: NodeId,
    },
    /// What a node answered cannot be used.
    #[error("{seed} answered with a bootstrap state that cannot be used: {reason}")]
    BadAnswer {
        /// The node.
        seed: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The secret cannot be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// A node that may start.
pub(super) struct Admitted {
    pub(super) own: BootstrapNode,
    pub(super) bootstrap: BootstrapState,
    pub(super) files: RegistryFiles,
    pub(super) recovered: Recovered,
    /// The latest life of the name that the cluster knows of.
    pub(super) seen: Option<Incarnation>,
    pub(super) secret: Option<ClusterSecret>,
    pub(super) takeover: Option<Takeover>,
}

pub(super) async fn admit(options: &NodeOptions) -> Result<Admitted, NodeError> {
    match &options.origin {
        Origin::Config(config) => admit_by_config(options, config).await,
        Origin::Join(request) => admit_by_join(options, request).await,
    }
}

async fn admit_by_config(options: &NodeOptions, config: &NodeConfig) -> Result<Admitted, NodeError> {
    let own = place(&config.bootstrap, &options.node)?;
    let own_api = own.api().map_err(|error| NodeError::Address(error.to_string()))?;
    let others: Vec<Authority> = config.seeds.iter().filter(|seed| **seed != own_api).cloned().collect();
    let answers = ask_all(&others, CONFIG_TIMEOUT).await;
    let running = answers.iter().find_map(|answer| answer.as_ref().ok());
    let Some(dir) = config.registry_dir(&options.node) else {
        return Err(NodeError::Address("the node has no disk".to_owned()));
    };
    let differs = |state: &BootstrapState| {
        let fields = state.differences(&config.bootstrap);
        (!fields.is_empty()).then(|| AdmissionError::Differs {
            source_text: "the configuration".to_owned(),
            fields: fields.join(", "),
        })
    };
    if let Some((_, state, _)) = running
        && let Some(refusal) = differs(state)
    {
        return Err(refusal.into());
    }
    let found = FoundFiles::look(&dir)?;
    if let Some(refusal) = found.bootstrap().and_then(differs) {
        return Err(refusal.into());
    }
    let bootstrap = match (found.bootstrap(), running) {
        (Some(state), _) | (None, Some((_, state, _))) => state.clone(),
        (None, None) => {
            let at = Hlc::new(HlcTimestamp::default(), Duration::ZERO).tick(unix_millis());
            config.begun_by(&options.node, at).unwrap_or_else(|| config.bootstrap.clone())
        }
    };
    let holders = answers.into_iter().flatten().map(|(_, _, members)| members);
    finish(options, bootstrap, found, config.secret.clone(), holders.collect()).await
}

async fn admit_by_join(options: &NodeOptions, request: &JoinRequest) -> Result<Admitted, NodeError> {
    let answers = ask_all(request.url.seeds(), JOIN_TIMEOUT).await;
    let Some((_, running, _)) = answers.iter().find_map(|answer| answer.as_ref().ok()) else {
        let reasons = answers.iter().filter_map(|answer| answer.as_ref().err()).map(ToString::to_string);
        let reasons = reasons.collect::<Vec<_>>().join("; ");
        return Err(AdmissionError::NoSeed { url: request.url.to_string(), reasons }.into());
    };
    let mut bootstrap = running.clone();
    let own = place(&bootstrap, &options.node)?;
    check_parameters(&own, request)?;
    let secret = request.secret_file.as_deref().map(ClusterSecret::read).transpose();
    let secret = secret.map_err(AdmissionError::from)?;
    let Some(dir) = registry_dir(&own) else {
        return Err(NodeError::Address("the node has no disk".to_owned()));
    };
    let found = FoundFiles::look(&dir)?;
    if let Some(known) = found.bootstrap() {
        let mut known = known.clone();
        known.merge(&bootstrap).map_err(|foreign| AdmissionError::ForeignDisk { dir, foreign })?;
        bootstrap = known;
    }
    let holders = answers.into_iter().flatten().map(|(_, _, members)| members);
    finish(options, bootstrap, found, secret, holders.collect()).await
}

/// Judges whether the node may start, and changes its disk only if it may.
async fn finish(
    options: &NodeOptions,
    bootstrap: BootstrapState,
    found: FoundFiles,
    secret: Option<ClusterSecret>,
    holders: Vec<Vec<MemberJson>>,
) -> Result<Admitted, NodeError> {
    let own = place(&bootstrap, &options.node)?;
    if secret.is_none() && !own.bind.ip().is_loopback() {
        return Err(NodeError::SecretRequired { node: own.node, bind: own.bind });
    }
    let known = holders.iter().flatten().filter(|member| member.node_id == options.node.as_str());
    let known: Vec<Holder> = known.filter_map(holder).collect();
    let seen = known.iter().map(|holder| holder.incarnation).max();
    // Whoever says the most: the latest life, and of that the word of the node that heard it last.
    let newest =
        known.into_iter().max_by_key(|holder| (holder.incarnation, std::cmp::Reverse(holder.last_heard_age)));
    let last = found.incarnation();
    let next = last.max(seen).map_or(Some(Incarnation::FIRST), Incarnation::next);
    let next = next.unwrap_or(Incarnation::FIRST);
    // A life that this very disk has lived is over: its process would still hold the lock.
    let foreign = newest.filter(|holder| last.is_none_or(|own| holder.incarnation > own));
    let fail_timeout = bootstrap.pace.fail_timeout;
    let takeover = judge_start(&options.node, next, foreign.as_ref(), options.force_takeover, fail_timeout)
        .map_err(AdmissionError::from)?;

    let (files, recovered) = found.open()?;
    if recovered.bootstrap.is_none() {
        // The beginning of the cluster is on the disk before anything else is done in it.
        files.append(&[Entry::Bootstrap(bootstrap.clone())])?.await.map_err(FilesError::from)?;
    }
    if let Some(takeover) = &takeover {
        files.audit(takeover, unix_millis())?;
    }
    Ok(Admitted { own, bootstrap, files, recovered, seen, secret, takeover })
}

fn place(bootstrap: &BootstrapState, node: &NodeId) -> Result<BootstrapNode, AdmissionError> {
    bootstrap.node(node).cloned().ok_or_else(|| {
        let known = bootstrap.nodes.iter().map(|node| node.node.to_string()).collect::<Vec<_>>().join(", ");
        TakeoverRefusal::NotPredefined { node: node.clone(), known }.into()
    })
}

fn check_parameters(own: &BootstrapNode, request: &JoinRequest) -> Result<(), AdmissionError> {
    let differs = |parameter, given: String, known: String| {
        Err(AdmissionError::Parameter { parameter, given, known, node: own.node.clone() })
    };
    if let Some(listen) = request.listen.filter(|listen| *listen != own.bind) {
        return differs("--listen", listen.to_string(), own.bind.to_string());
    }
    if let Some(given) = &request.advertise_addr {
        let with_port = format!("{}:{}", own.advertise_host, own.bind.port());
        let bare = own.advertise_host.trim_start_matches('[').trim_end_matches(']');
        if *given != own.advertise_host && *given != with_port && given != bare {
            return differs("--advertise-addr", given.clone(), own.advertise_host.clone());
        }
    }
    Ok(())
}

fn holder(member: &MemberJson) -> Option<Holder> {
    let standing = match member.status.as_str() {
        "alive" => Standing::Alive,
        "suspect" => Standing::Suspect,
        "failed" => Standing::Failed,
        "leaving" => Standing::Leaving,
        // The one who was asked has not heard of it, so it says nothing.
        _ => return None,
    };
    let incarnation = Incarnation::new(member.incarnation).ok()?;
    let last_heard_age = Duration::from_millis(member.last_heard_ms.unwrap_or(0));
    Some(Holder { standing, incarnation, last_heard_age })
}

type Asked = Result<(Authority, BootstrapState, Vec<MemberJson>), AskError>;

#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("{0}")]
    Answer(AdmissionError),
}

/// Asks all seeds at once what they know.
async fn ask_all(seeds: &[Authority], timeout: Duration) -> Vec<Asked> {
    let mut asked = tokio::task::JoinSet::new();
    for (index, seed) in seeds.iter().cloned().enumerate() {
        asked.spawn(async move { (index, ask(seed, timeout).await) });
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

async fn ask(seed: Authority, timeout: Duration) -> Asked {
    let url = format!("http://{seed}/v1/cluster/bootstrap");
    let reply: BootstrapReply = get_json(&url, timeout).await?;
    let bad = |reason: String| AskError::Answer(AdmissionError::BadAnswer { seed: seed.to_string(), reason });
    let state = reply.bootstrap.into_state().map_err(|error| bad(error.to_string()))?;
    if state.cluster_id().to_string() != reply.cluster_id {
        return Err(bad("its cluster_id is not the hash of what it describes".to_owned()));
    }
    Ok((seed, state, reply.members))
}

/// How long the nodes of a configuration may take to say that the cluster exists.
const CONFIG_TIMEOUT: Duration = Duration::from_millis(1500);
/// How long the nodes of a URL may take to answer.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
