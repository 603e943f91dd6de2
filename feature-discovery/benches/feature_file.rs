//! The whole of `lathe feature-discovery --oneshot` after its start, on eight H100 cut into seven instances each.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use criterion::{Criterion, criterion_group, criterion_main};
use feature_discovery::{Settings, once};
use gpu::labels::MigStrategy;
use nvml::{Driver, Options, Session};
use sim_nvml::admin::SimulatedNode;
use sim_nvml::presets::NodeSpec;

/// Profile ids of 1g.10gb and of the compute instance that fills it.
const ONE_G: (u32, u32) = (19, 0);

fn feature_file_once(c: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let node =
        SimulatedNode::create(folder.path(), &NodeSpec::preset("dgx-h100").unwrap()).unwrap();
    let options = Options::at(node.root());
    let cut = |device: &nvml::Device<'_>| {
        device.set_mig_mode(true)?;
        for _ in 0..7 {
            let instance = device.create_gpu_instance(ONE_G.0, None)?;
            device.create_compute_instance(instance.id, ONE_G.1, None)?;
        }
        Ok(())
    };
    let cuts = Driver::open(&options).unwrap().for_each_gpu(cut).unwrap();
    assert!(cuts.iter().all(Result::is_ok));
    let config = Settings {
        strategy: Some(MigStrategy::Mixed),
        ..Settings::default()
    }
    .finish();
    // Opening and closing the driver is part of it.
    c.bench_function("feature_file_once", |b| {
        b.iter(|| once(node.root(), &config, &Session::new(&options).unwrap()).unwrap());
    });
}

criterion_group!(benches, feature_file_once);
criterion_main!(benches);
