//! The section `sharing`: several containers on one device.

use super::name::ResourceName;
use super::selector::{Candidate, Selector};

/// How containers share a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingKind {
    /// They take turns.
    TimeSlicing,
    /// They run at once, under the Multi-Process Service.
    Mps,
}

/// `sharing.timeSlicing` or `sharing.mps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Which of the two.
    pub kind: SharingKind,
    /// Whether a resource without `rename` becomes `<name>.shared`.
    pub rename_by_default: bool,
    /// Whether a container that asks for more than one share is refused. What the file leaves out is yes for MPS and no for
    /// time-slicing.
    pub fail_requests_greater_than_one: bool,
    /// `resources`, at least one. The first entry that covers a device decides.
    pub resources: Vec<SharedResource>,
}

/// A resource whose devices are shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedResource {
    /// The resource as it would be without sharing.
    pub name: ResourceName,
    /// What the shares are called, when the file says.
    pub rename: Option<ResourceName>,
    /// Which of its devices.
    pub devices: SharedDevices,
    /// Shares of each device, at least 2.
    pub replicas: u32,
}

/// The devices of a resource that are shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedDevices {
    /// All.
    All,
    /// The first so many, in index order.
    Count(u32),
    /// These.
    Selected(Vec<Selector>),
}

impl SharedDevices {
    /// Whether the device that is the `nth` (from 0) of its resource is one of them.
    pub fn covers(&self, nth: u32, device: &Candidate<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Count(count) => nth < *count,
            Self::Selected(selectors) => selectors.iter().any(|one| one.selects(device)),
        }
    }
}

impl Sharing {
    /// The entry that covers a device, which is the `nth` (from 0) of the resource `name`.
    pub fn entry(
        &self,
        name: &ResourceName,
        nth: u32,
        device: &Candidate<'_>,
    ) -> Option<&SharedResource> {
        self.resources
            .iter()
            .find(|entry| entry.name == *name && entry.devices.covers(nth, device))
    }

    /// What the shares of an entry are called.
    pub fn shared_name(&self, entry: &SharedResource) -> ResourceName {
        match &entry.rename {
            Some(name) => name.clone(),
            // That the longer name fits is checked when the file is read.
            None if self.rename_by_default => {
                entry.name.shared().unwrap_or_else(|_| entry.name.clone())
            }
            None => entry.name.clone(),
        }
    }
}
