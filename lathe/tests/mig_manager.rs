//! The program `lathe mig-manager` as a process: started, killed in the middle, started again, asked to end.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use sim_kubernetes::{Options, Server};
use sim_nvml::admin::SimulatedNode;
use sim_nvml::model::{Effect, Fault, Personality};
use sim_nvml::presets::NodeSpec;

const NAME: &str = "gpu-node";

/// Longer than anything here takes, so that a test that would wait for ever fails.
const BOUND: Duration = Duration::from_secs(60);

struct Rig {
    server: Server,
    node: SimulatedNode,
    folder: tempfile::TempDir,
}

impl Rig {
    async fn new() -> Self {
        Self::of(NodeSpec::uniform("h100-sxm5-80gb", 2).unwrap()).await
    }

    async fn of(spec: NodeSpec) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = SimulatedNode::create(&folder.path().join("root"), &spec).unwrap();
        let server = Server::start(Options::default()).await.unwrap();
        server
            .seed([json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NAME } })])
            .unwrap();
        std::fs::write(folder.path().join("kubeconfig"), server.kubeconfig()).unwrap();
        Self {
            server,
            node,
            folder,
        }
    }

    fn kubeconfig(&self) -> std::path::PathBuf {
        self.folder.path().join("kubeconfig")
    }

    fn start(&self) -> Process {
        let kubeconfig = self.kubeconfig();
        let kubeconfig = kubeconfig.to_str().unwrap();
        self.part(&[
            "mig-manager",
            "--node-name",
            NAME,
            "--kubeconfig",
            kubeconfig,
        ])
    }

    fn part(&self, arguments: &[&str]) -> Process {
        let child = Command::new(env!("CARGO_BIN_EXE_lathe"))
            .args(arguments)
            .args([Path::new("--root"), self.node.root()])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Process(child)
    }

    async fn label(&self, config: &str) {
        let client = cluster::client("test", Some(&self.kubeconfig()))
            .await
            .unwrap();
        let patch =
            Patch::Merge(json!({ "metadata": { "labels": { "nvidia.com/mig.config": config } } }));
        Api::<Node>::all(client)
            .patch(NAME, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    fn state(&self) -> String {
        let node = self.server.object("v1", "Node", "", NAME).unwrap();
        let label = &node["metadata"]["labels"]["nvidia.com/mig.config.state"];
        label.as_str().unwrap_or_default().to_owned()
    }

    fn instances(&self) -> Vec<usize> {
        let state = self.node.state().unwrap();
        state
            .gpus
            .iter()
            .map(|gpu| gpu.mig.instances.len())
            .collect()
    }

    async fn until(&self, wanted: impl Fn(&Self) -> bool) {
        let reached = async {
            while !wanted(self) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(BOUND, reached).await.is_err() {
            panic!(
                "never so: instances {:?}, state {:?}",
                self.instances(),
                self.state()
            );
        }
    }
}

/// Killed when dropped.
struct Process(Child);

impl Process {
    fn ask_to_end(&self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    async fn ended(&mut self) -> std::process::ExitStatus {
        let wait = async {
            loop {
                if let Some(status) = self.0.try_wait().unwrap() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(BOUND, wait).await.expect("it ends")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[tokio::test]
async fn it_cuts_and_ends_when_asked() {
    let rig = Rig::new().await;
    let mut process = rig.start();
    rig.label("all-3g.40gb").await;
    rig.until(|rig| rig.state() == "success").await;
    assert_eq!(rig.instances(), [2, 2]);
    process.ask_to_end();
    assert!(process.ended().await.success());
}

#[tokio::test]
async fn killed_in_the_middle_it_is_finished_by_the_next() {
    let rig = Rig::new().await;
    // It goes no further, however late it is killed.
    let middle = Fault {
        after: 3,
        ..Fault::new("nvmlDeviceCreateGpuInstanceWithPlacement", Effect::Hang)
    };
    rig.node.inject(middle).unwrap();
    let process = rig.start();
    rig.label("all-1g.10gb").await;
    rig.until(|rig| rig.instances().iter().any(|count| (1..7).contains(count)))
        .await;
    drop(process);
    assert_eq!(rig.state(), "pending");
    assert_ne!(rig.instances(), [7, 7]);
    rig.node.clear_all().unwrap();
    let mut process = rig.start();
    rig.until(|rig| rig.state() == "success").await;
    assert_eq!(rig.instances(), [7, 7]);
    process.ask_to_end();
    assert!(process.ended().await.success());
}

/// On a driver for which every process that has its library open holds the GPUs, which is what real ones do before a reset.
#[tokio::test]
async fn parts_that_only_look_let_go_of_the_gpus_meanwhile() {
    let rig = Rig::of(NodeSpec {
        personality: Some(Personality {
            clients_hold: true,
            ..Personality::default()
        }),
        ..NodeSpec::uniform("a100-sxm4-40gb", 2).unwrap()
    })
    .await;
    let _exporter = rig.part(&[
        "dcgm-exporter",
        "--address=127.0.0.1:0",
        "--collect-interval=200",
    ]);
    let _discovery = rig.part(&["feature-discovery"]);
    let _manager = rig.start();
    let clients = |rig: &Rig| rig.node.state().unwrap().clients.len();
    rig.until(|rig| clients(rig) == 3).await;
    for (config, instances) in [("all-3g.20gb", [2, 2]), ("all-disabled", [0, 0])] {
        rig.label(config).await;
        // At once, by waiting: a second try would come after the label said `failed`.
        rig.until(|rig| {
            assert_ne!(rig.state(), "failed", "{config}");
            rig.state() == "success" && rig.instances() == instances
        })
        .await;
        rig.until(|rig| clients(rig) == 3).await;
    }
}

#[tokio::test]
async fn without_a_cluster_it_says_so() {
    let output = Command::new(env!("CARGO_BIN_EXE_lathe"))
        .args([
            "mig-manager",
            "--node-name",
            NAME,
            "--kubeconfig",
            "/does/not/exist",
        ])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("kubeconfig /does/not/exist: "), "{text}");
}

#[tokio::test]
async fn an_api_server_that_is_away_is_named_once() {
    let rig = Rig::new().await;
    let kubeconfig = rig.server.kubeconfig();
    let server = kubeconfig.split('"').nth(1).unwrap();
    // No port that the system gives to another test's server.
    let away = kubeconfig.replace(server, "http://127.0.0.1:1");
    std::fs::write(rig.kubeconfig(), away).unwrap();
    let log = rig.folder.path().join("log");
    let child = Command::new(env!("CARGO_BIN_EXE_lathe"))
        .args(["mig-manager", "--node-name", NAME])
        .args([Path::new("--root"), rig.node.root()])
        .args([Path::new("--kubeconfig"), &rig.kubeconfig()])
        .env_remove("LATHE_LOG")
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let process = Process(child);
    let said = || std::fs::read_to_string(&log).unwrap();
    rig.until(|_| said().contains("lost the watch")).await;
    // Time for more tries, each of which fails as the first one did.
    tokio::time::sleep(Duration::from_secs(2)).await;
    drop(process);
    let said = said();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("Connection refused"), "{said}");
}

#[tokio::test]
async fn a_node_without_a_name_is_none() {
    let output = Command::new(env!("CARGO_BIN_EXE_lathe"))
        .args(["mig-manager", "--node-name", ""])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}
