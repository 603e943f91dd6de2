//! What a driver does to a layout, as far as plans depend on it: a pure model that refuses what a driver would refuse.

use std::collections::BTreeMap;

use gpu::{Board, ComputeInstance, GpuInstance, Observed, Placement, Step};

/// The driver's id of a GPU instance follows from its placement; here any injective rule does.
pub(crate) fn instance_id(placement: Placement) -> u32 {
    placement.start * 16 + placement.size
}

/// A GPU instance with compute instances at these (start, size), ids ascending.
pub(crate) fn instance(
    profile_id: u32,
    placement: (u32, u32),
    compute: &[(u32, u32)],
) -> GpuInstance {
    let placement = Placement {
        start: placement.0,
        size: placement.1,
    };
    GpuInstance {
        id: instance_id(placement),
        profile_id,
        placement,
        compute: compute
            .iter()
            .zip(0..)
            .map(|(&(start, size), id)| ComputeInstance {
                id,
                profile_id: compute_id(profile_id, size),
                placement: Placement { start, size },
            })
            .collect(),
    }
}

fn compute_id(profile_id: u32, slices: u32) -> u32 {
    match slices {
        1 if profile_id == 15 => 7,
        7 => 4,
        slices => slices - 1,
    }
}

/// Carries out steps; panics where a driver would return an error. Processes end with what they stand on.
pub(crate) fn apply(board: &Board, observed: &Observed, steps: &[Step]) -> Observed {
    let mut gpu = observed.clone();
    for step in steps {
        apply_one(board, &mut gpu, step);
        gpu.layout.instances.sort_by_key(|instance| instance.id);
    }
    gpu
}

fn apply_one(board: &Board, gpu: &mut Observed, step: &Step) {
    let instances = &mut gpu.layout.instances;
    match step {
        Step::DestroyCompute {
            gpu_instance,
            compute_instance,
        } => {
            let parent = instances
                .iter_mut()
                .find(|instance| instance.id == *gpu_instance)
                .expect("the GPU instance is there");
            let before = parent.compute.len();
            parent
                .compute
                .retain(|compute| compute.id != *compute_instance);
            assert_eq!(parent.compute.len() + 1, before, "{step}");
            gpu.clients.retain(|client| {
                (client.gpu_instance, client.compute_instance)
                    != (Some(*gpu_instance), Some(*compute_instance))
            });
        }
        Step::DestroyInstance { gpu_instance } => {
            let position = instances
                .iter()
                .position(|instance| instance.id == *gpu_instance)
                .expect("the GPU instance is there");
            assert!(instances.remove(position).compute.is_empty(), "{step}");
            gpu.clients
                .retain(|client| client.gpu_instance != Some(*gpu_instance));
        }
        Step::SetMode { enabled } => {
            assert!(*enabled || instances.is_empty(), "{step}");
            gpu.pending_mig = *enabled;
            if gpu.resetless {
                gpu.layout.mig_enabled = *enabled;
            }
        }
        Step::Reset => {
            assert!(instances.is_empty(), "a reset loses instances");
            gpu.layout.mig_enabled = gpu.pending_mig;
        }
        Step::CreateInstance {
            profile,
            profile_id,
            placement,
        } => {
            assert!(gpu.layout.mig_enabled, "{step}");
            let offered = board.profile(*profile_id).expect("the profile is there");
            assert_eq!(*profile, board.name(offered));
            assert!(offered.placements.contains(placement), "{step}");
            assert!(
                instances
                    .iter()
                    .all(|other| !other.placement.overlaps(*placement)),
                "{step}"
            );
            let same = instances
                .iter()
                .filter(|other| other.profile_id == *profile_id);
            assert!(same.count() < offered.max_instances as usize, "{step}");
            instances.push(GpuInstance {
                id: instance_id(*placement),
                profile_id: *profile_id,
                placement: *placement,
                compute: Vec::new(),
            });
        }
        Step::CreateCompute {
            parent,
            profile,
            profile_id,
            placement,
        } => {
            let parent = instances
                .iter_mut()
                .find(|instance| instance.placement == *parent)
                .expect("the GPU instance is there");
            let offered = board
                .profile(parent.profile_id)
                .expect("the profile is there");
            assert_eq!(*profile, board.device_name(offered, placement.size));
            assert!(placement.end() <= offered.slices, "{step}");
            assert!(
                parent
                    .compute
                    .iter()
                    .all(|other| !other.placement.overlaps(*placement)),
                "{step}"
            );
            let size = offered.compute.iter().find(|size| size.id == *profile_id);
            let size = size.expect("the compute profile is there");
            assert_eq!(size.slices, placement.size, "{step}");
            let same = parent
                .compute
                .iter()
                .filter(|other| other.profile_id == *profile_id);
            assert!(same.count() < size.max_instances as usize, "{step}");
            let id = (0..).find(|id| parent.compute.iter().all(|other| other.id != *id));
            parent.compute.push(ComputeInstance {
                id: id.expect("ids are endless"),
                profile_id: *profile_id,
                placement: *placement,
            });
            parent.compute.sort_by_key(|compute| compute.id);
        }
    }
}

/// Every layout that a board can have in which each GPU instance holds a compute instance, compute instances at the
/// driver's placements.
pub(crate) fn all_layouts(board: &Board) -> Vec<Vec<GpuInstance>> {
    let mut places = board
        .profiles
        .iter()
        .flat_map(|profile| {
            let at = |placement: &Placement| (profile.id, (placement.start, placement.size));
            profile.placements.iter().map(at)
        })
        .collect::<Vec<_>>();
    places.sort_by_key(|(_, (start, _))| *start);
    let mut sets = Vec::new();
    choose(board, &places, &mut Vec::new(), &mut sets);
    let contents = board
        .profiles
        .iter()
        .map(|profile| {
            let mut found = Vec::new();
            fill(
                profile.slices,
                &profile.compute,
                0,
                &mut Vec::new(),
                &mut found,
            );
            (profile.id, found)
        })
        .collect::<BTreeMap<_, _>>();
    let mut layouts = Vec::new();
    for set in sets {
        let mut partial = vec![Vec::new()];
        for (id, placement) in set {
            let mut longer = Vec::new();
            for before in &partial {
                for content in &contents[&id] {
                    let mut layout: Vec<GpuInstance> = before.clone();
                    layout.push(instance(id, placement, content));
                    longer.push(layout);
                }
            }
            partial = longer;
        }
        layouts.extend(partial);
    }
    layouts
}

type Place = (u32, (u32, u32));

fn choose(board: &Board, places: &[Place], chosen: &mut Vec<Place>, sets: &mut Vec<Vec<Place>>) {
    let Some(((id, (start, size)), rest)) = places.split_first() else {
        let mut counts = BTreeMap::new();
        for (id, _) in chosen.iter() {
            *counts.entry(*id).or_default() += 1;
        }
        if crate::reference::fits(board, &[], &counts) {
            sets.push(chosen.clone());
        }
        return;
    };
    choose(board, rest, chosen, sets);
    let is_free = chosen
        .iter()
        .all(|(_, (other, length))| *start >= other + length || *other >= start + size);
    if is_free {
        chosen.push((*id, (*start, *size)));
        choose(board, rest, chosen, sets);
        chosen.pop();
    }
}

/// Contents of a GPU instance: aligned compute instances in every combination, none excepted.
fn fill(
    slices: u32,
    sizes: &[gpu::ComputeProfile],
    from: u32,
    chosen: &mut Vec<(u32, u32)>,
    found: &mut Vec<Vec<(u32, u32)>>,
) {
    if from >= slices {
        if !chosen.is_empty() {
            found.push(chosen.clone());
        }
        return;
    }
    fill(slices, sizes, from + 1, chosen, found);
    for size in sizes {
        let is_aligned = match size.slices {
            1 => true,
            2 => from.is_multiple_of(2),
            3 | 4 => from.is_multiple_of(4),
            _ => from == 0,
        };
        if is_aligned && from + size.slices <= slices {
            chosen.push((from, size.slices));
            fill(slices, sizes, from + size.slices, chosen, found);
            chosen.pop();
        }
    }
}
