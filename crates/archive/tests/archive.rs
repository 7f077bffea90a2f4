//! The archive of a cluster, which is the gateway of another cluster, from clients to what they can see.

#[path = "support/world.rs"]
mod world;

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, StatusCode};
use synod_core::objects::{ArchiveRecord, Condition, EntryName, Space};
use synod_store::objects::content::Content;
use synod_store::objects::contract::{ObjectStore as _, WriteOutcome};
use world::{Cluster, Elsewhere, PHOTOS, body, eventually, object};

const LARGE: usize = 20 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_is_copied_and_what_is_deleted_goes() {
    let elsewhere = Elsewhere::start().await;
    let cluster = Cluster::start(&elsewhere, 1, true).await;
    let (small, large) = (body(1000), body(LARGE));
    cluster.put("a/small", &small).await;
    cluster.put("a//large %", &large).await;
    let copy = elsewhere.until_copied("a/small", &small).await;
    assert!(copy.header("x-amz-meta-synod-generation").is_some_and(|generation| generation.contains('.')));
    assert_eq!(copy.header("x-amz-meta-synod-etag"), cluster.get("a/small").await.etag());
    elsewhere.until_copied("a/%2F/large %25", &large).await;

    // Overwritten, with more metadata than fits beside a copy.
    let (other, author) = (body(2000), "x".repeat(1500));
    let headers = [("x-amz-meta-author", author.as_str())];
    let reply = cluster.client.put(PHOTOS, "a/small", other.clone(), &headers).await.expect("an answer");
    assert!(reply.status.is_success(), "{}", reply.text());
    let copy = elsewhere.until_copied("a/small", &other).await;
    assert_eq!(copy.header("x-amz-meta-synod-meta-aside"), Some("true"));

    for key in ["a/small", "a//large %"] {
        cluster.delete(key).await;
        assert_eq!(cluster.get(key).await.status, StatusCode::NOT_FOUND, "{key}");
    }
    for (key, copy) in [("a/small", "a/small"), ("a//large %", "a/%2F/large %25")] {
        eventually("the copy goes", async || {
            elsewhere.copy(copy).await.map_or(Ok(()), |_| Err("it is there"))
        })
        .await;
        eventually("the record goes", async || match cluster.has_record(key).await {
            true => Err("it is there"),
            false => Ok(()),
        })
        .await;
        assert_eq!(cluster.get(key).await.status, StatusCode::NOT_FOUND, "{key}");
    }
    assert_eq!(elsewhere.open_uploads().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_that_was_down_gets_everything_later_whoever_crashed_meanwhile() {
    let mut elsewhere = Elsewhere::start().await;
    let mut cluster = Cluster::start(&elsewhere, 1, true).await;
    cluster.put("gone", &body(10)).await;
    elsewhere.until_copied("gone", &body(10)).await;
    elsewhere.go_down().await;
    for size in 1..=5 {
        cluster.put(&format!("key{size}"), &body(size * 1000)).await;
    }
    cluster.put("large", &body(LARGE)).await;
    cluster.delete("gone").await;
    cluster.kill(0).await;
    cluster.restart(0).await;
    // The archive has the copy, and nobody can ask it: the cluster knows by itself that the object is deleted.
    eventually("it is deleted", async || match cluster.get("gone").await.status {
        StatusCode::NOT_FOUND => Ok(()),
        status => Err(status),
    })
    .await;
    elsewhere.come_back().await;
    for size in 1..=5 {
        elsewhere.until_copied(&format!("key{size}"), &body(size * 1000)).await;
    }
    elsewhere.until_copied("large", &body(LARGE)).await;
    eventually("the copy goes", async || elsewhere.copy("gone").await.map_or(Ok(()), |_| Err("it is there")))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_replica_has_is_read_from_the_archive() {
    let mut elsewhere = Elsewhere::start().await;
    let cluster = Cluster::start(&elsewhere, 3, true).await;
    let large = body(LARGE);
    cluster.put("large", &large).await;
    elsewhere.until_copied("large", &large).await;
    eventually("it is written down", async || match record(&cluster, "large").await {
        Some(ArchiveRecord::Archived { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let before = cluster.objects().read(&object("large")).await.expect("an answer").expect("an object");
    assert!(cluster.lose_parts() >= 2);
    let reply = cluster.get("large").await;
    assert_eq!(reply.status, StatusCode::OK);
    assert!(reply.body == large, "{} bytes", reply.body.len());
    let range = [("range", "bytes=9000000-9000099")];
    let path = synod_s3::client::object_path(PHOTOS, "large");
    let reply = cluster.client.call(Method::GET, &path, &[], &range, Bytes::new()).await.expect("an answer");
    assert_eq!((reply.status, reply.body), (StatusCode::PARTIAL_CONTENT, large.slice(9_000_000..9_000_100)));

    // What was read is written back: the archive is not needed any more.
    let after = eventually("it is written back", async || {
        let entry = cluster.objects().read(&object("large")).await.expect("an answer").expect("an object");
        if entry.tag == before.tag { Err("not yet") } else { Ok(entry) }
    })
    .await;
    assert_eq!((after.etag, after.content.modified_ms), (before.etag, before.content.modified_ms));
    assert_eq!(after.content.meta, before.content.meta);
    eventually("the copy is that of what is there", async || match record(&cluster, "large").await {
        Some(ArchiveRecord::Archived { of, .. }) if of == after.tag => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    elsewhere.go_down().await;
    let reply = cluster.get("large").await;
    assert!(reply.status == StatusCode::OK && reply.body == large, "{}", reply.status);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_cluster_finds_what_an_old_one_archived_and_takes_it_back() {
    let mut elsewhere = Elsewhere::start().await;
    let mut old = Cluster::start(&elsewhere, 1, true).await;
    let (small, large) = (body(1000), body(LARGE));
    old.put("small", &small).await;
    old.put("other", &small).await;
    old.put("large", &large).await;
    let etag = old.get("large").await.etag().map(str::to_owned);
    elsewhere.until_copied("small", &small).await;
    elsewhere.until_copied("other", &small).await;
    elsewhere.until_copied("large", &large).await;
    old.kill(0).await;

    let new = Cluster::start(&elsewhere, 1, true).await;
    let path = synod_s3::client::object_path(PHOTOS, "large");
    let head = new.client.call(Method::HEAD, &path, &[], &[], Bytes::new()).await.expect("an answer");
    assert_eq!((head.status, head.etag()), (StatusCode::OK, etag.as_deref()));
    assert_eq!(
        (head.header("x-amz-meta-author"), head.header("content-type")),
        (Some("somebody"), Some("image/png"))
    );
    // Whoever wants that nothing is there is told that something is.
    let name = object("small");
    let refused = new.store().write(&name, Condition::Absent, Arc::from("e"), Content::default()).await;
    assert!(matches!(refused, Ok(WriteOutcome::Refused(Some(_)))), "{refused:?}");
    let refused =
        new.client.put(PHOTOS, "large", small.clone(), &[("if-none-match", "*")]).await.expect("an answer");
    assert_eq!(refused.status, StatusCode::PRECONDITION_FAILED);
    for (key, body) in [("other", &small), ("small", &small), ("large", &large)] {
        let reply = new.get(key).await;
        assert!(reply.status == StatusCode::OK && reply.body == *body, "{key}: {}", reply.status);
    }
    for key in ["small", "other", "large"] {
        eventually("it is taken back", async || {
            new.objects().read(&object(key)).await.expect("an answer").map(drop).ok_or("not yet")
        })
        .await;
    }
    elsewhere.go_down().await;
    for (key, body) in [("small", &small), ("other", &small), ("large", &large)] {
        let reply = new.get(key).await;
        assert!(reply.status == StatusCode::OK && reply.body == *body, "{key}: {}", reply.status);
        assert_eq!(reply.header("x-amz-meta-author"), Some("somebody"));
    }
    // What the cluster does not know of cannot be said to be nowhere.
    assert_eq!(new.get("unknown").await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_deleted_does_not_come_back_from_the_archive() {
    let elsewhere = Elsewhere::start().await;
    let mut old = Cluster::start(&elsewhere, 1, true).await;
    for key in ["untouched", "overwritten"] {
        old.put(key, &body(1000)).await;
        elsewhere.until_copied(key, &body(1000)).await;
    }
    old.kill(0).await;

    // Nobody tells the archive yet.
    let mut new = Cluster::start(&elsewhere, 1, false).await;
    new.delete("untouched").await;
    new.put("overwritten", &body(2000)).await;
    new.delete("overwritten").await;
    for key in ["untouched", "overwritten"] {
        assert!(elsewhere.copy(key).await.is_some(), "{key} was deleted too early");
        assert_eq!(new.get(key).await.status, StatusCode::NOT_FOUND, "{key}");
        // Somebody who was about to take it back is late.
        let late =
            new.objects().write(&object(key), Condition::Never, Arc::from("e"), Content::default()).await;
        assert_eq!(late, Ok(WriteOutcome::Refused(None)), "{key}");
    }
    new.start_workers();
    for key in ["untouched", "overwritten"] {
        eventually("the copy goes", async || {
            elsewhere.copy(key).await.map_or(Ok(()), |_| Err("it is there"))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_was_cut_off_goes_on_where_it_was_after_a_crash() {
    let elsewhere = Elsewhere::start().await;
    // In the middle of the third part of five, and of what is sent again.
    elsewhere.valve.close_after(20 << 20);
    let mut cluster = Cluster::start(&elsewhere, 1, true).await;
    let large = body(LARGE * 2);
    cluster.put("large", &large).await;
    elsewhere.valve.until_closed().await;
    cluster.kill(0).await;
    let is_sent = elsewhere.answered("UploadPart", 200);
    assert!((1..=2).contains(&is_sent), "{is_sent}");
    assert_eq!((elsewhere.copy("large").await.is_none(), elsewhere.open_uploads().await), (true, 1));

    elsewhere.valve.open();
    cluster.restart(0).await;
    elsewhere.until_copied("large", &large).await;
    assert_eq!(elsewhere.open_uploads().await, 0);
    // Nothing was begun anew, and no part was sent twice.
    let counts = ["CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"]
        .map(|operation| elsewhere.answered(operation, 200));
    assert_eq!(counts, [1, 5, 1]);
    // Whoever left it may have had more under way: the copy is looked at once more.
    eventually("it is looked at", async || match record(&cluster, "large").await {
        Some(ArchiveRecord::Archived { contested_ms: None, .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_nobody_wants_any_more_is_ended() {
    let elsewhere = Elsewhere::start().await;
    let mut cluster = Cluster::start(&elsewhere, 1, false).await;
    let large = body(LARGE);
    cluster.put("large", &large).await;
    let upload = elsewhere.leave_upload("large").await;
    assert_eq!(elsewhere.open_uploads().await, 1);
    let of = cluster.objects().read(&object("large")).await.expect("an answer").expect("an object").tag;
    // The object is another one meanwhile.
    let large = body(LARGE + 1);
    cluster.put("large", &large).await;
    let left = ArchiveRecord::Uploading { of, upload: Some(upload) };
    write_record(&cluster, "large", Condition::Absent, &left).await;

    cluster.start_workers();
    elsewhere.until_copied("large", &large).await;
    assert_eq!(elsewhere.open_uploads().await, 0);
    // Whoever left it may have had more under way: the copy is looked at once more.
    eventually("it is looked at", async || match record(&cluster, "large").await {
        Some(ArchiveRecord::Archived { contested_ms: None, .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_late_changes_nothing_that_others_wrote_down() {
    let elsewhere = Elsewhere::start().await;
    let cluster = Cluster::start(&elsewhere, 1, true).await;
    elsewhere.valve.hold_after(0);
    cluster.put("a", &body(1000)).await;
    // The copy is written, and the worker does not know yet.
    elsewhere.until_copied("a", &body(1000)).await;
    assert!(matches!(record(&cluster, "a").await, Some(ArchiveRecord::Uploading { .. })));
    // Another node that holds itself for the primary has deleted the copy meanwhile, as far as it knows.
    let deleted = ArchiveRecord::Deleted { since_ms: u64::MAX >> 1 };
    write_record(&cluster, "a", Condition::Any, &deleted).await;
    elsewhere.valve.open();
    eventually("it is archived", async || match record(&cluster, "a").await {
        Some(ArchiveRecord::Archived { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    // So what counts is what the other wrote down: the copy was written once more.
    assert_eq!(elsewhere.answered("PutObject", 200), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_is_deleted_while_it_is_taken_back_stays_deleted() {
    let elsewhere = Elsewhere::start().await;
    let mut old = Cluster::start(&elsewhere, 1, true).await;
    old.put("large", &body(LARGE)).await;
    elsewhere.until_copied("large", &body(LARGE)).await;
    old.kill(0).await;

    let new = Cluster::start(&elsewhere, 1, false).await;
    elsewhere.valve.hold_after(1 << 20);
    let (store, name) = (new.store().clone(), object("large"));
    let writing = tokio::spawn(async move {
        store.write(&name, Condition::Absent, Arc::from("e"), Content::default()).await
    });
    elsewhere.valve.until_held().await;
    new.delete("large").await;
    elsewhere.valve.open();
    // The object was there when the write began, and is not when it is decided.
    let written = writing.await.expect("a task");
    assert!(matches!(written, Ok(WriteOutcome::Done(Some(_)))), "{written:?}");
    assert_eq!(new.get("large").await.body.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_is_overwritten_while_it_is_written_back_stays_overwritten() {
    let elsewhere = Elsewhere::start().await;
    let mut cluster = Cluster::start(&elsewhere, 1, true).await;
    let (large, small) = (body(LARGE), body(1000));
    cluster.put("large", &large).await;
    eventually("it is archived", async || match record(&cluster, "large").await {
        Some(ArchiveRecord::Archived { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    cluster.stop_workers();
    assert!(cluster.lose_parts() >= 1);
    // Whoever reads gets everything, and what is read to be written back stops soon.
    elsewhere.valve.hold_after(LARGE as u64 + (1 << 20));
    assert!(cluster.get("large").await.body == large);
    elsewhere.valve.until_held().await;
    let restoring = || cluster.objects().archive_status().expect("a status").restoring;
    assert_eq!(restoring(), 1);
    cluster.put("large", &small).await;
    elsewhere.valve.open();
    eventually("nothing is written back any more", async || match restoring() {
        0 => Ok(()),
        count => Err(count),
    })
    .await;
    assert!(cluster.get("large").await.body == small);
}

async fn write_record(cluster: &Cluster, key: &str, condition: Condition, record: &ArchiveRecord) {
    let meta: Bytes = [b"\x01", record.to_text().as_bytes()].concat().into();
    let content = Content { meta, ..Content::default() };
    let name = EntryName::new(Space::Archive, PHOTOS, key).expect("a name");
    let written = cluster.objects().write(&name, condition, Arc::from(""), content).await;
    assert!(matches!(written, Ok(WriteOutcome::Done(_))), "{written:?}");
}

async fn record(cluster: &Cluster, key: &str) -> Option<ArchiveRecord> {
    let name = EntryName::new(Space::Archive, PHOTOS, key).expect("a name");
    let entry = cluster.objects().read(&name).await.expect("an answer")?;
    let text = std::str::from_utf8(&entry.content.meta[1..]).expect("text");
    Some(text.parse().expect("a record"))
}
