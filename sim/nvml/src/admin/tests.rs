//! Nodes on disk, as people and other processes meet them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::model::{fabric::FabricState, health::EccError};

/// A node whose library is an empty file: nothing here loads it.
pub(crate) fn node(spec: &NodeSpec) -> (tempfile::TempDir, SimulatedNode) {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("stand-in.so");
    fs::write(&library, "").unwrap();
    let node = SimulatedNode::create_with(&folder.path().join("root"), spec, &library).unwrap();
    (folder, node)
}

#[test]
fn every_preset_makes_a_node() {
    let expected = [
        ("dgx-a100", 8, "NVIDIA A100-SXM4-40GB"),
        ("dgx-h100", 8, "NVIDIA H100 80GB HBM3"),
        ("hgx-h200", 8, "NVIDIA H200"),
        ("dgx-b200", 8, "NVIDIA B200"),
        ("gb200-tray", 4, "NVIDIA GB200"),
        ("a30x4", 4, "NVIDIA A30"),
        ("mixed", 2, "NVIDIA A100-PCIE-40GB"),
        ("dgx-station-a100", 5, "NVIDIA A100-SXM4-40GB"),
    ];
    assert_eq!(
        presets::names().collect::<Vec<_>>(),
        expected.map(|(name, _, _)| name)
    );
    for (name, count, product) in expected {
        let (_folder, node) = node(&NodeSpec::preset(name).unwrap());
        let state = node.state().unwrap();
        assert_eq!((state.name.as_str(), state.gpus.len()), (name, count));
        assert_eq!(state.gpus[0].board.product, product);
        assert!(
            node.root()
                .join("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
                .is_file()
        );
    }
}

#[test]
fn a_whole_system_is_never_made_a_node() {
    assert!(is_system(Path::new("/")));
    for release in ["etc/os-release", "usr/lib/os-release"] {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("stand-in.so");
        fs::write(&library, "").unwrap();
        let root = folder.path().join("host");
        fs::create_dir_all(root.join(release).parent().unwrap()).unwrap();
        // A link that leads nowhere is how it looks without the rest of the system.
        symlink("nowhere", root.join(release)).unwrap();
        let spec = NodeSpec::preset("mixed").unwrap();
        let refused = SimulatedNode::create_with(&root, &spec, &library);
        assert!(matches!(refused, Err(Error::System(_))), "{refused:?}");
        assert!(!root.join(LIBRARY_FOLDER).exists());
    }
}

#[test]
fn what_does_not_answer_takes_no_workload() {
    let (_folder, node) = dgx_h100();
    let refused = |gpu| {
        let spec = WorkloadSpec {
            gpu,
            ..WorkloadSpec::default()
        };
        node.run_workload(spec).unwrap_err().to_string()
    };
    node.lose(0).unwrap();
    node.fall_off(1).unwrap();
    node.store()
        .update(|state| {
            state.gpus[2].removed = true;
            state.gpus[3].modes.drain = true;
        })
        .unwrap();
    for (gpu, reason) in [(0, "lost"), (1, "lost"), (2, "removed"), (3, "drained")] {
        let said = refused(gpu);
        assert!(said.contains(reason), "{said}");
    }
    node.mismatch_driver().unwrap();
    assert!(refused(4).contains("driver"));
    node.load_driver().unwrap();
    node.unload_driver().unwrap();
    assert!(refused(4).contains("driver"));
    assert!(node.state().unwrap().workloads.is_empty());
}

#[test]
fn clearing_and_rebooting_bring_back_the_fabric_as_it_was_made() {
    let (_folder, node) = node(&NodeSpec::preset("gb200-tray").unwrap());
    let made = node.state().unwrap().gpus[1].fabric.clone();
    let fabric = || node.state().unwrap().gpus[1].fabric.clone();
    for mend in [SimulatedNode::clear_all, SimulatedNode::reboot] {
        node.fabric(1, FabricState::InProgress, Some(1)).unwrap();
        node.fabric(1, FabricState::NotStarted, None).unwrap();
        assert_eq!(
            (fabric().state, fabric().health),
            (FabricState::NotStarted, 1)
        );
        node.nvlink(1, 0, false, 0).unwrap();
        mend(&node).unwrap();
        assert_eq!(fabric(), made);
        assert!(node.state().unwrap().gpus[1].links[0].up);
    }
}

#[test]
fn absurd_numbers_overflow_nothing() {
    let (_folder, node) = dgx_h100();
    for _ in 0..2 {
        node.ecc(0, EccError::Dbe, u64::MAX).unwrap();
        node.ecc(0, EccError::SramParity, u64::MAX).unwrap();
        node.ecc(0, EccError::SramSecded, u64::MAX).unwrap();
        node.nvlink(0, 0, true, u64::MAX).unwrap();
        node.row_remap(0, u32::MAX).unwrap();
        node.reset(0).unwrap();
    }
    let state = node.state().unwrap();
    assert_eq!(state.gpus[0].ecc.aggregate.uncorrected(), u64::MAX);
    assert_eq!(state.gpus[0].histogram().map(|rows| rows.max), Some(0));
    // A hundred years in all, however they are stepped.
    let year = Duration::from_secs(365 * 86_400);
    assert!(node.step(Duration::MAX).is_err());
    node.step(year * 60).unwrap();
    assert!(node.step(year * 60).is_err());
    let state = node.state().unwrap();
    let meters = state.meters_at(0, now_us(&state));
    // 70 W for 60 years.
    let kilojoules = meters.energy_uj / 1_000_000_000;
    assert!(
        (132_000_000..134_000_000).contains(&kilojoules),
        "{kilojoules}"
    );
}

fn dgx_h100() -> (tempfile::TempDir, SimulatedNode) {
    node(&NodeSpec::preset("dgx-h100").unwrap())
}

#[test]
fn identities_depend_on_the_name_alone() {
    let uuids = |name: &str| {
        let spec = NodeSpec {
            name: name.to_owned(),
            ..NodeSpec::preset("a30x4").unwrap()
        };
        let (_folder, node) = node(&spec);
        node.state()
            .unwrap()
            .gpus
            .iter()
            .map(|gpu| (gpu.uuid.clone(), gpu.serial.clone()))
            .collect::<Vec<_>>()
    };
    let (one, again, other) = (uuids("one"), uuids("one"), uuids("other"));
    assert_eq!(one, again);
    assert!(one.iter().all(|identity| !other.contains(identity)));
    assert!(
        one.iter().all(|(uuid, serial)| uuid.starts_with("GPU-")
            && uuid.len() == 40
            && serial.len() == 13)
    );
}

#[test]
fn a_second_node_in_the_same_folder_is_refused() {
    let (folder, node) = dgx_h100();
    let library = folder.path().join("stand-in.so");
    let again =
        SimulatedNode::create_with(node.root(), &NodeSpec::preset("mixed").unwrap(), &library);
    assert!(matches!(again, Err(Error::Exists(_))));
    assert_eq!(node.state().unwrap().name, "dgx-h100");
    let missing = SimulatedNode::open(&folder.path().join("nothing"))
        .unwrap_err()
        .to_string();
    assert!(missing.contains("lathe sim create --root"), "{missing}");
}

#[test]
fn gpus_are_found_by_position_uuid_and_address() {
    let (_folder, node) = dgx_h100();
    let uuid = node.state().unwrap().gpus[3].uuid.clone();
    for text in ["3", uuid.as_str(), "0000:86:00.0", "00000000:86:00.0"] {
        assert_eq!(node.find_gpu(text).unwrap(), 3, "{text}");
    }
    let error = node.find_gpu("8").unwrap_err().to_string();
    assert_eq!(
        error,
        "no GPU `8`: give a position from 0 to 7, a UUID or a PCI address"
    );
}

#[test]
fn a_lost_gpu_comes_back_with_a_reset_and_a_fallen_one_only_with_a_reboot() {
    let (_folder, node) = dgx_h100();
    let early = node.state().unwrap().sequence;
    node.lose(2).unwrap();
    assert!(node.state().unwrap().gpus[2].is_lost());
    node.reset(2).unwrap();
    assert!(!node.state().unwrap().gpus[2].is_lost());

    node.fall_off(5).unwrap();
    let state = node.state().unwrap();
    // Who was there before still sees it, as lost; who comes after does not.
    assert!(state.gpus[5].is_lost() && state.visible(early).any(|gpu| gpu == 5));
    assert_eq!(
        state.visible(state.sequence).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 6, 7]
    );
    assert_eq!(
        state
            .events
            .after(0)
            .map(|event| (event.gpu, event.data))
            .collect::<Vec<_>>(),
        [(5, 79)]
    );
    assert_eq!(state.gpus[5].recovery().number(), 2);
    let refused = node.reset(5).unwrap_err().to_string();
    assert!(
        refused.contains("GPU_IS_LOST") && refused.contains("reboot"),
        "{refused}"
    );
    node.reboot().unwrap();
    let state = node.state().unwrap();
    assert_eq!(state.visible(state.sequence).count(), 8);
}

#[test]
fn resets_can_be_refused_and_need_an_idle_gpu() {
    let (_folder, node) = dgx_h100();
    let pid = node
        .run_workload(WorkloadSpec {
            gpu: 1,
            ..WorkloadSpec::default()
        })
        .unwrap();
    assert!(matches!(
        node.reset(1),
        Err(Error::Refused {
            code: Code::IN_USE,
            ..
        })
    ));
    node.reset(0).unwrap();
    node.stop_workload(pid).unwrap();
    node.refuse_reset(1, true).unwrap();
    assert!(matches!(
        node.reset(1),
        Err(Error::Refused {
            code: Code::NOT_SUPPORTED,
            ..
        })
    ));
    node.clear_all().unwrap();
    node.reset(1).unwrap();
}

#[test]
fn a_one_in_the_reset_file_resets_at_the_next_look() {
    let (_folder, node) = dgx_h100();
    node.lose(4).unwrap();
    // Another process's store, which has already looked.
    let other = SimulatedNode::open(node.root()).unwrap();
    let lost = |node: &SimulatedNode| node.store().load_after_resets().unwrap().gpus[4].is_lost();
    assert!(lost(&other));
    let file = node.root().join("sys/bus/pci/devices/0000:97:00.0/reset");
    fs::write(&file, "0").unwrap();
    assert!(lost(&other), "only a 1 asks for a reset");
    fs::write(&file, "1\n").unwrap();
    assert!(!lost(&other) && !lost(&node));
    assert_eq!(fs::read(&file).unwrap(), b"", "the request is served once");
    let generation = node.state().unwrap().gpus[4].generation;
    other.store().load_after_resets().unwrap();
    assert_eq!(node.state().unwrap().gpus[4].generation, generation);
    fs::write(&file, "1").unwrap();
    node.store().update(|_| ()).unwrap();
    assert_eq!(
        node.state().unwrap().gpus[4].generation,
        generation + 1,
        "a change looks as well"
    );
}

#[test]
fn a_row_remapping_waits_for_a_reset() {
    let (_folder, node) = dgx_h100();
    node.row_remap(0, 2).unwrap();
    let state = node.state().unwrap();
    assert_eq!(
        (
            state.gpus[0].remap.pending,
            state.gpus[0].remap.uncorrectable
        ),
        (2, 0)
    );
    assert_eq!(state.gpus[0].recovery().number(), 4);
    node.reset(0).unwrap();
    let state = node.state().unwrap();
    assert_eq!(
        (
            state.gpus[0].remap.pending,
            state.gpus[0].remap.uncorrectable
        ),
        (0, 2)
    );
    let histogram = state.gpus[0].histogram().unwrap();
    assert_eq!((histogram.max, histogram.high), (2558, 2));
}

#[test]
fn volatile_ecc_counters_go_with_a_reset_and_aggregate_ones_stay() {
    let (_folder, node) = dgx_h100();
    node.ecc(0, EccError::Dbe, 3).unwrap();
    node.ecc(0, EccError::SramCorrected, 1).unwrap();
    let ecc = node.state().unwrap().gpus[0].ecc.clone();
    assert_eq!(
        (ecc.volatile.uncorrected(), ecc.volatile.corrected()),
        (3, 1)
    );
    node.reset(0).unwrap();
    let ecc = node.state().unwrap().gpus[0].ecc.clone();
    assert_eq!(
        (
            ecc.volatile.uncorrected(),
            ecc.aggregate.uncorrected(),
            ecc.aggregate.corrected()
        ),
        (0, 3, 1)
    );
}

#[test]
fn workloads_on_a_partitioned_gpu_need_an_instance() {
    let (_folder, node) = dgx_h100();
    node.store()
        .update(|node| node.set_mig_mode(0, true, 0, 0))
        .unwrap()
        .unwrap();
    assert!(matches!(
        node.run_workload(WorkloadSpec::default()),
        Err(Error::Partitioned(0))
    ));
    let inside = WorkloadSpec {
        instance: Some((2, 0)),
        ..WorkloadSpec::default()
    };
    assert!(matches!(
        node.run_workload(inside.clone()),
        Err(Error::NoInstance { .. })
    ));
    node.store()
        .update(|node| {
            node.create_gpu_instance(0, 9, None, 0, 0).unwrap();
            node.create_compute_instance(0, 2, 2, None, 0).unwrap();
        })
        .unwrap();
    node.run_workload(inside).unwrap();
    assert!(matches!(
        node.unload_driver(),
        Err(Error::Refused {
            code: Code::IN_USE,
            ..
        })
    ));
}

#[test]
fn the_clock_steps_forward() {
    let (_folder, node) = dgx_h100();
    let before = now_us(&node.state().unwrap());
    node.step(Duration::from_secs(3600)).unwrap();
    let after = now_us(&node.state().unwrap());
    assert!(after >= before + 3_600_000_000);
}

#[test]
fn processes_that_do_not_run_are_named() {
    let (_folder, node) = dgx_h100();
    let nobody = u32::MAX;
    assert!(matches!(node.hold(nobody), Err(Error::NoProcess(_))));
    assert!(matches!(
        node.stop_workload(nobody),
        Err(Error::NoProcess(_))
    ));
    let spec = WorkloadSpec {
        pid: Some(nobody),
        ..WorkloadSpec::default()
    };
    assert!(matches!(node.run_workload(spec), Err(Error::NoProcess(_))));
    assert!(matches!(node.clear(9), Err(Error::NoFault(9))));
}

#[test]
fn a_description_that_makes_no_node_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let good = NodeSpec::preset("mixed").unwrap();
    let missing = SimulatedNode::create_with(&root, &good, Path::new("/nonexistent.so"))
        .unwrap_err()
        .to_string();
    assert!(missing.contains("/nonexistent.so"), "{missing}");
    let library = folder.path().join("stand-in.so");
    fs::write(&library, "").unwrap();
    let bad = NodeSpec {
        gpus: Vec::new(),
        ..good
    };
    assert!(matches!(
        SimulatedNode::create_with(&root, &bad, &library),
        Err(Error::Spec(_))
    ));
    assert!(!root.exists());
}

#[test]
fn a_broken_off_creation_can_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("stand-in.so");
    fs::write(&library, "").unwrap();
    let left = folder.path().join("root").join(LIBRARY_FOLDER);
    fs::create_dir_all(&left).unwrap();
    symlink("libnvidia-ml.so.0", left.join("libnvidia-ml.so.1")).unwrap();
    let spec = NodeSpec::preset("mixed").unwrap();
    let node = SimulatedNode::create_with(&folder.path().join("root"), &spec, &library).unwrap();
    assert!(node.library_folder().join("libnvidia-ml.so.1").is_file());
}

#[test]
fn workloads_need_free_memory_and_a_compute_mode_that_lets_them_in() {
    let (_folder, node) = dgx_h100();
    let wanting = |memory_mib| WorkloadSpec {
        memory_mib,
        ..WorkloadSpec::default()
    };
    // 81559 MiB less the 480 that the driver keeps.
    assert!(matches!(
        node.run_workload(wanting(81_080)),
        Err(Error::Memory {
            free_mib: 81_079,
            ..
        })
    ));
    node.run_workload(wanting(81_000)).unwrap();
    assert!(matches!(
        node.run_workload(wanting(80)),
        Err(Error::Memory { free_mib: 79, .. })
    ));
    node.run_workload(wanting(79)).unwrap();
    node.store()
        .update(|node| node.gpus[0].modes.compute = ComputeMode::ExclusiveProcess)
        .unwrap();
    assert!(matches!(
        node.run_workload(wanting(0)),
        Err(Error::ComputeMode { .. })
    ));
    node.store()
        .update(|node| node.gpus[1].modes.compute = ComputeMode::Prohibited)
        .unwrap();
    let other = WorkloadSpec {
        gpu: 1,
        ..WorkloadSpec::default()
    };
    assert!(matches!(
        node.run_workload(other),
        Err(Error::ComputeMode { .. })
    ));
}

#[test]
fn links_come_back_when_faults_are_cleared() {
    let (_folder, node) = dgx_h100();
    node.nvlink(0, 3, false, 5).unwrap();
    let link = node.state().unwrap().gpus[0].links[3].clone();
    assert_eq!((link.up, link.errors.crc_flit), (false, 5));
    assert!(matches!(
        node.nvlink(0, 18, false, 0),
        Err(Error::NoLink { .. })
    ));
    node.clear_all().unwrap();
    assert!(node.state().unwrap().gpus[0].links[3].up);
}
