//! What the label rules see of a node.

use crate::MigAttributes;

/// A node's GPUs and driver. A GPU that could not be read is not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Machine type (`/sys/class/dmi/id/product_name`); `None` when it cannot be read.
    pub machine: Option<String>,
    /// The driver; `None` when it does not say.
    pub driver: Option<Driver>,
    /// GPUs in index order.
    pub gpus: Vec<Gpu>,
    /// Whether this is a vGPU guest; `None` when PCI devices could not be looked at.
    pub vgpu: Option<Vgpu>,
}

/// Driver versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// `570.124.06`; leading zeros are kept.
    pub version: String,
    /// Highest CUDA version it supports: major and minor.
    pub cuda: Option<(u32, u32)>,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Product name as the driver gives it (`NVIDIA H100 80GB HBM3`).
    pub name: String,
    /// Total memory in bytes; `None` where it has none of its own (unified memory) or does not say.
    pub memory_bytes: Option<u64>,
    /// CUDA compute capability.
    pub compute_capability: Option<(u32, u32)>,
    /// PCI class code, three bytes (`0x030200`).
    pub pci_class: Option<u32>,
    /// MIG; `None` when the GPU is not capable of it.
    pub mig: Option<Mig>,
    /// Membership in an NVLink fabric, once registration has completed successfully.
    pub fabric: Option<Fabric>,
}

impl Gpu {
    /// Whether MIG mode is on now.
    pub fn mig_enabled(&self) -> bool {
        self.mig.as_ref().is_some_and(|mig| mig.enabled)
    }
}

/// MIG on a capable GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mig {
    /// Whether the mode is on now.
    pub enabled: bool,
    /// MIG devices (compute instances).
    pub devices: Vec<MigDevice>,
}

/// One MIG device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigDevice {
    /// Profile name (`1g.10gb+me`, `1c.3g.40gb`).
    pub profile: String,
    /// What the driver says it consists of; `None` when it does not say.
    pub attributes: Option<MigAttributes>,
}

/// A GPU's NVLink fabric membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// Cluster UUID; all zero for a fabric inside one machine.
    pub cluster: [u8; 16],
    /// Clique inside the cluster.
    pub clique: u32,
}

impl Fabric {
    /// The cluster UUID in its usual form, `8-4-4-4-12` hexadecimal digits.
    pub fn cluster_uuid(&self) -> String {
        let mut text = String::with_capacity(36);
        for (i, byte) in self.cluster.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text.push_str(&format!("{byte:02x}"));
        }
        text
    }
}

/// Whether the node is a vGPU guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vgpu {
    /// No vGPU among its PCI devices.
    Absent,
    /// At least one; what the hypervisor's driver says about itself, when it does.
    Present {
        /// Version of the host's driver.
        host_driver_version: Option<String>,
        /// Branch of the host's driver (`r570_00`).
        host_driver_branch: Option<String>,
    },
}
