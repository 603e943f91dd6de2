//! What the kubelet holds follows the hardware.

use crate::rig::Setup;

/// Entries of a MIG manager's file: all GPUs whole, and cut in two ways.
const WHOLE: &str = "{devices: all, mig-enabled: false}";
const BALANCED: &str =
    "{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 1}}";

#[tokio::test]
async fn whole_gpus_are_offered_and_given() {
    let rig = Setup::new().start().await;
    rig.until("gpu 2").await;
    assert_eq!(rig.healthy("gpu"), [rig.uuid(0), rig.uuid(1)].into());
    let given = rig.kubelet().admit("a", "nvidia.com/gpu", 2).await.unwrap();
    let visible = &given.response.envs["NVIDIA_VISIBLE_DEVICES"];
    assert_eq!(*visible, format!("{},{}", rig.uuid(0), rig.uuid(1)));
    // The kubelet has the list before the plugin has its answer to the registration.
    let (_, body) = rig.until_get("/readyz", |status, _| status == 200).await;
    assert_eq!(body, "ok");
}

/// Case 4 of the issue.
#[tokio::test]
async fn layouts_come_and_go() {
    let rig = Setup::new()
        .file("flags: {migStrategy: mixed}")
        .start()
        .await;
    rig.until("gpu 2").await;
    rig.cut(BALANCED).await;
    rig.until("gpu 0, mig-1g.10gb 4, mig-2g.20gb 2, mig-3g.40gb 2")
        .await;
    let (_, page) = rig.get("/metrics").await;
    let gpus = "lathe_device_plugin_devices{health=\"healthy\",resource=\"nvidia.com/gpu\"} 0";
    assert!(page.contains(gpus), "{page}");
    rig.cut("{devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 7}}, {devices: [1], mig-enabled: false}")
        .await;
    rig.until("gpu 1, mig-1g.10gb 7, mig-2g.20gb 0, mig-3g.40gb 0")
        .await;
    rig.cut(WHOLE).await;
    rig.until("gpu 2, mig-1g.10gb 0, mig-2g.20gb 0, mig-3g.40gb 0")
        .await;
}

/// Case 1.
#[tokio::test]
async fn a_lost_gpu_costs_one_gpu() {
    let rig = Setup::of("a100-sxm4-40gb", 8).start().await;
    rig.until("gpu 8").await;
    rig.node.lose(3).unwrap();
    rig.until("gpu 7+1").await;
    assert!(!rig.healthy("gpu").contains(&rig.uuid(3)));
    for (pod, count) in [("one", 1), ("four", 4)] {
        rig.kubelet()
            .admit(pod, "nvidia.com/gpu", count)
            .await
            .unwrap();
    }
    rig.node.reset(3).unwrap();
    rig.until("gpu 8").await;
}

/// Case 2.
#[tokio::test]
async fn without_a_driver_capacity_is_withdrawn_and_comes_back() {
    let rig = Setup::new().start().await;
    rig.until("gpu 2").await;
    rig.until_so("the driver can be unloaded", |rig| {
        rig.node.unload_driver().is_ok()
    })
    .await;
    rig.until("gpu 0+2").await;
    // Looks at the GPUs may have failed before the driver was seen to go.
    rig.until_get("/readyz", |status, _| status == 503).await;
    rig.load_anew("gpu 0+2").await;
    rig.until("gpu 2").await;
}

#[tokio::test]
async fn a_driver_may_come_late() {
    let rig = Setup::new().without_driver().start().await;
    let (status, _) = rig.get("/readyz").await;
    assert_eq!(status, 503);
    assert_eq!(rig.held(), Default::default());
    rig.node.load_driver().unwrap();
    rig.until("gpu 2").await;
}

#[tokio::test]
async fn a_node_without_gpus_is_ready_and_quiet() {
    let mut rig = Setup::new()
        .without_driver()
        .node(serde_json::json!({}))
        .prepare()
        .await;
    let bus = rig.node.root().join("sys/bus/pci/devices");
    for device in std::fs::read_dir(&bus).unwrap() {
        let device = device.unwrap().path();
        std::fs::remove_file(&device)
            .or_else(|_| std::fs::remove_dir_all(&device))
            .unwrap();
    }
    rig.start_kubelet();
    rig.start_plugin().await.unwrap();
    rig.until_get("/readyz", |status, _| status == 200).await;
    // Several attempts to open the driver later it is still so.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(rig.get("/readyz").await.0, 200);
    assert_eq!(rig.events(), Vec::<String>::new());
    assert_eq!(rig.held(), Default::default());
}

/// A reset takes a layout away without an event, at times so soon that nothing in `/proc` was seen to change.
#[tokio::test]
async fn a_layout_that_is_gone_at_once() {
    let rig = Setup::new()
        .file("flags: {migStrategy: mixed}")
        .start()
        .await;
    rig.until("gpu 2").await;
    for _ in 0..4 {
        rig.cut("{devices: [1], mig-enabled: true, mig-devices: {1g.10gb: 7}}")
            .await;
        rig.until_so("the layout", |rig| rig.healthy("mig-1g.10gb").len() == 7)
            .await;
        rig.node.reset(1).unwrap();
        rig.until("gpu 1, mig-1g.10gb 0").await;
    }
}
