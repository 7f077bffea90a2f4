//! An object that is much larger than what a node may hold.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::Method;
use synod_s3::client::object_path;
use tokio::sync::Semaphore;

use crate::cluster::{Layout, is_long_run};
use crate::store::{ALL, BUCKET, Store, bytes_of};

#[test]
fn a_large_object_goes_up_and_down_without_being_held() {
    let store = Store::started(&Layout::patient());
    let parts: u64 = if is_long_run() { 80 } else { 8 };
    let (client, path) = (store.s3(0), object_path(BUCKET, KEY));
    let began = Instant::now();
    store.run(async {
        let begun = client.call(Method::POST, &path, &[("uploads", "")], &[], Bytes::new()).await;
        let upload = between(&begun.expect("an answer").text(), "<UploadId>", "</UploadId>");
        let room = Arc::new(Semaphore::new(IN_FLIGHT));
        let uploads: Vec<_> = (1..=parts)
            .map(|number| {
                let (client, path, upload, room) =
                    (Arc::clone(&client), path.clone(), upload.clone(), Arc::clone(&room));
                tokio::spawn(async move {
                    let _permit = room.acquire().await.expect("room");
                    let query = [("partNumber", &*number.to_string()), ("uploadId", &upload)];
                    let body = bytes_of(number, PART_BYTES);
                    let reply = client.call(Method::PUT, &path, &query, &[], body).await.expect("an answer");
                    assert_eq!(reply.status.as_u16(), 200, "part {number}: {}", reply.text());
                    (number, reply.etag().expect("an etag").to_owned())
                })
            })
            .collect();
        let mut etags = BTreeMap::new();
        for upload in uploads {
            etags.extend([upload.await.expect("a part")]);
        }
        let listed: String = etags
            .iter()
            .map(|(number, etag)| {
                format!("<Part><PartNumber>{number}</PartNumber><ETag>\"{etag}\"</ETag></Part>")
            })
            .collect();
        let document = format!("<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>");
        let completed =
            client.call(Method::POST, &path, &[("uploadId", &upload)], &[], document.into()).await;
        let completed = completed.expect("an answer");
        assert!(completed.status.is_success() && completed.text().contains("<ETag>"), "{}", completed.text());
    });
    let bytes = parts * PART_BYTES as u64;
    eprintln!("{} MiB went up in {:?}", bytes >> 20, began.elapsed());

    let began = Instant::now();
    // Every byte is compared with what it must be, part by part.
    let (mut number, mut at, mut part) = (1, 0, bytes_of(1, PART_BYTES));
    let mut count = 0;
    let status = store.run(client.read(BUCKET, KEY, |mut piece| {
        count += piece.len() as u64;
        while !piece.is_empty() {
            if at == PART_BYTES {
                (number, at) = (number + 1, 0);
                part = bytes_of(number, PART_BYTES);
            }
            let (now, rest) = piece.split_at(piece.len().min(PART_BYTES - at));
            assert!(&part[at..at + now.len()] == now, "part {number} at {at}");
            (at, piece) = (at + now.len(), rest);
        }
    }));
    assert_eq!((status.expect("all of it").as_u16(), count), (200, bytes));
    eprintln!("and came down in {:?}", began.elapsed());

    for index in ALL {
        let most = store.memory(*index, "VmHWM");
        eprintln!("at most {} MiB were resident on node {index}", most >> 20);
        assert!(most < RESIDENT_BYTES_MAX, "{most} bytes on node {index}");
    }
    let statuses = store.until_whole();
    assert!(statuses.iter().all(|one| one.part_bytes == bytes), "{statuses:?}");
}

fn between(text: &str, begin: &str, end: &str) -> String {
    let inside = text.split_once(begin).and_then(|(_, rest)| rest.split_once(end));
    inside.unwrap_or_else(|| panic!("no {begin}: {text}")).0.to_owned()
}

const KEY: &str = "large";
const PART_BYTES: usize = 64 << 20;
const IN_FLIGHT: usize = 4;
const RESIDENT_BYTES_MAX: u64 = 300 << 20;
