//! Meters as functions of time and load.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::{model::Workload, presets::NodeSpec};

const SECOND: u64 = 1_000_000;

fn node(board: &str) -> Node {
    NodeSpec::uniform(board, 1).unwrap().build(0).unwrap()
}

fn workload(load: Load, instance: Option<u32>) -> Workload {
    Workload {
        pid: 5_000_000,
        start: None,
        name: "train".into(),
        gpu: 0,
        instance,
        compute: instance.map(|_| 0),
        memory_mib: 10,
        load,
        graphics: false,
        mps: false,
        since_us: 0,
    }
}

/// The node with a change made at a moment, as the store makes it.
fn changed(before: &Node, now_us: u64, change: impl FnOnce(&mut Node)) -> Node {
    let mut after = before.clone();
    change(&mut after);
    after.settle(before, now_us);
    after
}

#[test]
fn an_idle_gpu_draws_its_idle_power() {
    let node = node("h100-sxm5-80gb");
    let meters = node.meters_at(0, 10 * SECOND);
    // 70 W for 10 s are 700 J.
    assert_eq!(meters.energy_uj, 700_000_000);
    assert_eq!(meters.whole, Load::default());
    let reading = node.reading(0, 10 * SECOND);
    assert_eq!(
        (reading.gpu_percent, reading.pstate, reading.reasons),
        (0, 8, reason::IDLE)
    );
    assert_eq!(
        reading.clocks,
        ClockReading {
            graphics: 345,
            memory: 2619,
            video: 765
        }
    );
}

#[test]
fn a_full_load_draws_the_limit_and_heats_up() {
    let idle = node("h100-sxm5-80gb");
    let full = Load {
        sm: 1.0,
        dram: 1.0,
        ..Load::default()
    };
    let busy = changed(&idle, 10 * SECOND, |node| {
        node.workloads.push(workload(full, None))
    });
    let later = busy.meters_at(0, 20 * SECOND);
    // 700 J idle, then 700 W for 10 s.
    assert_eq!(later.energy_uj, 7_700_000_000);
    assert_eq!(later.whole.sm, 10.0);
    let soon = busy.reading(0, 11 * SECOND).temperature;
    let late = busy.reading(0, 200 * SECOND);
    assert!(soon < late.temperature, "{soon} {late:?}");
    assert_eq!(
        (late.temperature, late.gpu_percent, late.pstate),
        (65, 100, 0)
    );
    assert_eq!(late.clocks.graphics, 1980);
}

#[test]
fn a_lower_power_limit_costs_clock() {
    let mut node = node("h100-sxm5-80gb");
    node.workloads.push(workload(
        Load {
            sm: 1.0,
            dram: 1.0,
            ..Load::default()
        },
        None,
    ));
    node.gpus[0].modes.power_limit_mw = 385_000;
    let rates = node.rates(0);
    // Half of the span between 70 and 700 W is left, so half of the clock.
    assert_eq!((rates.power_mw, rates.clocks.graphics), (385_000, 990));
    assert_eq!(rates.reasons, reason::SW_POWER_CAP);
}

#[test]
fn throttles_lower_clocks_and_say_why() {
    let mut node = node("h100-sxm5-80gb");
    node.workloads.push(workload(Load::compute(50), None));
    node.gpus[0].throttle.hw_thermal = true;
    let rates = node.rates(0);
    assert_eq!(rates.clocks.graphics, 990);
    assert_eq!(rates.reasons, reason::HW_THERMAL | reason::HW_SLOWDOWN);
    assert_eq!(node.reading(0, 1000 * SECOND).temperature, 89);
    let held = node.meters_at(0, 3 * SECOND).violation_us;
    assert_eq!(held, (0, 3_000_000));
}

#[test]
fn locked_clocks_hold_but_not_against_a_throttle() {
    let mut node = node("h100-sxm5-80gb");
    node.gpus[0].modes.locked_graphics = Some((1200, 1500));
    assert_eq!(
        node.rates(0).clocks.graphics,
        1200,
        "a lock raises an idle clock"
    );
    node.workloads.push(workload(Load::compute(50), None));
    assert_eq!(node.rates(0).clocks.graphics, 1500);
    node.gpus[0].throttle.power_brake = true;
    assert_eq!(node.rates(0).clocks.graphics, 990);
}

#[test]
fn an_instance_counts_for_its_share_of_the_gpu() {
    let mut node = node("h100-sxm5-80gb");
    node.set_mig_mode(0, true, 0, 0).unwrap();
    let instance = node.create_gpu_instance(0, 14, None, 0, 0).unwrap();
    node.create_compute_instance(0, instance, 1, None, 0)
        .unwrap();
    node.workloads.push(workload(
        Load {
            sm: 1.0,
            ..Load::default()
        },
        Some(instance),
    ));
    let rates = node.rates(0);
    assert_eq!(rates.instances[&instance].sm, 1.0);
    // 32 of 132 multiprocessors.
    assert!((rates.whole.sm - 32.0 / 132.0).abs() < 1e-12, "{rates:?}");
    let meters = node.meters_at(0, 2 * SECOND);
    assert_eq!(meters.instances[&instance].sm, 2.0);
}

#[test]
fn a_meter_of_an_instance_ends_with_it() {
    let mut before = node("h100-sxm5-80gb");
    before.set_mig_mode(0, true, 0, 0).unwrap();
    let instance = before.create_gpu_instance(0, 9, None, 0, 0).unwrap();
    before
        .create_compute_instance(0, instance, 2, None, 0)
        .unwrap();
    before.workloads.push(workload(
        Load {
            sm: 1.0,
            ..Load::default()
        },
        Some(instance),
    ));
    let after = changed(&before, SECOND, |node| {
        node.workloads.clear();
        node.destroy_compute_instance(0, instance, 0, 0).unwrap();
        node.destroy_gpu_instance(0, instance, 0).unwrap();
    });
    assert!(after.gpus[0].meters.instances.is_empty());
    let again = changed(&after, SECOND, |node| {
        node.create_gpu_instance(0, 9, None, 0, 0).unwrap();
    });
    assert_eq!(
        again.meters_at(0, SECOND).instances[&instance],
        Load::default()
    );
}

#[test]
fn readings_depend_on_the_moment_alone_and_stay_in_range() {
    let mut node = node("a100-sxm4-40gb");
    node.workloads.push(workload(Load::compute(60), None));
    let mut seen = std::collections::BTreeSet::new();
    for tick in 0..200 {
        let now = 1000 * SECOND + tick * NOISE_PERIOD_US;
        let reading = node.reading(0, now);
        assert_eq!(reading, node.clone().reading(0, now));
        assert!((58..=62).contains(&reading.gpu_percent), "{reading:?}");
        assert!(reading.power_mw <= 400_000);
        seen.insert(reading.gpu_percent);
    }
    assert!(seen.len() > 1, "a busy meter wobbles");
}

#[test]
fn a_reload_starts_energy_anew() {
    let before = node("h100-sxm5-80gb");
    let after = changed(&before, 10 * SECOND, |node| node.load_driver(10 * SECOND));
    assert_eq!(after.meters_at(0, 11 * SECOND).energy_uj, 70_000_000);
}
