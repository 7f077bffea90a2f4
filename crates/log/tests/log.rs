//! The log as its users meet it: many writers at a time, a disk that is slow, full or failing, and a real directory.

use std::fs;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use proptest::prelude::*;
use synod_log::sim_disk::SimDisk;
use synod_log::{Damage, Disk, DiskFile, FileDisk, Log, LogConfig, LogError, OpenError, Ticket};

#[test]
fn writers_that_wait_at_a_time_share_one_sync_and_are_answered_in_order() {
    let disk = SimDisk::new();
    let (log, _) = Log::open(LogConfig::default(), disk.clone()).expect("opened");
    // While the disk is busy with the first record, a hundred more come.
    disk.hold_syncs(true);
    let first = log.append("first").expect("accepted");
    disk.await_held_sync();
    let tickets: Vec<_> = (0..100).map(|number| log.append(format!("{number}")).expect("accepted")).collect();
    assert_eq!((log.last_index(), log.durable_index()), (101, 0));
    let before = disk.syncs();
    disk.hold_syncs(false);

    assert_eq!(first.wait().expect("durable"), 1);
    for (ticket, index) in tickets.into_iter().zip(2..) {
        assert_eq!(ticket.index(), index);
        assert_eq!(ticket.wait().expect("durable"), index);
    }
    assert_eq!(disk.syncs() - before, 2);
    let stats = log.stats();
    assert_eq!((stats.durable_records, stats.syncs, stats.waiting_bytes), (101, 2, 0));
    assert_eq!(log.durable_index(), 101);
    let payloads: Vec<_> = log.records(2).map(|record| record.expect("read").payload).collect();
    assert_eq!(payloads, (0..100).map(|number| format!("{number}").into_bytes()).collect::<Vec<_>>());
}

#[test]
fn a_record_is_neither_acknowledged_nor_read_before_it_is_synced() {
    let disk = SimDisk::new();
    let (log, _) = Log::open(LogConfig::default(), disk.clone()).expect("opened");
    disk.hold_syncs(true);
    let mut ticket = pin!(log.append("slow").expect("accepted"));
    disk.await_held_sync();
    assert!(ticket.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(log.read(1, 1000).expect("read"), []);
    disk.hold_syncs(false);
    assert_eq!(block_on(ticket).expect("durable"), 1);
    assert_eq!(log.read(1, 1000).expect("read").len(), 1);
}

#[test]
fn after_one_failed_sync_nothing_is_acknowledged_though_the_disk_works_again() {
    let disk = SimDisk::new();
    let (log, _) = Log::open(LogConfig::default(), disk.clone()).expect("opened");
    log.append("good").expect("accepted").wait().expect("durable");
    disk.hold_syncs(true);
    disk.fail_one_sync_after(0);
    let failing = log.append("failing").expect("accepted");
    disk.await_held_sync();
    let waiting = log.append("waiting").expect("accepted");
    let before = disk.syncs();
    disk.hold_syncs(false);

    for ticket in [failing, waiting] {
        let refused = ticket.wait();
        let Err(LogError::Disk(error)) = refused else { panic!("{refused:?}") };
        assert_eq!(error.operation, "sync");
    }
    let late = [log.append("late").map(|_| ()), log.try_append("late").map(|_| ()), log.truncate_after(1)];
    for refused in late.into_iter().chain([log.compact_before(1).map(|_| ()), log.reset_to(9)]) {
        assert!(matches!(refused, Err(LogError::Disk(_))), "{refused:?}");
    }
    assert_eq!(log.durable_index(), 1);
    assert!(matches!(log.close(), Err(LogError::Disk(_))));
    assert_eq!(disk.syncs(), before, "a failed sync was tried again");
}

#[test]
fn a_full_queue_refuses_those_who_cannot_wait_and_holds_those_who_can() {
    let config = LogConfig { record_bytes_max: 72, queue_bytes_max: 400, ..LogConfig::default() };
    let disk = SimDisk::new();
    let (log, _) = Log::open(config, disk.clone()).expect("opened");
    let too_large = log.append([0; 73]).map(|_| ());
    assert!(matches!(too_large, Err(LogError::TooLarge { bytes: 73, max: 72 })), "{too_large:?}");

    disk.hold_syncs(true);
    let tickets = [log.append([0; 72]).expect("accepted"), log.append([0; 72]).expect("accepted")];
    let refused = log.try_append([]).map(|_| ());
    assert!(matches!(refused, Err(LogError::QueueFull { waiting: 400, max: 400 })), "{refused:?}");
    thread::scope(|scope| {
        let patient = scope.spawn(|| log.append("patient").and_then(Ticket::wait));
        disk.await_held_sync();
        disk.hold_syncs(false);
        assert_eq!(patient.join().expect("no panic").expect("durable"), 3);
    });
    for ticket in tickets {
        ticket.wait().expect("durable");
    }
    assert_eq!(log.stats().refused, 2);
}

#[test]
fn a_task_awaits_a_ticket_on_any_executor() {
    let (log, _) = Log::open(LogConfig::default(), SimDisk::new()).expect("opened");
    let sum = block_on(async {
        let (first, second) = (log.try_append("a")?, log.try_append("b")?);
        Ok::<u64, LogError>(first.await? + second.await?)
    });
    assert_eq!(sum.expect("durable"), 3);
}

#[test]
fn a_batch_waits_for_one_sync_and_its_ticket_speaks_for_all_of_it() {
    let disk = SimDisk::new();
    let (log, _) = Log::open(LogConfig::default(), disk.clone()).expect("opened");
    disk.hold_syncs(true);
    let first = log.append("first").expect("accepted");
    disk.await_held_sync();
    let batch = log.append_all(["a", "b", "c"]).expect("accepted");
    let nothing = log.append_all(Vec::<Vec<u8>>::new()).expect("accepted");
    let after = log.try_append_all([[7], [8]]).expect("accepted");
    assert_eq!((batch.index(), nothing.index(), after.index()), (4, 4, 6));
    let before = disk.syncs();
    disk.hold_syncs(false);
    assert_eq!(after.wait().expect("durable"), 6);
    for (ticket, index) in [(first, 1), (batch, 4), (nothing, 4)] {
        assert_eq!(ticket.wait().expect("durable"), index);
    }
    assert_eq!(disk.syncs() - before, 2);

    let (log, _) = Log::open(LogConfig::default(), disk.crash(1)).expect("opened");
    let payloads: Vec<_> = log.records(1).map(|record| record.expect("read").payload).collect();
    assert_eq!(payloads, [&b"first"[..], b"a", b"b", b"c", &[7], &[8]]);
    // Nothing handed in, nothing to wait for.
    assert_eq!(log.append_all(Vec::<Vec<u8>>::new()).expect("accepted").wait().expect("durable"), 6);
}

/// A batch that does not fit into one segment becomes durable in parts, and its ticket speaks for the last.
#[test]
fn a_batch_is_not_acknowledged_when_only_a_part_of_it_is_durable() {
    let disk = SimDisk::new();
    let (log, _) = Log::open(small(), disk.clone()).expect("opened");
    // The records of the first segment, the header of the second, and then its records.
    disk.fail_one_sync_after(2);
    let refused = log.append_all([[7; 60]; 20]).expect("accepted").wait();
    assert!(matches!(refused, Err(LogError::Disk(_))), "{refused:?}");
    assert_eq!(log.durable_index(), 4);
}

#[test]
fn a_batch_is_accepted_whole_or_refused_whole() {
    let config = LogConfig { record_bytes_max: 72, queue_bytes_max: 400, ..LogConfig::default() };
    let disk = SimDisk::new();
    let (log, _) = Log::open(config, disk.clone()).expect("opened");
    let refused = log.append_all([vec![0; 10], vec![0; 73]]).map(|_| ());
    assert!(matches!(refused, Err(LogError::TooLarge { bytes: 73, max: 72 })), "{refused:?}");
    // It would never fit, so that waiting for room would be for ever.
    let refused = log.append_all([[0; 72]; 3]).map(|_| ());
    assert!(matches!(refused, Err(LogError::BatchTooLarge { bytes: 600, max: 400 })), "{refused:?}");
    disk.hold_syncs(true);
    let one = log.append([0; 72]).expect("accepted");
    let refused = log.try_append_all([[0; 72]; 2]).map(|_| ());
    assert!(matches!(refused, Err(LogError::QueueFull { waiting: 200, max: 400 })), "{refused:?}");
    disk.hold_syncs(false);
    assert_eq!(one.wait().expect("durable"), 1);
    assert_eq!(log.append_all([[0; 72]; 2]).expect("accepted").wait().expect("durable"), 3);
    assert_eq!(log.stats().refused, 7);
}

#[test]
fn a_log_that_is_reset_goes_on_behind_the_snapshot() {
    let disk = SimDisk::new();
    let (log, _) = Log::open(small(), disk.clone()).expect("opened");
    let waiting = log.append_all((0..30).map(|number| format!("old {number}"))).expect("accepted");
    log.reset_to(1000).expect("reset");
    // What was handed in before became durable, and is gone for that.
    assert_eq!(waiting.wait().expect("was durable"), 30);
    assert_eq!((log.first_index(), log.last_index(), log.durable_index()), (1000, 999, 999));
    assert_eq!(disk.contents().keys().collect::<Vec<_>>(), ["00000000000000001000.seg"]);
    assert_eq!(log.append_all(["a", "b", "c"]).expect("accepted").wait().expect("durable"), 1002);
    for index in [0, 999, u64::MAX] {
        let refused = log.reset_to(index);
        assert!(matches!(refused, Err(LogError::OutOfRange { first: 1000, last: 1002, .. })), "{refused:?}");
    }
    let refused = log.read(999, 1000);
    assert!(matches!(refused, Err(LogError::OutOfRange { first: 1000, .. })), "{refused:?}");

    // A power cut finds it reset, and where it went on to.
    let (log, recovery) = Log::open(small(), disk.crash(1)).expect("opened");
    assert_eq!((recovery.first_index, recovery.last_index, recovery.cut), (1000, 1002, None));
    // A snapshot in the middle of the log takes what is behind it, too.
    log.reset_to(1001).expect("reset");
    assert_eq!(log.append("new").expect("accepted").wait().expect("durable"), 1001);
    assert_eq!(log.records(1001).map(|record| record.expect("read").payload).collect::<Vec<_>>(), [b"new"]);
}

#[test]
fn a_truncated_log_goes_on_where_it_was_cut() {
    let disk = SimDisk::new();
    let (log, _) = Log::open(small(), disk.clone()).expect("opened");
    let last = (0..30).map(|number| log.append(format!("old {number}")).expect("accepted")).last();
    // The records are not even durable yet; the order of calls is what counts.
    log.truncate_after(11).expect("truncated");
    assert_eq!(last.map(|ticket| ticket.wait().expect("was durable")), Some(30));
    assert_eq!((log.last_index(), log.durable_index()), (11, 11));
    assert_eq!(log.append("new").expect("accepted").wait().expect("durable"), 12);
    for index in [13, u64::MAX] {
        let refused = log.truncate_after(index);
        assert!(matches!(refused, Err(LogError::OutOfRange { first: 1, last: 12, .. })), "{refused:?}");
    }
    // A power cut right then finds the cut, for it was durable.
    let (log, recovery) = Log::open(small(), disk.crash(1)).expect("opened");
    assert_eq!((recovery.first_index, recovery.last_index, recovery.cut), (1, 12, None));
    let payloads: Vec<_> = log.records(11).map(|record| record.expect("read").payload).collect();
    assert_eq!(payloads, [b"old 10".to_vec(), b"new".to_vec()]);
    log.truncate_after(0).expect("truncated");
    assert_eq!(log.append("from the start").expect("accepted").wait().expect("durable"), 1);
}

#[test]
fn compaction_removes_whole_segments_and_never_a_record_that_is_kept() {
    let disk = SimDisk::new();
    let (log, _) = Log::open(small(), disk.clone()).expect("opened");
    for number in 0..40 {
        log.append(format!("{number:040}")).expect("accepted").wait().expect("durable");
    }
    let segments = disk.contents().len();
    log.compact_before(20).expect("accepted").wait().expect("compacted");
    let first = log.first_index();
    assert!((2..=20).contains(&first), "first {first}");
    assert!(disk.contents().len() < segments);
    let refused = log.read(first - 1, 1000);
    assert!(matches!(refused, Err(LogError::OutOfRange { last: 40, .. })), "{refused:?}");
    assert!(matches!(log.compact_before(42), Err(LogError::OutOfRange { .. })));
    let (log, recovery) = Log::open(small(), disk.crash(1)).expect("opened");
    assert_eq!((recovery.first_index, recovery.last_index), (first, 40));
    // Even with all records gone the log remembers how far it came.
    drop(log.compact_before(41).expect("accepted"));
    // Waits for the compaction, which decides where the log begins.
    log.truncate_after(40).expect("truncated");
    let first = log.first_index();
    log.truncate_after(first - 1).expect("truncated");
    drop(log);
    let (log, _) = Log::open(small(), disk.crash(1)).expect("opened");
    assert_eq!(log.append("next").expect("accepted").index(), 41);
}

#[test]
fn reading_is_bounded_and_yields_at_least_one_record() {
    let (log, _) = Log::open(small(), SimDisk::new()).expect("opened");
    let last = (0..20).map(|_| log.append([7; 50]).expect("accepted")).last();
    last.map(|ticket| ticket.wait().expect("durable"));
    let count = |bytes_max| log.read(3, bytes_max).expect("read").len();
    assert_eq!((count(0), count(147), count(148), count(usize::MAX)), (1, 1, 2, 18));
    assert_eq!(log.read(21, 1000).expect("at the end"), []);
    assert!(matches!(log.read(22, 1000), Err(LogError::OutOfRange { .. })));
    assert!(matches!(log.read(0, 1000), Err(LogError::OutOfRange { .. })));
}

#[test]
fn whoever_reads_slowly_holds_up_no_writer() {
    let disk = SimDisk::new();
    let (log, _) = Log::open(small(), disk.clone()).expect("opened");
    log.append("read me").expect("accepted").wait().expect("durable");
    thread::scope(|scope| {
        disk.hold_reads(true);
        let reader = scope.spawn(|| log.read(1, 1000));
        disk.await_held_read();
        // Enough for new segments, too.
        for number in 0..20 {
            log.append([number; 60]).expect("accepted").wait().expect("durable");
        }
        disk.hold_reads(false);
        let records = reader.join().expect("no panic").expect("read");
        assert_eq!(records[0].payload, b"read me");
    });
}

#[test]
fn a_log_in_a_directory_survives_being_torn() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("oplog");
    let (log, _) = Log::open(LogConfig::default(), FileDisk::open(&path).expect("opened")).expect("opened");
    let second_process = FileDisk::open(&path).map(|_| ());
    assert_eq!(second_process.map_err(|error| error.source.kind()), Err(io::ErrorKind::WouldBlock));
    log.append("one").expect("accepted").wait().expect("durable");
    log.append("two").expect("accepted").wait().expect("durable");
    log.close().expect("closed");

    // A crash leaves half a record behind.
    let file = path.join("00000000000000000001.seg");
    let whole = fs::read(&file).expect("read");
    fs::write(&file, [&whole[..], &[9; 17]].concat()).expect("written");
    let (log, recovery) =
        Log::open(LogConfig::default(), FileDisk::open(&path).expect("opened")).expect("opened");
    let cut = recovery.cut.expect("reported");
    assert_eq!(
        (cut.file.as_str(), cut.offset, cut.bytes),
        ("00000000000000000001.seg", whole.len() as u64, 17)
    );
    assert_eq!(recovery.last_index, 2);
    assert_eq!(fs::read(&file).expect("read"), whole);
    drop(log);

    // A disk damages the first record.
    let mut damaged = whole;
    damaged[57] ^= 4;
    fs::write(&file, &damaged).expect("written");
    let refused = Log::open(LogConfig::default(), FileDisk::open(&path).expect("opened")).map(|_| ());
    let Err(OpenError::Corrupt(corruption)) = refused else { panic!("{refused:?}") };
    assert_eq!((corruption.offset, corruption.damage), (32, Damage::Record { index: 1 }));
    assert_eq!(fs::read(&file).expect("read"), damaged);
}

/// A defect of the disk's driver must not leave writers waiting for ever.
#[test]
fn a_flusher_that_dies_takes_no_writer_with_it() {
    struct Broken(SimDisk);
    impl Disk for Broken {
        fn list(&self) -> io::Result<Vec<String>> {
            self.0.list()
        }
        fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
            assert!(self.0.contents().is_empty(), "this disk has room for one segment");
            self.0.create(name)
        }
        fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
            self.0.open(name)
        }
        fn remove(&self, name: &str) -> io::Result<()> {
            self.0.remove(name)
        }
        fn sync_dir(&self) -> io::Result<()> {
            self.0.sync_dir()
        }
    }
    let disk = SimDisk::new();
    let (log, _) = Log::open(small(), Broken(disk.clone())).expect("opened");
    disk.hold_syncs(true);
    let tickets: Vec<_> = (0..10).map(|_| log.append([0; 60]).expect("accepted")).collect();
    disk.hold_syncs(false);
    let answers: Vec<_> = tickets.into_iter().map(|ticket| ticket.wait().is_ok()).collect();
    assert!(answers[0] && !answers[9], "{answers:?}");
    assert!(answers.is_sorted_by(|one, next| one >= next), "acknowledged out of order: {answers:?}");
    let late = log.append("late").and_then(Ticket::wait);
    assert!(matches!(late, Err(LogError::Closed)), "{late:?}");
    assert!(log.close().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Writers on several threads, and the power goes at some operation of the disk. What one of them was told to be
    /// durable is found where it was told to be.
    #[test]
    fn what_any_writer_was_promised_survives(fails_after in 3_u64..60, seed: u64) {
        let disk = SimDisk::new();
        let (log, _) = Log::open(small(), disk.clone()).map_err(|error| TestCaseError::fail(error.to_string()))?;
        disk.fail_after(fails_after);
        let start = Barrier::new(3);
        let promised: Vec<(u64, String)> = thread::scope(|scope| {
            let writers: Vec<_> = (0..3).map(|writer| {
                let (log, start) = (&log, &start);
                scope.spawn(move || {
                    start.wait();
                    let mut promised = Vec::new();
                    for number in 0..12 {
                        let payloads = [format!("{writer}/{number}a"), format!("{writer}/{number}b")];
                        let tickets = payloads.map(|payload| (log.append(payload.clone()), payload));
                        for (ticket, payload) in tickets {
                            if let Ok(index) = ticket.and_then(Ticket::wait) {
                                promised.push((index, payload));
                            }
                        }
                    }
                    promised
                })
            }).collect();
            writers.into_iter().flat_map(|writer| writer.join().expect("no panic")).collect()
        });
        drop(log);
        let (log, _) = Log::open(small(), disk.crash(seed)).map_err(|error| TestCaseError::fail(error.to_string()))?;
        for (index, payload) in promised {
            let found = log.read(index, 1).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(found.first().map(|record| record.payload.as_slice()), Some(payload.as_bytes()));
        }
    }
}

/// Small, so that a few records fill a segment.
fn small() -> LogConfig {
    LogConfig { record_bytes_max: 100, queue_bytes_max: 1 << 20, segment_bytes_max: 400 }
}

/// The smallest executor: it parks the thread until the task is woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}
