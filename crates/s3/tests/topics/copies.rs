//! Copies, tags and what else is known of an object.

use super::checksums::sum;
use crate::support::digest::{base64, hex, md5};
use crate::support::world::{ID, World};

#[tokio::test]
async fn an_object_is_copied_with_what_is_known_of_it_or_without() {
    let world = World::start().await;
    assert_eq!(world.call("PUT", "/music").send().await.status, 200);
    for size in [10, 300_000] {
        let body = vec![1; size];
        let written = world
            .call("PUT", "/photos/a b+c")
            .header("content-type", "text/x-mine")
            .header("x-amz-meta-color", "blue")
            .header("x-amz-tagging", "t=1")
            .header("x-amz-checksum-crc32", &sum("crc32", &body))
            .body(&body)
            .send()
            .await;
        let etag = written.header("etag").to_owned();
        let copy = |to: &str| world.call("PUT", to).header("x-amz-copy-source", "/photos/a%20b%2Bc");
        let copied = copy("/music/copy").send().await;
        assert_eq!((copied.status, copied.element("ETag")), (200, etag.clone()), "{}", copied.text());
        assert_eq!(copied.element("ChecksumCRC32"), sum("crc32", &body));
        let read = world.call("GET", "/music/copy").header("x-amz-checksum-mode", "ENABLED").send().await;
        assert!(read.body == body);
        assert_eq!((read.header("content-type"), read.header("x-amz-meta-color")), ("text/x-mine", "blue"));
        assert_eq!(
            (read.header("x-amz-tagging-count"), read.header("x-amz-checksum-crc32")),
            ("1", sum("crc32", &body).as_str())
        );

        let replaced = copy("/music/copy")
            .header("x-amz-metadata-directive", "REPLACE")
            .header("x-amz-tagging-directive", "REPLACE")
            .header("x-amz-checksum-algorithm", "SHA256")
            .header("content-type", "text/other")
            .header("x-amz-meta-size", "large")
            .send()
            .await;
        assert_eq!(
            (replaced.status, replaced.element("ChecksumSHA256")),
            (200, sum("sha256", &body)),
            "{}",
            replaced.text()
        );
        let read = world.get("/music/copy").await;
        assert!(read.body == body);
        assert_eq!((read.header("content-type"), read.header("x-amz-meta-color")), ("text/other", ""));
        assert_eq!((read.header("x-amz-meta-size"), read.header("x-amz-tagging-count")), ("large", ""));

        // Conditions on the source, and on what is copied over.
        for (header, value, status) in [
            ("x-amz-copy-source-if-match", etag.as_str(), 200),
            ("x-amz-copy-source-if-match", "\"other\"", 412),
            ("x-amz-copy-source-if-none-match", etag.as_str(), 412),
            ("x-amz-copy-source-if-modified-since", "Wed, 21 Oct 2099 07:28:00 GMT", 412),
            ("x-amz-copy-source-if-unmodified-since", "Wed, 21 Oct 2015 07:28:00 GMT", 412),
            ("if-none-match", "*", 412),
            ("if-match", "\"other\"", 412),
            ("if-match", etag.as_str(), 200),
        ] {
            assert_eq!(
                copy("/music/copy").header(header, value).send().await.status,
                status,
                "{header}: {value}"
            );
        }
        let missing = copy("/music/missing").header("if-match", "*").send().await;
        assert_eq!(missing.outcome(), (404, "NoSuchKey".to_owned()));

        // To itself only to change something; the bytes stay where they are.
        let itself = copy("/photos/a b+c").send().await;
        assert_eq!(itself.outcome(), (400, "InvalidRequest".to_owned()));
        let changed = copy("/photos/a b+c")
            .header("x-amz-metadata-directive", "REPLACE")
            .header("x-amz-meta-color", "red")
            .send()
            .await;
        assert_eq!((changed.status, changed.element("ETag")), (200, etag.clone()));
        let read = world.call("GET", "/photos/a b+c").header("x-amz-checksum-mode", "ENABLED").send().await;
        assert!(read.body == body);
        assert_eq!((read.header("x-amz-meta-color"), read.header("x-amz-tagging-count")), ("red", "1"));
        assert_eq!(read.header("x-amz-checksum-crc32"), sum("crc32", &body));
        let unmet =
            copy("/photos/a b+c").header("x-amz-metadata-directive", "REPLACE").header("if-match", "\"x\"");
        assert_eq!(unmet.send().await.outcome(), (412, "PreconditionFailed".to_owned()));
    }
    let copy = |source: &str| world.call("PUT", "/music/x").header("x-amz-copy-source", source);
    assert_eq!(copy("/photos/missing").send().await.outcome(), (404, "NoSuchKey".to_owned()));
    assert_eq!(copy("/nowhere/a").send().await.outcome(), (404, "NoSuchBucket".to_owned()));
    assert_eq!(
        copy("/photos/a%20b%2Bc?versionId=abc").send().await.outcome(),
        (404, "NoSuchVersion".to_owned())
    );
    assert_eq!(copy("/photos/a%20b%2Bc?versionId=null").send().await.status, 200);
    assert_eq!(copy("nonsense").send().await.status, 400);
    let sse = copy("/photos/a%20b%2Bc").header("x-amz-server-side-encryption", "AES256").send().await;
    assert_eq!(sse.outcome(), (501, "NotImplemented".to_owned()));
}

#[tokio::test]
async fn tags_are_set_told_and_removed() {
    let world = World::start().await;
    let etag = world.put("/photos/a", "a").await.header("etag").to_owned();
    let modified = world.get("/photos/a").await.header("last-modified").to_owned();
    let tags = |tags: &[(&str, &str)]| {
        let tags: String = tags
            .iter()
            .map(|(key, value)| format!("<Tag><Key>{key}</Key><Value>{value}</Value></Tag>"))
            .collect();
        format!("<Tagging><TagSet>{tags}</TagSet></Tagging>")
    };
    let put = |body: &str| {
        let digest = base64(&md5(body.as_bytes()));
        world.call("PUT", "/photos/a").query("tagging", "").header("content-md5", &digest).body(body)
    };
    let get = || world.call("GET", "/photos/a").query("tagging", "");
    assert_eq!(get().send().await.elements("Key"), Vec::<String>::new());
    assert_eq!(put(&tags(&[("color", "blue"), ("size", "")])).send().await.status, 200);
    let told = get().send().await;
    assert_eq!(
        (told.elements("Key"), told.elements("Value").len()),
        (vec!["color".to_owned(), "size".to_owned()], 2)
    );
    let read = world.get("/photos/a").await;
    assert_eq!((read.header("x-amz-tagging-count"), read.header("etag")), ("2", etag.as_str()));
    assert_eq!((read.header("last-modified"), read.text()), (modified.as_str(), "a".to_owned()));

    let many: Vec<_> = (0..11).map(|number| (number.to_string(), "v")).collect();
    let many: Vec<_> = many.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    for (body, code) in [
        (tags(&many), "BadRequest"),
        (tags(&[("a", "1"), ("a", "2")]), "InvalidTag"),
        (tags(&[("", "1")]), "InvalidTag"),
        (tags(&[(&"k".repeat(129), "1")]), "InvalidTag"),
        (tags(&[("k", &"v".repeat(257))]), "InvalidTag"),
        (tags(&[("k*", "v")]), "InvalidTag"),
        ("<Tagging>".to_owned(), "MalformedXML"),
    ] {
        assert_eq!(put(&body).send().await.outcome(), (400, code.to_owned()), "{body}");
    }
    for header in ["a=1&a=2", "%zz=1", &"k".repeat(200)] {
        let refused = world.call("PUT", "/photos/b").header("x-amz-tagging", header).body("b").send().await;
        assert_eq!(refused.status, 400, "{header}");
    }
    assert_eq!(get().send().await.elements("Key"), ["color", "size"]);
    assert_eq!(world.call("DELETE", "/photos/a").query("tagging", "").send().await.status, 204);
    assert_eq!(get().send().await.elements("Key"), Vec::<String>::new());
    let missing = world.call("GET", "/photos/b").query("tagging", "").send().await;
    assert_eq!(missing.outcome(), (404, "NoSuchKey".to_owned()));
}

#[tokio::test]
async fn attributes_and_owners_are_told() {
    let world = World::start().await;
    world
        .call("PUT", "/photos/a")
        .header("x-amz-checksum-sha1", &sum("sha1", b"abc"))
        .body("abc")
        .send()
        .await;
    let attributes = |wanted: &str| {
        world
            .call("GET", "/photos/a")
            .query("attributes", "")
            .header("x-amz-object-attributes", wanted)
            .send()
    };
    let all = attributes("ETag,Checksum,ObjectParts,StorageClass,ObjectSize").await;
    assert_eq!(all.element("ETag").trim_matches('"'), hex(&md5(b"abc")), "{}", all.text());
    assert_eq!(
        (all.element("ChecksumSHA1"), all.element("ObjectSize")),
        (sum("sha1", b"abc"), "3".to_owned())
    );
    assert_eq!(
        (all.element("StorageClass"), all.element("ObjectParts")),
        ("STANDARD".to_owned(), String::new())
    );
    let one = attributes("ObjectSize").await;
    assert_eq!((one.element("ETag"), one.element("ObjectSize")), (String::new(), "3".to_owned()));
    assert_eq!(attributes("Color").await.outcome(), (400, "InvalidArgument".to_owned()));

    for path in ["/photos", "/photos/a"] {
        let acl = world.call("GET", path).query("acl", "").send().await;
        assert_eq!(
            (acl.status, acl.element("Permission")),
            (200, "FULL_CONTROL".to_owned()),
            "{}",
            acl.text()
        );
        assert_eq!(acl.element("ID"), ID);
        let private = world.call("PUT", path).query("acl", "").header("x-amz-acl", "private").send().await;
        assert_eq!(private.status, 200, "{}", private.text());
        let public = world.call("PUT", path).query("acl", "").header("x-amz-acl", "public-read").send().await;
        assert_eq!(public.outcome(), (501, "NotImplemented".to_owned()));
    }
    for (query, status, code) in [
        ("policy", 404, "NoSuchBucketPolicy"),
        ("encryption", 404, "ServerSideEncryptionConfigurationNotFoundError"),
        ("object-lock", 404, "ObjectLockConfigurationNotFoundError"),
        ("website", 404, "NoSuchWebsiteConfiguration"),
        ("tagging", 404, "NoSuchTagSet"),
        ("replication", 404, "ReplicationConfigurationNotFoundError"),
        ("publicAccessBlock", 404, "NoSuchPublicAccessBlockConfiguration"),
        ("requestPayment", 200, ""),
        ("ownershipControls", 200, ""),
        ("logging", 200, ""),
    ] {
        let told = world.call("GET", "/photos").query(query, "").send().await;
        assert_eq!(told.outcome(), (status, code.to_owned()), "{query}");
    }
}
