//! NVLinks of a GPU: what is at the other end, and whether the link is up.

use serde::{Deserialize, Serialize};

use super::pci::PciAddress;

/// What a link leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remote {
    /// Nothing: no bridge or switch is fitted.
    None,
    /// An NVSwitch at this address.
    Switch(PciAddress),
    /// Another GPU, by its position in `Node::gpus`.
    Gpu(usize),
}

/// Error counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkErrors {
    /// Data-link replays.
    pub replay: u64,
    /// Data-link recoveries.
    pub recovery: u64,
    /// CRC errors of flits.
    pub crc_flit: u64,
    /// CRC errors of data.
    pub crc_data: u64,
}

impl LinkErrors {
    fn is_none(&self) -> bool {
        *self == LinkErrors::default()
    }
}

/// One link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Whether it carries traffic.
    pub up: bool,
    /// Other end.
    pub remote: Remote,
    /// Errors.
    #[serde(default, skip_serializing_if = "LinkErrors::is_none")]
    pub errors: LinkErrors,
}
