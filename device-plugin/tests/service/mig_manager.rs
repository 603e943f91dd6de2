//! The MIG manager at work on the same GPUs, which it can change only while nobody holds them.

use std::sync::Arc;
use std::time::Duration;

use mig_manager::controller::{self, Config};
use rstest::rstest;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::rig::{NODE, Rig, Setup};

/// Runs the controller beside the plugin until it is dropped.
async fn beside(rig: &Rig) -> impl Drop + use<> {
    let mut config = Config::new(NODE, rig.node.root());
    config.engine.state_dir = rig.node.root().join("mig-state");
    let session = nvml::Session::new(&nvml::Options::at(rig.node.root())).unwrap();
    let shutdown = CancellationToken::new();
    let client = rig.client().await;
    tokio::spawn(controller::run(
        config,
        Arc::new(session),
        client,
        shutdown.clone(),
    ));
    shutdown.drop_guard()
}

/// A mode change needs a reset on Ampere, and none on Hopper; neither happens while the plugin has the GPUs open. That it lets go
/// of them is told to nobody as a GPU's ill health.
#[rstest]
#[case::hopper("h100-sxm5-80gb", "mig-1g.10gb 4, mig-2g.20gb 2, mig-3g.40gb 2")]
#[case::ampere("a100-sxm4-80gb", "mig-1g.10gb 4, mig-2g.20gb 2, mig-3g.40gb 2")]
#[tokio::test(flavor = "multi_thread")]
async fn a_layout_by_label(#[case] board: &str, #[case] balanced: &str) {
    let setup = Setup::of(board, 2).file("flags: {migStrategy: mixed}");
    let rig = setup.node(json!({})).start().await;
    rig.until("gpu 2").await;
    let _controller = beside(&rig).await;
    rig.patch_labels(json!({ "nvidia.com/mig.config": "all-balanced" }))
        .await;
    rig.until(&format!("gpu 0, {balanced}")).await;
    rig.patch_labels(json!({ "nvidia.com/mig.config": "all-disabled" }))
        .await;
    rig.until("gpu 2, mig-1g.10gb 0, mig-2g.20gb 0, mig-3g.40gb 0")
        .await;
    let state = || {
        let node = rig
            .server
            .as_ref()
            .unwrap()
            .object("v1", "Node", "", NODE)
            .unwrap();
        node["metadata"]["labels"]["nvidia.com/mig.config.state"].clone()
    };
    tokio::time::timeout(Duration::from_secs(60), async {
        while state() != "success" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("the MIG manager succeeds");

    // Events are written in their order: before that of real trouble, the change would have been told.
    rig.until("gpu 2, mig-1g.10gb 0, mig-2g.20gb 0, mig-3g.40gb 0")
        .await;
    // The MIG manager listens as well.
    rig.listened_to_by(2).await;
    rig.node.xid(1, 48, None).unwrap();
    let of_health = || {
        let mut events = rig.events();
        events.retain(|event| event.contains(" GPUUnhealthy ") || event.contains(" GPUHealthy "));
        events
    };
    rig.until_so("an Event of the XID", |_| !of_health().is_empty())
        .await;
    let told = of_health();
    assert!(
        told.iter().all(|event| event.contains("XID 48")),
        "{told:#?}"
    );
}
