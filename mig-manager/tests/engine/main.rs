//! The partition engine from the outside: files in, a simulated node's hardware out.
//!
//! What the hardware is afterwards is read from the simulated node's own state, not through the code under test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod apply;
mod config;
mod failure;
mod files;
mod fuzz;
mod history;
mod hooks;
mod kill;
mod mode;
mod plan;

use std::path::Path;
use std::sync::Mutex;

use mig_manager::config::Config;
use mig_manager::engine::{Applied, Engine, Error, Event, NodePlan, Options, Request};
use sim_nvml::admin::{SimulatedNode, WorkloadSpec};
use sim_nvml::presets::NodeSpec;

/// A simulated node in a folder of its own.
struct Node {
    sim: SimulatedNode,
    _folder: tempfile::TempDir,
    state: tempfile::TempDir,
}

impl Node {
    fn of(board: &str, gpus: usize) -> Self {
        Self::new(&NodeSpec::uniform(board, gpus).unwrap())
    }

    fn preset(name: &str) -> Self {
        Self::new(&NodeSpec::preset(name).unwrap())
    }

    fn new(spec: &NodeSpec) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sim = SimulatedNode::create(folder.path(), spec).unwrap();
        Self {
            sim,
            _folder: folder,
            state: in_memory(),
        }
    }

    fn options(&self) -> Options {
        options(self.sim.root(), self.state.path())
    }

    fn engine(&self) -> Engine {
        self.engine_with(self.options())
    }

    fn engine_with(&self, options: Options) -> Engine {
        let driver = nvml::Driver::open(&nvml::Options::at(self.sim.root())).unwrap();
        Engine::new(driver, options)
    }

    fn plan(&self, specs: &str) -> Result<NodePlan, Error> {
        self.engine().plan(&request(specs))
    }

    fn apply(&self, specs: &str) -> Result<Applied, Error> {
        self.engine().apply(&request(specs), &|_| {})
    }

    /// Applies and says which kinds of steps were taken, in the order in which they began.
    fn apply_watched(&self, specs: &str) -> (Result<Applied, Error>, Vec<Event>) {
        let events = Mutex::new(Vec::new());
        let watch = |event: &Event| events.lock().unwrap().push(event.clone());
        let result = self.engine().apply(&request(specs), &watch);
        (result, events.into_inner().unwrap())
    }

    fn equal(&self, specs: &str) -> bool {
        self.engine().assert(&request(specs)).unwrap().is_empty()
    }

    /// The hardware, one text per GPU: `off`, or `on` with each GPU instance as `profile id@first slice/compute slices`.
    fn layouts(&self) -> Vec<String> {
        let state = self.sim.state().unwrap();
        let shown = state.gpus.iter().map(|gpu| {
            let mut text = if gpu.mig.current { "on" } else { "off" }.to_owned();
            if gpu.mig.pending != gpu.mig.current {
                text.push_str(" until reset");
            }
            let mut instances: Vec<_> = gpu.mig.instances.iter().collect();
            instances.sort_by_key(|i| i.placement.start);
            for instance in instances {
                let mut compute: Vec<u32> =
                    instance.compute.iter().map(|c| c.placement.size).collect();
                compute.sort_unstable();
                let compute: Vec<String> = compute.iter().map(u32::to_string).collect();
                let (profile, start) = (instance.profile, instance.placement.start);
                text.push_str(&format!(" {profile}@{start}/{}", compute.join("+")));
            }
            text
        });
        shown.collect()
    }

    /// Driver calls that changed something, or tried to, since the last [`Node::forget_calls`].
    fn changes(&self) -> Vec<String> {
        let trace = self.sim.trace().unwrap();
        trace
            .into_iter()
            .filter(|e| e.mutating)
            .map(|e| e.symbol)
            .collect()
    }

    fn forget_calls(&self) {
        self.sim.clear_trace().unwrap();
    }

    /// Runs a process on the first compute instance of a GPU instance; on the whole GPU with `None`.
    fn workload(&self, gpu: usize, instance: Option<u32>) -> u32 {
        let spec = WorkloadSpec {
            gpu,
            instance: instance.map(|i| (i, 0)),
            name: "python train.py".to_owned(),
            ..WorkloadSpec::default()
        };
        self.sim.run_workload(spec).unwrap()
    }

    /// The id of the GPU instance that begins at a slice.
    fn instance_at(&self, gpu: usize, start: u32) -> u32 {
        let state = self.sim.state().unwrap();
        let instances = &state.gpus[gpu].mig.instances;
        instances
            .iter()
            .find(|i| i.placement.start == start)
            .unwrap()
            .id
    }

    fn journal(&self) -> Option<String> {
        std::fs::read_to_string(self.options().state_dir.join("journal")).ok()
    }
}

/// A folder whose files need no disk to be synced, where the machine has such: thousands of journal entries are written.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

fn options(root: &Path, state_dir: &Path) -> Options {
    Options {
        state_dir: state_dir.to_owned(),
        ..Options::at(root)
    }
}

/// A request for one named layout, given as the list of its specs.
fn request(specs: &str) -> Request {
    Request::of(&config(specs), None).unwrap()
}

fn config(specs: &str) -> Config {
    let indented = specs.trim().replace('\n', "\n  ");
    let file = format!("version: v1\nmig-configs:\n  wanted:\n  {indented}\n");
    Config::parse("test.yaml", file.as_bytes()).unwrap()
}

/// Every GPU of the node cut into these devices.
fn all(devices: &str) -> String {
    format!("- {{devices: all, mig-enabled: true, mig-devices: {{{devices}}}}}")
}

const OFF: &str = "- {devices: all, mig-enabled: false}";
