//! A simulated node and API server with the controller between them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, watcher};
use mig_manager::controller::state::{Retries, Retry};
use mig_manager::controller::{self, Config, Source};
use mig_manager::engine::OnFailure;
use serde_json::{Value, json};
use sim_kubernetes::{Options, Server};
use sim_nvml::admin::SimulatedNode;
use sim_nvml::model::latency::{Class, Latency};
use sim_nvml::presets::NodeSpec;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const NODE: &str = "gpu-node";

/// Longer than anything here takes, so that a test that would wait for ever fails.
const BOUND: Duration = Duration::from_secs(60);

/// A pause no test waits for.
pub(crate) const SLOW: Duration = Duration::from_secs(3600);

pub(crate) struct Setup {
    board: &'static str,
    latency: Latency,
    file: Option<String>,
    first_retry: Duration,
    on_failure: OnFailure,
    driver: bool,
    node: bool,
}

impl Default for Setup {
    /// Two H100s, instantly, with configurations made from the hardware and a controller that tries again soon.
    fn default() -> Self {
        Self {
            board: "h100-sxm5-80gb",
            latency: Latency::zero(),
            file: None,
            first_retry: Duration::from_millis(20),
            on_failure: OnFailure::Rollback,
            driver: true,
            node: true,
        }
    }
}

impl Setup {
    pub(crate) fn board(mut self, board: &'static str) -> Self {
        self.board = board;
        self
    }

    pub(crate) fn with_file(mut self, content: &str) -> Self {
        self.file = Some(content.to_owned());
        self
    }

    pub(crate) fn retrying_after(mut self, pause: Duration) -> Self {
        self.first_retry = pause;
        self
    }

    pub(crate) fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// A change of mode takes long enough to do something meanwhile.
    pub(crate) fn slowly(mut self) -> Self {
        self.latency = Latency {
            classes: [(Class::Mode, 1_000_000)].into(),
            ..Latency::default()
        };
        self
    }

    pub(crate) fn without_driver(mut self) -> Self {
        self.driver = false;
        self
    }

    pub(crate) fn without_node(mut self) -> Self {
        self.node = false;
        self
    }
}

pub(crate) fn node(labels: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "labels": labels } })
}

pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) node: SimulatedNode,
    folder: tempfile::TempDir,
    setup: Setup,
    running: Option<(CancellationToken, JoinHandle<()>)>,
    /// The running controller's.
    session: Weak<nvml::Session>,
    layout_changes: Arc<AtomicUsize>,
    states: Arc<Mutex<Vec<String>>>,
}

/// Writes down every value of the state label, from when it says that it listens.
async fn record(nodes: Api<Node>, states: Arc<Mutex<Vec<String>>>, listening: oneshot::Sender<()>) {
    let mut events = std::pin::pin!(watcher(nodes, watcher::Config::default()));
    let mut listening = Some(listening);
    while let Some(event) = events.next().await {
        if matches!(event, Ok(watcher::Event::InitDone))
            && let Some(listening) = listening.take()
        {
            listening.send(()).unwrap();
        }
        let Ok(watcher::Event::InitApply(node) | watcher::Event::Apply(node)) = event else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let label = node
            .metadata
            .labels
            .unwrap_or_default()
            .remove("nvidia.com/mig.config.state");
        let mut states = states.lock().unwrap();
        if let Some(label) = label
            && states.last() != Some(&label)
        {
            states.push(label);
        }
    }
}

impl Rig {
    pub(crate) async fn start(setup: Setup) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let spec = NodeSpec::uniform(setup.board, 2).unwrap();
        let simulated = SimulatedNode::create(&folder.path().join("root"), &spec).unwrap();
        simulated.set_latency(setup.latency.clone()).unwrap();
        if !setup.driver {
            simulated.unload_driver().unwrap();
        }
        let server = Server::start(Options::default()).await.unwrap();
        if setup.node {
            server.seed([node(json!({}))]).unwrap();
        }
        let mut rig = Self {
            server,
            node: simulated,
            folder,
            setup,
            running: None,
            session: Weak::new(),
            layout_changes: Arc::default(),
            states: Arc::default(),
        };
        let (listening, listens) = oneshot::channel();
        let nodes = Api::all(rig.client().await);
        tokio::spawn(record(nodes, rig.states.clone(), listening));
        // Else the first values may be over before the recorder's first look.
        tokio::time::timeout(BOUND, listens).await.unwrap().unwrap();
        if let Some(content) = rig.setup.file.clone() {
            rig.write_file(&content);
        }
        rig.restart().await;
        rig
    }

    /// Starts the controller (again).
    pub(crate) async fn restart(&mut self) {
        self.layout_changes.store(0, Ordering::Relaxed);
        let retry = Retry {
            first: self.setup.first_retry,
            longest: self.setup.first_retry,
        };
        let mut config = Config::new(NODE, self.node.root());
        config.engine.on_failure = self.setup.on_failure;
        config.retries = Retries {
            failed: retry,
            waiting: Retry {
                first: Duration::from_millis(20),
                longest: Duration::from_millis(20),
            },
        };
        if self.setup.file.is_some() {
            config.source = Source::File(self.file());
        }
        let layout_changes = self.layout_changes.clone();
        config.on_layout_change = Some(Arc::new(move || {
            layout_changes.fetch_add(1, Ordering::Relaxed);
        }));
        let options = nvml::Options::at(self.node.root());
        let session = nvml::Session::with_pauses(
            &options,
            Duration::from_millis(20),
            Duration::from_millis(50),
        )
        .unwrap();
        let session = Arc::new(session);
        self.session = Arc::downgrade(&session);
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(controller::run(
            config,
            session,
            self.client().await,
            shutdown.clone(),
        ));
        self.running = Some((shutdown, task));
    }

    /// Shuts the controller down and waits for its end.
    pub(crate) async fn stop(&mut self) {
        if let Some((shutdown, task)) = self.running.take() {
            shutdown.cancel();
            tokio::time::timeout(BOUND, task)
                .await
                .expect("shutdown is bounded")
                .unwrap();
            // The recorder of states is a watch and lags a little.
            self.until(|rig| rig.states().last().cloned().unwrap_or_default() == rig.state())
                .await;
        }
    }

    async fn client(&self) -> kube::Client {
        let path = self.folder.path().join("kubeconfig");
        std::fs::write(&path, self.server.kubeconfig()).unwrap();
        cluster::client("test", Some(&path)).await.unwrap()
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("config.yaml")
    }

    pub(crate) fn write_file(&self, content: &str) {
        std::fs::write(self.file(), content).unwrap();
    }

    /// Leaves the journal of a change of one GPU that was killed; the board has neither the devices nor the layout before.
    pub(crate) fn leave_journal(&self, gpu: usize, device: &str) {
        let folder = self.node.root().join("var/lib/lathe/mig");
        let place = json!({ "start": 0, "size": 1 });
        let head = json!({ "version": 1, "pid": 1, "name": "earlier", "gpus": [{
            "uuid": self.node.state().unwrap().gpus[gpu].uuid,
            "before": { "mig_enabled": true, "instances": [{ "id": 0, "profile_id": 999, "placement": place, "compute": [] }] },
            "goal": { "devices": { device: 1 } },
        }] });
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("journal"), format!("{head}\n")).unwrap();
    }

    /// Unloads the driver once nothing uses it, and loads it again once the controller has seen it go: none can be loaded anew
    /// under a library that is open, and the simulator only lets this test unload it because both are one process.
    pub(crate) async fn reload_driver(&self) {
        let session = self.session.upgrade().expect("the controller runs");
        let driver = session.driver().unwrap();
        self.until(|rig| rig.node.unload_driver().is_ok()).await;
        self.until(|_| driver.is_gone()).await;
        self.node.load_driver().unwrap();
    }

    pub(crate) async fn patch_labels(&self, labels: Value) {
        let nodes: Api<Node> = Api::all(self.client().await);
        let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
        nodes
            .patch(NODE, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    pub(crate) async fn label(&self, config: &str) {
        self.patch_labels(json!({ "nvidia.com/mig.config": config }))
            .await;
    }

    pub(crate) async fn until(&self, wanted: impl Fn(&Self) -> bool) {
        let reached = async {
            while !wanted(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(BOUND, reached).await.is_err() {
            panic!(
                "never so: instances {:?}, state {:?}, events {:#?}",
                self.instances(),
                self.state(),
                self.events()
            );
        }
    }

    pub(crate) async fn until_state(&self, state: &str) {
        self.until(|rig| rig.state() == state).await;
    }

    /// Events are written beside the state label, and may come after it.
    pub(crate) async fn until_said(&self, reason: &str, times: u64) {
        self.until(|rig| rig.count_of(reason) >= times).await;
    }

    /// Gives the controller time to do what it should not.
    pub(crate) async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }

    pub(crate) fn state(&self) -> String {
        let node = self
            .server
            .object("v1", "Node", "", NODE)
            .unwrap_or_default();
        node["metadata"]["labels"]["nvidia.com/mig.config.state"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// The values that the state label had, one after the other.
    pub(crate) fn states(&self) -> Vec<String> {
        self.states.lock().unwrap().clone()
    }

    /// The Events on the node in their order, as `TYPE REASON TEXT`; times in them are replaced by `#`.
    pub(crate) fn events(&self) -> Vec<String> {
        let mut events = self.server.objects("events.k8s.io/v1", "Event");
        events.sort_by_key(|event| event["eventTime"].as_str().map(str::to_owned));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        events
            .iter()
            .map(|event| {
                let note = text(&event["note"]);
                let note = match note.rsplit_once(" in ") {
                    Some((what, time)) if time.ends_with(" s") => format!("{what} in # s"),
                    _ => note,
                };
                format!("{} {} {note}", text(&event["type"]), text(&event["reason"]))
            })
            .collect()
    }

    /// How often an Event of this reason was recorded.
    pub(crate) fn count_of(&self, reason: &str) -> u64 {
        self.server
            .objects("events.k8s.io/v1", "Event")
            .iter()
            .filter(|event| event["reason"] == reason)
            .map(|event| event["series"]["count"].as_u64().unwrap_or(1))
            .sum()
    }

    /// How often the GPUs were looked at, as far as the trace goes.
    pub(crate) fn checks(&self) -> usize {
        let trace = self.node.trace().unwrap();
        trace
            .iter()
            .filter(|call| call.symbol == "nvmlDeviceGetMigMode")
            .count()
    }

    /// MIG devices per GPU.
    pub(crate) fn instances(&self) -> Vec<usize> {
        let state = self.node.state().unwrap();
        state
            .gpus
            .iter()
            .map(|gpu| {
                gpu.mig
                    .instances
                    .iter()
                    .map(|instance| instance.compute.len())
                    .sum()
            })
            .collect()
    }

    /// Driver calls that change something.
    pub(crate) fn mutations(&self) -> Vec<String> {
        let trace = self.node.trace().unwrap();
        trace
            .into_iter()
            .filter(|call| call.mutating)
            .map(|call| call.symbol)
            .collect()
    }

    pub(crate) fn layout_changes(&self) -> usize {
        self.layout_changes.load(Ordering::Relaxed)
    }
}
