//! Removes objects and uploads that have had their time, as the rules of their buckets say.
//!
//! A day is over at midnight, in UTC: what was written at noon and lives for one day is removed after the second midnight that
//! follows. Running it twice, or on several nodes at once, does no harm: what is removed is what was looked at, and nothing
//! that was written since.

use synod_core::objects::{Condition, EntryName, Space};
use synod_store::objects::contract::{
    LIST_MAX, ListItem, ListPosition, ListQuery, ListedEntry, ObjectStore, StoreError, WriteOutcome,
};

use crate::records::{BucketBrief, BucketRecord, LifecycleRecord, ObjectMeta, Record as _};
use crate::service::uploads::delete_parts;

/// What one run has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LifecycleReport {
    /// Buckets with rules.
    pub buckets: u64,
    /// Objects and uploads that were looked at.
    pub examined: u64,
    /// Objects that were removed.
    pub expired: u64,
    /// Their bytes.
    pub expired_bytes: u64,
    /// Uploads that were given up.
    pub aborted: u64,
    /// Parts that were left behind by an upload that is no more.
    pub orphans: u64,
    /// What could not be done, and is tried again by the next run. The first one is told.
    pub failures: u64,
    /// The first failure.
    pub first_failure: Option<String>,
}

impl LifecycleReport {
    fn fail(&mut self, what: &str, error: &dyn std::fmt::Display) {
        self.failures += 1;
        self.first_failure.get_or_insert_with(|| format!("{what}: {error}"));
    }
}

/// Looks at all buckets once, and removes what has had its time. Meant to be called every hour or so, by any one node.
pub async fn run_lifecycle_once<S: ObjectStore>(store: &S, now_ms: u64) -> LifecycleReport {
    let mut report = LifecycleReport::default();
    let mut buckets = Listing::new(Space::Bucket, "", "");
    loop {
        let page = match buckets.page(store).await {
            Ok(Some(page)) => page,
            Ok(None) => return report,
            Err(error) => {
                report.fail("buckets", &error);
                return report;
            }
        };
        for listed in page {
            let has_rules = BucketBrief::from_bytes(listed.brief).map(|brief| brief.has_lifecycle);
            if let Err(error) = remove_orphans(store, &listed.key, now_ms, &mut report).await {
                report.fail(&listed.key, &error);
            }
            if has_rules.unwrap_or(true) {
                report.buckets += 1;
                run_bucket(store, &listed.key, now_ms, &mut report).await;
            }
        }
    }
}

async fn run_bucket<S: ObjectStore>(store: &S, bucket: &str, now_ms: u64, report: &mut LifecycleReport) {
    let Ok(name) = EntryName::new(Space::Bucket, "", bucket) else { return };
    let record = match store.read(&name).await {
        Ok(Some(entry)) => BucketRecord::from_bytes(entry.content.meta),
        Ok(None) => return,
        Err(error) => return report.fail(bucket, &error),
    };
    let rules = match record {
        Ok(record) => record.lifecycle,
        Err(error) => return report.fail(bucket, &error),
    };
    for rule in rules.iter().filter(|rule| rule.is_enabled) {
        if (rule.expire_days.is_some() || rule.expire_date_ms.is_some())
            && let Err(error) = expire(store, bucket, rule, now_ms, report).await
        {
            report.fail(bucket, &error);
        }
        if rule.abort_days.is_some()
            && let Err(error) = abort(store, bucket, rule, now_ms, report).await
        {
            report.fail(bucket, &error);
        }
    }
}

async fn expire<S: ObjectStore>(
    store: &S,
    bucket: &str,
    rule: &LifecycleRecord,
    now_ms: u64,
    report: &mut LifecycleReport,
) -> Result<(), StoreError> {
    let mut objects = Listing::new(Space::Object, bucket, &rule.prefix);
    while let Some(page) = objects.page(store).await? {
        for listed in page {
            report.examined += 1;
            let is_due = rule.expire_date_ms.is_some_and(|date| now_ms >= date)
                || rule.expire_days.is_some_and(|days| is_over(listed.modified_ms, days, now_ms));
            let is_sized = rule.larger_than.is_none_or(|bytes| listed.size > bytes)
                && rule.smaller_than.is_none_or(|bytes| listed.size < bytes);
            let Ok(name) = EntryName::new(Space::Object, bucket, &listed.key) else { continue };
            if !is_due || !is_sized {
                continue;
            }
            let removed = async {
                if !rule.tags.is_empty() && !has_tags(store, &name, rule).await? {
                    return Ok(WriteOutcome::Done(None));
                }
                store.delete(&name, Condition::TagIs(listed.tag)).await
            };
            match removed.await {
                Ok(WriteOutcome::Done(Some(_))) => {
                    report.expired += 1;
                    report.expired_bytes += listed.size;
                }
                // It is another one by now, or gone, or not meant.
                Ok(_) => {}
                Err(error) => report.fail(&listed.key, &error),
            }
        }
    }
    Ok(())
}

async fn has_tags<S: ObjectStore>(
    store: &S,
    name: &EntryName,
    rule: &LifecycleRecord,
) -> Result<bool, StoreError> {
    let Some(entry) = store.read(name).await? else { return Ok(false) };
    // What cannot be read is not removed.
    let meta = ObjectMeta::from_bytes(entry.content.meta);
    Ok(meta.is_ok_and(|meta| rule.tags.iter().all(|tag| meta.tags.contains(tag))))
}

async fn abort<S: ObjectStore>(
    store: &S,
    bucket: &str,
    rule: &LifecycleRecord,
    now_ms: u64,
    report: &mut LifecycleReport,
) -> Result<(), StoreError> {
    let Some(days) = rule.abort_days else { return Ok(()) };
    let mut uploads = Listing::new(Space::Upload, bucket, &rule.prefix);
    while let Some(page) = uploads.page(store).await? {
        for listed in page {
            report.examined += 1;
            let (Some((key, id)), true) =
                (listed.key.split_once('\0'), is_over(listed.modified_ms, days, now_ms))
            else {
                continue;
            };
            let Ok(name) = EntryName::new(Space::Upload, bucket, &listed.key) else { continue };
            let removed = async {
                let outcome = store.delete(&name, Condition::TagIs(listed.tag)).await?;
                delete_parts(store, bucket, key, id).await.map(|()| outcome)
            };
            match removed.await {
                Ok(WriteOutcome::Done(_)) => report.aborted += 1,
                Ok(WriteOutcome::Refused(_)) => {}
                Err(error) => report.fail(key, &error),
            }
        }
    }
    Ok(())
}

/// Removes parts whose upload is no more: somebody was interrupted between deleting the one and the others.
async fn remove_orphans<S: ObjectStore>(
    store: &S,
    bucket: &str,
    now_ms: u64,
    report: &mut LifecycleReport,
) -> Result<(), StoreError> {
    let mut parts = Listing::new(Space::UploadPart, bucket, "");
    let mut known: Option<(String, bool)> = None;
    while let Some(page) = parts.page(store).await? {
        for listed in page {
            let Some((upload, _)) = listed.key.rsplit_once('\0') else { continue };
            // A part is written just before somebody looks whether its upload is still there.
            if listed.modified_ms + ORPHAN_AGE_MS > now_ms {
                continue;
            }
            let is_there = match &known {
                Some((name, is_there)) if name == upload => *is_there,
                _ => {
                    let Ok(name) = EntryName::new(Space::Upload, bucket, upload) else { continue };
                    let is_there = store.read(&name).await?.is_some();
                    known = Some((upload.to_owned(), is_there));
                    is_there
                }
            };
            let Ok(name) = EntryName::new(Space::UploadPart, bucket, &listed.key) else { continue };
            if !is_there
                && let WriteOutcome::Done(Some(_)) = store.delete(&name, Condition::TagIs(listed.tag)).await?
            {
                report.orphans += 1;
            }
        }
    }
    Ok(())
}

/// A listing, page by page.
struct Listing {
    query: Option<ListQuery>,
}

impl Listing {
    fn new(space: Space, bucket: &str, prefix: &str) -> Self {
        let query = ListQuery {
            space,
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            delimiter: String::new(),
            after: None,
            limit: LIST_MAX,
            beside: None,
        };
        Self { query: Some(query) }
    }

    async fn page<S: ObjectStore>(&mut self, store: &S) -> Result<Option<Vec<ListedEntry>>, StoreError> {
        let Some(mut query) = self.query.take() else { return Ok(None) };
        let page = store.list(query.clone()).await?;
        let entry = |item| match item {
            ListItem::Entry(entry) => Some(entry),
            ListItem::Prefix(_) => None,
        };
        let entries: Vec<ListedEntry> = page.items.into_iter().filter_map(entry).collect();
        if let Some(last) = entries.last().filter(|_| page.is_truncated) {
            query.after = Some(ListPosition::Key(last.key.clone()));
            self.query = Some(query);
        }
        Ok(Some(entries))
    }
}

/// Whether so many days are over since then, and the midnight after them.
fn is_over(since_ms: u64, days: u32, now_ms: u64) -> bool {
    let end = since_ms.saturating_add(u64::from(days).saturating_mul(DAY_MS));
    let midnight = end.div_ceil(DAY_MS).saturating_mul(DAY_MS);
    now_ms >= midnight
}

/// A day in milliseconds.
const DAY_MS: u64 = 86_400_000;
/// How old a part must be to be taken for left behind.
const ORPHAN_AGE_MS: u64 = DAY_MS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_over_at_midnight() {
        let noon = 10 * DAY_MS + DAY_MS / 2;
        assert!(!is_over(noon, 1, 11 * DAY_MS));
        assert!(!is_over(noon, 1, 12 * DAY_MS - 1));
        assert!(is_over(noon, 1, 12 * DAY_MS));
        assert!(is_over(10 * DAY_MS, 1, 11 * DAY_MS));
        assert!(!is_over(noon, u32::MAX, 12 * DAY_MS));
    }
}
