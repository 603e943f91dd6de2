//! What a plan starts from and what it aims at.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Board, GpuInstance, Layout, Profile};

/// How one GPU shall be cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// MIG on or off, and nothing else: with MIG on, whatever instances there are stay.
    Mode(bool),
    /// MIG on with exactly so many devices of each profile, wherever they fit. Counts of 0 say nothing.
    Devices(BTreeMap<Profile, u32>),
    /// Exactly this layout, placements included. Instance ids are not compared: the driver derives them.
    Layout(Layout),
}

impl Goal {
    /// The goal of a configuration file's entry (`mig-enabled`, `mig-devices`).
    #[must_use]
    pub fn new(mig_enabled: bool, devices: BTreeMap<Profile, u32>) -> Self {
        if mig_enabled {
            Self::Devices(devices)
        } else {
            Self::Mode(false)
        }
    }

    /// Whether MIG is on once the goal is reached.
    #[must_use]
    pub fn mig_enabled(&self) -> bool {
        match self {
            Self::Mode(enabled) => *enabled,
            Self::Devices(_) => true,
            Self::Layout(layout) => layout.mig_enabled,
        }
    }
}

/// A process that uses a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Client {
    /// Process id as the driver knows it: in the host's namespace.
    pub pid: u32,
    /// Its command, as far as it could be read; empty otherwise.
    pub command: String,
    /// The GPU instance it runs in; `None` when it uses the GPU as a whole.
    pub gpu_instance: Option<u32>,
    /// The compute instance inside; `None` when unknown.
    pub compute_instance: Option<u32>,
}

/// What one GPU looks like before a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The current layout. Its instances count only while MIG is on.
    pub layout: Layout,
    /// MIG mode after the next reset. Differs from the current one where a change waits for a reset.
    pub pending_mig: bool,
    /// Whether a mode change takes effect without a reset (NVML field 184): Hopper and later.
    pub resetless: bool,
    /// Who uses the GPU.
    pub clients: Vec<Client>,
}

impl Layout {
    /// The devices of this layout by name. Instances of profiles that the board does not list have no name and are left out.
    #[must_use]
    pub fn devices(&self, board: &Board) -> BTreeMap<Profile, u32> {
        let mut counts = BTreeMap::new();
        for instance in &self.instances {
            let Some(profile) = board.profile(instance.profile_id) else {
                continue;
            };
            for compute in &instance.compute {
                *counts
                    .entry(board.device_name(profile, compute.placement.size))
                    .or_default() += 1;
            }
        }
        counts
    }

    /// Instances that are no device: without a compute instance, or of a profile that the board does not list. They take
    /// slices all the same.
    pub fn strays<'a>(&'a self, board: &'a Board) -> impl Iterator<Item = &'a GpuInstance> {
        self.instances.iter().filter(|instance| {
            instance.compute.is_empty() || board.profile(instance.profile_id).is_none()
        })
    }
}
