//! Lathe installed by helm on one node, with a simulated node as its hardware.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use futures::FutureExt;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};
use sim_nvml::admin::SimulatedNode;
use sim_nvml::model::latency::Latency;
use sim_nvml::presets::NodeSpec;
use tokio::sync::Mutex;

use super::cluster::{Cluster, LIMIT, variable};
use super::namespace;
use super::tools::{kubectl, outcome, run};

/// There is one node, and its labels are everybody's: one installation at a time.
static NODE: Mutex<()> = Mutex::const_new(());

pub(crate) const CONFIG_LABEL: &str = "nvidia.com/mig.config";
pub(crate) const STATE_LABEL: &str = "nvidia.com/mig.config.state";

/// Where the API keeps Events about objects that are in no namespace.
const EVENTS_NAMESPACE: &str = "default";

/// The release's name.
pub(crate) const RELEASE: &str = "lathe";

/// An installation.
pub(crate) struct Installed {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: String,
    pub(crate) node_name: String,
    pub(crate) hardware: SimulatedNode,
}

/// Installs the chart on a simulated node of this preset, runs `test`, and removes everything again. What the pods said
/// is printed when the test fails.
pub(crate) async fn with_lathe<F>(
    cluster: &Cluster,
    preset: &str,
    latency: Latency,
    test: impl FnOnce(std::sync::Arc<Installed>) -> F,
) where
    F: Future<Output = ()>,
{
    let _turn = NODE.lock().await;
    namespace::within(cluster, "lathe-e2e", |namespace| async move {
        let folder = node_folder();
        let root = folder.path().join("node");
        let hardware = SimulatedNode::create(&root, &NodeSpec::preset(preset).unwrap()).unwrap();
        hardware.set_latency(latency).unwrap();
        let installed = std::sync::Arc::new(Installed {
            cluster: cluster.clone(),
            node_name: cluster.node_name().await,
            namespace,
            hardware,
        });
        installed.forget().await;
        let outcome = AssertUnwindSafe(async {
            installed.helm_install(&root).await;
            test(installed.clone()).await;
        })
        .catch_unwind()
        .await;
        if outcome.is_err() {
            installed.print_pods().await;
        }
        installed.uninstall().await;
        installed.forget().await;
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    })
    .await;
}

/// A folder that has the same path on the node and here: `LATHE_E2E_NODE_DIR`, or the one for temporary files when the
/// node is this machine.
fn node_folder() -> tempfile::TempDir {
    let base = variable("LATHE_E2E_NODE_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    tempfile::Builder::new()
        .prefix("lathe-e2e-")
        .tempdir_in(&base)
        .unwrap_or_else(|error| panic!("{}: {error}", base.display()))
}

pub(crate) fn chart() -> PathBuf {
    repository().join("charts/lathe")
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

impl Installed {
    async fn helm_install(&self, root: &Path) {
        let image = variable("LATHE_E2E_IMAGE")
            .unwrap_or_else(|| format!("localhost/lathe:{}", env!("CARGO_PKG_VERSION")));
        let (repository, tag) = image.rsplit_once(':').expect("the image has a tag");
        let values = json!({
            "image": {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"},
            "nodeRoot": root,
            // A folder for tests need not lie on a shared mount.
            "mountPropagation": "None",
            "logLevel": "debug",
            "nodeSelector": {"kubernetes.io/hostname": self.node_name},
            "devicePlugin": {"enabled": false},
            "dcgmExporter": {"collectInterval": 1000, "readOnlyNodeRoot": false, "kubernetes": false},
        });
        let chart = chart();
        run(
            "helm",
            &[
                "install",
                RELEASE,
                chart.to_str().unwrap(),
                "--namespace",
                &self.namespace,
                "--values=-",
                "--wait",
                "--timeout=60s",
            ],
            &values.to_string(),
        )
        .await;
    }

    async fn uninstall(&self) {
        let arguments = [
            "uninstall",
            RELEASE,
            "--namespace",
            &self.namespace,
            "--ignore-not-found",
            "--wait",
            "--timeout=60s",
        ];
        let output = outcome("helm", &arguments, "").await;
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Removes what an installation left at the node: labels and Events.
    async fn forget(&self) {
        let labels = json!({"metadata": {"labels": {CONFIG_LABEL: null, STATE_LABEL: null}}});
        self.patch_node(&labels).await;
        let events: Api<Event> = Api::namespaced(self.cluster.client.clone(), EVENTS_NAMESPACE);
        for event in self.events().await {
            let name = event.metadata.name.unwrap();
            // It may have expired just now.
            let _ = events.delete(&name, &DeleteParams::default()).await;
        }
    }

    /// Events about the node, by Lathe.
    pub(crate) async fn events(&self) -> Vec<Event> {
        let events: Api<Event> = Api::namespaced(self.cluster.client.clone(), EVENTS_NAMESPACE);
        let about = format!("regarding.kind=Node,regarding.name={}", self.node_name);
        let list = events.list(&ListParams::default().fields(&about)).await;
        let mut found = list.unwrap().items;
        found.retain(|event| event.reporting_controller.as_deref() == Some("lathe-mig-manager"));
        found
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.cluster.client.clone())
    }

    async fn patch_node(&self, patch: &Value) {
        self.nodes()
            .patch(
                &self.node_name,
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await
            .unwrap();
    }

    /// Asks for a MIG layout.
    pub(crate) async fn ask_for(&self, config: &str) {
        self.patch_node(&json!({"metadata": {"labels": {CONFIG_LABEL: config}}}))
            .await;
    }

    /// Waits until the state label has this value.
    pub(crate) async fn state_is(&self, state: &'static str) {
        let has = move |node: Option<&Node>| {
            node.and_then(|node| node.metadata.labels.as_ref())
                .and_then(|labels| labels.get(STATE_LABEL))
                .is_some_and(|value| value == state)
        };
        let nodes = self.nodes();
        let reached = await_condition(nodes, &self.node_name, has);
        tokio::time::timeout(LIMIT, reached)
            .await
            .unwrap_or_else(|_| panic!("the state label does not become {state}"))
            .unwrap();
    }

    /// The exporter's page, through the API server's proxy.
    pub(crate) async fn metrics(&self) -> String {
        let path = format!(
            "/api/v1/namespaces/{}/services/nvidia-dcgm-exporter:gpu-metrics/proxy/metrics",
            self.namespace
        );
        kubectl(&["get", "--raw", &path]).await
    }

    /// For who looks for the reason of a failed test.
    async fn print_pods(&self) {
        for arguments in [
            &["get", "pods", "-o=wide"][..],
            &["describe", "pods"],
            &["get", "events"],
            &[
                "logs",
                "--selector=app.kubernetes.io/name=lathe",
                "--prefix",
                "--tail=60",
            ],
        ] {
            let namespace = format!("--namespace={}", self.namespace);
            let arguments = [arguments, &[namespace.as_str()]].concat();
            let output = outcome("kubectl", &arguments, "").await;
            eprintln!(
                "$ kubectl {}\n{}{}",
                arguments.join(" "),
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}
