//! Objects: written, read, deleted, and what is known of them.

use synod_core::objects::Space;

use crate::support::client::exchange;
use crate::support::digest::{base64, hex, md5};
use crate::support::world::World;

#[tokio::test]
async fn an_object_is_written_read_and_deleted() {
    let world = World::start().await;
    for size in [0, 1, 4096, 64 * 1024, 64 * 1024 + 1, 3_000_000] {
        let body: Vec<u8> = (0..size).map(|number: usize| (number % 251) as u8).collect();
        let path = format!("/photos/size/{size}");
        let written = world.put(&path, &body).await;
        let etag = format!("\"{}\"", hex(&md5(&body)));
        assert_eq!(written.header("etag"), etag);
        let read = world.get(&path).await;
        assert_eq!((read.status, read.header("etag")), (200, etag.as_str()));
        assert_eq!(read.header("content-length"), size.to_string());
        assert_eq!(read.header("content-type"), "binary/octet-stream");
        assert!(read.body == body, "the bytes of {path} come back");
        let head = world.call("HEAD", &path).send().await;
        assert_eq!((head.status, head.header("content-length")), (200, size.to_string().as_str()));
        assert_eq!(head.header("etag"), etag);
        assert!(!head.header("last-modified").is_empty());
        assert!(head.body.is_empty());
        assert_eq!(world.call("DELETE", &path).send().await.status, 204);
        assert_eq!(world.get(&path).await.outcome(), (404, "NoSuchKey".to_owned()));
        assert_eq!(world.call("HEAD", &path).send().await.status, 404);
        // Deleting what is not there is no error.
        assert_eq!(world.call("DELETE", &path).send().await.status, 204);
    }
}

#[tokio::test]
async fn any_text_without_nul_is_a_key() {
    let world = World::start().await;
    let keys = [
        "../x",
        "a//b",
        "//",
        "/a",
        "a/",
        "a/./b",
        " ",
        "a b+c&d=e?f#g%h",
        "\u{fc}mlaut/\u{1f980}",
        "a\nb",
        &"k".repeat(1024),
        "<xml>\"'&",
    ];
    for key in keys {
        let path = format!("/photos/{key}");
        world.put(&path, key).await;
        let read = world.get(&path).await;
        assert_eq!((read.status, read.text()), (200, key.to_owned()), "{key:?}");
    }
    let listed =
        world.call("GET", "/photos").query("list-type", "2").query("encoding-type", "url").send().await;
    let mut expected: Vec<String> = keys.iter().map(|key| crate::support::client::uri(key, false)).collect();
    let mut found = listed.elements("Key");
    expected.sort();
    found.sort();
    assert_eq!(found, expected);

    let too_long = world.call("PUT", &format!("/photos/{}", "k".repeat(1025))).body("x").send().await;
    assert_eq!(too_long.outcome(), (400, "KeyTooLongError".to_owned()));
    let with_nul = world.call("PUT", "/photos/a\0b").body("x").send().await;
    assert_eq!(with_nul.outcome(), (400, "InvalidArgument".to_owned()));
    assert_eq!(world.store.count(Space::Object), keys.len());
}

#[tokio::test]
async fn what_is_said_of_an_object_is_kept_and_told() {
    let world = World::start().await;
    let written = world
        .call("PUT", "/photos/a")
        .header("content-type", "text/plain; charset=utf-8")
        .header("cache-control", "max-age=60")
        .header("content-disposition", "attachment; filename=\"a.txt\"")
        .header("content-encoding", "aws-chunked,gzip")
        .header("content-language", "de")
        .header("expires", "Wed, 21 Oct 2026 07:28:00 GMT")
        .header("x-amz-meta-color", "blue")
        .header("x-amz-meta-empty", "")
        .header("x-amz-tagging", "a=1&b=two%20words")
        .header("x-amz-storage-class", "STANDARD")
        .body("text")
        .send()
        .await;
    assert_eq!(written.status, 200, "{}", written.text());
    for method in ["GET", "HEAD"] {
        let told = world.call(method, "/photos/a").send().await;
        for (header, value) in [
            ("content-type", "text/plain; charset=utf-8"),
            ("cache-control", "max-age=60"),
            ("content-disposition", "attachment; filename=\"a.txt\""),
            ("content-encoding", "gzip"),
            ("content-language", "de"),
            ("expires", "Wed, 21 Oct 2026 07:28:00 GMT"),
            ("x-amz-meta-color", "blue"),
            ("x-amz-tagging-count", "2"),
            ("accept-ranges", "bytes"),
        ] {
            assert_eq!(told.header(header), value, "{method} {header}");
        }
        assert!(!told.header("x-amz-request-id").is_empty());
        let mut asked = world.call(method, "/photos/a");
        let overrides = [
            ("content-type", "image/png"),
            ("cache-control", "no-store"),
            ("content-disposition", "inline"),
            ("content-encoding", "br"),
            ("content-language", "fr"),
        ];
        for (header, value) in overrides {
            asked = asked.query(&format!("response-{header}"), value);
        }
        let told = asked.send().await;
        for (header, value) in overrides {
            assert_eq!(told.header(header), value, "{method} {header}");
        }
    }

    let mut too_much = world.call("PUT", "/photos/b").body("b");
    for number in 0..10 {
        too_much = too_much.header(&format!("x-amz-meta-{number}"), &"v".repeat(220));
    }
    assert_eq!(too_much.send().await.outcome(), (400, "MetadataTooLarge".to_owned()));
    let huge =
        world.call("PUT", "/photos/b").header("cache-control", &"x".repeat(20_000)).body("b").send().await;
    assert_eq!(huge.outcome(), (400, "RequestHeaderSectionTooLarge".to_owned()));
    assert_eq!(world.listed("photos").await, ["a"]);
}

#[tokio::test]
async fn a_part_of_an_object_is_read_by_its_range() {
    let world = World::start().await;
    let body: Vec<u8> = (0..200_000_u32).map(|number| (number % 241) as u8).collect();
    world.put("/photos/large", &body).await;
    world.put("/photos/small", &body[..1000]).await;
    world.put("/photos/empty", "").await;
    for (path, size) in [("/photos/large", 200_000_usize), ("/photos/small", 1000)] {
        for (range, from, to) in [
            ("bytes=0-0", 0, 1),
            ("bytes=10-19", 10, 20),
            ("bytes=990-", 990, size),
            ("bytes=-10", size - 10, size),
            ("bytes=-9999999", 0, size),
            ("bytes=900-9999999", 900, size),
        ] {
            let read = world.call("GET", path).header("range", range).send().await;
            assert_eq!(read.status, 206, "{path} {range}");
            assert_eq!(read.header("content-range"), format!("bytes {from}-{}/{size}", to - 1));
            assert!(read.body == body[from..to], "{path} {range}");
            let head = world.call("HEAD", path).header("range", range).send().await;
            assert_eq!((head.status, head.header("content-length")), (206, (to - from).to_string().as_str()));
        }
        let beyond = world.call("GET", path).header("range", &format!("bytes={size}-")).send().await;
        assert_eq!(beyond.outcome(), (416, "InvalidRange".to_owned()));
        assert_eq!(beyond.header("content-range"), format!("bytes */{size}"));
        let nothing = world.call("GET", path).header("range", "bytes=-0").send().await;
        assert_eq!(nothing.outcome(), (416, "InvalidRange".to_owned()));
        let first = world.call("GET", path).query("partNumber", "1").send().await;
        assert_eq!((first.status, first.body.len()), (206, size));
        let second = world.call("GET", path).query("partNumber", "2").send().await;
        assert_eq!(second.outcome(), (416, "InvalidPartNumber".to_owned()));
        let both = world.call("GET", path).query("partNumber", "1").header("range", "bytes=0-1").send().await;
        assert_eq!(both.outcome(), (400, "InvalidRequest".to_owned()));
    }
    let empty = world.call("GET", "/photos/empty").header("range", "bytes=0-").send().await;
    assert_eq!(empty.outcome(), (416, "InvalidRange".to_owned()));
}

#[tokio::test]
async fn bodies_that_are_not_what_they_should_be_leave_nothing() {
    let world = World::start().await;
    for size in [10, 100_000] {
        let body = vec![7; size];
        let put = || world.call("PUT", "/photos/a").body(&body);
        let right = base64(&md5(&body));
        assert_eq!(put().header("content-md5", &right).send().await.status, 200);
        assert_eq!(world.call("DELETE", "/photos/a").send().await.status, 204);
        let wrong = put().header("content-md5", &base64(&md5(b"other"))).send().await;
        assert_eq!(wrong.outcome(), (400, "BadDigest".to_owned()));
        for broken in ["", "no base64!", "AAAA"] {
            let broken = put().header("content-md5", broken).send().await;
            assert_eq!(broken.outcome(), (400, "InvalidDigest".to_owned()));
        }
        // The connection ends before the body does.
        let mut cut = put();
        cut.headers.push(("content-length".to_owned(), size.to_string()));
        cut.sign();
        let mut bytes = cut.bytes();
        bytes.truncate(bytes.len() - 3);
        let mut stream = tokio::net::TcpStream::connect(world.gateway.address()).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, &bytes).await.unwrap();
        tokio::io::AsyncWriteExt::shutdown(&mut stream).await.unwrap();
        let mut answer = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut answer).await.unwrap();
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        assert_eq!(world.listed("photos").await, Vec::<String>::new());
    }
    let mut too_large = world.call("PUT", "/photos/a");
    too_large.payload = Some("UNSIGNED-PAYLOAD".to_owned());
    let too_large = too_large.header("content-length", "5368709121").send().await;
    assert_eq!(too_large.outcome(), (400, "EntityTooLarge".to_owned()));
    let mut endless = world.call("PUT", "/photos/a");
    endless.payload = Some("UNSIGNED-PAYLOAD".to_owned());
    endless.sign();
    let text = String::from_utf8(endless.bytes())
        .unwrap()
        .replace("content-length: 0", "transfer-encoding: chunked");
    let endless = exchange(world.gateway.address(), format!("{text}0\r\n\r\n").as_bytes(), false).await;
    assert_eq!(endless.outcome(), (411, "MissingContentLength".to_owned()));
    assert_eq!(world.store.count(Space::Object), 0);
}

#[tokio::test]
async fn what_cannot_be_done_is_not_silently_left_out() {
    let world = World::start().await;
    for (header, value) in [
        ("x-amz-server-side-encryption", "AES256"),
        ("x-amz-server-side-encryption", "aws:kms"),
        ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
        ("x-amz-object-lock-mode", "GOVERNANCE"),
        ("x-amz-object-lock-legal-hold", "ON"),
        ("x-amz-storage-class", "GLACIER"),
        ("x-amz-website-redirect-location", "/elsewhere"),
        ("x-amz-acl", "public-read"),
        ("x-amz-grant-read", "id=somebody"),
        ("x-amz-write-offset-bytes", "10"),
    ] {
        let refused = world.call("PUT", "/photos/a").header(header, value).body("a").send().await;
        assert_eq!(refused.outcome(), (501, "NotImplemented".to_owned()), "{header}");
        let refused = world.call("POST", "/photos/a").query("uploads", "").header(header, value).send().await;
        if header != "x-amz-write-offset-bytes" {
            assert_eq!(refused.outcome(), (501, "NotImplemented".to_owned()), "{header}");
        }
    }
    for (method, path, query, body) in [
        (
            "PUT",
            "/photos",
            "versioning",
            "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>",
        ),
        ("PUT", "/photos", "policy", "{}"),
        ("PUT", "/photos", "website", "<WebsiteConfiguration/>"),
        ("PUT", "/photos", "encryption", "<ServerSideEncryptionConfiguration/>"),
        (
            "PUT",
            "/photos",
            "replication",
            "<ReplicationConfiguration><Role>r</Role></ReplicationConfiguration>",
        ),
        ("PUT", "/photos", "object-lock", "<ObjectLockConfiguration/>"),
        ("PUT", "/photos", "tagging", "<Tagging><TagSet></TagSet></Tagging>"),
        ("PUT", "/photos", "notification", "<NotificationConfiguration/>"),
        ("PUT", "/photos/a", "retention", "<Retention/>"),
        ("PUT", "/photos/a", "legal-hold", "<LegalHold/>"),
        ("POST", "/photos/a", "restore", "<RestoreRequest/>"),
    ] {
        let refused = world.call(method, path).query(query, "").body(body).send().await;
        assert!(matches!(refused.status, 400 | 501), "{method} {path}?{query}: {}", refused.text());
    }
    assert_eq!(world.get("/photos/a").await.status, 404);
    let other_version = world.call("GET", "/photos/a").query("versionId", "abc").send().await;
    assert_eq!(other_version.outcome(), (404, "NoSuchVersion".to_owned()));
    world.put("/photos/a", "a").await;
    let null_version = world.call("GET", "/photos/a").query("versionId", "null").send().await;
    assert_eq!(null_version.status, 200);
    let other_version = world.call("DELETE", "/photos/a").query("versionId", "abc").send().await;
    assert_eq!(other_version.status, 404);
    assert_eq!(world.listed("photos").await, ["a"]);
}

#[tokio::test]
async fn many_objects_are_deleted_by_one_request() {
    let world = World::start().await;
    for key in ["a", "b", "c", "d&e"] {
        world.put(&format!("/photos/{key}"), key).await;
    }
    let etag = world.call("HEAD", "/photos/c").send().await.header("etag").trim_matches('"').to_owned();
    let body = format!(
        "<Delete><Object><Key>a</Key></Object><Object><Key>missing</Key></Object><Object><Key>d&amp;e</Key></Object>\
         <Object><Key>b</Key><ETag>wrong</ETag></Object><Object><Key>c</Key><ETag>\"{etag}\"</ETag></Object>\
         <Object><Key>x</Key><VersionId>abc</VersionId></Object></Delete>"
    );
    let delete = |body: &str| {
        let sum = base64(&md5(body.as_bytes()));
        world.call("POST", "/photos").query("delete", "").header("content-md5", &sum).body(body)
    };
    let answer = delete(&body).send().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.elements("Key"), ["a", "missing", "d&e", "c", "b", "x"]);
    assert_eq!(answer.elements("Code"), ["PreconditionFailed", "NoSuchVersion"]);
    assert_eq!(world.listed("photos").await, ["b"]);

    let quiet = delete("<Delete><Quiet>true</Quiet><Object><Key>z</Key></Object></Delete>").send().await;
    assert_eq!((quiet.status, quiet.elements("Key").len()), (200, 0));

    let many = |count: usize| -> String {
        let objects: String =
            (0..count).map(|number| format!("<Object><Key>k{number}</Key></Object>")).collect();
        format!("<Delete><Quiet>true</Quiet>{objects}</Delete>")
    };
    assert_eq!(delete(&many(1000)).send().await.status, 200);
    assert_eq!(delete(&many(1001)).send().await.outcome(), (400, "MalformedXML".to_owned()));
    assert_eq!(delete("<Delete></Delete>").send().await.outcome(), (400, "MalformedXML".to_owned()));
    let one = "<Delete><Object><Key>b</Key></Object></Delete>";
    assert_eq!(delete("<Delete><Object>").send().await.outcome(), (400, "MalformedXML".to_owned()));
    let wrong = world.call("POST", "/photos").query("delete", "").header("content-md5", &base64(&md5(b"x")));
    assert_eq!(wrong.body(one).send().await.outcome(), (400, "BadDigest".to_owned()));
    let wrong = world.call("POST", "/photos").query("delete", "").header("x-amz-checksum-crc32", "AAAAAA==");
    assert_eq!(wrong.body(one).send().await.outcome(), (400, "BadDigest".to_owned()));
    let mut changed = delete(one);
    changed.sign();
    changed.body = one.replace('b', "c").into_bytes();
    let changed = changed.send_unsigned().await;
    assert_eq!(changed.status, 400, "{}", changed.text());
    let huge = delete(&format!("<Delete>{}</Delete>", " ".repeat(5 << 20))).send().await;
    assert!(matches!(huge.status, 400 | 413), "{}", huge.text());
    assert_eq!(world.listed("photos").await, ["b"]);
}
