//! Who may do what: signatures, keys, permissions.

use synod_core::objects::Space;
use synod_s3::{KeyError, Permissions};

use crate::support::digest::{hex, sha256};
use crate::support::world::{ID, SECRET, World};

#[tokio::test]
async fn requests_that_are_not_signed_rightly_are_refused() {
    let world = World::start().await;
    let put = || world.call("PUT", "/photos/a").body("a");

    let anonymous = put().send_unsigned().await;
    assert_eq!(anonymous.outcome(), (403, "AccessDenied".to_owned()));
    let anonymous = world.call("GET", "/").send_unsigned().await;
    assert_eq!(anonymous.outcome(), (403, "AccessDenied".to_owned()));

    let unknown = put().with_key("NOBODY", SECRET).send().await;
    assert_eq!(unknown.outcome(), (403, "InvalidAccessKeyId".to_owned()));
    let strange = put().with_key("a b", SECRET).send().await;
    assert!(matches!(strange.status, 400 | 403), "{}", strange.text());

    let other_secret = put().with_key(ID, "another-secret").send().await;
    assert_eq!(other_secret.outcome(), (403, "SignatureDoesNotMatch".to_owned()));

    for skew in [-3600, 3600] {
        let mut late = put();
        late.skew = skew;
        assert_eq!(late.send().await.outcome(), (403, "RequestTimeTooSkewed".to_owned()), "{skew}");
    }

    // What is signed cannot be changed afterwards.
    let mut moved = put();
    moved.sign();
    moved.path = "/photos/b".to_owned();
    assert_eq!(moved.send_unsigned().await.outcome(), (403, "SignatureDoesNotMatch".to_owned()));
    let mut asked_more = put();
    asked_more.sign();
    let asked_more = asked_more.query("tagging", "");
    assert_eq!(asked_more.send_unsigned().await.outcome(), (403, "SignatureDoesNotMatch".to_owned()));
    let mut other_body = put();
    other_body.sign();
    other_body.body = b"b".to_vec();
    assert_eq!(other_body.send_unsigned().await.outcome(), (400, "XAmzContentSHA256Mismatch".to_owned()));

    // What is not signed cannot be added.
    world.put("/photos/secret", "secret").await;
    let mut copies = world.call("PUT", "/photos/a");
    copies.sign();
    let copies = copies.header("x-amz-copy-source", "/photos/secret");
    assert_eq!(copies.send_unsigned().await.outcome(), (403, "AccessDenied".to_owned()));

    // The old way of signing is not taken.
    let old = put()
        .header("authorization", "AWS FIRSTKEY:c2lnbmF0dXJl")
        .header("date", "now")
        .send_unsigned()
        .await;
    assert_eq!(old.outcome(), (400, "InvalidRequest".to_owned()));
    let old = put().query("AWSAccessKeyId", ID).query("Signature", "x").query("Expires", "9999999999");
    assert_eq!(old.send_unsigned().await.outcome(), (400, "InvalidRequest".to_owned()));
    let form = world
        .call("POST", "/photos")
        .header("content-type", "multipart/form-data; boundary=x")
        .body("--x\r\n")
        .send_unsigned()
        .await;
    assert_eq!(form.outcome(), (501, "NotImplemented".to_owned()));

    assert_eq!(world.listed("photos").await, ["secret"]);

    // The same request twice within its time is the same request twice.
    let mut twice = put();
    twice.sign();
    assert_eq!(twice.clone().send_unsigned().await.status, 200);
    assert_eq!(twice.send_unsigned().await.status, 200);
}

#[tokio::test]
async fn a_presigned_request_is_served_until_it_expires() {
    let world = World::start().await;
    let written = world.call("PUT", "/photos/a b").body("hello").presign(60).send_unsigned().await;
    assert_eq!(written.status, 200, "{}", written.text());
    let read = world.call("GET", "/photos/a b").presign(60).send_unsigned().await;
    assert_eq!((read.status, read.text()), (200, "hello".to_owned()));
    // Overrides are signed with the rest.
    let named = world.call("GET", "/photos/a b").query("response-content-type", "text/x-mine").presign(60);
    assert_eq!(named.send_unsigned().await.header("content-type"), "text/x-mine");

    let mut expired = world.call("GET", "/photos/a b");
    expired.skew = -120;
    assert_eq!(expired.presign(60).send_unsigned().await.outcome(), (403, "AccessDenied".to_owned()));

    let mut changed = world.call("GET", "/photos/a b").presign(60);
    changed.path = "/photos/other".to_owned();
    assert_eq!(changed.send_unsigned().await.outcome(), (403, "SignatureDoesNotMatch".to_owned()));
    let other_method = {
        let mut call = world.call("GET", "/photos/a b").presign(60);
        call.method = "DELETE".to_owned();
        call
    };
    assert_eq!(other_method.send_unsigned().await.outcome(), (403, "SignatureDoesNotMatch".to_owned()));
    // Headers with a meaning cannot be added to what was signed.
    let copies = world.call("PUT", "/photos/c").presign(60).header("x-amz-copy-source", "/photos/a b");
    assert_eq!(copies.send_unsigned().await.outcome(), (403, "AccessDenied".to_owned()));
    // A sum of the body is not signed, but compared.
    let wrong = world.call("PUT", "/photos/c").body("c").presign(60);
    let wrong = wrong.header("x-amz-content-sha256", &hex(&sha256(b"d")));
    assert_eq!(wrong.send_unsigned().await.outcome(), (400, "XAmzContentSHA256Mismatch".to_owned()));
    assert_eq!(world.listed("photos").await, ["a b"]);
}

#[tokio::test]
async fn a_key_may_do_what_it_was_allowed_and_nothing_else() {
    let world = World::start().await;
    assert_eq!(world.call("PUT", "/music").send().await.status, 200);
    world.put("/photos/a", "a").await;
    world.put("/music/a", "a").await;
    let key = world.keys().create("reader").await.unwrap();
    let as_key = |method: &str, path: &str| world.call(method, path).with_key(&key.id, &key.secret);

    // A new key may do nothing, and is not told which buckets there are.
    for (method, path) in [("GET", "/photos/a"), ("HEAD", "/photos"), ("GET", "/nowhere/a"), ("PUT", "/new")]
    {
        let refused = as_key(method, path).send().await;
        assert_eq!(refused.status, 403, "{method} {path}");
    }
    assert_eq!(as_key("GET", "/").send().await.elements("Name"), Vec::<String>::new());

    let read = Permissions { read: true, ..Permissions::default() };
    world.keys().allow(&key.id, "photos", read).await.unwrap();
    // What a key may do is looked up anew within a second.
    let allowed = async { while as_key("GET", "/photos/a").send().await.status != 200 {} };
    tokio::time::timeout(std::time::Duration::from_secs(20), allowed).await.unwrap();
    assert_eq!(as_key("GET", "/").send().await.elements("Name"), ["photos"]);
    assert_eq!(as_key("GET", "/photos").send().await.status, 200);
    assert_eq!(as_key("GET", "/music/a").send().await.status, 403);
    let writes = [
        as_key("PUT", "/photos/b").body("b"),
        as_key("DELETE", "/photos/a"),
        as_key("PUT", "/photos/b").header("x-amz-copy-source", "/photos/a"),
        as_key("POST", "/photos/b").query("uploads", ""),
        as_key("PUT", "/photos/a").query("tagging", "").body("<Tagging><TagSet></TagSet></Tagging>"),
        as_key("POST", "/photos").query("delete", "").body("<Delete><Object><Key>a</Key></Object></Delete>"),
        as_key("DELETE", "/photos"),
        as_key("DELETE", "/photos").query("cors", ""),
        as_key("GET", "/photos").query("lifecycle", ""),
        as_key("PUT", "/photos").query("versioning", "").body("<VersioningConfiguration/>"),
    ];
    for call in writes {
        let what = format!("{} {} {:?}", call.method, call.path, call.query);
        assert_eq!(call.send().await.outcome(), (403, "AccessDenied".to_owned()), "{what}");
    }

    // Who may write here may not copy from where they may not read.
    let write = Permissions { read: true, write: true, owner: false };
    world.keys().allow(&key.id, "photos", write).await.unwrap();
    let allowed = async { while as_key("PUT", "/photos/b").body("b").send().await.status != 200 {} };
    tokio::time::timeout(std::time::Duration::from_secs(20), allowed).await.unwrap();
    let copy = as_key("PUT", "/photos/c").header("x-amz-copy-source", "/music/a").send().await;
    assert_eq!(copy.outcome(), (403, "AccessDenied".to_owned()));
    let upload = as_key("POST", "/photos/c").query("uploads", "").send().await.element("UploadId");
    let copy = as_key("PUT", "/photos/c")
        .query("uploadId", &upload)
        .query("partNumber", "1")
        .header("x-amz-copy-source", "/music/a")
        .send()
        .await;
    assert_eq!(copy.outcome(), (403, "AccessDenied".to_owned()));
    assert_eq!(as_key("DELETE", "/photos").send().await.status, 403);
    assert_eq!(world.listed("photos").await, ["a", "b"]);

    // Who creates a bucket owns it.
    world.keys().allow_creating_buckets(&key.id, true).await.unwrap();
    let allowed = async { while as_key("PUT", "/mine-alone").send().await.status != 200 {} };
    tokio::time::timeout(std::time::Duration::from_secs(20), allowed).await.unwrap();
    assert_eq!(as_key("PUT", "/mine-alone/a").body("a").send().await.status, 200);
    assert_eq!(as_key("DELETE", "/mine-alone/a").send().await.status, 204);
    let taken = as_key("PUT", "/photos").send().await;
    assert_eq!(taken.outcome(), (409, "BucketAlreadyExists".to_owned()));
    assert_eq!(as_key("DELETE", "/mine-alone").send().await.status, 204);

    world.keys().delete(&key.id).await.unwrap();
    let gone =
        async { while as_key("GET", "/photos/a").send().await.element("Code") != "InvalidAccessKeyId" {} };
    tokio::time::timeout(std::time::Duration::from_secs(20), gone).await.unwrap();
}

#[tokio::test]
async fn keys_are_kept_listed_and_never_shown_with_their_secrets() {
    let world = World::start_with(|_| {}).await;
    let keys = world.keys();
    let created = keys.create("backup").await.unwrap();
    assert!(created.secret.len() >= 40 && created.id.len() >= 20, "{created:?}");
    assert!(!format!("{created:?}").contains(&created.secret));
    assert_ne!(created.secret, keys.create("other").await.unwrap().secret);
    let listed = keys.list().await.unwrap();
    assert_eq!(listed.len(), 3);
    assert!(listed.iter().all(|key| key.secret.is_empty()));
    let first = listed.iter().find(|key| key.id == ID).unwrap();
    assert_eq!((first.name.as_str(), first.may_create_buckets), ("first", true));
    assert_eq!(first.permissions, [("*".to_owned(), Permissions::ALL)]);

    // The first key is the same when it is created again, and another one is not taken for it.
    assert_eq!(keys.create_first(ID, SECRET, "first").await.unwrap().secret, SECRET);
    let taken = keys.create_first(ID, "another-secret", "first").await;
    assert_eq!(taken, Err(KeyError::Exists { id: ID.to_owned() }));
    assert_eq!(keys.create_first("a b", SECRET, "first").await, Err(KeyError::Id));
    assert_eq!(keys.create_first("NEWKEY", "short", "first").await, Err(KeyError::Secret));
    assert_eq!(keys.create(&"n".repeat(129)).await, Err(KeyError::Name));
    let unknown = KeyError::Unknown { id: "NOBODY".to_owned() };
    assert_eq!(keys.allow("NOBODY", "*", Permissions::ALL).await, Err(unknown.clone()));
    assert_eq!(keys.delete("NOBODY").await, Err(unknown));
    let bad = keys.allow(ID, "Not A Bucket", Permissions::ALL).await;
    assert_eq!(bad, Err(KeyError::Bucket { bucket: "Not A Bucket".to_owned() }));
    assert_eq!(world.store.count(Space::Access), 3);

    // What is taken away is gone, and what a later gateway wrote is not guessed at.
    let allowed = keys.allow(&created.id, "photos", Permissions::ALL).await.unwrap();
    assert_eq!(allowed.permissions.len(), 1);
    let allowed = keys.allow(&created.id, "photos", Permissions::default()).await.unwrap();
    assert_eq!(allowed.permissions, []);
    world.store.spoil(Space::Access, "", &created.id);
    assert!(matches!(keys.list().await, Err(KeyError::Unreadable { .. })));
    let unreadable = world.call("GET", "/").with_key(&created.id, &created.secret).send().await;
    assert_eq!(unreadable.outcome(), (500, "InternalError".to_owned()));
}

#[tokio::test]
async fn a_bucket_is_named_by_the_host_or_by_the_path() {
    let world = World::start().await;
    let mut write = world.call("PUT", "/deep/key").body("by host");
    write.host = Some("photos.localhost:9000".to_owned());
    assert_eq!(write.send().await.status, 200);
    for host in ["localhost", "s3.elsewhere.org", "127.0.0.1:1"] {
        let mut read = world.call("GET", "/photos/deep/key");
        read.host = Some(host.to_owned());
        assert_eq!(read.send().await.text(), "by host", "{host}");
    }
    let mut list = world.call("GET", "/").query("list-type", "2");
    list.host = Some("photos.localhost".to_owned());
    assert_eq!(list.send().await.elements("Key"), ["deep/key"]);
}

#[tokio::test]
async fn a_bucket_of_another_owner_than_expected_is_left_alone() {
    let world = World::start().await;
    let put =
        |owner: &str| world.call("PUT", "/photos/a").header("x-amz-expected-bucket-owner", owner).body("a");
    assert_eq!(put("SOMEBODY").send().await.outcome(), (403, "AccessDenied".to_owned()));
    assert_eq!(world.listed("photos").await, Vec::<String>::new());
    assert_eq!(put(ID).send().await.status, 200);
}
