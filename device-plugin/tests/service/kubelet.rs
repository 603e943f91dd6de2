//! The plugin through the kubelet's life, and through its own.

use sim_kubelet::{Seen, bounded};

use crate::rig::Setup;

#[tokio::test]
async fn the_plugin_may_start_before_the_kubelet_and_outlive_it() {
    let mut rig = Setup::new().prepare().await;
    rig.start_plugin().await.unwrap();
    rig.start_kubelet();
    rig.until("gpu 2").await;
    let given = rig.kubelet().admit("a", "nvidia.com/gpu", 1).await.unwrap();
    for _ in 0..2 {
        rig.start_kubelet();
        rig.until("gpu 2").await;
    }
    assert_eq!(rig.pods.taken("nvidia.com/gpu"), given.ids);
    rig.stop_plugin().await.unwrap();
    let left: Vec<_> = std::fs::read_dir(&rig.config.device_plugins)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["kubelet.sock"]);
}

#[tokio::test]
async fn a_deleted_socket_comes_back() {
    let mut rig = Setup::new().start().await;
    rig.until("gpu 2").await;
    let socket = rig.config.device_plugins.join("nvidia-gpu.sock");
    std::fs::remove_file(&socket).unwrap();
    rig.until_so("the socket is there", |_| socket.exists())
        .await;
    rig.start_kubelet();
    rig.until("gpu 2").await;
}

/// The registration is with the kubelet that is there; one that was there for a moment harms nothing.
#[tokio::test]
async fn two_kubelets_in_a_row() {
    let mut rig = Setup::new().prepare().await;
    rig.start_plugin().await.unwrap();
    rig.start_kubelet();
    rig.start_kubelet();
    rig.until("gpu 2").await;
    rig.node.lose(0).unwrap();
    rig.until("gpu 1+1").await;
}

/// NVIDIA's plugin, or another of ours, that still serves: the others are served all the same, and this one when it has gone.
#[tokio::test]
async fn a_taken_socket_costs_one_resource() {
    let rig = Setup::new()
        .file("flags: {migStrategy: mixed}")
        .node(serde_json::json!({}));
    let mut rig = rig.prepare().await;
    rig.start_kubelet();
    let taken = rig.config.device_plugins.join("nvidia-gpu.sock");
    let other = std::os::unix::net::UnixListener::bind(&taken).unwrap();
    rig.cut("{devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 7}}, {devices: [1], mig-enabled: false}")
        .await;
    rig.start_plugin().await.unwrap();
    rig.until("mig-1g.10gb 7").await;
    rig.until_so("an Event", |rig| {
        let events = rig.events();
        events
            .iter()
            .any(|event| event.contains("ResourceNotServed") && event.contains("nvidia.com/gpu"))
    })
    .await;
    rig.until_get("/readyz", |status, body| {
        status == 503 && body.contains("nvidia.com/gpu yet")
    })
    .await;
    drop(other);
    rig.until("gpu 1, mig-1g.10gb 7").await;
    rig.until_get("/readyz", |status, _| status == 200).await;
}

#[tokio::test]
async fn a_plugin_that_is_replaced_leaves_pods_alone() {
    let mut rig = Setup::new().start().await;
    rig.until("gpu 2").await;
    let given = rig.kubelet().admit("a", "nvidia.com/gpu", 1).await.unwrap();
    rig.stop_plugin().await.unwrap();
    // The kubelet takes the devices for unhealthy; they were not withdrawn.
    rig.until("gpu 0+2").await;
    rig.start_plugin().await.unwrap();
    rig.until("gpu 2").await;
    let other = rig.kubelet().admit("b", "nvidia.com/gpu", 1).await.unwrap();
    assert_ne!(given.ids, other.ids);
}

/// A change of one resource sends nothing about the others.
#[tokio::test]
async fn untouched_resources_are_not_told_again() {
    let mut rig = Setup::of("h100-sxm5-80gb", 3)
        .file("flags: {migStrategy: mixed}")
        .start()
        .await;
    rig.until("gpu 3").await;
    rig.cut("{devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 7}}, {devices: [1, 2], mig-enabled: false}")
        .await;
    rig.until("gpu 2, mig-1g.10gb 7").await;
    let (one, instance) = {
        let state = rig.node.state().unwrap();
        let instance = &state.gpus[0].mig.instances[3];
        (instance.id, instance.compute[0].id)
    };
    let mut kubelet = rig.kubelet.take().unwrap();
    while !kubelet.is_quiet().await {}
    rig.listened_to().await;
    rig.node.xid(0, 94, Some((one, instance))).unwrap();
    let Seen::List(list) = bounded(kubelet.next()).await else {
        panic!("a list")
    };
    assert_eq!(
        list.iter().filter(|id| id.starts_with('!')).count(),
        1,
        "{list:?}"
    );
    assert!(list.iter().all(|id| id.contains("MIG-")), "{list:?}");
    assert!(kubelet.is_quiet().await);
}
