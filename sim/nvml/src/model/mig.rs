//! MIG as the driver does it: modes, GPU instances, placements, capacity; compute instances are in `compute`.
//!
//! Pure changes of the state. They know the rules and the codes, not the C ABI, permissions or time.

use super::{
    Node,
    board::{Engines, InstanceProfile},
    events::{Event, kind},
    gpu::{Gpu, GpuInstance, Placement},
};
use crate::Code;

/// GPU instances a driver keeps track of per GPU (ids 0 to 14).
pub const MAX_INSTANCES: usize = 15;

impl InstanceProfile {
    /// Every placement on an empty GPU, ascending by start.
    pub fn placements(&self) -> impl Iterator<Item = Placement> {
        self.starts.iter().map(|start| Placement {
            start: *start,
            size: self.size,
        })
    }
}

/// The GPU-instance id of a placement: 0 for the whole, then halves, quarters, eighths, each ascending by start.
/// `mirrored` is how drivers before R510 numbered the halves, with id 1 at the upper one.
pub fn instance_id(memory_slices: u32, placement: Placement, mirrored: bool) -> u32 {
    let size = placement.size.max(1);
    let parts = memory_slices / size;
    let nth = placement.start / size;
    let nth = if mirrored && parts == 2 {
        1 - nth.min(1)
    } else {
        nth
    };
    parts.saturating_sub(1) + nth
}

fn sum(engines: impl Iterator<Item = Engines>) -> Engines {
    engines.fold(Engines::default(), |total, one| Engines {
        copy: total.copy + one.copy,
        decoder: total.decoder + one.decoder,
        encoder: total.encoder + one.encoder,
        jpeg: total.jpeg + one.jpeg,
        ofa: total.ofa + one.ofa,
    })
}

impl Gpu {
    fn require_mig(&self) -> Result<(), Code> {
        self.mig_spec()?;
        if self.mig.current {
            Ok(())
        } else {
            Err(Code::NOT_SUPPORTED)
        }
    }

    fn profile(&self, id: u32) -> Result<&InstanceProfile, Code> {
        self.mig_spec()?.by_id(id).ok_or(Code::INVALID_ARGUMENT)
    }

    /// Whether the media engines that the existing instances left are enough for one more of `profile`. Copy engines are
    /// shared out by slice and never run short before the slices do.
    fn has_engines(&self, profile: &InstanceProfile) -> bool {
        let used = sum(self
            .mig
            .instances
            .iter()
            .filter_map(|instance| Some(self.profile_of(instance)?.engines)));
        let (all, more) = (self.board.engines, profile.engines);
        used.decoder + more.decoder <= all.decoder
            && used.encoder + more.encoder <= all.encoder
            && used.jpeg + more.jpeg <= all.jpeg
            && used.ofa + more.ofa <= all.ofa
    }

    fn is_free(&self, placement: Placement) -> bool {
        !self
            .mig
            .instances
            .iter()
            .any(|instance| instance.placement.overlaps(&placement))
    }

    /// Placements of a profile on an empty GPU; answered with MIG off as well.
    pub fn possible_placements(&self, profile_id: u32) -> Result<Vec<Placement>, Code> {
        Ok(self.profile(profile_id)?.placements().collect())
    }

    /// How many more instances of a profile fit now.
    pub fn remaining_capacity(&self, profile_id: u32) -> Result<u32, Code> {
        self.require_mig()?;
        let profile = self.profile(profile_id)?;
        let mut scratch = self.clone();
        let mut count = 0;
        // Placements of one profile have one size and ascend, so taking the first free one each time is optimal.
        for placement in profile.placements() {
            if scratch.admit(profile, placement).is_ok() {
                scratch.mig.instances.push(GpuInstance {
                    id: u32::MAX - count,
                    profile: profile.id,
                    placement,
                    compute: Vec::new(),
                    created: 0,
                });
                count += 1;
            }
        }
        Ok(count)
    }

    fn admit(&self, profile: &InstanceProfile, placement: Placement) -> Result<(), Code> {
        let of_profile = self
            .mig
            .instances
            .iter()
            .filter(|instance| instance.profile == profile.id)
            .count();
        let room = self.mig.instances.len() < MAX_INSTANCES
            && of_profile < profile.max_instances as usize
            && self.is_free(placement)
            && self.has_engines(profile);
        if room {
            Ok(())
        } else {
            Err(Code::INSUFFICIENT_RESOURCES)
        }
    }

    /// The placement the driver picks when none is given: the first free one in the profile's preference of ids.
    fn choose(
        &self,
        profile: &InstanceProfile,
        memory_slices: u32,
        mirrored: bool,
    ) -> Option<Placement> {
        let id = |placement: Placement| instance_id(memory_slices, placement, mirrored);
        let preferred = profile
            .preference
            .iter()
            .filter_map(|want| profile.placements().find(|p| id(*p) == *want));
        preferred
            .chain(profile.placements())
            .find(|placement| self.is_free(*placement))
    }

    fn instance_profile(&self, instance: u32) -> Result<(&GpuInstance, &InstanceProfile), Code> {
        self.require_mig()?;
        let instance = self.instance(instance).ok_or(Code::NOT_FOUND)?;
        Ok((instance, self.profile_of(instance).ok_or(Code::UNKNOWN)?))
    }
}

impl Node {
    fn gpu_mut(&mut self, gpu: usize) -> Result<&mut Gpu, Code> {
        self.gpus.get_mut(gpu).ok_or(Code::INVALID_ARGUMENT)
    }

    fn gpu_ref(&self, gpu: usize) -> Result<&Gpu, Code> {
        self.gpus.get(gpu).ok_or(Code::INVALID_ARGUMENT)
    }

    fn note_mig_change(&mut self, gpu: usize, now_us: u64) {
        self.events.push(Event {
            gpu,
            ..Event::new(kind::MIG_CONFIG_CHANGE, 0, now_us)
        });
    }

    /// Asks for a MIG mode. `Err` is the call's own code; `Ok` the activation status: SUCCESS when the mode is what was
    /// asked for, IN_USE when somebody else uses the GPU (on Ampere the wish stays pending), RESET_REQUIRED when only a
    /// reset that the driver cannot do itself would help.
    pub fn set_mig_mode(
        &mut self,
        gpu: usize,
        enable: bool,
        caller: u32,
        now_us: u64,
    ) -> Result<Code, Code> {
        let resetless = self.gpu_ref(gpu)?.mig_spec()?.resetless;
        let busy = self.is_held(gpu, caller);
        let no_reset = self.personality.passthrough || self.gpu_ref(gpu)?.health.reset_refused;
        let state = self.gpu_mut(gpu)?;
        if state.mig.current == enable {
            state.mig.pending = enable;
            return Ok(Code::SUCCESS);
        }
        // Turning MIG off under existing instances is not described anywhere; refusing like any other use is what every
        // client copes with.
        let status = if busy || !state.mig.instances.is_empty() {
            Code::IN_USE
        } else if state.mig.stuck || (no_reset && !resetless) {
            Code::RESET_REQUIRED
        } else {
            Code::SUCCESS
        };
        if status == Code::SUCCESS {
            state.mig.current = enable;
            state.mig.pending = enable;
            state.modes.mig_compute.clear();
            if !resetless {
                // The driver resets the GPU on the way: handles from before are stale.
                state.generation += 1;
                state.after_reset();
            }
            self.note_mig_change(gpu, now_us);
        } else if !resetless || state.mig.stuck {
            // Only Ampere stores the wish (in the InfoROM); a resetless mode has nothing to keep it in.
            state.mig.pending = enable;
        }
        Ok(status)
    }

    /// Creates a GPU instance and returns its id.
    pub fn create_gpu_instance(
        &mut self,
        gpu: usize,
        profile_id: u32,
        placement: Option<Placement>,
        caller: u32,
        now_us: u64,
    ) -> Result<u32, Code> {
        let state = self.gpu_ref(gpu)?;
        state.require_mig()?;
        let spec = state.mig_spec()?;
        let profile = state.profile(profile_id)?;
        if placement.is_some_and(|wanted| !profile.placements().any(|offered| offered == wanted)) {
            return Err(Code::INVALID_ARGUMENT);
        }
        // A client that holds the whole GPU (a profiler, say) keeps the driver from partitioning memory.
        if self.has_holder(caller)
            || self
                .workloads_on(gpu)
                .any(|workload| workload.instance.is_none())
        {
            return Err(Code::IN_USE);
        }
        let mirrored = self.personality.mirrored_ids;
        let chosen = placement.or_else(|| state.choose(profile, spec.memory_slices, mirrored));
        let chosen = chosen.ok_or(Code::INSUFFICIENT_RESOURCES)?;
        state.admit(profile, chosen)?;
        let id = instance_id(spec.memory_slices, chosen, mirrored);
        let state = self.gpu_mut(gpu)?;
        let created = state.mig.count_creation();
        state.mig.instances.push(GpuInstance {
            id,
            profile: profile_id,
            placement: chosen,
            compute: Vec::new(),
            created,
        });
        state.mig.instances.sort_by_key(|instance| instance.id);
        self.note_mig_change(gpu, now_us);
        Ok(id)
    }

    /// Destroys a GPU instance without compute instances and processes.
    pub fn destroy_gpu_instance(
        &mut self,
        gpu: usize,
        instance: u32,
        now_us: u64,
    ) -> Result<(), Code> {
        let state = self.gpu_ref(gpu)?;
        state.require_mig()?;
        let found = state.instance(instance).ok_or(Code::NOT_FOUND)?;
        if !found.compute.is_empty() || self.workloads_in(gpu, instance, None).next().is_some() {
            return Err(Code::IN_USE);
        }
        self.gpu_mut(gpu)?
            .mig
            .instances
            .retain(|other| other.id != instance);
        self.note_mig_change(gpu, now_us);
        Ok(())
    }

    /// The MIG device with this index: GPU-instance id and compute-instance id.
    pub fn mig_device(&self, gpu: usize, index: u32) -> Result<(u32, u32), Code> {
        let state = self.gpu_ref(gpu)?;
        state.require_mig()?;
        let mut devices = state.mig_devices();
        let found = if self.personality.repack_indices {
            devices.nth(index as usize)
        } else {
            devices.find(|(_, compute)| compute.index == index)
        };
        found
            .map(|(instance, compute)| (instance.id, compute.id))
            .ok_or(Code::NOT_FOUND)
    }

    /// The index of a MIG device, the reverse of `mig_device`.
    pub fn mig_device_index(&self, gpu: usize, instance: u32, compute: u32) -> Option<u32> {
        let mut devices = self.gpus.get(gpu)?.mig_devices();
        if self.personality.repack_indices {
            let position = devices.position(|(i, c)| (i.id, c.id) == (instance, compute))?;
            u32::try_from(position).ok()
        } else {
            devices
                .find(|(i, c)| (i.id, c.id) == (instance, compute))
                .map(|(_, compute)| compute.index)
        }
    }
}

mod compute;

#[cfg(test)]
mod tests;
