//! What a wish for devices asks of each GPU-instance profile.
//!
//! Devices that are no whole GPU instance share GPU instances of their profile, so the profiles' wishes are what placement
//! has to meet.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::compute::{ComputePacker, Counts};
use crate::placement::Solver;
use crate::{Board, Impossible, InstanceProfile, Profile};

/// What is wanted of one GPU-instance profile.
pub(crate) struct Demand<'a> {
    /// The name of a GPU instance that serves it.
    pub(crate) name: Profile,
    pub(crate) profile: &'a InstanceProfile,
    /// Position among the solver's counts.
    pub(crate) shape: usize,
    pub(crate) packer: ComputePacker,
    /// Wanted compute instances, by the packer's choices.
    pub(crate) counts: Counts,
}

/// Sorts the wanted devices by GPU-instance profile.
pub(crate) fn demands<'a>(
    board: &'a Board,
    solver: &Solver,
    wanted: &BTreeMap<Profile, u32>,
) -> Result<Vec<Demand<'a>>, Impossible> {
    let mut demands = BTreeMap::new();
    for (name, count) in wanted.iter().filter(|(_, count)| **count > 0) {
        let profile = board.resolve(name)?.instance;
        let Some(shape) = solver.position(profile.id) else {
            continue;
        };
        let demand = demands.entry(shape).or_insert_with(|| {
            let packer = ComputePacker::new(profile);
            let counts = vec![0; packer.choices().len()];
            Demand {
                name: name.whole(),
                profile,
                shape,
                packer,
                counts,
            }
        });
        let choices = demand.packer.choices().iter().zip(&mut demand.counts);
        for (choice, sum) in choices.filter(|(choice, _)| choice.slices == name.compute_slices()) {
            let max = solver
                .capacity(shape)
                .saturating_mul(choice.max_instances.min(profile.slices));
            if *count > max {
                return Err(Impossible::TooMany {
                    profile: name.clone(),
                    wanted: *count,
                    max,
                });
            }
            *sum = *count;
        }
    }
    Ok(demands.into_values().collect())
}

/// Names the devices that do not fit on the empty GPU.
pub(crate) fn over_capacity(
    solver: &Solver,
    demands: &[Demand<'_>],
    wanted: &BTreeMap<Profile, u32>,
) -> Impossible {
    let mut counts = vec![0; solver.len()];
    let mut contents = Vec::new();
    for demand in demands {
        let mut bins = demand.packer.pack(&demand.counts).unwrap_or_default();
        bins.sort_by_key(|bin| Reverse(bin.len()));
        counts[demand.shape] = u32::try_from(bins.len()).unwrap_or(u32::MAX);
        contents.push((demand, bins));
    }
    let left_out = solver.fewest_missing(0, &vec![0; solver.len()], &counts);
    let mut missing = BTreeMap::new();
    for (demand, bins) in contents {
        // Leave out the GPU instances that hold the fewest devices.
        let left_out = left_out[demand.shape];
        for placement in bins.iter().rev().zip(0..left_out).flat_map(|(bin, _)| bin) {
            let device = demand.name.clone().with_compute_slices(placement.size);
            *missing.entry(device).or_default() += 1;
        }
    }
    let wanted = wanted.iter().filter(|(_, count)| **count > 0);
    Impossible::OverCapacity {
        missing,
        wanted: wanted
            .map(|(profile, count)| (profile.clone(), *count))
            .collect(),
    }
}
