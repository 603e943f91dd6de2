//! The topology is read in the background, and anew when it may be another.

use std::time::Duration;

use sim_nvml::model::Effect;
use sim_nvml::presets::NodeSpec;

use crate::{BOUND, Rig, fault};

async fn until_score(rig: &Rig, a: usize, b: usize, wanted: u32) {
    let (a, b) = (rig.uuid(a), rig.uuid(b));
    let mut changes = rig.hardware.topology_changes();
    let reached = changes.wait_for(|topology| topology.score(&a, &b) == wanted);
    match tokio::time::timeout(BOUND, reached).await {
        Ok(found) => drop(found.unwrap()),
        Err(_) => panic!("the score is {}", rig.hardware.topology().score(&a, &b)),
    }
}

#[tokio::test]
async fn links_count_while_mig_does_not_hide_them() {
    let rig = Rig::preset("dgx-h100");
    rig.watching(8).await;
    until_score(&rig, 0, 1, 1820).await;
    rig.as_another(0, |device| device.set_mig_mode(true));
    until_score(&rig, 0, 1, 20).await;
    rig.as_another(0, |device| device.set_mig_mode(false));
    until_score(&rig, 0, 1, 1820).await;
}

#[tokio::test]
async fn a_lost_gpu_leaves_the_others_theirs() {
    let rig = Rig::preset("dgx-h100");
    rig.sim.lose(3).unwrap();
    rig.until("the GPU is not missed", |inventory| {
        let troubles = inventory.gpus().iter().filter(|g| g.trouble.is_some());
        troubles.count() + inventory.unknown().count() == 1
    })
    .await;
    until_score(&rig, 0, 1, 1820).await;
    until_score(&rig, 2, 3, 0).await;
    rig.sim.reset(3).unwrap();
    until_score(&rig, 2, 3, 1820).await;
}

/// Case 5 of the issue: links that take three seconds each delay neither the inventory nor a look.
#[tokio::test]
async fn slow_links_hold_up_nothing() {
    let spec = NodeSpec::preset("dgx-h100").unwrap();
    let rig = Rig::new(&spec, |sim| {
        let slow = fault("nvmlDeviceGetNvLinkState", None, Effect::Delay(3_000_000));
        sim.inject(slow).unwrap();
    });
    rig.watching(8).await;
    rig.until_shown("whole whole whole whole whole whole whole whole")
        .await;
    assert_eq!(rig.hardware.topology().score(&rig.uuid(0), &rig.uuid(1)), 0);
    // Eighteen links of three seconds each.
    let seen = tokio::time::timeout(Duration::from_secs(50), async {
        rig.as_another(7, |device| device.set_mig_mode(true));
        rig.until_shown("whole whole whole whole whole whole whole -")
            .await;
    });
    seen.await.unwrap();
    assert_eq!(rig.hardware.topology().score(&rig.uuid(0), &rig.uuid(1)), 0);
    rig.sim.clear_all().unwrap();
    until_score(&rig, 0, 1, 1820).await;
}
