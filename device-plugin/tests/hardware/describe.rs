//! What is known of a GPU that answers.

use std::time::{Duration, Instant};

use device_plugin::hardware::Driver;
use rstest::rstest;
use sim_nvml::Code;
use sim_nvml::model::Effect;
use sim_nvml::presets::NodeSpec;

use crate::{HANG, Rig, fault, shown};

#[tokio::test]
async fn the_first_inventory_is_complete() {
    let started = Instant::now();
    let rig = Rig::preset("dgx-h100");
    let mut first = rig
        .until("no driver", |i| *i.driver() != Driver::Unknown)
        .await;
    // GPUs that take longer than two seconds to answer are not waited for.
    if started.elapsed() >= Duration::from_secs(2) {
        first = rig.until("not all", |i| i.gpus().len() == 8).await;
    }
    assert_eq!(first.gpus().len(), 8);
    assert!(matches!(first.driver(), Driver::Present { version, .. } if version == "580.105.08"));
    let gpu = &first.gpus()[5];
    assert_eq!(gpu.gpu.uuid, rig.uuid(5));
    // The file of the preset, and the vendor's numbers.
    assert_eq!(gpu.gpu.bus_id, "00000000:A8:00.0");
    assert_eq!(gpu.gpu.model, "NVIDIA H100 80GB HBM3");
    assert_eq!(
        (gpu.gpu.index, gpu.gpu.minor, gpu.gpu.numa_node),
        (5, Some(5), Some(1))
    );
    assert_eq!(gpu.compute_capability, Some((9, 0)));
    assert!(gpu.memory_bytes.is_some_and(|bytes| bytes > 79 << 30));
    assert!(gpu.mig_capable && !gpu.gpu.mig_enabled);
}

#[tokio::test]
async fn mig_devices_are_described() {
    let rig = Rig::of("h100-sxm5-80gb", 1);
    rig.until_shown("whole").await;
    rig.as_another(0, |device| {
        device.set_mig_mode(true)?;
        // 3g.40gb, and one of its three compute slices.
        device.create_gpu_instance(9, None)?;
        device.create_compute_instance(2, 0, None)
    });
    let inventory = rig.until_shown("1c.3g.40gb").await;
    let mig = &inventory.gpus()[0].gpu.mig[0];
    assert!(mig.uuid.starts_with("MIG-"));
    assert_eq!(
        (mig.index, mig.gpu_instance, mig.compute_instance),
        (0, 2, 0)
    );
    let attributes = mig.attributes.unwrap();
    assert_eq!(
        (
            attributes.memory_mib,
            attributes.gpu_slices,
            attributes.compute_slices
        ),
        (40448, 3, 1)
    );
}

#[tokio::test]
async fn a_display_gpu_is_left_out() {
    let rig = Rig::preset("dgx-station-a100");
    let inventory = rig.until_shown("whole whole whole whole").await;
    let indices: Vec<u32> = inventory
        .gpus()
        .iter()
        .map(|known| known.gpu.index)
        .collect();
    assert_eq!(indices, [0, 1, 2, 4]);
    assert_eq!(inventory.unknown().count(), 0);
}

/// Case 9 of the issue.
#[rstest]
#[case("nvmlDeviceGetMinorNumber")]
#[case("nvmlDeviceGetMemoryInfo*")]
#[case("nvmlDeviceGetCudaComputeCapability")]
#[case("nvmlDeviceGetMigMode")]
#[tokio::test]
async fn what_is_not_supported_is_left_out(#[case] symbol: &str) {
    let spec = NodeSpec::uniform("h100-sxm5-80gb", 1).unwrap();
    let rig = Rig::new(&spec, |sim| {
        let none = fault(symbol, None, Effect::Fail(Code::NOT_SUPPORTED));
        sim.inject(none).unwrap();
    });
    let inventory = rig.until_shown("whole").await;
    let known = &inventory.gpus()[0];
    let left_out = [
        ("nvmlDeviceGetMinorNumber", known.gpu.minor.is_none()),
        ("nvmlDeviceGetMemoryInfo*", known.memory_bytes.is_none()),
        (
            "nvmlDeviceGetCudaComputeCapability",
            known.compute_capability.is_none(),
        ),
        ("nvmlDeviceGetMigMode", !known.mig_capable),
    ];
    for (call, is_none) in left_out {
        assert_eq!(is_none, call == symbol, "{call}");
    }
}

#[tokio::test]
async fn a_gpu_that_never_answers_is_unknown_and_holds_up_no_other() {
    let spec = NodeSpec::uniform("h100-sxm5-80gb", 3).unwrap();
    let rig = Rig::new(&spec, |sim| sim.lose(1).unwrap());
    rig.until("not one unknown beside two", |inventory| {
        let unknown = inventory.unknown().map(|(index, _)| index);
        shown(inventory) == "whole whole" && unknown.eq([1])
    })
    .await;
    rig.sim.reset(1).unwrap();
    let inventory = rig.until_shown("whole whole whole").await;
    assert_eq!(inventory.unknown().count(), 0);
}

#[tokio::test]
async fn a_gpu_that_hangs_at_the_start_holds_up_no_other() {
    let spec = NodeSpec::uniform("h100-sxm5-80gb", 3).unwrap();
    let rig = Rig::new(&spec, |sim| {
        sim.inject(fault("nvmlDeviceGetName", Some(1), Effect::Hang))
            .unwrap();
    });
    let started = Instant::now();
    let first = rig.until_shown("whole whole").await;
    // Told in time, or at least before the hang is noticed.
    let is_in_time = started.elapsed() < HANG;
    assert!(is_in_time || first.unknown().count() == 0, "{first:#?}");
    rig.until("the hang is not noticed", |i| i.unknown().count() == 1)
        .await;
    rig.sim.clear_all().unwrap();
    rig.until_shown("whole whole whole").await;
}
