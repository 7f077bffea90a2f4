//! Conditions on reads and on writes.

use std::collections::BTreeSet;

use crate::support::client::Call;
use crate::support::world::World;

const PAST: &str = "Wed, 21 Oct 2015 07:28:00 GMT";
const FUTURE: &str = "Wed, 21 Oct 2099 07:28:00 GMT";

#[tokio::test]
async fn a_read_happens_only_if_its_conditions_hold() {
    let world = World::start().await;
    let etag = world.put("/photos/a", "a").await.header("etag").to_owned();
    let table: &[(&[(&str, &str)], u16)] = &[
        (&[("if-match", &etag)], 200),
        (&[("if-match", "*")], 200),
        (&[("if-match", "\"other\"")], 412),
        (&[("if-none-match", &etag)], 304),
        (&[("if-none-match", "*")], 304),
        (&[("if-none-match", "\"other\"")], 200),
        (&[("if-modified-since", PAST)], 200),
        (&[("if-modified-since", FUTURE)], 304),
        (&[("if-unmodified-since", PAST)], 412),
        (&[("if-unmodified-since", FUTURE)], 200),
        // An `ETag` counts more than a time.
        (&[("if-match", &etag), ("if-unmodified-since", PAST)], 200),
        (&[("if-match", "\"other\""), ("if-unmodified-since", FUTURE)], 412),
        (&[("if-none-match", &etag), ("if-modified-since", PAST)], 304),
        (&[("if-none-match", "\"other\""), ("if-modified-since", FUTURE)], 200),
        // What must be counts before what need not.
        (&[("if-match", "\"other\""), ("if-none-match", &etag)], 412),
        (&[("if-match", &etag), ("if-none-match", &etag)], 304),
    ];
    for (headers, status) in table {
        for method in ["GET", "HEAD"] {
            let with = |call: Call, (name, value): &(&str, &str)| call.header(name, value);
            let answer = headers.iter().fold(world.call(method, "/photos/a"), with).send().await;
            assert_eq!(answer.status, *status, "{method} {headers:?}");
            if *status == 304 {
                assert_eq!(answer.header("etag"), etag);
                assert!(!answer.header("last-modified").is_empty());
                assert!(answer.body.is_empty());
            }
        }
    }
    let missing = world.call("GET", "/photos/missing").header("if-match", "*").send().await;
    assert_eq!(missing.outcome(), (404, "NoSuchKey".to_owned()));
}

#[tokio::test]
async fn a_write_happens_only_if_its_condition_holds() {
    let world = World::start().await;
    for size in [3, 100_000] {
        let body = |letter: u8| vec![letter; size];
        let put = |letter: u8| world.call("PUT", "/photos/a").body(body(letter));
        assert_eq!(put(b'0').header("if-match", "*").send().await.outcome(), (404, "NoSuchKey".to_owned()));
        assert_eq!(
            put(b'0').header("if-match", "\"x\"").send().await.outcome(),
            (404, "NoSuchKey".to_owned())
        );
        let first = put(b'1').header("if-none-match", "*").send().await;
        assert_eq!(first.status, 200);
        let etag = first.header("etag").to_owned();
        let failed = (412, "PreconditionFailed".to_owned());
        assert_eq!(put(b'2').header("if-none-match", "*").send().await.outcome(), failed);
        assert_eq!(put(b'2').header("if-none-match", &etag).send().await.outcome(), failed);
        assert_eq!(put(b'2').header("if-match", "\"other\"").send().await.outcome(), failed);
        let both = put(b'2').header("if-match", &etag).header("if-none-match", "*").send().await;
        assert_eq!(both.outcome(), (501, "NotImplemented".to_owned()));
        assert!(world.get("/photos/a").await.body == body(b'1'));
        assert_eq!(put(b'2').header("if-match", &etag).send().await.status, 200);
        assert_eq!(put(b'3').header("if-none-match", &etag).send().await.status, 200);
        assert!(world.get("/photos/a").await.body == body(b'3'));

        let delete = || world.call("DELETE", "/photos/a");
        assert_eq!(delete().header("if-match", &etag).send().await.outcome(), failed);
        let etag = world.call("HEAD", "/photos/a").send().await.header("etag").to_owned();
        assert_eq!(delete().header("if-match", &etag).send().await.status, 204);
        assert_eq!(delete().header("if-match", &etag).send().await.outcome(), (404, "NoSuchKey".to_owned()));
    }
}

#[tokio::test]
async fn of_many_writers_at_once_each_step_is_won_by_one() {
    let world = World::start().await;
    // Creating: exactly one of many is the first.
    let creating: Vec<_> = (0..32)
        .map(|number| {
            tokio::spawn(
                world
                    .call("PUT", "/photos/lock")
                    .header("if-none-match", "*")
                    .body(number.to_string())
                    .send(),
            )
        })
        .collect();
    let mut statuses = Vec::new();
    for writer in creating {
        statuses.push(writer.await.unwrap().status);
    }
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 412).count(), 31, "{statuses:?}");

    // Counting: no step is lost.
    world.put("/photos/counter", "0").await;
    let counting: Vec<_> = (0..8)
        .map(|_| {
            let (read, write) = (world.call("GET", "/photos/counter"), world.call("PUT", "/photos/counter"));
            tokio::spawn(async move {
                let mut taken = Vec::new();
                while taken.len() < 5 {
                    let current = read.clone().send().await;
                    let next = current.text().parse::<u32>().unwrap() + 1;
                    let write =
                        write.clone().header("if-match", current.header("etag")).body(next.to_string());
                    match write.send().await.status {
                        200 => taken.push(next),
                        status => assert_eq!(status, 412),
                    }
                }
                taken
            })
        })
        .collect();
    let mut taken = BTreeSet::new();
    for writer in counting {
        taken.extend(writer.await.unwrap());
    }
    assert_eq!(taken, (1..=40).collect());
    assert_eq!(world.get("/photos/counter").await.text(), "40");
}
