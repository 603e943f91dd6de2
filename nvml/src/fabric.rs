//! A GPU's place in an NVLink fabric.

use nvml_wrapper_sys::bindings as sys;
use serde::{Deserialize, Serialize};

use crate::Code;
use crate::device::Device;
use crate::error::{Error, Optional};
use crate::library::symbol;
use crate::plain::{version, zeroed};

/// How far the fabric manager got with registering the GPU (`nvmlGpuFabricState_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FabricState {
    /// The GPU has no fabric.
    NotSupported,
    /// Not begun.
    NotStarted,
    /// Under way.
    InProgress,
    /// Done; `Fabric::status` tells how.
    Completed,
    /// A state that this version does not know.
    Other(u8),
}

/// A GPU's place in an NVLink fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fabric {
    /// Registration.
    pub state: FabricState,
    /// How registration ended, meaningful once completed.
    pub status: Code,
    /// The NVLink domain; all zeroes within a single node.
    pub cluster_uuid: [u8; 16],
    /// The clique in that domain whose members reach each other.
    pub clique: u32,
    /// Health bits (`NVML_GPU_FABRIC_HEALTH_MASK_*`), from drivers that tell.
    pub health_mask: Option<u32>,
}

impl Fabric {
    /// The domain as text: `8-4-4-4-12` hexadecimal digits.
    #[must_use]
    pub fn cluster_text(&self) -> String {
        let hex: String = self
            .cluster_uuid
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        format!(
            "{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    }
}

impl From<u8> for FabricState {
    fn from(state: u8) -> Self {
        match state {
            0 => Self::NotSupported,
            1 => Self::NotStarted,
            2 => Self::InProgress,
            3 => Self::Completed,
            other => Self::Other(other),
        }
    }
}

impl Device<'_> {
    /// The GPU's place in its fabric, or `None` when it has none.
    ///
    /// # Errors
    /// The call's.
    pub fn fabric(&self) -> Result<Option<Fabric>, Error> {
        let request = sys::nvmlGpuFabricInfo_v3_t {
            version: version::<sys::nvmlGpuFabricInfo_v3_t>(3),
            ..zeroed()
        };
        let library = self.context.library;
        let versioned = self
            .context
            .fill(
                symbol!(library, nvmlDeviceGetGpuFabricInfoV),
                self.handle,
                request,
            )
            .optional()?
            .map(|read| Fabric {
                state: read.state.into(),
                status: Code(read.status),
                cluster_uuid: read.clusterUuid,
                clique: read.cliqueId,
                health_mask: Some(read.healthMask),
            });
        let found = match versioned {
            Some(found) => Some(found),
            // Drivers before the versioned call, or before version 3 of its structure.
            None => self
                .context
                .get_of(symbol!(library, nvmlDeviceGetGpuFabricInfo), self.handle)
                .optional()?
                .map(|read: sys::nvmlGpuFabricInfo_t| Fabric {
                    state: read.state.into(),
                    status: Code(read.status),
                    cluster_uuid: read.clusterUuid,
                    clique: read.cliqueId,
                    health_mask: None,
                }),
        };
        Ok(found.filter(|fabric| fabric.state != FabricState::NotSupported))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_domain_reads_like_a_uuid() {
        let fabric = Fabric {
            state: FabricState::Completed,
            status: Code::SUCCESS,
            cluster_uuid: [
                0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF, 0, 1, 2, 3, 4, 5, 6, 7,
            ],
            clique: 2,
            health_mask: None,
        };
        assert_eq!(
            fabric.cluster_text(),
            "01234567-89ab-cdef-0001-020304050607"
        );
    }
}
