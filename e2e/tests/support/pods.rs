//! Pods that print what their container sees (`image/workload.rs`).

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, LogParams, PostParams};
use kube::runtime::conditions::{is_deleted, is_pod_running};
use kube::runtime::wait::await_condition;
use serde::Deserialize;
use serde_json::{Value, json};

use super::cluster::{LIMIT, variable};

/// The label of these pods.
const LABEL: &str = "lathe-e2e";

/// What a container sees.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct View {
    pub(crate) environment: std::collections::BTreeMap<String, String>,
    pub(crate) devices: Vec<String>,
    pub(crate) mounts: Vec<String>,
}

impl View {
    /// The driver's device nodes.
    pub(crate) fn gpu_nodes(&self) -> Vec<&str> {
        let nodes = self.devices.iter().map(String::as_str);
        nodes
            .filter(|node| node.starts_with("/dev/nvidia"))
            .collect()
    }
}

/// Waits for something, no longer than [`LIMIT`].
pub(crate) async fn bounded<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future)
        .await
        .unwrap_or_else(|_| panic!("waited {} s for {what}", LIMIT.as_secs()))
}

/// The pods of one namespace.
#[derive(Clone)]
pub(crate) struct Pods(Api<Pod>);

impl Pods {
    pub(crate) fn new(client: &Client, namespace: &str) -> Self {
        Self(Api::namespaced(client.clone(), namespace))
    }

    /// Makes a pod with one container that has `limits`; it need not run yet.
    pub(crate) async fn ask(&self, name: &str, limits: Value) {
        self.ask_for(name, json!({}), json!({"limits": limits}))
            .await;
    }

    /// The same, with more to say about the pod and the container's resources.
    pub(crate) async fn ask_for(&self, name: &str, pod: Value, resources: Value) {
        let image = variable("LATHE_E2E_WORKLOAD_IMAGE")
            .unwrap_or_else(|| "localhost/lathe-e2e/workload:1".to_owned());
        let mut spec = json!({
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "resources": resources,
            }],
        });
        for (key, value) in pod.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let pod = json!({"metadata": {"name": name, "labels": {LABEL: "pod"}}, "spec": spec});
        let pod = serde_json::from_value(pod).unwrap();
        self.0.create(&PostParams::default(), &pod).await.unwrap();
    }

    /// Waits until a pod runs.
    pub(crate) async fn runs(&self, name: &str) -> Pod {
        let running = await_condition(self.0.clone(), name, is_pod_running());
        match tokio::time::timeout(LIMIT, running).await {
            Ok(outcome) => drop(outcome.unwrap()),
            Err(_) => panic!(
                "pod {name} does not run after {} s: {}",
                LIMIT.as_secs(),
                self.what_it_waits_for(name).await
            ),
        }
        self.get(name).await
    }

    /// The messages of a pod's conditions and of its waiting containers: why it is not scheduled, admitted or started.
    async fn what_it_waits_for(&self, name: &str) -> String {
        let status = self.get(name).await.status.unwrap_or_default();
        let of_pod = [status.reason, status.message];
        let conditions = status.conditions.into_iter().flatten();
        let of_conditions = conditions.filter(|one| one.status != "True");
        let containers = status.container_statuses.into_iter().flatten();
        let waiting = containers.filter_map(|container| container.state?.waiting);
        let said: Vec<String> = of_pod
            .into_iter()
            .chain(of_conditions.flat_map(|one| [one.reason, one.message]))
            .chain(waiting.flat_map(|one| [one.reason, one.message]))
            .flatten()
            .collect();
        said.join("; ")
    }

    /// What the kubelet and the API server know of a pod.
    pub(crate) async fn get(&self, name: &str) -> Pod {
        self.0.get(name).await.unwrap()
    }

    /// Waits until a pod runs and has printed what it sees.
    pub(crate) async fn view(&self, name: &str) -> View {
        self.runs(name).await;
        let printed = async {
            loop {
                let log = self.0.logs(name, &LogParams::default()).await.unwrap();
                if let Some((line, _)) = log.split_once('\n') {
                    return serde_json::from_str(line).unwrap();
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        bounded("what the container prints", printed).await
    }

    /// Why a pod is not scheduled, once the scheduler has said so.
    pub(crate) async fn is_unschedulable(&self, name: &str) {
        let waits = |pod: Option<&Pod>| {
            let status = pod.and_then(|pod| pod.status.as_ref());
            let conditions = status.and_then(|status| status.conditions.as_ref());
            conditions
                .into_iter()
                .flatten()
                .any(|one| one.reason.as_deref() == Some("Unschedulable"))
        };
        let said = await_condition(self.0.clone(), name, waits);
        bounded("the scheduler to find no place", said)
            .await
            .unwrap();
    }

    /// Removes all these pods and waits until the namespace has none, of whomever.
    pub(crate) async fn delete_all(&self) {
        let all = ListParams::default().labels(LABEL);
        let how = DeleteParams::default();
        self.0.delete_collection(&how, &all).await.unwrap();
        let gone = async {
            let whole = ListParams::default();
            while !self.0.list(&whole).await.unwrap().items.is_empty() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        bounded("the pods' end", gone).await;
    }

    /// Removes a pod and waits until it is gone.
    pub(crate) async fn delete(&self, name: &str) {
        let uid = self.get(name).await.metadata.uid.unwrap();
        self.0.delete(name, &DeleteParams::default()).await.unwrap();
        let gone = await_condition(self.0.clone(), name, is_deleted(&uid));
        bounded("the pod's end", gone).await.unwrap();
    }
}
