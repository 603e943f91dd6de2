//! A mode change by another process needs GPUs that nobody holds: not even by having the driver library open, with the
//! drivers that these nodes have.

use std::process::Command;
use std::time::Duration;

use device_plugin::hardware::Driver;
use rstest::rstest;
use sim_nvml::model::Personality;
use sim_nvml::presets::NodeSpec;

use crate::Rig;

const ROOT: &str = "LATHE_TEST_OTHER_ROOT";
const MODE: &str = "LATHE_TEST_OTHER_MODE";

/// Not a test of its own: the process that changes the mode of GPU 0, and makes an instance when it is on.
#[test]
fn other_process() {
    let Ok(root) = std::env::var(ROOT) else {
        return;
    };
    let on = std::env::var(MODE).unwrap() == "on";
    let driver = nvml::Driver::open(&nvml::Options::at(root)).unwrap();
    let gpu = driver.gpu(0);
    let changed = gpu.run(move |device| {
        for instance in device.layout()?.instances {
            device.destroy_compute_instance(instance.id, 0)?;
            device.destroy_gpu_instance(instance.id)?;
        }
        device.set_mig_mode(on)
    });
    assert_eq!(changed.unwrap(), nvml::Activation::Done);
    if on {
        // Another batch: the change may have reset the GPU, and with it its handle.
        let made = gpu.run(|device| {
            let made = device.create_gpu_instance(19, None)?;
            device.create_compute_instance(made.id, 0, None)
        });
        made.unwrap();
    }
}

fn change(rig: &Rig, mode: &str) -> bool {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "pause::other_process"])
        .env(ROOT, rig.sim.root())
        .env(MODE, mode)
        .output()
        .unwrap()
        .status;
    status.success()
}

fn node(board: &str) -> NodeSpec {
    NodeSpec {
        personality: Some(Personality {
            clients_hold: true,
            ..Personality::default()
        }),
        ..NodeSpec::uniform(board, 2).unwrap()
    }
}

#[rstest]
#[case("a100-sxm4-40gb", "1g.5gb")]
#[case("h100-sxm5-80gb", "1g.10gb")]
#[tokio::test]
async fn others_can_change_the_mode_meanwhile(#[case] board: &str, #[case] profile: &str) {
    let rig = Rig::new(&node(board), |_| {});
    rig.watching(2).await;
    rig.until_shown("whole whole").await;
    assert!(!change(&rig, "on"), "watching holds the GPUs");

    rig.hardware.pause(Duration::from_secs(600)).await.unwrap();
    let meanwhile = rig.until_shown("Reshaping Reshaping").await;
    assert!(matches!(meanwhile.driver(), Driver::Present { .. }));
    assert!(rig.hardware.driver().is_err(), "nobody opens it meanwhile");
    assert!(change(&rig, "on"));
    rig.hardware.resume();
    rig.until_shown(&format!("{profile} whole")).await;

    rig.hardware.pause(Duration::from_secs(600)).await.unwrap();
    assert!(change(&rig, "off"));
    rig.hardware.resume();
    rig.until_shown("whole whole").await;
}

#[tokio::test]
async fn a_pause_ends_by_itself() {
    let rig = Rig::of("h100-sxm5-80gb", 1);
    rig.until_shown("whole").await;
    rig.hardware
        .pause(Duration::from_millis(100))
        .await
        .unwrap();
    rig.until_shown("whole").await;
    assert!(rig.hardware.driver().is_ok());
}

#[tokio::test]
async fn gpus_without_mig_are_not_withdrawn() {
    let rig = Rig::of("t4-16gb", 2);
    rig.until_shown("whole whole").await;
    rig.hardware.pause(Duration::from_secs(600)).await.unwrap();
    let meanwhile = rig.hardware.inventory().borrow().clone();
    assert_eq!(crate::shown(&meanwhile), "whole whole");
    rig.hardware.resume();
    rig.until("never opened again", |i| crate::generation(i) == Some(2))
        .await;
}

#[tokio::test]
async fn a_driver_may_be_absent_meanwhile() {
    let rig = Rig::of("h100-sxm5-80gb", 1);
    rig.until_shown("whole").await;
    rig.hardware.pause(Duration::from_secs(600)).await.unwrap();
    rig.sim.unload_driver().unwrap();
    rig.hardware.resume();
    rig.until_shown("DriverGone").await;
    rig.hardware.pause(Duration::from_secs(600)).await.unwrap();
    rig.sim.load_driver().unwrap();
    rig.hardware.resume();
    rig.until_shown("whole").await;
}
