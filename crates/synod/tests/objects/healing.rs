//! Disks are lost and bytes rot: what clients see stays right, and what is broken is mended or named.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use synod_store::objects::StoreStatusJson;

use crate::cluster::{Layout, eventually};
use crate::store::{ALL, BUCKET, Store, bytes_of};

const LARGE: usize = 3 << 20;

/// A disk is replaced by an empty one. The node has everything again, and can be relied on.
#[test]
fn a_node_that_lost_its_disk_is_rebuilt() {
    let mut store = Store::started(&Layout::default());
    let names: Vec<(String, u64, usize)> = (0..200)
        .map(|number| (format!("small/{number:03}"), number, 1024))
        .chain((0..10).map(|number| (format!("large/{number}"), 1000 + number, LARGE)))
        .collect();
    for (key, name, length) in &names {
        store.put(*name as usize % 3, key, bytes_of(*name, *length));
    }
    let before = store.until_whole();
    assert_eq!(before[0].parts, 10);
    assert!(before[0].entries >= 210, "{before:?}");

    let lost = 1;
    store.cluster.kill(lost);
    fs::remove_dir_all(store.cluster.disk(lost)).expect("a disk to lose");
    // Without its memory it cannot prove that it is the one that died, until the others are sure of that.
    for index in [0, 2] {
        store.cluster.until_opinion(index, lost, &["failed"]);
    }
    store.cluster.start(lost);
    // It says how far it is until it is done.
    let mut seen = BTreeSet::new();
    eventually("it is rebuilt", || {
        let status = store.status(lost)?;
        seen.insert((status.slots_learning, status.entries, status.parts_missing, status.parts_fetched));
        let is_done = status.slots_learning == 0
            && status.slots_learning_total > 0
            && status.entries == before[0].entries
            && status.parts_fetched == 10
            && status.parts_missing == 0;
        if is_done { Ok(()) } else { Err(format!("{status:?}")) }
    });
    eprintln!("slots to be learned, entries, parts missing, parts fetched: {seen:?}");
    store.cluster.until_agreed(ALL);
    let after = store.until_whole();
    let stored = |one: &StoreStatusJson| (one.entries, one.parts, one.part_bytes);
    assert_eq!(stored(&after[lost]), stored(&before[lost]));

    // Now it is the only one that has the parts, and everybody can be asked for them.
    for index in [0, 2] {
        for file in store.part_files(index) {
            fs::remove_file(file).expect("a part to lose");
        }
    }
    for index in ALL {
        for (key, name, length) in &names[190..] {
            let reply = store.get(*index, key);
            assert_eq!(reply.status.as_u16(), 200, "{key} by {index}: {}", reply.text());
            assert!(reply.body == bytes_of(*name, *length), "{key} by {index}");
        }
    }
    // The others get back what they lost, without anybody asking for a scrub.
    eventually("the parts are back", || {
        let counts: Vec<usize> = ALL.iter().map(|index| store.part_files(*index).len()).collect();
        if counts == [10; 3] { Ok(()) } else { Err(format!("{counts:?}")) }
    });
}

/// Whoever reads a damaged part gets the right bytes, and the part is mended.
#[test]
fn a_damaged_part_is_mended_when_it_is_read() {
    let store = Store::started(&Layout::patient());
    let body = bytes_of(1, LARGE);
    store.put(0, "read", body.clone());
    store.until_whole();
    for index in ALL {
        let part = damage(&store.part_files(*index));
        let reply = store.get(*index, "read");
        assert!(reply.status.is_success() && reply.body == body, "{:?} by {index}", reply.status);
        part.until_mended();
    }
}

/// Nobody read it, and it is found.
#[test]
fn a_scrub_finds_damage_and_mends_it_and_names_what_cannot_be_mended() {
    let store = Store::started(&Layout::patient());
    let body = bytes_of(1, LARGE);
    store.put(0, "mended", body.clone());
    store.until_whole();
    let clean = scrub(&store, 0);
    assert!(clean.iter().all(|one| (one.scrub.damaged, one.scrub.parts) == (0, 1)), "{clean:?}");

    // One is damaged, one is gone.
    let part = damage(&store.part_files(0));
    fs::remove_file(&store.part_files(1)[0]).expect("a part to lose");
    let mended = scrub(&store, 0);
    let of = |name: &str| mended.iter().find(|one| one.node_id == name).expect("a node").scrub.clone();
    assert_eq!((of("node1").damaged, of("node1").repaired), (1, 1), "{mended:?}");
    assert_eq!((of("node2").damaged, of("node2").repaired), (1, 1), "{mended:?}");
    assert_eq!((of("node3").damaged, of("node3").repaired), (0, 0), "{mended:?}");
    part.until_mended();
    assert!(store.get(0, "mended").body == body);

    // Now no replica has it.
    let mut name = String::new();
    for index in ALL {
        let Damaged { file, .. } = damage(&store.part_files(*index));
        name = file.file_name().expect("a name").to_string_lossy().into_owned();
    }
    for one in scrub(&store, 1) {
        assert_eq!(one.unrepaired.len(), 1, "{one:?}");
        assert_eq!(one.unrepaired[0].part, name);
        assert_ne!(one.unrepaired[0].reason, "");
    }
    let shown = store.synod(2, &["store", "scrub"]);
    assert_eq!(shown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&shown.stdout).contains(&name), "it is named");
    // Whoever asks for it is told so, or the answer breaks off. No byte of it is wrong.
    for index in ALL {
        let (client, mut right) = (store.s3(*index), Matching { of: &body, at: 0, is_right: true });
        let read = client.read(BUCKET, "mended", |piece| right.take(piece));
        let read = store.run(async { tokio::time::timeout(Duration::from_secs(60), read).await });
        match read.expect("an end") {
            Ok(status) => assert!(status.is_server_error(), "{status} by {index}"),
            Err(_) => assert!(right.is_right, "wrong bytes by {index}"),
        }
        assert!(right.at < LARGE, "by {index}");
    }
    // It takes nothing else with it.
    store.put(1, "other", body.clone());
    assert!(store.get(2, "other").body == body);
}

/// Whether the pieces of a body are those that it should have.
struct Matching<'a> {
    of: &'a Bytes,
    at: usize,
    is_right: bool,
}

impl Matching<'_> {
    fn take(&mut self, piece: &[u8]) {
        self.is_right &= self.of.get(self.at..self.at + piece.len()) == Some(piece);
        self.at += piece.len();
    }
}

/// A part with a wrong byte.
struct Damaged {
    file: PathBuf,
    whole: Vec<u8>,
}

/// Turns a bit of the only part around.
fn damage(files: &[PathBuf]) -> Damaged {
    let [file] = files else { panic!("one part: {files:?}") };
    let (file, whole) = (file.clone(), fs::read(file).expect("a part"));
    flip(&file, &whole);
    Damaged { file, whole }
}

fn flip(file: &Path, whole: &[u8]) {
    let middle = whole.len() / 2;
    let opened = OpenOptions::new().write(true).open(file).expect("a part");
    opened.write_all_at(&[whole[middle] ^ 1], middle as u64).expect("a byte");
}

impl Damaged {
    fn until_mended(&self) {
        eventually("the part is mended", || {
            let now = fs::read(&self.file).map_err(|error| error.to_string())?;
            if now == self.whole { Ok(()) } else { Err("it is still damaged".to_owned()) }
        });
    }
}

/// Has all nodes read all parts. Fails if, and only if, something stays unrepaired.
fn scrub(store: &Store, index: usize) -> Vec<StoreStatusJson> {
    let output = store.synod(index, &["store", "scrub", "--json"]);
    let all: Vec<StoreStatusJson> = serde_json::from_slice(&output.stdout).expect("the objects of all nodes");
    let is_whole = all.iter().all(|one| one.unrepaired.is_empty());
    assert_eq!(
        output.status.code(),
        Some(i32::from(!is_whole)),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(all.len(), ALL.len());
    all
}
