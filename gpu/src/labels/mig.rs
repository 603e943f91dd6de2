//! Labels of MIG devices under the three strategies.

use std::fmt;
use std::str::FromStr;

use super::node::{Gpu, MigDevice, Node};
use super::resource::{GPU_RESOURCE, labelled_gpu};
use super::{Labels, PREFIX, Rules, Warning};

/// How MIG devices are offered to pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MigStrategy {
    /// MIG is ignored.
    #[default]
    None,
    /// All MIG devices of the node are alike and take the place of GPUs.
    Single,
    /// Each profile is a resource of its own.
    Mixed,
}

impl fmt::Display for MigStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Single => "single",
            Self::Mixed => "mixed",
        })
    }
}

/// The text is no MIG strategy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown MIG strategy {0:?}: use none, single or mixed")]
pub struct UnknownStrategy(pub String);

impl FromStr for MigStrategy {
    type Err = UnknownStrategy;

    fn from_str(text: &str) -> Result<Self, UnknownStrategy> {
        match text {
            "none" => Ok(Self::None),
            "single" => Ok(Self::Single),
            "mixed" => Ok(Self::Mixed),
            other => Err(UnknownStrategy(other.to_owned())),
        }
    }
}

/// Why the node's MIG devices cannot stand in for GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// A GPU in MIG mode has no MIG device.
    EmptyGpu,
    /// Some GPUs are in MIG mode, others are not.
    SomeNotInMigMode,
    /// More than one profile.
    SeveralProfiles(Vec<String>),
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyGpu => f.write_str("a GPU in MIG mode has no MIG devices"),
            Self::SomeNotInMigMode => f.write_str("some GPUs are in MIG mode and some are not"),
            Self::SeveralProfiles(profiles) => {
                write!(f, "there are several profiles: {}", profiles.join(", "))
            }
        }
    }
}

/// Adds what the strategy says; for `single` it replaces labels of the whole GPU.
pub(super) fn strategy(node: &Node, rules: &Rules, out: &mut Labels) {
    if rules.strategy == MigStrategy::None {
        return;
    }
    out.set("mig.strategy", rules.strategy);
    let enabled: Vec<&Gpu> = node.gpus.iter().filter(|gpu| gpu.mig_enabled()).collect();
    if enabled.is_empty() {
        return;
    }
    match rules.strategy {
        MigStrategy::Single => single(node, &enabled, rules, out),
        _ => mixed(&enabled, rules, out),
    }
}

/// The MIG devices of one profile.
struct Group<'a> {
    profile: &'a str,
    /// Model of the GPU of the first one.
    model: &'a str,
    first: &'a MigDevice,
    count: usize,
}

/// Groups MIG devices by profile, in order of first appearance.
fn groups<'a>(gpus: &[&'a Gpu]) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for gpu in gpus {
        for device in gpu.mig.iter().flat_map(|mig| &mig.devices) {
            match groups
                .iter_mut()
                .find(|group| group.profile == device.profile)
            {
                Some(group) => group.count += 1,
                None => groups.push(Group {
                    profile: &device.profile,
                    model: &gpu.name,
                    first: device,
                    count: 1,
                }),
            }
        }
    }
    groups
}

fn single(node: &Node, enabled: &[&Gpu], rules: &Rules, out: &mut Labels) {
    let model = labelled_gpu(&node.gpus).map_or("", |gpu| gpu.name.as_str());
    // Devices of the labelled model first, so that the attributes are its own when two models share a profile name.
    let (own, other): (Vec<&Gpu>, Vec<&Gpu>) =
        enabled.iter().copied().partition(|gpu| gpu.name == model);
    let ordered: Vec<&Gpu> = own.into_iter().chain(other).collect();
    let groups = groups(&ordered);
    let empty = |gpu: &&Gpu| gpu.mig.as_ref().is_none_or(|mig| mig.devices.is_empty());
    let invalid = if enabled.iter().any(empty) {
        Invalid::EmptyGpu
    } else if enabled.len() < node.gpus.len() {
        Invalid::SomeNotInMigMode
    } else if let [group] = &groups[..] {
        let shared = rules.sharing.of(GPU_RESOURCE);
        out.set(
            "gpu.product",
            shared.product(model, &["MIG", &resource_form(group.profile)]),
        );
        out.set("gpu.count", group.count);
        out.set("gpu.replicas", shared.replicas);
        out.set("gpu.sharing-strategy", shared.strategy);
        attributes("gpu", group.first, out);
        return;
    } else {
        Invalid::SeveralProfiles(
            groups
                .iter()
                .map(|group| group.profile.to_owned())
                .collect(),
        )
    };
    out.warnings.push(Warning::SingleStrategy(invalid));
    out.set(
        "gpu.product",
        super::sanitise::product(model, &["MIG", "INVALID"]),
    );
    out.set("gpu.count", 0);
    out.set("gpu.replicas", 0);
    out.set("gpu.sharing-strategy", "");
    out.set("gpu.memory", 0);
}

fn mixed(enabled: &[&Gpu], rules: &Rules, out: &mut Labels) {
    for group in groups(enabled) {
        let profile = resource_form(group.profile);
        let key = format!("mig-{profile}");
        let shared = rules.sharing.of(&format!("{PREFIX}{key}"));
        out.set(
            format_args!("{key}.product"),
            shared.product(group.model, &["MIG", &profile]),
        );
        out.set(format_args!("{key}.count"), group.count);
        out.set(format_args!("{key}.replicas"), shared.replicas);
        out.set(format_args!("{key}.sharing-strategy"), shared.strategy);
        attributes(&key, group.first, out);
    }
}

/// A profile as resource and label names spell it: `+` is not allowed there.
fn resource_form(profile: &str) -> String {
    profile.replace('+', ".")
}

fn attributes(key: &str, device: &MigDevice, out: &mut Labels) {
    let Some(attributes) = &device.attributes else {
        return;
    };
    let engines = attributes.engines;
    out.set(format_args!("{key}.memory"), attributes.memory_mib);
    for (name, value) in [
        ("multiprocessors", attributes.multiprocessors),
        ("slices.gi", attributes.gpu_slices),
        ("slices.ci", attributes.compute_slices),
        ("engines.copy", engines.copy),
        ("engines.decoder", engines.decoder),
        ("engines.encoder", engines.encoder),
        ("engines.jpeg", engines.jpeg),
        ("engines.ofa", engines.ofa),
    ] {
        out.set(format_args!("{key}.{name}"), value);
    }
}
