//! All jobs by their number, in pages that a snapshot shares with the living state.
//!
//! Numbers rise, so neighbours in the table are neighbours in time: a page holds the jobs of 64 consecutive numbers that
//! are still there. Cloning the table clones pointers to pages; whoever then changes a job first copies its page, and no
//! body with it. So a snapshot of a million jobs stops the queue for as long as it takes to copy some ten thousand pointers.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::id::JobId;
use super::job::Job;

/// All jobs, in the order of their numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct JobTable {
    pages: BTreeMap<u64, Arc<Page>>,
    len: usize,
}

impl JobTable {
    /// Adds a job whose number is not there yet.
    pub(super) fn insert(&mut self, job: Box<Job>) {
        let (page, bit) = place(job.id);
        let page = Arc::make_mut(self.pages.entry(page).or_default());
        debug_assert_eq!(page.present & bit, 0, "numbers are given once");
        page.jobs.insert(page.rank(bit), job);
        page.present |= bit;
        self.len += 1;
    }

    pub(super) fn remove(&mut self, id: JobId) -> Option<Box<Job>> {
        let (number, bit) = place(id);
        let page = self.pages.get_mut(&number).filter(|page| page.present & bit != 0)?;
        let page = Arc::make_mut(page);
        let job = page.jobs.remove(page.rank(bit));
        page.present &= !bit;
        if page.present == 0 {
            self.pages.remove(&number);
        }
        self.len -= 1;
        Some(job)
    }

    pub(super) fn get_mut(&mut self, id: JobId) -> Option<&mut Job> {
        let (page, bit) = place(id);
        let page = self.pages.get_mut(&page).filter(|page| page.present & bit != 0)?;
        let page = Arc::make_mut(page);
        let rank = page.rank(bit);
        Some(&mut page.jobs[rank])
    }

    pub(super) fn get(&self, id: JobId) -> Option<&Job> {
        let (page, bit) = place(id);
        let page = self.pages.get(&page).filter(|page| page.present & bit != 0)?;
        Some(&page.jobs[page.rank(bit)])
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// All jobs after this one, in the order of their numbers.
    pub(super) fn after(&self, id: Option<JobId>) -> impl Iterator<Item = &Job> {
        let start = id.map_or(0, |id| place(id).0);
        let jobs = self.pages.range(start..).flat_map(|(_, page)| page.jobs.iter()).map(AsRef::as_ref);
        jobs.skip_while(move |job| Some(job.id) <= id)
    }
}

/// The jobs of 64 consecutive numbers.
#[derive(Clone, Debug, Default)]
struct Page {
    /// Which of the numbers are there.
    present: u64,
    /// In their order. Boxed: a job moves neither when a neighbour goes nor from queue to history.
    #[expect(clippy::vec_box, reason = "removing the first of a page moves pointers and not jobs")]
    jobs: Vec<Box<Job>>,
}

impl Page {
    const fn rank(&self, bit: u64) -> usize {
        (self.present & (bit - 1)).count_ones() as usize
    }
}

/// The page of a number, and its bit there.
const fn place(id: JobId) -> (u64, u64) {
    (id.get() >> 6, 1 << (id.get() & 63))
}
