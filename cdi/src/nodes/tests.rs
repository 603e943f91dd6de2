//! Nodes on a node whose `/dev`, `/sys` and `/proc` are made here.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::symlink;

use rstest::rstest;

use super::*;

/// A node with these empty files. The host has its `/dev` below `/host-dev`.
struct Rig {
    folder: tempfile::TempDir,
    roots: Roots,
}

impl Rig {
    fn new(files: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            write(folder.path(), file, "");
        }
        let here = folder.path();
        let roots = Roots {
            node: Root::new(here, "/"),
            driver: Root::new(here, "/"),
            devices: Root::new(here, "/host-dev"),
        };
        Self { folder, roots }
    }

    fn files(&self) -> DeviceFiles<'_> {
        DeviceFiles::new(&self.roots)
    }
}

fn write(root: &Path, file: &str, content: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn gpu(minor: Option<u32>) -> Gpu {
    Gpu {
        uuid: "GPU-a".into(),
        minor,
        bus_id: "00000000:18:00.0".into(),
        ..Gpu::default()
    }
}

fn paths(nodes: &[Node]) -> Vec<&str> {
    nodes
        .iter()
        .map(|node| node.path.to_str().unwrap())
        .collect()
}

#[test]
fn only_control_nodes_that_exist() {
    let rig = Rig::new(&["dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia0"]);
    let nodes = rig.files().control().unwrap();
    assert_eq!(paths(&nodes), ["/dev/nvidiactl", "/dev/nvidia-uvm"]);
    assert_eq!(nodes[0].host_path, Path::new("/host-dev/dev/nvidiactl"));
}

#[test]
fn a_node_with_the_same_path_on_the_host_says_so_once() {
    let node = Node {
        path: "/dev/nvidia0".into(),
        host_path: "/dev/nvidia0".into(),
    };
    assert_eq!(DeviceNode::from(&node).host_path, None);
    let elsewhere = Node {
        host_path: "/run/nvidia/driver/dev/nvidia0".into(),
        ..node
    };
    assert_eq!(
        DeviceNode::from(&elsewhere).host_path.as_deref(),
        Some("/run/nvidia/driver/dev/nvidia0")
    );
}

#[test]
fn a_gpu_has_the_node_of_its_minor() {
    let rig = Rig::new(&["dev/nvidia3"]);
    let found = rig.files().gpu(&gpu(Some(3))).unwrap().unwrap();
    assert_eq!(found.path, Path::new("/dev/nvidia3"));
    let missing = rig.files().gpu(&gpu(Some(4))).unwrap().unwrap_err();
    assert_eq!(
        missing,
        Skipped::NoNode {
            of: "GPU-a".into(),
            path: rig.folder.path().join("dev/nvidia4"),
        }
    );
}

#[test]
fn a_minor_that_the_driver_does_not_say_is_read_from_the_kernel() {
    let rig = Rig::new(&["dev/nvidia5"]);
    let missing = rig.files().gpu(&gpu(None)).unwrap().unwrap_err();
    assert_eq!(
        missing,
        Skipped::NoMinor {
            uuid: "GPU-a".into()
        }
    );
    write(
        rig.folder.path(),
        "proc/driver/nvidia/gpus/0000:18:00.0/information",
        "Model: \t\t NVIDIA H100\nDevice Minor: \t 5\n",
    );
    let found = rig.files().gpu(&gpu(None)).unwrap().unwrap();
    assert_eq!(found.path, Path::new("/dev/nvidia5"));
}

const MINORS: &str =
    "config 1\nmonitor 2\ngpu1/gi2/access 156\ngpu1/gi2/ci0/access 157\ngpu1/gi2/ci1/access 158\n";

#[rstest]
#[case(2, 0, Ok(vec!["/dev/nvidia-caps/nvidia-cap156", "/dev/nvidia-caps/nvidia-cap157"]))]
#[case(2, 1, Err("nvidia-cap158"))]
#[case(2, 2, Err("gpu1/gi2/ci2/access"))]
#[case(3, 0, Err("gpu1/gi3/access"))]
fn a_mig_device_has_two_capabilities(
    #[case] gpu_instance: u32,
    #[case] compute_instance: u32,
    #[case] wanted: Result<Vec<&str>, &str>,
) {
    let rig = Rig::new(&[
        "dev/nvidia-caps/nvidia-cap156",
        "dev/nvidia-caps/nvidia-cap157",
    ]);
    write(
        rig.folder.path(),
        "proc/driver/nvidia-caps/mig-minors",
        MINORS,
    );
    let files = rig.files();
    let capabilities = files.capabilities().unwrap();
    let mig = Mig {
        uuid: "MIG-a".into(),
        gpu_instance,
        compute_instance,
        ..Mig::default()
    };
    match (
        files.mig(&gpu(Some(1)), &mig, &capabilities).unwrap(),
        wanted,
    ) {
        (Ok(nodes), Ok(wanted)) => assert_eq!(paths(&nodes), wanted),
        (Err(skipped), Err(wanted)) => {
            let text = skipped.to_string();
            assert!(text.contains(wanted) && text.contains("MIG-a"), "{text}");
        }
        (found, wanted) => panic!("{found:?}, not {wanted:?}"),
    }
}

#[test]
fn a_driver_without_mig_has_no_capabilities() {
    let rig = Rig::new(&[]);
    assert_eq!(rig.files().capabilities().unwrap(), Capabilities::default());
}

#[test]
fn graphics_nodes_are_those_of_the_pci_device() {
    let rig = Rig::new(&[
        "sys/bus/pci/devices/0000:18:00.0/drm/card1/dev",
        "sys/bus/pci/devices/0000:18:00.0/drm/renderD128/dev",
        "sys/bus/pci/devices/0000:18:00.0/drm/controlD65/dev",
        "sys/bus/pci/devices/0000:19:00.0/drm/card2/dev",
        "dev/dri/card1",
        "dev/dri/card2",
    ]);
    let by_path = rig.folder.path().join("dev/dri/by-path");
    fs::create_dir_all(&by_path).unwrap();
    symlink("../card1", by_path.join("pci-0000:18:00.0-card")).unwrap();
    symlink("../card2", by_path.join("pci-0000:18:00.0-render")).unwrap();
    let files = rig.files();
    // The render node is not made.
    assert_eq!(
        paths(&files.graphics(&gpu(Some(0))).unwrap()),
        ["/dev/dri/card1"]
    );
    // The other link leads to another GPU's node.
    assert_eq!(
        files.graphics_links(&gpu(Some(0))).unwrap(),
        [(
            "/dev/dri/by-path/pci-0000:18:00.0-card".into(),
            "../card1".into()
        )]
    );
}

#[test]
fn modules_beside_the_driver() {
    let rig = Rig::new(&[
        "dev/gdrdrv",
        "dev/nvidia-fs0",
        "dev/nvidia-fs15",
        "dev/infiniband/uverbs1",
        "dev/infiniband/uverbs0",
        "dev/infiniband/rdma_cm",
        "dev/infiniband/umad0",
        "dev/nvidia-caps-imex-channels/channel7",
    ]);
    let files = rig.files();
    assert_eq!(paths(&files.gdrcopy().unwrap()), ["/dev/gdrdrv"]);
    assert_eq!(
        paths(&files.gds().unwrap()),
        ["/dev/nvidia-fs0", "/dev/nvidia-fs15"]
    );
    assert_eq!(
        paths(&files.mofed().unwrap()),
        [
            "/dev/infiniband/rdma_cm",
            "/dev/infiniband/uverbs0",
            "/dev/infiniband/uverbs1"
        ]
    );
    let channel = files.imex_channel(7).unwrap().unwrap();
    assert_eq!(
        channel.path,
        Path::new("/dev/nvidia-caps-imex-channels/channel7")
    );
    assert!(files.imex_channel(0).unwrap().is_err());
}
