//! What the driver door costs on top of the driver: one hop between threads per batch, and a whole snapshot.
//!
//! The driver is the simulated one without latency, so the numbers are this crate's and the simulator's together.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use criterion::{Criterion, criterion_group, criterion_main};
use nvml::{Driver, Options};
use sim_nvml::admin::SimulatedNode;
use sim_nvml::presets::NodeSpec;

fn node() -> (tempfile::TempDir, Driver) {
    let folder = tempfile::tempdir().unwrap();
    let sim = SimulatedNode::create(folder.path(), &NodeSpec::preset("dgx-h100").unwrap()).unwrap();
    let driver = Driver::open(&Options::at(sim.root())).unwrap();
    (folder, driver)
}

/// Cuts every GPU into seven.
fn cut(driver: &Driver) {
    let cut = driver.for_each_gpu(|device| {
        device.set_mig_mode(true)?;
        for _ in 0..7 {
            let id = device.create_gpu_instance(19, None)?.id;
            device.create_compute_instance(id, 0, None)?;
        }
        Ok(())
    });
    for gpu in cut.unwrap() {
        gpu.unwrap();
    }
}

fn calls(c: &mut Criterion) {
    let (_folder, driver) = node();
    let gpu = driver.gpu(0);
    let mut group = c.benchmark_group("calls");
    group.bench_function("hop_without_call", |b| {
        b.iter(|| gpu.run(|_| Ok(())).unwrap())
    });
    group.bench_function("hop_with_1_call", |b| {
        b.iter(|| gpu.run(|d| d.power_usage()).unwrap());
    });
    group.bench_function("hop_with_100_calls", |b| {
        b.iter(|| {
            gpu.run(|d| (0..100).map(|_| d.power_usage()).sum::<Result<u32, _>>())
                .unwrap()
        });
    });
    group.bench_function("hop_to_8_gpus", |b| {
        b.iter(|| driver.for_each_gpu(|d| d.power_usage()).unwrap());
    });
    group.finish();
}

fn snapshot(c: &mut Criterion) {
    let (_folder, driver) = node();
    let mut group = c.benchmark_group("snapshot");
    group.bench_function("8_whole_gpus", |b| b.iter(|| driver.snapshot().unwrap()));
    cut(&driver);
    group.bench_function("8_gpus_in_7", |b| b.iter(|| driver.snapshot().unwrap()));
    group.finish();
}

criterion_group!(benches, calls, snapshot);
criterion_main!(benches);
