//! What the driver reports: whom it hits, and what storms of it do.

use rstest::rstest;

use super::*;

#[test]
fn a_transient_xid_ends_by_itself_and_a_fatal_one_does_not() {
    let mut bench = Bench::built_in();
    assert_eq!(bench.at(10).xid(A, 94), ["+GPU-a: xid 94 x1"]);
    assert_eq!(bench.xid(B, 95), ["+GPU-b: xid 95 x1"]);
    assert_eq!(bench.healthy(), [false; 4]);
    // It is looked at at once, in between, and when it has been quiet for five minutes.
    let mut looks = Vec::new();
    while let Some(due) = bench.due().filter(|due| *due <= 400) {
        bench.at(due);
        looks.extend(bench.looks().contains(&A.to_owned()).then_some(due));
        for gpu in bench.looks() {
            let notices = bench.look(&gpu, well());
            if due < 310 {
                assert_eq!(notices, [""; 0], "at {due}");
            } else if gpu == A {
                assert_eq!(notices, ["-GPU-a: xid 94 x1"]);
            }
        }
        assert_eq!(bench.is_healthy(A), due >= 310, "at {due}");
    }
    assert_eq!(looks[..3], [10, 40, 70]);
    assert_eq!(looks.last(), Some(&310));
    bench.at(DAY).look(B, well());
    assert_eq!(bench.healthy(), [true, false, false, false]);
    assert_eq!(
        bench.health.verdict(&device(B, Some((2, 0)))),
        Verdict::Unhealthy(vec![Reason {
            cause: Cause::Xid(95),
            until: Until::Reset,
        }])
    );
}

/// As NVIDIA's plugin, which ignores 13, 31, 43, 45, 68 and 109; with a way back where the vendor asks for no reset.
#[rstest]
#[case::ignored(&[13, 31, 43, 45, 68, 109], true, true)]
#[case::no_reset(&[63, 92, 94, 121, 137, 154, 157, 160, 161], false, true)]
#[case::reset(&[46, 62, 64, 95, 119, 120, 136, 140, 143, 155, 156, 158], false, false)]
#[case::reboot(&[79], false, false)]
#[case::workflow(&[48, 74, 144, 145, 146, 147, 148, 149, 150], false, false)]
#[case::not_in_the_catalogue(&[0, 1, 8, 159, 162, 1000, u64::MAX], false, false)]
fn xids_by_default(#[case] xids: &[u64], #[case] ignored: bool, #[case] recovers: bool) {
    for &number in xids {
        let mut bench = Bench::built_in();
        bench.xid(A, number);
        assert_eq!(bench.is_healthy(A), ignored, "XID {number}");
        bench.look(A, well());
        bench.at(300).look(A, well());
        assert_eq!(bench.is_healthy(A), recovers, "XID {number} later");
    }
}

#[rstest]
#[case(A, None, [false, true, true, true])]
#[case(B, None, [true, false, false, false])]
#[case(B, Some((1, 1)), [true, true, false, true])]
#[case(B, Some((9, 0)), [true, true, true, true])]
#[case("GPU-unknown", None, [true; 4])]
fn whom_an_event_hits(
    #[case] gpu: &str,
    #[case] instance: Option<(u32, u32)>,
    #[case] healthy: [bool; 4],
) {
    let mut bench = Bench::built_in();
    bench.event(gpu, instance, &EventKind::Xid(95));
    assert_eq!(bench.healthy(), healthy);
}

#[test]
fn harmless_and_transient_trouble_clears_nothing_fatal() {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    for number in [13, 31, 94] {
        bench.xid(A, number);
    }
    bench.look(A, well());
    assert_eq!(bench.at(300).look(A, well()), ["-GPU-a: xid 94 x1"]);
    for kind in [
        EventKind::Watching,
        EventKind::SingleBitEcc,
        EventKind::MigConfigChange,
    ] {
        bench.event(A, None, &kind);
        bench.look(A, well());
    }
    assert!(!bench.is_healthy(A));
}

#[test]
fn a_storm_is_one_change_and_is_not_looked_at_all_the_time() {
    let mut bench = Bench::built_in();
    bench.at(100);
    let mut looks = 0;
    for n in 0..1000 {
        // One every 10 ms.
        bench.now += Duration::from_millis(10);
        let notices = bench.event(B, Some((1, 0)), &EventKind::Xid(94));
        if n == 0 {
            assert_eq!(notices, ["+GPU-b 1/0: xid 94 x1"]);
        } else {
            assert_eq!(notices, [""; 0]);
        }
        for gpu in bench.looks() {
            looks += 1;
            assert_eq!(bench.look(&gpu, well()), [""; 0]);
        }
    }
    // At once, then every second of ten.
    assert!((10..=11).contains(&looks), "{looks}");
    // The last one was at 110 s.
    assert_eq!(bench.at(409).look(B, well()), [""; 0]);
    assert_eq!(bench.at(410).look(B, well()), ["-GPU-b 1/0: xid 94 x1000"]);
}

/// Looks that take a while, under a storm of what means nothing: still one a second, and they find what is wrong.
#[test]
fn slow_looks_in_a_storm() {
    let mut bench = Bench::built_in();
    bench.at(100);
    let mut asked = None;
    let mut looks = 0;
    for n in 0..1000 {
        bench.now += Duration::from_millis(10);
        assert_eq!(bench.xid(A, 31), [""; 0]);
        match asked {
            None if bench.looks() == [A] => asked = Some((n, bench.now)),
            // The answer takes 50 ms.
            Some((began, when)) if n == began + 5 => {
                asked = None;
                looks += 1;
                let pending = Readings {
                    remap_pending: Some(true),
                    ..well()
                };
                bench.observe(Observation::Looked {
                    gpu: A,
                    asked: when,
                    readings: Some(pending),
                });
                assert!(!bench.is_healthy(A));
            }
            _ => {}
        }
    }
    assert!((9..=11).contains(&looks), "{looks}");
}

#[test]
fn trouble_that_comes_again_has_to_stay_away_longer() {
    let mut bench =
        Bench::new("{version: v1, xids: [{xids: [94], unhealthy: untilRecheck, quiet: 10s}]}");
    let mut now = 0;
    // Ten seconds, then twice as long each time, an hour at most.
    for quiet in [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600] {
        bench.at(now).xid(A, 94);
        bench.look(A, well());
        bench.at(now + quiet - 1).look(A, well());
        assert!(!bench.is_healthy(A), "{quiet}");
        now += quiet;
        bench.at(now).look(A, well());
        assert!(bench.is_healthy(A), "{quiet}");
        now += 5;
    }
    // After ten such periods all is forgotten.
    now += 36_000;
    bench.at(now).xid(A, 94);
    bench.look(A, well());
    bench.at(now + 10).look(A, well());
    assert!(bench.is_healthy(A));
}
