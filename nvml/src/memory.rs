//! Memory of a GPU or MIG device.

use nvml_wrapper_sys::bindings as sys;
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::error::{Error, Optional};
use crate::library::symbol;
use crate::plain::{version, zeroed};

/// Memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What the driver and firmware keep for themselves. `None` from drivers before 510, whose `used` includes it.
    pub reserved: Option<u64>,
    /// Not in use.
    pub free: u64,
    /// In use.
    pub used: u64,
}

impl Device<'_> {
    /// Memory of the GPU, or of the GPU instance of a MIG device.
    ///
    /// # Errors
    /// The calls'; `NO_PERMISSION` for a GPU in MIG mode when the process is not privileged.
    pub fn memory(&self) -> Result<Memory, Error> {
        let library = self.context.library;
        let request = sys::nvmlMemory_v2_t {
            version: version::<sys::nvmlMemory_v2_t>(2),
            ..zeroed()
        };
        let read = self.context.fill(
            symbol!(library, nvmlDeviceGetMemoryInfo_v2),
            self.handle,
            request,
        );
        if let Some(read) = read.optional()? {
            return Ok(Memory {
                total: read.total,
                reserved: Some(read.reserved),
                free: read.free,
                used: read.used,
            });
        }
        let read: sys::nvmlMemory_t = self
            .context
            .get_of(symbol!(library, nvmlDeviceGetMemoryInfo), self.handle)?;
        Ok(Memory {
            total: read.total,
            reserved: None,
            free: read.free,
            used: read.used,
        })
    }

    /// The window through which the CPU reaches the GPU's memory, in bytes (no `reserved`).
    ///
    /// # Errors
    /// The call's.
    pub fn bar1(&self) -> Result<Memory, Error> {
        let library = self.context.library;
        let read: sys::nvmlBAR1Memory_t = self
            .context
            .get_of(symbol!(library, nvmlDeviceGetBAR1MemoryInfo), self.handle)?;
        Ok(Memory {
            total: read.bar1Total,
            reserved: None,
            free: read.bar1Free,
            used: read.bar1Used,
        })
    }
}
