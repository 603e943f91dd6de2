//! The configuration file of the NVIDIA device plugin, `version: v1`, which feature discovery reads too.
//!
//! Every file that NVIDIA's plugin takes is taken, and says the same, with these differences:
//! - `resources`, `rename` and `devices`, which it parses and drops, have effect;
//! - a key nobody knows gets a [`Notice`] with its place, where it is silent;
//! - a key given twice, and a resource name that the API server would refuse, are errors.
//!
//! New keys, which NVIDIA's plugin ignores: `devices.include` and `devices.exclude` ([`DeviceFilter`]), bus ids and models in
//! a sharing entry's `devices` ([`Selector`]), `distinct` as `sharedDevicesAllocationPolicy`.
//!
//! What the file does not say is `None`: defaults, and the flags and environment variables that win over the file, belong to
//! the part that reads it.

mod flags;
mod name;
mod overlay;
mod parse;
mod pattern;
mod selector;
mod sharing;

use std::fmt;

pub use flags::{
    AllocationPolicy, DeviceIdStrategy, DeviceListStrategy, DiscoveryStrategy, Flags, GfdFlags,
    PluginFlags, UnknownWord,
};
pub use name::{BadName, ResourceName};
pub use pattern::Pattern;
pub use selector::{BadSelector, Candidate, Selector};
pub use sharing::{SharedDevices, SharedResource, Sharing, SharingKind};

use crate::document::Position;

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginFile {
    /// `flags`.
    pub flags: Flags,
    /// `devices`.
    pub devices: DeviceFilter,
    /// `resources`.
    pub resources: Resources,
    /// `sharing`; `mps` wins when the file has both kinds.
    pub sharing: Option<Sharing>,
    /// `imex`.
    pub imex: Imex,
}

/// Which GPUs are offered at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFilter {
    /// Only these; empty is all.
    pub include: Vec<Selector>,
    /// Never these.
    pub exclude: Vec<Selector>,
}

impl DeviceFilter {
    /// Whether a device is offered. To exclude wins.
    pub fn offers(&self, device: &Candidate<'_>) -> bool {
        let any = |selectors: &[Selector]| selectors.iter().any(|one| one.selects(device));
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }
}

/// What devices are called. The first pattern that matches decides; an empty list stands for the usual names
/// (`nvidia.com/gpu`, `nvidia.com/mig-<profile>`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Names of whole GPUs, by product name.
    pub gpus: Vec<NamedPattern>,
    /// Names of MIG devices, by profile.
    pub mig: Vec<NamedPattern>,
}

/// A name for what matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPattern {
    /// What matches.
    pub pattern: Pattern,
    /// Its name.
    pub name: ResourceName,
}

/// Channels of the NVLink import/export service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imex {
    /// Whether channel 0 is given to every container, the only choice there is.
    pub channel0: Option<bool>,
    /// Whether a node without the channel cannot serve.
    pub required: Option<bool>,
}

/// Something in a file that is taken, and that its author should know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// File as the user named it.
    pub file: String,
    /// Where.
    pub position: Position,
    /// What.
    pub message: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.position, self.message)
    }
}

#[cfg(test)]
mod tests;
