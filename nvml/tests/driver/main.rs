//! The driver door against libraries that are none, and against the simulated driver.
//!
//! Expected values are the hardware's own, from vendor documents and captures, not this program's output.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod compute_mode;
mod events;
mod give_way;
mod library;
mod lifecycle;
mod mig;
mod reads;
mod snapshot;
mod topology;

use std::time::Duration;

use nvml::{Driver, Options};
use sim_nvml::admin::SimulatedNode;
use sim_nvml::presets::NodeSpec;

/// A simulated node in a folder of its own.
struct Node {
    sim: SimulatedNode,
    _folder: tempfile::TempDir,
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
        // The node's program needs a `lathe` that may not be built here; without it, the kernel's reset file is used.
        std::fs::remove_file(sim.root().join("usr/bin/nvidia-smi")).unwrap();
        Self {
            sim,
            _folder: folder,
        }
    }

    /// Long enough that a busy machine does not fail a test.
    fn options(&self) -> Options {
        Options {
            call_timeout: Duration::from_secs(60),
            ..Options::at(self.sim.root())
        }
    }

    fn open(&self) -> Driver {
        Driver::open(&self.options()).unwrap()
    }
}

/// Waits until something holds; a test that waits this long has failed.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what} did not happen");
}
