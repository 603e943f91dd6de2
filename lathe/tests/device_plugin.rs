//! The program `lathe device-plugin` as a process: registered with a kubelet, told to read its file again, asked to end.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sim_kubelet::DeviceManager;
use sim_nvml::admin::SimulatedNode;
use sim_nvml::presets::NodeSpec;

/// Longer than anything here takes, so that a test that would wait for ever fails.
const BOUND: Duration = Duration::from_secs(60);

struct Rig {
    node: SimulatedNode,
    folder: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let spec = NodeSpec::uniform("h100-sxm5-80gb", 2).unwrap();
        let node = SimulatedNode::create(&folder.path().join("root"), &spec).unwrap();
        std::fs::create_dir_all(node.root().join("var/lib/kubelet/device-plugins")).unwrap();
        Self { node, folder }
    }

    fn sockets(&self) -> PathBuf {
        self.node.root().join("var/lib/kubelet/device-plugins")
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("config.yaml")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lathe"));
        command.env_clear().stderr(Stdio::null());
        command.env("LATHE_ROOT", self.node.root());
        command
    }

    /// Waits until the kubelet holds so many healthy devices of the only resource.
    async fn until(&self, kubelet: &DeviceManager, wanted: usize) {
        let mut devices = kubelet.subscribe();
        let healthy = devices.wait_for(|devices| {
            let lists = devices.values().flat_map(|devices| devices.list.values());
            lists.filter(|healthy| **healthy).count() == wanted
        });
        let reached = tokio::time::timeout(BOUND, healthy).await;
        assert!(reached.is_ok(), "never {wanted}: {:?}", kubelet.devices());
    }
}

/// Killed when dropped.
struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Its exit status, once it has ended by itself.
    fn end(mut self) -> Option<i32> {
        let begun = Instant::now();
        while begun.elapsed() < BOUND {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not end");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// By upstream's name and with its variables only. Its config-manager finds it by that name and sends a hangup.
#[tokio::test]
async fn a_life() {
    let rig = Rig::new();
    let kubelet = DeviceManager::start(&rig.sockets());
    std::fs::write(rig.file(), "").unwrap();
    let mut command = rig.command();
    command.arg0("nvidia-device-plugin");
    command
        .env("CONFIG_FILE", rig.file())
        .env("MIG_STRATEGY", "mixed");
    let process = Process(command.spawn().unwrap());
    rig.until(&kubelet, 2).await;
    assert!(rig.sockets().join("nvidia-gpu.sock").exists());
    process.signal(Signal::HUP);
    let shared = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}";
    std::fs::write(rig.file(), shared).unwrap();
    process.signal(Signal::HUP);
    rig.until(&kubelet, 8).await;
    process.signal(Signal::TERM);
    assert_eq!(process.end(), Some(0));
    assert!(!rig.sockets().join("nvidia-gpu.sock").exists());
}

#[test]
fn what_cannot_be_used_is_told_in_one_line() {
    let rig = Rig::new();
    let missing = Path::new("/nowhere/config.yaml");
    let mut command = rig.command();
    command
        .args(["device-plugin", "--config-file"])
        .arg(missing);
    let output = command.stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(
        text.starts_with("error: ") && text.contains("/nowhere/config.yaml"),
        "{text}"
    );
}
