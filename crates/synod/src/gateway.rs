//! The S3 gateway of a node, its part of the api, and the first access key.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, put};
use serde::{Deserialize, Serialize};
use synod_archive::{Archive, Archived};
use synod_cluster::{ApiExtension, Exposition};
use synod_s3::{
    AccessKey, Gateway, GatewayConfig, GatewayError, KeyError, Keys, Permissions, run_lifecycle_once,
};
use synod_store::node::Node;
use synod_store::objects::Objects;
use tokio::task::JoinHandle;

/// An access key, as `synod key … --json` shows it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct KeyJson {
    pub(crate) access_key_id: String,
    /// Only when the key is made: nobody is told it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret_access_key: Option<String>,
    pub(crate) name: String,
    pub(crate) created_unix_ms: u64,
    pub(crate) may_create_buckets: bool,
    pub(crate) permissions: Vec<PermissionJson>,
}

/// What a key may do with a bucket; `*` is every bucket.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct PermissionJson {
    pub(crate) bucket: String,
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) owner: bool,
}

/// What a new key is to be.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct NewKeyJson {
    pub(crate) name: String,
    /// Whether it may create buckets.
    #[serde(default)]
    pub(crate) may_create_buckets: bool,
}

impl KeyJson {
    fn of(key: AccessKey, shows_secret: bool) -> Self {
        let permissions = key.permissions.iter().map(|(bucket, allowed)| PermissionJson {
            bucket: bucket.clone(),
            read: allowed.read,
            write: allowed.write,
            owner: allowed.owner,
        });
        Self {
            permissions: permissions.collect(),
            secret_access_key: shows_secret.then(|| key.secret.clone()),
            access_key_id: key.id,
            name: key.name,
            created_unix_ms: key.created_ms,
            may_create_buckets: key.may_create_buckets,
        }
    }
}

/// The part of the api that is about the gateway. It answers once the gateway runs.
#[derive(Clone, Default)]
pub(crate) struct GatewayApi {
    running: Arc<OnceLock<Running>>,
}

struct Running {
    keys: Keys<Archived<Objects>>,
    /// Taken when it is stopped.
    gateway: Mutex<Option<Gateway>>,
    lifecycle: JoinHandle<()>,
}

impl GatewayApi {
    /// Starts the gateway of a node, with the archive of its cluster if that has one.
    ///
    /// # Errors
    /// It cannot listen.
    pub(crate) async fn start(
        &self,
        node: &Node,
        archive: Option<Archive>,
    ) -> Result<SocketAddr, GatewayError> {
        let place = node.place();
        let store = Archived::new(node.objects().clone(), archive);
        let mut domains = vec!["localhost".to_owned()];
        let is_address = place.advertise_host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
        if !is_address && place.advertise_host != "localhost" {
            domains.push(place.advertise_host.clone());
        }
        let config =
            GatewayConfig { domains, ..GatewayConfig::new(SocketAddr::new(place.bind.ip(), place.ports.s3)) };
        let gateway = Gateway::start(store.clone(), config).await?;
        let address = gateway.address();
        let lifecycle = tokio::spawn(keep_lifecycles(store.clone(), place.node.to_string()));
        // A node has one gateway.
        drop(self.running.set(Running {
            keys: Keys::new(store),
            gateway: Mutex::new(Some(gateway)),
            lifecycle,
        }));
        Ok(address)
    }

    /// Makes a key that may do everything.
    ///
    /// # Errors
    /// It cannot be kept, or no gateway runs.
    pub(crate) async fn new_key(&self, name: &str) -> Result<AccessKey, String> {
        let keys = &self.running.get().ok_or("this node serves no S3")?.keys;
        let text = |error: KeyError| error.to_string();
        let key = keys.create(name).await.map_err(text)?;
        keys.allow(&key.id, "*", Permissions::ALL).await.map_err(text)?;
        keys.allow_creating_buckets(&key.id, true).await.map_err(text)?;
        Ok(key)
    }

    /// The first key of a cluster of one node: what the file says, or a new one that is written there.
    ///
    /// # Errors
    /// The file cannot be written, or the key cannot be kept.
    pub(crate) async fn first_key(&self, file: &Path) -> Result<(), String> {
        let Some(running) = self.running.get() else { return Ok(()) };
        let failed = |error: io::Error| format!("{}: {error}", file.display());
        match std::fs::read_to_string(file) {
            Ok(text) => {
                let value = |name: &str| {
                    let lines = text.lines().filter_map(|line| line.split_once('='));
                    lines
                        .into_iter()
                        .find(|(key, _)| key.trim() == name)
                        .map(|(_, value)| value.trim().to_owned())
                };
                let (id, secret) =
                    value("aws_access_key_id").zip(value("aws_secret_access_key")).ok_or_else(|| {
                        format!(
                            "{}: it does not name a key; remove it, and a new one is made",
                            file.display()
                        )
                    })?;
                let kept = running.keys.create_first(&id, &secret, FIRST_KEY_NAME).await;
                kept.map(drop).map_err(|error| error.to_string())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = self.new_key(FIRST_KEY_NAME).await?;
                let text = format!(
                    "[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n",
                    key.id, key.secret
                );
                write_secret(file, &text).map_err(failed)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Ends what runs, and lets requests finish.
    pub(crate) async fn stop(&self, patience: Duration) {
        if let Some(running) = self.running.get() {
            running.lifecycle.abort();
            let gateway = running.gateway.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(gateway) = gateway {
                gateway.shutdown(patience).await;
            }
        }
    }

    fn keys(&self) -> Result<&Keys<Archived<Objects>>, Failure> {
        let running = self.running.get();
        running
            .map(|running| &running.keys)
            .ok_or_else(|| Failure(StatusCode::SERVICE_UNAVAILABLE, "this node serves no S3".to_owned()))
    }
}

impl ApiExtension for GatewayApi {
    fn routes(&self) -> Router {
        Router::new()
            .route("/v1/keys", get(list).post(create))
            .route("/v1/keys/{id}", axum::routing::delete(delete))
            .route("/v1/keys/{id}/permissions", put(allow))
            .with_state(self.clone())
    }

    fn check_ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn expose(&self, text: &mut Exposition) {
        let Some(running) = self.running.get() else { return };
        let counters =
            running.gateway.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Gateway::counters);
        let Some(counters) = counters else { return };
        text.one_gauge("synod_s3_connections", "Connections of S3 clients.", counters.connections);
        text.counters(
            "synod_s3",
            &[
                ("connections_opened", "Connections that S3 clients opened.", counters.connections_total),
                ("bytes_in", "Bytes of bodies that came in.", counters.bytes_in),
                ("bytes_out", "Bytes of bodies that went out.", counters.bytes_out),
            ],
        );
        let name = "synod_s3_requests_total";
        text.counter(name, "Requests, by operation and status.");
        for operation in &counters.operations {
            for (status, count) in &operation.statuses {
                let labels = [("operation", operation.operation), ("status", &status.to_string())];
                text.sample(name, &labels, count);
            }
        }
        let name = "synod_s3_request_seconds_total";
        text.counter(name, "How long requests took in all, by operation.");
        for operation in &counters.operations {
            let seconds = operation.latency_sum_us as f64 / 1e6;
            text.sample(name, &[("operation", operation.operation)], seconds);
        }
        let name = "synod_s3_errors_total";
        text.counter(name, "Errors, by code.");
        for (code, count) in &counters.errors {
            text.sample(name, &[("code", code)], count);
        }
    }
}

/// Removes what has had its time, once in a while. One node of the cluster does it at a time as far as that goes; doing it
/// twice changes nothing.
async fn keep_lifecycles(store: Archived<Objects>, node: String) {
    loop {
        tokio::time::sleep(LIFECYCLE_PAUSE).await;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let report = run_lifecycle_once(&store, u64::try_from(now.as_millis()).unwrap_or(u64::MAX)).await;
        tracing::debug!(node, ?report, "lifecycles were kept");
    }
}

struct Failure(StatusCode, String);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.0, Json(serde_json::json!({ "error": self.1 }))).into_response()
    }
}

impl From<KeyError> for Failure {
    fn from(error: KeyError) -> Self {
        let status = match &error {
            KeyError::Unknown { .. } => StatusCode::NOT_FOUND,
            KeyError::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        };
        Self(status, error.to_string())
    }
}

async fn list(State(api): State<GatewayApi>) -> Result<Json<Vec<KeyJson>>, Failure> {
    let keys = api.keys()?.list().await?;
    Ok(Json(keys.into_iter().map(|key| KeyJson::of(key, false)).collect()))
}

async fn create(
    State(api): State<GatewayApi>,
    Json(wanted): Json<NewKeyJson>,
) -> Result<Json<KeyJson>, Failure> {
    let keys = api.keys()?;
    let mut key = keys.create(&wanted.name).await?;
    if wanted.may_create_buckets {
        let secret = std::mem::take(&mut key.secret);
        key = keys.allow_creating_buckets(&key.id, true).await?;
        key.secret = secret;
    }
    Ok(Json(KeyJson::of(key, true)))
}

async fn delete(
    State(api): State<GatewayApi>,
    UrlPath(id): UrlPath<String>,
) -> Result<Json<serde_json::Value>, Failure> {
    api.keys()?.delete(&id).await?;
    Ok(Json(serde_json::json!({ "deleted": id })))
}

async fn allow(
    State(api): State<GatewayApi>,
    UrlPath(id): UrlPath<String>,
    Json(allowed): Json<PermissionJson>,
) -> Result<Json<KeyJson>, Failure> {
    let PermissionJson { bucket, read, write, owner } = allowed;
    let key = api.keys()?.allow(&id, &bucket, Permissions { read, write, owner }).await?;
    Ok(Json(KeyJson::of(key, false)))
}

/// Writes a file that only its owner can read.
fn write_secret(file: &Path, text: &str) -> io::Result<()> {
    let mut opened = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    opened.write_all(text.as_bytes())?;
    opened.sync_all()
}

/// Where the first key of a cluster of one node is kept.
pub(crate) fn credentials_file(data: &Path) -> PathBuf {
    data.join("credentials")
}

const FIRST_KEY_NAME: &str = "first";
const LIFECYCLE_PAUSE: Duration = Duration::from_secs(3600);
