//! The configuration of buckets: other origins, and how long objects live.

use synod_core::objects::Space;
use synod_s3::run_lifecycle_once;

use crate::support::client::{Answer, Call};
use crate::support::world::World;

const DAY_MS: u64 = 86_400_000;

fn cors_call(world: &World, rules: &str) -> Call {
    let body = format!("<CORSConfiguration>{rules}</CORSConfiguration>");
    world.call("PUT", "/photos").query("cors", "").body(body)
}

#[tokio::test]
async fn pages_of_allowed_origins_may_use_a_bucket() {
    let world = World::start().await;
    world.put("/photos/a", "a").await;
    let none = world.call("GET", "/photos").query("cors", "").send().await;
    assert_eq!(none.outcome(), (404, "NoSuchCORSConfiguration".to_owned()));
    let preflight = |origin: &str, method: &str, headers: &str| {
        let call = world.call("OPTIONS", "/photos/a").header("origin", origin);
        let call = call.header("access-control-request-method", method);
        let call =
            if headers.is_empty() { call } else { call.header("access-control-request-headers", headers) };
        call.send_unsigned()
    };
    assert_eq!(preflight("http://a.example", "GET", "").await.outcome(), (403, "AccessForbidden".to_owned()));

    let rules = "<CORSRule><ID>one</ID><AllowedOrigin>http://*.example</AllowedOrigin><AllowedMethod>PUT</AllowedMethod>\
        <AllowedMethod>GET</AllowedMethod><AllowedHeader>x-amz-*</AllowedHeader><AllowedHeader>Content-Type</AllowedHeader>\
        <ExposeHeader>ETag</ExposeHeader><MaxAgeSeconds>60</MaxAgeSeconds></CORSRule>\
        <CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>HEAD</AllowedMethod></CORSRule>";
    assert_eq!(cors_call(&world, rules).send().await.status, 200);
    let told = world.call("GET", "/photos").query("cors", "").send().await;
    assert_eq!(told.elements("AllowedOrigin"), ["http://*.example", "*"]);
    assert_eq!((told.element("ID"), told.element("MaxAgeSeconds")), ("one".to_owned(), "60".to_owned()));

    let allowed = preflight("http://a.example", "PUT", "X-Amz-Date, content-type").await;
    assert_eq!(allowed.status, 200, "{}", allowed.text());
    for (header, value) in [
        ("access-control-allow-origin", "http://a.example"),
        ("access-control-allow-methods", "PUT, GET"),
        ("access-control-allow-headers", "x-amz-date, content-type"),
        ("access-control-expose-headers", "ETag"),
        ("access-control-max-age", "60"),
        ("access-control-allow-credentials", "true"),
    ] {
        assert_eq!(allowed.header(header), value, "{header}");
    }
    for (origin, method, headers) in [
        ("http://a.example", "PUT", "x-other"),
        ("http://a.example", "DELETE", ""),
        ("http://elsewhere", "PUT", ""),
    ] {
        let refused = preflight(origin, method, headers).await;
        assert_eq!(refused.outcome(), (403, "AccessForbidden".to_owned()), "{origin} {method} {headers}");
        assert_eq!(refused.header("access-control-allow-origin"), "");
    }
    assert_eq!(world.call("OPTIONS", "/photos/a").send_unsigned().await.status, 400);
    assert_eq!(
        world.call("OPTIONS", "/nowhere/a").header("origin", "http://a.example").send_unsigned().await.status,
        400
    );

    // Answers themselves say it too, errors included, and only to whom it is meant for.
    let read = |method: &str, origin: &str| world.call(method, "/photos/a").header("origin", origin).send();
    assert_eq!(
        read("GET", "http://a.example").await.header("access-control-allow-origin"),
        "http://a.example"
    );
    assert_eq!(read("HEAD", "http://elsewhere").await.header("access-control-allow-origin"), "*");
    assert_eq!(read("GET", "http://elsewhere").await.header("access-control-allow-origin"), "");
    let denied = world.call("GET", "/photos/a").header("origin", "http://a.example").send_unsigned().await;
    assert_eq!((denied.status, denied.header("access-control-allow-origin")), (403, "http://a.example"));
    assert_eq!(world.get("/photos/a").await.header("access-control-allow-origin"), "");

    for (rules, code) in [
        ("", "MalformedXML"),
        ("<CORSRule><AllowedOrigin>*</AllowedOrigin></CORSRule>", "MalformedXML"),
        (
            "<CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>PATCH</AllowedMethod></CORSRule>",
            "InvalidRequest",
        ),
        (
            "<CORSRule><AllowedOrigin>*a*</AllowedOrigin><AllowedMethod>GET</AllowedMethod></CORSRule>",
            "InvalidRequest",
        ),
        (
            "<CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod><ExposeHeader>*</ExposeHeader></CORSRule>",
            "InvalidRequest",
        ),
    ] {
        assert_eq!(cors_call(&world, rules).send().await.outcome(), (400, code.to_owned()), "{rules}");
    }
    let told = world.call("GET", "/photos").query("cors", "").send().await;
    assert_eq!(told.elements("AllowedOrigin").len(), 2);
    assert_eq!(world.call("DELETE", "/photos").query("cors", "").send().await.status, 204);
    assert_eq!(preflight("http://a.example", "GET", "").await.status, 403);
}

async fn set_lifecycle(world: &World, rules: &str) -> Answer {
    let body = format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>");
    world.call("PUT", "/photos").query("lifecycle", "").body(body).send().await
}

fn rule(id: &str, filter: &str, action: &str) -> String {
    format!("<Rule><ID>{id}</ID><Status>Enabled</Status>{filter}{action}</Rule>")
}

const EXPIRE_1: &str = "<Expiration><Days>1</Days></Expiration>";
const ABORT_1: &str = "<AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation></AbortIncompleteMultipartUpload>";

#[tokio::test]
async fn what_has_had_its_time_is_removed() {
    let world = World::start().await;
    let now = 20_000 * DAY_MS;
    for key in ["tmp/old", "tmp/new", "tmp/large", "keep/old", "tagged/yes", "tagged/no", "dated/a"] {
        let body = if key == "tmp/large" { vec![0; 5000] } else { vec![0; 10] };
        let tags = if key == "tagged/yes" { "class=scratch&x=y" } else { "class=other" };
        let put = world.call("PUT", &format!("/photos/{key}")).header("x-amz-tagging", tags).body(body);
        assert_eq!(put.send().await.status, 200);
    }
    world.store.set_modified(Space::Object, "photos", "", now - 3 * DAY_MS);
    world.store.set_modified(Space::Object, "photos", "tmp/new", now - DAY_MS + 1);
    for key in ["tmp/upload", "keep/upload"] {
        let id = world
            .call("POST", &format!("/photos/{key}"))
            .query("uploads", "")
            .send()
            .await
            .element("UploadId");
        let part =
            world.call("PUT", &format!("/photos/{key}")).query("uploadId", &id).query("partNumber", "1");
        assert_eq!(part.body("part").send().await.status, 200);
    }
    world.store.set_modified(Space::Upload, "photos", "", now - 3 * DAY_MS);
    assert_eq!(run_lifecycle_once(&world.store, now).await.expired, 0, "no rule, no end");

    let rules = [
        rule(
            "tmp",
            "<Filter><And><Prefix>tmp/</Prefix><ObjectSizeLessThan>1000</ObjectSizeLessThan></And></Filter>",
            EXPIRE_1,
        ),
        rule("tags", "<Filter><Tag><Key>class</Key><Value>scratch</Value></Tag></Filter>", EXPIRE_1),
        rule("uploads", "<Filter><Prefix>tmp/</Prefix></Filter>", ABORT_1),
        rule("keep", "<Filter><Prefix>keep/</Prefix></Filter>", EXPIRE_1).replace("Enabled", "Disabled"),
        rule(
            "dated",
            "<Prefix>dated/</Prefix>",
            "<Expiration><Date>2024-10-04T00:00:00Z</Date></Expiration>",
        ),
    ];
    let set = set_lifecycle(&world, &rules.concat()).await;
    assert_eq!(set.status, 200, "{}", set.text());
    let told = world.call("GET", "/photos").query("lifecycle", "").send().await;
    assert_eq!(told.elements("ID"), ["tmp", "tags", "uploads", "keep", "dated"]);
    assert_eq!(told.elements("Status")[3], "Disabled");
    assert_eq!(told.elements("ObjectSizeLessThan"), ["1000"]);
    assert!(told.text().contains("2024-10-04T00:00:00"), "{}", told.text());

    let report = run_lifecycle_once(&world.store, now).await;
    assert_eq!((report.buckets, report.expired, report.aborted, report.failures), (1, 3, 1, 0), "{report:?}");
    assert_eq!(report.expired_bytes, 30);
    assert_eq!(world.listed("photos").await, ["keep/old", "tagged/no", "tmp/large", "tmp/new"]);
    let uploads = world.call("GET", "/photos").query("uploads", "").send().await;
    assert_eq!(uploads.elements("Key"), ["keep/upload"]);
    assert_eq!(world.store.count(Space::UploadPart), 1);
    let again = run_lifecycle_once(&world.store, now).await;
    assert_eq!((again.expired, again.aborted), (0, 0));

    assert_eq!(world.call("DELETE", "/photos").query("lifecycle", "").send().await.status, 204);
    let none = world.call("GET", "/photos").query("lifecycle", "").send().await;
    assert_eq!(none.outcome(), (404, "NoSuchLifecycleConfiguration".to_owned()));
    assert_eq!(run_lifecycle_once(&world.store, now + 99 * DAY_MS).await.expired, 0);
}

#[tokio::test]
async fn rules_that_mean_nothing_are_refused() {
    let world = World::start().await;
    let all = "<Filter><Prefix></Prefix></Filter>";
    for (rules, code) in [
        (String::new(), "MalformedXML"),
        (rule("a", "", EXPIRE_1), "MalformedXML"),
        (rule("a", all, ""), "InvalidRequest"),
        (rule("a", all, "<Expiration><Days>0</Days></Expiration>"), "InvalidArgument"),
        (rule("a", all, "<Expiration></Expiration>"), "MalformedXML"),
        (rule("a", all, "<Expiration><Date>2024-10-04T01:00:00Z</Date></Expiration>"), "InvalidArgument"),
        (rule("a", all, EXPIRE_1).replace("Enabled", "Maybe"), "MalformedXML"),
        (rule("a", all, EXPIRE_1).repeat(2), "InvalidArgument"),
        (rule(&"i".repeat(256), all, EXPIRE_1), "InvalidArgument"),
        (rule("a", "<Filter><Prefix>a</Prefix></Filter><Prefix>b</Prefix>", EXPIRE_1), "MalformedXML"),
        (
            rule(
                "a",
                "<Filter><Prefix>a</Prefix><ObjectSizeLessThan>9</ObjectSizeLessThan></Filter>",
                EXPIRE_1,
            ),
            "MalformedXML",
        ),
        (
            rule("a", all, "<Transition><Days>1</Days><StorageClass>GLACIER</StorageClass></Transition>"),
            "NotImplemented",
        ),
        (
            rule(
                "a",
                all,
                "<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration>",
            ),
            "NotImplemented",
        ),
        (rule("a", "<Filter><Tag><Key>k</Key><Value>v</Value></Tag></Filter>", ABORT_1), "InvalidRequest"),
    ] {
        let refused = set_lifecycle(&world, &rules).await;
        assert_eq!(refused.element("Code"), code, "{rules}: {}", refused.text());
    }
    let none = world.call("GET", "/photos").query("lifecycle", "").send().await;
    assert_eq!(none.status, 404);
}

#[tokio::test]
async fn parts_that_were_left_behind_are_removed() {
    let world = World::start().await;
    let id = world.call("POST", "/photos/a").query("uploads", "").send().await.element("UploadId");
    let part = world.call("PUT", "/photos/a").query("uploadId", &id).query("partNumber", "1").body("part");
    assert_eq!(part.send().await.status, 200);
    let now = 20_000 * DAY_MS;
    world.store.set_modified(Space::UploadPart, "photos", "", now - 2 * DAY_MS);
    assert_eq!(run_lifecycle_once(&world.store, now).await.orphans, 0);
    // Whoever gave the upload up was interrupted.
    use synod_core::objects::{Condition, EntryName};
    use synod_store::objects::contract::ObjectStore as _;
    let name = EntryName::new(Space::Upload, "photos", &format!("a\0{id}")).unwrap();
    world.store.delete(&name, Condition::Any).await.unwrap();
    assert_eq!(run_lifecycle_once(&world.store, now).await.orphans, 1);
    assert_eq!(world.store.count(Space::UploadPart), 0);
}
