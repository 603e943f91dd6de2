//! What fails, fails alone, is one change, and comes back.

use std::time::{Duration, Instant};

use device_plugin::hardware::{Cause, Driver};
use nvml::EventKind;
use sim_nvml::Code;
use sim_nvml::model::Effect;
use sim_nvml::presets::NodeSpec;

use crate::{Rig, generation};

#[tokio::test]
async fn a_lost_gpu_keeps_its_layout_and_comes_back() {
    let rig = Rig::of("h100-sxm5-80gb", 3);
    rig.watching(3).await;
    rig.as_another(1, |device| {
        device.set_mig_mode(true)?;
        let made = device.create_gpu_instance(19, None)?;
        device.create_compute_instance(made.id, 0, None)
    });
    let before = rig.until_shown("whole 1g.10gb whole").await;
    rig.sim.lose(1).unwrap();
    let lost = rig.until_shown("whole Lost whole").await;
    assert_eq!(lost.gpus()[1].gpu, before.gpus()[1].gpu);
    let text = lost.gpus()[1].trouble.as_ref().unwrap().to_string();
    assert!(
        text.contains("GPU 1") && text.contains("GPU_IS_LOST"),
        "{text}"
    );
    rig.until_event(|event| matches!(event.kind, EventKind::Lost(_)))
        .await;
    // The reset that brings it back takes its instances.
    rig.sim.reset(1).unwrap();
    rig.until_shown("whole - whole").await;
    assert_eq!(rig.count_of(|kind| matches!(kind, EventKind::Lost(_))), 1);
    // Its events are read again.
    rig.watching_again(1).await;
    rig.sim.xid(1, 43, None).unwrap();
    rig.until_event(|event| event.kind == EventKind::Xid(43))
        .await;
}

#[tokio::test]
async fn a_gpu_off_the_bus_comes_back_with_the_reboot() {
    let rig = Rig::of("h100-sxm5-80gb", 3);
    rig.watching(3).await;
    rig.until_shown("whole whole whole").await;
    rig.sim.fall_off(0).unwrap();
    rig.until_shown("Lost whole whole").await;
    rig.sim.reboot().unwrap();
    rig.until_shown("whole whole whole").await;
}

#[tokio::test]
async fn a_call_that_hangs_costs_its_gpu_until_it_returns() {
    let rig = Rig::of("h100-sxm5-80gb", 2);
    rig.watching(2).await;
    rig.until_shown("whole whole").await;
    let hang = rig.inject("nvmlDeviceGetMigMode", Some(0), Effect::Hang);
    // Nobody asks it anything until something happens to it.
    rig.sim.xid(0, 43, None).unwrap();
    // Meanwhile the other one's changes are seen.
    rig.as_another(1, |device| device.set_mig_mode(true));
    rig.until_shown("whole -").await;
    rig.until_shown("Hung -").await;
    rig.sim.clear(hang).unwrap();
    rig.until_shown("whole -").await;
}

#[tokio::test]
async fn a_driver_goes_and_comes_back() {
    let rig = Rig::of("h100-sxm5-80gb", 2);
    rig.watching(2).await;
    let before = rig.until_shown("whole whole").await;
    rig.sim.unload_driver().unwrap();
    let gone = rig.until_shown("DriverGone DriverGone").await;
    assert!(matches!(gone.driver(), Driver::Gone { .. }));
    rig.sim.load_driver().unwrap();
    let back = rig.until_shown("whole whole").await;
    assert!(generation(&back) > generation(&before));
    rig.watching_again(1).await;
    rig.sim.xid(1, 43, None).unwrap();
    rig.until_event(|event| event.kind == EventKind::Xid(43))
        .await;
}

#[tokio::test]
async fn a_driver_comes_late() {
    let spec = NodeSpec::uniform("h100-sxm5-80gb", 2).unwrap();
    let rig = Rig::new(&spec, |sim| sim.unload_driver().unwrap());
    let without = rig
        .until("nothing is said", |i| *i.driver() != Driver::Unknown)
        .await;
    assert!(matches!(without.driver(), Driver::Gone { .. }));
    assert!(without.gpus().is_empty());
    // The pauses between attempts have grown by now.
    tokio::time::sleep(Duration::from_secs(4)).await;
    rig.sim.load_driver().unwrap();
    rig.until_shown("whole whole").await;
}

#[tokio::test]
async fn a_mode_that_needs_no_reset_does_not_outlive_the_driver() {
    let rig = Rig::of("h100-sxm5-80gb", 1);
    rig.watching(1).await;
    rig.as_another(0, |device| device.set_mig_mode(true));
    rig.until_shown("-").await;
    rig.sim.unload_driver().unwrap();
    // No driver is loaded under a library that is open, and nobody would notice.
    rig.until_shown("DriverGone").await;
    rig.sim.load_driver().unwrap();
    rig.until_shown("whole").await;
}

/// Case 8 of the issue.
#[tokio::test]
async fn events_that_cannot_be_read_are_one_change_and_the_driver_is_opened_anew() {
    let rig = Rig::of("h100-sxm5-80gb", 1);
    rig.watching(1).await;
    let before = generation(&*rig.until_shown("whole").await).unwrap();
    let begun = Instant::now();
    let fault = rig.inject("nvmlEventSetWait_v2", None, Effect::Fail(Code::UNKNOWN));
    rig.until("never opened anew", |i| {
        generation(i).is_some_and(|g| g > before)
    })
    .await;
    // It does not help, and is not tried over and over.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let now = rig.hardware.inventory().borrow().clone();
    // After three seconds, then with pauses of three (how long events must be unreadable), 4, 8, 16 and more.
    let due = [3, 6, 10, 18, 34, 66].map(Duration::from_secs);
    let due = due.iter().filter(|due| begun.elapsed() >= **due).count() as u64;
    assert!(generation(&now).unwrap() <= before + due);
    assert_eq!(rig.count_of(|kind| matches!(kind, EventKind::Failed(_))), 1);
    // Everything but events is still seen.
    rig.as_another(0, |device| device.set_mig_mode(true));
    rig.until_shown("-").await;
    rig.sim.clear(fault).unwrap();
    rig.events.lock().unwrap().clear();
    rig.until_event(|event| event.kind == EventKind::Watching)
        .await;
}

#[tokio::test]
async fn an_error_without_a_name_is_a_gpu_without_an_answer() {
    let rig = Rig::of("h100-sxm5-80gb", 2);
    rig.watching(2).await;
    rig.until_shown("whole whole").await;
    let fault = rig.inject("nvmlDeviceGetName", Some(1), Effect::Fail(Code::UNKNOWN));
    rig.sim.xid(1, 43, None).unwrap();
    let inventory = rig
        .until("never in trouble", |i| i.gpus()[1].trouble.is_some())
        .await;
    assert_eq!(
        inventory.gpus()[1].trouble.as_ref().unwrap().cause,
        Cause::NoAnswer
    );
    assert!(inventory.gpus()[0].trouble.is_none());
    rig.sim.clear(fault).unwrap();
    rig.until_shown("whole whole").await;
}
