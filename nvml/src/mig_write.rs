//! Changing MIG: the mode, GPU instances, compute instances.
//!
//! NVML has no transactions. Each of these is one change; what to do when a later one fails is the caller's to decide.
//! Instances are named by id and looked up for each change.

use nvml_wrapper_sys::bindings as sys;
use serde::{Deserialize, Serialize};

use crate::Code;
use crate::device::Device;
use crate::error::Error;
use crate::library::symbol;

/// What became of a MIG mode change that the driver accepted.
///
/// `nvmlDeviceSetMigMode` says success even where nothing changes yet: its second result tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activation {
    /// The new mode is in force.
    Done,
    /// Somebody holds the GPU; the new mode waits for the next reset.
    InUse,
    /// The new mode waits for a reset.
    ResetRequired,
    /// The driver gives another reason.
    Other(Code),
}

impl From<Code> for Activation {
    fn from(code: Code) -> Self {
        match code {
            Code::SUCCESS => Self::Done,
            Code::IN_USE => Self::InUse,
            Code::RESET_REQUIRED => Self::ResetRequired,
            other => Self::Other(other),
        }
    }
}

impl Device<'_> {
    /// Turns MIG mode on or off. Needs root and an idle GPU; on Ampere it takes a reset, which the driver makes itself
    /// when nobody holds the GPU.
    ///
    /// # Errors
    /// The call's, when the driver refuses the change outright.
    pub fn set_mig_mode(&self, on: bool) -> Result<Activation, Error> {
        let library = self.context.library;
        let status: u32 = self.context.write_with(
            symbol!(library, nvmlDeviceSetMigMode),
            self.handle,
            u32::from(on),
        )?;
        Ok(Code(status).into())
    }

    /// Creates a GPU instance, at a placement or where the driver chooses. It has no compute instances yet.
    ///
    /// # Errors
    /// `INSUFFICIENT_RESOURCES` when there is no room, `IN_USE` when somebody holds the GPU. When an error names
    /// `nvmlGpuInstanceGetInfo`, the instance was created.
    pub fn create_gpu_instance(
        &self,
        profile_id: u32,
        placement: Option<gpu::Placement>,
    ) -> Result<gpu::GpuInstance, Error> {
        let library = self.context.library;
        let handle = match placement {
            None => self.context.write_with(
                symbol!(library, nvmlDeviceCreateGpuInstance),
                self.handle,
                profile_id,
            )?,
            Some(at) => self.context.write_placed(
                symbol!(library, nvmlDeviceCreateGpuInstanceWithPlacement),
                self.handle,
                profile_id,
                sys::nvmlGpuInstancePlacement_t {
                    start: at.start,
                    size: at.size,
                },
            )?,
        };
        self.describe_gpu_instance(handle)
    }

    /// Creates a compute instance in a GPU instance, at a placement or where the driver chooses. Old drivers know only the
    /// latter, and do that: where it lies is in the answer.
    ///
    /// # Errors
    /// As [`create_gpu_instance`](Self::create_gpu_instance); `NOT_FOUND` when there is no such GPU instance.
    pub fn create_compute_instance(
        &self,
        gpu_instance: u32,
        profile_id: u32,
        placement: Option<gpu::Placement>,
    ) -> Result<gpu::ComputeInstance, Error> {
        let library = self.context.library;
        let parent = self.gpu_instance(gpu_instance)?;
        let wherever = || {
            self.context.write_with(
                symbol!(library, nvmlGpuInstanceCreateComputeInstance),
                parent,
                profile_id,
            )
        };
        let Some(at) = placement else {
            return self.describe_compute_instance(wherever()?);
        };
        let placed = self.context.write_placed(
            symbol!(library, nvmlGpuInstanceCreateComputeInstanceWithPlacement),
            parent,
            profile_id,
            sys::nvmlComputeInstancePlacement_t {
                start: at.start,
                size: at.size,
            },
        );
        let handle = match placed {
            Err(error) if error.code() == Some(Code::FUNCTION_NOT_FOUND) => wherever()?,
            placed => placed?,
        };
        self.describe_compute_instance(handle)
    }

    /// Destroys a GPU instance.
    ///
    /// # Errors
    /// `IN_USE` while it has compute instances or processes; `NOT_FOUND`.
    pub fn destroy_gpu_instance(&self, id: u32) -> Result<(), Error> {
        let library = self.context.library;
        let handle = self.gpu_instance(id)?;
        self.context
            .write(symbol!(library, nvmlGpuInstanceDestroy), handle)
    }

    /// Destroys a compute instance.
    ///
    /// # Errors
    /// `IN_USE` while processes run in it; `NOT_FOUND`.
    pub fn destroy_compute_instance(&self, gpu_instance: u32, id: u32) -> Result<(), Error> {
        let library = self.context.library;
        let parent = self.gpu_instance(gpu_instance)?;
        let handle: sys::nvmlComputeInstance_t = self.context.get_with(
            symbol!(library, nvmlGpuInstanceGetComputeInstanceById),
            parent,
            id,
        )?;
        self.context
            .write(symbol!(library, nvmlComputeInstanceDestroy), handle)
    }
}
