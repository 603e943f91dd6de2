//! What runtimes refuse: they ignore a whole file for one wrong entry, and every pod that needs it then fails to start.

use std::collections::{BTreeMap, BTreeSet};

use super::{ContainerEdits, Device, DeviceNode, Hook, Mount, NetDevice};
use crate::name::{NameError, check_device_name};

/// A spec that runtimes would refuse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A name breaks the grammar.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A file without devices is refused.
    #[error("a spec has at least one device")]
    NoDevice,
    /// Two devices have one name.
    #[error("device {0:?} is there twice")]
    Twice(String),
    /// A device that changes nothing is refused.
    #[error("device {0:?} gives the container nothing")]
    Empty(String),
    /// A part of the edits is refused.
    #[error("{place}: {what} {value:?}: {rule}")]
    Edit {
        /// The device, or the edits of all.
        place: String,
        /// Which part.
        what: &'static str,
        /// Its value.
        value: String,
        /// The rule that it breaks.
        rule: &'static str,
    },
}

/// Bytes that all annotations of a spec or device may have together, as for Kubernetes objects.
const ANNOTATION_BYTES: usize = 256 * 1024;

/// Moments of the OCI runtime specification.
const HOOKS: [&str; 6] = [
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
];

struct Fault {
    what: &'static str,
    value: String,
    rule: &'static str,
}

impl Fault {
    fn at(self, place: &str) -> SpecError {
        SpecError::Edit {
            place: place.to_owned(),
            what: self.what,
            value: self.value,
            rule: self.rule,
        }
    }
}

fn require(holds: bool, what: &'static str, value: &str, rule: &'static str) -> Result<(), Fault> {
    if holds {
        return Ok(());
    }
    Err(Fault {
        what,
        value: value.to_owned(),
        rule,
    })
}

pub(super) fn spec(
    annotations: &BTreeMap<String, String>,
    devices: &[Device],
    common: &ContainerEdits,
) -> Result<(), SpecError> {
    if devices.is_empty() {
        return Err(SpecError::NoDevice);
    }
    self::annotations(annotations).map_err(|fault| fault.at("the spec"))?;
    edits(common).map_err(|fault| fault.at("edits of all devices"))?;
    let mut seen = BTreeSet::new();
    for device in devices {
        check_device_name(&device.name)?;
        if !seen.insert(device.name.as_str()) {
            return Err(SpecError::Twice(device.name.clone()));
        }
        if device.container_edits.is_empty() {
            return Err(SpecError::Empty(device.name.clone()));
        }
        self::annotations(&device.annotations)
            .and_then(|()| edits(&device.container_edits))
            .map_err(|fault| fault.at(&format!("device {:?}", device.name)))?;
    }
    Ok(())
}

fn annotations(annotations: &BTreeMap<String, String>) -> Result<(), Fault> {
    let mut bytes = 0;
    for (key, value) in annotations {
        bytes += key.len() + value.len();
        require(
            annotation_key(key),
            "annotation",
            key,
            "the key is no qualified name",
        )?;
    }
    require(
        bytes <= ANNOTATION_BYTES,
        "annotations",
        &format!("{bytes} bytes"),
        "at most 256 KiB",
    )
}

/// Kubernetes' qualified names: an optional DNS prefix, then at most 63 characters.
fn annotation_key(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        None => (None, key),
        Some((prefix, name)) => (Some(prefix), name),
    };
    let dns = |prefix: &str| {
        prefix.len() <= 253
            && prefix
                .split('.')
                .all(|part| word(part, b"-") && !part.bytes().any(|c| c.is_ascii_uppercase()))
    };
    prefix.is_none_or(dns) && name.len() <= 63 && word(name, b"-_.")
}

/// Letters, digits and, but for the ends, these.
fn word(text: &str, inside: &[u8]) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || inside.contains(byte))
}

fn edits(edits: &ContainerEdits) -> Result<(), Fault> {
    environment(&edits.env)?;
    edits.device_nodes.iter().try_for_each(node)?;
    edits.hooks.iter().try_for_each(hook)?;
    edits.mounts.iter().try_for_each(mount)?;
    if let Some(clos) = edits
        .intel_rdt
        .as_ref()
        .and_then(|rdt| rdt.clos_id.as_deref())
    {
        let taken = clos == "/"
            || (clos.len() < 4096 && !matches!(clos, "." | "..") && !clos.contains(['/', '\n']));
        require(
            taken,
            "closID",
            clos,
            "it is a file name, or / for the root class",
        )?;
    }
    interfaces(&edits.net_devices)
}

fn environment(variables: &[String]) -> Result<(), Fault> {
    variables.iter().try_for_each(|variable| {
        let named = variable.find('=').is_some_and(|end| end > 0);
        require(named, "variable", variable, "it is written NAME=value")
    })
}

fn node(node: &DeviceNode) -> Result<(), Fault> {
    let path = node.path.as_str();
    require(!path.is_empty(), "device node", path, "its path is empty")?;
    require(
        node.kind
            .is_none_or(|kind| matches!(kind, 'b' | 'c' | 'u' | 'p')),
        "device node",
        path,
        "its type is b, c, u or p",
    )?;
    let allowed = |permissions: &str| {
        permissions == "none" || permissions.bytes().all(|letter| b"rwm".contains(&letter))
    };
    require(
        node.permissions.as_deref().is_none_or(allowed),
        "device node",
        path,
        "its permissions are letters of rwm, or none",
    )
}

fn hook(hook: &Hook) -> Result<(), Fault> {
    let name = hook.hook_name.as_str();
    require(
        HOOKS.contains(&name),
        "hook",
        name,
        "there is no such moment",
    )?;
    require(!hook.path.is_empty(), "hook", name, "its program is empty")?;
    environment(&hook.env)
}

fn mount(mount: &Mount) -> Result<(), Fault> {
    let path = mount.container_path.as_str();
    require(
        !path.is_empty(),
        "mount",
        &mount.host_path,
        "its container path is empty",
    )?;
    require(
        !mount.host_path.is_empty(),
        "mount",
        path,
        "its host path is empty",
    )
}

fn interfaces(devices: &[NetDevice]) -> Result<(), Fault> {
    let (mut hosts, mut names) = (BTreeSet::new(), BTreeSet::new());
    devices.iter().try_for_each(|device| {
        let (host, name) = (device.host_interface_name.as_str(), device.name.as_str());
        require(
            !host.is_empty(),
            "interface",
            name,
            "its host name is empty",
        )?;
        require(!name.is_empty(), "interface", host, "its name is empty")?;
        require(hosts.insert(host), "interface", host, "it is there twice")?;
        require(names.insert(name), "interface", name, "it is there twice")
    })
}
