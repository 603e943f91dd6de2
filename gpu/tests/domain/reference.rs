//! Placement by exhaustive search: slow, obvious, independent of the solver.

use std::collections::BTreeMap;

use gpu::{Board, Engines, InstanceProfile, Placed};

fn engines_of(engines: Engines) -> [u32; 5] {
    [
        engines.copy,
        engines.decoder,
        engines.encoder,
        engines.jpeg,
        engines.ofa,
    ]
}

fn memory_slices(profile: &InstanceProfile) -> u32 {
    profile.placements[0].size
}

/// Whether numbers alone allow these instances: counts per profile, and engines as far as the board's table is consistent.
fn numbers_allow(board: &Board, all: &[u32]) -> bool {
    let largest = board
        .profiles
        .iter()
        .max_by_key(|profile| (memory_slices(profile), profile.slices))
        .unwrap();
    for kind in 0..5 {
        let total = engines_of(largest.engines)[kind];
        let each = |id: u32| engines_of(board.profile(id).unwrap().engines)[kind];
        let is_consistent = board
            .profiles
            .iter()
            .all(|profile| profile.max_instances * each(profile.id) <= total);
        if is_consistent && all.iter().map(|id| each(*id)).sum::<u32>() > total {
            return false;
        }
    }
    board.profiles.iter().all(|profile| {
        let count = all.iter().filter(|id| **id == profile.id).count();
        count <= profile.max_instances as usize
    })
}

/// Whether `wanted` fits beside `kept` in any way at all.
pub(crate) fn fits(board: &Board, kept: &[Placed], wanted: &BTreeMap<u32, u32>) -> bool {
    let wanted = wanted
        .iter()
        .flat_map(|(id, count)| vec![*id; *count as usize])
        .collect::<Vec<_>>();
    let mut all = wanted.clone();
    all.extend(kept.iter().map(|placed| placed.profile_id));
    numbers_allow(board, &all) && place_all(board, &mut kept.to_vec(), &wanted)
}

fn place_all(board: &Board, placed: &mut Vec<Placed>, wanted: &[u32]) -> bool {
    let Some((id, rest)) = wanted.split_first() else {
        return true;
    };
    for placement in &board.profile(*id).unwrap().placements {
        if placed.iter().all(|other| {
            placement.start >= other.placement.start + other.placement.size
                || other.placement.start >= placement.start + placement.size
        }) {
            placed.push(Placed {
                profile_id: *id,
                placement: *placement,
            });
            if place_all(board, placed, rest) {
                return true;
            }
            placed.pop();
        }
    }
    false
}

/// The fewest instances to leave out, and the fewest memory slices among those.
pub(crate) fn fewest_missing(
    board: &Board,
    kept: &[Placed],
    wanted: &BTreeMap<u32, u32>,
) -> (u32, u32) {
    let mut best = (u32::MAX, u32::MAX);
    let ids = wanted.keys().copied().collect::<Vec<_>>();
    let mut part = BTreeMap::new();
    try_parts(board, kept, wanted, &ids, &mut part, &mut best);
    best
}

fn try_parts(
    board: &Board,
    kept: &[Placed],
    wanted: &BTreeMap<u32, u32>,
    ids: &[u32],
    part: &mut BTreeMap<u32, u32>,
    best: &mut (u32, u32),
) {
    let Some((id, rest)) = ids.split_first() else {
        let missing = wanted.iter().map(|(id, count)| (*id, count - part[id]));
        let cost = cost(board, missing);
        if cost < *best && fits(board, kept, part) {
            *best = cost;
        }
        return;
    };
    for count in 0..=wanted[id] {
        part.insert(*id, count);
        try_parts(board, kept, wanted, rest, part, best);
    }
    part.remove(id);
}

/// Instances and memory slices of a set.
pub(crate) fn cost(board: &Board, instances: impl Iterator<Item = (u32, u32)>) -> (u32, u32) {
    instances.fold((0, 0), |(count, slices), (id, number)| {
        let size = memory_slices(board.profile(id).unwrap());
        (count + number, slices + number * size)
    })
}
