//! What the accounts of parts may do, tried with their own tokens: their own node, and nothing else.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Config};
use serde_json::{Value, json};
use sim_nvml::model::latency::Latency;

use crate::support::cluster::{LIMIT, cluster};
use crate::support::host::host;
use crate::support::install::{Installed, with_device_plugin, with_lathe};
use crate::support::tools::kubectl;

const MANAGER: &str = "nvidia-mig-manager";
const PLUGIN: &str = "nvidia-device-plugin-daemonset";

/// A client with a part's token, bound to the pod as the pod's own is. A part's pods are labelled with its account's name.
async fn as_account(lathe: &Installed, account: &str) -> Client {
    let pods: Api<Pod> = Api::namespaced(lathe.cluster.client.clone(), &lathe.namespace);
    let of_part = ListParams::default().labels(&format!("app={account}"));
    let list = pods.list(&of_part).await.unwrap();
    let pod = list.items[0].metadata.name.as_deref().unwrap();
    let token = kubectl(&[
        "create",
        "token",
        account,
        "--bound-object-kind=Pod",
        &format!("--bound-object-name={pod}"),
        &format!("--namespace={}", lathe.namespace),
    ])
    .await;
    let mut config = Config::infer().await.unwrap();
    config.auth_info = serde_json::from_value(json!({"token": token.trim()})).unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

#[track_caller]
fn forbidden<T: std::fmt::Debug>(answer: Result<T, kube::Error>) -> String {
    match answer {
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => status.message.clone(),
        other => panic!("this must not be allowed: {other:?}"),
    }
}

/// The same, as soon as the policy is in force: that takes a moment from its creation.
async fn forbidden_in_time<T: std::fmt::Debug>(
    attempt: impl AsyncFn() -> Result<T, kube::Error>,
) -> String {
    let began = Instant::now();
    let mut said = attempt().await;
    while said.is_ok() && began.elapsed() < LIMIT {
        tokio::time::sleep(Duration::from_millis(100)).await;
        said = attempt().await;
    }
    forbidden(said)
}

/// Runs `test` with a Node that no kubelet stands behind, and removes that whichever way the test ends.
async fn with_other_node(lathe: &Installed, test: impl AsyncFnOnce(&str)) {
    let name = format!("{}-other", lathe.namespace);
    let object: Node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    let nodes = lathe.nodes();
    nodes.create(&PostParams::default(), &object).await.unwrap();
    let outcome = AssertUnwindSafe(test(&name)).catch_unwind().await;
    let removed = nodes.delete(&name, &DeleteParams::default()).await;
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
    removed.unwrap();
}

#[tokio::test]
async fn the_manager_may_write_its_own_node_alone() {
    let Some(cluster) = cluster().await else {
        return;
    };
    with_lathe(&cluster, "a30x4", Latency::default(), |lathe| async move {
        with_other_node(&lathe, async |other| {
            let client = as_account(&lathe, MANAGER).await;
            let nodes: Api<Node> = Api::all(client.clone());
            let patch =
                |value: Value| json!({"metadata": {"annotations": {"lathe.test/x": value}}});
            let write = async |name: &str, value: Value| {
                let patch = patch(value);
                nodes
                    .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
                    .await
            };
            let message = forbidden_in_time(async || write(other, json!("1")).await).await;
            assert!(
                message.contains("may write the node that it runs on, and no other"),
                "{message}"
            );
            write(&lathe.node_name, json!("1")).await.unwrap();
            write(&lathe.node_name, Value::Null).await.unwrap();

            forbidden(nodes.delete(other, &DeleteParams::default()).await);
            let pods: Api<Pod> = Api::namespaced(client.clone(), &lathe.namespace);
            forbidden(pods.list(&ListParams::default()).await);
            let secrets: Api<Secret> = Api::all(client);
            forbidden(secrets.list(&ListParams::default()).await);
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn the_device_plugin_may_read_nodes_and_write_events_and_its_own_nodes_status() {
    let (Some(cluster), Some(host)) = (cluster().await, host()) else {
        return;
    };
    let values = json!({
        "migManager": {"enabled": false},
        "featureDiscovery": {"enabled": false},
        "dcgmExporter": {"enabled": false},
        "devicePlugin": {
            "nodeCondition": true,
            "config": {"map": {"one": "version: v1\n"}, "watch": true},
        },
    });
    with_device_plugin(&cluster, &host, "a30x4", values, |lathe| async move {
        with_other_node(&lathe, async |other| {
            let client = as_account(&lathe, PLUGIN).await;
            let nodes: Api<Node> = Api::all(client.clone());
            let status = async |name: &str| {
                let patch = json!({"status": {"conditions": [
                    {"type": "LatheTest", "status": "True", "reason": "Test", "message": ""},
                ]}});
                nodes
                    .patch_status(name, &PatchParams::default(), &Patch::Strategic(&patch))
                    .await
            };
            let message = forbidden_in_time(async || status(other).await).await;
            assert!(
                message.contains("may write the node that it runs on, and no other"),
                "{message}"
            );
            status(&lathe.node_name).await.unwrap();
            let gone =
                json!({"status": {"conditions": [{"type": "LatheTest", "$patch": "delete"}]}});
            nodes
                .patch_status(
                    &lathe.node_name,
                    &PatchParams::default(),
                    &Patch::Strategic(&gone),
                )
                .await
                .unwrap();
            nodes.list(&ListParams::default()).await.unwrap();

            let patch = json!({"metadata": {"annotations": {"lathe.test/x": "1"}}});
            let params = PatchParams::default();
            forbidden(
                nodes
                    .patch(&lathe.node_name, &params, &Patch::Merge(&patch))
                    .await,
            );
            let configs: Api<ConfigMap> = Api::namespaced(client.clone(), &lathe.namespace);
            configs.get(&format!("{PLUGIN}-configs")).await.unwrap();
            forbidden(configs.list(&ListParams::default()).await);
            let pods: Api<Pod> = Api::namespaced(client.clone(), &lathe.namespace);
            forbidden(pods.list(&ListParams::default()).await);
            let secrets: Api<Secret> = Api::all(client);
            forbidden(secrets.list(&ListParams::default()).await);
        })
        .await;
    })
    .await;
}
