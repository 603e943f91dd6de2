//! A simulated node, kubelet and API server with the device plugin between them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use device_plugin::service::{Cluster, Config, Service, ServiceError, Source};
use mig_manager::config::Config as MigConfig;
use mig_manager::engine::{Engine, Options, Request};
use serde_json::{Value, json};
use sim_kubelet::{DeviceManager, Devices, PodResources, Pods};
use sim_kubernetes::Server;
use sim_nvml::admin::SimulatedNode;
use sim_nvml::presets::NodeSpec;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const NODE: &str = "gpu-node";

/// Longer than anything here takes, so that a test that would wait for ever fails.
const BOUND: Duration = Duration::from_secs(60);

/// What a test begins with.
pub(crate) struct Setup {
    spec: NodeSpec,
    file: String,
    driver: bool,
    labels: Option<Value>,
    configs: Option<Vec<(&'static str, &'static str)>>,
    change: Box<dyn FnOnce(&mut Config) + Send>,
}

impl Setup {
    /// Two H100s and a kubelet; no API server.
    pub(crate) fn new() -> Self {
        Self::of("h100-sxm5-80gb", 2)
    }

    pub(crate) fn of(board: &str, gpus: usize) -> Self {
        Self::spec(NodeSpec::uniform(board, gpus).unwrap())
    }

    pub(crate) fn spec(spec: NodeSpec) -> Self {
        Self {
            spec,
            file: String::new(),
            driver: true,
            labels: None,
            configs: None,
            change: Box::new(|_| {}),
        }
    }

    /// The configuration file.
    pub(crate) fn file(mut self, text: &str) -> Self {
        text.clone_into(&mut self.file);
        self
    }

    pub(crate) fn without_driver(mut self) -> Self {
        self.driver = false;
        self
    }

    /// An API server with the node.
    pub(crate) fn node(mut self, labels: Value) -> Self {
        self.labels = Some(labels);
        self
    }

    /// Named configurations, of which the node's label chooses one.
    pub(crate) fn configs(mut self, configs: &[(&'static str, &'static str)]) -> Self {
        self.configs = Some(configs.to_vec());
        self
    }

    pub(crate) fn config(mut self, change: impl FnOnce(&mut Config) + Send + 'static) -> Self {
        self.change = Box::new(change);
        self
    }

    pub(crate) async fn start(self) -> Rig {
        let mut rig = self.prepare().await;
        rig.start_kubelet();
        rig.start_plugin().await.unwrap();
        rig
    }

    /// Everything but the kubelet and the plugin.
    pub(crate) async fn prepare(self) -> Rig {
        let folder = tempfile::tempdir().unwrap();
        let node = SimulatedNode::create(&folder.path().join("root"), &self.spec).unwrap();
        // It needs a `lathe` that may not be built here; without it, the kernel's reset file is used.
        std::fs::remove_file(node.root().join("usr/bin/nvidia-smi")).unwrap();
        if !self.driver {
            node.unload_driver().unwrap();
        }
        let server = match &self.labels {
            Some(labels) => {
                let server = Server::start(sim_kubernetes::Options::default())
                    .await
                    .unwrap();
                let node = json!({
                    "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "labels": labels }
                });
                server.seed([node]).unwrap();
                Some(server)
            }
            None => None,
        };
        let mut config = Config::new(node.root());
        config.list_wait = BOUND;
        config.look_wait = BOUND;
        let file = folder.path().join("config.yaml");
        std::fs::write(&file, &self.file).unwrap();
        config.source = Source::File(file);
        if let Some(configs) = &self.configs {
            let named = folder.path().join("configs");
            std::fs::create_dir(&named).unwrap();
            for (name, text) in configs {
                std::fs::write(named.join(name), text).unwrap();
            }
            let rules = cluster::named_config::Rules::default();
            config.source = Source::Named(rules, cluster::named_config::Source::Folder(named));
        }
        config.metrics_address = Some("127.0.0.1:0".to_owned());
        (self.change)(&mut config);
        std::fs::create_dir_all(&config.device_plugins).unwrap();
        Rig {
            kubelet: None,
            pods: Pods::default(),
            pod_resources: None,
            config,
            node,
            server,
            folder,
            plugin: None,
        }
    }
}

/// The plugin at work.
struct Plugin {
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), ServiceError>>,
    address: std::net::SocketAddr,
}

pub(crate) struct Rig {
    pub(crate) node: SimulatedNode,
    pub(crate) server: Option<Server>,
    pub(crate) config: Config,
    pub(crate) pods: Pods,
    pub(crate) kubelet: Option<DeviceManager>,
    pod_resources: Option<PodResources>,
    folder: tempfile::TempDir,
    plugin: Option<Plugin>,
}

/// A resource as the kubelet holds it, for comparison: `nvidia.com/gpu` is `gpu`.
pub(crate) type Held = BTreeMap<String, (usize, usize)>;

impl Rig {
    /// Starts a kubelet, in the place of the one that runs, if any: with its pods, as after a restart.
    pub(crate) fn start_kubelet(&mut self) {
        self.stop_kubelet();
        let pods = self.pods.clone();
        self.kubelet = Some(DeviceManager::start_with(&self.config.device_plugins, pods));
        let pods = self.pods.clone();
        self.pod_resources = Some(PodResources::start(
            &self.config.kubelet.pod_resources(),
            pods,
        ));
    }

    pub(crate) fn stop_kubelet(&mut self) {
        self.kubelet = None;
        self.pod_resources = None;
    }

    pub(crate) fn kubelet(&self) -> &DeviceManager {
        self.kubelet.as_ref().unwrap()
    }

    pub(crate) async fn start_plugin(&mut self) -> Result<(), ServiceError> {
        let mut options = nvml::Options::at(&self.config.driver_root);
        // Long enough that a busy machine does not fail a test.
        options.call_timeout = BOUND;
        let pauses = (Duration::from_millis(20), Duration::from_millis(200));
        let session = nvml::Session::with_pauses(&options, pauses.0, pauses.1).unwrap();
        let cluster = match &self.server {
            Some(server) => Some(Cluster {
                client: client(server, self.folder.path()).await,
                node: NODE.to_owned(),
                instance: "pod-1".to_owned(),
            }),
            None => None,
        };
        let service = Service::open(self.config.clone(), Arc::new(session), cluster).await?;
        let address = service.address().unwrap();
        let shutdown = CancellationToken::new();
        let told = shutdown.clone();
        let task = tokio::spawn(async move { service.run(&Notify::new(), told).await });
        self.plugin = Some(Plugin {
            shutdown,
            task,
            address,
        });
        Ok(())
    }

    /// Asks the plugin to end, waits for it, and says how it ended.
    pub(crate) async fn stop_plugin(&mut self) -> Result<(), ServiceError> {
        let plugin = self.plugin.take().unwrap();
        plugin.shutdown.cancel();
        tokio::time::timeout(BOUND, plugin.task)
            .await
            .expect("shutdown is bounded")
            .unwrap()
    }

    /// Waits for the plugin's end, which it comes to by itself.
    pub(crate) async fn ends(&mut self) -> Result<(), ServiceError> {
        let plugin = self.plugin.take().unwrap();
        tokio::time::timeout(BOUND, plugin.task)
            .await
            .expect("it ends")
            .unwrap()
    }

    pub(crate) fn write_file(&self, text: &str) {
        let new = self.folder.path().join(".new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.folder.path().join("config.yaml")).unwrap();
    }

    pub(crate) fn configs(&self) -> PathBuf {
        self.folder.path().join("configs")
    }

    /// What the kubelet holds: by resource, healthy and unhealthy devices.
    pub(crate) fn held(&self) -> Held {
        held(&self.kubelet().devices())
    }

    /// Ids that the kubelet holds for healthy.
    pub(crate) fn healthy(&self, resource: &str) -> BTreeSet<String> {
        let devices = self.kubelet().devices();
        let list = devices.get(&format!("nvidia.com/{resource}"));
        let list = list.map(|devices| devices.list.clone()).unwrap_or_default();
        let healthy = list.into_iter().filter(|(_, healthy)| *healthy);
        healthy.map(|(id, _)| id).collect()
    }

    /// Waits until the kubelet holds this: `gpu 7+1, mig-1g.10gb 14` is eight GPUs, one of them unhealthy, and 14 MIG devices.
    pub(crate) async fn until(&self, wanted: &str) {
        let wanted: Held = wanted
            .split(", ")
            .filter(|text| !text.is_empty())
            .map(|text| {
                let (name, counts) = text.split_once(' ').unwrap();
                let (healthy, unhealthy) = counts.split_once('+').unwrap_or((counts, "0"));
                let counts = (healthy.parse().unwrap(), unhealthy.parse().unwrap());
                (name.to_owned(), counts)
            })
            .collect();
        let mut devices = self.kubelet().subscribe();
        let reached = devices.wait_for(|devices| held(devices) == wanted);
        if tokio::time::timeout(BOUND, reached).await.is_err() {
            panic!(
                "never {wanted:?}, but {:?}; events {:#?}",
                self.held(),
                self.events()
            );
        }
    }

    /// Waits until the events of all GPUs that are not lost are listened for: what comes before is not heard of.
    pub(crate) async fn listened_to(&self) {
        self.listened_to_by(1).await;
    }

    /// The same, where so many parts of this process listen, each for itself.
    pub(crate) async fn listened_to_by(&self, parts: usize) {
        let state = self.node.state().unwrap();
        let gpus = state.gpus.iter().filter(|gpu| !gpu.is_lost()).count();
        self.until_traced("events are listened for", |node| {
            node.sets_waited_on().unwrap() >= gpus * parts
        })
        .await;
    }

    /// Waits until calls of the driver library, from now on, are so.
    pub(crate) async fn until_traced(&self, what: &str, are: impl Fn(&SimulatedNode) -> bool) {
        self.node.set_trace(true).unwrap();
        self.until_so(what, |rig| are(&rig.node)).await;
        self.node.set_trace(false).unwrap();
        self.node.clear_trace().unwrap();
    }

    /// Waits until something else holds.
    pub(crate) async fn until_so(&self, what: &str, mut is: impl FnMut(&Self) -> bool) {
        let reached = async {
            while !is(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(BOUND, reached).await.is_err() {
            panic!("never: {what}; events {:#?}", self.events());
        }
    }

    /// Loads the driver that was unloaded, once the plugin has seen it go: none can be loaded anew under a library that is
    /// open, and the simulator only lets this test unload it because both are one process.
    pub(crate) async fn load_anew(&self, withdrawn: &str) {
        self.until(withdrawn).await;
        self.node.load_driver().unwrap();
    }

    /// Cuts the GPUs as the MIG manager would; `specs` are entries of its file.
    pub(crate) async fn cut(&self, specs: &str) {
        let root = self.node.root().to_owned();
        let state = self.folder.path().join("mig");
        let specs = specs.to_owned();
        let work = move || {
            let driver = nvml::Driver::open(&nvml::Options::at(&root)).unwrap();
            let options = Options {
                state_dir: state,
                ..Options::at(&root)
            };
            let text = format!("version: v1\nmig-configs:\n  x: [{specs}]\n");
            let config = MigConfig::parse("f", text.as_bytes()).unwrap();
            let request = Request::of(&config, None).unwrap();
            Engine::new(driver, options)
                .apply(&request, &|_| {})
                .unwrap();
        };
        tokio::task::spawn_blocking(work).await.unwrap();
    }

    /// UUID of a GPU.
    pub(crate) fn uuid(&self, gpu: usize) -> String {
        self.node.state().unwrap().gpus[gpu].uuid.clone()
    }

    /// The Events on the node in their order, as `TYPE REASON TEXT`.
    pub(crate) fn events(&self) -> Vec<String> {
        let Some(server) = &self.server else {
            return Vec::new();
        };
        let mut events = server.objects("events.k8s.io/v1", "Event");
        events.sort_by_key(|event| event["eventTime"].as_str().map(str::to_owned));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let line = |event: &Value| {
            let [kind, reason, note] = ["type", "reason", "note"].map(|key| text(&event[key]));
            format!("{kind} {reason} {note}")
        };
        events.iter().map(line).collect()
    }

    pub(crate) async fn client(&self) -> kube::Client {
        client(self.server.as_ref().unwrap(), self.folder.path()).await
    }

    pub(crate) async fn patch_labels(&self, labels: Value) {
        let client = self.client().await;
        let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(client);
        let patch = kube::api::Patch::Merge(json!({ "metadata": { "labels": labels } }));
        nodes
            .patch(NODE, &Default::default(), &patch)
            .await
            .unwrap();
    }

    /// Waits until a GET on the plugin's own server answers so; how it does.
    pub(crate) async fn until_get(
        &self,
        path: &str,
        is: impl Fn(u16, &str) -> bool,
    ) -> (u16, String) {
        let begun = Instant::now();
        loop {
            let (status, body) = self.get(path).await;
            if is(status, &body) {
                return (status, body);
            }
            assert!(begun.elapsed() < BOUND, "{path} says {status}: {body}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// GET on the plugin's own server: status and body.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let address = self.plugin.as_ref().unwrap().address;
        let exchange = async {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let answer = tokio::time::timeout(BOUND, exchange).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }
}

fn held(devices: &BTreeMap<String, Devices>) -> Held {
    let of = |(name, devices): (&String, &Devices)| {
        let name = name.strip_prefix("nvidia.com/").unwrap_or(name);
        let healthy = devices.list.values().filter(|healthy| **healthy).count();
        (name.to_owned(), (healthy, devices.list.len() - healthy))
    };
    devices.iter().map(of).collect()
}

async fn client(server: &Server, folder: &Path) -> kube::Client {
    let path = folder.join("kubeconfig");
    std::fs::write(&path, server.kubeconfig()).unwrap();
    cluster::client("test", Some(&path)).await.unwrap()
}
