//! Which configuration is in force, and what happens when it changes.

use std::time::Duration;

use device_plugin::service::ServiceError;
use serde_json::json;

use crate::rig::Setup;

const SHARED: &str = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}";
const RENAMED: &str =
    "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 2}]}}";
const LABEL: &str = "nvidia.com/device-plugin.config";

#[tokio::test]
async fn an_edited_file_takes_effect() {
    let rig = Setup::new().start().await;
    rig.until("gpu 2").await;
    rig.write_file(SHARED);
    rig.until("gpu 8").await;
    rig.write_file(RENAMED);
    rig.until("gpu 0, gpu.shared 4").await;
}

#[tokio::test]
async fn a_bad_file_never_comes_into_force() {
    let rig = Setup::new().file(SHARED).node(json!({})).start().await;
    rig.until("gpu 8").await;
    rig.write_file("version: v2");
    rig.until_so("an Event with the place", |rig| {
        let events = rig.events();
        events.iter().any(|event| {
            event.starts_with("Warning InvalidConfig")
                && event.contains("config.yaml:1:10:")
                && event.ends_with("stays in force")
        })
    })
    .await;
    assert_eq!(rig.held(), [("gpu".to_owned(), (8, 0))].into());
    rig.write_file("");
    rig.until("gpu 2").await;
}

#[tokio::test]
async fn a_bad_file_at_the_start_is_an_error() {
    let mut rig = Setup::new().file("version: v2").prepare().await;
    let error = rig.start_plugin().await.unwrap_err();
    assert!(matches!(error, ServiceError::Settings(_)), "{error}");
}

/// Case 3: the label is set before the start.
#[tokio::test]
async fn a_label_chooses() {
    let configs = [("plain", ""), ("shared", SHARED)];
    let rig = Setup::new()
        .configs(&configs)
        .node(json!({ LABEL: "shared" }))
        .start()
        .await;
    rig.until("gpu 8").await;
    // The content counts, not only the label.
    std::fs::write(rig.configs().join("shared"), RENAMED).unwrap();
    rig.until("gpu 0, gpu.shared 4").await;
    rig.patch_labels(json!({ LABEL: "plain" })).await;
    rig.until("gpu 2, gpu.shared 0").await;
}

/// Case 3: the label appears while the plugin starts. Until then nothing chooses, and nothing is offered by mistake.
#[tokio::test]
async fn a_label_may_come_late() {
    let rig = Setup::new()
        .configs(&[("plain", ""), ("shared", SHARED)])
        .node(json!({}))
        .start()
        .await;
    rig.until_so("not ready", |rig| !rig.events().is_empty())
        .await;
    assert_eq!(rig.held(), Default::default());
    // Said anew only when the GPUs that are being asked have answered.
    rig.until_get("/readyz", |status, body| {
        status == 503 && body.contains(LABEL)
    })
    .await;
    assert_eq!(rig.held(), Default::default());
    rig.patch_labels(json!({ LABEL: "shared" })).await;
    rig.until("gpu 8").await;
}

/// Case 3: it names a configuration that does not exist.
#[tokio::test]
async fn a_name_that_does_not_exist_changes_nothing() {
    let configs = [("plain", ""), ("shared", SHARED)];
    let rig = Setup::new()
        .configs(&configs)
        .node(json!({ LABEL: "shared" }))
        .start()
        .await;
    rig.until("gpu 8").await;
    rig.patch_labels(json!({ LABEL: "none" })).await;
    rig.until_so("an Event", |rig| {
        let events = rig.events();
        events
            .iter()
            .any(|event| event.contains("InvalidConfig") && event.contains("has plain, shared"))
    })
    .await;
    assert_eq!(rig.held(), [("gpu".to_owned(), (8, 0))].into());
    // It comes to be.
    std::fs::write(rig.configs().join("none"), "").unwrap();
    rig.until("gpu 2").await;
}

/// Case 3: twice in 50 ms.
#[tokio::test]
async fn the_last_of_two_labels_counts() {
    let configs = [("plain", ""), ("shared", SHARED), ("renamed", RENAMED)];
    let rig = Setup::new()
        .configs(&configs)
        .node(json!({ LABEL: "plain" }))
        .start()
        .await;
    rig.until("gpu 2").await;
    rig.patch_labels(json!({ LABEL: "shared" })).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    rig.patch_labels(json!({ LABEL: "renamed" })).await;
    rig.until("gpu 0, gpu.shared 4").await;
}

#[tokio::test]
async fn an_edited_health_policy_takes_effect_unless_it_is_bad() {
    let mut rig = Setup::new().node(json!({}));
    rig = rig.config(|config| config.health_policy = Some(config.root.join("policy.yaml")));
    let mut rig = rig.prepare().await;
    std::fs::write(rig.node.root().join("policy.yaml"), "version: v1\n").unwrap();
    rig.start_kubelet();
    rig.start_plugin().await.unwrap();
    rig.until("gpu 2").await;
    std::fs::write(rig.node.root().join("policy.yaml"), "version: v7\n").unwrap();
    rig.until_so("an Event", |rig| {
        let events = rig.events();
        events.iter().any(|event| {
            event.contains("InvalidHealthPolicy") && event.contains("policy.yaml:1:10")
        })
    })
    .await;
    rig.listened_to().await;
    rig.node.xid(0, 48, None).unwrap();
    rig.until("gpu 1+1").await;
    let never = "version: v1\nxids:\n- {xids: [48], unhealthy: never}\n";
    std::fs::write(rig.node.root().join("policy.yaml"), never).unwrap();
    rig.until("gpu 2").await;
    rig.stop_plugin().await.unwrap();
}

#[tokio::test]
async fn a_driver_that_must_be_there() {
    let rig = Setup::new().without_driver();
    let rig = rig.config(|config| config.flags.fail_on_init_error = Some(true));
    let mut rig = rig.prepare().await;
    rig.start_plugin().await.unwrap();
    let error = rig.ends().await.unwrap_err();
    assert!(matches!(error, ServiceError::NoDriver(_)), "{error}");
}

/// What is wrong from the start is found out before the API server has answered; it becomes an Event all the same.
#[tokio::test]
async fn what_is_said_before_the_node_is_known_is_said_when_it_is() {
    use sim_kubernetes::{Action, Fault};
    let setup = Setup::new().file("resources: {gpus: [{pattern: none such, name: x}]}");
    let mut rig = setup.node(json!({})).prepare().await;
    let faults = rig.server.as_ref().unwrap().faults();
    faults.add(Fault::new(Action::Answer(503, None)).path("/nodes"));
    rig.start_kubelet();
    rig.start_plugin().await.unwrap();
    let driver_is_up = async {
        while !rig
            .get("/metrics")
            .await
            .1
            .contains("lathe_device_plugin_driver_up 1")
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), driver_is_up)
        .await
        .expect("the driver is there");
    assert_eq!(rig.events(), [] as [String; 0]);
    faults.clear();
    rig.until_so("both GPUs are told of", |rig| {
        let events = rig.events();
        let told = |gpu| events.iter().any(|event| event.contains(&rig.uuid(gpu)));
        told(0) && told(1)
    })
    .await;
    rig.stop_plugin().await.unwrap();
}
