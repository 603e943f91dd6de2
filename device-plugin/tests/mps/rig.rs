//! A simulated node with two H100s, the stand-in program, and a supervisor that is not patient.

use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use configuration::plugin::ResourceName;
use device_plugin::mps::plan::{Daemon, SharedGpu};
use device_plugin::mps::{Pace, Place, Plan, Report, Root, Supervisor, SupervisorError, ready};
use device_plugin::resources::Device;
use sim_nvml::admin::SimulatedNode;
use sim_nvml::model::ComputeMode;
use sim_nvml::presets::NodeSpec;

/// Longer than anything here takes, so that a test that would wait for ever fails.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

const PROGRAM: &str = "usr/bin/nvidia-cuda-mps-control";

/// GPUs by index, with replicas.
pub(crate) type Wanted = Vec<(u32, u32)>;

pub(crate) fn daemon(gpus: &[(u32, u32)]) -> Wanted {
    gpus.to_vec()
}

/// The node: what there is to see and to break, whoever looks after the daemons.
pub(crate) struct Node {
    pub(crate) sim: SimulatedNode,
    root: Root,
    /// How long the program may take to answer.
    answer: Duration,
    folder: tempfile::TempDir,
}

/// A node with a supervisor.
pub(crate) struct Rig {
    node: Node,
    pub(crate) supervisor: Supervisor,
}

impl Deref for Rig {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

/// Longer than a program takes on a busy machine: a command that was given up would be given, and written down, once more.
const PATIENT: Duration = Duration::from_secs(20);
/// Where it hangs on purpose.
const IMPATIENT: Duration = Duration::from_secs(2);

fn pace(answer: Duration) -> Pace {
    Pace {
        probe: Duration::from_millis(100),
        probe_again: Duration::from_millis(50),
        pauses: (Duration::from_millis(50), Duration::from_millis(200)),
        answer,
        start: Duration::from_secs(30),
        end: Duration::from_secs(2),
    }
}

impl Node {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let spec = NodeSpec::uniform("h100-sxm5-80gb", 2).unwrap();
        let node = Self {
            sim: SimulatedNode::create(&folder.path().join("node"), &spec).unwrap(),
            root: Root::new(folder.path().join("mps")),
            answer: PATIENT,
            folder,
        };
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mps/nvidia-cuda-mps-control");
        node.install(&std::fs::read(own).unwrap());
        node
    }

    pub(crate) fn session(&self) -> Arc<nvml::Session> {
        let options = nvml::Options::at(self.sim.root());
        let (first, longest) = (Duration::from_millis(20), Duration::from_millis(50));
        Arc::new(nvml::Session::with_pauses(&options, first, longest).unwrap())
    }

    pub(crate) fn place(&self) -> Place {
        Place {
            node_root: self.sim.root().to_owned(),
            root: self.root.clone(),
            pace: pace(self.answer),
        }
    }

    /// A file of the test's own.
    pub(crate) fn own_file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn supervisor(&self) -> Result<Supervisor, SupervisorError> {
        Supervisor::open(self.place(), self.session())
    }

    pub(crate) fn install(&self, program: &[u8]) {
        let path = self.sim.root().join(PROGRAM);
        // Appears complete.
        let hidden = path.with_extension("new");
        std::fs::write(&hidden, program).unwrap();
        std::fs::set_permissions(&hidden, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::rename(hidden, path).unwrap();
    }

    pub(crate) fn uninstall(&self) -> Vec<u8> {
        let path = self.sim.root().join(PROGRAM);
        let program = std::fs::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        program
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
        let pid = self.pid(name).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    fn pid(&self, name: &str) -> Option<rustix::process::Pid> {
        let file = self
            .root
            .pipe(&resource(name))
            .join("nvidia-cuda-mps-control.pid");
        let text = std::fs::read_to_string(file).ok()?;
        rustix::process::Pid::from_raw(text.trim().parse().ok()?)
    }

    pub(crate) fn is_alive(&self, name: &str) -> bool {
        let pid = self.pid(name);
        pid.is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
    }

    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn uuids(&self) -> Vec<String> {
        let state = self.sim.state().unwrap();
        state.gpus.iter().map(|gpu| gpu.uuid.clone()).collect()
    }

    /// Commands that the program got, with `{0}` for the UUID of GPU 0.
    pub(crate) fn record(&self, name: &str) -> Vec<String> {
        let file = self.root.resource(&resource(name)).join("record");
        let mut text = std::fs::read_to_string(file).unwrap_or_default();
        for (index, uuid) in self.uuids().iter().enumerate() {
            text = text.replace(uuid, &format!("{{{index}}}"));
        }
        text.lines().map(str::to_owned).collect()
    }

    pub(crate) fn starts(&self, name: &str) -> usize {
        let record = self.record(name);
        record
            .iter()
            .filter(|line| line.starts_with("start "))
            .count()
    }

    /// What the device plugin is told.
    pub(crate) fn served(&self, name: &str) -> String {
        let Ok(served) = ready(&self.root, &resource(name)) else {
            return "nothing".to_owned();
        };
        let mut shown = Vec::new();
        for (index, uuid) in self.uuids().iter().enumerate() {
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
        let state = self.sim.state().unwrap();
        state.gpus.iter().map(|gpu| gpu.modes.compute).collect()
    }
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::on(Node::new())
    }

    /// One that does not wait long for a program that hangs.
    pub(crate) fn impatient() -> Self {
        Self::on(Node {
            answer: IMPATIENT,
            ..Node::new()
        })
    }

    fn on(node: Node) -> Self {
        Self {
            supervisor: node.supervisor().unwrap(),
            node,
        }
    }

    /// As the planner does it for boards of 80 GiB.
    pub(crate) fn apply(&mut self, daemons: &[(&str, Wanted)]) {
        let uuids = self.uuids();
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
        self.until("all is ready, and said", |rig| {
            rig.supervisor.is_ready() && rig.file(".ready").exists()
        })
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
            panic!(
                "not seen: {what}; {:?}",
                self.supervisor.state().borrow().unready()
            );
        }
    }

    pub(crate) async fn some_probes(&self) {
        tokio::time::sleep(Duration::from_millis(600)).await;
    }

    pub(crate) fn report(&self, name: &str) -> Report {
        self.supervisor.state().borrow().reports[&resource(name)].clone()
    }

    pub(crate) async fn end(self) -> Node {
        tokio::time::timeout(BOUND, self.supervisor.end())
            .await
            .unwrap();
        self.node
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
            supervisor: next_supervisor(&self.node).await,
            node: self.node,
        }
    }
}

/// A program that another test starts has this process' files for a moment, its locks too, until it becomes itself.
async fn next_supervisor(node: &Node) -> Supervisor {
    let taken = async {
        loop {
            match node.supervisor() {
                Err(SupervisorError::Taken { .. }) => {
                    tokio::time::sleep(Duration::from_millis(10)).await
                }
                result => return result.unwrap(),
            }
        }
    };
    tokio::time::timeout(BOUND, taken).await.unwrap()
}

fn resource(name: &str) -> ResourceName {
    name.parse().unwrap()
}
