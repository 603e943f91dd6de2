//! Daemons that follow configuration, hardware and the Node, as `lathe mps-daemon` runs them.

use std::time::Duration;

use cluster::node::Node as ClusterNode;
use device_plugin::mps::service::{Config, LONGEST_PAUSE, Service};
use device_plugin::service::{Config as PluginConfig, Source};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use sim_kubernetes::{Options, Server};
use sim_nvml::model::ComputeMode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::rig::{BOUND, Node};

const FOUR: &str = "version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 4}]}}\n";
const TWO: &str = "version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n";

struct Running {
    node: Node,
    address: std::net::SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    async fn start(node: Node, file: &str, cluster: Option<ClusterNode>) -> Self {
        Self::start_with(node, file, cluster, LONGEST_PAUSE).await
    }

    async fn start_with(
        node: Node,
        file: &str,
        cluster: Option<ClusterNode>,
        longest_pause: Duration,
    ) -> Self {
        let path = node.own_file("config.yaml");
        std::fs::write(&path, file).unwrap();
        let mut plugin = PluginConfig::new(node.sim.root());
        plugin.source = Source::File(path);
        let config = Config {
            place: node.place(),
            plugin,
            shm: node.file("shm"),
            longest_pause,
            metrics_address: Some("127.0.0.1:0".to_owned()),
        };
        let service = Service::open(config, node.session(), cluster)
            .await
            .unwrap();
        let address = service.address().unwrap();
        let shutdown = CancellationToken::new();
        let until = shutdown.clone();
        let task = tokio::spawn(async move {
            service.run(&Notify::new(), until).await.unwrap();
        });
        Self {
            node,
            address,
            shutdown,
            task,
        }
    }

    fn configure(&self, file: &str) {
        let path = self.node.own_file("config.yaml");
        let new = self.node.own_file("config.new");
        std::fs::write(&new, file).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    async fn get(&self, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn until(&self, what: &str, holds: impl Fn(&Node) -> bool) {
        let waiting = async {
            while !holds(&self.node) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(BOUND, waiting).await.is_err() {
            panic!("not seen: {what}; {}", self.get("/readyz").await);
        }
    }

    async fn end(self) -> Node {
        self.shutdown.cancel();
        tokio::time::timeout(BOUND, self.task)
            .await
            .unwrap()
            .unwrap();
        self.node
    }
}

/// A rollout goes on across nodes without GPUs.
#[tokio::test]
async fn a_node_without_gpus_is_ready() {
    let node = Node::new();
    node.sim.unload_driver().unwrap();
    let bus = node.sim.root().join("sys/bus/pci/devices");
    std::fs::rename(&bus, node.own_file("bus")).unwrap();
    std::fs::create_dir(&bus).unwrap();
    let running = Running::start(node, FOUR, None).await;
    let ready = async {
        while !running.get("/readyz").await.starts_with("HTTP/1.1 200") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(BOUND, ready).await.unwrap();
    running.end().await;
}

#[tokio::test]
async fn daemons_follow_the_configuration() {
    let running = Running::start(Node::new(), FOUR, None).await;
    running
        .until("four", |node| node.served("gpu") == "{0}*4 {1}*4")
        .await;
    running
        .until("ready", |node| node.file(".ready").exists())
        .await;
    assert!(running.get("/readyz").await.starts_with("HTTP/1.1 200"));
    let metrics = running.get("/metrics").await;
    assert!(
        metrics.contains("lathe_mps_daemon_ready{resource=\"nvidia.com/gpu\"} 1"),
        "{metrics}"
    );
    running.configure(TWO);
    running
        .until("two", |node| node.served("gpu") == "{0}*2 {1}*2")
        .await;
    assert_eq!(running.node.starts("gpu"), 1);
    // What cannot be used changes nothing.
    running.configure("version: v7\n");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(running.node.served("gpu"), "{0}*2 {1}*2");
    running.configure("version: v1\n");
    running
        .until("put away", |node| node.modes() == [ComputeMode::Default; 2])
        .await;
    assert_eq!(running.node.served("gpu"), "nothing");
    running.end().await;
}

#[tokio::test]
async fn more_clients_than_mps_takes_are_refused() {
    let file = "version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 49, devices: [0]}, {name: gpu, replicas: 48}]}}\n";
    let running = Running::start(Node::new(), file, None).await;
    running
        .until("the other", |node| node.served("gpu") == "{1}*48")
        .await;
    running.end().await;
}

#[tokio::test]
async fn an_absent_driver_is_waited_for() {
    let node = Node::new();
    node.sim.unload_driver().unwrap();
    let running = Running::start(node, FOUR, None).await;
    let answer = running.get("/readyz").await;
    assert!(
        answer.contains("it is not known yet which GPUs are shared"),
        "{answer}"
    );
    assert!(!running.node.file(".ready").exists());
    running.node.sim.load_driver().unwrap();
    running
        .until("served", |node| node.served("gpu") == "{0}*4 {1}*4")
        .await;
    // A driver that goes takes no daemon down by itself: that is told by the device plugin.
    running.end().await;
}

#[tokio::test]
async fn a_gpu_that_goes_into_mig_mode_is_left_out() {
    let running = Running::start(Node::new(), FOUR, None).await;
    running
        .until("both", |node| node.served("gpu") == "{0}*4 {1}*4")
        .await;
    // An event tells of the change, and one that nobody listens for is lost.
    running.node.sim.set_trace(true).unwrap();
    running
        .until("events are listened for", |node| {
            node.sim.sets_waited_on().unwrap() >= 2
        })
        .await;
    running.node.sim.set_trace(false).unwrap();
    let session = running.node.session();
    let change = tokio::task::spawn_blocking(move || {
        let gpu = session.driver()?.gpu(1);
        gpu.run(|device| device.set_mig_mode(true))
    });
    change.await.unwrap().unwrap();
    running
        .until("one", |node| node.served("gpu") == "{0}*4")
        .await;
    running.end().await;
}

/// A Node at an API server, whose MIG manager says what it does.
struct Cluster {
    _server: Server,
    nodes: Api<k8s_openapi::api::core::v1::Node>,
    node: ClusterNode,
}

impl Cluster {
    const NAME: &str = "gpu-node";

    async fn start(simulated: &Node) -> Self {
        let server = Server::start(Options::default()).await.unwrap();
        let object =
            json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": Self::NAME } });
        server.seed([object]).unwrap();
        let kubeconfig = simulated.own_file("kubeconfig");
        std::fs::write(&kubeconfig, server.kubeconfig()).unwrap();
        let client = cluster::client("test", Some(&kubeconfig)).await.unwrap();
        Self {
            _server: server,
            nodes: Api::all(client.clone()),
            node: ClusterNode::watch(client, Self::NAME),
        }
    }

    async fn state(&self, value: &str) {
        let patch = json!({ "metadata": { "labels": { "nvidia.com/mig.config.state": value } } });
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        self.nodes.patch(Self::NAME, &params, &patch).await.unwrap();
    }
}

fn has_quit(node: &Node) -> bool {
    node.record("gpu").iter().any(|command| command == "quit")
}

#[tokio::test]
async fn the_node_says_when_gpus_must_be_let_go() {
    let simulated = Node::new();
    let cluster = Cluster::start(&simulated).await;
    let running = Running::start(simulated, FOUR, Some(cluster.node.clone())).await;
    running
        .until("served", |node| node.served("gpu") != "nothing")
        .await;
    cluster.state("pending").await;
    running.until("ended", has_quit).await;
    cluster.state("success").await;
    running
        .until("served again", |node| {
            node.starts("gpu") == 2 && node.served("gpu") != "nothing"
        })
        .await;
    running.end().await;
}

/// A MIG manager that died in the middle leaves the label as it was.
#[tokio::test]
async fn gpus_are_not_let_go_for_ever() {
    let simulated = Node::new();
    let cluster = Cluster::start(&simulated).await;
    let node = Some(cluster.node.clone());
    // Long enough that a busy machine ends the daemon before.
    let pause = Duration::from_secs(10);
    let running = Running::start_with(simulated, FOUR, node, pause).await;
    running
        .until("served", |node| node.served("gpu") != "nothing")
        .await;
    cluster.state("pending").await;
    running.until("ended", has_quit).await;
    running
        .until("served again", |node| {
            node.starts("gpu") == 2 && node.served("gpu") != "nothing"
        })
        .await;
    running.end().await;
}
