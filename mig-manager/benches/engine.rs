//! What the engine itself costs: a plan for sixteen GPUs, and applies against a driver that takes no time.
//!
//! The journal lies in memory where the machine has such a folder, so that the numbers are the engine's and not a disk's.
#![allow(clippy::unwrap_used, missing_docs)]

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use mig_manager::config::Config;
use mig_manager::engine::{Engine, Options, Request};
use sim_nvml::admin::SimulatedNode;
use sim_nvml::presets::NodeSpec;

struct Setup {
    engine: Engine,
    _folders: [tempfile::TempDir; 2],
}

fn setup(board: &str, gpus: usize) -> Setup {
    let root = tempfile::tempdir().unwrap();
    let state = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    SimulatedNode::create(root.path(), &NodeSpec::uniform(board, gpus).unwrap()).unwrap();
    let driver = nvml::Driver::open(&nvml::Options::at(root.path())).unwrap();
    let options = Options {
        state_dir: state.path().to_owned(),
        ..Options::at(root.path())
    };
    Setup {
        engine: Engine::new(driver, options),
        _folders: [root, state],
    }
}

fn request(devices: &str) -> Request {
    let spec = match devices {
        "off" => "{devices: all, mig-enabled: false}".to_owned(),
        devices => format!("{{devices: all, mig-enabled: true, mig-devices: {{{devices}}}}}"),
    };
    let file = format!("version: v1\nmig-configs: {{bench: [{spec}]}}");
    Request::of(&Config::parse("bench", file.as_bytes()).unwrap(), None).unwrap()
}

fn plan_16_gpus(c: &mut Criterion) {
    let setup = setup("h100-sxm5-80gb", 16);
    setup.engine.apply(&request("1g.10gb: 7"), &|_| {}).unwrap();
    let wanted = request("3g.40gb: 1, 2g.20gb: 1, 1g.10gb: 2");
    c.bench_function("plan_16_gpus", |b| {
        b.iter(|| setup.engine.plan(&wanted).unwrap())
    });
}

/// `reset → apply`, of which only the apply is timed.
fn timed(engine: &Engine, reset: &Request, apply: &Request, iterations: u64) -> Duration {
    let mut total = Duration::ZERO;
    for _ in 0..iterations {
        engine.apply(reset, &|_| {}).unwrap();
        let began = Instant::now();
        engine.apply(apply, &|_| {}).unwrap();
        total += began.elapsed();
    }
    total
}

fn apply_zero_latency(c: &mut Criterion) {
    let mut group = c.benchmark_group("apply_zero_latency");
    group.sample_size(10);
    for gpus in [1, 8] {
        let setup = setup("h100-sxm5-80gb", gpus);
        let (off, seven) = (request("off"), request("1g.10gb: 7"));
        group.bench_function(format!("off_to_7x1g/{gpus}_gpus"), |b| {
            b.iter_custom(|n| timed(&setup.engine, &off, &seven, n));
        });
        setup.engine.apply(&seven, &|_| {}).unwrap();
        group.bench_function(format!("unchanged/{gpus}_gpus"), |b| {
            b.iter(|| setup.engine.apply(&seven, &|_| {}).unwrap());
        });
    }
    group.finish();
}

criterion_group!(benches, plan_16_gpus, apply_zero_latency);
criterion_main!(benches);
