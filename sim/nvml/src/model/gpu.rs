//! The state of one GPU: identity, mode, instances, health, settings.
//!
//! Data and look-ups only. Partitioning is `mig`, what its meters show is `counters`, faults are `health` and `faults`.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    board::{Board, ComputeProfile, InstanceProfile, MigSpec},
    counters::Meters,
    fabric::{Fabric, Platform},
    health::{Ecc, Health, RowRemap, Throttle},
    nvlink::Link,
    pci::PciAddress,
    uuid,
};
use crate::Code;

/// A range of slices: memory slices for GPU instances, compute slices for compute instances.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Placement {
    /// First slice.
    pub start: u32,
    /// Number of slices.
    pub size: u32,
}

impl Placement {
    /// Whether the two share a slice.
    pub fn overlaps(&self, other: &Placement) -> bool {
        self.start < other.start.saturating_add(other.size)
            && other.start < self.start.saturating_add(self.size)
    }
}

/// A compute instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeInstance {
    /// Id inside its GPU instance: the lowest free one at creation.
    pub id: u32,
    /// Compute-instance profile id.
    pub profile: u32,
    /// Compute slices inside the GPU instance.
    pub placement: Placement,
    /// MIG device index given at creation, the lowest free one; what the driver shows when indices do not re-pack.
    pub index: u32,
    /// Which of the GPU's creations made it: tells it from an earlier one with the same id.
    #[serde(default)]
    pub created: u32,
}

/// A GPU instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInstance {
    /// Id, a function of the placement.
    pub id: u32,
    /// GPU-instance profile id.
    pub profile: u32,
    /// Memory slices.
    pub placement: Placement,
    /// Compute instances, ascending by id.
    pub compute: Vec<ComputeInstance>,
    /// Which of the GPU's creations made it: tells it from an earlier one with the same id.
    #[serde(default)]
    pub created: u32,
}

impl GpuInstance {
    /// The compute instance with this id.
    pub fn compute_by_id(&self, id: u32) -> Option<&ComputeInstance> {
        self.compute.iter().find(|instance| instance.id == id)
    }
}

/// MIG mode and instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mig {
    /// Whether the mode is on.
    pub current: bool,
    /// What the mode will be after the next reset.
    pub pending: bool,
    /// A fault: mode changes stay pending whatever the state.
    #[serde(default)]
    pub stuck: bool,
    /// GPU instances, ascending by id.
    pub instances: Vec<GpuInstance>,
    /// How many instances of both kinds were ever created on the GPU.
    #[serde(default)]
    pub creations: u32,
}

impl Mig {
    /// The number of the next creation.
    pub(super) fn count_creation(&mut self) -> u32 {
        self.creations = self.creations.wrapping_add(1);
        self.creations
    }
}

/// `nvmlComputeMode_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeMode {
    /// 0: many contexts.
    #[default]
    Default,
    /// 2: none.
    Prohibited,
    /// 3: one process.
    ExclusiveProcess,
}

impl ComputeMode {
    /// The header's number.
    pub fn number(self) -> u32 {
        match self {
            ComputeMode::Default => 0,
            ComputeMode::Prohibited => 2,
            ComputeMode::ExclusiveProcess => 3,
        }
    }

    /// From the header's number; 1 (exclusive thread) is gone and refused like any other.
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(ComputeMode::Default),
            2 => Some(ComputeMode::Prohibited),
            3 => Some(ComputeMode::ExclusiveProcess),
            _ => None,
        }
    }
}

/// Settings that a privileged caller changes and that a driver reload forgets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Modes {
    /// Persistence mode.
    pub persistence: bool,
    /// Compute mode of the whole GPU.
    pub compute: ComputeMode,
    /// Compute modes of MIG devices, by `gi/ci`; those not named are in the default mode.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mig_compute: BTreeMap<String, ComputeMode>,
    /// Locked graphics clocks, lowest and highest MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_graphics: Option<(u32, u32)>,
    /// Locked memory clocks, lowest and highest MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_memory: Option<(u32, u32)>,
    /// Power limit in force, milliwatts.
    pub power_limit_mw: u32,
    /// Accounting mode.
    #[serde(default)]
    pub accounting: bool,
    /// GPM streaming.
    #[serde(default)]
    pub gpm_streaming: bool,
    /// Drain state: new clients are refused.
    #[serde(default)]
    pub drain: bool,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Key of its board in `Node::boards`.
    pub board_name: String,
    /// Its board; linked after loading.
    #[serde(skip, default)]
    pub board: Arc<Board>,
    /// `GPU-8-4-4-4-12`.
    pub uuid: String,
    /// Serial number, 13 digits.
    pub serial: String,
    /// Device minor: the `G` of `/dev/nvidiaG`; not the NVML index.
    pub minor: u32,
    /// Module id on the baseboard.
    pub module_id: u32,
    /// PCI address.
    pub pci: PciAddress,
    /// Index of its node in `Machine::numa`; absent when the firmware names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// PCIe switch it hangs on: GPUs with the same number are one switch apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie_switch: Option<u32>,
    /// Bumped by everything that makes handles of this GPU stale (reset, removal, Ampere mode change).
    pub generation: u32,
    /// Removed through the drain interface; a rescan brings it back.
    #[serde(default)]
    pub removed: bool,
    /// MIG mode and instances.
    pub mig: Mig,
    /// Settings.
    pub modes: Modes,
    /// ECC mode and counters.
    pub ecc: Ecc,
    /// Row remapper.
    pub remap: RowRemap,
    /// What is wrong with it.
    pub health: Health,
    /// Why its clocks are held down.
    pub throttle: Throttle,
    /// NVLinks, by link number.
    pub links: Vec<Link>,
    /// NVLink fabric.
    pub fabric: Fabric,
    /// Its fabric as it was made, while a fault shows another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric_made: Option<Fabric>,
    /// Place in the rack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Integrals of everything that only grows.
    pub meters: Meters,
}

impl Gpu {
    /// Partitioning of the board, or NOT_SUPPORTED.
    pub fn mig_spec(&self) -> Result<&MigSpec, Code> {
        self.board.mig.as_ref().ok_or(Code::NOT_SUPPORTED)
    }

    /// The GPU instance with this id.
    pub fn instance(&self, id: u32) -> Option<&GpuInstance> {
        self.mig.instances.iter().find(|instance| instance.id == id)
    }

    /// Profile of a GPU instance.
    pub fn profile_of(&self, instance: &GpuInstance) -> Option<&InstanceProfile> {
        self.board.mig.as_ref()?.by_id(instance.profile)
    }

    /// Profile of a compute instance.
    pub fn compute_profile_of(
        &self,
        instance: &GpuInstance,
        compute: &ComputeInstance,
    ) -> Option<&ComputeProfile> {
        self.profile_of(instance)?.compute_by_id(compute.profile)
    }

    /// MIG devices in index order: every compute instance, ascending by GPU-instance id, then compute-instance id
    /// (order of the H100, H200 and A100 captures).
    pub fn mig_devices(&self) -> impl Iterator<Item = (&GpuInstance, &ComputeInstance)> {
        self.mig.instances.iter().flat_map(|instance| {
            instance
                .compute
                .iter()
                .map(move |compute| (instance, compute))
        })
    }

    /// UUID of a MIG device, in the form current since R470. The same geometry on the same board always gives the same
    /// text, like the driver's hash over chip, die, GPU instance and compute engine.
    pub fn mig_uuid(&self, instance: &GpuInstance, compute: &ComputeInstance) -> String {
        let name = format!("{}/{}/{}", self.uuid, instance.id, compute.placement.start);
        format!("MIG-{}", uuid::derived("mig", &name))
    }

    /// UUID of a MIG device as drivers before R470 wrote it; today's drivers still accept it as input.
    pub fn mig_uuid_legacy(&self, instance: u32, compute: u32) -> String {
        format!("MIG-{}/{instance}/{compute}", self.uuid)
    }

    /// Profile name of a MIG device: `1g.10gb`, or `1c.3g.40gb` when it does not fill its GPU instance.
    pub fn device_profile_name(&self, instance: &GpuInstance, compute: &ComputeInstance) -> String {
        match (
            self.profile_of(instance),
            self.compute_profile_of(instance, compute),
        ) {
            (Some(profile), Some(compute)) => profile.device_name(compute),
            _ => String::new(),
        }
    }

    /// NVML name of a MIG device, for example `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
    pub fn mig_name(&self, instance: &GpuInstance, compute: &ComputeInstance) -> String {
        format!(
            "{} MIG {}",
            self.board.product,
            self.device_profile_name(instance, compute)
        )
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case((0, 4), (4, 4), false)]
    #[case((0, 4), (3, 1), true)]
    #[case((6, 2), (6, 1), true)]
    #[case((0, 8), (7, 1), true)]
    #[case((u32::MAX, 1), (0, 1), false)]
    fn overlap(#[case] a: (u32, u32), #[case] b: (u32, u32), #[case] expected: bool) {
        let placement = |(start, size)| Placement { start, size };
        assert_eq!(placement(a).overlaps(&placement(b)), expected);
        assert_eq!(placement(b).overlaps(&placement(a)), expected);
    }
}
