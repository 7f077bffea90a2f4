//! Files that are not ours, not yet ours or no longer readable: each is refused by name, and none is touched.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use synod_log::sim_disk::SimDisk;
use synod_log::{Corruption, Damage, Disk, DiskError, DiskFile, FileDisk, Log, LogConfig, OpenError};

#[test]
fn a_segment_of_a_newer_version_is_refused_and_kept() {
    // Version 2, with a checksum that is right, as a newer program would write it.
    let newer = |mut segment: Vec<u8>| {
        segment[8..10].copy_from_slice(&2_u16.to_le_bytes());
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&segment[..12]), &segment[16..32]);
        segment[12..16].copy_from_slice(&checksum.to_le_bytes());
        segment
    };
    for name in [FIRST, LAST] {
        assert_eq!(refusal_after(name, newer), corruption(name, 8, Damage::Version(2)));
        // Even without records: an older program does not know what that means to a newer one.
        assert_eq!(refusal_after(name, |segment| newer(segment)[..32].to_vec()).offset, 8);
    }
}

#[test]
fn a_file_of_another_program_is_refused_and_kept() {
    for name in [FIRST, LAST] {
        let foreign = |_| b"PK\x03\x04 or whatever it is".repeat(20);
        assert_eq!(refusal_after(name, foreign), corruption(name, 0, Damage::Foreign));
    }
    // A short one at the end of the log is not taken for a segment that a crash kept from being finished.
    assert_eq!(refusal_after(LAST, |_| b"my notes".to_vec()), corruption(LAST, 0, Damage::Foreign));
    let files = BTreeMap::from([("00000000000000000001.seg".to_owned(), b"my notes".to_vec())]);
    assert_eq!(refusal(&files), corruption("00000000000000000001.seg", 0, Damage::Foreign));
}

#[test]
fn a_header_that_is_cut_is_refused_unless_a_crash_can_have_done_it() {
    for length in 0..32 {
        let cut = refusal_after(FIRST, |segment| segment[..length].to_vec());
        assert_eq!(cut, corruption(FIRST, length as u64, Damage::ShortHeader));
    }
    // Alone it is not the end of a log but all that is left of one.
    for length in 0..32 {
        let files = BTreeMap::from([(LAST.to_owned(), sound_files()[LAST][..length].to_vec())]);
        assert_eq!(refusal(&files), corruption(LAST, length as u64, Damage::ShortHeader));
    }
    // At the end of the log it is a segment that was never finished.
    let mut files = sound_files();
    files.insert(LAST.into(), files[LAST][..20].to_vec());
    let (_, recovery) = Log::open(small(), SimDisk::with_contents(files)).expect("opened");
    let cut = recovery.cut.expect("reported");
    assert_eq!((cut.file.as_str(), cut.offset, cut.bytes), (LAST, 0, 20));
}

#[test]
fn a_header_that_is_not_that_of_its_file_is_refused() {
    let flipped = |mut segment: Vec<u8>| {
        segment[30] ^= 1;
        segment
    };
    assert_eq!(refusal_after(FIRST, flipped), corruption(FIRST, 0, Damage::Header));
    let first = sound_files()[FIRST].clone();
    assert_eq!(refusal_after(LAST, |_| first), corruption(LAST, 16, Damage::Header));
}

#[test]
fn a_name_that_only_looks_like_a_segment_is_refused() {
    let mut files = sound_files();
    files.insert("7.seg".into(), files[LAST].clone());
    assert_eq!(refusal(&files), corruption("7.seg", 0, Damage::Name));
    // Other names are nobody's business.
    files.remove("7.seg");
    files.insert("notes.txt".into(), b"mine".to_vec());
    let disk = SimDisk::with_contents(files);
    Log::open(small(), disk.clone()).expect("opened");
    assert_eq!(disk.contents()["notes.txt"], b"mine");
}

#[test]
fn a_file_longer_than_any_segment_is_refused_before_it_is_read() {
    let directory = written(&sound_files());
    let path = directory.path().join(LAST);
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len((1 << 30) + 1))
        .expect("grown");
    let refused = Log::open(small(), FileDisk::open(directory.path()).expect("opened")).map(|_| ());
    let Err(OpenError::Corrupt(refused)) = refused else { panic!("{refused:?}") };
    assert_eq!(refused, corruption(LAST, 1 << 30, Damage::Length));
}

/// Who runs as root may read everything, so that the disk has to say it.
#[test]
fn a_file_that_may_not_be_opened_is_named_and_nothing_is_touched() {
    struct Locked(SimDisk);
    impl Disk for Locked {
        fn list(&self) -> io::Result<Vec<String>> {
            self.0.list()
        }
        fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
            self.0.create(name)
        }
        fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
            if name == LAST { Err(io::ErrorKind::PermissionDenied.into()) } else { self.0.open(name) }
        }
        fn remove(&self, name: &str) -> io::Result<()> {
            self.0.remove(name)
        }
        fn sync_dir(&self) -> io::Result<()> {
            self.0.sync_dir()
        }
    }
    let files = sound_files();
    let disk = SimDisk::with_contents(files.clone());
    let refused = Log::open(small(), Locked(disk.clone())).map(|_| ());
    let Err(OpenError::Disk(DiskError { operation, file, source, .. })) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((operation, file.as_str(), source.kind()), ("open", LAST, io::ErrorKind::PermissionDenied));
    assert_eq!(disk.contents(), files);
}

/// The same with real files: a directory that has the name of a segment cannot be opened for writing by anybody.
#[test]
fn a_directory_in_the_place_of_a_segment_is_named_and_kept() {
    let directory = written(&sound_files());
    fs::create_dir(directory.path().join("00000000000000000099.seg")).expect("made");
    let refused = Log::open(small(), FileDisk::open(directory.path()).expect("opened")).map(|_| ());
    let Err(OpenError::Disk(error)) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().starts_with("cannot open 00000000000000000099.seg: "), "{error}");
    for (name, bytes) in sound_files() {
        assert_eq!(fs::read(directory.path().join(name)).expect("read").len(), bytes.len());
    }
}

#[test]
fn a_directory_that_cannot_be_opened_is_named_by_its_path() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    fs::write(&file, "mine").expect("written");
    for path in [file.clone(), directory.path().join("missing").join("log")] {
        let error = FileDisk::open(&path).map(|_| ()).expect_err("refused");
        assert_eq!(error.file, path.display().to_string());
    }
    assert_eq!(fs::read(&file).expect("read"), b"mine");
}

/// What is said of a log with these files, after it was made sure that they are still there as they were: on the simulated
/// disk, and in a directory.
fn refusal(files: &BTreeMap<String, Vec<u8>>) -> Corruption {
    let disk = SimDisk::with_contents(files.clone());
    let refused = Log::open(small(), disk.clone()).map(|_| ());
    let Err(OpenError::Corrupt(corruption)) = refused else { panic!("{refused:?}") };
    assert_eq!(disk.contents(), *files);

    let directory = written(files);
    let refused = Log::open(small(), FileDisk::open(directory.path()).expect("opened")).map(|_| ());
    let Err(OpenError::Corrupt(same)) = refused else { panic!("{refused:?}") };
    assert_eq!(same, corruption);
    let mut found = read(directory.path());
    found.remove("lock");
    assert_eq!(found, *files);
    let place = format!("{} is damaged at byte {}: ", corruption.file, corruption.offset);
    assert!(corruption.to_string().starts_with(&place), "{corruption}");
    corruption
}

/// What is said of a sound log after something was done to one of its files.
fn refusal_after(name: &str, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Corruption {
    let mut files = sound_files();
    let changed = change(files[name].clone());
    files.insert(name.into(), changed);
    refusal(&files)
}

/// Two segments with records, closed.
fn sound_files() -> BTreeMap<String, Vec<u8>> {
    let disk = SimDisk::new();
    let (log, _) = Log::open(small(), disk.clone()).expect("opened");
    log.append_all([[7; 60]; 6]).expect("accepted").wait().expect("durable");
    log.close().expect("closed");
    let files = disk.contents();
    assert_eq!(files.keys().collect::<Vec<_>>(), [FIRST, LAST]);
    files
}

fn written(files: &BTreeMap<String, Vec<u8>>) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, bytes) in files {
        fs::write(directory.path().join(name), bytes).expect("written");
    }
    directory
}

fn read(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).expect("read").map(|entry| entry.expect("read"));
    let file = |entry: fs::DirEntry| {
        (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).expect("read"))
    };
    entries.map(file).collect()
}

fn corruption(file: &str, offset: u64, damage: Damage) -> Corruption {
    Corruption { file: file.into(), offset, damage }
}

/// Small, so that a few records fill a segment.
fn small() -> LogConfig {
    LogConfig { record_bytes_max: 100, queue_bytes_max: 1 << 20, segment_bytes_max: 400 }
}

const FIRST: &str = "00000000000000000001.seg";
const LAST: &str = "00000000000000000005.seg";
