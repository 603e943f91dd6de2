//! What changes is seen, with an event or without.

use nvml::{Activation, EventKind};
use rstest::rstest;
use sim_nvml::Code;
use sim_nvml::model::Effect;
use sim_nvml::presets::NodeSpec;

use crate::{Rig, generation};

/// 1g.10gb twice, one after the other, then none, then whole.
async fn through_layouts(rig: &Rig) {
    rig.until_shown("whole whole").await;
    rig.as_another(1, |device| device.set_mig_mode(true));
    rig.until_shown("whole -").await;
    let first = rig.as_another(1, |device| {
        let made = device.create_gpu_instance(19, None)?;
        device.create_compute_instance(made.id, 0, None)?;
        Ok(made.id)
    });
    rig.until_shown("whole 1g.10gb").await;
    let second = rig.as_another(1, |device| {
        let made = device.create_gpu_instance(9, None)?;
        device.create_compute_instance(made.id, 2, None)?;
        Ok(made.id)
    });
    rig.until("no second device", |i| i.gpus()[1].gpu.mig.len() == 2)
        .await;
    rig.as_another(1, move |device| {
        for id in [first, second] {
            device.destroy_compute_instance(id, 0)?;
            device.destroy_gpu_instance(id)?;
        }
        Ok(())
    });
    rig.until_shown("whole -").await;
    rig.as_another(1, |device| device.set_mig_mode(false));
    rig.until_shown("whole whole").await;
}

#[tokio::test]
async fn layouts_are_seen_by_their_events() {
    let rig = Rig::of("h100-sxm5-80gb", 2);
    rig.watching(2).await;
    through_layouts(&rig).await;
    assert!(rig.count_of(|kind| *kind == EventKind::MigConfigChange) > 0);
}

/// A GPU without events, and one whose events this process may not read.
#[rstest]
#[case("nvmlDeviceGetSupportedEventTypes", Code::NOT_SUPPORTED)]
#[case("nvmlDeviceRegisterEvents", Code::NO_PERMISSION)]
#[tokio::test]
async fn layouts_are_seen_without_events(#[case] symbol: &str, #[case] code: Code) {
    let spec = NodeSpec::uniform("h100-sxm5-80gb", 2).unwrap();
    let rig = Rig::new(&spec, |sim| {
        sim.inject(crate::fault(symbol, None, Effect::Fail(code)))
            .unwrap();
    });
    through_layouts(&rig).await;
    assert_eq!(rig.count_of(|kind| *kind == EventKind::MigConfigChange), 0);
    // That opening anew does not help is known.
    let inventory = rig.hardware.inventory().borrow().clone();
    assert_eq!(generation(&inventory), Some(1));
}

/// A reset by somebody else takes the instances away, and no event says so: the files under `/proc` do.
#[tokio::test]
async fn instances_that_vanish_silently_are_missed() {
    let rig = Rig::of("a100-sxm4-40gb", 2);
    rig.watching(2).await;
    let mode = rig.as_another(0, |device| device.set_mig_mode(true));
    assert_eq!(mode, Activation::Done);
    rig.as_another(0, |device| {
        let made = device.create_gpu_instance(19, None)?;
        device.create_compute_instance(made.id, 0, None)
    });
    rig.until_shown("1g.5gb whole").await;
    rig.sim.reset(0).unwrap();
    rig.until_shown("- whole").await;
}

#[tokio::test]
async fn events_are_passed_on_with_their_place() {
    let rig = Rig::of("h100-sxm5-80gb", 2);
    rig.watching(2).await;
    rig.as_another(1, |device| {
        device.set_mig_mode(true)?;
        let made = device.create_gpu_instance(9, None)?;
        device.create_compute_instance(made.id, 2, None)
    });
    rig.sim.xid(1, 31, Some((2, 0))).unwrap();
    let event = rig
        .until_event(|event| event.kind == EventKind::Xid(31))
        .await;
    assert_eq!(event.gpu.uuid.as_deref(), Some(rig.uuid(1).as_str()));
    assert_eq!(
        (event.gpu_instance, event.compute_instance),
        (Some(2), Some(0))
    );
}

/// A board is pulled and comes back: neither is an event.
#[tokio::test]
async fn boards_come_and_go() {
    let rig = Rig::of("h100-sxm5-80gb", 3);
    rig.watching(3).await;
    rig.until_shown("whole whole whole").await;
    let remove = |removed: bool| {
        let store = rig.sim.store();
        store
            .update(move |node| node.gpus[1].removed = removed)
            .unwrap();
    };
    // The one behind it is about to be looked at, at a place that the list no longer has.
    rig.sim.xid(2, 31, None).unwrap();
    rig.until_event(|event| event.kind == EventKind::Xid(31))
        .await;
    remove(true);
    // Its place in the list is another's now, and it sorts behind.
    let inventory = rig
        .until("the board is not missed", |i| {
            i.gpus().iter().any(|g| g.trouble.is_some())
        })
        .await;
    let gone = inventory.gpu(&rig.uuid(1)).unwrap();
    assert!(gone.trouble.is_some(), "{inventory:#?}");
    let others = [rig.uuid(0), rig.uuid(2)];
    assert!(
        others
            .iter()
            .all(|uuid| inventory.gpu(uuid).unwrap().trouble.is_none())
    );
    remove(false);
    rig.until_shown("whole whole whole").await;
}
