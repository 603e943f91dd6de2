//! From the simulated hardware to what the demo draws.

use sim_nvml::model::{Gpu, Node, Workload};

use super::view::{GpuBar, InstanceBar};

/// Memory slices drawn for a board that cannot be cut.
const UNCUT: u32 = 8;

/// The GPUs of a node as bars; `now_us` is the node's clock.
pub(crate) fn bars(node: &Node, now_us: u64) -> Vec<GpuBar> {
    node.gpus
        .iter()
        .enumerate()
        .map(|(index, gpu)| GpuBar {
            index,
            slices: gpu
                .board
                .mig
                .as_ref()
                .map_or(UNCUT, |mig| mig.memory_slices),
            mig: gpu.mig.current,
            instances: instances(node, index, gpu),
            note: note(node, index, gpu, now_us),
        })
        .collect()
}

fn instances(node: &Node, index: usize, gpu: &Gpu) -> Vec<InstanceBar> {
    let bar = |instance: &sim_nvml::model::GpuInstance| InstanceBar {
        start: instance.placement.start,
        size: instance.placement.size,
        label: gpu
            .profile_of(instance)
            .map_or_else(|| "?".to_owned(), |profile| profile.name.clone()),
        busy: node
            .workloads_on(index)
            .any(|workload| workload.instance == Some(instance.id)),
    };
    gpu.mig.instances.iter().map(bar).collect()
}

fn note(node: &Node, index: usize, gpu: &Gpu, now_us: u64) -> String {
    if gpu.health.lost || gpu.health.fallen_at.is_some() {
        return "lost".to_owned();
    }
    let reading = node.reading(index, now_us);
    let mut note = format!(
        "{:>4} W {:>2} °C",
        reading.power_mw / 1000,
        reading.temperature
    );
    if gpu.mig.current != gpu.mig.pending {
        note.push_str("  needs a reset");
    }
    let names: Vec<&str> = node
        .workloads_on(index)
        .map(|Workload { name, .. }| name.as_str())
        .collect();
    if !names.is_empty() {
        note.push_str("  ");
        note.push_str(&names.join(", "));
    }
    note
}
