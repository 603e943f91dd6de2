//! The hardware of a simulated node, followed through everything that can happen to it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod changes;
mod describe;
mod failures;
mod links;
mod pause;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use device_plugin::hardware::{Driver, Hardware, Inventory};
use nvml::{Event, EventKind, Options, Session};
use sim_nvml::admin::SimulatedNode;
use sim_nvml::model::{Effect, Fault};
use sim_nvml::presets::NodeSpec;

/// Longer than anything here takes, so that a test that would wait for ever fails.
const BOUND: Duration = Duration::from_secs(60);

/// How long a call may take. Long beside what happens meanwhile on a busy machine: what a hang must not hold up is seen before.
const HANG: Duration = Duration::from_secs(15);

struct Rig {
    sim: SimulatedNode,
    hardware: Hardware,
    events: Arc<Mutex<Vec<Event>>>,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn of(board: &str, gpus: usize) -> Self {
        Self::new(&NodeSpec::uniform(board, gpus).unwrap(), |_| {})
    }

    fn preset(name: &str) -> Self {
        Self::new(&NodeSpec::preset(name).unwrap(), |_| {})
    }

    /// A node that is prepared before anybody looks at it.
    fn new(spec: &NodeSpec, prepare: impl FnOnce(&SimulatedNode)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sim = SimulatedNode::create(&folder.path().join("root"), spec).unwrap();
        prepare(&sim);
        let options = Options {
            call_timeout: HANG,
            ..Options::at(sim.root())
        };
        let session = Session::new(&options).unwrap();
        let (hardware, mut receiver) = Hardware::start(Arc::new(session)).unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&events);
        tokio::spawn(async move {
            while let Some(event) = receiver.recv().await {
                heard.lock().unwrap().push(event);
            }
        });
        Self {
            sim,
            hardware,
            events,
            _folder: folder,
        }
    }

    /// Waits until the inventory is so.
    async fn until(&self, what: &str, holds: impl Fn(&Inventory) -> bool) -> Arc<Inventory> {
        let mut inventories = self.hardware.inventory();
        let reached = async {
            let found = inventories.wait_for(|inventory| holds(inventory)).await;
            Arc::clone(&found.unwrap())
        };
        match tokio::time::timeout(BOUND, reached).await {
            Ok(found) => found,
            Err(_) => panic!("{what}: {:#?}", self.hardware.inventory().borrow()),
        }
    }

    /// Waits until the GPUs are so: one word per GPU, what it offers or its trouble.
    async fn until_shown(&self, wanted: &str) -> Arc<Inventory> {
        let what = format!("never {wanted:?}");
        self.until(&what, |inventory| shown(inventory) == wanted)
            .await
    }

    /// Waits until an event was passed on.
    async fn until_event(&self, wanted: impl Fn(&Event) -> bool) -> Event {
        let heard = async {
            loop {
                let found = self
                    .events
                    .lock()
                    .unwrap()
                    .iter()
                    .find(|e| wanted(e))
                    .cloned();
                if let Some(event) = found {
                    return event;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        match tokio::time::timeout(BOUND, heard).await {
            Ok(event) => event,
            Err(_) => panic!("never heard: {:#?}", self.events.lock().unwrap()),
        }
    }

    /// Waits until all of so many GPUs are watched for events.
    async fn watching(&self, gpus: u32) {
        for index in 0..gpus {
            self.until_event(|e| e.gpu.index == index && e.kind == EventKind::Watching)
                .await;
        }
    }

    /// Waits until a GPU is watched again, for the second time: what happens before is not heard of.
    async fn watching_again(&self, gpu: u32) {
        let reached = async {
            let of_gpu = |event: &&Event| event.gpu.index == gpu;
            let watching = |event: &&Event| event.kind == EventKind::Watching;
            let count = || {
                let events = self.events.lock().unwrap();
                events.iter().filter(of_gpu).filter(watching).count()
            };
            while count() < 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(BOUND, reached).await.is_err() {
            panic!("not watched again: {:#?}", self.events.lock().unwrap());
        }
    }

    fn count_of(&self, wanted: impl Fn(&EventKind) -> bool) -> usize {
        let events = self.events.lock().unwrap();
        events.iter().filter(|event| wanted(&event.kind)).count()
    }

    fn uuid(&self, gpu: usize) -> String {
        self.sim.state().unwrap().gpus[gpu].uuid.clone()
    }

    fn inject(&self, symbol: &str, gpu: Option<usize>, effect: Effect) -> u64 {
        self.sim.inject(fault(symbol, gpu, effect)).unwrap()
    }

    /// Does something with the driver as another program would.
    fn as_another<T: Send + 'static>(
        &self,
        gpu: u32,
        work: impl FnOnce(&nvml::Device<'_>) -> Result<T, nvml::Error> + Send + 'static,
    ) -> T {
        let driver = nvml::Driver::open(&Options::at(self.sim.root())).unwrap();
        driver.gpu(gpu).run(work).unwrap()
    }
}

fn fault(symbol: &str, gpu: Option<usize>, effect: Effect) -> Fault {
    Fault {
        gpu,
        ..Fault::new(symbol, effect)
    }
}

/// `whole` or the MIG profiles (`-` for none) or the trouble of each GPU.
fn shown(inventory: &Inventory) -> String {
    let one = |known: &device_plugin::hardware::KnownGpu| match &known.trouble {
        Some(trouble) => format!("{:?}", trouble.cause),
        None if !known.gpu.mig_enabled => "whole".to_owned(),
        None if known.gpu.mig.is_empty() => "-".to_owned(),
        None => {
            let profiles = known.gpu.mig.iter().map(|mig| match &mig.profile {
                Some(profile) => profile.to_string(),
                None => "?".to_owned(),
            });
            profiles.collect::<Vec<_>>().join("+")
        }
    };
    inventory
        .gpus()
        .iter()
        .map(one)
        .collect::<Vec<_>>()
        .join(" ")
}

fn generation(inventory: &Inventory) -> Option<u64> {
    match inventory.driver() {
        Driver::Present { generation, .. } => Some(*generation),
        Driver::Unknown | Driver::Gone { .. } => None,
    }
}
