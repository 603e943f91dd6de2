//! A namespace for one test, removed at its end whichever way it ends.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, DeleteParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::json;

use super::cluster::Cluster;
use super::pods::bounded;

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
    let outcome = AssertUnwindSafe(async {
        // Pods are refused until a controller has made the account that they run under.
        let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), &name);
        let is_there = |account: Option<&ServiceAccount>| account.is_some();
        let made = await_condition(accounts, "default", is_there);
        bounded("the default account", made).await.unwrap();
        test(name.clone()).await;
    })
    .catch_unwind()
    .await;
    let removed = namespaces.delete(&name, &DeleteParams::default()).await;
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
    removed.expect("the namespace can be removed");
}
