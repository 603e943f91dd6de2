//! How much longer eight GPUs take than one, against a driver with the latencies of real hardware.
//!
//! Each run takes seconds, so a few are enough; the target is a ratio of at most 1.3.
#![allow(clippy::unwrap_used, missing_docs)]

use std::time::{Duration, Instant};

use mig_manager::config::Config;
use mig_manager::engine::{Engine, Options, Request};
use sim_nvml::admin::SimulatedNode;
use sim_nvml::model::latency::Latency;
use sim_nvml::presets::NodeSpec;

const RUNS: usize = 3;

fn main() {
    // `cargo test` builds and starts benchmarks too; the measurement is for `cargo bench`.
    if !std::env::args().any(|a| a == "--bench") {
        return;
    }
    let one = fastest("- {devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 7}}");
    let eight = fastest("- {devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}");
    println!(
        "dgx-h100, realistic latency, all-disabled to 7 × 1g.10gb: one GPU {:.2} s, eight {:.2} s, ratio {:.2}",
        one.as_secs_f64(),
        eight.as_secs_f64(),
        eight.as_secs_f64() / one.as_secs_f64(),
    );
}

fn fastest(specs: &str) -> Duration {
    let root = tempfile::tempdir().unwrap();
    let node = SimulatedNode::create(root.path(), &NodeSpec::preset("dgx-h100").unwrap()).unwrap();
    let driver = nvml::Driver::open(&nvml::Options::at(root.path())).unwrap();
    let engine = Engine::new(driver, Options::at(root.path()));
    let runs = (0..RUNS).map(|_| {
        node.set_latency(Latency::zero()).unwrap();
        engine
            .apply(&request("- {devices: all, mig-enabled: false}"), &|_| {})
            .unwrap();
        node.set_latency(Latency::realistic()).unwrap();
        let began = Instant::now();
        engine.apply(&request(specs), &|_| {}).unwrap();
        began.elapsed()
    });
    runs.min().unwrap_or_default()
}

fn request(specs: &str) -> Request {
    let file = format!("version: v1\nmig-configs:\n  bench:\n  {specs}\n");
    Request::of(&Config::parse("bench", file.as_bytes()).unwrap(), None).unwrap()
}
