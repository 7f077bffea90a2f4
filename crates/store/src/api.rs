//! What a node says about its slots and members over HTTP, under `/v1`, and the JSON in which it says it.
//!
//! | path | answer |
//! |---|---|
//! | `/v1/status` | the node and its cluster in one object |
//! | `/v1/members` | a list of members; `/v1/members/NAME` one of them with the evidence |
//! | `/v1/slots` | a list of slots, all or by `?node=` and `?slot=`; `/v1/slots/N` one of them with the evidence |
//! | `/v1/slots/N/register` | `GET` and `PUT` of the register of a slot, with `ETag`, `If-Match` and `If-None-Match: *` |
//! | `/v1/store` | how the objects of the node are; `POST` to `/v1/store/scrub` and `/v1/store/repair` looks at them now |
//! | `/v1/cluster/bootstrap` | what a node needs to join |

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use http::header::{ETAG, HeaderMap, HeaderName, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use synod_cluster::{ApiExtension, Exposition, MembershipHandle};
use synod_core::slots::{
    Answer, Head, NodeRecord, RequestError, SlotEpoch, SlotId, SlotRecord, SlotView, Standing, Tag,
    VALUE_BYTES_MAX,
};
use synod_core::{MemberId, NodeId};

use crate::admin::{self, AdminToken};
use crate::bootstrap_json::BootstrapJson;
use crate::hints::Hints;
use crate::objects::{ObjectsView, StoreStatusJson};
use crate::register::{RegisterError, RegisterOperation};
use crate::registry::RegistryHandle;

/// One member, as `synod members --json` lists it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct MemberJson {
    /// The name.
    pub node_id: String,
    /// Which life of it; 0 when none is known.
    pub incarnation: u64,
    /// What this node thinks of it: alive, suspect, failed, leaving or unknown.
    pub status: String,
    /// Where its peer listener is.
    pub address: String,
    /// Where its api listener is.
    pub api: String,
    /// How many slots it serves.
    pub slots: usize,
    /// How long ago SWIM heard it, in milliseconds.
    pub last_heard_ms: Option<u64>,
}

/// One slot, as `synod slots --json` lists it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SlotJson {
    /// The slot.
    pub slot: u16,
    /// The epoch; 0 before the first election.
    pub epoch: u64,
    /// Who serves it; `null` before the first election.
    pub primary: Option<String>,
    /// Who stores it.
    pub replicas: Vec<String>,
    /// Whether it is being moved, or `vacant`.
    pub state: String,
}

/// A node and its cluster, as `synod status --json` shows them.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct StatusJson {
    /// The node that answers.
    pub node_id: String,
    /// Its life.
    pub incarnation: u64,
    /// The cluster.
    pub cluster_id: String,
    /// The namespace.
    pub namespace: String,
    /// The version of the software.
    pub version: String,
    /// Whether the node can serve.
    pub ready: bool,
    /// Why not.
    pub reason: Option<String>,
    /// How long it runs, in seconds.
    pub uptime_sec: u64,
    /// How many nodes the cluster has, and how many this node holds alive.
    pub nodes: usize,
    /// How many of them this node holds alive.
    pub nodes_alive: usize,
    /// How many slots the cluster has.
    pub slots: usize,
    /// How many of them this node serves.
    pub slots_served_here: usize,
    /// How many have no primary.
    pub slots_vacant: usize,
    /// How many this node stores and has yet to learn about.
    pub slots_learning: usize,
    /// The newest of all records of slots: equal maps have equal digests.
    pub slot_map_digest: String,
}

/// Why a slot is in its state, as one node sees it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SlotExplanation {
    /// Who says so.
    pub by: String,
    /// The slot.
    #[serde(flatten)]
    pub slot: SlotJson,
    /// Why there was an election.
    pub cause: Option<String>,
    /// Who granted the epoch.
    pub granted_by: Vec<String>,
    /// Since when, in milliseconds since 1970.
    pub since_unix_ms: Option<u64>,
    /// What this node thinks of the primary.
    pub primary_status: Option<String>,
    /// What this node keeps of the slot, if it stores it.
    pub replica: Option<ReplicaExplanation>,
}

/// What a replica keeps of a slot.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ReplicaExplanation {
    /// The epoch below which it refuses everything.
    pub promised: u64,
    /// To whom it granted that epoch.
    pub granted_to: Option<String>,
    /// Whom it has to hear before it votes.
    pub learning_from: Vec<String>,
    /// The epoch it asks for.
    pub asks_for: Option<u64>,
    /// Who refused it, and why.
    pub refused_by: Vec<String>,
    /// Whether it serves the slot.
    pub serves: bool,
    /// The tag of the newest thing it stores.
    pub stored: Option<String>,
    /// How long ago the primary said that it serves, in milliseconds.
    pub claim_age_ms: u64,
}

/// Why a member is in its state, as one node sees it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct MemberExplanation {
    /// Who says so.
    pub by: String,
    /// The member.
    #[serde(flatten)]
    pub member: MemberJson,
    /// What membership says, with the life it says it of.
    pub membership: Option<String>,
    /// Whether SWIM holds it online.
    pub swim_online: Option<bool>,
    /// Whether it said that it leaves.
    pub leaving_announced: bool,
    /// When it last wrote its record, in milliseconds since 1970.
    pub record_unix_ms: Option<u64>,
    /// Tells its process from any other of the same name.
    pub instance: Option<String>,
}

/// What a node needs to join, and who holds its name.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct BootstrapReply {
    /// The cluster.
    pub cluster_id: String,
    /// Its beginning.
    pub bootstrap: BootstrapJson,
    /// Its members.
    pub members: Vec<MemberJson>,
}

/// What the routes need to know, once the node has it all.
pub(crate) struct ApiParts {
    pub(crate) own: MemberId,
    pub(crate) registry: RegistryHandle,
    pub(crate) membership: MembershipHandle,
    pub(crate) hints: Option<Arc<Hints>>,
    pub(crate) objects: ObjectsView,
    pub(crate) started: Instant,
    /// How often this node took a name over, by its audit log.
    pub(crate) takeovers: u64,
}

/// The part of the api listener that belongs to the store.
#[derive(Clone)]
pub(crate) struct StoreApi {
    parts: Arc<OnceLock<ApiParts>>,
    extensions: Arc<[Arc<dyn ApiExtension>]>,
    token: Option<AdminToken>,
}

impl StoreApi {
    /// The api of a node with the parts that gateways add to it, and what operators show to change things.
    pub(crate) fn new(extensions: Vec<Arc<dyn ApiExtension>>, token: Option<AdminToken>) -> Self {
        Self { parts: Arc::default(), extensions: extensions.into(), token }
    }

    /// Answers from now on.
    pub(crate) fn open(&self, parts: ApiParts) {
        // A node is opened once.
        drop(self.parts.set(parts));
    }

    fn parts(&self) -> Result<&ApiParts, Failure> {
        self.parts.get().ok_or_else(|| Failure::new(StatusCode::SERVICE_UNAVAILABLE, "the node is starting"))
    }
}

impl ApiExtension for StoreApi {
    fn routes(&self) -> Router {
        let own = Router::new()
            .route("/v1/status", get(status))
            .route("/v1/members", get(members))
            .route("/v1/members/{name}", get(member))
            .route("/v1/slots", get(slots))
            .route("/v1/slots/{slot}", get(slot))
            .route("/v1/slots/{slot}/register", get(read_register).put(write_register))
            .route("/v1/cluster/bootstrap", get(bootstrap))
            .route("/v1/store", get(store))
            // A little more than a value, so that it is refused by the registry, which says why.
            .layer(DefaultBodyLimit::max(VALUE_BYTES_MAX + 1024))
            .with_state(self.clone());
        let guarded = Router::new()
            .route("/v1/store/scrub", post(scrub))
            .route("/v1/store/repair", post(repair))
            .with_state(self.clone());
        let guarded =
            self.extensions.iter().fold(guarded, |routes, extension| routes.merge(extension.routes()));
        let check = axum::middleware::from_fn_with_state(self.token.clone(), admin::check);
        own.merge(guarded.route_layer(check))
    }

    fn check_ready(&self) -> Result<(), String> {
        self.parts.get().ok_or("the registry is starting")?.check_ready()?;
        self.extensions.iter().try_for_each(|extension| extension.check_ready())
    }

    fn expose(&self, text: &mut Exposition) {
        let Some(ApiParts { registry, hints, objects, takeovers, .. }) = self.parts.get() else { return };
        objects.expose(text);
        self.extensions.iter().for_each(|extension| extension.expose(text));
        let (serving, learning, vacant) = registry.counts();
        text.one_gauge("synod_slots_served", "Slots that this node serves.", serving as u64);
        let help = "Slots that this node stores and has yet to learn about.";
        text.one_gauge("synod_slots_learning", help, learning as u64);
        text.one_gauge("synod_slots_vacant", "Slots without a primary.", vacant as u64);
        let help = "How often this node took its name over from a suspect.";
        text.counters("synod_node", &[("takeovers", help, *takeovers)]);
        let counters = registry.counters();
        let (delivered, failed, dropped) = registry.message_counts();
        text.counters(
            "synod_slots",
            &[
                ("campaigns", "Epochs that this node asked for.", counters.campaigns),
                ("elections", "Epochs that this node won.", counters.elections),
                ("step_downs", "Epochs of this node that another one ended.", counters.step_downs),
                ("grants", "Epochs that this node promised to others.", counters.grants),
                ("refusals", "Epochs that this node did not promise.", counters.refusals),
                ("conflicts", "Records that contradicted each other. Must be 0.", counters.conflicts),
                ("clocks_ahead", "Stamps of clocks that were too far ahead.", counters.clocks_ahead),
                ("envelopes_refused", "Envelopes of gossip that were ignored.", registry.refused_envelopes()),
                ("strangers", "Messages of strangers and of lives that are over.", counters.strangers),
                ("messages_delivered", "Messages to other registries that arrived.", delivered),
                ("messages_failed", "Messages to other registries that did not arrive.", failed),
                ("messages_dropped", "Messages to other registries for which there was no room.", dropped),
            ],
        );
        if let Some(hints) = hints {
            let counters = hints.counters();
            text.one_gauge(
                "synod_swim_online",
                "Other nodes that SWIM holds online.",
                hints.online().len() as u64,
            );
            text.counters(
                "synod_swim",
                &[
                    ("dropped_hints", "Hints that nobody took in time.", counters.dropped_hints),
                    (
                        "dropped_broadcasts",
                        "Broadcasts for which there was no room.",
                        counters.dropped_broadcasts,
                    ),
                    ("refused_members", "Members of other clusters, or of none.", counters.refused_members),
                    ("refused_payloads", "Payloads that could not be read.", counters.refused_payloads),
                    ("name_conflicts", "Second processes of one name.", counters.name_conflicts),
                    ("joins", "Successful attempts to join another node.", counters.joins),
                ],
            );
        }
    }
}

impl ApiParts {
    fn check_ready(&self) -> Result<(), String> {
        self.registry.check_ready()?;
        self.objects.check_ready()
    }

    fn status(&self) -> StatusJson {
        let bootstrap = self.registry.bootstrap();
        let ready = self.check_ready();
        let (serving, learning, vacant) = self.registry.counts();
        let alive =
            self.registry.nodes().iter().filter(|(_, standing, _)| *standing == Standing::Alive).count();
        StatusJson {
            node_id: self.own.node.to_string(),
            incarnation: self.own.incarnation.get(),
            cluster_id: bootstrap.cluster_id().to_string(),
            namespace: bootstrap.namespace.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: ready.is_ok(),
            reason: ready.err(),
            uptime_sec: self.started.elapsed().as_secs(),
            nodes: bootstrap.nodes.len(),
            nodes_alive: alive,
            slots: usize::from(bootstrap.replication.total_slots),
            slots_served_here: serving,
            slots_vacant: vacant,
            slots_learning: learning,
            slot_map_digest: self.registry.digest(),
        }
    }

    fn members(&self) -> Vec<MemberJson> {
        let records = self.registry.slots();
        let nodes = self.registry.nodes();
        nodes
            .iter()
            .map(|(node, standing, record)| self.member(node, *standing, record.as_ref(), &records))
            .collect()
    }

    fn member(
        &self,
        node: &NodeId,
        standing: Standing,
        record: Option<&NodeRecord>,
        slots: &[SlotRecord],
    ) -> MemberJson {
        let bootstrap = self.registry.bootstrap();
        let known = bootstrap.node(node);
        let text = |address: Option<_>| {
            address.map_or_else(String::new, |address: synod_core::Authority| address.to_string())
        };
        let view = self.membership.view();
        let seen = view.records.records.iter().find(|record| record.member.node == *node);
        let lives = [record.map(|record| &record.member), seen.map(|record| &record.member)];
        let incarnation = lives.into_iter().flatten().map(|member| member.incarnation.get()).max();
        MemberJson {
            node_id: node.to_string(),
            incarnation: incarnation.unwrap_or(0),
            status: standing.to_string(),
            address: text(known.and_then(|known| known.peer().ok())),
            api: text(known.and_then(|known| known.api().ok())),
            slots: slots.iter().filter(|slot| slot.primary == *node).count(),
            last_heard_ms: self.last_heard(node),
        }
    }

    fn last_heard(&self, node: &NodeId) -> Option<u64> {
        let heard = self.hints.as_ref()?.last_heard();
        let (_, age) = heard.into_iter().find(|(other, _)| other == node)?;
        u64::try_from(age.as_millis()).ok()
    }

    fn explain_member(&self, name: &str) -> Option<MemberExplanation> {
        let nodes = self.registry.nodes();
        let (node, standing, record) = nodes.iter().find(|(node, ..)| node.as_str() == name)?;
        let view = self.membership.view();
        let seen = view.records.records.iter().find(|record| record.member.node == *node);
        let online = self.hints.as_ref().map(|hints| hints.online().contains(node));
        Some(MemberExplanation {
            by: self.own.node.to_string(),
            member: self.member(node, *standing, record.as_ref(), &self.registry.slots()),
            membership: seen.map(|seen| format!("{} is {}", seen.member, seen.status)),
            swim_online: online.filter(|_| *node != self.own.node),
            leaving_announced: record.as_ref().is_some_and(|record| record.leaving),
            record_unix_ms: record.as_ref().map(|record| record.heartbeat.unix_millis()),
            instance: record.as_ref().map(|record| format!("{:016x}", record.instance)),
        })
    }

    fn explain_slot(&self, view: SlotView) -> SlotExplanation {
        let record = view.record.as_ref();
        let replica = view.local.map(|local| ReplicaExplanation {
            promised: local.promised.get(),
            granted_to: local.granted_to.as_ref().map(NodeId::to_string),
            learning_from: names(&local.learning_from),
            asks_for: local.candidacy.as_ref().map(|(epoch, _)| epoch.get()),
            refused_by: local.refused_by.iter().map(|(node, reason)| format!("{node}: {reason:?}")).collect(),
            serves: local.reign.is_some_and(|(_, is_serving)| is_serving),
            stored: local.stored.map(|tag| tag.to_string()),
            claim_age_ms: u64::try_from(local.claim_age.as_millis()).unwrap_or(u64::MAX),
        });
        SlotExplanation {
            by: self.own.node.to_string(),
            cause: record.map(|record| record.cause.to_string()),
            granted_by: record.map(|record| names(&record.granted_by)).unwrap_or_default(),
            since_unix_ms: record.map(|record| record.updated_at.unix_millis()),
            primary_status: view.primary_standing.map(|standing| standing.to_string()),
            slot: slot_json(view.slot, record, &view.replicas),
            replica,
        }
    }
}

fn slot_json(slot: SlotId, record: Option<&SlotRecord>, replicas: &[NodeId]) -> SlotJson {
    SlotJson {
        slot: slot.get(),
        epoch: record.map_or(0, |record| record.epoch.get()),
        primary: record.map(|record| record.primary.to_string()),
        replicas: names(replicas),
        state: record.map_or_else(|| "vacant".to_owned(), |record| record.state.to_string()),
    }
}

fn names(nodes: &[NodeId]) -> Vec<String> {
    nodes.iter().map(NodeId::to_string).collect()
}

/// An error as JSON, with the status that goes with it.
struct Failure {
    status: StatusCode,
    reason: String,
}

impl Failure {
    fn new(status: StatusCode, reason: &str) -> Self {
        Self { status, reason: reason.to_owned() }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(serde_json::json!({ "error": self.reason }))).into_response()
    }
}

impl From<RegisterError> for Failure {
    fn from(error: RegisterError) -> Self {
        let status = match &error {
            RegisterError::Refused(RequestError::NoSuchSlot { .. }) => StatusCode::NOT_FOUND,
            RegisterError::Refused(RequestError::TooLong { .. }) => StatusCode::PAYLOAD_TOO_LARGE,
            RegisterError::Refused(RequestError::Indeterminate) => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self { status, reason: error.to_string() }
    }
}

async fn status(State(api): State<StoreApi>) -> Result<Json<StatusJson>, Failure> {
    Ok(Json(api.parts()?.status()))
}

async fn members(State(api): State<StoreApi>) -> Result<Json<Vec<MemberJson>>, Failure> {
    Ok(Json(api.parts()?.members()))
}

async fn member(
    State(api): State<StoreApi>,
    Path(name): Path<String>,
) -> Result<Json<MemberExplanation>, Failure> {
    let explanation = api.parts()?.explain_member(&name);
    let missing = || Failure::new(StatusCode::NOT_FOUND, &format!("there is no member {name}"));
    explanation.map(Json).ok_or_else(missing)
}

#[derive(Debug, Deserialize)]
struct SlotFilter {
    node: Option<String>,
    slot: Option<u16>,
}

async fn slots(
    State(api): State<StoreApi>,
    Query(filter): Query<SlotFilter>,
) -> Result<Json<Vec<SlotJson>>, Failure> {
    let registry = &api.parts()?.registry;
    let bootstrap = registry.bootstrap();
    if let Some(name) = &filter.node
        && !bootstrap.nodes.iter().any(|node| node.node.as_str() == name)
    {
        return Err(Failure::new(StatusCode::NOT_FOUND, &format!("there is no node {name}")));
    }
    if let Some(number) = filter.slot
        && number >= bootstrap.replication.total_slots
    {
        let reason =
            format!("there is no slot {number}; the cluster has {}", bootstrap.replication.total_slots);
        return Err(Failure::new(StatusCode::NOT_FOUND, &reason));
    }
    let records = registry.slots();
    let mut records = records.iter().peekable();
    let mut list = Vec::new();
    for slot in bootstrap.slots() {
        let record = records.next_if(|record| record.slot == slot);
        let replicas: Vec<NodeId> = bootstrap.replicas(slot).cloned().collect();
        let is_wanted = filter.slot.is_none_or(|number| number == slot.get())
            && filter.node.as_ref().is_none_or(|name| replicas.iter().any(|node| node.as_str() == name));
        if is_wanted {
            list.push(slot_json(slot, record, &replicas));
        }
    }
    Ok(Json(list))
}

async fn slot(State(api): State<StoreApi>, Path(slot): Path<u16>) -> Result<Json<SlotExplanation>, Failure> {
    let parts = api.parts()?;
    let missing = || Failure::new(StatusCode::NOT_FOUND, &format!("there is no slot {slot}"));
    let view = parts.registry.slot(SlotId::new(slot)).ok_or_else(missing)?;
    Ok(Json(parts.explain_slot(view)))
}

async fn bootstrap(State(api): State<StoreApi>) -> Result<Json<BootstrapReply>, Failure> {
    let parts = api.parts()?;
    let state = parts.registry.bootstrap();
    Ok(Json(BootstrapReply {
        cluster_id: state.cluster_id().to_string(),
        bootstrap: BootstrapJson::of(&state),
        members: parts.members(),
    }))
}

async fn store(State(api): State<StoreApi>) -> Result<Json<StoreStatusJson>, Failure> {
    Ok(Json(api.parts()?.objects.status()))
}

async fn scrub(State(api): State<StoreApi>) -> Result<Json<StoreStatusJson>, Failure> {
    let objects = &api.parts()?.objects;
    objects.scrub();
    Ok(Json(objects.status()))
}

async fn repair(State(api): State<StoreApi>) -> Result<Json<StoreStatusJson>, Failure> {
    let objects = &api.parts()?.objects;
    objects.heal();
    Ok(Json(objects.status()))
}

async fn read_register(State(api): State<StoreApi>, Path(slot): Path<u16>) -> Result<Response, Failure> {
    let registry = &api.parts()?.registry;
    let answer = registry.register(SlotId::new(slot), RegisterOperation::Read, REGISTER_PATIENCE).await?;
    Ok(match answer {
        Answer::Read { head: Some(head) } => (tagged(head.tag), head.value.to_vec()).into_response(),
        _ => Failure::new(StatusCode::NOT_FOUND, "nothing was written there").into_response(),
    })
}

async fn write_register(
    State(api): State<StoreApi>,
    Path(slot): Path<u16>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Failure> {
    let registry = &api.parts()?.registry;
    let expected = condition(&headers)?;
    let operation = RegisterOperation::Write { value: Arc::from(&body[..]), expected };
    Ok(match registry.register(SlotId::new(slot), operation, REGISTER_PATIENCE).await? {
        Answer::Written { tag } => {
            let said = serde_json::json!({ "slot": slot, "tag": tag.to_string() });
            (tagged(tag), Json(said)).into_response()
        }
        Answer::Differs { head } | Answer::Read { head } => {
            let there = head.as_ref().map(|head: &Head| head.tag.to_string());
            let said = serde_json::json!({ "error": "the condition does not hold", "tag": there });
            let mut response = (StatusCode::PRECONDITION_FAILED, Json(said)).into_response();
            if let Some(head) = head {
                let [(name, value)] = tagged(head.tag);
                response.headers_mut().insert(name, value);
            }
            response
        }
    })
}

fn tagged(tag: Tag) -> [(HeaderName, HeaderValue); 1] {
    let value = HeaderValue::from_str(&format!("\"{tag}\"")).expect("a tag is digits and a dot");
    [(ETAG, value)]
}

/// What must be there before a write, by the headers of the request.
fn condition(headers: &HeaderMap) -> Result<Option<Option<Tag>>, Failure> {
    let wrong = |reason: &str| Failure::new(StatusCode::BAD_REQUEST, reason);
    let text =
        |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default().to_owned());
    match (text(IF_MATCH), text(IF_NONE_MATCH)) {
        (None, None) => Ok(None),
        (None, Some(any)) if any == "*" => Ok(Some(None)),
        (Some(tag), None) => {
            let parts = tag.trim_matches('"').split_once('.');
            let numbers =
                parts.and_then(|(epoch, sequence)| Some((epoch.parse().ok()?, sequence.parse().ok()?)));
            let (epoch, sequence) = numbers.ok_or_else(|| wrong("If-Match takes the ETag of a register"))?;
            Ok(Some(Some(Tag { epoch: SlotEpoch::new(epoch), sequence })))
        }
        (None, Some(_)) => Err(wrong("If-None-Match takes * only")),
        (Some(_), Some(_)) => Err(wrong("If-Match and If-None-Match exclude each other")),
    }
}

/// How long a request over HTTP may wait for a primary.
const REGISTER_PATIENCE: Duration = Duration::from_secs(10);
