//! What one call of the driver library costs while nothing changes. The target is well under 20 µs.

#![allow(unsafe_code, missing_docs)]
#![allow(clippy::expect_used)]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use nvml_wrapper_sys::bindings::NvmlLib;
use sim_nvml::{admin::SimulatedNode, presets::NodeSpec};

fn calls(criterion: &mut Criterion) {
    let root = tempfile::tempdir().expect("a temporary folder");
    let spec = NodeSpec::preset("dgx-h100").expect("a preset");
    let node = SimulatedNode::create(root.path(), &spec).expect("a simulated node");
    // SAFETY: the library runs no code when it is loaded.
    let lib = unsafe { NvmlLib::new(node.library_folder().join("libnvidia-ml.so.1")) }
        .expect("the library");
    let mut gpu = std::ptr::null_mut();
    // SAFETY: the arguments are those of the header.
    unsafe {
        assert_eq!(lib.nvmlInit_v2(), 0);
        assert_eq!(lib.nvmlDeviceGetHandleByIndex_v2(7, &mut gpu), 0);
    }
    let mut group = criterion.benchmark_group("abi_call");
    group.bench_function("minor_number", |bencher| {
        bencher.iter(|| {
            let mut minor = 0;
            // SAFETY: a handle and a place for the answer.
            assert_eq!(
                unsafe { lib.nvmlDeviceGetMinorNumber(black_box(gpu), &mut minor) },
                0
            );
            minor
        });
    });
    group.bench_function("power_usage", |bencher| {
        bencher.iter(|| {
            let mut power = 0;
            // SAFETY: a handle and a place for the answer.
            assert_eq!(
                unsafe { lib.nvmlDeviceGetPowerUsage(black_box(gpu), &mut power) },
                0
            );
            power
        });
    });
    group.bench_function("handle_by_index", |bencher| {
        bencher.iter(|| {
            let mut found = std::ptr::null_mut();
            // SAFETY: an index and a place for the answer.
            assert_eq!(
                unsafe { lib.nvmlDeviceGetHandleByIndex_v2(black_box(3), &mut found) },
                0
            );
            found
        });
    });
    group.finish();
    // SAFETY: the function takes nothing.
    unsafe { lib.nvmlShutdown() };
}

criterion_group!(benches, calls);
criterion_main!(benches);
