//! Checksums, in headers and in trailers, and bodies that come in chunks of their own.

use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
use synod_core::objects::Space;

use crate::support::client::{Answer, Call, exchange};
use crate::support::digest::{base64, hex, hmac, md5, sha256};
use crate::support::world::World;

pub(super) const ALGORITHMS: [&str; 5] = ["crc32", "crc32c", "crc64nvme", "sha1", "sha256"];

pub(super) fn raw_sum(algorithm: &str, bytes: &[u8]) -> Vec<u8> {
    macro_rules! sum {
        ($hasher:ty) => {{
            let mut hasher = <$hasher>::new();
            hasher.update(bytes);
            hasher.finalize().to_vec()
        }};
    }
    match algorithm {
        "crc32" => sum!(Crc32),
        "crc32c" => sum!(Crc32c),
        "crc64nvme" => sum!(Crc64Nvme),
        "sha1" => sum!(Sha1),
        _ => sum!(Sha256),
    }
}

pub(super) fn sum(algorithm: &str, bytes: &[u8]) -> String {
    base64(&raw_sum(algorithm, bytes))
}

#[tokio::test]
async fn a_checksum_in_a_header_is_compared_kept_and_told() {
    let world = World::start().await;
    for size in [5, 100_000] {
        let body = vec![3; size];
        for algorithm in ALGORITHMS {
            let path = format!("/photos/{algorithm}");
            let header = format!("x-amz-checksum-{algorithm}");
            let right = sum(algorithm, &body);
            let put = |value: &str| world.call("PUT", &path).header(&header, value).body(&body);
            let wrong = put(&sum(algorithm, b"other")).send().await;
            assert_eq!(wrong.outcome(), (400, "BadDigest".to_owned()), "{algorithm}");
            for broken in ["bad", "AAAA", "!"] {
                let broken = put(broken).send().await;
                assert_eq!(broken.outcome(), (400, "InvalidRequest".to_owned()), "{algorithm}");
            }
            assert_eq!(world.get(&path).await.status, 404);
            let written =
                put(&right).header("x-amz-sdk-checksum-algorithm", &algorithm.to_uppercase()).send().await;
            assert_eq!(
                (written.status, written.header(&header)),
                (200, right.as_str()),
                "{}",
                written.text()
            );
            for method in ["GET", "HEAD"] {
                let plain = world.call(method, &path).send().await;
                assert_eq!(plain.header(&header), "");
                let told = world.call(method, &path).header("x-amz-checksum-mode", "ENABLED").send().await;
                assert_eq!((told.status, told.header(&header)), (200, right.as_str()));
                assert_eq!(told.header("x-amz-checksum-type"), "FULL_OBJECT");
                // The sum of the whole says nothing of a part.
                let part = world.call(method, &path).header("x-amz-checksum-mode", "ENABLED");
                assert_eq!(part.header("range", "bytes=0-1").send().await.header(&header), "");
            }
            let listed =
                world.call("GET", "/photos").query("list-type", "2").query("prefix", algorithm).send().await;
            assert_eq!(listed.element("ChecksumAlgorithm"), algorithm.to_uppercase());
            assert_eq!(listed.element("ChecksumType"), "FULL_OBJECT");
            assert_eq!(world.call("DELETE", &path).send().await.status, 204);
        }
    }
    let put = || world.call("PUT", "/photos/a").body("a");
    let two = put().header("x-amz-checksum-crc32", &sum("crc32", b"a"));
    let two = two.header("x-amz-checksum-sha1", &sum("sha1", b"a")).send().await;
    assert_eq!(two.outcome(), (400, "InvalidRequest".to_owned()));
    let none = put().header("x-amz-sdk-checksum-algorithm", "CRC32").send().await;
    assert_eq!(none.outcome(), (400, "InvalidRequest".to_owned()));
    let other = put()
        .header("x-amz-sdk-checksum-algorithm", "CRC32")
        .header("x-amz-checksum-sha1", &sum("sha1", b"a"));
    assert_eq!(other.send().await.outcome(), (400, "InvalidRequest".to_owned()));
    assert_eq!(world.store.count(Space::Object), 0);
}

/// Sends a body in chunks without signatures, with trailers.
async fn send_unsigned_chunks(mut call: Call, chunks: &[&[u8]], trailers: &str) -> Answer {
    let length: usize = chunks.iter().map(|chunk| chunk.len()).sum();
    call.payload = Some("STREAMING-UNSIGNED-PAYLOAD-TRAILER".to_owned());
    let mut call = call.header("x-amz-decoded-content-length", &length.to_string());
    call.sign();
    call.body.clear();
    for chunk in chunks {
        call.body.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        call.body.extend_from_slice(chunk);
        call.body.extend_from_slice(b"\r\n");
    }
    call.body.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
    call.send_unsigned().await
}

/// Sends a body in signed chunks. `spoil` may change what is sent.
async fn send_signed_chunks(
    mut call: Call,
    chunks: &[&[u8]],
    trailer: Option<(&str, &str)>,
    spoil: impl Fn(&mut Vec<u8>),
) -> Answer {
    let length: usize = chunks.iter().map(|chunk| chunk.len()).sum();
    let kind = if trailer.is_some() { "-TRAILER" } else { "" };
    call.payload = Some(format!("STREAMING-AWS4-HMAC-SHA256-PAYLOAD{kind}"));
    let mut call = call
        .header("x-amz-decoded-content-length", &length.to_string())
        .header("content-encoding", "aws-chunked");
    if let Some((name, _)) = trailer {
        call = call.header("x-amz-trailer", name);
    }
    let (mut previous, time) = call.sign();
    let key = call.signing_key(&time);
    let scope = format!("{}/{}/s3/aws4_request", &time[..8], call.region);
    let mut body = Vec::new();
    for chunk in chunks.iter().copied().chain([&b""[..]]) {
        let to_sign = format!(
            "AWS4-HMAC-SHA256-PAYLOAD\n{time}\n{scope}\n{previous}\n{}\n{}",
            hex(&sha256(b"")),
            hex(&sha256(chunk))
        );
        previous = hex(&hmac(&key, to_sign.as_bytes()));
        body.extend_from_slice(format!("{:x};chunk-signature={previous}\r\n", chunk.len()).as_bytes());
        body.extend_from_slice(chunk);
        if !chunk.is_empty() || trailer.is_none() {
            body.extend_from_slice(b"\r\n");
        }
    }
    if let Some((name, value)) = trailer {
        let lines = format!("{name}:{value}\n");
        let to_sign = format!(
            "AWS4-HMAC-SHA256-TRAILER\n{time}\n{scope}\n{previous}\n{}",
            hex(&sha256(lines.as_bytes()))
        );
        let signature = hex(&hmac(&key, to_sign.as_bytes()));
        body.extend_from_slice(
            format!("{name}:{value}\r\nx-amz-trailer-signature:{signature}\r\n\r\n").as_bytes(),
        );
    }
    spoil(&mut body);
    call.body = body;
    call.send_unsigned().await
}

#[tokio::test]
async fn a_checksum_in_a_trailer_is_compared_kept_and_told() {
    let world = World::start().await;
    let large = vec![9; 300_000];
    for body in [&b"hello world"[..], &large] {
        let chunks: Vec<&[u8]> = body.chunks(body.len().div_ceil(3)).collect();
        for algorithm in ALGORITHMS {
            let header = format!("x-amz-checksum-{algorithm}");
            let put = || world.call("PUT", "/photos/a").header("x-amz-trailer", &header);
            let right = sum(algorithm, body);
            let written = send_unsigned_chunks(put(), &chunks, &format!("{header}:{right}\r\n")).await;
            assert_eq!(
                (written.status, written.header(&header)),
                (200, right.as_str()),
                "{}",
                written.text()
            );
            let read = world.call("GET", "/photos/a").header("x-amz-checksum-mode", "ENABLED").send().await;
            assert_eq!(read.header(&header), right);
            assert_eq!(read.header("etag"), format!("\"{}\"", hex(&md5(body))));
            assert!(read.body == body);
            assert_eq!(world.call("DELETE", "/photos/a").send().await.status, 204);

            let other = sum(algorithm, b"other");
            let wrong = send_unsigned_chunks(put(), &chunks, &format!("{header}:{other}\r\n")).await;
            assert_eq!(wrong.outcome(), (400, "BadDigest".to_owned()), "{algorithm}");
            let missing = send_unsigned_chunks(put(), &chunks, "").await;
            assert_eq!(missing.outcome(), (400, "MalformedTrailerError".to_owned()), "{algorithm}");
            let broken = send_unsigned_chunks(put(), &chunks, &format!("{header}:AA\r\n")).await;
            assert_eq!(broken.outcome(), (400, "InvalidRequest".to_owned()), "{algorithm}");
        }
        // One chunk of everything, as some clients send it.
        let put = world.call("PUT", "/photos/whole").header("x-amz-trailer", "x-amz-checksum-crc32");
        let trailer = format!("x-amz-checksum-crc32:{}\r\n", sum("crc32", body));
        assert_eq!(send_unsigned_chunks(put, &[body], &trailer).await.status, 200);
        assert!(world.get("/photos/whole").await.body == body);
        assert_eq!(world.call("DELETE", "/photos/whole").send().await.status, 204);
    }
    // Without a length of what is sent, only with that of what is meant.
    let mut call = world.call("PUT", "/photos/endless").header("x-amz-trailer", "x-amz-checksum-crc32");
    call.payload = Some("STREAMING-UNSIGNED-PAYLOAD-TRAILER".to_owned());
    let mut call = call.header("x-amz-decoded-content-length", "5");
    call.sign();
    let head =
        String::from_utf8(call.bytes()).unwrap().replace("content-length: 0", "transfer-encoding: chunked");
    let body = format!("5\r\nhello\r\n0\r\nx-amz-checksum-crc32:{}\r\n\r\n", sum("crc32", b"hello"));
    let request = format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let written = exchange(world.gateway.address(), request.as_bytes(), false).await;
    assert_eq!(written.status, 200, "{}", written.text());
    assert_eq!(world.get("/photos/endless").await.text(), "hello");
    assert_eq!(world.call("DELETE", "/photos/endless").send().await.status, 204);
    let strange = world.call("PUT", "/photos/a").header("x-amz-trailer", "x-amz-meta-a");
    let strange = send_unsigned_chunks(strange, &[b"a"], "x-amz-meta-a:b\r\n").await;
    assert_eq!(strange.outcome(), (400, "InvalidRequest".to_owned()));
    assert_eq!(world.store.count(Space::Object), 0);
}

#[tokio::test]
async fn signed_chunks_are_compared_one_by_one() {
    let world = World::start().await;
    let body: Vec<u8> = (0..200_000_u32).map(|number| (number % 239) as u8).collect();
    let chunks: Vec<&[u8]> = body.chunks(65_536).collect();
    let put = || world.call("PUT", "/photos/a");
    let written = send_signed_chunks(put(), &chunks, None, |_| {}).await;
    assert_eq!(written.status, 200, "{}", written.text());
    let read = world.get("/photos/a").await;
    assert!(read.body == body);
    assert_eq!(read.header("content-encoding"), "", "how a body came is not how it is encoded");
    let crc = sum("crc32", &body);
    let trailer = Some(("x-amz-checksum-crc32", crc.as_str()));
    let written = send_signed_chunks(put(), &chunks, trailer, |_| {}).await;
    assert_eq!(
        (written.status, written.header("x-amz-checksum-crc32")),
        (200, crc.as_str()),
        "{}",
        written.text()
    );
    assert_eq!(world.call("DELETE", "/photos/a").send().await.status, 204);

    let changed = send_signed_chunks(put(), &chunks, None, |body| body[150_000] ^= 1).await;
    assert_eq!(changed.outcome(), (403, "SignatureDoesNotMatch".to_owned()));
    let other = sum("crc32", b"other");
    let wrong = send_signed_chunks(put(), &chunks, Some(("x-amz-checksum-crc32", &other)), |_| {}).await;
    assert_eq!(wrong.outcome(), (400, "BadDigest".to_owned()));
    let forged = send_signed_chunks(put(), &chunks, trailer, |body| {
        let end = body.len() - 10;
        body[end] = if body[end] == b'0' { b'1' } else { b'0' };
    });
    assert_eq!(forged.await.outcome(), (403, "SignatureDoesNotMatch".to_owned()));
    let short = send_signed_chunks(put(), &chunks, None, |body| body.truncate(100_000)).await;
    assert_eq!(short.outcome(), (400, "IncompleteBody".to_owned()), "{}", short.text());
    // The last chunks are left out, though what came is signed.
    let first_only = send_signed_chunks(put(), &chunks, None, |body| {
        let second = body.windows(7).position(|window| window == b"\r\n10000").unwrap();
        body.truncate(second + 2);
    });
    assert_eq!(first_only.await.outcome(), (400, "IncompleteBody".to_owned()));
    let huge = send_signed_chunks(put(), &chunks, None, |body| {
        let _ = body.splice(..5, *b"7fffffff");
    });
    assert_eq!(huge.await.outcome(), (400, "EntityTooLarge".to_owned()));
    let broken = send_signed_chunks(put(), &chunks, None, |body| body[..5].copy_from_slice(b"zzzzz")).await;
    assert_eq!(broken.outcome(), (400, "InvalidRequest".to_owned()));
    assert_eq!(world.store.count(Space::Object), 0);
}
