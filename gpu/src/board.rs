//! A GPU's partitioning abilities, as the driver reports them.
//!
//! Nothing here is keyed by a product name: a board that no table knows works as long as its driver describes it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// PCI vendor and device, with the subsystem's where it is known.
///
/// NVML packs each pair as `device << 16 | vendor` (`nvmlPciInfo_t::pciDeviceId`, `pciSubSystemId`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PciId {
    /// `device << 16 | vendor`, for example `0x233010DE`.
    pub device: u32,
    /// The same packing of the subsystem ids, for example `0x16C110DE`; 0 when unknown.
    pub subsystem: u32,
}

/// A range of a GPU's memory slices (for a GPU instance) or of a GPU instance's compute slices (for a compute instance).
///
/// For GPU instances the unit is the *memory* slice: a 3g profile on an 8-slice board has size 4, a 7g profile size 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Placement {
    /// First slice.
    pub start: u32,
    /// Number of slices.
    pub size: u32,
}

/// Engines that belong to one GPU instance (or are shared by the compute instances inside it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Engines {
    /// Copy engines (CE).
    pub copy: u32,
    /// Video decoders (NVDEC).
    pub decoder: u32,
    /// Video encoders (NVENC).
    pub encoder: u32,
    /// JPEG engines (NVJPG).
    pub jpeg: u32,
    /// Optical flow accelerators (OFA).
    pub ofa: u32,
}

/// A compute-instance profile that one GPU-instance profile offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeProfile {
    /// The enumeration index that `nvmlGpuInstanceGetComputeInstanceProfileInfo` takes.
    pub index: u32,
    /// The profile id that creation takes.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// How many fit into an empty GPU instance of this profile.
    pub max_instances: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
}

/// A GPU-instance profile that a GPU offers.
///
/// Three numbers name it and must not be mixed up: `index`, `id` and, once an instance exists, the instance's own id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceProfile {
    /// The enumeration index that `nvmlDeviceGetGpuInstanceProfileInfo` takes (`NVML_GPU_INSTANCE_PROFILE_*`).
    pub index: u32,
    /// The profile id (19, 14, 9, 5, 0 …) that creation, placement and capacity calls take.
    pub id: u32,
    /// Compute slices (the `G` of `Gg.Xgb`).
    pub slices: u32,
    /// How many fit on an empty GPU.
    pub max_instances: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Engines of one instance.
    pub engines: Engines,
    /// Every placement the driver offers on an empty GPU, ascending by start.
    pub placements: Vec<Placement>,
    /// Compute-instance profiles inside, ascending by slices. Empty when the driver cannot tell before an instance exists.
    pub compute: Vec<ComputeProfile>,
}

/// One MIG-capable GPU's abilities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Board {
    /// Total device memory in bytes, as `nvmlDeviceGetMemoryInfo` reports it: profile names derive from it.
    pub memory_bytes: u64,
    /// The profiles, ascending by enumeration index.
    pub profiles: Vec<InstanceProfile>,
}

/// As `nvidia-smi` prints it: `start:size`.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.start, self.size)
    }
}

impl Placement {
    /// First slice after this range.
    #[must_use]
    pub fn end(self) -> u32 {
        self.start.saturating_add(self.size)
    }

    /// Whether both ranges share a slice.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// One bit per slice. `None` when the range is empty or does not end within 64 slices, which no GPU has.
    #[must_use]
    pub fn mask(self) -> Option<u64> {
        if self.size == 0 || self.end() > u64::BITS {
            return None;
        }
        Some((u64::MAX >> (u64::BITS - self.size)) << self.start)
    }
}

impl Board {
    /// The profile with this profile id (not enumeration index).
    #[must_use]
    pub fn profile(&self, id: u32) -> Option<&InstanceProfile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }

    /// Whether the driver says enough to plan by. Old drivers list no profiles, or no places for them, while MIG is off.
    #[must_use]
    pub fn lists_profiles(&self) -> bool {
        let mut profiles = self.profiles.iter();
        profiles.any(|profile| !profile.placements.is_empty())
    }

    /// Memory slices of the whole GPU: where the last placement ends.
    #[must_use]
    pub fn memory_slices(&self) -> u32 {
        let placements = self.profiles.iter().flat_map(|profile| &profile.placements);
        placements
            .map(|placement| placement.end())
            .max()
            .unwrap_or(0)
    }

    /// Compute slices of the whole GPU: those of its largest profile.
    #[must_use]
    pub fn compute_slices(&self) -> u32 {
        self.profiles
            .iter()
            .map(|profile| profile.slices)
            .max()
            .unwrap_or(0)
    }
}
