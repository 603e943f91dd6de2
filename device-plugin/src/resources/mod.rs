//! From a node's GPUs and the configuration to resources: which there are, what they are called, which devices they have.
//!
//! Names and ids are those of NVIDIA's plugin. Where that plugin exits (a layout that the strategy cannot express, a MIG
//! device without a name), here the rest is offered and a [`Warning`] says what is not; what is offered agrees with the labels
//! that feature discovery writes of the same node.

mod shares;
mod strategy;
mod warning;

use configuration::plugin::{Candidate, DeviceFilter, PluginFile, ResourceName, Sharing};
use gpu::Profile;
use gpu::labels::{MigAttributes, MigStrategy};

pub use shares::MAX_IDS;
pub use warning::Warning;

use crate::DeviceId;

/// A GPU as the driver shows it, or as it last did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// NVML index.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// The `N` of `/dev/nvidiaN`; `None` when the driver does not say.
    pub minor: Option<u32>,
    /// PCI bus id.
    pub bus_id: String,
    /// Product name.
    pub model: String,
    /// NUMA node, where the kernel gives one.
    pub numa_node: Option<u32>,
    /// Whether MIG mode is on now.
    pub mig_enabled: bool,
    /// MIG devices, by index.
    pub mig: Vec<MigDevice>,
}

/// A MIG device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigDevice {
    /// Index under its GPU.
    pub index: u32,
    /// `MIG-…`.
    pub uuid: String,
    /// GPU-instance id.
    pub gpu_instance: u32,
    /// Compute-instance id.
    pub compute_instance: u32,
    /// Profile; `None` when the driver does not name it.
    pub profile: Option<Profile>,
    /// What it consists of; `None` when the driver does not say.
    pub attributes: Option<MigAttributes>,
}

impl Gpu {
    fn candidate(&self) -> Candidate<'_> {
        Candidate {
            gpu_index: self.index,
            gpu_uuid: &self.uuid,
            bus_id: &self.bus_id,
            model: &self.model,
            mig: None,
        }
    }

    fn mig_candidate<'a>(&'a self, device: &'a MigDevice) -> Candidate<'a> {
        Candidate {
            mig: Some((device.index, &device.uuid)),
            ..self.candidate()
        }
    }
}

/// What the user chose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// How MIG devices are offered.
    pub strategy: MigStrategy,
    /// Which GPUs are offered at all.
    pub devices: DeviceFilter,
    /// What they are called.
    pub names: configuration::plugin::Resources,
    /// How they are shared.
    pub sharing: Option<Sharing>,
}

impl Rules {
    /// The rules of a file; `strategy` wins over the file's.
    pub fn new(strategy: Option<MigStrategy>, file: PluginFile) -> Self {
        Self {
            strategy: strategy.or(file.flags.mig_strategy).unwrap_or_default(),
            devices: file.devices,
            names: file.resources,
            sharing: file.sharing,
        }
    }
}

/// A resource of the node. It has at least one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// What pods ask for.
    pub name: ResourceName,
    /// Its devices, by GPU index and MIG index.
    pub devices: Vec<Device>,
}

/// A GPU or MIG device of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// NVML index of its GPU.
    pub gpu_index: u32,
    /// UUID of its GPU: its own, unless it is a MIG device.
    pub gpu_uuid: String,
    /// NUMA node of its GPU.
    pub numa_node: Option<u32>,
    /// Where on its GPU it lies; `None` for a whole GPU.
    pub mig: Option<MigPlace>,
    /// How many containers share it; `None` when one has it alone.
    pub shares: Option<u32>,
}

/// A MIG device's place on its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigPlace {
    /// MIG index.
    pub index: u32,
    /// GPU-instance id.
    pub gpu_instance: u32,
    /// Compute-instance id.
    pub compute_instance: u32,
}

impl Device {
    /// Its ids towards the kubelet.
    pub fn ids(&self) -> impl Iterator<Item = DeviceId<'_>> {
        let shares = self.shares;
        (0..shares.unwrap_or(1)).map(move |share| DeviceId {
            uuid: &self.uuid,
            share: shares.map(|_| share),
        })
    }

    /// Whether an id with this share is one of its ids.
    pub fn has(&self, share: Option<u32>) -> bool {
        match (share, self.shares) {
            (None, None) => true,
            (Some(share), Some(shares)) => share < shares,
            _ => false,
        }
    }

    /// `3`, or `3:1` for a MIG device: its name under the id strategy `index`.
    pub fn index(&self) -> String {
        match self.mig {
            None => self.gpu_index.to_string(),
            Some(place) => format!("{}:{}", self.gpu_index, place.index),
        }
    }
}

/// The resources of a node, by name, and what they leave out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Resources with devices.
    pub resources: Vec<Resource>,
    /// What is not offered as configured.
    pub warnings: Vec<Warning>,
}

/// The resources of a node with these GPUs.
pub fn resources(gpus: &[Gpu], rules: &Rules) -> Offer {
    let mut warnings = Vec::new();
    let named = strategy::named(gpus, rules, &mut warnings);
    let resources = shares::shared(named, rules.sharing.as_ref(), &mut warnings);
    Offer {
        resources,
        warnings,
    }
}

#[cfg(test)]
mod tests;
