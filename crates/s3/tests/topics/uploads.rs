//! Uploads in several parts.

use synod_core::objects::Space;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::checksums::{ALGORITHMS, raw_sum, sum};
use crate::support::client::Answer;
use crate::support::digest::{base64, hex, md5};
use crate::support::world::World;

const PART: usize = 5 << 20;

/// An upload as a client sees it.
struct Upload<'a> {
    world: &'a World,
    path: String,
    id: String,
}

impl<'a> Upload<'a> {
    async fn begin(world: &'a World, key: &str, headers: &[(&str, &str)]) -> Self {
        let path = format!("/photos/{key}");
        let call = world.call("POST", &path).query("uploads", "");
        let begun = headers.iter().fold(call, |call, (name, value)| call.header(name, value)).send().await;
        assert_eq!(begun.status, 200, "{}", begun.text());
        assert_eq!((begun.element("Bucket"), begun.element("Key")), ("photos".to_owned(), key.to_owned()));
        Upload { world, path, id: begun.element("UploadId") }
    }

    fn part_call(&self, number: u32) -> crate::support::client::Call {
        self.world
            .call("PUT", &self.path)
            .query("uploadId", &self.id)
            .query("partNumber", &number.to_string())
    }

    async fn part(&self, number: u32, body: &[u8]) -> String {
        let written = self.part_call(number).body(body).send().await;
        assert_eq!(written.status, 200, "{}", written.text());
        assert_eq!(written.header("etag"), format!("\"{}\"", hex(&md5(body))));
        written.header("etag").to_owned()
    }

    fn complete_call(&self, parts: &[(u32, &str)]) -> crate::support::client::Call {
        let parts: String = parts
            .iter()
            .map(|(number, etag)| {
                format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
            })
            .collect();
        let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        self.world.call("POST", &self.path).query("uploadId", &self.id).body(body)
    }

    async fn complete(&self, parts: &[(u32, &str)]) -> Answer {
        self.complete_call(parts).send().await
    }
}

fn bytes(size: usize, seed: usize) -> Vec<u8> {
    (0..size).map(|number| ((number + seed) % 251) as u8).collect()
}

#[tokio::test]
async fn parts_become_an_object() {
    let world = World::start().await;
    // The last part is none, tiny, kept in the head, or large.
    for last in [1, 64 * 1024, 200_000, PART] {
        let upload = Upload::begin(
            &world,
            "a/b",
            &[("content-type", "text/x-mine"), ("x-amz-meta-k", "v"), ("x-amz-tagging", "t=1")],
        )
        .await;
        let bodies = [bytes(PART, 1), bytes(PART + 17, 2), bytes(last, 3)];
        // In any order, and the second of the same number counts.
        let third = upload.part(9, &bodies[2]).await;
        upload.part(2, b"something else").await;
        let second = upload.part(2, &bodies[1]).await;
        let first = upload.part(1, &bodies[0]).await;
        assert_eq!(world.get("/photos/a/b").await.status, 404);
        let completed = upload.complete(&[(1, &first), (2, &second), (9, &third)]).await;
        assert_eq!(completed.status, 200, "{}", completed.text());
        let digests: Vec<u8> = bodies.iter().flat_map(|body| md5(body)).collect();
        let etag = format!("\"{}-3\"", hex(&md5(&digests)));
        assert_eq!(completed.element("ETag"), etag);
        let whole = bodies.concat();
        let read = world.get("/photos/a/b").await;
        assert_eq!(
            (read.status, read.header("etag"), read.header("content-type")),
            (200, etag.as_str(), "text/x-mine")
        );
        assert_eq!((read.header("x-amz-meta-k"), read.header("x-amz-tagging-count")), ("v", "1"));
        assert!(read.body == whole, "the bytes come back, with a last part of {last}");
        let across = format!("bytes={}-{}", PART - 5, PART + 4);
        let range = world.call("GET", "/photos/a/b").header("range", &across).send().await;
        assert!(range.body == whole[PART - 5..PART + 5]);
        let second = world.call("GET", "/photos/a/b").query("partNumber", "2").send().await;
        assert_eq!((second.status, second.header("x-amz-mp-parts-count")), (206, "3"));
        assert!(second.body == bodies[1]);
        let fourth = world.call("GET", "/photos/a/b").query("partNumber", "4").send().await;
        assert_eq!(fourth.outcome(), (416, "InvalidPartNumber".to_owned()));
        // Nothing is left of the upload, and who asks again is told the same.
        assert_eq!((world.store.count(Space::Upload), world.store.count(Space::UploadPart)), (0, 0));
        let again = upload.complete(&[(1, &first), (2, "x"), (9, &third)]).await;
        assert_eq!((again.status, again.element("ETag")), (200, etag));
        assert_eq!(world.call("DELETE", "/photos/a/b").send().await.status, 204);
        let again = upload.complete(&[(1, &first)]).await;
        assert_eq!(again.outcome(), (404, "NoSuchUpload".to_owned()));
    }
    // One small part alone is an object too.
    let upload = Upload::begin(&world, "small", &[]).await;
    let only = upload.part(1, b"small").await;
    assert_eq!(upload.complete(&[(1, &only)]).await.status, 200);
    let read = world.get("/photos/small").await;
    assert_eq!(
        (read.text(), read.header("etag")),
        ("small".to_owned(), format!("\"{}-1\"", hex(&md5(&md5(b"small")))).as_str())
    );
}

#[tokio::test]
async fn what_cannot_be_completed_is_refused_and_can_be_tried_again() {
    let world = World::start().await;
    let upload = Upload::begin(&world, "a", &[]).await;
    let large = upload.part(1, &bytes(PART, 1)).await;
    let small = upload.part(2, b"small").await;
    let last = upload.part(3, b"last").await;
    for (parts, code) in [
        (vec![], "MalformedXML"),
        (vec![(2, small.as_str()), (1, large.as_str())], "InvalidPartOrder"),
        (vec![(1, large.as_str()), (1, large.as_str())], "InvalidPartOrder"),
        (vec![(1, small.as_str())], "InvalidPart"),
        (vec![(4, small.as_str())], "InvalidPart"),
        (vec![(1, large.as_str()), (2, small.as_str()), (3, last.as_str())], "EntityTooSmall"),
    ] {
        let refused = upload.complete(&parts).await;
        assert_eq!(refused.outcome(), (400, code.to_owned()), "{parts:?}");
    }
    let refused = upload.complete_call(&[(1, &large)]).header("x-amz-mp-object-size", "7").send().await;
    assert_eq!(refused.outcome(), (400, "InvalidRequest".to_owned()));
    world.put("/photos/a", "before").await;
    let refused = upload.complete_call(&[(1, &large)]).header("if-none-match", "*").send().await;
    assert_eq!(refused.outcome(), (412, "PreconditionFailed".to_owned()));
    let refused = upload.complete_call(&[(1, &large)]).header("if-match", "\"other\"").send().await;
    assert_eq!(refused.outcome(), (412, "PreconditionFailed".to_owned()));
    assert_eq!(world.get("/photos/a").await.text(), "before");
    let etag = world.call("HEAD", "/photos/a").send().await.header("etag").to_owned();
    let done = upload.complete_call(&[(1, &large), (3, &last)]).header("if-match", &etag).send().await;
    assert_eq!(done.status, 200, "{}", done.text());

    for (number, code) in [("0", "InvalidArgument"), ("10001", "InvalidArgument")] {
        let call = world.call("PUT", "/photos/a").query("uploadId", &upload.id).query("partNumber", number);
        assert_eq!(call.body("x").send().await.outcome(), (400, code.to_owned()));
    }
    for id in ["nonsense", "00000000000000000000000000000000"] {
        let call = world.call("PUT", "/photos/a").query("uploadId", id).query("partNumber", "1");
        assert_eq!(call.body("x").send().await.outcome(), (404, "NoSuchUpload".to_owned()));
        for method in ["DELETE", "GET"] {
            let call = world.call(method, "/photos/a").query("uploadId", id);
            assert_eq!(call.send().await.outcome(), (404, "NoSuchUpload".to_owned()), "{method}");
        }
    }
    assert_eq!(world.store.count(Space::UploadPart), 0);
}

#[tokio::test]
async fn parts_and_uploads_are_listed_and_given_up() {
    let world = World::start().await;
    let upload = Upload::begin(&world, "a", &[]).await;
    for number in [1, 2, 7, 10_000] {
        upload.part(number, format!("part {number}").as_bytes()).await;
    }
    let list = || world.call("GET", "/photos/a").query("uploadId", &upload.id);
    let all = list().send().await;
    assert_eq!(all.elements("PartNumber"), ["1", "2", "7", "10000"]);
    assert_eq!(all.elements("Size"), ["6", "6", "6", "10"]);
    assert_eq!(all.element("IsTruncated"), "false");
    let page = list().query("max-parts", "2").query("part-number-marker", "1").send().await;
    assert_eq!(page.elements("PartNumber"), ["2", "7"]);
    assert_eq!(
        (page.element("IsTruncated"), page.element("NextPartNumberMarker")),
        ("true".to_owned(), "7".to_owned())
    );
    let page = list().query("part-number-marker", "7").send().await;
    assert_eq!(page.elements("PartNumber"), ["10000"]);
    // A bucket with an upload in it is not empty.
    let refused = world.call("DELETE", "/photos").send().await;
    assert_eq!(refused.outcome(), (409, "BucketNotEmpty".to_owned()));

    let mut ids = Vec::new();
    for key in ["a", "b/1", "b/2", "c", "c"] {
        ids.push((key, Upload::begin(&world, key, &[]).await.id));
    }
    let uploads = || world.call("GET", "/photos").query("uploads", "");
    let all = uploads().send().await;
    assert_eq!(all.elements("Key"), ["a", "a", "b/1", "b/2", "c", "c"], "{}", all.text());
    let grouped = uploads().query("delimiter", "/").send().await;
    assert_eq!(grouped.elements("Key"), ["a", "a", "c", "c"]);
    assert_eq!(grouped.elements("CommonPrefixes"), ["<Prefix>b/</Prefix>"]);
    let below = uploads().query("prefix", "b/").query("delimiter", "/").send().await;
    assert_eq!(below.elements("Key"), ["b/1", "b/2"]);
    let after = uploads().query("key-marker", "b/1").send().await;
    assert_eq!(after.elements("Key"), ["b/2", "c", "c"]);
    for (limit, delimiter) in [("1", ""), ("2", ""), ("1", "/"), ("3", "/")] {
        let (mut found, mut key, mut id) = (Vec::new(), String::new(), String::new());
        loop {
            let page = uploads()
                .query("max-uploads", limit)
                .query("delimiter", delimiter)
                .query("key-marker", &key)
                .query("upload-id-marker", &id)
                .send()
                .await;
            found.extend(page.elements("UploadId"));
            found.extend(page.elements("CommonPrefixes"));
            (key, id) = (page.element("NextKeyMarker"), page.element("NextUploadIdMarker"));
            if page.element("IsTruncated") == "false" {
                break;
            }
        }
        found.sort();
        found.dedup();
        assert_eq!(found.len(), if delimiter.is_empty() { 6 } else { 5 }, "{limit} {delimiter}");
    }

    let abort = world.call("DELETE", "/photos/a").query("uploadId", &upload.id).send().await;
    assert_eq!(abort.status, 204);
    assert_eq!((world.store.count(Space::UploadPart), world.store.count(Space::Upload)), (0, 5));
    let late = upload.part_call(3).body("late").send().await;
    assert_eq!(late.outcome(), (404, "NoSuchUpload".to_owned()));
    assert_eq!(world.store.count(Space::UploadPart), 0);
}

#[tokio::test]
async fn the_checksum_of_an_object_is_made_of_those_of_its_parts() {
    let world = World::start().await;
    let bodies = [bytes(PART, 1), bytes(777, 2)];
    let whole = bodies.concat();
    for algorithm in ALGORITHMS {
        let header = format!("x-amz-checksum-{algorithm}");
        let name = algorithm.to_uppercase();
        let can_be_full = algorithm.starts_with("crc");
        for kind in ["COMPOSITE", "FULL_OBJECT"] {
            let begin = world.call("POST", "/photos/a").query("uploads", "");
            let begin = begin.header("x-amz-checksum-algorithm", &name).header("x-amz-checksum-type", kind);
            let begun = begin.send().await;
            let is_possible = if kind == "COMPOSITE" { algorithm != "crc64nvme" } else { can_be_full };
            if !is_possible {
                assert_eq!(begun.outcome(), (400, "InvalidRequest".to_owned()), "{algorithm} {kind}");
                continue;
            }
            assert_eq!(
                (begun.header("x-amz-checksum-algorithm"), begun.header("x-amz-checksum-type")),
                (name.as_str(), kind)
            );
            let upload =
                Upload { world: &world, path: "/photos/a".to_owned(), id: begun.element("UploadId") };
            let other = if algorithm == "sha1" { "crc32" } else { "sha1" };
            let mismatch = upload.part_call(1).header(&format!("x-amz-checksum-{other}"), &sum(other, b"x"));
            assert_eq!(mismatch.body("x").send().await.outcome(), (400, "InvalidRequest".to_owned()));
            let wrong =
                upload.part_call(1).header(&header, &sum(algorithm, b"other")).body(&bodies[0]).send().await;
            assert_eq!(wrong.outcome(), (400, "BadDigest".to_owned()));
            let first = upload
                .part_call(1)
                .header(&header, &sum(algorithm, &bodies[0]))
                .body(&bodies[0])
                .send()
                .await;
            assert_eq!(first.header(&header), sum(algorithm, &bodies[0]), "{}", first.text());
            // A part without a sum is summed here.
            let second = upload.part_call(2).body(&bodies[1]).send().await;
            assert_eq!(second.header(&header), sum(algorithm, &bodies[1]));
            let listed = world.call("GET", "/photos/a").query("uploadId", &upload.id).send().await;
            assert_eq!(listed.elements(&format!("Checksum{name}")).len(), 2, "{}", listed.text());

            let expected = match kind {
                "FULL_OBJECT" => sum(algorithm, &whole),
                _ => {
                    let sums: Vec<u8> = bodies.iter().flat_map(|body| raw_sum(algorithm, body)).collect();
                    format!("{}-2", base64(&raw_sum(algorithm, &sums)))
                }
            };
            let parts = [(1, first.header("etag")), (2, second.header("etag"))];
            let wrong = upload.complete_call(&parts).header(&header, &sum(algorithm, b"other")).send().await;
            assert_eq!(wrong.outcome(), (400, "BadDigest".to_owned()));
            let mut with_sums = upload.complete_call(&parts);
            let told = format!("<Checksum{name}>{}</Checksum{name}></Part>", sum(algorithm, b"other"));
            with_sums.body =
                String::from_utf8(with_sums.body).unwrap().replace("</Part>", &told).into_bytes();
            assert_eq!(with_sums.send().await.outcome(), (400, "InvalidPart".to_owned()));
            let done = upload.complete_call(&parts).header(&header, &expected).send().await;
            assert_eq!(
                (done.status, done.element(&format!("Checksum{name}"))),
                (200, expected.clone()),
                "{}",
                done.text()
            );
            let head = world.call("HEAD", "/photos/a").header("x-amz-checksum-mode", "ENABLED").send().await;
            assert_eq!((head.header(&header), head.header("x-amz-checksum-type")), (expected.as_str(), kind));
            let part = world
                .call("HEAD", "/photos/a")
                .header("x-amz-checksum-mode", "ENABLED")
                .query("partNumber", "2");
            assert_eq!(part.send().await.header(&header), sum(algorithm, &bodies[1]));
            let attributes = world
                .call("GET", "/photos/a")
                .query("attributes", "")
                .header("x-amz-object-attributes", "ETag,Checksum,ObjectParts,StorageClass,ObjectSize")
                .send()
                .await;
            assert_eq!(attributes.status, 200, "{}", attributes.text());
            assert_eq!(attributes.element("ObjectSize"), whole.len().to_string());
            assert_eq!(attributes.element("PartsCount"), "2", "{}", attributes.text());
            assert_eq!(attributes.element("ChecksumType"), kind);
            assert_eq!(attributes.elements("PartNumber").len(), if kind == "COMPOSITE" { 2 } else { 0 });
        }
    }
}

#[tokio::test]
async fn a_part_is_copied_from_an_object() {
    let world = World::start().await;
    let source = bytes(PART + 100_000, 5);
    let etag = world.put("/photos/source", &source).await.header("etag").to_owned();
    world.put("/photos/tiny", "tiny").await;
    let upload = Upload::begin(&world, "a", &[("x-amz-checksum-algorithm", "CRC32")]).await;
    let copy = |number: u32, source: &str| upload.part_call(number).header("x-amz-copy-source", source);
    let first = copy(1, "/photos/source")
        .header("x-amz-copy-source-range", &format!("bytes=7-{}", PART + 6))
        .send()
        .await;
    assert_eq!(first.status, 200, "{}", first.text());
    assert_eq!(first.element("ChecksumCRC32"), sum("crc32", &source[7..PART + 7]));
    let second = copy(2, "photos/tiny").send().await;
    assert_eq!(second.status, 200, "{}", second.text());
    for (header, value, status) in [
        ("x-amz-copy-source-range", "bytes=0-99999999", 416),
        ("x-amz-copy-source-range", "bytes=5-", 400),
        ("x-amz-copy-source-range", "0-5", 400),
        ("x-amz-copy-source-if-match", "\"other\"", 412),
        ("x-amz-copy-source-if-none-match", etag.as_str(), 412),
    ] {
        let refused = copy(3, "/photos/source").header(header, value).send().await;
        assert_eq!(refused.status, status, "{header}: {value}");
    }
    assert_eq!(copy(3, "/photos/missing").send().await.outcome(), (404, "NoSuchKey".to_owned()));
    assert_eq!(copy(3, "/nowhere/a").send().await.outcome(), (404, "NoSuchBucket".to_owned()));
    let parts = [(1, first.element("ETag")), (2, second.element("ETag"))];
    let parts: Vec<_> = parts.iter().map(|(number, etag)| (*number, etag.as_str())).collect();
    assert_eq!(upload.complete(&parts).await.status, 200);
    let expected = [&source[7..PART + 7], b"tiny"].concat();
    assert!(world.get("/photos/a").await.body == expected);
}

#[tokio::test]
async fn a_part_that_comes_too_late_is_not_left_behind() {
    let world = World::start().await;
    let upload = Upload::begin(&world, "a", &[]).await;
    let mut call = upload.part_call(1).body(bytes(1000, 1));
    call.sign();
    let request = call.bytes();
    let (begin, end) = request.split_at(request.len() - 500);
    let mut stream = TcpStream::connect(world.gateway.address()).await.unwrap();
    stream.write_all(begin).await.unwrap();
    // The gateway has looked whether the upload is there, and waits for the rest of the part.
    while world.gateway.counters().bytes_in < 500 {
        tokio::task::yield_now().await;
    }
    let abort = world.call("DELETE", "/photos/a").query("uploadId", &upload.id).send().await;
    assert_eq!(abort.status, 204);
    stream.write_all(end).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("NoSuchUpload"), "{answer}");
    assert_eq!((world.store.count(Space::UploadPart), world.store.count(Space::Upload)), (0, 0));
}
