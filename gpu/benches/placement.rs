//! Placement and plans at their worst, on every board: `cargo bench -p gpu --bench placement`.

#![allow(missing_docs, clippy::expect_used, reason = "a benchmark")]

#[path = "../tests/domain/boards.rs"]
mod boards;

use std::collections::BTreeMap;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use gpu::{
    Board, ComputeInstance, Goal, GpuInstance, Layout, Observed, Placement, Profile, place, plan,
};

/// Every profile as often as the driver allows at all: fits nowhere, so the smallest shortage has to be proven.
fn everything(board: &Board) -> BTreeMap<u32, u32> {
    let counts = board
        .profiles
        .iter()
        .map(|profile| (profile.id, profile.max_instances));
    counts.collect()
}

/// The GPU full of the smallest instances, each with a compute instance of its own.
fn full(board: &Board) -> Observed {
    let smallest = board.profiles.first().expect("a board has profiles");
    let counts = BTreeMap::from([(smallest.id, smallest.max_instances)]);
    let placed = place(board, &[], &counts).expect("the driver's own number fits");
    let instances = (1..).zip(placed).map(|(id, placed)| GpuInstance {
        id,
        profile_id: placed.profile_id,
        placement: placed.placement,
        compute: vec![ComputeInstance {
            id: 0,
            profile_id: 0,
            placement: Placement { start: 0, size: 1 },
        }],
    });
    Observed {
        layout: Layout {
            mig_enabled: true,
            instances: instances.collect(),
        },
        pending_mig: true,
        resetless: true,
        clients: Vec::new(),
    }
}

/// One GPU instance as large as the board, full of the smallest compute instances.
fn shared(board: &Board) -> Observed {
    let largest = board
        .profiles
        .iter()
        .max_by_key(|profile| profile.slices)
        .expect("a board has profiles");
    let mut observed = full(board);
    observed.layout.instances = vec![GpuInstance {
        id: 0,
        profile_id: largest.id,
        placement: largest.placements[0],
        compute: (0..largest.slices)
            .map(|start| ComputeInstance {
                id: start,
                profile_id: 0,
                placement: Placement { start, size: 1 },
            })
            .collect(),
    }];
    observed
}

fn goal(devices: impl IntoIterator<Item = (Profile, u32)>) -> Goal {
    Goal::Devices(devices.into_iter().collect())
}

fn benches(criterion: &mut Criterion) {
    for (name, board) in boards::boards() {
        let mut group = criterion.benchmark_group(name);
        let everything = everything(&board);
        group.bench_function("place shortage of everything", |bencher| {
            bencher.iter(|| place(black_box(&board), &[], black_box(&everything)));
        });
        let full = full(&board);
        let smallest = board.profiles.first().expect("a board has profiles");
        let counts = BTreeMap::from([(smallest.id, smallest.max_instances)]);
        group.bench_function("place the smallest", |bencher| {
            bencher.iter(|| place(black_box(&board), &[], black_box(&counts)));
        });
        // All but one stay, and that one makes room for the two largest that fit: every subset has to be looked at.
        let double = board
            .profiles
            .iter()
            .find(|profile| profile.slices == 2)
            .expect("every board has a 2g");
        let recut = goal([
            (board.name(smallest), smallest.max_instances - 2),
            (board.name(double), 1),
        ]);
        group.bench_function("plan a 2g among the smallest", |bencher| {
            bencher.iter(|| plan(Some(black_box(&board)), black_box(&full), black_box(&recut)));
        });
        let shared = shared(&board);
        let largest = board
            .profiles
            .iter()
            .max_by_key(|profile| profile.slices)
            .expect("a board has profiles");
        let parts = goal([
            (board.device_name(largest, 2), 1),
            (board.device_name(largest, 1), largest.slices - 2),
        ]);
        group.bench_function("plan a 2c among the smallest parts", |bencher| {
            bencher.iter(|| {
                plan(
                    Some(black_box(&board)),
                    black_box(&shared),
                    black_box(&parts),
                )
            });
        });
        group.finish();
    }
}

criterion_group!(placement, benches);
criterion_main!(placement);
