//! Events: what is delivered, to whom, and when it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use nvml::{Activation, Error, Event, EventKind, EventMask, EventStream};
use sim_nvml::model::{Effect, Fault};

use crate::{Node, eventually};

/// The next event that satisfies `wanted`.
fn next(stream: &EventStream, mut wanted: impl FnMut(&Event) -> bool) -> Event {
    for _ in 0..200 {
        let event = stream.next_within(Duration::from_secs(60)).unwrap();
        let event = event.expect("an event within a minute");
        if wanted(&event) {
            return event;
        }
    }
    panic!("200 events, and none is it");
}

/// A stream of a node with `gpus` GPUs that all report.
fn watching(driver: &nvml::Driver, gpus: usize) -> EventStream {
    let stream = driver.watch(EventMask::ALL).unwrap();
    for _ in 0..gpus {
        next(&stream, |e| e.kind == EventKind::Watching);
    }
    stream
}

#[test]
fn an_xid_names_its_gpu_and_instance() {
    let node = Node::of("h100-sxm5-80gb", 2);
    let driver = node.open();
    driver
        .gpu(1)
        .run(|d| {
            assert_eq!(d.set_mig_mode(true)?, Activation::Done);
            d.create_gpu_instance(9, None)?;
            d.create_compute_instance(2, 2, None)
        })
        .unwrap();
    let stream = watching(&driver, 2);
    node.sim.xid(0, 43, None).unwrap();
    node.sim.xid(1, 31, Some((2, 0))).unwrap();
    let whole = next(&stream, |e| e.kind == EventKind::Xid(43));
    assert_eq!(
        (whole.gpu.index, whole.gpu_instance, whole.compute_instance),
        (0, None, None)
    );
    let node_uuid = node.sim.state().unwrap().gpus[0].uuid.clone();
    assert_eq!(whole.gpu.uuid.as_deref(), Some(node_uuid.as_str()));
}

#[test]
fn an_xid_in_an_instance_names_it() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let driver = node.open();
    driver
        .gpu(0)
        .run(|d| {
            d.set_mig_mode(true)?;
            d.create_gpu_instance(9, None)?;
            d.create_compute_instance(2, 2, None)
        })
        .unwrap();
    let stream = watching(&driver, 1);
    node.sim.xid(0, 31, Some((2, 0))).unwrap();
    let event = next(&stream, |e| e.kind == EventKind::Xid(31));
    assert_eq!(
        (event.gpu_instance, event.compute_instance),
        (Some(2), Some(0))
    );
}

#[test]
fn a_change_of_instances_is_reported() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let driver = node.open();
    let stream = watching(&driver, 1);
    driver.gpu(0).run(|d| d.set_mig_mode(true)).unwrap();
    let event = next(&stream, |e| e.kind == EventKind::MigConfigChange);
    assert_eq!(event.gpu.index, 0);
}

#[test]
fn a_lost_gpu_is_reported_once_and_the_others_go_on() {
    let node = Node::of("h100-sxm5-80gb", 2);
    let driver = node.open();
    let stream = watching(&driver, 2);
    node.sim.lose(0).unwrap();
    let lost = next(&stream, |e| matches!(e.kind, EventKind::Lost(_)));
    assert_eq!(lost.gpu.index, 0);
    node.sim.xid(1, 45, None).unwrap();
    let event = next(&stream, |e| {
        assert!(!matches!(e.kind, EventKind::Lost(_)), "reported twice");
        matches!(e.kind, EventKind::Xid(_))
    });
    assert_eq!((event.gpu.index, event.kind), (1, EventKind::Xid(45)));
}

#[test]
fn a_gpu_whose_registration_hangs_silences_no_other() {
    let node = Node::of("h100-sxm5-80gb", 2);
    let driver = node.open();
    let fault = Fault {
        gpu: Some(0),
        ..Fault::new("nvmlDeviceRegisterEvents", Effect::Hang)
    };
    let fault = node.sim.inject(fault).unwrap();
    let stream = driver.watch(EventMask::ALL).unwrap();
    assert_eq!(
        next(&stream, |e| e.kind == EventKind::Watching).gpu.index,
        1
    );
    node.sim.xid(1, 48, None).unwrap();
    assert_eq!(next(&stream, |e| e.kind == EventKind::Xid(48)).gpu.index, 1);
    node.sim.clear(fault).unwrap();
    assert_eq!(
        next(&stream, |e| e.kind == EventKind::Watching).gpu.index,
        0
    );
}

#[test]
fn a_stream_outlives_a_reset() {
    let node = Node::of("a100-sxm4-40gb", 1);
    let driver = node.open();
    let stream = watching(&driver, 1);
    driver.gpu(0).reset().unwrap();
    next(&stream, |e| e.kind == EventKind::Watching);
    node.sim.xid(0, 13, None).unwrap();
    next(&stream, |e| e.kind == EventKind::Xid(13));
}

#[test]
fn a_stopped_stream_ends() {
    let node = Node::of("t4-16gb", 2);
    let driver = node.open();
    let stream = watching(&driver, 2);
    stream.stopper().stop();
    // Bounded by the test's own patience; a second is what is promised.
    assert_eq!(stream.count(), 0);
}

#[test]
fn a_stream_ends_with_its_driver() {
    let node = Node::of("t4-16gb", 1);
    let driver = node.open();
    let stream = watching(&driver, 1);
    drop(driver);
    assert_eq!(
        stream.next_within(Duration::from_secs(60)),
        Err(Error::Closed)
    );
}

#[test]
fn a_mask_leaves_out_what_was_not_asked_for() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let driver = node.open();
    let stream = driver.watch(EventMask::XID).unwrap();
    next(&stream, |e| e.kind == EventKind::Watching);
    driver.gpu(0).run(|d| d.set_mig_mode(true)).unwrap();
    node.sim.xid(0, 94, None).unwrap();
    let first = stream
        .next_within(Duration::from_secs(60))
        .unwrap()
        .unwrap();
    assert_eq!(first.kind, EventKind::Xid(94));
}

#[test]
fn a_gpu_without_events_says_so_once() {
    let node = Node::of("t4-16gb", 2);
    let none = Fault {
        gpu: Some(1),
        ..Fault::new(
            "nvmlDeviceGetSupportedEventTypes",
            Effect::Fail(sim_nvml::Code::NOT_SUPPORTED),
        )
    };
    node.sim.inject(none).unwrap();
    let driver = node.open();
    let stream = driver.watch(EventMask::ALL).unwrap();
    let silent = next(&stream, |e| e.kind == EventKind::Silent);
    assert_eq!(silent.gpu.index, 1);
    // Another opening of the library, and the same answer.
    driver.reopen().unwrap();
    driver.reopen().unwrap();
    let heard = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // One that comes before the GPU is watched again is lost.
        scope.spawn(|| {
            for _ in 0..300 {
                if heard.load(Ordering::SeqCst) {
                    break;
                }
                node.sim.xid(0, 13, None).unwrap();
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        next(&stream, |e| {
            assert_ne!(e.kind, EventKind::Silent, "said twice");
            e.kind == EventKind::Xid(13)
        });
        heard.store(true, Ordering::SeqCst);
    });
}

#[test]
fn a_gpu_that_is_back_is_watched_at_once_when_somebody_says_so() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let driver = node.open();
    let (sender, events) = std::sync::mpsc::channel();
    let watch = driver
        .watch_with(EventMask::ALL, move |event| sender.send(event.kind).is_ok())
        .unwrap();
    let next = || events.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(next(), EventKind::Watching);
    let broken = Fault::new("nvmlEventSetWait_v2", Effect::Fail(sim_nvml::Code::UNKNOWN));
    let broken = node.sim.inject(broken).unwrap();
    assert!(matches!(next(), EventKind::Failed(_)));
    // Pauses of one, two and four seconds are over; the next is eight.
    std::thread::sleep(Duration::from_secs(8));
    node.sim.clear(broken).unwrap();
    let cleared = std::time::Instant::now();
    watch.retry(0);
    assert_eq!(next(), EventKind::Watching);
    assert!(cleared.elapsed() < Duration::from_secs(5));
}

#[test]
fn events_without_room_are_counted() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let driver = node.open();
    let (sender, events) = std::sync::mpsc::channel();
    let full = Arc::new(AtomicBool::new(false));
    let refused = Arc::new(AtomicUsize::new(0));
    let (is_full, refusals) = (Arc::clone(&full), Arc::clone(&refused));
    let _watch = driver
        .watch_with(EventMask::ALL, move |event| {
            let room = !is_full.load(Ordering::SeqCst);
            if !room && matches!(event.kind, EventKind::Xid(_)) {
                refusals.fetch_add(1, Ordering::SeqCst);
            }
            room && sender.send(event.kind).is_ok()
        })
        .unwrap();
    let next = || events.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(next(), EventKind::Watching);
    full.store(true, Ordering::SeqCst);
    for xid in [43, 45, 13] {
        node.sim.xid(0, xid, None).unwrap();
    }
    eventually("three events that find no room", || {
        refused.load(Ordering::SeqCst) == 3
    });
    full.store(false, Ordering::SeqCst);
    node.sim.xid(0, 61, None).unwrap();
    // The first that finds room again says how many did not.
    assert_eq!(next(), EventKind::Dropped(3));
    assert_eq!(next(), EventKind::Xid(61));
}
