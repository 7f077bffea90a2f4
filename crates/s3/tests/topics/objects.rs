//! Objects: written, read, deleted.

use crate::support::digest::{hex, md5};
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
