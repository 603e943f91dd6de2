//! `lathe config-manager` as a manifest of NVIDIA's program starts it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::json;
use sim_kubernetes::{Options, Server};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const BOUND: Duration = Duration::from_secs(60);

/// An API server with a node, and the folders that the manifest mounts.
struct Rig {
    server: Server,
    runtime: Runtime,
    folder: TempDir,
}

impl Rig {
    fn new(label: Option<&str>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(Server::start(Options::default())).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let rig = Self {
            server,
            runtime,
            folder,
        };
        rig.label(label);
        fs::write(rig.path("kubeconfig"), rig.server.kubeconfig()).unwrap();
        fs::create_dir(rig.path("available-configs")).unwrap();
        fs::create_dir(rig.path("config")).unwrap();
        for name in ["default", "other"] {
            fs::write(rig.path("available-configs").join(name), name).unwrap();
        }
        rig
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn label(&self, value: Option<&str>) {
        let labels = value.map_or(
            json!({}),
            |value| json!({ "nvidia.com/device-plugin.config": value }),
        );
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-a", "labels": labels } });
        self.server.seed([node]).unwrap();
    }

    /// The program under NVIDIA's name, with the variables of its chart.
    fn command(&self) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lathe"));
        command
            .arg0("config-manager")
            .env("NODE_NAME", "node-a")
            .env("NODE_LABEL", "nvidia.com/device-plugin.config")
            .env("CONFIG_FILE_SRCDIR", self.path("available-configs"))
            .env("CONFIG_FILE_DST", self.path("config/config.yaml"))
            .env("DEFAULT_CONFIG", "")
            .env("FALLBACK_STRATEGIES", "named, single")
            .env("SEND_SIGNAL", "true")
            .env("SIGNAL", "1")
            .env("PROCESS_TO_SIGNAL", self.process())
            .env("KUBECONFIG", self.path("kubeconfig"));
        command
    }

    /// A name that no other test's process has.
    fn process(&self) -> String {
        let folder = self.folder.path().file_name().unwrap();
        format!("plugin{}", folder.to_str().unwrap())
    }

    fn linked(&self) -> Option<String> {
        let target = fs::read_link(self.path("config/config.yaml")).ok()?;
        Some(target.file_name().unwrap().to_str().unwrap().to_owned())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The server's tasks end with the runtime, which must not wait for them.
        let runtime = std::mem::replace(
            &mut self.runtime,
            tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap(),
        );
        runtime.shutdown_background();
    }
}

/// A process that is killed at the end of its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + BOUND;
    while !is_so() {
        assert!(Instant::now() < end, "it never comes to that");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[rstest]
#[case::label(Some("other"), "other")]
#[case::fallback(None, "default")]
fn the_init_container_links_and_ends(#[case] label: Option<&str>, #[case] linked: &str) {
    let rig = Rig::new(label);
    let status = rig
        .command()
        .env("ONESHOT", "true")
        .env("SEND_SIGNAL", "false")
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(0));
    assert_eq!(rig.linked().as_deref(), Some(linked));
}

#[test]
fn the_init_container_fails_with_one_line_when_there_is_nothing_to_link() {
    let rig = Rig::new(Some("missing"));
    let output = rig
        .command()
        .arg("--oneshot")
        .env("LATHE_LOG", "error")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        format!(
            "error: the node's label asks for config \"missing\", but folder {} has default, other\n",
            rig.path("available-configs").display()
        )
    );
    assert_eq!(rig.linked(), None);
}

#[test]
fn the_side_container_follows_the_label_and_tells_the_plugin() {
    let rig = Rig::new(None);
    let mut plugin = Process(
        Command::new("sleep")
            .arg0(rig.process())
            .arg("600")
            .spawn()
            .unwrap(),
    );
    // A signal that ends a process that does not know what to do with it, unlike SIGHUP below `nohup`.
    let command = || {
        let mut command = rig.command();
        command.env("SIGNAL", "10");
        command
    };
    let silent = command()
        .env("ONESHOT", "1")
        .env("SEND_SIGNAL", "0")
        .status();
    assert!(silent.unwrap().success());
    let mut manager = Process(command().stderr(Stdio::null()).spawn().unwrap());
    // The link is right already: nobody is told.
    std::thread::sleep(Duration::from_millis(500));
    assert!(plugin.0.try_wait().unwrap().is_none());
    rig.label(Some("missing"));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(rig.linked().as_deref(), Some("default"));
    assert!(manager.0.try_wait().unwrap().is_none());
    rig.label(Some("other"));
    until(|| rig.linked().as_deref() == Some("other"));
    until(|| plugin.0.try_wait().unwrap().is_some());
    assert!(manager.0.try_wait().unwrap().is_none());
}

#[rstest]
#[case::no_node(&["--node-name", ""])]
#[case::no_signal(&["--signal", "0"])]
#[case::unknown_signal(&["--signal", "99"])]
#[case::fallback(&["--fallback-strategies", "named,none"])]
fn wrong_flags_are_wrong_usage(#[case] flags: &[&str]) {
    let rig = Rig::new(None);
    let output = rig.command().args(flags).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(rig.linked(), None);
}
