//! Buckets.

use synod_core::objects::Space;

use crate::support::world::World;

#[tokio::test]
async fn a_bucket_is_created_found_listed_and_deleted() {
    let world = World::start().await;
    let head = world.call("HEAD", "/photos").send().await;
    assert_eq!((head.status, head.header("x-amz-bucket-region")), (200, "us-east-1"));

    // Who created it may create it again: that changes nothing.
    world.put("/photos/a", "a").await;
    assert_eq!(world.call("PUT", "/photos").send().await.status, 200);
    assert_eq!(world.listed("photos").await, ["a"]);

    assert_eq!(world.call("PUT", "/music").send().await.status, 200);
    let listed = world.get("/").await;
    assert_eq!(
        (listed.status, listed.elements("Name")),
        (200, vec!["music".to_owned(), "photos".to_owned()])
    );
    assert!(listed.element("CreationDate").starts_with("20"), "{}", listed.text());

    let location = world.call("GET", "/photos").query("location", "").send().await;
    assert_eq!(location.status, 200);
    assert!(location.text().contains("LocationConstraint"), "{}", location.text());

    // A bucket with something in it stays.
    let refused = world.call("DELETE", "/photos").send().await;
    assert_eq!(refused.outcome(), (409, "BucketNotEmpty".to_owned()));
    assert_eq!(world.call("DELETE", "/photos/a").send().await.status, 204);
    assert_eq!(world.call("DELETE", "/photos").send().await.status, 204);
    assert_eq!(world.call("HEAD", "/photos").send().await.status, 404);
    let gone = world.get("/photos/a").await;
    assert_eq!(gone.outcome(), (404, "NoSuchBucket".to_owned()));
    let gone = world.call("DELETE", "/photos").send().await;
    assert_eq!(gone.outcome(), (404, "NoSuchBucket".to_owned()));
    let gone = world.call("PUT", "/photos/a").body("a").send().await;
    assert_eq!(gone.outcome(), (404, "NoSuchBucket".to_owned()));
    assert_eq!(world.store.count(Space::Object), 0);
}

#[tokio::test]
async fn what_cannot_be_a_bucket_is_refused() {
    let world = World::start().await;
    for name in ["ab", "Photos", "a_b", "-ab", "ab-", "a..b", "192.168.1.1", "xn--bucket", &"a".repeat(64)] {
        let refused = world.call("PUT", &format!("/{name}")).send().await;
        assert_eq!(refused.outcome(), (400, "InvalidBucketName".to_owned()), "{name}");
    }
    let elsewhere = "<CreateBucketConfiguration><LocationConstraint>mars-1</LocationConstraint></CreateBucketConfiguration>";
    let refused = world.call("PUT", "/elsewhere").body(elsewhere).send().await;
    assert_eq!(refused.outcome(), (400, "IllegalLocationConstraintException".to_owned()));
    for (header, value) in [
        ("x-amz-acl", "public-read"),
        ("x-amz-grant-read", "id=x"),
        ("x-amz-bucket-object-lock-enabled", "true"),
        ("x-amz-object-ownership", "ObjectWriter"),
    ] {
        let refused = world.call("PUT", "/elsewhere").header(header, value).send().await;
        assert_eq!(refused.outcome(), (501, "NotImplemented".to_owned()), "{header}");
    }
    assert_eq!(world.store.count(Space::Bucket), 1);
}

#[tokio::test]
async fn buckets_are_listed_in_pages() {
    let world = World::start_with(|_| {}).await;
    for name in ["aa1", "aa2", "aa3", "bb1"] {
        assert_eq!(world.call("PUT", &format!("/{name}")).send().await.status, 200);
    }
    let page = world.call("GET", "/").query("prefix", "aa").query("max-buckets", "2").send().await;
    assert_eq!(page.elements("Name"), ["aa1", "aa2"]);
    let token = page.element("ContinuationToken");
    let page = world.call("GET", "/").query("prefix", "aa").query("continuation-token", &token).send().await;
    assert_eq!(page.elements("Name"), ["aa3"]);
    assert_eq!(page.element("ContinuationToken"), "");
}
