//! A simulated node with two H100s, the stand-in program, and a supervisor that is not patient.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use configuration::plugin::ResourceName;
use device_plugin::mps::machine::Pace;
use device_plugin::mps::plan::{Daemon, SharedGpu};
use device_plugin::mps::{Place, Plan, Report, Root, Supervisor, SupervisorError, ready};
use device_plugin::resources::Device;
use sim_nvml::admin::SimulatedNode;
use sim_nvml::model::ComputeMode;
use sim_nvml::presets::NodeSpec;

/// Longer than anything here takes, so that a test that would wait for ever fails.
const BOUND: Duration = Duration::from_secs(60);

const PROGRAM: &str = "usr/bin/nvidia-cuda-mps-control";

/// GPUs by index, with replicas.
pub(crate) type Wanted = Vec<(u32, u32)>;

pub(crate) fn daemon(gpus: &[(u32, u32)]) -> Wanted {
    gpus.to_vec()
}

pub(crate) struct Rig {
    pub(crate) node: SimulatedNode,
    pub(crate) supervisor: Supervisor,
    root: Root,
    folder: tempfile::TempDir,
}

/// What stays of a rig whose supervisor ended.
pub(crate) struct Ended {
    node: SimulatedNode,
    root: Root,
    folder: tempfile::TempDir,
}

fn pace() -> Pace {
    Pace {
        probe: Duration::from_millis(100),
        probe_again: Duration::from_millis(50),
        pauses: (Duration::from_millis(50), Duration::from_millis(200)),
        // What hangs on purpose is not waited for long; what does not has time on a busy machine.
        answer: Duration::from_secs(2),
        start: Duration::from_secs(30),
        end: Duration::from_secs(2),
    }
}

fn supervisor(node: &SimulatedNode, root: &Root) -> Result<Supervisor, SupervisorError> {
    let session = nvml::Session::with_pauses(
        &nvml::Options::at(node.root()),
        Duration::from_millis(20),
        Duration::from_millis(50),
    );
    let place = Place {
        node_root: node.root().to_owned(),
        root: root.clone(),
        pace: pace(),
    };
    Supervisor::open(place, Arc::new(session.unwrap()))
}

impl Rig {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let spec = NodeSpec::uniform("h100-sxm5-80gb", 2).unwrap();
        let node = SimulatedNode::create(&folder.path().join("node"), &spec).unwrap();
        let root = Root::new(folder.path().join("mps"));
        let rig = Self {
            supervisor: supervisor(&node, &root).unwrap(),
            node,
            root,
            folder,
        };
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mps/nvidia-cuda-mps-control");
        rig.install(&std::fs::read(own).unwrap());
        rig
    }

    pub(crate) fn install(&self, program: &[u8]) {
        let path = self.node.root().join(PROGRAM);
        // Appears complete.
        let hidden = path.with_extension("new");
        std::fs::write(&hidden, program).unwrap();
        std::fs::set_permissions(&hidden, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::rename(hidden, path).unwrap();
    }

    pub(crate) fn uninstall(&self) -> Vec<u8> {
        let path = self.node.root().join(PROGRAM);
        let program = std::fs::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        program
    }

    /// As the planner does it for boards of 80 GiB.
    pub(crate) fn apply(&mut self, daemons: &[(&str, Wanted)]) {
        let uuids = uuids(&self.node);
        let daemon = |gpus: &Wanted| {
            let gpus = gpus.iter().map(|&(index, replicas)| SharedGpu {
                uuid: uuids[index as usize].clone(),
                index,
                replicas,
                memory_mib: Some(u64::from(81_920 / replicas)),
            });
            Daemon {
                gpus: gpus.collect(),
            }
        };
        let daemons = daemons.iter();
        let plan = Plan {
            daemons: daemons
                .map(|(name, gpus)| (resource(name), daemon(gpus)))
                .collect(),
            refusals: Vec::new(),
        };
        self.supervisor.apply(&plan);
    }

    pub(crate) async fn until_ready(&mut self) {
        self.until("all is ready", |rig| rig.supervisor.is_ready())
            .await;
    }

    pub(crate) async fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let waiting = async {
            while !holds(self) {
                let pause = tokio::time::sleep(Duration::from_millis(10));
                tokio::select! {
                    () = self.supervisor.changed() => {}
                    () = pause => {}
                }
            }
        };
        if tokio::time::timeout(BOUND, waiting).await.is_err() {
            panic!("not seen: {what}; {:?}", self.supervisor.reports());
        }
    }

    pub(crate) async fn some_probes(&self) {
        tokio::time::sleep(Duration::from_millis(600)).await;
    }

    pub(crate) fn report(&self, name: &str) -> Report {
        self.supervisor.reports().remove(&resource(name)).unwrap()
    }

    pub(crate) fn put(&self, name: &str, file: &str, content: &str) {
        let folder = self.root.resource(&resource(name));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(file), content).unwrap();
    }

    pub(crate) fn take(&self, name: &str, file: &str) {
        std::fs::remove_file(self.root.resource(&resource(name)).join(file)).unwrap();
    }

    pub(crate) fn kill(&self, name: &str) {
        let pid = pid(&self.root, name).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    pub(crate) async fn end(self) -> Ended {
        tokio::time::timeout(BOUND, self.supervisor.end())
            .await
            .unwrap();
        Ended {
            node: self.node,
            root: self.root,
            folder: self.folder,
        }
    }

    /// The supervisor's process is killed, and another one starts.
    pub(crate) async fn killed(self) -> Self {
        let started = self.root.started_file(&resource("gpu"));
        let said = std::fs::read(&started).unwrap();
        drop(self.supervisor);
        // Tasks of the runtime end when it next looks at them; a killed process needs no such look.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        std::fs::write(started, said).unwrap();
        Self {
            supervisor: supervisor(&self.node, &self.root).unwrap(),
            ..self
        }
    }

    pub(crate) fn another(&self) -> Result<Supervisor, SupervisorError> {
        supervisor(&self.node, &self.root)
    }
}

/// What both have to look at.
macro_rules! looks {
    ($type:ident) => {
        impl $type {
            pub(crate) fn file(&self, path: &str) -> PathBuf {
                self.root.path().join(path)
            }

            /// Commands that the program got, with `{0}` for the UUID of GPU 0.
            pub(crate) fn record(&self, name: &str) -> Vec<String> {
                let file = self.root.resource(&resource(name)).join("record");
                let mut text = std::fs::read_to_string(file).unwrap_or_default();
                for (index, uuid) in uuids(&self.node).iter().enumerate() {
                    text = text.replace(uuid, &format!("{{{index}}}"));
                }
                text.lines().map(str::to_owned).collect()
            }

            /// What the device plugin is told.
            pub(crate) fn served(&self, name: &str) -> String {
                let Ok(served) = ready(&self.root, &resource(name)) else {
                    return "nothing".to_owned();
                };
                let mut shown = Vec::new();
                for (index, uuid) in uuids(&self.node).iter().enumerate() {
                    for replicas in 2..=48 {
                        let device = Device {
                            uuid: uuid.clone(),
                            gpu_index: 0,
                            gpu_uuid: uuid.clone(),
                            numa_node: None,
                            mig: None,
                            shares: Some(replicas),
                        };
                        if served.covers(&device) {
                            shown.push(format!("{{{index}}}*{replicas}"));
                        }
                    }
                }
                shown.join(" ")
            }

            pub(crate) fn modes(&self) -> Vec<ComputeMode> {
                let state = self.node.state().unwrap();
                state.gpus.iter().map(|gpu| gpu.modes.compute).collect()
            }
        }
    };
}

looks!(Rig);
looks!(Ended);

impl Rig {
    pub(crate) fn starts(&self, name: &str) -> usize {
        let record = self.record(name);
        record
            .iter()
            .filter(|line| line.starts_with("start "))
            .count()
    }
}

impl Ended {
    pub(crate) fn is_alive(&self, name: &str) -> bool {
        assert!(self.folder.path().is_dir());
        pid(&self.root, name).is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
    }
}

fn resource(name: &str) -> ResourceName {
    name.parse().unwrap()
}

fn uuids(node: &SimulatedNode) -> Vec<String> {
    let state = node.state().unwrap();
    state.gpus.iter().map(|gpu| gpu.uuid.clone()).collect()
}

fn pid(root: &Root, name: &str) -> Option<rustix::process::Pid> {
    let file = root
        .pipe(&resource(name))
        .join("nvidia-cuda-mps-control.pid");
    let text = std::fs::read_to_string(file).ok()?;
    rustix::process::Pid::from_raw(text.trim().parse().ok()?)
}
