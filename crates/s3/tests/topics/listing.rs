//! Listings.

use crate::support::world::World;

async fn world_with(keys: &[&str]) -> World {
    let world = World::start().await;
    for key in keys {
        world.put(&format!("/photos/{key}"), key).await;
    }
    world
}

#[tokio::test]
async fn both_versions_list_with_prefixes_and_delimiters() {
    let world = world_with(&["a", "b/1", "b/2", "b/c/3", "c", "d/e/f", "z"]).await;
    for version in ["1", "2"] {
        let list = |queries: &[(&str, &str)]| {
            let call = world.call("GET", "/photos").query("list-type", version);
            queries.iter().fold(call, |call, (name, value)| call.query(name, value)).send()
        };
        let all = list(&[]).await;
        assert_eq!(all.elements("Key"), ["a", "b/1", "b/2", "b/c/3", "c", "d/e/f", "z"]);
        assert_eq!(
            (all.element("Name"), all.element("IsTruncated")),
            ("photos".to_owned(), "false".to_owned())
        );
        assert_eq!(all.elements("Size")[1], "3");
        assert_eq!(all.elements("StorageClass")[0], "STANDARD");
        let top = list(&[("delimiter", "/")]).await;
        assert_eq!(top.elements("Key"), ["a", "c", "z"]);
        assert_eq!(top.elements("CommonPrefixes"), ["<Prefix>b/</Prefix>", "<Prefix>d/</Prefix>"]);
        let below = list(&[("delimiter", "/"), ("prefix", "b/")]).await;
        assert_eq!(below.elements("Key"), ["b/1", "b/2"]);
        assert_eq!(below.elements("CommonPrefixes"), ["<Prefix>b/c/</Prefix>"]);
        let deep = list(&[("delimiter", "/e/")]).await;
        assert_eq!(deep.elements("CommonPrefixes"), ["<Prefix>d/e/</Prefix>"]);
        let none = list(&[("prefix", "nothing")]).await;
        assert_eq!((none.status, none.elements("Key").len()), (200, 0));
        let zero = list(&[("max-keys", "0")]).await;
        assert_eq!((zero.elements("Key").len(), zero.element("IsTruncated")), (0, "false".to_owned()));
        assert_eq!(list(&[("max-keys", "-1")]).await.outcome(), (400, "InvalidArgument".to_owned()));
        assert_eq!(list(&[("max-keys", "x")]).await.status, 400);
        assert_eq!(list(&[("encoding-type", "x")]).await.outcome(), (400, "InvalidArgument".to_owned()));
        assert_eq!(list(&[("max-keys", "5000")]).await.element("MaxKeys"), "1000");
    }
    let v2 = world.call("GET", "/photos").query("list-type", "2").query("delimiter", "/").send().await;
    assert_eq!(v2.element("KeyCount"), "5");
    assert!(!v2.text().contains("<Owner>"));
    let owned =
        world.call("GET", "/photos").query("list-type", "2").query("fetch-owner", "true").send().await;
    assert!(owned.text().contains("<Owner>"));
}

#[tokio::test]
async fn pages_follow_each_other_without_gap_or_repetition() {
    let keys = ["a", "b/1", "b/2", "b/3", "c", "d/1", "d/2", "e"];
    let world = world_with(&keys).await;
    for limit in ["1", "2", "3", "7"] {
        for delimiter in ["", "/"] {
            let expected: Vec<&str> = match delimiter {
                "" => keys.to_vec(),
                _ => vec!["a", "b/", "c", "d/", "e"],
            };
            // Version 2, by tokens.
            let (mut found, mut token) = (Vec::new(), String::new());
            loop {
                let mut call = world.call("GET", "/photos").query("list-type", "2").query("max-keys", limit);
                if !delimiter.is_empty() {
                    call = call.query("delimiter", delimiter);
                }
                if !token.is_empty() {
                    call = call.query("continuation-token", &token);
                }
                let page = call.send().await;
                assert_eq!(page.status, 200, "{}", page.text());
                found.extend(items(&page));
                token = page.element("NextContinuationToken");
                if page.element("IsTruncated") == "false" {
                    assert_eq!(token, "");
                    break;
                }
            }
            found.sort();
            assert_eq!(found, expected, "version 2, {limit} {delimiter}");
            // Version 1, by markers: the last key where none is told.
            let (mut found, mut marker) = (Vec::new(), String::new());
            loop {
                let call = world.call("GET", "/photos").query("max-keys", limit).query("marker", &marker);
                let page = call.query("delimiter", delimiter).send().await;
                found.extend(items(&page));
                if page.element("IsTruncated") == "false" {
                    break;
                }
                marker = match page.element("NextMarker") {
                    next if !next.is_empty() => next,
                    _ => page.elements("Key").pop().unwrap(),
                };
            }
            found.sort();
            assert_eq!(found, expected, "version 1, {limit} {delimiter}");
        }
    }
    let after = world.call("GET", "/photos").query("list-type", "2").query("start-after", "b/2").send().await;
    assert_eq!(after.elements("Key"), ["b/3", "c", "d/1", "d/2", "e"]);
    assert_eq!(after.element("StartAfter"), "b/2");
    for token in ["nonsense", "a2", "!"] {
        let refused = world.call("GET", "/photos").query("list-type", "2").query("continuation-token", token);
        assert_eq!(refused.send().await.outcome(), (400, "InvalidArgument".to_owned()), "{token}");
    }
}

fn items(page: &crate::support::client::Answer) -> Vec<String> {
    let prefixes = page.elements("CommonPrefixes").into_iter();
    let prefixes = prefixes.map(|text| text.replace("<Prefix>", "").replace("</Prefix>", ""));
    page.elements("Key").into_iter().chain(prefixes).collect()
}

#[tokio::test]
async fn names_are_encoded_only_when_asked_for() {
    let world = world_with(&["a b/c+d", "e&f"]).await;
    let plain = world.call("GET", "/photos").query("delimiter", "/").query("prefix", "a b").send().await;
    assert_eq!(plain.elements("CommonPrefixes"), ["<Prefix>a b/</Prefix>"]);
    assert_eq!(plain.element("EncodingType"), "");
    let encoded =
        world.call("GET", "/photos").query("encoding-type", "url").query("marker", "a").send().await;
    assert_eq!(encoded.elements("Key"), ["a%20b/c%2Bd", "e%26f"]);
    assert_eq!(encoded.element("EncodingType"), "url");
    let encoded = world
        .call("GET", "/photos")
        .query("encoding-type", "url")
        .query("prefix", "a b")
        .query("delimiter", "+")
        .send()
        .await;
    assert_eq!(encoded.element("Delimiter"), "%2B");
    assert_eq!(encoded.elements("CommonPrefixes"), ["<Prefix>a%20b/c%2B</Prefix>"]);
}

#[tokio::test]
async fn every_object_is_the_one_version_of_itself() {
    let world = world_with(&["a", "b/1", "c"]).await;
    let versions = world.call("GET", "/photos").query("versions", "").send().await;
    assert_eq!(versions.elements("Key"), ["a", "b/1", "c"]);
    assert_eq!(versions.elements("VersionId"), ["null", "null", "null"]);
    assert_eq!(versions.elements("IsLatest"), ["true", "true", "true"]);
    let first = world.call("GET", "/photos").query("versions", "").query("max-keys", "1").send().await;
    assert_eq!(
        (first.elements("Key"), first.element("NextKeyMarker")),
        (vec!["a".to_owned()], "a".to_owned())
    );
    assert_eq!(first.element("NextVersionIdMarker"), "null");
    let rest = world
        .call("GET", "/photos")
        .query("versions", "")
        .query("key-marker", "a")
        .query("version-id-marker", "null")
        .query("delimiter", "/")
        .send()
        .await;
    assert_eq!((rest.elements("Key"), rest.elements("CommonPrefixes").len()), (vec!["c".to_owned()], 1));
    let versioning = world.call("GET", "/photos").query("versioning", "").send().await;
    assert_eq!((versioning.status, versioning.element("Status")), (200, String::new()));
}
