//! What programs see as a device, and what they do not.

use serde::{Deserialize, Serialize};

use crate::Engines;

/// What a MIG device consists of (`nvmlDeviceAttributes_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigAttributes {
    /// Memory of its GPU instance in MiB.
    pub memory_mib: u64,
    /// Streaming multiprocessors of its compute instance.
    pub multiprocessors: u32,
    /// Compute slices of its GPU instance.
    pub gpu_slices: u32,
    /// Compute slices of its compute instance.
    pub compute_slices: u32,
    /// Engines of its GPU instance, shared by the compute instances inside.
    pub engines: Engines,
}

/// Whether a product is the display GPU of a DGX Station, which computes nothing: it is neither labelled nor offered.
pub fn is_display(product: &str) -> bool {
    matches!(product, "DGX Display" | "NVIDIA DGX Display")
}
