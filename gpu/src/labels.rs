//! The rules that turn a node's GPUs into node labels.
//!
//! Keys and values are those of NVIDIA's GPU feature discovery, so that selectors written for it keep working. The rules
//! are pure: what they see is a [`Node`] value, and the same value gives the same labels, byte for byte. They differ from
//! feature discovery where it is random or illegal:
//! - several models on one node: it writes them all to the same keys in hash order; here [`Model choice`](#model-choice);
//! - a value longer than a label may be: it is dropped on the way to the node; here the model part is cut;
//! - something it cannot label makes it exit; here the rest is labelled and a [`Warning`] says what is missing.
//!
//! # Model choice
//! `nvidia.com/gpu.*` has room for one model. GPUs that are not in MIG mode come first (they are the ones that
//! `nvidia.com/gpu` offers), then the model with the most GPUs, then the one with the lowest index. The result is always
//! one that feature discovery could have written.
//!
//! This module must not know where the facts come from (NVML, sysfs) or where the labels go.

use std::collections::BTreeMap;
use std::fmt;

mod mig;
mod node;
mod resource;
mod sanitise;

pub use mig::{Invalid, MigStrategy, UnknownStrategy};
pub use node::{Driver, Fabric, Gpu, Mig, MigDevice, Node, Vgpu};

pub use crate::MigAttributes;
pub use resource::{SharedResources, Sharing};
pub use sanitise::{MAX_VALUE, is_legal_value, legal_value, name_part};

/// The prefix of every key.
const PREFIX: &str = "nvidia.com/";

/// PCI class code of a 3D controller: a GPU without display outputs.
const CLASS_COMPUTE: u32 = 0x03_02_00;
/// PCI class code of a VGA controller.
const CLASS_GRAPHICS: u32 = 0x03_00_00;

/// What the user chose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// How MIG devices are offered.
    pub strategy: MigStrategy,
    /// How GPUs are shared.
    pub sharing: Sharing,
    /// Unix seconds to write as `gfd.timestamp`; `None` leaves the label out.
    pub timestamp: Option<u64>,
}

/// Something that labels cannot say; worth a line in the log, never a reason to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The node has several GPU models; only one can be labelled.
    SeveralModels {
        /// The labelled model.
        chosen: String,
        /// The others, in index order.
        others: Vec<String>,
    },
    /// Strategy `single` cannot describe what the node has.
    SingleStrategy(Invalid),
    /// MPS is configured, but a GPU is in MIG mode, where MPS sharing is not offered.
    MpsWithMig,
    /// Fabric-attached GPUs report different clusters or cliques.
    CliquesDiffer,
    /// The driver version has neither two nor three parts.
    DriverVersion(String),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SeveralModels { chosen, others } => write!(
                f,
                "several GPU models on this node: the nvidia.com/gpu.* labels describe {chosen}, not {}",
                others.join(", ")
            ),
            Self::SingleStrategy(reason) => write!(f, "MIG strategy single is not possible: {reason}"),
            Self::MpsWithMig => {
                f.write_str("MPS sharing is configured but a GPU is in MIG mode: mps.capable stays false; turn one of them off")
            }
            Self::CliquesDiffer => f.write_str("GPUs report different NVLink cliques: gpu.clique is left out"),
            Self::DriverVersion(version) => {
                write!(f, "driver version {version:?} does not have two or three parts: only its full form is a label")
            }
        }
    }
}

/// A node's labels, and what they could not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// Keys and values, sorted; every value is a legal label value.
    pub labels: BTreeMap<String, String>,
    /// What is not in the labels.
    pub warnings: Vec<Warning>,
}

impl Labels {
    /// Sets a label, making the value legal.
    fn set(&mut self, key: impl fmt::Display, value: impl fmt::Display) {
        self.labels
            .insert(format!("{PREFIX}{key}"), legal_value(&value.to_string()));
    }

    /// The labels as a feature file: sorted `key=value` lines.
    pub fn to_feature_file(&self) -> String {
        let mut text = String::new();
        for (key, value) in &self.labels {
            text.push_str(key);
            text.push('=');
            text.push_str(value);
            text.push('\n');
        }
        text
    }
}

/// The labels of a node.
pub fn labels(node: &Node, rules: &Rules) -> Labels {
    let mut out = Labels::default();
    if let Some(seconds) = rules.timestamp {
        out.set("gfd.timestamp", seconds);
    }
    vgpu(node, &mut out);
    if node.gpus.is_empty() {
        return out;
    }
    out.set(
        "gpu.machine",
        non_empty(node.machine.as_deref().map(name_part)),
    );
    if let Some(driver) = &node.driver {
        versions(driver, &mut out);
    }
    let any_mig = node.gpus.iter().any(Gpu::mig_enabled);
    out.set("mig.capable", node.gpus.iter().any(|gpu| gpu.mig.is_some()));
    let mps = rules.sharing.is_mps();
    if mps && any_mig {
        out.warnings.push(Warning::MpsWithMig);
    }
    out.set("mps.capable", mps && !any_mig);
    resource::full_gpus(node, rules, &mut out);
    mig::strategy(node, rules, &mut out);
    out.set("gpu.mode", mode(&node.gpus));
    clique(&node.gpus, &mut out);
    out
}

fn non_empty(value: Option<String>) -> String {
    value
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| "unknown".to_owned())
}

fn vgpu(node: &Node, out: &mut Labels) {
    match &node.vgpu {
        None => {}
        Some(Vgpu::Absent) => out.set("vgpu.present", false),
        Some(Vgpu::Present {
            host_driver_version,
            host_driver_branch,
        }) => {
            out.set("vgpu.present", true);
            if let Some(version) = host_driver_version {
                out.set("vgpu.host-driver-version", version);
            }
            if let Some(branch) = host_driver_branch {
                out.set("vgpu.host-driver-branch", branch);
            }
        }
    }
}

/// Each version twice: the keys since 0.16 and the older ones they replaced, which selectors still use.
fn versions(driver: &Driver, out: &mut Labels) {
    let parts: Vec<&str> = driver.version.split('.').collect();
    if let [major, minor] | [major, minor, _] = parts[..] {
        let revision = parts.get(2).copied().unwrap_or_default();
        for (key, value) in [("major", major), ("minor", minor), ("revision", revision)] {
            out.set(format_args!("cuda.driver-version.{key}"), value);
        }
        for (key, value) in [("major", major), ("minor", minor), ("rev", revision)] {
            out.set(format_args!("cuda.driver.{key}"), value);
        }
    } else {
        out.warnings
            .push(Warning::DriverVersion(driver.version.clone()));
    }
    out.set("cuda.driver-version.full", &driver.version);
    if let Some((major, minor)) = driver.cuda {
        out.set("cuda.runtime.major", major);
        out.set("cuda.runtime.minor", minor);
        out.set("cuda.runtime-version.major", major);
        out.set("cuda.runtime-version.minor", minor);
        out.set("cuda.runtime-version.full", format_args!("{major}.{minor}"));
    }
}

fn mode(gpus: &[Gpu]) -> &'static str {
    let all = |class| gpus.iter().all(|gpu| gpu.pci_class == Some(class));
    if all(CLASS_COMPUTE) {
        "compute"
    } else if all(CLASS_GRAPHICS) {
        "graphics"
    } else {
        "unknown"
    }
}

/// The NVLink clique, when every GPU that has joined one names the same.
///
/// A single HGX board registers with an all-zero cluster: its GPUs belong to no clique that spans nodes.
fn clique(gpus: &[Gpu], out: &mut Labels) {
    let mut joined = gpus
        .iter()
        .filter_map(|gpu| gpu.fabric.as_ref())
        .filter(|fabric| fabric.cluster != [0; 16]);
    let Some(first) = joined.next() else { return };
    if joined.any(|other| other != first) {
        out.warnings.push(Warning::CliquesDiffer);
        return;
    }
    out.set(
        "gpu.clique",
        format_args!("{}.{}", first.cluster_uuid(), first.clique),
    );
}

#[cfg(test)]
mod tests;
