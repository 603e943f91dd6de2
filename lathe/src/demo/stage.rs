//! The demo's world: a simulated node, an API server, and the parts that run on them.
//!
//! The parts are started as their subcommands start them. None of them knows that the hardware is simulated.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use mig_manager::{controller, engine};
use serde_json::json;
use sim_nvml::admin::SimulatedNode;
use sim_nvml::model::latency::Latency;
use sim_nvml::presets::NodeSpec;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::nfd;

/// How often the exporter reads in the demo: often enough to see a change at once.
const COLLECT_INTERVAL: Duration = Duration::from_secs(1);

/// How long the parts may take to end.
const FAREWELL: Duration = Duration::from_secs(30);

/// The parts, each a task.
pub(crate) type Parts = JoinSet<anyhow::Result<()>>;

/// Waits until a part ends, which none should before [`Stage::close`]; says which way it ended.
pub(crate) async fn part_ended(parts: &mut Parts) -> anyhow::Error {
    match parts.join_next().await {
        None => anyhow::anyhow!("no part is running"),
        Some(Ok(Ok(()))) => anyhow::anyhow!("a part ended by itself"),
        Some(Ok(Err(error))) => error,
        Some(Err(error)) => anyhow::anyhow!("a part died: {error}"),
    }
}

/// What the world looks like.
pub(crate) struct Setting<'a> {
    /// Node preset of the simulator.
    pub(crate) preset: &'a str,
    /// How long driver calls take.
    pub(crate) latency: Latency,
    /// Port of the API server; 0 for a free one.
    pub(crate) api_port: u16,
    /// Port of the exporter; 0 for a free one.
    pub(crate) metrics_port: u16,
}

/// A running world. It ends with [`Stage::close`]; dropping it ends its tasks and removes its folder too.
pub(crate) struct Stage {
    /// Name of the Node object.
    pub(crate) node_name: String,
    /// The simulated hardware.
    pub(crate) hardware: Arc<SimulatedNode>,
    /// A client of the API server.
    pub(crate) client: kube::Client,
    /// Where the kubeconfig lies.
    pub(crate) kubeconfig: PathBuf,
    /// Where metrics are served.
    pub(crate) metrics: SocketAddr,
    /// Steps of MIG changes as they happen.
    pub(crate) steps: UnboundedReceiver<engine::Event>,
    /// The running parts.
    pub(crate) parts: Parts,
    server: sim_kubernetes::Server,
    shutdown: CancellationToken,
    folder: tempfile::TempDir,
}

impl Stage {
    /// Builds the world and starts the parts.
    ///
    /// # Errors
    /// The driver library is not there, a port is taken, or a part does not start.
    pub(crate) async fn open(setting: Setting<'_>) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("lathe-demo-")
            .tempdir()
            .context("making a folder for the demo")?;
        let hardware = Arc::new(create_node(&setting, &folder.path().join("node"))?);
        let root = hardware.root().to_owned();
        let node_name = hardware.state()?.name.clone();

        let server = sim_kubernetes::Server::start(sim_kubernetes::Options {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, setting.api_port)),
            objects: vec![node_object(&node_name), lease_object(&node_name)],
            ..sim_kubernetes::Options::default()
        })
        .await?;
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, server.kubeconfig()).context("writing the kubeconfig")?;
        let client = cluster::client("demo", Some(&kubeconfig)).await?;

        // One for each, as in processes of their own: those who only look let go of theirs while the manager changes GPUs.
        let options = nvml::Options {
            root: root.clone(),
            ..nvml::Options::default()
        };
        let session = || nvml::Session::new(&options).map(Arc::new);
        let shutdown = CancellationToken::new();
        let (tell, steps) = unbounded_channel();
        let mut parts = JoinSet::new();
        let metrics =
            start_exporter(&mut parts, &setting, &node_name, session()?, &shutdown).await?;
        start_discovery(&mut parts, &root, session()?, &shutdown);
        start_manager(
            &mut parts,
            &node_name,
            &root,
            session()?,
            &client,
            tell,
            &shutdown,
        );
        let nodes = cluster::node::Node::watch(client.clone(), &node_name);
        parts.spawn(nfd::run(root, nodes, shutdown.clone()));
        Ok(Self {
            node_name,
            hardware,
            client,
            kubeconfig,
            metrics,
            steps,
            parts,
            server,
            shutdown,
            folder,
        })
    }

    /// Ends the parts and the server and removes the folder.
    ///
    /// # Errors
    /// A part failed while it ended, took too long, or the folder cannot be removed.
    pub(crate) async fn close(mut self) -> anyhow::Result<()> {
        self.shutdown.cancel();
        let ended = tokio::time::timeout(FAREWELL, async {
            while let Some(part) = self.parts.join_next().await {
                part.context("a part died")??;
            }
            anyhow::Ok(())
        })
        .await;
        self.server.shutdown().await;
        let path = self.folder.path().to_owned();
        self.folder
            .close()
            .with_context(|| format!("removing {}", path.display()))?;
        ended.with_context(|| format!("a part did not end within {} s", FAREWELL.as_secs()))?
    }
}

fn create_node(setting: &Setting<'_>, root: &Path) -> anyhow::Result<SimulatedNode> {
    let spec = NodeSpec::preset(setting.preset)?;
    let node = SimulatedNode::create(root, &spec)?;
    node.set_latency(setting.latency.clone())?;
    Ok(node)
}

/// The Node as a kubelet would have registered it.
fn node_object(name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            },
        },
        "status": {
            "conditions": [{
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "the demo has no kubelet",
            }],
            "nodeInfo": {
                "kubeletVersion": "v1.34.0",
                "operatingSystem": "linux",
                "architecture": "amd64",
                "osImage": "Lathe demo",
                "kernelVersion": "simulated",
                "containerRuntimeVersion": "none://",
                "machineID": "", "systemUUID": "", "bootID": "", "kubeProxyVersion": "",
            },
        },
    })
}

/// The kubelet's heartbeat, which `kubectl describe node` looks for.
fn lease_object(node: &str) -> serde_json::Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": 40},
    })
}

async fn start_exporter(
    parts: &mut Parts,
    setting: &Setting<'_>,
    node_name: &str,
    session: Arc<nvml::Session>,
    shutdown: &CancellationToken,
) -> anyhow::Result<SocketAddr> {
    let exporter = dcgm_exporter::Exporter::bind(dcgm_exporter::Config {
        address: format!("{}:{}", Ipv4Addr::LOCALHOST, setting.metrics_port),
        interval: COLLECT_INTERVAL,
        selector: dcgm_exporter::selector::Selector::Flex,
        counters: dcgm_exporter::counters::Counters::default(),
        style: dcgm_exporter::labels::LabelStyle {
            hostname: Some(node_name.to_owned()),
            ..dcgm_exporter::labels::LabelStyle::default()
        },
        health_requires_gpus: false,
        pods: None,
    })
    .await?;
    let address = exporter.address()?;
    let shutdown = shutdown.clone();
    parts.spawn(async move { Ok(exporter.run(session, shutdown).await?) });
    Ok(address)
}

fn start_discovery(
    parts: &mut Parts,
    root: &Path,
    session: Arc<nvml::Session>,
    shutdown: &CancellationToken,
) {
    let config = feature_discovery::Settings {
        strategy: Some(gpu::labels::MigStrategy::Mixed),
        ..feature_discovery::Settings::default()
    }
    .finish();
    let (root, shutdown) = (root.to_owned(), shutdown.clone());
    parts.spawn(async move { Ok(feature_discovery::run(root, config, session, shutdown).await?) });
}

fn start_manager(
    parts: &mut Parts,
    node_name: &str,
    root: &Path,
    session: Arc<nvml::Session>,
    client: &kube::Client,
    tell: UnboundedSender<engine::Event>,
    shutdown: &CancellationToken,
) {
    let mut config = controller::Config::new(node_name, root);
    config.on_progress = Some(Arc::new(move |event: &engine::Event| {
        // The view may be over already.
        let _ = tell.send(event.clone());
    }));
    let run = controller::run(config, session, client.clone(), shutdown.clone());
    parts.spawn(async move {
        run.await;
        Ok(())
    });
}
