//! Which version of the format has which field. A runtime refuses a file that uses more than its version has, and one whose
//! version it does not know.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{ContainerEdits, Device};
use crate::Kind;

/// A version of the format. 0.8.0 and 1.0.0 brought no field, so no spec needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[allow(missing_docs)]
pub enum Version {
    /// The lowest that runtimes still take.
    #[serde(rename = "0.3.0")]
    V0_3,
    #[serde(rename = "0.4.0")]
    V0_4,
    #[serde(rename = "0.5.0")]
    V0_5,
    #[serde(rename = "0.6.0")]
    V0_6,
    #[serde(rename = "0.7.0")]
    V0_7,
    #[serde(rename = "1.1.0")]
    V1_1,
}

pub(super) fn lowest(
    kind: &Kind,
    annotations: &BTreeMap<String, String>,
    devices: &[Device],
    edits: &ContainerEdits,
) -> Version {
    let mut lowest = of_edits(edits);
    if kind.class().contains('.') || !annotations.is_empty() {
        lowest = lowest.max(Version::V0_6);
    }
    for device in devices {
        lowest = lowest.max(of_edits(&device.container_edits));
        if !device.annotations.is_empty() {
            lowest = lowest.max(Version::V0_6);
        }
        if device.name.starts_with(|c: char| c.is_ascii_digit()) {
            lowest = lowest.max(Version::V0_5);
        }
    }
    lowest
}

fn of_edits(edits: &ContainerEdits) -> Version {
    let rdt = edits.intel_rdt.as_ref();
    if !edits.net_devices.is_empty()
        || rdt.is_some_and(|rdt| !rdt.schemata.is_empty() || rdt.enable_monitoring)
    {
        Version::V1_1
    } else if rdt.is_some() || !edits.additional_gids.is_empty() {
        Version::V0_7
    } else if edits
        .device_nodes
        .iter()
        .any(|node| node.host_path.is_some())
    {
        Version::V0_5
    } else if edits.mounts.iter().any(|mount| mount.kind.is_some()) {
        Version::V0_4
    } else {
        Version::V0_3
    }
}
