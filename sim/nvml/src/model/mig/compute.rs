//! Compute instances inside a GPU instance: placements, capacity, creation, destruction.

use crate::{
    Code,
    model::{
        Node,
        board::{ComputeProfile, InstanceProfile},
        gpu::{ComputeInstance, Gpu, GpuInstance, Placement},
    },
};

/// Compute instances a driver keeps track of per GPU instance.
const MAX_COMPUTE: usize = 8;

impl ComputeProfile {
    /// Every placement in an empty GPU instance, ascending by start.
    pub fn placements(&self) -> impl Iterator<Item = Placement> {
        self.starts.iter().map(|start| Placement {
            start: *start,
            size: self.slices,
        })
    }
}

impl Gpu {
    /// Placements of a compute-instance profile in an empty GPU instance.
    pub fn compute_possible_placements(
        &self,
        instance: u32,
        profile_id: u32,
    ) -> Result<Vec<Placement>, Code> {
        let (_, profile) = self.instance_profile(instance)?;
        Ok(profile
            .compute_by_id(profile_id)
            .ok_or(Code::INVALID_ARGUMENT)?
            .placements()
            .collect())
    }

    /// How many more compute instances of a profile fit into a GPU instance now.
    pub fn compute_remaining_capacity(&self, instance: u32, profile_id: u32) -> Result<u32, Code> {
        let (instance, profile) = self.instance_profile(instance)?;
        let compute = profile
            .compute_by_id(profile_id)
            .ok_or(Code::INVALID_ARGUMENT)?;
        let mut taken: Vec<Placement> = instance
            .compute
            .iter()
            .map(|compute| compute.placement)
            .collect();
        let before = taken.len();
        for placement in compute.placements() {
            if taken.len() < MAX_COMPUTE && !taken.iter().any(|other| other.overlaps(&placement)) {
                taken.push(placement);
            }
        }
        Ok((taken.len() - before) as u32)
    }
}

/// The free placement that blocks least of what else would still fit: the sum, over all profiles, of the slices of the
/// free placements it overlaps. Ties go to the lowest start.
fn cheapest(
    instance: &GpuInstance,
    profile: &InstanceProfile,
    compute: &ComputeProfile,
) -> Option<Placement> {
    let free = |placement: &Placement| {
        !instance
            .compute
            .iter()
            .any(|other| other.placement.overlaps(placement))
    };
    let cost = |placement: &Placement| -> u32 {
        let others = profile.compute.iter().flat_map(ComputeProfile::placements);
        others
            .filter(|other| free(other) && other.overlaps(placement))
            .map(|other| other.size)
            .sum()
    };
    compute
        .placements()
        .filter(free)
        .min_by_key(|placement| (cost(placement), placement.start))
}

impl Node {
    /// Creates a compute instance in a GPU instance and returns its id.
    pub fn create_compute_instance(
        &mut self,
        gpu: usize,
        instance: u32,
        profile_id: u32,
        placement: Option<Placement>,
        now_us: u64,
    ) -> Result<u32, Code> {
        let state = self.gpu_ref(gpu)?;
        let (found, profile) = state.instance_profile(instance)?;
        let compute = profile
            .compute_by_id(profile_id)
            .ok_or(Code::INVALID_ARGUMENT)?;
        if placement.is_some_and(|wanted| !compute.placements().any(|offered| offered == wanted)) {
            return Err(Code::INVALID_ARGUMENT);
        }
        let chosen = placement
            .or_else(|| cheapest(found, profile, compute))
            .ok_or(Code::INSUFFICIENT_RESOURCES)?;
        let busy = found
            .compute
            .iter()
            .any(|other| other.placement.overlaps(&chosen));
        if busy || found.compute.len() >= MAX_COMPUTE {
            return Err(Code::INSUFFICIENT_RESOURCES);
        }
        let id = lowest_free(found.compute.iter().map(|compute| compute.id));
        let index = lowest_free(state.mig_devices().map(|(_, compute)| compute.index));
        let state = self.gpu_mut(gpu)?;
        let created = ComputeInstance {
            id,
            profile: profile_id,
            placement: chosen,
            index,
            created: state.mig.count_creation(),
        };
        if let Some(found) = state
            .mig
            .instances
            .iter_mut()
            .find(|other| other.id == instance)
        {
            found.compute.push(created);
            found.compute.sort_by_key(|compute| compute.id);
        }
        self.note_mig_change(gpu, now_us);
        Ok(id)
    }

    /// Destroys a compute instance without processes.
    pub fn destroy_compute_instance(
        &mut self,
        gpu: usize,
        instance: u32,
        compute: u32,
        now_us: u64,
    ) -> Result<(), Code> {
        let state = self.gpu_ref(gpu)?;
        state.require_mig()?;
        state
            .instance(instance)
            .and_then(|found| found.compute_by_id(compute))
            .ok_or(Code::NOT_FOUND)?;
        if self
            .workloads_in(gpu, instance, Some(compute))
            .next()
            .is_some()
        {
            return Err(Code::IN_USE);
        }
        let state = self.gpu_mut(gpu)?;
        if let Some(found) = state
            .mig
            .instances
            .iter_mut()
            .find(|other| other.id == instance)
        {
            found.compute.retain(|other| other.id != compute);
        }
        state
            .modes
            .mig_compute
            .remove(&format!("{instance}/{compute}"));
        self.note_mig_change(gpu, now_us);
        Ok(())
    }
}

fn lowest_free(taken: impl Iterator<Item = u32>) -> u32 {
    let taken: Vec<u32> = taken.collect();
    (0..).find(|id| !taken.contains(id)).unwrap_or(u32::MAX)
}
