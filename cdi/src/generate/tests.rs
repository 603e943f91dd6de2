//! Whole specs, of simulated nodes, against files that were read line by line.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rstest::rstest;
use sim_nvml::admin::SimulatedNode;
use sim_nvml::presets::NodeSpec;

use super::*;
use crate::Root;
use crate::spec::Version;

/// A simulated node. Its folder is `/` on the host.
struct Rig {
    _folder: tempfile::TempDir,
    node: SimulatedNode,
    roots: Roots,
}

impl Rig {
    fn new(preset: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Nothing here loads the driver.
        let library = folder.path().join("stand-in.so");
        fs::write(&library, "").unwrap();
        let spec = NodeSpec::preset(preset).unwrap();
        let node =
            SimulatedNode::create_with(&folder.path().join("root"), &spec, &library).unwrap();
        let root = Root::new(node.root(), "/");
        let roots = Roots {
            node: root.clone(),
            driver: root.clone(),
            devices: root,
        };
        Self {
            _folder: folder,
            node,
            roots,
        }
    }

    /// Cuts a GPU into 3g, 2g and 1g with one compute instance each, and a 1g with none.
    fn cut(&self, gpu: usize) {
        self.node
            .store()
            .update(|node| {
                node.set_mig_mode(gpu, true, 0, 0).unwrap();
                for (profile, compute) in [(9, Some(2)), (14, Some(1)), (19, Some(0)), (19, None)] {
                    let instance = node.create_gpu_instance(gpu, profile, None, 0, 0).unwrap();
                    if let Some(compute) = compute {
                        node.create_compute_instance(gpu, instance, compute, None, 0)
                            .unwrap();
                    }
                }
            })
            .unwrap();
    }

    fn version(&self) -> String {
        self.node.state().unwrap().driver.version.clone()
    }

    fn gpus(&self) -> Vec<Gpu> {
        let state = self.node.state().unwrap();
        let numbered = state.gpus.iter().zip(0..);
        numbered
            .map(|(gpu, index)| {
                let instances = gpu.mig.instances.iter();
                let mut mig: Vec<Mig> = instances
                    .flat_map(|instance| {
                        instance.compute.iter().map(|compute| Mig {
                            index: compute.index,
                            uuid: gpu.mig_uuid(instance, compute),
                            gpu_instance: instance.id,
                            compute_instance: compute.id,
                        })
                    })
                    .collect();
                mig.sort_by_key(|device| device.index);
                Gpu {
                    index,
                    uuid: gpu.uuid.clone(),
                    minor: Some(gpu.minor),
                    bus_id: gpu.pci.long(),
                    mig,
                }
            })
            .collect()
    }

    fn generate(&self, options: &Options) -> Generated {
        generate(&self.roots, &self.version(), &self.gpus(), options).unwrap()
    }

    fn write(&self, path: &str) {
        let path = self.node.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
}

fn golden(name: &str, spec: Option<&Spec>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    let spec = spec.expect("a spec");
    let found = String::from_utf8(spec.to_json()).unwrap();
    let parsed: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert_eq!(parsed, serde_json::to_value(spec).unwrap());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &found).unwrap();
    }
    let wanted =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(
        found == wanted,
        "{} differs; UPDATE_GOLDEN=1 writes it anew, for git diff. Found:\n{found}",
        path.display()
    );
}

#[test]
fn whole_gpus_without_hooks() {
    let rig = Rig::new("dgx-h100");
    let made = rig.generate(&Options::default());
    assert_eq!(made.skipped, []);
    assert_eq!(made.specs.len(), 1);
    golden("dgx-h100.json", made.class(classes::GPU));
}

#[test]
fn mig_devices_with_hooks_by_index() {
    let rig = Rig::new("dgx-h100");
    rig.cut(1);
    rig.cut(7);
    rig.write("usr/local/nvidia/toolkit/nvidia-cdi-hook");
    let made = rig.generate(&Options {
        naming: Naming::Index,
        hook_program: Some("/usr/local/nvidia/toolkit/nvidia-cdi-hook".into()),
        ..Options::default()
    });
    assert_eq!(made.skipped, []);
    golden("dgx-h100-mig-hooks.json", made.class(classes::GPU));
}

#[test]
fn a_gpu_that_lacks_something_lacks_it_alone() {
    let rig = Rig::new("dgx-h100");
    rig.cut(1);
    let root = rig.node.root();
    fs::remove_file(root.join("dev/nvidia0")).unwrap();
    fs::remove_file(root.join("dev/nvidia-caps/nvidia-cap166")).unwrap();
    fs::remove_dir_all(root.join("proc/driver/nvidia/gpus")).unwrap();
    let mut gpus = rig.gpus();
    gpus[2].minor = None;
    gpus[3].uuid = "GPU 3".into();
    let made = generate(&rig.roots, &rig.version(), &gpus, &Options::default()).unwrap();
    let uuid = |gpu: usize| gpus[gpu].uuid.clone();
    let expected = [
        Skipped::NoNode {
            of: uuid(0),
            path: root.join("dev/nvidia0"),
        },
        Skipped::NoNode {
            of: gpus[1].mig[1].uuid.clone(),
            path: root.join("dev/nvidia-caps/nvidia-cap166"),
        },
        Skipped::NoMinor { uuid: uuid(2) },
        Skipped::Name(check_device_name("GPU 3").unwrap_err()),
    ];
    assert_eq!(made.skipped, expected);
    let names: Vec<&str> = made
        .class(classes::GPU)
        .unwrap()
        .devices()
        .iter()
        .map(|device| device.name.as_str())
        .collect();
    let kept = |gpu: usize| gpus[gpu].uuid.as_str();
    assert_eq!(
        names,
        [
            kept(1),
            &gpus[1].mig[0].uuid,
            &gpus[1].mig[2].uuid,
            kept(4),
            kept(5),
            kept(6),
            kept(7)
        ]
    );
    assert_eq!(made.device(classes::GPU, kept(0)), None);
    assert_eq!(
        made.device(classes::GPU, kept(4)),
        Some(format!("k8s.device-plugin.nvidia.com/gpu={}", kept(4)))
    );
}

#[test]
fn compute_instances_share_the_capability_of_their_gpu_instance() {
    let rig = Rig::new("dgx-h100");
    rig.node
        .store()
        .update(|node| {
            node.set_mig_mode(0, true, 0, 0).unwrap();
            let instance = node.create_gpu_instance(0, 9, None, 0, 0).unwrap();
            for _ in 0..2 {
                node.create_compute_instance(0, instance, 0, None, 0)
                    .unwrap();
            }
        })
        .unwrap();
    let made = rig.generate(&Options {
        naming: Naming::Index,
        ..Options::default()
    });
    let nodes = |name: &str| -> Vec<String> {
        let spec = made.class(classes::GPU).unwrap();
        let device = spec.devices().iter().find(|device| device.name == name);
        let nodes = device.unwrap().container_edits.device_nodes.iter();
        nodes
            .map(|node| node.path.replace("/dev/nvidia-caps/nvidia-", ""))
            .collect()
    };
    // Instance 2 (a 3g at the first slices is 2 on an H100): 3 + 2 × 9; its compute instances follow.
    assert_eq!(nodes("0:0"), ["/dev/nvidia0", "cap21", "cap22"]);
    assert_eq!(nodes("0:1"), ["/dev/nvidia0", "cap21", "cap23"]);
    assert_eq!(nodes("0"), ["/dev/nvidia0", "cap21", "cap22", "cap23"]);
}

#[test]
fn other_roots_show_in_host_paths_alone() {
    let mut rig = Rig::new("a30x4");
    let here = rig.node.root().to_owned();
    rig.roots = Roots {
        node: Root::new(&here, "/"),
        driver: Root::new(&here, "/run/nvidia/driver"),
        devices: Root::new(&here, "/run/nvidia/driver"),
    };
    let made = rig.generate(&Options::default());
    let spec = made.class(classes::GPU).unwrap();
    assert_eq!(
        spec.version(),
        Version::V0_5,
        "host paths of device nodes came with 0.5.0"
    );
    let node = &spec.devices()[1].container_edits.device_nodes[0];
    assert_eq!(node.path, "/dev/nvidia1");
    assert_eq!(
        node.host_path.as_deref(),
        Some("/run/nvidia/driver/dev/nvidia1")
    );
    for mount in &spec.edits().mounts {
        assert!(
            mount.host_path.starts_with("/run/nvidia/driver/"),
            "{mount:?}"
        );
        assert!(
            !mount.container_path.contains("/run/nvidia/driver"),
            "{mount:?}"
        );
    }
}

#[test]
fn links_by_pci_address_come_with_a_hook() {
    let rig = Rig::new("a30x4");
    let address = rig.node.state().unwrap().gpus[0].pci.sysfs();
    rig.write(&format!("sys/bus/pci/devices/{address}/drm/card1/dev"));
    rig.write(&format!("sys/bus/pci/devices/{address}/drm/renderD128/dev"));
    rig.write("dev/dri/card1");
    rig.write("dev/dri/renderD128");
    rig.write("usr/bin/nvidia-cdi-hook");
    let by_path = rig.node.root().join("dev/dri/by-path");
    fs::create_dir(&by_path).unwrap();
    symlink("../card1", by_path.join(format!("pci-{address}-card"))).unwrap();
    let made = |hook_program| {
        let options = Options {
            hook_program,
            ..Options::default()
        };
        rig.generate(&options)
            .class(classes::GPU)
            .unwrap()
            .devices()[0]
            .container_edits
            .clone()
    };
    let plain = made(None);
    let nodes: Vec<&str> = plain
        .device_nodes
        .iter()
        .map(|node| node.path.as_str())
        .collect();
    assert_eq!(
        nodes,
        ["/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128"]
    );
    assert!(plain.hooks.is_empty());
    let hooked = made(Some("/usr/bin/nvidia-cdi-hook".into()));
    assert_eq!(
        hooked.hooks[0].args,
        [
            "nvidia-cdi-hook",
            "create-symlinks",
            "--link",
            &format!("../card1::/dev/dri/by-path/pci-{address}-card"),
        ]
    );
}

#[test]
fn what_is_not_there_has_no_spec() {
    let rig = Rig::new("a30x4");
    let everything = Options {
        imex_channels: vec![0],
        gdrcopy: true,
        gds: true,
        mofed: true,
        ..Options::default()
    };
    // GPUDirect Storage's files alone are nothing without its module.
    rig.write("etc/cufile.json");
    let made = rig.generate(&everything);
    let classes = |made: &Generated| -> Vec<String> {
        let kinds = made.specs.iter().map(|spec| spec.kind().class().to_owned());
        kinds.collect()
    };
    assert_eq!(classes(&made), ["gpu"]);
    assert_eq!(
        made.skipped,
        [Skipped::NoNode {
            of: "IMEX channel 0".into(),
            path: rig
                .node
                .root()
                .join("dev/nvidia-caps-imex-channels/channel0"),
        }]
    );
    for node in [
        "dev/nvidia-caps-imex-channels/channel0",
        "dev/gdrdrv",
        "dev/nvidia-fs0",
        "dev/infiniband/uverbs0",
    ] {
        rig.write(node);
    }
    let made = rig.generate(&everything);
    assert_eq!(made.skipped, []);
    assert_eq!(classes(&made), super::classes::ALL);
    let gds = made.class("gds").unwrap();
    assert_eq!(gds.devices()[0].name, "all");
    assert_eq!(
        gds.devices()[0].container_edits.mounts[0].container_path,
        "/etc/cufile.json"
    );
    assert_eq!(
        made.device("imex-channel", "0").as_deref(),
        Some("k8s.device-plugin.nvidia.com/imex-channel=0")
    );
    assert_eq!(
        classes(&rig.generate(&Options::default())),
        ["gpu"],
        "nobody asked for the others"
    );
}

#[rstest]
#[case(Naming::Uuid, "GPU-", "MIG-")]
#[case(Naming::Index, "3", "3:0")]
fn names_of_devices(#[case] naming: Naming, #[case] whole: &str, #[case] part: &str) {
    let rig = Rig::new("dgx-h100");
    rig.cut(3);
    let made = rig.generate(&Options {
        naming,
        vendor: "k8s.gpu.nvidia.com".into(),
        ..Options::default()
    });
    let spec = made.class(classes::GPU).unwrap();
    assert_eq!(spec.kind().to_string(), "k8s.gpu.nvidia.com/gpu");
    let names: Vec<&str> = spec
        .devices()
        .iter()
        .map(|device| device.name.as_str())
        .collect();
    assert_eq!(names.len(), 11);
    assert!(
        names[3].starts_with(whole) && names[4].starts_with(part),
        "{names:?}"
    );
}

/// One that left the driver's list has the index that another has now.
#[test]
fn of_two_gpus_with_one_index_the_second_is_left_out_alone() {
    let rig = Rig::new("dgx-h100");
    rig.cut(3);
    rig.cut(4);
    let mut gpus = rig.gpus();
    gpus[4].index = 3;
    let options = Options {
        naming: Naming::Index,
        ..Options::default()
    };
    let made = generate(&rig.roots, &rig.version(), &gpus, &options).unwrap();
    let taken = |uuid: &str, name: &str| Skipped::Taken {
        uuid: uuid.to_owned(),
        name: name.to_owned(),
    };
    let [first, second, third] = gpus[4].mig.as_slice() else {
        panic!("{gpus:?}");
    };
    let expected = [
        taken(&gpus[4].uuid, "3"),
        taken(&first.uuid, "3:0"),
        taken(&second.uuid, "3:1"),
        taken(&third.uuid, "3:2"),
    ];
    assert_eq!(made.skipped, expected);
    let devices = made.class(classes::GPU).unwrap().devices();
    assert_eq!(devices.len(), 7 + 3);
    // By UUID there is nothing in the way.
    let made = generate(&rig.roots, &rig.version(), &gpus, &Options::default()).unwrap();
    assert_eq!(made.skipped, []);
}

#[test]
fn control_nodes_that_all_need_are_missed() {
    let rig = Rig::new("a30x4");
    for name in ["nvidia-uvm", "nvidia-uvm-tools"] {
        fs::remove_file(rig.node.root().join("dev").join(name)).unwrap();
    }
    let made = rig.generate(&Options::default());
    assert_eq!(
        made.skipped,
        [Skipped::NoNode {
            of: "every GPU".into(),
            path: rig.node.root().join("dev/nvidia-uvm"),
        }]
    );
    let nodes = &made.class(classes::GPU).unwrap().edits().device_nodes;
    let nodes: Vec<&str> = nodes.iter().map(|node| node.path.as_str()).collect();
    assert_eq!(nodes, ["/dev/nvidiactl", "/dev/nvidia-modeset"]);
}

#[test]
fn a_vendor_that_is_none() {
    let rig = Rig::new("a30x4");
    let options = Options {
        vendor: "nvidia com".into(),
        ..Options::default()
    };
    let error = generate(&rig.roots, &rig.version(), &rig.gpus(), &options).unwrap_err();
    assert!(matches!(error, Error::Name(_)), "{error}");
}

#[test]
fn a_node_without_gpus_needs_no_driver() {
    let rig = Rig::new("a30x4");
    let made = generate(&rig.roots, "0.0", &[], &Options::default()).unwrap();
    assert_eq!(made, Generated::default());
    let error = generate(&rig.roots, "0.0", &rig.gpus(), &Options::default()).unwrap_err();
    assert!(matches!(error, Error::NoDriver { .. }), "{error}");
}
