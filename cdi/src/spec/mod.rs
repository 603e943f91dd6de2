//! The file format: version 1.1.0 of the Container Device Interface and all before it.
//!
//! Field names are those of the format. A spec is made by [`Spec::new`], which checks it against what runtimes refuse and gives
//! it the lowest version that has all it uses, so that old runtimes read it too.

mod check;
mod json;
mod version;

use std::collections::BTreeMap;

use serde::Serialize;

pub use check::SpecError;
pub use version::Version;

use crate::Kind;

/// One file: the devices of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    cdi_version: Version,
    #[serde(serialize_with = "as_text")]
    kind: Kind,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    devices: Vec<Device>,
    #[serde(skip_serializing_if = "ContainerEdits::is_empty")]
    container_edits: ContainerEdits,
}

/// A device that containers can ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Its name within the kind.
    pub name: String,
    /// About the device, not for the container. Since 0.6.0.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// What the container gets.
    pub container_edits: ContainerEdits,
}

/// What a runtime changes in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerEdits {
    /// Environment, `NAME=value`. It replaces what the image and the pod say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Network interfaces of the host. Since 1.1.0.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<NetDevice>,
    /// Programs of the host that the runtime runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Files and folders of the host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Cache and memory bandwidth classes. Since 0.7.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<IntelRdt>,
    /// Groups of the container's process. Since 0.7.0.
    #[serde(rename = "additionalGids", skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

/// A device node. The runtime reads from the host's node whatever is left out here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// Its path in the container.
    pub path: String,
    /// Its path on the host, where that is another. Since 0.5.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// `b`, `c`, `u` or `p`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<char>,
    /// Major number; the format cannot tell 0 from none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major: Option<u32>,
    /// Minor number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// Mode bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// What the container may do, letters of `rwm`; all where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    /// Owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// A mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// What is mounted, a path of the host.
    pub host_path: String,
    /// Where it appears.
    pub container_path: String,
    /// Mount options.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// File-system type. Since 0.4.0.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// A program that the runtime runs at a moment of the container's life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// `createContainer` or another moment of the OCI runtime specification.
    pub hook_name: String,
    /// The program, a path of the host.
    pub path: String,
    /// Its arguments, from its own name on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its environment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Seconds after which the runtime gives up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u32>,
}

/// Classes of Intel's Resource Director Technology.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IntelRdt {
    /// Class of service.
    #[serde(rename = "closID", skip_serializing_if = "Option::is_none")]
    pub clos_id: Option<String>,
    /// Shares of the cache.
    #[serde(rename = "l3CacheSchema", skip_serializing_if = "Option::is_none")]
    pub l3_cache_schema: Option<String>,
    /// Shares of memory bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_bw_schema: Option<String>,
    /// Lines of the kernel's `schemata` file. Since 1.1.0.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub schemata: Vec<String>,
    /// Whether a monitoring group is made. Since 1.1.0.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enable_monitoring: bool,
}

/// A network interface that moves into the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetDevice {
    /// Its name on the host.
    pub host_interface_name: String,
    /// Its name in the container.
    pub name: String,
}

fn as_text<S: serde::Serializer>(kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(kind)
}

impl Spec {
    /// The spec of these devices; `edits` apply to every container that gets any of them.
    pub fn new(kind: Kind, devices: Vec<Device>, edits: ContainerEdits) -> Result<Self, SpecError> {
        Self::annotated(kind, BTreeMap::new(), devices, edits)
    }

    /// A spec with annotations of its own, which need version 0.6.0.
    pub fn annotated(
        kind: Kind,
        annotations: BTreeMap<String, String>,
        devices: Vec<Device>,
        edits: ContainerEdits,
    ) -> Result<Self, SpecError> {
        check::spec(&annotations, &devices, &edits)?;
        Ok(Self {
            cdi_version: version::lowest(&kind, &annotations, &devices, &edits),
            kind,
            annotations,
            devices,
            container_edits: edits,
        })
    }

    /// Vendor and class.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The version of the format.
    pub fn version(&self) -> Version {
        self.cdi_version
    }

    /// The devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// What every container that gets any of them gets.
    pub fn edits(&self) -> &ContainerEdits {
        &self.container_edits
    }

    /// The file's content. The same spec has the same bytes.
    pub fn to_json(&self) -> Vec<u8> {
        let mut json = Vec::new();
        let mut serializer =
            serde_json::Serializer::with_formatter(&mut json, json::Lines::default());
        // Strings, numbers and maps with string keys, into memory: nothing here can fail.
        let written = self.serialize(&mut serializer);
        debug_assert!(written.is_ok(), "{written:?}");
        json.push(b'\n');
        json
    }
}

impl ContainerEdits {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests;
