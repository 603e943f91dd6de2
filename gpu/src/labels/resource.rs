//! Labels of whole GPUs, and how sharing shows in labels.

use std::collections::{BTreeMap, BTreeSet};

use super::node::{Gpu, Node};
use super::sanitise::product;
use super::{Labels, Rules, Warning};

/// The resource that whole GPUs are offered under (and MIG devices, with strategy `single`).
pub(super) const GPU_RESOURCE: &str = "nvidia.com/gpu";

/// How the device plugin shares GPUs; from the configuration file it reads too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Not at all.
    #[default]
    None,
    /// Processes take turns.
    TimeSlicing(SharedResources),
    /// Processes run at once under the Multi-Process Service.
    Mps(SharedResources),
}

/// Which resources are shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedResources {
    /// Replicas per device, by resource name (`nvidia.com/mig-1g.5gb`).
    pub replicas: BTreeMap<String, u32>,
    /// Those that the plugin offers under another name; their product carries no `-SHARED`.
    pub renamed: BTreeSet<String>,
}

impl Sharing {
    /// Whether MPS is selected and shares anything.
    pub(super) fn is_mps(&self) -> bool {
        matches!(self, Self::Mps(resources) if resources.replicas.values().any(|&n| n > 1))
    }

    /// How devices of this resource are shared.
    pub(super) fn of(&self, resource: &str) -> Shared {
        let (strategy, resources) = match self {
            Self::None => return Shared::UNSHARED,
            Self::TimeSlicing(resources) => ("time-slicing", resources),
            Self::Mps(resources) => ("mps", resources),
        };
        match resources.replicas.get(resource) {
            Some(&replicas) if replicas > 1 => Shared {
                replicas,
                strategy,
                marked: !resources.renamed.contains(resource),
            },
            _ => Shared::UNSHARED,
        }
    }
}

/// How one resource's devices are shared.
#[derive(Clone, Copy)]
pub(super) struct Shared {
    pub(super) replicas: u32,
    pub(super) strategy: &'static str,
    /// Whether the product says `-SHARED`.
    marked: bool,
}

impl Shared {
    const UNSHARED: Self = Self {
        replicas: 1,
        strategy: "none",
        marked: false,
    };
    /// A GPU in MIG mode labelled as a whole: nothing of it is offered under the whole GPU's resource.
    const NOT_OFFERED: Self = Self {
        replicas: 0,
        strategy: "none",
        marked: false,
    };

    /// The product label for a model cut this way.
    pub(super) fn product(self, model: &str, cut: &[&str]) -> String {
        let mut suffixes = cut.to_vec();
        if self.marked {
            suffixes.push("SHARED");
        }
        product(model, &suffixes)
    }
}

/// The GPU whose model `nvidia.com/gpu.*` describes; see the module doc of [`super`].
pub(super) fn labelled_gpu(gpus: &[Gpu]) -> Option<&Gpu> {
    let any_plain = gpus.iter().any(|gpu| !gpu.mig_enabled());
    let candidates = || {
        gpus.iter()
            .filter(move |gpu| !any_plain || !gpu.mig_enabled())
    };
    let count = |name: &str| candidates().filter(|gpu| gpu.name == name).count();
    // `rev` because `max_by_key` takes the last of equals.
    candidates().rev().max_by_key(|gpu| count(&gpu.name))
}

/// `nvidia.com/gpu.*` as if there were no MIG devices.
pub(super) fn full_gpus(node: &Node, rules: &Rules, out: &mut Labels) {
    let Some(gpu) = labelled_gpu(&node.gpus) else {
        return;
    };
    let mut others: Vec<String> = Vec::new();
    for other in &node.gpus {
        if other.name != gpu.name && !others.contains(&other.name) {
            others.push(other.name.clone());
        }
    }
    if !others.is_empty() {
        out.warnings.push(Warning::SeveralModels {
            chosen: gpu.name.clone(),
            others,
        });
    }
    let shared = if gpu.mig_enabled() {
        Shared::NOT_OFFERED
    } else {
        rules.sharing.of(GPU_RESOURCE)
    };
    out.set("gpu.product", shared.product(&gpu.name, &[]));
    out.set(
        "gpu.count",
        node.gpus
            .iter()
            .filter(|other| other.name == gpu.name)
            .count(),
    );
    out.set("gpu.replicas", shared.replicas);
    out.set("gpu.sharing-strategy", shared.strategy);
    if let Some(mib) = gpu
        .memory_bytes
        .map(|bytes| bytes >> 20)
        .filter(|&mib| mib > 0)
    {
        out.set("gpu.memory", mib);
    }
    if let Some((major, minor)) = gpu.compute_capability.filter(|&(major, _)| major != 0) {
        out.set("gpu.family", family(major, minor));
        out.set("gpu.compute.major", major);
        out.set("gpu.compute.minor", minor);
    }
}

/// Architecture name by compute capability, as feature discovery spells it.
fn family(major: u32, minor: u32) -> &'static str {
    match (major, minor) {
        (1, _) => "tesla",
        (2, _) => "fermi",
        (3, _) => "kepler",
        (5, _) => "maxwell",
        (6, _) => "pascal",
        (7, 0..=4) => "volta",
        (7, _) => "turing",
        (8, 0..=8) => "ampere",
        (8, 9) => "ada-lovelace",
        (9, _) => "hopper",
        (10 | 12, _) => "blackwell",
        (13, _) => "rubin",
        _ => "undefined",
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::family;

    #[rstest]
    #[case(7, 0, "volta")]
    #[case(7, 5, "turing")]
    #[case(8, 0, "ampere")]
    #[case(8, 6, "ampere")]
    #[case(8, 9, "ada-lovelace")]
    #[case(9, 0, "hopper")]
    #[case(10, 0, "blackwell")]
    #[case(12, 0, "blackwell")]
    #[case(11, 0, "undefined")]
    #[case(13, 0, "rubin")]
    fn families(#[case] major: u32, #[case] minor: u32, #[case] wanted: &str) {
        assert_eq!(family(major, minor), wanted);
    }
}
