//! What GPUs tell when they are asked, and what that ends.

use rstest::rstest;

use super::*;

#[test]
fn a_recheck_fails_while_something_is_not_well() {
    let mut bench = Bench::built_in();
    bench.xid(A, 94);
    // The error itself is counted before the first look.
    let after = |uncorrected| Readings {
        uncorrected: Some(uncorrected),
        ..well()
    };
    bench.look(A, after(1));
    // Another one, without an event: quiet begins anew.
    assert_eq!(bench.at(200).look(A, after(2)), [""; 0]);
    assert_eq!(bench.at(300).look(A, after(2)), [""; 0]);
    let busy = Readings {
        recovery: Some(Some(RecoveryAction::DrainAndReset)),
        remap_pending: Some(true),
        ..after(2)
    };
    assert_eq!(
        bench.at(500).look(A, busy.clone()),
        ["+GPU-a: rowRemapPending x1", "+GPU-a: recoveryAction x1"]
    );
    bench.at(DAY).look(A, busy);
    assert!(!bench.is_healthy(A));
    assert_eq!(
        bench.at(DAY + 1).look(A, after(0)),
        [
            "-GPU-a: xid 94 x1",
            "-GPU-a: rowRemapPending x1",
            "-GPU-a: recoveryAction x1"
        ]
    );
    assert!(bench.is_healthy(A));
}

#[test]
fn a_gpu_that_tells_nothing_of_itself_passes_its_rechecks() {
    let mut bench = Bench::built_in();
    bench.xid(A, 94);
    bench.look(A, Readings::default());
    bench.at(300).look(A, Readings::default());
    assert!(bench.is_healthy(A));
    bench.xid(A, 95);
    bench.at(DAY).look(A, Readings::default());
    assert!(!bench.is_healthy(A));
}

#[test]
fn no_answer_passes_no_recheck_and_is_asked_again() {
    let mut bench = Bench::built_in();
    bench.xid(A, 94);
    bench.look(A, well());
    bench.at(300);
    assert_eq!(bench.no_answer(A), [""; 0]);
    assert!(!bench.is_healthy(A));
    assert_eq!(bench.due(), Some(330));
    bench.at(330).look(A, well());
    assert!(bench.is_healthy(A));
    assert_eq!(bench.due(), None);
}

#[test]
fn a_gpu_that_was_never_heard_of_is_asked_again() {
    let mut bench = Bench::built_in();
    bench.answers(gpu("GPU-c", 3, &[]));
    let gpu = "GPU-c";
    assert_eq!(bench.looks(), [gpu]);
    bench.no_answer(gpu);
    assert!(bench.health.is_silent(gpu) && !bench.health.is_silent(A));
    assert_eq!(bench.due(), Some(30));
    bench.at(30).look(gpu, well());
    assert!(!bench.health.is_silent(gpu));
    assert_eq!(bench.due(), None);
}

/// Of another event before the first one was looked at.
#[test]
fn quiet_counts_from_the_last_event() {
    let mut bench = Bench::built_in();
    let counted = |uncorrected| Readings {
        uncorrected: Some(uncorrected),
        ..well()
    };
    bench.xid(A, 94);
    bench.look(A, counted(1));
    bench.at(10).xid(A, 94);
    bench.at(15).look(A, counted(2));
    assert_eq!(bench.at(309).look(A, counted(2)), [""; 0]);
    assert_eq!(bench.at(310).look(A, counted(2)), ["-GPU-a: xid 94 x2"]);
}

#[test]
fn uncorrected_errors_by_event_or_counter_are_one_fault() {
    let uncorrected = "{version: v1, conditions: {uncorrectedEcc: {unhealthy: untilReset}}}";
    let mut bench = Bench::new(uncorrected);
    let counted = |uncorrected| Readings {
        uncorrected: Some(uncorrected),
        ..well()
    };
    bench.event(A, None, &EventKind::DoubleBitEcc);
    bench.look(A, counted(3));
    assert_eq!(bench.health.standing()[0].count, 1);
    // Since the reset there was one already.
    assert_eq!(
        bench.at(60).look(A, counted(1)),
        ["-GPU-a: uncorrectedEcc x1"]
    );
    assert_eq!(bench.look(B, counted(1)), ["+GPU-b: uncorrectedEcc x1"]);
}

#[test]
fn what_the_hardware_still_shows_is_found_after_a_restart() {
    let mut bench = Bench::built_in();
    bench.health = Health::new(Policy::default());
    let inventory = bench.inventory.clone();
    bench.observe(Observation::Inventory(&inventory));
    let shown = Readings {
        recovery: Some(Some(RecoveryAction::Reset)),
        remap_pending: Some(true),
        remap_failure: Some(true),
        uncorrected: Some(7),
        thermal: Some(true),
        ..well()
    };
    assert_eq!(
        bench.look(A, shown),
        [
            "+GPU-a: rowRemapPending x1",
            "+GPU-a: rowRemapFailure x1",
            "+GPU-a: recoveryAction x1"
        ]
    );
    // The reset remaps the rows that can be.
    let reset = Readings {
        remap_failure: Some(true),
        ..well()
    };
    assert_eq!(
        bench.at(60).look(A, reset),
        ["-GPU-a: rowRemapPending x1", "-GPU-a: recoveryAction x1"]
    );
    bench.at(DAY).look(A, well());
    assert_eq!(
        bench.health.verdict(&device(A, None)),
        Verdict::Unhealthy(vec![Reason {
            cause: Cause::RowRemapFailure,
            until: Until::Replaced,
        }])
    );
}

#[test]
fn what_only_a_replacement_ends() {
    let replaced = "{version: v1, xids: [{xids: [64], unhealthy: untilReplaced}]}";
    let mut bench = Bench::new(replaced);
    bench.xid(A, 64);
    let failed = |failed| Readings {
        remap_failure: failed,
        ..well()
    };
    bench.look(B, failed(Some(true)));
    for gpu in [A, B] {
        bench.observe(Observation::Reset { gpu });
        bench.at(60).look(gpu, failed(None));
        assert!(!bench.is_healthy(gpu));
    }
}

/// Handles that were valid when the look began are not any more.
#[test]
fn a_reset_in_the_middle_of_a_look_is_seen_by_the_next() {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    let counted = |uncorrected, energy_mj| Readings {
        uncorrected,
        energy_mj,
        ..well()
    };
    bench.at(30).look(A, counted(Some(1), Some(1_000_000)));
    bench.at(60).look(A, counted(None, None));
    assert!(!bench.is_healthy(A));
    let after = counted(Some(0), Some(1_000_001));
    assert_eq!(bench.at(90).look(A, after), ["-GPU-a: xid 95 x1"]);
}

/// What uses peer-to-peer access has ended; nobody has reset the GPU.
#[test]
fn a_recommendation_that_no_reset_ends_is_no_reset() {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    let recommended = |action| Readings {
        recovery: Some(Some(action)),
        ..well()
    };
    for action in [RecoveryAction::DrainP2p, RecoveryAction::Other(9)] {
        bench.at(60).look(A, recommended(action));
        assert_eq!(bench.at(120).look(A, well()), ["-GPU-a: recoveryAction x1"]);
        assert!(!bench.is_healthy(A));
    }
    // Nor does it keep a reset from being seen.
    let reset = Readings {
        energy_mj: Some(1),
        ..recommended(RecoveryAction::DrainP2p)
    };
    assert_eq!(
        bench.at(180).look(A, reset),
        ["+GPU-a: recoveryAction x1", "-GPU-a: xid 95 x1"]
    );
}

#[rstest]
#[case::energy_is_unsteady(Readings { energy_mj: Some(999_999), ..well() })]
#[case::it_is_still_wanted(Readings { energy_mj: Some(1), recovery: Some(Some(RecoveryAction::Reset)), ..well() })]
#[case::nothing_is_told(Readings::default())]
#[case::more_errors(Readings { uncorrected: Some(1), ..well() })]
fn no_reset(#[case] after: Readings) {
    assert!(!after.reset_since(&well()));
}

#[test]
fn an_imex_domain_to_recover_is_not_the_gpus_trouble() {
    let mut bench = Bench::built_in();
    let readings = Readings {
        recovery: Some(Some(RecoveryAction::RecoverImex)),
        ..well()
    };
    assert_eq!(bench.look(A, readings), [""; 0]);
}

#[test]
fn rows_that_nobody_tells_of_any_more_still_wait() {
    let mut bench = Bench::built_in();
    let pending = |pending| Readings {
        remap_pending: pending,
        ..well()
    };
    bench.look(A, pending(Some(true)));
    // MIG instances were made.
    bench.at(DAY).look(A, pending(None));
    assert!(!bench.is_healthy(A));
    bench.observe(Observation::Reset { gpu: A });
    assert_eq!(bench.at(DAY + 1).looks(), [A]);
    assert_eq!(bench.look(A, pending(None)), ["-GPU-a: rowRemapPending x1"]);
}

#[rstest]
#[case::told(None, well())]
#[case::energy(None, Readings { energy_mj: Some(400_000), ..well() })]
#[case::recovered(Some(Readings { recovery: Some(Some(RecoveryAction::Reset)), ..well() }), well())]
#[case::remapped(Some(Readings { remap_pending: Some(true), ..well() }), well())]
#[case::counter(Some(Readings { uncorrected: Some(1), ..well() }), well())]
fn a_reset_ends_what_needs_one(#[case] before: Option<Readings>, #[case] after: Readings) {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    bench.event(B, Some((1, 0)), &EventKind::Xid(95));
    if let Some(before) = &before {
        bench.look(A, before.clone());
    } else if after == well() {
        bench.observe(Observation::Reset { gpu: A });
    }
    assert!(!bench.is_healthy(A));
    bench.at(100).look(A, after);
    bench.look(B, well());
    assert_eq!(bench.healthy(), [true, false, true, true]);
}

#[test]
fn heat_is_looked_for_only_where_it_matters() {
    assert_eq!(Bench::built_in().due(), None);
    let policy = "{version: v1, interval: 10s, conditions: {thermal: {unhealthy: untilRecheck, quiet: 20s}}}";
    let health = Health::new(Policy::parse("policy", policy.as_bytes()).unwrap());
    let zero = Instant::now();
    let mut bench = Bench {
        health,
        inventory: Inventory::default(),
        zero,
        now: zero,
    };
    bench.answers(gpu(A, 1, &[]));
    let hot = |hot| Readings {
        thermal: Some(hot),
        ..well()
    };
    bench.look(A, well());
    assert_eq!(bench.due(), Some(10));
    assert_eq!(bench.at(10).look(A, hot(true)), ["+GPU-a: thermal x1"]);
    assert_eq!(bench.due(), Some(20));
    bench.at(20).look(A, hot(false));
    bench.at(30).look(A, hot(true));
    bench.at(40).look(A, hot(false));
    bench.at(50).look(A, hot(false));
    assert!(!bench.is_healthy(A));
    assert_eq!(bench.due(), Some(60));
    assert_eq!(bench.at(60).look(A, hot(false)), ["-GPU-a: thermal x1"]);
}
