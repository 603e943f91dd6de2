//! `/dev`: the driver's device nodes.
//!
//! They outlive the driver, as the real ones do: only the capability nodes follow the instances.

use super::{
    Entry, Tree,
    proc::{compute_minor, instance_minor},
};
use crate::model::{Gpu, Node};

pub(super) fn render(node: &Node, tree: &mut Tree) {
    let mut touch = |path: String, mode: u32| {
        tree.insert(path.into(), Entry::Device(mode));
    };
    for name in [
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidia-modeset",
    ] {
        touch(format!("dev/{name}"), 0o666);
    }
    touch("dev/nvidia-caps/nvidia-cap1".into(), 0o400);
    touch("dev/nvidia-caps/nvidia-cap2".into(), 0o444);
    for gpu in &node.gpus {
        touch(format!("dev/nvidia{}", gpu.minor), 0o666);
    }
    for (number, _) in node.machine.switches.iter().enumerate() {
        touch(format!("dev/nvidia-nvswitch{number}"), 0o666);
    }
}

/// Capability nodes of one GPU's instances.
pub(super) fn render_instances(gpu: &Gpu, tree: &mut Tree) {
    let mut touch = |minor: u32| {
        tree.insert(
            format!("dev/nvidia-caps/nvidia-cap{minor}").into(),
            Entry::Device(0o444),
        );
    };
    for instance in &gpu.mig.instances {
        touch(instance_minor(gpu.minor, instance.id));
        for compute in &instance.compute {
            touch(compute_minor(gpu.minor, instance.id, compute.id));
        }
    }
}
