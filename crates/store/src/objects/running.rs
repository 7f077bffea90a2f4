//! The objects of a running node: disks, plane and keeper, started and stopped as one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use synod_cluster::remote::BearerToken;
use synod_cluster::{Exposition, MonotonicClock};
use synod_core::MemberId;
use synod_core::objects::ObjectConfig;
use synod_core::slots::{BootstrapNode, BootstrapState, SlotId};
use tokio::task::JoinHandle;

use super::archive::ArchiveStatusJson;
use super::disk::{Disk, DiskError, DiskOptions};
use super::handle::Objects;
use super::keeper::{Keeper, KeeperConfig};
use super::plane::{Plane, PlaneParts, PlaneStartError};
use super::service::ObjectsService;
use crate::registry::RegistryHandle;

/// What the objects of a node are started with.
pub(crate) struct ObjectsParts {
    pub(crate) own: MemberId,
    pub(crate) bootstrap: Arc<BootstrapState>,
    pub(crate) registry: RegistryHandle,
    pub(crate) disks: Vec<Disk>,
    pub(crate) clock: MonotonicClock,
    pub(crate) keeper: KeeperConfig,
    pub(crate) token: BearerToken,
}

/// The objects of a running node.
pub(crate) struct RunningObjects {
    objects: Objects,
    keeper: Arc<Keeper>,
    tasks: Vec<JoinHandle<()>>,
}

/// Opens the disks of a node. `is_new_cluster`: nobody has stored anything yet, so there is nothing to be learned.
pub(crate) async fn open_disks(
    place: &BootstrapNode,
    bootstrap: &Arc<BootstrapState>,
    is_new_cluster: bool,
) -> Result<Vec<Disk>, ObjectsError> {
    let dirs: Vec<PathBuf> = place.disks.iter().map(|disk| Path::new(disk).join("objects")).collect();
    let total_slots = bootstrap.replication.total_slots;
    let is_known = is_new_cluster || bootstrap.replica_count() == 1;
    let own: Vec<SlotId> =
        bootstrap.slots().filter(|slot| bootstrap.replicas(*slot).any(|node| *node == place.node)).collect();
    let opened = tokio::task::spawn_blocking(move || {
        let options = DiskOptions::new(total_slots);
        let mut disks = Vec::new();
        for dir in dirs {
            let disk = Disk::open(&dir, &options)?;
            if is_known {
                disk.set_learned(&own)?;
            }
            disks.push(disk);
        }
        Ok::<_, DiskError>(disks)
    });
    let disks = opened.await.map_err(|error| ObjectsError(error.to_string()))?;
    disks.map_err(|error| ObjectsError(error.to_string()))
}

impl RunningObjects {
    /// Starts them, and serves them to peers.
    pub(crate) fn start(parts: ObjectsParts, service: &ObjectsService) -> Result<Self, ObjectsError> {
        let ObjectsParts { own, bootstrap, registry, disks, clock, keeper, token } = parts;
        // Answers to questions of an earlier life must not be taken for answers to ours.
        let config = ObjectConfig { instance: own.incarnation.get() << 32, ..ObjectConfig::default() };
        let parts = PlaneParts { own, bootstrap, registry, disks, clock, config, token };
        let (plane, suspects) = Plane::start(parts)?;
        service.open(Arc::clone(&plane));
        let keeper = Keeper::new(Arc::clone(&plane), keeper);
        let tasks = vec![
            tokio::spawn(Arc::clone(&plane).keep_time()),
            tokio::spawn(Arc::clone(&plane).follow_elections()),
            tokio::spawn(Arc::clone(&keeper).fetch_missing()),
            tokio::spawn(Arc::clone(&keeper).mend_suspects(suspects)),
            tokio::spawn(Arc::clone(&keeper).scrub()),
            tokio::spawn(Arc::clone(&keeper).collect()),
        ];
        Ok(Self { objects: Objects::new(plane), keeper, tasks })
    }

    /// The store, for gateways.
    pub(crate) const fn objects(&self) -> &Objects {
        &self.objects
    }

    /// What the routes of the api need.
    pub(crate) fn view(&self) -> ObjectsView {
        ObjectsView { objects: self.objects.clone(), keeper: Arc::clone(&self.keeper) }
    }

    /// Waits until a disk has failed, and says how.
    pub(crate) async fn failed(&self) -> String {
        self.objects.plane.failed().await
    }

    /// Stops everything that runs.
    pub(crate) async fn stop(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
            // It was told to end.
            drop(task.await);
        }
    }
}

/// What can be asked of the objects of a node. Clones are the same one.
#[derive(Clone)]
pub(crate) struct ObjectsView {
    objects: Objects,
    keeper: Arc<Keeper>,
}

/// The objects of a node, as `synod store status --json` shows them.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct StoreStatusJson {
    /// The node that answers.
    pub node_id: String,
    /// Slots that this node serves objects of.
    pub slots_served: u64,
    /// Slots that it is about to serve: it fences or recovers them.
    pub slots_recovering: u64,
    /// Slots that it stores and has no memory of: it takes part in nothing there until it has heard all other replicas.
    pub slots_learning: u64,
    /// Slots that it had no memory of when it started.
    pub slots_learning_total: u64,
    /// Entries on its disks, tombstones included.
    pub entries: u64,
    /// Tombstones on its disks.
    pub tombstones: u64,
    /// Parts on its disks.
    pub parts: u64,
    /// Their bytes.
    pub part_bytes: u64,
    /// Parts that are named here and are not here yet.
    pub parts_missing: u64,
    /// Parts that were fetched from other replicas since the node started.
    pub parts_fetched: u64,
    /// The comparison of entries with the other replicas.
    pub heal: HealJson,
    /// The reading of all parts.
    pub scrub: ScrubJson,
    /// What could not be repaired, with the reason.
    pub unrepaired: Vec<UnrepairedJson>,
    /// The archive, if the cluster has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<ArchiveStatusJson>,
}

/// How far healing is.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct HealJson {
    /// Whether a round is under way.
    pub running: bool,
    /// Slots that were compared in this round, or in the last one.
    pub slots_checked: u64,
    /// Of how many.
    pub slots_total: u64,
    /// Slots that differed, since the node started.
    pub slots_differing: u64,
    /// Entries that were stored again, since the node started.
    pub entries_repaired: u64,
    /// Entries of the last round that not every replica has.
    pub entries_unrepaired: u64,
}

/// How far the reading of all parts is.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct ScrubJson {
    /// Whether a round is under way.
    pub running: bool,
    /// Parts read.
    pub parts: u64,
    /// Of how many.
    pub parts_total: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Parts that were damaged or gone.
    pub damaged: u64,
    /// Of these, the ones that were fetched again.
    pub repaired: u64,
    /// When the last whole round ended, in milliseconds of the wall clock.
    pub finished_unix_ms: Option<u64>,
}

/// Something that could not be repaired.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct UnrepairedJson {
    /// The part.
    pub part: String,
    /// Why not.
    pub reason: String,
}

impl ObjectsView {
    /// Everything that is known of the objects of this node.
    pub(crate) fn status(&self) -> StoreStatusJson {
        let plane = &self.objects.plane;
        let progress = plane.progress();
        let scrub = self.keeper.scrub_progress();
        let mut status = StoreStatusJson {
            node_id: plane.own().to_string(),
            slots_served: progress.serving as u64,
            slots_recovering: (progress.fencing + progress.recovering) as u64,
            slots_learning: progress.learning_left as u64,
            slots_learning_total: progress.learning_total as u64,
            parts_fetched: self.keeper.fetched(),
            heal: HealJson {
                running: progress.heal_is_running,
                slots_checked: progress.heal_pass_checked,
                slots_total: progress.heal_pass_checked + progress.heal_pass_left,
                slots_differing: progress.heal_slots_differing,
                entries_repaired: progress.heal_entries_repaired,
                entries_unrepaired: progress.heal_pass_failed,
            },
            scrub: ScrubJson {
                running: scrub.is_running,
                parts: scrub.parts,
                parts_total: scrub.parts_total,
                bytes: scrub.bytes,
                damaged: scrub.damaged,
                repaired: scrub.repaired,
                finished_unix_ms: scrub.finished_ms,
            },
            archive: self.objects.archive_status(),
            ..StoreStatusJson::default()
        };
        for disk in plane.disks() {
            let Ok(usage) = disk.usage() else { continue };
            status.entries += usage.entries;
            status.tombstones += usage.tombstones;
            status.parts += usage.parts;
            status.part_bytes += usage.part_bytes;
            status.parts_missing += usage.missing_parts;
        }
        let unrepaired = self.keeper.unrepaired().into_iter();
        status.unrepaired =
            unrepaired.map(|(part, reason)| UnrepairedJson { part: part.to_string(), reason }).collect();
        status
    }

    /// Whether the objects of this node can be served; else why not.
    pub(crate) fn check_ready(&self) -> Result<(), String> {
        let progress = self.objects.plane.progress();
        let (learning, recovering) = (progress.learning_left, progress.fencing + progress.recovering);
        match (learning, recovering) {
            (0, 0) => Ok(()),
            (0, _) => Err(format!("{recovering} slots of objects are being taken over")),
            _ => Err(format!(
                "the disks of this node have no memory of the objects of {learning} slots, and it has to hear all other \
                 replicas of them"
            )),
        }
    }

    /// Reads all parts now, as fast as the disks go.
    pub(crate) fn scrub(&self) {
        self.keeper.scrub_now();
    }

    /// Compares all slots that this node serves with the other replicas now.
    pub(crate) fn heal(&self) {
        self.objects.plane.handle(|machine, now| machine.handle_heal(now, None));
    }

    /// Numbers for the metrics of the node.
    pub(crate) fn expose(&self, text: &mut Exposition) {
        let (status, counters) = (self.status(), self.objects.plane.counters());
        let gauges = [
            ("slots_served", "Slots that this node serves objects of.", status.slots_served),
            ("slots_learning", "Slots that the disks have no memory of.", status.slots_learning),
            ("entries", "Entries on the disks of this node.", status.entries),
            ("tombstones", "Tombstones on the disks of this node.", status.tombstones),
            ("parts", "Parts on the disks of this node.", status.parts),
            ("part_bytes", "Bytes of these parts.", status.part_bytes),
            ("parts_missing", "Parts that are named here and not here yet.", status.parts_missing),
            ("unrepaired", "Parts that no replica could give.", status.unrepaired.len() as u64),
        ];
        for (name, help, value) in gauges {
            text.one_gauge(&format!("synod_objects_{name}"), help, value);
        }
        if let Some(archive) = &status.archive {
            archive.expose(text);
        }
        text.counters(
            "synod_objects",
            &[
                ("requests", "Requests to primaries on this node.", counters.requests),
                ("found", "Reads that were answered.", counters.found),
                ("written", "Writes and deletions that took effect.", counters.written),
                ("refused", "Conditions that did not hold.", counters.refused),
                ("not_primary", "Requests for slots that this node does not serve.", counters.not_primary),
                ("expired", "Requests whose time was over.", counters.expired),
                ("indeterminate", "Writes without a known end.", counters.indeterminate),
                ("too_many", "Requests beyond the bound.", counters.too_many),
                ("renewals", "Heads that were stored again before they were shown.", counters.renewals),
                ("resends", "Questions that were asked again.", counters.resends),
                ("confirm_rounds", "Questions whether epochs last.", counters.confirm_rounds),
                ("stale", "Refusals by replicas that know a later epoch.", counters.stale),
                ("step_downs", "Reigns that ended.", counters.step_downs),
                ("healed", "Entries that were stored again on all replicas.", status.heal.entries_repaired),
                ("parts_fetched", "Parts that were fetched from other replicas.", status.parts_fetched),
                (
                    "messages_dropped",
                    "Messages for which there was no room.",
                    self.objects.plane.links().dropped(),
                ),
            ],
        );
    }
}

/// The objects of a node cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the objects of this node cannot be served: {0}")]
pub struct ObjectsError(pub(crate) String);

impl From<PlaneStartError> for ObjectsError {
    fn from(error: PlaneStartError) -> Self {
        Self(error.to_string())
    }
}
