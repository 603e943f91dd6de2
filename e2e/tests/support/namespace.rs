//! A namespace for one test, removed at its end whichever way it ends.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;

use super::cluster::Cluster;

/// Runs `test` in a fresh namespace whose name begins with `prefix`.
pub(crate) async fn within<F>(cluster: &Cluster, prefix: &str, test: impl FnOnce(String) -> F)
where
    F: Future<Output = ()>,
{
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    // The label lets privileged pods in where pod security admission is on.
    let wanted = json!({"metadata": {
        "generateName": format!("{prefix}-"),
        "labels": {"pod-security.kubernetes.io/enforce": "privileged"},
    }});
    let made = namespaces
        .create(
            &PostParams::default(),
            &serde_json::from_value(wanted).unwrap(),
        )
        .await
        .unwrap();
    let name = made.metadata.name.unwrap();
    let outcome = AssertUnwindSafe(test(name.clone())).catch_unwind().await;
    let removed = namespaces.delete(&name, &DeleteParams::default()).await;
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
    removed.expect("the namespace can be removed");
}
