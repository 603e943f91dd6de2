//! GPUs, instances and drivers that come and go.

use super::*;

#[test]
fn a_lost_gpu_is_back_when_it_answers_and_looks_well() {
    let mut bench = Bench::built_in();
    bench.xid(A, 79);
    assert_eq!(bench.fails(1, Code::GPU_IS_LOST), ["+GPU-a: lost x1"]);
    // The same again changes nothing, there is nothing to ask, and no answer makes it well.
    assert_eq!(bench.at(4).look(A, well()), [""; 0]);
    assert_eq!(bench.at(5).fails(1, Code::GPU_IS_LOST), [""; 0]);
    assert_eq!(bench.due(), None);
    assert_eq!(bench.healthy(), [false, true, true, true]);
    assert_eq!(bench.at(60).answers(gpu(A, 1, &[])), [""; 0]);
    assert!(!bench.is_healthy(A));
    assert_eq!(bench.looks(), [A]);
    // Only a reset brings a lost GPU back, so what needed one is over too.
    assert_eq!(
        bench.look(A, well()),
        ["-GPU-a: xid 79 x1", "-GPU-a: lost x1"]
    );
    assert_eq!(bench.healthy(), [true; 4]);
    assert_eq!(bench.due(), None);
}

/// A look takes time, and the GPU may be lost meanwhile.
#[test]
fn an_answer_from_before_says_nothing_of_what_happened_since() {
    let mut bench = Bench::built_in();
    bench.at(10).xid(A, 94);
    let asked = bench.now;
    let late = |readings| Observation::Looked {
        gpu: A,
        asked,
        readings,
    };
    bench.at(11).xid(A, 79);
    assert_eq!(bench.observe(late(Some(well()))), [""; 0]);
    bench.fails(1, Code::GPU_IS_LOST);
    assert_eq!(bench.observe(late(Some(well()))), [""; 0]);
    // Back, and the answer of the first look, which failed, comes only now: the GPU is asked again at once.
    bench.at(20).answers(gpu(A, 1, &[]));
    bench.observe(late(None));
    assert_eq!(bench.looks(), [A]);
    // A reset ends what a recheck would have ended, too.
    assert_eq!(
        bench.look(A, well()),
        ["-GPU-a: xid 94 x1", "-GPU-a: xid 79 x1", "-GPU-a: lost x1"]
    );
}

#[test]
fn a_look_that_began_before_a_fault_tells_nothing_of_it() {
    let mut bench = Bench::built_in();
    let asked = bench.now;
    bench.at(1).xid(A, 95);
    // The GPU was reset before.
    let readings = Some(Readings {
        energy_mj: Some(1),
        ..well()
    });
    bench.at(2).observe(Observation::Looked {
        gpu: A,
        asked,
        readings,
    });
    assert!(!bench.is_healthy(A));
}

#[test]
fn a_gpu_that_left_the_bus_and_is_back_was_reset() {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    let listed = |uuids: &[&str]| hw::Observation::Listed {
        count: 2,
        uuids: uuids.iter().map(|uuid| (*uuid).to_owned()).collect(),
    };
    assert_eq!(bench.hardware(listed(&[B])), ["+GPU-a: lost x1"]);
    bench.at(60).answers(gpu(A, 1, &[]));
    assert_eq!(
        bench.look(A, well()),
        ["-GPU-a: xid 95 x1", "-GPU-a: lost x1"]
    );
}

#[test]
fn a_gpu_that_is_lost_again_has_to_answer_for_as_long_again() {
    let lost = "{version: v1, conditions: {lost: {unhealthy: untilRecheck, quiet: 20s}}}";
    let mut bench = Bench::new(lost);
    bench.fails(1, Code::GPU_IS_LOST);
    bench.at(10).answers(gpu(A, 1, &[]));
    assert_eq!(bench.look(A, well()), [""; 0]);
    assert_eq!(bench.due(), Some(30));
    bench.at(25).fails(1, Code::GPU_IS_LOST);
    bench.at(26).answers(gpu(A, 1, &[]));
    bench.look(A, well());
    assert_eq!(bench.at(45).look(A, well()), [""; 0]);
    assert_eq!(bench.at(46).look(A, well()), ["-GPU-a: lost x2"]);
}

#[test]
fn a_gpu_that_answers_and_still_wants_a_reset_had_none() {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    bench.at(6).fails(1, Code::RESET_REQUIRED);
    bench.at(60).answers(gpu(A, 1, &[]));
    let wanted = Readings {
        recovery: Some(Some(RecoveryAction::Reset)),
        ..well()
    };
    // What it answered before it wanted one counts for nothing.
    let late = Observation::Looked {
        gpu: A,
        asked: bench.zero + Duration::from_secs(5),
        readings: Some(well()),
    };
    assert_eq!(bench.observe(late), [""; 0]);
    assert_eq!(
        bench.at(61).look(A, wanted),
        ["+GPU-a: recoveryAction x1", "-GPU-a: lost x1"]
    );
    assert_eq!(
        bench.at(120).look(A, well()),
        ["-GPU-a: xid 95 x1", "-GPU-a: recoveryAction x1"]
    );
}

#[test]
fn a_gpu_that_hung_was_not_reset() {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    let hung = Error::Hung {
        gpu: None,
        call: "a call",
        waited: Duration::from_secs(9),
    };
    let gpu_ref = named(1, A);
    let trouble = hw::Observation::Trouble {
        gpu: gpu_ref,
        error: hung,
    };
    assert_eq!(bench.hardware(trouble), ["+GPU-a: lost x1"]);
    bench.at(60).answers(gpu(A, 1, &[]));
    assert_eq!(bench.look(A, well()), ["-GPU-a: lost x1"]);
    assert!(!bench.is_healthy(A));
}

#[test]
fn the_drivers_end_is_one_change_for_all() {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    let gone = || hw::Observation::DriverGone(failed(0, Code::DRIVER_NOT_LOADED));
    assert_eq!(bench.at(10).hardware(gone()), ["+all: driver x1"]);
    assert_eq!(bench.at(11).hardware(gone()), [""; 0]);
    let unwatched = EventKind::Failed(failed(1, Code::DRIVER_NOT_LOADED));
    assert_eq!(bench.event(A, None, &unwatched), [""; 0]);
    assert_eq!(bench.healthy(), [false; 4]);
    assert_eq!(bench.health.due(), None);
    // An answer from before.
    assert_eq!(bench.look(A, well()), [""; 0]);
    bench.at(60);
    let back = hw::Observation::Driver {
        version: "1".to_owned(),
        generation: 2,
    };
    assert_eq!(bench.hardware(back), ["-all: driver x1"]);
    bench.answers(gpu(A, 1, &[]));
    bench.answers(gpu(B, 2, &[(1, 0), (1, 1), (2, 0)]));
    assert_eq!(bench.looks(), [A, B]);
    bench.look(B, well());
    assert_eq!(bench.healthy(), [false, true, true, true]);
    // The driver was loaded anew: its energy counter says so.
    let fresh = Readings {
        energy_mj: Some(10),
        ..well()
    };
    assert_eq!(bench.look(A, fresh), ["-GPU-a: xid 95 x1"]);
}

#[test]
fn events_that_cannot_be_read_are_one_change_until_they_can() {
    let mut bench = Bench::built_in();
    for seconds in 0..50 {
        let failed = EventKind::Failed(failed(1, Code::UNKNOWN));
        let notices = bench.at(seconds).event(A, None, &failed);
        if seconds == 0 {
            assert_eq!(notices, ["+GPU-a: unwatched x1"]);
        } else {
            assert_eq!(notices, [""; 0]);
        }
        for gpu in bench.looks() {
            assert_eq!(bench.look(&gpu, well()), [""; 0]);
        }
    }
    assert_eq!(bench.healthy(), [false, true, true, true]);
    bench.at(60).event(A, None, &EventKind::Watching);
    assert_eq!(bench.looks(), [A]);
    assert_eq!(bench.look(A, well()), ["-GPU-a: unwatched x50"]);
    assert!(bench.is_healthy(A));
}

#[test]
fn mig_managers_turn_is_no_trouble() {
    let mut bench = Bench::built_in();
    for known in [gpu(A, 1, &[]), gpu(B, 2, &[])] {
        bench.answers(KnownGpu {
            mig_capable: true,
            ..known
        });
    }
    assert_eq!(
        bench.hardware(hw::Observation::Reshaping),
        ["+GPU-a: reshaping x1", "+GPU-b: reshaping x1"]
    );
    assert!(!bench.is_healthy(A) && !bench.is_healthy(B));
    assert_eq!(bench.health.condition().status, Status::False);
    bench.at(20).answers(gpu(A, 1, &[(1, 0)]));
    assert_eq!(bench.look(A, well()), ["-GPU-a: reshaping x1"]);
}

#[test]
fn transient_trouble_ends_with_its_instance_and_fatal_trouble_is_the_gpus() {
    let mut bench = Bench::built_in();
    bench.event(B, Some((1, 0)), &EventKind::Xid(94));
    bench.event(B, Some((1, 1)), &EventKind::Xid(95));
    assert_eq!(bench.healthy(), [true, false, false, true]);
    // A look at the same layout changes nothing.
    bench.answers(gpu(B, 2, &[(1, 0), (1, 1), (2, 0)]));
    assert_eq!(bench.healthy(), [true, false, false, true]);
    assert_eq!(
        bench.at(10).answers(gpu(B, 2, &[(2, 0)])),
        [
            "-GPU-b 1/0: xid 94 x1",
            "-GPU-b 1/1: xid 95 x1",
            "+GPU-b: xid 95 x1"
        ]
    );
    // Ids are used again; the bad memory may be under any instance.
    bench.answers(gpu(B, 2, &[(1, 0), (2, 0)]));
    assert_eq!(bench.healthy(), [true, false, false, false]);
    bench.observe(Observation::Reset { gpu: B });
    assert_eq!(bench.at(20).look(B, well()), ["-GPU-b: xid 95 x1"]);
    assert_eq!(bench.healthy(), [true; 4]);
}

#[test]
fn what_a_lost_instance_leaves_joins_what_the_gpu_has() {
    let mut bench = Bench::built_in();
    bench.event(B, Some((1, 0)), &EventKind::Xid(95));
    bench.xid(B, 95);
    bench.event(B, Some((1, 0)), &EventKind::Xid(95));
    assert_eq!(bench.answers(gpu(B, 2, &[])), ["-GPU-b 1/0: xid 95 x2"]);
    let standing = bench.health.standing();
    let counts: Vec<_> = standing.iter().map(|fault| fault.count).collect();
    assert_eq!(counts, [3]);
}

#[test]
fn another_gpu_in_the_place_is_another_gpu() {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    let broken = Readings {
        remap_failure: Some(true),
        ..well()
    };
    bench.look(A, broken);
    assert_eq!(
        bench.answers(gpu("GPU-c", 1, &[])),
        ["-GPU-a: xid 95 x1", "-GPU-a: rowRemapFailure x1"]
    );
    assert!(bench.is_healthy("GPU-c"));
    // The broken one comes back, elsewhere.
    assert_eq!(
        bench.at(DAY).answers(gpu(A, 3, &[])),
        ["+GPU-a: rowRemapFailure x1"]
    );
    bench.look(A, well());
    assert!(!bench.is_healthy(A));
}

/// The driver is watched before its GPUs have described themselves.
#[test]
fn what_a_gpu_reports_before_it_is_known_counts() {
    let mut bench = Bench::built_in();
    let unread = EventKind::Failed(failed(3, Code::UNKNOWN));
    for uuid in ["GPU-c", "GPU-d"] {
        assert_eq!(
            bench.event(uuid, Some((1, 0)), &EventKind::Xid(95)),
            [""; 0]
        );
        assert_eq!(bench.event(uuid, None, &unread), [""; 0]);
    }
    bench.event("GPU-d", None, &EventKind::Watching);
    bench.at(5);
    let known = gpu("GPU-c", 3, &[(1, 0)]);
    assert_eq!(
        bench.answers(known.clone()),
        ["+GPU-c 1/0: xid 95 x1", "+GPU-c: unwatched x1"]
    );
    bench.look("GPU-c", well());
    assert_eq!(bench.answers(known), [""; 0], "told once");
    assert_eq!(
        bench.answers(gpu("GPU-d", 4, &[(1, 0)])),
        ["+GPU-d 1/0: xid 95 x1"]
    );
}

/// Of a GPU that has not even told its UUID, only the place in the driver's list is known.
#[test]
fn a_gpu_without_a_name_is_the_one_in_its_place() {
    let mut bench = Bench::built_in();
    let unread = EventKind::Failed(failed(2, Code::UNKNOWN));
    let report = |bench: &mut Bench, index, kind| {
        let gpu = GpuRef { index, uuid: None };
        bench.observe(Observation::Event {
            gpu: &gpu,
            instance: None,
            kind,
        })
    };
    assert_eq!(report(&mut bench, 2, &unread), ["+GPU-b: unwatched x1"]);
    assert_eq!(report(&mut bench, 3, &unread), [""; 0]);
    assert_eq!(bench.healthy(), [true, false, false, false]);
    // One that lost its place is not meant.
    bench.fails(1, Code::GPU_IS_LOST);
    assert_eq!(report(&mut bench, 1, &unread), [""; 0]);
    assert_eq!(
        bench.answers(gpu("GPU-c", 3, &[])),
        ["+GPU-c: unwatched x1"]
    );
}

#[test]
fn after_dropped_events_all_gpus_are_looked_at() {
    let mut bench = Bench::built_in();
    assert_eq!(bench.looks(), [""; 0]);
    bench.at(10).event(A, None, &EventKind::Dropped(3));
    assert_eq!(bench.looks(), [A, B]);
}

/// Nobody knows what it would offer: but that it is there and lost is told.
#[test]
fn a_gpu_that_was_lost_before_it_was_known_is_told_of() {
    let mut bench = Bench::built_in();
    assert_eq!(bench.fails(3, Code::GPU_IS_LOST), ["+GPU at 3: lost x1"]);
    assert_eq!(bench.fails(3, Code::GPU_IS_LOST), [""; 0]);
    assert_eq!(bench.healthy(), [true; 4]);
    let condition = bench.health.condition();
    assert_eq!(condition.status, Status::True);
    assert_eq!(
        condition.message,
        "GPU 3 (unknown): the GPU does not answer"
    );
    let policy = |text: &str| Policy::parse("policy", text.as_bytes()).unwrap();
    let never = policy("{version: v1, conditions: {lost: {unhealthy: never}}}");
    let told = bench.health.set_policy(never, bench.now);
    assert_eq!(told.len(), 1);
    assert_eq!(bench.health.condition().status, Status::False);
    bench.health.set_policy(Policy::default(), bench.now);
    bench.fails(3, Code::GPU_IS_LOST);
    assert_eq!(
        bench.at(60).answers(gpu("GPU-c", 3, &[])),
        ["-GPU at 3: lost x1"]
    );
    assert_eq!(bench.health.condition().status, Status::False);
}
