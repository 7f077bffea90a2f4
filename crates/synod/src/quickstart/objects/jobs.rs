//! The part of the tour that is about jobs: they are done, and they survive the leader of their queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use synod_core::jobs::{QueueName, Submit};
use synod_queue::{Job, Worker};
use tokio::time::{Instant, sleep, timeout};

use super::{NODES, PATIENCE, Tour, name, start};

impl Tour {
    /// Starts the nodes again that were lost, with what is on their disks.
    pub(super) async fn bring_back(&mut self) -> Result<String, String> {
        let config = self.config.clone().ok_or("there is no configuration")?;
        for index in 0..NODES {
            if self.nodes[index].is_none() {
                self.nodes[index] = Some(start(index, config.clone(), false).await?);
            }
        }
        let whole = async {
            while self.nodes.iter().flatten().any(|node| node.jobs.voters() < NODES) {
                sleep(LOOK_EVERY).await;
            }
        };
        timeout(PATIENCE, whole).await.map_err(|_| "the queue did not find all its replicas")?;
        Ok("the node that was killed runs again, with what is on its disk".to_owned())
    }

    /// Submits jobs on one node and has them done by a worker on another.
    pub(super) async fn do_jobs(&self) -> Result<String, String> {
        let text = |error: synod_queue::ClientError| error.to_string();
        let node = |index: usize| self.nodes[index].as_ref().ok_or("the node is gone");
        let done = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&done);
        let worker =
            Worker::new(&node(1)?.client).concurrency(16).queue(QUEUE).map_err(|error| error.to_string())?;
        let running = worker.start(move |_: Job| {
            counted.fetch_add(1, Ordering::Relaxed);
            async {}
        });
        let running = running.await.map_err(text)?;
        for result in node(0)?.client.submit_all(jobs()?).await {
            result.map_err(text)?;
        }
        let all = async {
            while done.load(Ordering::Relaxed) < JOBS {
                sleep(LOOK_EVERY).await;
            }
        };
        let is_done = timeout(PATIENCE, all).await.is_ok();
        running.stop(PATIENCE).await;
        match (is_done, done.load(Ordering::Relaxed)) {
            (true, JOBS) => Ok(format!("{JOBS} jobs, each on the disks of a majority, were done once each")),
            (_, done) => Err(format!("{done} of {JOBS} jobs were done")),
        }
    }

    /// Loses the leader of the queue, with jobs in it, and submits one more.
    pub(super) async fn lose_leader(&mut self, index: usize) -> Result<String, String> {
        let text = |error: synod_queue::ClientError| error.to_string();
        let left = self.nodes.iter().flatten().find(|node| node.node.place().node != name(index));
        let client = left.ok_or("no other node runs")?.client.clone();
        for result in client.submit_all(jobs()?).await {
            result.map_err(text)?;
        }
        let began = Instant::now();
        let killed = self.nodes[index].take().ok_or("the node is gone")?.kill();
        let submitted = async { client.submit(QUEUE, "one more").await.map(|_| began.elapsed().as_millis()) };
        let ((), elapsed) = tokio::join!(killed, submitted);
        let elapsed = elapsed.map_err(text)?;
        let overview = client.overview().await.map_err(text)?;
        match usize::try_from(overview.jobs) {
            Ok(found) if found == JOBS + 1 => Ok(format!(
                "the queue's leader was killed; the next job was acknowledged after {elapsed} ms, and all {JOBS} are there"
            )),
            _ => Err(format!("{} jobs are there, {} were submitted", overview.jobs, JOBS + 1)),
        }
    }

    /// The node that leads the queue.
    pub(super) fn leader(&self) -> usize {
        let leader = self.nodes.iter().flatten().find_map(|node| node.jobs.leader());
        (0..NODES).find(|index| leader.as_deref() == Some(name(*index).as_str())).unwrap_or(0)
    }
}

fn jobs() -> Result<impl Iterator<Item = Submit>, String> {
    let queue = QueueName::new(QUEUE).map_err(|error| error.to_string())?;
    Ok((0..JOBS).map(move |number| Submit::new(queue.clone(), format!("job {number}"))))
}

const QUEUE: &str = "quickstart";
const JOBS: usize = 100;
const LOOK_EVERY: Duration = Duration::from_millis(5);
