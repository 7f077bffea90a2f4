//! Requests that break off or lie about their bodies leave nothing behind.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::JoinHandle;

use bytes::Bytes;
use synod_s3::client::S3Client;

use crate::cluster::Layout;
use crate::store::{ALL, BUCKET, Store, bytes_of};

#[test]
fn a_body_that_breaks_off_or_is_not_what_was_promised_stores_nothing() {
    let store = Store::started(&Layout::patient());
    store.put(0, "old", Bytes::from_static(b"as it was"));
    let entries = || store.statuses().iter().map(|one| one.entries).collect::<Vec<_>>();
    store.until_whole();
    let before = entries();
    assert_eq!(before.len(), ALL.len());

    for length in [1000, 60_000, 3 << 20] {
        for key in ["old", "new"] {
            // In the headers, in the body, just before its end.
            for cut in [100, 600, length / 2, length] {
                let (endpoint, relay) = cut_after(&store.endpoint(1), cut);
                let client = S3Client::new(&endpoint, &store.key.id, &store.key.secret);
                let put = store.run(client.put(BUCKET, key, bytes_of(1, length), &[]));
                assert!(
                    put.as_ref().map_or(true, |reply| !reply.status.is_success()),
                    "{length}, {cut}: {put:?}"
                );
                relay.join().expect("a relay");
            }
        }
    }
    let body = bytes_of(2, 200_000);
    for (name, value) in [
        ("content-md5", "AAAAAAAAAAAAAAAAAAAAAA=="),
        ("x-amz-checksum-crc32", "AAAAAA=="),
        ("x-amz-checksum-sha256", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
    ] {
        for key in ["old", "new"] {
            let client = store.s3(2);
            let put = store.run(client.put(BUCKET, key, body.clone(), &[(name, value)])).expect("an answer");
            assert_eq!(put.status.as_u16(), 400, "{name}: {}", put.text());
        }
    }

    for index in ALL {
        assert_eq!(&store.get(*index, "old").body[..], b"as it was");
        assert_eq!(store.get(*index, "new").status.as_u16(), 404);
    }
    assert_eq!(entries(), before, "nothing is there that was not there before");
}

/// A relay to `endpoint` that passes so many bytes of one request on, and then hangs up on both sides.
fn cut_after(endpoint: &str, bytes: usize) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let node = endpoint.trim_start_matches("http://").to_owned();
    let relay = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        let mut server = TcpStream::connect(node).expect("a node");
        let (mut left, mut buffer) = (bytes, vec![0; 16 * 1024]);
        while left > 0 {
            let length = buffer.len().min(left);
            let read = client.read(&mut buffer[..length]).expect("a request");
            server.write_all(&buffer[..read]).expect("a node that listens");
            left -= read;
        }
        server.shutdown(Shutdown::Write).expect("a connection");
        // Whatever the node says to that is not passed on.
        drop(server.read_to_end(&mut buffer));
    });
    (format!("http://{address}"), relay)
}
