//! What the node's state costs: a read while nothing changed, a change, and the life of an instance with its files.

#![allow(missing_docs, clippy::expect_used)]

use std::fs;

use criterion::{Criterion, criterion_group, criterion_main};
use sim_nvml::{admin::SimulatedNode, presets::NodeSpec};

fn store(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let library = folder.path().join("stand-in.so");
    fs::write(&library, "").expect("a file in place of the library, which nothing here loads");
    let spec = NodeSpec::preset("dgx-h100").expect("a preset");
    let root = folder.path().join("root");
    let node = SimulatedNode::create_with(&root, &spec, &library).expect("a simulated node");
    let mut group = criterion.benchmark_group("store");
    group.bench_function("load", |bencher| {
        bencher.iter(|| node.store().load().expect("the state"))
    });
    group.bench_function("load_after_resets", |bencher| {
        bencher.iter(|| node.store().load_after_resets().expect("the state"));
    });
    group.bench_function("update", |bencher| {
        bencher.iter(|| {
            node.store()
                .update(|node| node.clock_offset_us += 1)
                .expect("a change")
        });
    });
    let mode = node
        .store()
        .update(|node| node.set_mig_mode(0, true, 0, 0))
        .expect("a change");
    assert!(mode.is_ok(), "MIG can be switched on");
    group.bench_function("create_and_destroy_instance", |bencher| {
        bencher.iter(|| {
            let created = node
                .store()
                .update(|node| node.create_gpu_instance(0, 19, None, 0, 0));
            let id = created.expect("a change").expect("an instance");
            let destroyed = node
                .store()
                .update(|node| node.destroy_gpu_instance(0, id, 0));
            destroyed.expect("a change").expect("no instance");
        });
    });
    let state = node.state().expect("the state");
    group.bench_function("reading", |bencher| {
        bencher.iter(|| state.reading(3, 1_000_000_000))
    });
    group.finish();
}

criterion_group!(benches, store);
criterion_main!(benches);
