//! A GPU's place in an NVLink fabric and in a rack.

use serde::{Deserialize, Serialize};

/// `nvmlGpuFabricState_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricState {
    /// 0: not on a fabric.
    #[default]
    NotSupported,
    /// 1
    NotStarted,
    /// 2
    InProgress,
    /// 3
    Completed,
}

impl FabricState {
    /// The header's number.
    pub fn number(self) -> u8 {
        match self {
            FabricState::NotSupported => 0,
            FabricState::NotStarted => 1,
            FabricState::InProgress => 2,
            FabricState::Completed => 3,
        }
    }
}

/// `healthMask` of the fabric info: two bits each (0 not supported, 1 unhealthy, 2 healthy).
pub mod health_mask {
    /// Shift of the degraded-bandwidth field.
    pub const DEGRADED_BANDWIDTH: u32 = 0;
    /// Shift of the route-recovery field.
    pub const ROUTE_RECOVERY: u32 = 2;
    /// Shift of the route-unhealthy field.
    pub const ROUTE_UNHEALTHY: u32 = 4;
    /// Shift of the access-timeout field.
    pub const ACCESS_TIMEOUT: u32 = 6;
    /// All four fields healthy.
    pub const HEALTHY: u32 = 0b1010_1010;
}

/// Fabric registration of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fabric {
    /// State of the registration.
    pub state: FabricState,
    /// Outcome of the registration, an NVML code.
    pub status: u32,
    /// Cluster, zeros on a single node.
    pub cluster: [u8; 16],
    /// Clique.
    pub clique: u32,
    /// Health, in the bits of `health_mask`.
    pub health: u32,
}

impl Fabric {
    /// `healthSummary` of the v3 fabric info: 0 not supported, 1 healthy, 2 unhealthy.
    pub fn summary(&self) -> u8 {
        let fields = [0, 2, 4, 6].map(|shift| (self.health >> shift) & 0b11);
        if self.state != FabricState::Completed || fields == [0; 4] {
            0
        } else if fields.contains(&1) {
            2
        } else {
            1
        }
    }
}

/// `nvmlPlatformInfo_t`: place in a rack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Platform {
    /// Serial number of the chassis, at most 16 bytes.
    pub chassis_serial: String,
    /// Slot.
    pub slot: u8,
    /// Compute tray.
    pub tray: u8,
    /// Node in the tray.
    pub host: u8,
    /// 0 direct, 1 through a switch.
    pub peer_type: u8,
}
