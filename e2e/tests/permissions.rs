//! What the MIG manager's account may do, tried with its own token: its own node, and nothing else.

use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Config};
use serde_json::{Value, json};
use sim_nvml::model::latency::Latency;

use crate::support::cluster::cluster;
use crate::support::install::{Installed, with_lathe};
use crate::support::tools::kubectl;

/// A client with the account's token, bound to the pod as the pod's own is.
async fn as_manager(lathe: &Installed) -> Client {
    let pods: Api<Pod> = Api::namespaced(lathe.cluster.client.clone(), &lathe.namespace);
    let of_manager = ListParams::default().labels("app=nvidia-mig-manager");
    let list = pods.list(&of_manager).await.unwrap();
    let pod = list.items[0].metadata.name.as_deref().unwrap();
    let token = kubectl(&[
        "create",
        "token",
        "nvidia-mig-manager",
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

#[tokio::test]
async fn the_manager_may_write_its_own_node_alone() {
    let Some(cluster) = cluster().await else {
        return;
    };
    with_lathe(&cluster, "a30x4", Latency::default(), |lathe| async move {
        let other = format!("{}-other", lathe.namespace);
        let object: Node = serde_json::from_value(json!({"metadata": {"name": other}})).unwrap();
        lathe
            .nodes()
            .create(&PostParams::default(), &object)
            .await
            .unwrap();

        let client = as_manager(&lathe).await;
        let nodes: Api<Node> = Api::all(client.clone());
        let patch = |value: Value| json!({"metadata": {"annotations": {"lathe.test/x": value}}});
        let write = async |name: &str, value: Value| {
            let patch = patch(value);
            nodes
                .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
        };
        // A policy takes a moment from its creation to its first effect.
        let mut said = write(&other, json!("1")).await;
        for _ in 0..100 {
            if said.is_err() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            said = write(&other, json!("1")).await;
        }
        let message = forbidden(said);
        assert!(
            message.contains("may write the node that it runs on, and no other"),
            "{message}"
        );
        write(&lathe.node_name, json!("1")).await.unwrap();
        write(&lathe.node_name, Value::Null).await.unwrap();

        forbidden(nodes.delete(&other, &DeleteParams::default()).await);
        let pods: Api<Pod> = Api::namespaced(client.clone(), &lathe.namespace);
        forbidden(pods.list(&ListParams::default()).await);
        let secrets: Api<Secret> = Api::all(client);
        forbidden(secrets.list(&ListParams::default()).await);
        lathe
            .nodes()
            .delete(&other, &DeleteParams::default())
            .await
            .unwrap();
    })
    .await;
}
