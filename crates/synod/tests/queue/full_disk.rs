//! A disk that is full: the node ends and says so, the others go on, and it comes back when there is room.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::{Layout, TestCluster, eventually};
use crate::{client, queue_of, runtime, until_whole};

/// A small disk, gone with this value. That takes root.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`, with a notice, where this may not be done.
    fn at(path: &Path) -> Option<Self> {
        fs::create_dir_all(path).expect("a directory");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"]).arg(path).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(path.to_path_buf())),
            other => {
                eprintln!("skipped: no disk can be made here: {other:?}");
                None
            }
        }
    }

    fn make_room(&self) {
        let grown = Command::new("mount").args(["-o", "remount,size=256m"]).arg(&self.0).status();
        assert!(grown.expect("mount").success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // What is left of it goes with the machine.
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

#[test]
fn a_node_whose_disk_is_full_ends_and_comes_back_when_there_is_room() {
    let mut cluster = TestCluster::new(&Layout::patient());
    let victim = 1;
    let Some(disk) = SmallDisk::at(&cluster.disk(victim).join("queue")) else { return };
    cluster.start_all();
    until_whole(&cluster);
    let runtime = runtime();
    let client = runtime.block_on(async { client(&cluster) });
    let mut submitted = 0;
    let mut submit = |count: usize| {
        for _ in 0..count {
            runtime.block_on(client.submit("work", vec![7; 100 << 10])).expect("no call fails");
            submitted += 1;
        }
        submitted
    };
    submit(100);
    assert!(!cluster.until_ended(victim).success());
    let told = cluster.log(victim);
    assert!(told.contains("the job queue ended") && told.contains("No space left on device"), "{told}");
    // The others do without it, and it does not begin while there is no room.
    submit(10);
    cluster.start(victim);
    assert!(!cluster.until_ended(victim).success());
    let again = cluster.log(victim)[told.len()..].to_owned();
    assert!(again.contains("No space left on device"), "{again}");

    disk.make_room();
    cluster.start(victim);
    let leader = until_whole(&cluster);
    let submitted = submit(1);
    eventually("it has all jobs", || {
        let [own, leads] = [victim, leader].map(|index| queue_of(&cluster, index));
        let (own, leads) = (own?["groups"][0].clone(), leads?["groups"][0].clone());
        match own["queues"][0]["ready"] == submitted && own["digest"] == leads["digest"] {
            true => Ok(()),
            false => Err(format!("{} {}", own["queues"], own["digest"])),
        }
    });
}
