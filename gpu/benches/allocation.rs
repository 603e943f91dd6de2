//! The best set of GPUs on the largest machine, for every size of set: `cargo bench -p gpu --bench allocation`.

#![allow(missing_docs, reason = "a benchmark")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use gpu::allocation::nearest;

/// All links go through switches: only PCIe tells pairs apart.
fn nvswitch(a: usize, b: usize) -> u32 {
    1800 + pcie(a, b)
}

/// Two CPUs with two switches of four GPUs each.
fn pcie(a: usize, b: usize) -> u32 {
    match (a / 4 == b / 4, a / 8 == b / 8) {
        (true, _) => 50,
        (_, true) => 20,
        _ => 10,
    }
}

/// No two pairs alike: nothing can be left out by symmetry.
fn odd(a: usize, b: usize) -> u32 {
    ((a.min(b) as u32).wrapping_mul(2_654_435_761) ^ (a.max(b) as u32).wrapping_mul(40_503)) >> 7
        & 2047
}

type Score = fn(usize, usize) -> u32;

fn sixteen(criterion: &mut Criterion) {
    let boards: [(&str, Score); 3] = [("nvswitch", nvswitch), ("pcie", pcie), ("odd", odd)];
    for (name, score) in boards {
        let mut group = criterion.benchmark_group(format!("nearest of 16, {name}"));
        group.sample_size(20);
        for size in 1..16 {
            group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
                bencher.iter(|| nearest(black_box(16), score, &[], size));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, sixteen);
criterion_main!(benches);
