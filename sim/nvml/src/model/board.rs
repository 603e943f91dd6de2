//! What one kind of board is: the numbers a driver reads from the hardware and never changes.
//!
//! Pure data, filled from `boards/*.yaml`. It knows no state: which instances exist is `Gpu`'s business.

use serde::{Deserialize, Serialize};

/// GPU generations, with the numbers of `nvmlDeviceArchitecture_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// 6
    Turing,
    /// 7
    #[default]
    Ampere,
    /// 8
    Ada,
    /// 9
    Hopper,
    /// 10
    Blackwell,
}

impl Architecture {
    /// The header's number.
    pub fn number(self) -> u32 {
        match self {
            Architecture::Turing => 6,
            Architecture::Ampere => 7,
            Architecture::Ada => 8,
            Architecture::Hopper => 9,
            Architecture::Blackwell => 10,
        }
    }
}

/// `nvmlDeviceAddressingModeType_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Addressing {
    /// 0: no common address space with the CPU.
    #[default]
    None,
    /// 1: heterogeneous memory management in software.
    Hmm,
    /// 2: address translation service, hardware-coherent (Grace).
    Ats,
}

/// One kind of board.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Board {
    /// Name as NVML reports it, for example `NVIDIA H100 80GB HBM3`.
    pub product: String,
    /// Generation.
    pub architecture: Architecture,
    /// CUDA compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// PCI ids.
    pub pci: PciIds,
    /// Board part number.
    pub part_number: String,
    /// VBIOS version.
    pub vbios: String,
    /// InfoROM versions; absent on boards without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inforom: Option<Inforom>,
    /// Streaming multiprocessors of the whole board.
    pub multiprocessors: u32,
    /// CUDA cores of the whole board.
    pub cores: u32,
    /// Memory.
    pub memory: MemorySpec,
    /// Engines of the whole board.
    pub engines: Engines,
    /// Clocks in MHz.
    pub clocks: Clocks,
    /// Power in milliwatts.
    pub power: PowerSpec,
    /// Temperatures in degrees Celsius.
    pub thermal: ThermalSpec,
    /// Whether the memory has ECC.
    pub ecc: bool,
    /// Banks of the row remapper, all in the `max` bucket when new; absent on boards that retire pages instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_remap_banks: Option<u32>,
    /// PCI Express.
    pub pcie: PcieSpec,
    /// NVLink; absent on boards without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<NvLinkSpec>,
    /// Whether an NVLink-C2C ties it to a Grace CPU.
    #[serde(default)]
    pub c2c: bool,
    /// Whether the driver measures it with GPM (Hopper and later).
    #[serde(default)]
    pub gpm: bool,
    /// How it shares addresses with the CPU.
    #[serde(default)]
    pub addressing: Addressing,
    /// Fans under the driver's control.
    #[serde(default)]
    pub fans: u32,
    /// Partitioning; absent on boards without MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigSpec>,
    /// Fields whose numbers no capture or document gives, with how they were arrived at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inferred: Vec<Inferred>,
}

/// PCI ids of a board; the vendor is always NVIDIA (`0x10DE`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PciIds {
    /// Device id.
    pub device: u16,
    /// Subsystem device id.
    pub subsystem: u16,
    /// 24-bit class code: `0x030200` 3D controller, `0x030000` VGA.
    pub class: u32,
}

/// NVIDIA's PCI vendor id.
pub const NVIDIA_VENDOR: u16 = 0x10DE;

impl PciIds {
    /// `nvmlPciInfo_t::pciDeviceId`: device in the upper half, vendor in the lower.
    pub fn device_word(&self) -> u32 {
        u32::from(self.device) << 16 | u32::from(NVIDIA_VENDOR)
    }

    /// `nvmlPciInfo_t::pciSubSystemId`, packed like the device.
    pub fn subsystem_word(&self) -> u32 {
        u32::from(self.subsystem) << 16 | u32::from(NVIDIA_VENDOR)
    }
}

/// InfoROM object versions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inforom {
    /// Image version, for example `G506.0200.00.04`.
    pub image: String,
    /// OEM object.
    pub oem: String,
    /// ECC object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc: Option<String>,
}

/// Memory of a board.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemorySpec {
    /// Frame buffer as NVML reports it, MiB.
    pub total_mib: u64,
    /// Part of the total that the driver keeps for itself, MiB.
    pub reserved_mib: u64,
    /// BAR1 aperture, MiB.
    pub bar1_mib: u64,
    /// Bus width in bits.
    pub bus_bits: u32,
}

/// Engines of a board or an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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

/// Clock domains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clocks {
    /// Graphics and SM domain.
    pub graphics: ClockRange,
    /// Memory domain.
    pub memory: ClockRange,
    /// Video domain.
    pub video: ClockRange,
}

/// One clock domain, MHz.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockRange {
    /// What it runs at without load.
    pub idle: u32,
    /// What it runs at under full load without a throttle.
    pub max: u32,
}

/// Power, milliwatts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerSpec {
    /// Draw without load.
    pub idle_mw: u32,
    /// Default limit.
    pub default_mw: u32,
    /// Lowest limit that can be set.
    pub min_mw: u32,
    /// Highest limit that can be set.
    pub max_mw: u32,
}

/// Temperature thresholds, degrees Celsius.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThermalSpec {
    /// Core temperature without load.
    pub idle: u32,
    /// Core temperature under full load.
    pub load: u32,
    /// Shutdown.
    pub shutdown: u32,
    /// Hardware slowdown.
    pub slowdown: u32,
    /// Maximum operating temperature of the core.
    pub max_operating: u32,
    /// Maximum operating temperature of the memory, where it has a sensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<u32>,
    /// Thresholds as distances to the limit (T.limit), for boards that report those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitSpec>,
}

/// T.limit thresholds: degrees left until the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    /// Shutdown, for example −8.
    pub shutdown: i32,
    /// Slowdown, for example −2.
    pub slowdown: i32,
    /// Maximum operating, mostly 0.
    pub max_operating: i32,
}

/// PCI Express link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieSpec {
    /// Highest generation of the link.
    pub generation: u32,
    /// Highest generation the device itself could do.
    pub device_generation: u32,
    /// Lanes.
    pub width: u32,
}

/// NVLink of a board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvLinkSpec {
    /// Links.
    pub links: u32,
    /// `nvmlNvlinkVersion_t`: 4 for 3.0, 6 for 4.0, 7 for 5.0.
    pub version: u32,
    /// Speed of one link and direction, MB/s.
    pub mb_per_s: u32,
}

/// Partitioning of a board.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigSpec {
    /// Memory slices of the whole board, the unit of placements: 8, 4 on A30, 12 on RTX PRO 6000.
    pub memory_slices: u32,
    /// Highest number of MIG devices (`nvmlDeviceGetMaxMigDeviceCount` while MIG is on).
    pub max_devices: u32,
    /// Whether the mode changes without a reset and is lost with the driver (Hopper and later).
    pub resetless: bool,
    /// Profiles, ascending by enumeration index.
    pub profiles: Vec<InstanceProfile>,
}

/// One GPU-instance profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceProfile {
    /// Profile id (19, 14, 9 …), what creation takes.
    pub id: u32,
    /// Enumeration index (`NVML_GPU_INSTANCE_PROFILE_*`).
    pub index: u32,
    /// Name, for example `1g.10gb+me`.
    pub name: String,
    /// Compute slices.
    pub slices: u32,
    /// How many an empty GPU holds.
    pub max_instances: u32,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Engines of one instance.
    pub engines: Engines,
    /// Memory slices one instance takes.
    pub size: u32,
    /// Starts the driver offers on an empty GPU, ascending.
    pub starts: Vec<u32>,
    /// GPU-instance ids in the order in which the driver tries them when no placement is given.
    pub preference: Vec<u32>,
    /// Whether it serves graphics APIs (capability bit 2 of the v3 profile info).
    #[serde(default)]
    pub graphics: bool,
    /// Compute-instance profiles inside.
    pub compute: Vec<ComputeProfile>,
}

/// One compute-instance profile inside a GPU-instance profile. Engines are shared: they are the GPU instance's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputeProfile {
    /// Profile id.
    pub id: u32,
    /// Enumeration index (`NVML_COMPUTE_INSTANCE_PROFILE_*`).
    pub index: u32,
    /// Compute slices.
    pub slices: u32,
    /// How many an empty GPU instance holds.
    pub max_instances: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Starts inside the GPU instance, ascending.
    pub starts: Vec<u32>,
}

impl InstanceProfile {
    /// The compute-instance profile with this id.
    pub fn compute_by_id(&self, id: u32) -> Option<&ComputeProfile> {
        self.compute.iter().find(|profile| profile.id == id)
    }

    /// The compute-instance profile with this enumeration index.
    pub fn compute_by_index(&self, index: u32) -> Option<&ComputeProfile> {
        self.compute.iter().find(|profile| profile.index == index)
    }

    /// Name of a compute instance of `compute` inside this profile: `1c.3g.40gb`, or `3g.40gb` when it fills it.
    pub fn device_name(&self, compute: &ComputeProfile) -> String {
        if compute.slices == self.slices {
            self.name.clone()
        } else {
            format!("{}c.{}", compute.slices, self.name)
        }
    }
}

impl MigSpec {
    /// The profile with this id.
    pub fn by_id(&self, id: u32) -> Option<&InstanceProfile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }

    /// The profile with this enumeration index.
    pub fn by_index(&self, index: u32) -> Option<&InstanceProfile> {
        self.profiles.iter().find(|profile| profile.index == index)
    }
}

/// A field whose value is an estimate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inferred {
    /// Path of the field, for example `mig.profiles.9.multiprocessors`.
    pub field: String,
    /// How it was arrived at.
    pub reason: String,
}
