//! The state file under several writers, killed writers, and readers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    os::unix::fs::MetadataExt,
    process::{Command, Stdio},
};

use super::*;
use crate::{
    model::{Load, Workload, events},
    presets::NodeSpec,
};

/// A store without a tree around it.
fn store(board: &str, gpus: usize) -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let node = NodeSpec::uniform(board, gpus)
        .unwrap()
        .build(now_us(&Node::default()))
        .unwrap();
    let store = Store::create(folder.path(), node).unwrap();
    (folder, store)
}

fn inode(store: &Store) -> u64 {
    fs::metadata(store.folder().join(STATE_FILE)).unwrap().ino()
}

#[test]
fn a_change_is_seen_by_another_store_and_survives_a_round_trip() {
    let (folder, writer) = store("h100-sxm5-80gb", 2);
    let reader = Store::open(folder.path()).unwrap();
    let before = reader.load().unwrap();
    writer
        .update(|node| node.set_mig_mode(1, true, 0, 0))
        .unwrap()
        .unwrap();
    let after = reader.load().unwrap();
    assert!(!before.gpus[1].mig.current && after.gpus[1].mig.current);
    assert_eq!(*after, *writer.load().unwrap());
    assert_eq!(after.gpus[1].board.product, "NVIDIA H100 80GB HBM3");
}

#[test]
fn nothing_is_written_when_nothing_changed() {
    let (_folder, store) = store("a30-24gb", 1);
    let before = (inode(&store), store.load().unwrap());
    assert_eq!(store.update(|node| node.gpus.len()).unwrap(), 1);
    let after = (inode(&store), store.load().unwrap());
    assert_eq!(before.0, after.0);
    assert!(Arc::ptr_eq(&before.1, &after.1), "not even read again");
}

#[test]
fn threads_that_find_a_change_read_it_once() {
    let (folder, writer) = store("h100-sxm5-80gb", 8);
    let reader = Store::open(folder.path()).unwrap();
    for round in 0..20 {
        writer.update(|node| node.name = round.to_string()).unwrap();
        let start = std::sync::Barrier::new(8);
        let read = || {
            start.wait();
            reader.load().unwrap()
        };
        let nodes: Vec<Arc<Node>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(read)).collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert!(nodes.iter().all(|node| Arc::ptr_eq(node, &nodes[0])));
    }
}

#[test]
fn versions_that_look_alike_are_told_apart() {
    // Same size, written within one tick of a coarse clock, on a file name whose inode comes round again: only the
    // stamp that the writer sets tells them apart.
    let (folder, writer) = store("a30-24gb", 1);
    let reader = Store::open(folder.path()).unwrap();
    for name in ["aaaa", "bbbb", "cccc", "dddd"].repeat(50) {
        writer.update(|node| node.name = name.to_owned()).unwrap();
        assert_eq!(reader.load().unwrap().name, name);
    }
}

#[test]
fn threads_lose_no_update() {
    let (folder, store) = store("a30-24gb", 1);
    let other = Store::open(folder.path()).unwrap();
    let start = store.load().unwrap().sequence;
    std::thread::scope(|scope| {
        for store in [&store, &store, &other, &other] {
            scope.spawn(move || {
                for _ in 0..50 {
                    store.update(|node| node.clock_offset_us += 1).unwrap();
                    assert!(!store.load().unwrap().gpus.is_empty());
                }
            });
        }
    });
    let end = store.load().unwrap();
    assert_eq!((end.clock_offset_us, end.sequence - start), (200, 200));
}

/// What a child of the tests below does: this program again, with this one test, told by the environment what to do.
const CHILD: &str = "SIM_NVML_TEST_STORE";

#[test]
fn child() {
    let Ok(folder) = std::env::var(CHILD) else {
        return;
    };
    let store = Store::open(folder).unwrap();
    let updates: u64 = std::env::var("SIM_NVML_TEST_UPDATES")
        .unwrap()
        .parse()
        .unwrap();
    for _ in 0..updates {
        store.update(|node| node.clock_offset_us += 1).unwrap();
    }
}

fn spawn_child(folder: &Path, updates: u64) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::tests::child", "--nocapture"])
        .env(CHILD, folder)
        .env("SIM_NVML_TEST_UPDATES", updates.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn processes_lose_no_update() {
    let (folder, store) = store("a30-24gb", 1);
    let mut children: Vec<_> = (0..3).map(|_| spawn_child(folder.path(), 60)).collect();
    for _ in 0..60 {
        store.update(|node| node.clock_offset_us += 1).unwrap();
    }
    assert!(
        children
            .iter_mut()
            .all(|child| child.wait().unwrap().success())
    );
    assert_eq!(store.load().unwrap().clock_offset_us, 240);
}

#[test]
fn a_killed_writer_harms_nothing() {
    let (folder, store) = store("h100-sxm5-80gb", 8);
    for round in 0..8 {
        let mut child = spawn_child(folder.path(), u64::MAX);
        // Wait until it writes, then kill it wherever it is.
        let seen = store.load().unwrap().clock_offset_us;
        let start = Instant::now();
        while store.load().unwrap().clock_offset_us < seen + 3 + round {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "the child does not write"
            );
            thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let left = store.load().unwrap().clock_offset_us;
        store.update(|node| node.clock_offset_us += 1).unwrap();
        assert_eq!(
            Store::open(folder.path())
                .unwrap()
                .load()
                .unwrap()
                .clock_offset_us,
            left + 1
        );
    }
}

#[test]
fn a_half_written_temporary_file_is_overwritten() {
    let (folder, store) = store("a30-24gb", 1);
    fs::write(
        folder.path().join(TEMPORARY_FILE),
        "{\"name\": \"hal".repeat(10_000),
    )
    .unwrap();
    store.update(|node| node.name = "whole".into()).unwrap();
    assert_eq!(
        Store::open(folder.path()).unwrap().load().unwrap().name,
        "whole"
    );
}

#[test]
fn a_damaged_state_is_a_clear_error() {
    let (folder, store) = store("a30-24gb", 1);
    fs::write(folder.path().join(STATE_FILE), "{").unwrap();
    let error = store.load().unwrap_err().to_string();
    assert!(error.contains("state.json"), "{error}");
    let missing = Store::open(folder.path().join("missing"))
        .unwrap_err()
        .to_string();
    assert!(missing.contains("missing"), "{missing}");
}

#[test]
fn the_dead_are_forgotten_at_the_next_update() {
    let (folder, store) = store("a30-24gb", 1);
    let mut child = spawn_child(folder.path(), u64::MAX);
    let start = start_time(child.id()).unwrap();
    store
        .update(|node| node.register(child.id(), start, true))
        .unwrap();
    assert!(store.load().unwrap().has_holder(0));
    store.update(|_| ()).unwrap();
    assert!(store.load().unwrap().has_holder(0), "the living stay");
    child.kill().unwrap();
    child.wait().unwrap();
    store.update(|_| ()).unwrap();
    assert!(!store.load().unwrap().has_holder(0));
}

#[test]
fn start_times_tell_processes_apart() {
    assert_eq!(
        start_time(std::process::id()),
        start_time(std::process::id())
    );
    assert!(start_time(std::process::id()).is_some());
    // Beyond every pid_max.
    assert_eq!(start_time(u32::MAX), None);
}

fn busy(percent: u32) -> Workload {
    Workload {
        pid: 5_000_000,
        start: None,
        name: "train".into(),
        gpu: 0,
        instance: None,
        compute: None,
        memory_mib: 1000,
        load: Load::compute(percent),
        graphics: false,
        mps: false,
        since_us: 0,
    }
}

#[test]
fn counters_never_fall_and_are_equal_in_every_process() {
    let (folder, store) = store("h100-sxm5-80gb", 1);
    let other = Store::open(folder.path()).unwrap();
    let mut last = (0, 0.0, 0.0);
    for round in 0..20_u32 {
        store
            .update(|node| {
                // More than meters are ever settled ahead: until then they stand still.
                node.clock_offset_us += 30_000_000;
                node.workloads = if round % 3 == 0 {
                    Vec::new()
                } else {
                    vec![busy(round * 5)]
                };
                node.gpus[0].throttle.hw_thermal = round % 4 == 1;
            })
            .unwrap();
        let (one, two) = (store.load().unwrap(), other.load().unwrap());
        let now = now_us(&one);
        let meters = one.meters_at(0, now);
        assert_eq!(meters, two.meters_at(0, now));
        let counters = (meters.energy_uj, meters.whole.sm, meters.whole.pcie_rx);
        assert!(
            counters.0 > last.0 && counters.1 >= last.1 && counters.2 >= last.2,
            "{last:?} {counters:?}"
        );
        // Whoever read the clock just before the change does not see them fall.
        assert!(one.meters_at(0, now - 500_000).energy_uj >= last.0);
        last = counters;
    }
}

#[test]
fn a_writer_that_is_held_up_settles_again_further_ahead() {
    // Each attempt takes as long as is told here, microseconds; the last is the first that is in time.
    let write = |takes: &[u64]| {
        let clock = std::cell::Cell::new(0);
        let mut attempts = Vec::new();
        let attempt = |ahead| {
            let until = clock.get() + ahead;
            clock.set(clock.get() + takes[attempts.len()]);
            attempts.push(ahead);
            Ok((until, Some(until)))
        };
        let until = in_time(attempt, || clock.get()).unwrap();
        (attempts, until, clock.get())
    };
    assert_eq!(write(&[20_000]), (vec![20_000], 20_000, 20_000));
    let (attempts, until, now) = write(&[20_001, 90_000, 90_000]);
    assert_eq!(attempts, [20_000, 80_000, 320_000]);
    assert!(until >= now, "nobody has seen more than what is settled");
    // It does not go on for ever.
    let (attempts, ..) = write(&[u64::MAX >> 8; 6]);
    assert_eq!(attempts.last(), Some(&20_000_000));
    // Where no meter was settled there is nothing to be late for.
    let unsettled = |_| Ok(((), None));
    in_time(unsettled, || u64::MAX).unwrap();
}

#[test]
fn events_of_concurrent_writers_reach_every_reader_in_one_order() {
    let (folder, store) = store("h100-sxm5-80gb", 2);
    let other = Store::open(folder.path()).unwrap();
    std::thread::scope(|scope| {
        for (store, gpu) in [(&store, 0), (&other, 1)] {
            scope.spawn(move || {
                for xid in 0..40 {
                    store
                        .update(|node| node.raise_xid(gpu, 31 + xid % 2, None, None, 7))
                        .unwrap();
                }
            });
        }
    });
    let seen = |store: &Store| {
        store
            .load()
            .unwrap()
            .events
            .after(0)
            .cloned()
            .collect::<Vec<_>>()
    };
    let events = seen(&store);
    assert_eq!(events.len(), 80);
    assert!(events.iter().all(|event| event.kind == events::kind::XID));
    assert!(
        events
            .windows(2)
            .all(|pair| pair[0].sequence + 1 == pair[1].sequence)
    );
    assert_eq!(events, seen(&other));
}

#[test]
fn a_state_that_cannot_be_read_is_named() {
    for content in [&b""[..], b"\xff\xfe", b"{\"name\":"] {
        let (folder, store) = store("t4-16gb", 1);
        drop(store);
        std::fs::write(folder.path().join(STATE_FILE), content).unwrap();
        let error = Store::open(folder.path()).and_then(|store| store.load().map(drop));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(STATE_FILE), "{content:?}: {error}");
    }
}
