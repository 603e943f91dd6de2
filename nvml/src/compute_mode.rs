//! How many processes may compute on a GPU at once.

use nvml_wrapper_sys::bindings as sys;
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::error::Error;
use crate::library::symbol;

/// `nvmlComputeMode_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ComputeMode {
    /// Any number of processes.
    Default,
    /// None.
    Prohibited,
    /// One, such as an MPS server.
    ExclusiveProcess,
    /// A mode that no driver of today sets.
    Other(u32),
}

impl From<u32> for ComputeMode {
    fn from(number: u32) -> Self {
        match number {
            sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT => Self::Default,
            sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_PROHIBITED => Self::Prohibited,
            sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS => Self::ExclusiveProcess,
            other => Self::Other(other),
        }
    }
}

impl From<ComputeMode> for u32 {
    fn from(mode: ComputeMode) -> Self {
        match mode {
            ComputeMode::Default => sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_DEFAULT,
            ComputeMode::Prohibited => sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_PROHIBITED,
            ComputeMode::ExclusiveProcess => {
                sys::nvmlComputeMode_enum_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
            }
            ComputeMode::Other(number) => number,
        }
    }
}

impl Device<'_> {
    /// Compute mode.
    ///
    /// # Errors
    /// The call's; `NOT_SUPPORTED` for a GPU in MIG mode.
    pub fn compute_mode(&self) -> Result<ComputeMode, Error> {
        let library = self.context.library;
        let number: u32 = self
            .context
            .get_of(symbol!(library, nvmlDeviceGetComputeMode), self.handle)?;
        Ok(number.into())
    }

    /// Sets the compute mode. Needs root; running processes are not touched. It lasts until the driver is loaded again.
    ///
    /// # Errors
    /// The call's; `NOT_SUPPORTED` for a GPU in MIG mode, `NO_PERMISSION`.
    pub fn set_compute_mode(&self, mode: ComputeMode) -> Result<(), Error> {
        let library = self.context.library;
        self.context.set(
            symbol!(library, nvmlDeviceSetComputeMode),
            self.handle,
            u32::from(mode),
        )
    }
}
