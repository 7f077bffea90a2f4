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
    old.put("large", &large).await;
    let etag = old.get("large").await.etag().map(str::to_owned);
    elsewhere.until_copied("small", &small).await;
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
    for (key, body) in [("small", &small), ("large", &large)] {
        let reply = new.get(key).await;
        assert!(reply.status == StatusCode::OK && reply.body == *body, "{key}: {}", reply.status);
    }
    // Whoever wants that nothing is there is told that something is.
    let refused =
        new.client.put(PHOTOS, "small", small.clone(), &[("if-none-match", "*")]).await.expect("an answer");
    assert_eq!(refused.status, StatusCode::PRECONDITION_FAILED);
    for key in ["small", "large"] {
        eventually("it is taken back", async || {
            new.objects().read(&object(key)).await.expect("an answer").map(drop).ok_or("not yet")
        })
        .await;
    }
    elsewhere.go_down().await;
    for (key, body) in [("small", &small), ("large", &large)] {
        let reply = new.get(key).await;
        assert!(reply.status == StatusCode::OK && reply.body == *body, "{key}: {}", reply.status);
        assert_eq!(reply.header("x-amz-meta-author"), Some("somebody"));
    }
    // What the cluster does not know of cannot be said to be nowhere.
    assert_eq!(new.get("other").await.status, StatusCode::SERVICE_UNAVAILABLE);
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
    let text = ArchiveRecord::Uploading { of, upload: Some(upload) }.to_text();
    let meta: Bytes = [b"\x01", text.as_bytes()].concat().into();
    let content = Content { meta, ..Content::default() };
    let name = EntryName::new(Space::Archive, PHOTOS, "large").expect("a name");
    let written = cluster.objects().write(&name, Condition::Absent, Arc::from(""), content).await;
    assert!(matches!(written, Ok(WriteOutcome::Done(_))), "{written:?}");

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

async fn record(cluster: &Cluster, key: &str) -> Option<ArchiveRecord> {
    let name = EntryName::new(Space::Archive, PHOTOS, key).expect("a name");
    let entry = cluster.objects().read(&name).await.expect("an answer")?;
    let text = std::str::from_utf8(&entry.content.meta[1..]).expect("text");
    Some(text.parse().expect("a record"))
}
