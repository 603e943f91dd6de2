//! Lathe installed by helm on one node, with a simulated node as its hardware.

use std::future::ready;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use futures::{FutureExt, Stream, StreamExt};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use serde_json::{Value, json};
use sim_nvml::admin::SimulatedNode;
use sim_nvml::model::latency::Latency;
use sim_nvml::presets::NodeSpec;
use tokio::sync::Mutex;

use super::cluster::{Cluster, LIMIT, variable};
use super::host::Host;
use super::namespace;
use super::pods::{Pods, bounded};
use super::tools::{outcome, run};

/// There is one node, and its labels are everybody's: one installation at a time.
static NODE: Mutex<()> = Mutex::const_new(());

pub(crate) const CONFIG_LABEL: &str = "nvidia.com/mig.config";
pub(crate) const STATE_LABEL: &str = "nvidia.com/mig.config.state";
pub(crate) const PLUGIN_LABEL: &str = "nvidia.com/device-plugin.config";

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

/// Installs the chart on a simulated node of this preset, runs `test`, and removes everything again. How the node and the
/// pods are, and what they said, is printed when the test fails.
///
/// The device plugin is not among the parts: the node's kubelet is everybody's. See [`with_device_plugin`].
pub(crate) async fn with_lathe<F>(
    cluster: &Cluster,
    preset: &str,
    latency: Latency,
    test: impl FnOnce(std::sync::Arc<Installed>) -> F,
) where
    F: Future<Output = ()>,
{
    let without =
        json!({"devicePlugin": {"enabled": false}, "dcgmExporter": {"kubernetes": false}});
    with_values(cluster, preset, latency, &without, test).await;
}

/// The same with the device plugin, which serves the node's kubelet and container runtime. `values` are added to the
/// chart's.
pub(crate) async fn with_device_plugin<F>(
    cluster: &Cluster,
    host: &Host,
    preset: &str,
    values: Value,
    test: impl FnOnce(std::sync::Arc<Installed>) -> F,
) where
    F: Future<Output = ()>,
{
    let mut all = json!({
        "kubeletRoot": host.kubelet_root,
        "devicePlugin": {
            "devicePluginsDir": host.device_plugins,
            "cdi": {"dir": host.cdi},
            "readOnlyNodeRoot": false,
        },
    });
    merge(&mut all, values);
    with_values(cluster, preset, Latency::default(), &all, test).await;
}

/// Puts `more` over `all`, object by object.
fn merge(all: &mut Value, more: Value) {
    match (all, more) {
        (Value::Object(all), Value::Object(more)) => {
            for (key, value) in more {
                merge(all.entry(key).or_insert(Value::Null), value);
            }
        }
        (all, more) => *all = more,
    }
}

async fn with_values<F>(
    cluster: &Cluster,
    preset: &str,
    latency: Latency,
    values: &Value,
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
            installed.helm_install(&root, values.clone()).await;
            test(installed.clone()).await;
        })
        .catch_unwind()
        .await;
        if outcome.is_err() {
            installed.print_state().await;
        }
        installed.uninstall().await;
        // The next node has GPUs of the same names: what these pods have, nobody else could get. And Lathe's own, which
        // outlive their DaemonSets, still serve the kubelet and write to the node.
        let pods = Pods::new(&cluster.client, &installed.namespace);
        pods.delete_all().await;
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

/// What the state label says.
fn state_of(node: Option<&Node>) -> Option<String> {
    node?.metadata.labels.as_ref()?.get(STATE_LABEL).cloned()
}

/// Waits until the state label has this value.
async fn reach(mut nodes: Pin<&mut impl Stream<Item = Option<Node>>>, wanted: &str) {
    let mut last = None;
    let reached = async {
        while last.as_deref() != Some(wanted) {
            let node = nodes.next().await.expect("a watch goes on");
            last = state_of(node.as_ref());
        }
    };
    if tokio::time::timeout(LIMIT, reached).await.is_err() {
        panic!("the state label does not become {wanted}, it is {last:?}");
    }
}

impl Installed {
    async fn helm_install(&self, root: &Path, more: Value) {
        let image = variable("LATHE_E2E_IMAGE")
            .unwrap_or_else(|| format!("localhost/lathe:{}", env!("CARGO_PKG_VERSION")));
        let (repository, tag) = image.rsplit_once(':').expect("the image has a tag");
        let mut values = json!({
            "image": {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"},
            "nodeRoot": root,
            // A folder for tests need not lie on a shared mount.
            "mountPropagation": "None",
            // What Lathe says, without its libraries.
            "logLevel": "info,mig_manager=debug,device_plugin=debug,dcgm_exporter=debug,nvml=debug",
            "nodeSelector": {"kubernetes.io/hostname": self.node_name},
            "dcgmExporter": {"collectInterval": 1000, "readOnlyNodeRoot": false},
        });
        merge(&mut values, more);
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
                "--timeout=240s",
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
            "--timeout=240s",
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
        let labels = json!({"metadata": {"labels": {
            CONFIG_LABEL: null, STATE_LABEL: null, PLUGIN_LABEL: null,
        }}});
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
        let ours = |name: &String| name.starts_with("lathe-");
        found.retain(|event| event.reporting_controller.as_ref().is_some_and(ours));
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

    /// Asks for a MIG layout and waits until the GPUs have it.
    pub(crate) async fn cut(&self, config: &str) {
        self.ask_until(config, &["pending", "success"]).await;
    }

    /// Asks for a MIG layout and waits until the state label has had these values, one after the other.
    pub(crate) async fn ask_until(&self, config: &str, states: &[&str]) {
        // Watched from before the request: what an earlier one came to is still there, and `pending` is over in no time.
        let mut nodes = pin!(self.watched());
        bounded("the Node", nodes.next()).await;
        self.ask_for(config).await;
        for state in states {
            reach(nodes.as_mut(), state).await;
        }
    }

    /// Chooses a configuration of the device plugin.
    pub(crate) async fn configure(&self, name: &str) {
        self.patch_node(&json!({"metadata": {"labels": {PLUGIN_LABEL: name}}}))
            .await;
    }

    /// Waits until the node has so many allocatable devices of each of these resources; returns how long that took.
    pub(crate) async fn allocatable_is(&self, wanted: &[(&str, usize)]) -> Duration {
        let began = Instant::now();
        let owned: Vec<(String, String)> = wanted
            .iter()
            .map(|(name, count)| (format!("nvidia.com/{name}"), count.to_string()))
            .collect();
        let holds = |node: Option<&Node>| {
            let status = node.and_then(|node| node.status.as_ref());
            let allocatable = status.and_then(|status| status.allocatable.as_ref());
            owned.iter().all(|(name, count)| {
                let found = allocatable.and_then(|all| all.get(name));
                found.map_or("0", |quantity| quantity.0.as_str()) == count
            })
        };
        let mut nodes = pin!(self.watched());
        let reached =
            async { while !holds(nodes.next().await.expect("a watch goes on").as_ref()) {} };
        if tokio::time::timeout(LIMIT, reached).await.is_err() {
            let node = self.nodes().get(&self.node_name).await.unwrap();
            let found = node.status.and_then(|status| status.allocatable);
            panic!("{wanted:?} wanted, {found:?} found");
        }
        began.elapsed()
    }

    /// Waits until the state label has this value.
    pub(crate) async fn state_is(&self, state: &str) {
        reach(pin!(self.watched()), state).await;
    }

    /// The node, now and each time it changes. A watch that fails begins again: the API server may just have started.
    fn watched(&self) -> impl Stream<Item = Option<Node>> {
        watch_object(self.nodes(), &self.node_name)
            .default_backoff()
            .filter_map(|node| ready(node.ok()))
    }

    /// Waits until an Event with this reason says `text`. Events are written beside the state label, not before it.
    pub(crate) async fn an_event_says(&self, reason: &str, text: &str) {
        let began = Instant::now();
        loop {
            let events = self.events().await;
            let said = events
                .iter()
                .filter(|event| event.reason.as_deref() == Some(reason))
                .filter_map(|event| event.note.as_deref())
                .any(|note| note.contains(text));
            if said {
                return;
            }
            assert!(began.elapsed() < LIMIT, "{events:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until the exporter's page fits, and returns it. It is read through the API server's proxy, which does not know
    /// the pod at once.
    pub(crate) async fn metrics_say(&self, fits: impl Fn(&str) -> bool) -> String {
        let path = format!(
            "/api/v1/namespaces/{}/services/nvidia-dcgm-exporter:gpu-metrics/proxy/metrics",
            self.namespace
        );
        let began = Instant::now();
        loop {
            let output = outcome("kubectl", &["get", "--raw", &path], "").await;
            let page = String::from_utf8_lossy(&output.stdout);
            if output.status.success() && fits(&page) {
                return page.into_owned();
            }
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(began.elapsed() < LIMIT, "{page}{error}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// For who looks for the reason of a failed test. Of the Node, since what Lathe does is in Events there.
    async fn print_state(&self) {
        for arguments in [
            &["describe", "node", &self.node_name][..],
            &["get", "pods", "-o=wide"],
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
