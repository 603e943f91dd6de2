//! PCI sysfs: a folder per GPU and NVSwitch under its root port, links from `bus/pci`, the driver's links.

use super::{Entry, Tree, driver_present};
use crate::model::{Gpu, Node, PciAddress, board::NVIDIA_VENDOR};
use crate::reset_files::FOLDER;

/// Class of an NVSwitch: other bridge.
const SWITCH_CLASS: u32 = 0x0006_8000;
/// Device ids of the NVSwitches on A100 and on H100 boards; later ones are not enumerated apart.
const SWITCH_A100: u16 = 0x1AF1;
const SWITCH_H100: u16 = 0x22A3;

struct Function {
    address: PciAddress,
    device: u16,
    subsystem: u16,
    class: u32,
    numa: i64,
    cpus: String,
}

pub(super) fn render(node: &Node, tree: &mut Tree) {
    tree.insert("sys/bus/pci/devices".into(), Entry::Folder);
    for gpu in node.gpus.iter().filter(|gpu| !gpu.removed) {
        let near = gpu
            .numa
            .and_then(|numa| node.machine.numa.get(numa as usize));
        let ids = &gpu.board.pci;
        let function = Function {
            address: gpu.pci,
            device: ids.device,
            subsystem: ids.subsystem,
            class: ids.class,
            numa: gpu.numa.map_or(-1, i64::from),
            cpus: near.map(|node| node.cpus.clone()).unwrap_or_default(),
        };
        let folder = device(node, &function, tree, "nvidia");
        link_speed(gpu, &folder, tree);
        let requests = format!(
            "{}/{FOLDER}/{}",
            crate::admin::LIBRARY_FOLDER,
            gpu.pci.sysfs()
        );
        tree.insert(
            format!("{folder}/reset").into(),
            Entry::Link(format!("../../../../../{requests}").into()),
        );
        tree.insert(requests.into(), Entry::Touch(0o644));
    }
    for gpu in &node.excluded {
        let Some(board) = node.boards.get(&gpu.board_name) else {
            continue;
        };
        let function = Function {
            address: gpu.pci,
            device: board.pci.device,
            subsystem: board.pci.subsystem,
            class: board.pci.class,
            numa: -1,
            cpus: String::new(),
        };
        device(node, &function, tree, "nvidia");
    }
    let mut functions: Vec<&Gpu> = node.gpus.iter().collect();
    functions.sort_by_key(|gpu| gpu.board.architecture);
    let ampere = functions
        .last()
        .is_none_or(|gpu| gpu.board.architecture <= crate::model::board::Architecture::Ampere);
    for address in &node.machine.switches {
        let id = if ampere { SWITCH_A100 } else { SWITCH_H100 };
        let function = Function {
            address: *address,
            device: id,
            subsystem: id,
            class: SWITCH_CLASS,
            numa: -1,
            cpus: String::new(),
        };
        device(node, &function, tree, "nvidia-nvswitch");
    }
}

/// Writes one function and returns its folder.
fn device(node: &Node, function: &Function, tree: &mut Tree, driver: &str) -> String {
    let bdf = function.address.sysfs();
    let domain = function.address.domain;
    // A root port of its own per device, three buses up, as behind the switch of a baseboard.
    let port = function.address.bus.saturating_sub(3);
    let root = format!("devices/pci{domain:04x}:{port:02x}/{domain:04x}:{port:02x}:01.0");
    let folder = format!("sys/{root}/{bdf}");
    let mut file = |name: &str, content: String| {
        tree.insert(
            format!("{folder}/{name}").into(),
            Entry::File(content.into_bytes()),
        );
    };
    let (device, subsystem, class) = (function.device, function.subsystem, function.class);
    file("vendor", format!("0x{NVIDIA_VENDOR:04x}\n"));
    file("device", format!("0x{device:04x}\n"));
    file("class", format!("0x{class:06x}\n"));
    file("subsystem_vendor", format!("0x{NVIDIA_VENDOR:04x}\n"));
    file("subsystem_device", format!("0x{subsystem:04x}\n"));
    file("revision", "0xa1\n".into());
    file("numa_node", format!("{}\n", function.numa));
    file("local_cpulist", format!("{}\n", function.cpus));
    let modalias = format!(
        "pci:v{:08X}d{device:08X}sv{:08X}sd{subsystem:08X}bc{:02X}sc{:02X}i{:02X}",
        NVIDIA_VENDOR,
        NVIDIA_VENDOR,
        class >> 16 & 0xFF,
        class >> 8 & 0xFF,
        class & 0xFF
    );
    file("modalias", format!("{modalias}\n"));
    let bound = if driver_present(node) {
        format!("DRIVER={driver}\n")
    } else {
        String::new()
    };
    file(
        "uevent",
        format!(
            "{bound}PCI_CLASS={class:X}\nPCI_ID={NVIDIA_VENDOR:04X}:{device:04X}\n\
             PCI_SUBSYS_ID={NVIDIA_VENDOR:04X}:{subsystem:04X}\nPCI_SLOT_NAME={bdf}\nMODALIAS={modalias}\n"
        ),
    );
    tree.insert(
        format!("{folder}/config").into(),
        Entry::File(config(function)),
    );
    tree.insert(
        format!("sys/bus/pci/devices/{bdf}").into(),
        Entry::Link(format!("../../../{root}/{bdf}").into()),
    );
    if driver_present(node) {
        tree.insert(
            format!("{folder}/driver").into(),
            Entry::Link(format!("../../../../bus/pci/drivers/{driver}").into()),
        );
        tree.insert(
            format!("sys/bus/pci/drivers/{driver}/{bdf}").into(),
            Entry::Link(format!("../../../../{root}/{bdf}").into()),
        );
    }
    folder
}

fn link_speed(gpu: &Gpu, folder: &str, tree: &mut Tree) {
    let pcie = gpu.board.pcie;
    let speed = match pcie.generation {
        1 => "2.5",
        2 => "5.0",
        3 => "8.0",
        4 => "16.0",
        5 => "32.0",
        _ => "64.0",
    };
    for kind in ["current", "max"] {
        let mut file = |name: &str, content: String| {
            tree.insert(
                format!("{folder}/{kind}_link_{name}").into(),
                Entry::File(content.into_bytes()),
            );
        };
        file("speed", format!("{speed} GT/s PCIe\n"));
        file("width", format!("{}\n", pcie.width));
    }
}

/// The first 256 bytes of configuration space: header type 0 and a list of the three capabilities every GPU has (power
/// management, MSI, PCI Express). No vendor-specific one: that would announce a virtual GPU.
fn config(function: &Function) -> Vec<u8> {
    let mut space = vec![0_u8; 256];
    let mut put =
        |offset: usize, bytes: &[u8]| space[offset..offset + bytes.len()].copy_from_slice(bytes);
    put(0x00, &NVIDIA_VENDOR.to_le_bytes());
    put(0x02, &function.device.to_le_bytes());
    // Command: memory space and bus master. Status: has a capability list.
    put(0x04, &[0x06, 0x04, 0x10, 0x00]);
    put(0x08, &[0xA1]);
    put(0x09, &function.class.to_le_bytes()[..3]);
    put(0x2C, &NVIDIA_VENDOR.to_le_bytes());
    put(0x2E, &function.subsystem.to_le_bytes());
    put(0x34, &[0x60]);
    put(0x60, &[0x01, 0x68, 0x03, 0x00]);
    put(0x68, &[0x05, 0x78, 0x80, 0x00]);
    put(0x78, &[0x10, 0x00, 0x02, 0x00]);
    space
}
