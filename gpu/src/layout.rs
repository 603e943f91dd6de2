//! How a GPU is cut at one moment.

use serde::{Deserialize, Serialize};

use crate::Placement;

/// A compute instance, the thing a MIG device is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeInstance {
    /// Compute-instance id inside its GPU instance.
    pub id: u32,
    /// Compute-instance profile id.
    pub profile_id: u32,
    /// Compute slices it takes inside its GPU instance.
    pub placement: Placement,
}

/// A GPU instance. It may hold no compute instance: it still takes its slices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInstance {
    /// GPU-instance id; the driver derives it from the placement.
    pub id: u32,
    /// GPU-instance profile id.
    pub profile_id: u32,
    /// Memory slices it takes.
    pub placement: Placement,
    /// Its compute instances, ascending by id.
    pub compute: Vec<ComputeInstance>,
}

/// How a GPU is cut: MIG off, or on with these instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Whether MIG mode is on now.
    pub mig_enabled: bool,
    /// GPU instances, ascending by id.
    pub instances: Vec<GpuInstance>,
}
