//! Reading MIG: the mode, what a GPU can be cut into, and how it is cut.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings as sys;
use serde::{Deserialize, Serialize};

use crate::Code;
use crate::device::Device;
use crate::error::{Error, Optional};
use crate::field::Field;
use crate::library::symbol;

/// Where the driver's profile enumerations are given up if it never says that they end. The 13.3 header has 18 GPU- and
/// 9 compute-instance profiles; newer drivers may have more.
const MAX_PROFILES: u32 = 64;

/// More than a GPU can have of placements or instances: 15 GPU instances, 8 compute instances in each, 7 placements.
const MAX_INSTANCES: usize = 32;

/// The only engine profile there is: `NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED`.
const SHARED_ENGINES: u32 = 0;

/// MIG mode now, and after the next reset. They differ while a mode change waits for one (Ampere).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigMode {
    /// On now.
    pub current: bool,
    /// On after the next reset.
    pub pending: bool,
}

impl Device<'_> {
    /// MIG mode; `NOT_SUPPORTED` on a GPU without MIG.
    ///
    /// # Errors
    /// The call's.
    pub fn mig_mode(&self) -> Result<MigMode, Error> {
        let library = self.context.library;
        let (current, pending): (u32, u32) = self
            .context
            .get_two(symbol!(library, nvmlDeviceGetMigMode), self.handle)?;
        Ok(MigMode {
            current: current != 0,
            pending: pending != 0,
        })
    }

    /// Whether MIG mode changes take effect without a reset (Hopper and later). Drivers that do not know the question
    /// drive no such GPU.
    ///
    /// # Errors
    /// The call's.
    pub fn mig_is_resetless(&self) -> Result<bool, Error> {
        let answer = self.field(Field::RESETLESS_MIG);
        // A driver that does not know the field says INVALID_ARGUMENT.
        match answer {
            Err(error) if error.code() == Some(Code::INVALID_ARGUMENT) => Ok(false),
            other => Ok(other.optional()?.is_some_and(|value| value.as_u64() != 0)),
        }
    }

    /// What the GPU can be cut into. Compute-instance profiles are listed for those GPU-instance profiles of which an
    /// instance exists: the driver tells them only of an instance.
    ///
    /// Drivers that list profiles only with MIG on give none with MIG off.
    ///
    /// # Errors
    /// The calls'.
    pub fn board(&self) -> Result<gpu::Board, Error> {
        self.board_and_layout(false).map(|(board, _)| board)
    }

    /// How the GPU is cut now.
    ///
    /// # Errors
    /// The calls'; `NO_PERMISSION` when this process may not list instances.
    pub fn layout(&self) -> Result<gpu::Layout, Error> {
        self.settled(|| {
            let mig_enabled = self.mig_mode().optional()?.is_some_and(|mode| mode.current);
            self.board_and_layout(mig_enabled).map(|(_, layout)| layout)
        })
    }

    /// Both at once: the instances need the profiles, and the profiles' insides need the instances. With `instances`
    /// false the GPU is not asked for any.
    pub(crate) fn board_and_layout(
        &self,
        instances: bool,
    ) -> Result<(gpu::Board, gpu::Layout), Error> {
        let mut profiles = self.profiles()?;
        let mut layout = gpu::Layout {
            mig_enabled: instances,
            instances: Vec::new(),
        };
        if instances {
            for profile in &mut profiles {
                let found = self.instances_of(profile.id)?;
                let mut compute: Option<Vec<gpu::ComputeProfile>> = None;
                for handle in found {
                    let inside = match &compute {
                        Some(known) => known.clone(),
                        None => self.compute_profiles(handle)?,
                    };
                    layout.instances.push(self.instance(handle, &inside)?);
                    compute = Some(inside);
                }
                if let Some(inside) = compute {
                    profile.compute = inside;
                }
            }
        }
        layout.instances.sort_by_key(|instance| instance.id);
        let board = gpu::Board {
            memory_bytes: self.memory().readable()?.map_or(0, |memory| memory.total),
            profiles,
        };
        Ok((board, layout))
    }

    fn profiles(&self) -> Result<Vec<gpu::InstanceProfile>, Error> {
        let library = self.context.library;
        let mut profiles = Vec::new();
        for index in 0..MAX_PROFILES {
            let answer: Result<sys::nvmlGpuInstanceProfileInfo_t, _> = self.context.get_with(
                symbol!(library, nvmlDeviceGetGpuInstanceProfileInfo),
                self.handle,
                index,
            );
            let info = match answer {
                Ok(info) => info,
                // A hole: a profile that other boards have.
                Err(error) if error.is_absent() => continue,
                // The end of the driver's own enumeration.
                Err(error) if error.code() == Some(Code::INVALID_ARGUMENT) => break,
                Err(error) => return Err(error),
            };
            let placements = self.placements(info.id).readable()?.unwrap_or_default();
            profiles.push(gpu::InstanceProfile {
                index,
                id: info.id,
                slices: info.sliceCount,
                max_instances: info.instanceCount,
                multiprocessors: info.multiprocessorCount,
                memory_mib: info.memorySizeMB,
                engines: gpu::Engines {
                    copy: info.copyEngineCount,
                    decoder: info.decoderCount,
                    encoder: info.encoderCount,
                    jpeg: info.jpegCount,
                    ofa: info.ofaCount,
                },
                placements,
                compute: Vec::new(),
            });
        }
        Ok(profiles)
    }

    /// Where instances of a profile can lie on an empty GPU, ascending by start.
    ///
    /// # Errors
    /// The call's; `NO_PERMISSION` without privileges.
    pub fn placements(&self, profile_id: u32) -> Result<Vec<gpu::Placement>, Error> {
        let library = self.context.library;
        let symbol = symbol!(library, nvmlDeviceGetGpuInstancePossiblePlacements_v2);
        let listed: Vec<sys::nvmlGpuInstancePlacement_t> = self
            .context
            .list_with::<MAX_INSTANCES, _, _>(symbol, self.handle, profile_id)?;
        let mut placements: Vec<_> = listed.iter().map(placement).collect();
        placements.sort();
        Ok(placements)
    }

    /// How many more instances of a profile fit now.
    ///
    /// # Errors
    /// The call's; `NOT_SUPPORTED` with MIG off.
    pub fn remaining_capacity(&self, profile_id: u32) -> Result<u32, Error> {
        let library = self.context.library;
        self.context.get_with(
            symbol!(library, nvmlDeviceGetGpuInstanceRemainingCapacity),
            self.handle,
            profile_id,
        )
    }

    /// How many more compute instances of a profile fit into a GPU instance now.
    ///
    /// # Errors
    /// The calls'; `NOT_FOUND` when there is no such GPU instance.
    pub fn remaining_compute_capacity(
        &self,
        gpu_instance: u32,
        profile_id: u32,
    ) -> Result<u32, Error> {
        let library = self.context.library;
        let handle = self.gpu_instance(gpu_instance)?;
        self.context.get_with(
            symbol!(library, nvmlGpuInstanceGetComputeInstanceRemainingCapacity),
            handle,
            profile_id,
        )
    }

    /// The compute-instance profiles that a GPU instance offers, ascending by slices.
    ///
    /// # Errors
    /// The calls'; `NOT_FOUND` when there is no such GPU instance.
    pub fn compute_profiles_of(
        &self,
        gpu_instance: u32,
    ) -> Result<Vec<gpu::ComputeProfile>, Error> {
        self.compute_profiles(self.gpu_instance(gpu_instance)?)
    }

    /// Looks a GPU instance up by its id. Handles are never kept: an id may be another instance's after a change.
    pub(crate) fn gpu_instance(&self, id: u32) -> Result<sys::nvmlGpuInstance_t, Error> {
        let library = self.context.library;
        self.context.get_with(
            symbol!(library, nvmlDeviceGetGpuInstanceById),
            self.handle,
            id,
        )
    }

    fn instances_of(&self, profile_id: u32) -> Result<Vec<sys::nvmlGpuInstance_t>, Error> {
        let library = self.context.library;
        let symbol = symbol!(library, nvmlDeviceGetGpuInstances);
        let found = self
            .context
            .list_with::<MAX_INSTANCES, _, _>(symbol, self.handle, profile_id);
        Ok(found.optional()?.unwrap_or_default())
    }

    fn instance(
        &self,
        handle: sys::nvmlGpuInstance_t,
        profiles: &[gpu::ComputeProfile],
    ) -> Result<gpu::GpuInstance, Error> {
        let mut instance = self.describe_gpu_instance(handle)?;
        let library = self.context.library;
        let symbol = symbol!(library, nvmlGpuInstanceGetComputeInstances);
        // Two profiles may share an id; an instance counts once.
        let mut compute: BTreeMap<u32, gpu::ComputeInstance> = BTreeMap::new();
        for profile in profiles {
            let found = self
                .context
                .list_with::<MAX_INSTANCES, _, _>(symbol, handle, profile.id);
            for handle in found.optional()?.unwrap_or_default() {
                let inside = self.describe_compute_instance(handle)?;
                compute.insert(inside.id, inside);
            }
        }
        instance.compute = compute.into_values().collect();
        Ok(instance)
    }

    /// Id, profile and placement; the compute instances inside are not looked at.
    pub(crate) fn describe_gpu_instance(
        &self,
        handle: sys::nvmlGpuInstance_t,
    ) -> Result<gpu::GpuInstance, Error> {
        let library = self.context.library;
        let info: sys::nvmlGpuInstanceInfo_t = self
            .context
            .get_of(symbol!(library, nvmlGpuInstanceGetInfo), handle)?;
        Ok(gpu::GpuInstance {
            id: info.id,
            profile_id: info.profileId,
            placement: placement(&info.placement),
            compute: Vec::new(),
        })
    }

    pub(crate) fn describe_compute_instance(
        &self,
        handle: sys::nvmlComputeInstance_t,
    ) -> Result<gpu::ComputeInstance, Error> {
        let library = self.context.library;
        let info: sys::nvmlComputeInstanceInfo_t = self
            .context
            .get_of(symbol!(library, nvmlComputeInstanceGetInfo_v2), handle)?;
        Ok(gpu::ComputeInstance {
            id: info.id,
            profile_id: info.profileId,
            placement: gpu::Placement {
                start: info.placement.start,
                size: info.placement.size,
            },
        })
    }

    fn compute_profiles(
        &self,
        handle: sys::nvmlGpuInstance_t,
    ) -> Result<Vec<gpu::ComputeProfile>, Error> {
        let library = self.context.library;
        let symbol = symbol!(library, nvmlGpuInstanceGetComputeInstanceProfileInfo);
        let mut profiles = Vec::new();
        for index in 0..MAX_PROFILES {
            let mut info: sys::nvmlComputeInstanceProfileInfo_t = crate::plain::zeroed();
            // SAFETY: the result is valid for the call; the handle is of this opening of the library.
            let answer = self.context.call(symbol, |f| unsafe {
                f(handle, index, SHARED_ENGINES, &raw mut info)
            });
            match answer {
                Ok(()) => profiles.push(gpu::ComputeProfile {
                    index,
                    id: info.id,
                    slices: info.sliceCount,
                    max_instances: info.instanceCount,
                    multiprocessors: info.multiprocessorCount,
                }),
                Err(error) if error.is_absent() => {}
                Err(error) if error.code() == Some(Code::INVALID_ARGUMENT) => break,
                Err(error) => return Err(error),
            }
        }
        profiles.sort_by_key(|profile| (profile.slices, profile.index));
        Ok(profiles)
    }
}

fn placement(raw: &sys::nvmlGpuInstancePlacement_t) -> gpu::Placement {
    gpu::Placement {
        start: raw.start,
        size: raw.size,
    }
}
