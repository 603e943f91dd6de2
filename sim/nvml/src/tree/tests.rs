//! The tree against what a driver's files look like.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use super::*;
use crate::{
    admin::{SimulatedNode, WorkloadSpec, tests::node},
    model::Load,
    presets::NodeSpec,
};

fn read(node: &SimulatedNode, path: &str) -> String {
    let path = node.root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files below a folder, relative to it.
fn files(node: &SimulatedNode, folder: &str) -> Vec<String> {
    let mut found = Tree::new();
    scan(node.root(), Path::new(folder), &mut found).unwrap();
    found
        .keys()
        .map(|path| path.strip_prefix(folder).unwrap().display().to_string())
        .collect()
}

/// A GPU cut into 3g (instance 2, with one compute instance) and 1g (instance 13, with none).
fn cut(node: &SimulatedNode, gpu: usize) {
    node.store()
        .update(|node| {
            node.set_mig_mode(gpu, true, 0, 0).unwrap();
            assert_eq!(node.create_gpu_instance(gpu, 9, None, 0, 0), Ok(2));
            assert_eq!(node.create_compute_instance(gpu, 2, 2, None, 0), Ok(0));
            assert_eq!(node.create_gpu_instance(gpu, 19, None, 0, 0), Ok(7));
        })
        .unwrap();
}

#[test]
fn capability_files_follow_the_instances() {
    let (_folder, node) = node(&NodeSpec::preset("dgx-h100").unwrap());
    let bare = ["mig/config", "mig/monitor"];
    assert_eq!(files(&node, "proc/driver/nvidia/capabilities"), bare);
    assert_eq!(
        files(&node, "dev/nvidia-caps"),
        ["nvidia-cap1", "nvidia-cap2"]
    );
    cut(&node, 1);
    // GPU minor 1: 3 + 135 + 9 per instance; the compute instances come after their instance.
    assert_eq!(
        files(&node, "proc/driver/nvidia/capabilities"),
        [
            "gpu1/mig/gi2/access",
            "gpu1/mig/gi2/ci0/access",
            "gpu1/mig/gi7/access",
            "mig/config",
            "mig/monitor"
        ]
    );
    let access = read(&node, "proc/driver/nvidia/capabilities/gpu1/mig/gi2/access");
    assert_eq!(
        access,
        "DeviceFileMinor: 156\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    );
    let access = read(
        &node,
        "proc/driver/nvidia/capabilities/gpu1/mig/gi2/ci0/access",
    );
    assert!(access.starts_with("DeviceFileMinor: 157\n"), "{access}");
    assert_eq!(
        files(&node, "dev/nvidia-caps"),
        [
            "nvidia-cap1",
            "nvidia-cap156",
            "nvidia-cap157",
            "nvidia-cap2",
            "nvidia-cap201"
        ]
    );
    node.reset(1).unwrap();
    assert_eq!(files(&node, "proc/driver/nvidia/capabilities"), bare);
    assert!(
        !node
            .root()
            .join("proc/driver/nvidia/capabilities/gpu1")
            .exists(),
        "no empty folder stays behind"
    );
}

#[test]
fn minors_of_every_possible_capability() {
    let (_folder, node) = node(&NodeSpec::uniform("a30-24gb", 1).unwrap());
    let minors = read(&node, "proc/driver/nvidia-caps/mig-minors");
    let lines: Vec<&str> = minors.lines().collect();
    assert_eq!(
        lines[..4],
        [
            "config 1",
            "monitor 2",
            "gpu0/gi0/access 3",
            "gpu0/gi0/ci0/access 4"
        ]
    );
    assert_eq!(lines.last(), Some(&"gpu31/gi14/ci7/access 4322"));
    assert_eq!(lines.len(), 4322);
}

#[test]
fn the_minor_names_the_files_and_not_the_index() {
    let (_folder, node) = node(&NodeSpec::preset("mixed").unwrap());
    cut(&node, 0);
    assert!(
        node.root()
            .join("proc/driver/nvidia/capabilities/gpu1/mig/gi2/access")
            .exists()
    );
    let information = read(&node, "proc/driver/nvidia/gpus/0000:17:00.0/information");
    assert!(
        information.contains("Device Minor: \t 1\n"),
        "{information}"
    );
}

#[test]
fn pci_devices_look_like_the_kernels() {
    let (_folder, node) = node(&NodeSpec::preset("dgx-h100").unwrap());
    let file = |name: &str| read(&node, &format!("sys/bus/pci/devices/0000:97:00.0/{name}"));
    assert_eq!(file("vendor"), "0x10de\n");
    assert_eq!(file("device"), "0x2330\n");
    assert_eq!(file("subsystem_device"), "0x16c1\n");
    assert_eq!(file("class"), "0x030200\n");
    assert_eq!(file("numa_node"), "1\n");
    assert_eq!(file("local_cpulist"), "56-111,168-223\n");
    assert_eq!(file("current_link_speed"), "32.0 GT/s PCIe\n");
    assert_eq!(
        file("modalias"),
        "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00\n"
    );
    let folder = node.root().join("sys/bus/pci/devices/0000:97:00.0");
    let real = fs::canonicalize(&folder).unwrap();
    assert_eq!(
        real,
        node.root()
            .join("sys/devices/pci0000:94/0000:94:01.0/0000:97:00.0")
    );
    assert_eq!(
        fs::canonicalize(folder.join("driver")).unwrap(),
        node.root().join("sys/bus/pci/drivers/nvidia")
    );
    assert_eq!(
        fs::canonicalize(node.root().join("sys/bus/pci/drivers/nvidia/0000:97:00.0")).unwrap(),
        real
    );
    let switch = read(&node, "sys/bus/pci/devices/0000:05:00.0/class");
    assert_eq!(switch, "0x068000\n");
}

#[test]
fn an_excluded_gpu_shows_on_the_bus_and_in_proc() {
    let mut spec = NodeSpec::preset("a30x4").unwrap();
    spec.excluded = spec.gpus.split_off(3);
    let (_folder, node) = node(&spec);
    let information = |bus| {
        let path = format!("proc/driver/nvidia/gpus/0000:{bus}:00.0/information");
        read(&node, &path)
    };
    let (left_out, used) = (information("e3"), information("17"));
    assert!(left_out.contains("GPU Excluded:\t Yes\n"), "{left_out}");
    assert!(left_out.contains("Device Minor: \t 3\n"), "{left_out}");
    assert!(used.contains("GPU Excluded:\t No\n"), "{used}");
    let bus = node.root().join("sys/bus/pci");
    let device = fs::read_to_string(bus.join("devices/0000:e3:00.0/device")).unwrap();
    assert_eq!(device, "0x20b7\n");
    assert!(bus.join("drivers/nvidia/0000:e3:00.0/driver").exists());
    node.unload_driver().unwrap();
    assert!(files(&node, "proc/driver/nvidia/gpus").is_empty());
    assert!(!bus.join("devices/0000:e3:00.0/driver").exists());
    // It takes an address like every other GPU.
    spec.excluded[0].pci = spec.gpus[0].pci;
    assert!(spec.build(0).is_err());
}

#[test]
fn configuration_space_holds_a_sound_capability_list() {
    let (_folder, node) = node(&NodeSpec::preset("mixed").unwrap());
    let config = fs::read(node.root().join("sys/bus/pci/devices/0000:ca:00.0/config")).unwrap();
    assert_eq!(config.len(), 256);
    assert_eq!(config[..4], [0xde, 0x10, 0xb8, 0x1e]);
    assert_eq!(config[9..12], [0x00, 0x02, 0x03]);
    assert_ne!(config[6] & 0x10, 0, "status says that there is a list");
    let (mut next, mut ids) = (config[0x34], Vec::new());
    while next != 0 && ids.len() < 16 {
        ids.push(config[usize::from(next)]);
        next = config[usize::from(next) + 1];
    }
    // Power management, MSI, PCI Express; a vendor-specific one (9) would say that this is a virtual GPU.
    assert_eq!(ids, [0x01, 0x05, 0x10]);
}

#[test]
fn the_drivers_files_go_and_come_with_it() {
    let (_folder, node) = node(&NodeSpec::preset("dgx-a100").unwrap());
    assert!(read(&node, "proc/driver/nvidia/version").contains("  570.148.08  "));
    assert!(
        read(&node, "proc/modules")
            .lines()
            .any(|line| line.starts_with("nvidia "))
    );
    assert!(read(&node, "proc/devices").contains("195 nvidia\n"));
    node.unload_driver().unwrap();
    for gone in [
        "proc/driver/nvidia/version",
        "proc/driver/nvidia/gpus",
        "sys/bus/pci/devices/0000:07:00.0/driver",
    ] {
        assert!(
            files(&node, gone).is_empty() && !node.root().join(gone).is_file(),
            "{gone}"
        );
    }
    assert_eq!(read(&node, "proc/modules"), "");
    assert!(
        node.root().join("dev/nvidia0").exists(),
        "device nodes outlive the driver"
    );
    node.load_driver().unwrap();
    assert!(node.root().join("proc/driver/nvidia/version").is_file());
}

/// The null device: whatever GPU this machine has, nothing reaches it.
#[test]
fn device_nodes_are_devices_where_they_can_be_made() {
    let (folder, node) = node(&NodeSpec::preset("a30x4").unwrap());
    let null = rustix::fs::makedev(1, 3);
    let can = rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.path().join("probe"),
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::RUSR,
        null,
    )
    .is_ok();
    for (name, mode) in [("nvidia0", 0o666), ("nvidia-caps/nvidia-cap1", 0o400)] {
        let data = fs::metadata(node.root().join("dev").join(name)).unwrap();
        assert_eq!(data.file_type().is_char_device(), can, "{name}");
        assert_eq!(data.permissions().mode() & 0o777, mode, "{name}");
        if can {
            assert_eq!(data.rdev(), null, "{name}");
        }
    }
}

#[test]
fn what_the_driver_installed_stays_when_it_is_unloaded() {
    let (_folder, node) = node(&NodeSpec::preset("dgx-h100").unwrap());
    let version = node.state().unwrap().driver.version.clone();
    node.unload_driver().unwrap();
    let libraries = fs::canonicalize(node.library_folder()).unwrap();
    for (name, file) in [
        ("libcuda.so", "libcuda.so"),
        ("gbm/nvidia-drm_gbm.so", "libnvidia-allocator.so"),
        ("vdpau/libvdpau_nvidia.so.1", "vdpau/libvdpau_nvidia.so"),
    ] {
        let real = fs::canonicalize(libraries.join(name)).unwrap();
        assert_eq!(real, libraries.join(format!("{file}.{version}")));
    }
    let firmware = node.root().join("lib/firmware/nvidia").join(version);
    assert!(firmware.join("gsp_ga10x.bin").is_file());
}

#[test]
fn a_reboot_has_a_new_boot_id() {
    let (_folder, node) = node(&NodeSpec::preset("a30x4").unwrap());
    let before = read(&node, "proc/sys/kernel/random/boot_id");
    node.reboot().unwrap();
    assert_ne!(read(&node, "proc/sys/kernel/random/boot_id"), before);
}

#[test]
fn simulated_processes_have_a_command_as_long_as_they_run() {
    let (_folder, node) = node(&NodeSpec::preset("a30x4").unwrap());
    let spec = WorkloadSpec {
        name: "python-train-resnet".into(),
        load: Load::compute(50),
        ..WorkloadSpec::default()
    };
    let pid = node.run_workload(spec).unwrap();
    // The kernel cuts the short form at 15 characters.
    assert_eq!(
        read(&node, &format!("proc/{pid}/comm")),
        "python-train-re\n"
    );
    assert_eq!(
        read(&node, &format!("proc/{pid}/cmdline")),
        "python-train-resnet\0"
    );
    node.stop_workload(pid).unwrap();
    assert!(!node.root().join(format!("proc/{pid}")).exists());
}

#[test]
fn only_what_changes_is_touched() {
    let (_folder, node) = node(&NodeSpec::preset("dgx-h100").unwrap());
    cut(&node, 0);
    let inode = |path: &str| fs::metadata(node.root().join(path)).unwrap().ino();
    let watched = [
        "proc/driver/nvidia/capabilities/gpu0/mig/gi2/access",
        "proc/devices",
        "dev/nvidia0",
    ];
    let before = watched.map(inode);
    node.store()
        .update(|node| node.destroy_gpu_instance(0, 7, 0))
        .unwrap()
        .unwrap();
    assert_eq!(watched.map(inode), before);
}

#[test]
fn the_next_writer_mends_what_a_killed_one_left() {
    let (_folder, node) = node(&NodeSpec::preset("dgx-h100").unwrap());
    cut(&node, 0);
    // As if a writer had died after the state, before the files: instance 2 is gone and instance 13 new in the files.
    let caps = node.root().join("proc/driver/nvidia/capabilities/gpu0/mig");
    fs::remove_dir_all(caps.join("gi2")).unwrap();
    fs::create_dir(caps.join("gi13")).unwrap();
    fs::write(caps.join("gi13/access"), "").unwrap();
    fs::write(node.library_folder().join(PENDING_FILE), "").unwrap();
    node.store().update(|_| ()).unwrap();
    let left = files(&node, "proc/driver/nvidia/capabilities/gpu0");
    assert_eq!(
        left,
        ["mig/gi2/access", "mig/gi2/ci0/access", "mig/gi7/access"]
    );
    assert!(!node.library_folder().join(PENDING_FILE).exists());
}

#[test]
fn folders_of_the_kubelet_and_of_nfd_are_there() {
    let (_folder, node) = node(&NodeSpec::preset("dgx-b200").unwrap());
    for folder in [
        "etc/kubernetes/node-feature-discovery/features.d",
        "var/lib/kubelet/device-plugins",
    ] {
        assert!(node.root().join(folder).is_dir(), "{folder}");
    }
    assert_eq!(read(&node, "sys/class/dmi/id/product_name"), "DGXB200\n");
}

#[test]
fn nvidia_smi_hands_over_to_the_simulator() {
    let (_folder, node) = node(&NodeSpec::preset("a30x4").unwrap());
    let program = node.root().join("usr/bin/nvidia-smi");
    assert_ne!(fs::metadata(&program).unwrap().mode() & 0o111, 0);
    let output = std::process::Command::new(&program)
        .args(["--gpu-reset", "-i", "0000:17:00.0"])
        .env("LATHE_SIM_COMMAND", "echo")
        .output()
        .unwrap();
    let expected = format!(
        "sim nvidia-smi --root {} --gpu-reset -i 0000:17:00.0\n",
        node.root().display()
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

/// As in a container that has the node's root mounted elsewhere than the node was made.
#[test]
fn files_follow_where_the_node_lies_now() {
    let (folder, node) = node(&NodeSpec::preset("dgx-h100").unwrap());
    let made = node.root().to_owned();
    let here = folder.path().join("elsewhere");
    fs::rename(&made, &here).unwrap();
    let store = crate::Store::open(here.join(crate::admin::LIBRARY_FOLDER)).unwrap();
    store
        .update(|node| {
            node.set_mig_mode(0, true, 0, 0).unwrap();
            node.create_gpu_instance(0, 0, None, 0, 0).unwrap();
        })
        .unwrap();
    assert!(!made.exists(), "nothing is written where it was");
    let caps = fs::read_dir(here.join("dev/nvidia-caps")).unwrap().count();
    assert_eq!(caps, 3, "config, monitor, the instance");
}
