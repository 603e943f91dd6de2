//! `/proc`: the driver's own files, the kernel's lists of modules and devices, and simulated processes.

use super::{Entry, Tree, driver_present};
use crate::model::{Board, Gpu, Node, PciAddress};

/// Minor of a capability file: config, monitor, then 135 per GPU minor (15 GPU instances of 9: the instance itself and
/// its 8 compute instances).
pub(super) fn instance_minor(gpu_minor: u32, instance: u32) -> u32 {
    3 + gpu_minor * 135 + instance * 9
}

/// Minor of a compute instance's capability file.
pub(super) fn compute_minor(gpu_minor: u32, instance: u32, compute: u32) -> u32 {
    instance_minor(gpu_minor, instance) + 1 + compute
}

/// GPUs the driver reserves capability minors for.
const CAPABILITY_GPUS: u32 = 32;

pub(super) fn render(node: &Node, tree: &mut Tree) {
    let mut file = |path: String, content: String| {
        tree.insert(path.into(), Entry::File(content.into_bytes()));
    };
    let present = driver_present(node);
    file(
        "proc/modules".into(),
        if present { modules() } else { String::new() },
    );
    file("proc/devices".into(), devices(present));
    // The kernel's form of a random UUID, new at every boot.
    let boot = crate::model::uuid::derived(
        "boot",
        &format!("{}/{}/{}", node.seed, node.name, node.boots),
    );
    file("proc/sys/kernel/random/boot_id".into(), format!("{boot}\n"));
    for workload in &node.workloads {
        let pid = workload.pid;
        file(
            format!("proc/{pid}/comm"),
            format!("{:.15}\n", workload.name),
        );
        file(
            format!("proc/{pid}/cmdline"),
            format!("{}\0", workload.name),
        );
    }
    if !present {
        return;
    }
    file(
        "proc/driver/nvidia/version".into(),
        format!(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (simulated)\n\
             GCC version:  simulated\n",
            node.driver.version
        ),
    );
    tree.insert(
        "proc/driver/nvidia-caps/mig-minors".into(),
        Entry::MigMinors,
    );
    let mut file = |path: String, content: String| {
        tree.insert(path.into(), Entry::File(content.into_bytes()));
    };
    file(
        "proc/driver/nvidia/capabilities/mig/config".into(),
        capability(1, MODE_OWNER),
    );
    file(
        "proc/driver/nvidia/capabilities/mig/monitor".into(),
        capability(2, MODE_ALL),
    );
    for gpu in node.gpus.iter().filter(|gpu| !gpu.removed) {
        file(
            format!("proc/driver/nvidia/gpus/{}/information", gpu.pci.sysfs()),
            information(node, &gpu.board, gpu.pci, &gpu.uuid, gpu.minor, "No"),
        );
    }
    // The driver binds to what it is told to leave out, and shows it here alone.
    for gpu in &node.excluded {
        if let Some(board) = node.boards.get(&gpu.board_name) {
            file(
                format!("proc/driver/nvidia/gpus/{}/information", gpu.pci.sysfs()),
                information(node, board, gpu.pci, &gpu.uuid, gpu.minor, "Yes"),
            );
        }
    }
}

/// Modes of capability device files, 0400 and 0444, which the driver writes in decimal.
const MODE_OWNER: u32 = 0o400;
const MODE_ALL: u32 = 0o444;

fn capability(minor: u32, mode: u32) -> String {
    format!("DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n")
}

/// Capability files of one GPU's instances.
pub(super) fn render_instances(gpu: &Gpu, tree: &mut Tree) {
    let mut file = |path: String, minor: u32| {
        tree.insert(
            path.into(),
            Entry::File(capability(minor, MODE_ALL).into_bytes()),
        );
    };
    for instance in &gpu.mig.instances {
        let folder = format!(
            "proc/driver/nvidia/capabilities/gpu{}/mig/gi{}",
            gpu.minor, instance.id
        );
        file(
            format!("{folder}/access"),
            instance_minor(gpu.minor, instance.id),
        );
        for compute in &instance.compute {
            let minor = compute_minor(gpu.minor, instance.id, compute.id);
            file(format!("{folder}/ci{}/access", compute.id), minor);
        }
    }
}

fn information(
    node: &Node,
    board: &Board,
    pci: PciAddress,
    uuid: &str,
    minor: u32,
    excluded: &str,
) -> String {
    format!(
        "Model: \t\t {}\nIRQ:   \t\t {}\nGPU UUID: \t {}\nVideo BIOS: \t {}\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n\
         DMA Mask: \t 0xfffffffffffff\nBus Location: \t {}\nDevice Minor: \t {}\nGPU Firmware: \t {}\nGPU Excluded:\t {excluded}\n",
        board.product,
        128 + minor,
        uuid,
        board.vbios.to_lowercase(),
        pci.sysfs(),
        minor,
        node.driver.version
    )
}

fn modules() -> String {
    [
        ("nvidia_uvm", "0 -"),
        ("nvidia_modeset", "0 -"),
        ("nvidia", "2 nvidia_uvm,nvidia_modeset,"),
    ]
    .map(|(name, users)| format!("{name} 1048576 {users} Live 0x0000000000000000 (OE)\n"))
    .concat()
}

fn devices(present: bool) -> String {
    let ours = if present {
        "195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n234 nvidia-caps-imex-channels\n235 nvidia-nvswitch\n\
         507 nvidia-uvm\n508 nvidia-caps\n"
    } else {
        ""
    };
    format!(
        "Character devices:\n  1 mem\n  5 /dev/tty\n{ours}\nBlock devices:\n  8 sd\n259 blkext\n"
    )
}

pub(super) fn mig_minors() -> String {
    let mut text = String::from("config 1\nmonitor 2\n");
    for gpu in 0..CAPABILITY_GPUS {
        for instance in 0..15 {
            text += &format!(
                "gpu{gpu}/gi{instance}/access {}\n",
                instance_minor(gpu, instance)
            );
            for compute in 0..8 {
                text += &format!(
                    "gpu{gpu}/gi{instance}/ci{compute}/access {}\n",
                    compute_minor(gpu, instance, compute)
                );
            }
        }
    }
    text
}
