//! What the policy makes of trouble, and what people are told.

use rstest::rstest;

use super::*;

#[test]
fn a_new_policy_holds_for_what_is_wrong_already() {
    let mut bench = Bench::built_in();
    bench.xid(A, 95);
    bench.xid(A, 94);
    let policy = "{version: v1, xids: [{xids: [94], unhealthy: never}, {xids: [95], unhealthy: untilRecheck, quiet: 5s}]}";
    let policy = Policy::parse("policy", policy.as_bytes()).unwrap();
    let notices = bench.health.set_policy(policy.clone(), bench.now);
    let causes: Vec<_> = notices
        .iter()
        .map(|notice| (notice.cause, notice.over))
        .collect();
    assert_eq!(causes, [(Cause::Xid(94), true)]);
    assert!(!bench.is_healthy(A));
    bench.look(A, well());
    bench.at(5).look(A, well());
    assert!(bench.is_healthy(A));
    assert_eq!(bench.health.set_policy(policy, bench.now), []);
}

#[rstest]
#[case("all", "", 95, true)]
#[case("xids", "", 95, true)]
#[case("95", "", 95, true)]
#[case("94", "", 95, false)]
#[case("all", "95", 95, false)]
#[case("", "13", 13, false)]
#[case("", "13", 31, true)]
fn the_two_variables_win_over_the_policy(
    #[case] disable: &str,
    #[case] enable: &str,
    #[case] xid: u64,
    #[case] healthy: bool,
) {
    let mut bench = Bench::built_in();
    let (xids, _) = Xids::new(disable, enable);
    bench
        .health
        .set_policy(Policy::default().under(xids), bench.now);
    bench.xid(A, xid);
    assert_eq!(bench.is_healthy(A), healthy);
}

/// `all` leaves what is no check: a GPU that does not answer.
#[rstest]
#[case("all", true)]
#[case("xids", false)]
fn disabled_altogether(#[case] disable: &str, #[case] healthy: bool) {
    let mut bench = Bench::built_in();
    let (xids, _) = Xids::new(disable, "");
    bench
        .health
        .set_policy(Policy::default().under(xids), bench.now);
    let pending = Readings {
        remap_pending: Some(true),
        ..well()
    };
    bench.look(A, pending);
    assert_eq!(bench.is_healthy(A), healthy);
    bench.fails(2, Code::GPU_IS_LOST);
    assert_eq!(bench.healthy()[1..], [false; 3]);
}

#[test]
fn the_condition_names_what_is_wrong() {
    let empty = Health::new(Policy::default()).condition();
    assert_eq!(empty.status.as_str(), "Unknown");
    let mut bench = Bench::built_in();
    let good = bench.health.condition();
    assert_eq!(
        (good.status.as_str(), good.reason),
        ("False", "GPUsAreHealthy")
    );
    bench.event(B, Some((1, 0)), &EventKind::Xid(94));
    bench.xid(A, 79);
    let bad = bench.health.condition();
    assert_eq!(
        (bad.status.as_str(), bad.reason),
        ("True", "GPUsAreUnhealthy")
    );
    assert_eq!(
        bad.message,
        "GPU 1 (GPU-a): XID 79 (GPU has fallen off the bus); GPU 2 (GPU-b), MIG instance 1/0: XID 94 (contained memory error)"
    );
    // The same again is no change.
    bench.at(5).xid(A, 79);
    assert_eq!(bench.health.condition(), bad);
    for number in 200..400 {
        bench.xid(A, number);
    }
    let long = bench.health.condition().message;
    assert!(long.len() <= 1024 && long.ends_with(" more"), "{long}");
}

#[test]
fn notices_say_what_to_do() {
    let mut bench = Bench::built_in();
    let kind = EventKind::Xid(95);
    let event = Observation::Event {
        gpu: &named(1, A),
        instance: None,
        kind: &kind,
    };
    let notices = bench.health.observe(event, bench.now);
    let [notice] = notices.as_slice() else {
        panic!("{notices:?}");
    };
    assert_eq!(
        notice.text,
        "GPU 1 (GPU-a): XID 95 (uncontained memory error); reset the GPU or reboot the node to make it healthy again"
    );
    assert_eq!(notice.reason(), "GPUUnhealthy");
    assert!(notice.is_warning());
}
