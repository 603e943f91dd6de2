//! What a node is told to have.

use nvml::{AddressingMode, Architecture, Code, FabricState};
use rstest::rstest;
use sim_nvml::model::{Effect, Fault};

use crate::Node;

const MIB: u64 = 1 << 20;

/// Profile ids in the order of the enumeration: `19` is 1g, `14` 2g, `9` 3g, `5` 4g, `0` 7g, `20` 1g+me, `15` 1g with
/// double memory.
const EIGHT_SLICES: &[u32] = &[19, 14, 9, 5, 0, 20, 15];
const A30: &[u32] = &[14, 5, 0, 21, 6];
const RTX_PRO: &[u32] = &[14, 5, 0, 21, 47, 35, 32, 67, 66, 65, 64];

#[rstest]
#[case::a30("a30-24gb", "NVIDIA A30", (8, 0), Some(24576), 0x20B7, Some(A30), false)]
#[case::a100("a100-sxm4-40gb", "NVIDIA A100-SXM4-40GB", (8, 0), Some(40960), 0x20B0, Some(EIGHT_SLICES), false)]
#[case::a100_pcie("a100-pcie-40gb", "NVIDIA A100-PCIE-40GB", (8, 0), Some(40960), 0x20F1, Some(EIGHT_SLICES), false)]
#[case::a100_80("a100-sxm4-80gb", "NVIDIA A100-SXM4-80GB", (8, 0), Some(81920), 0x20B2, Some(EIGHT_SLICES), false)]
#[case::a100_pcie_80("a100-pcie-80gb", "NVIDIA A100 80GB PCIe", (8, 0), Some(81920), 0x20B5, Some(EIGHT_SLICES), false)]
#[case::h100("h100-sxm5-80gb", "NVIDIA H100 80GB HBM3", (9, 0), Some(81559), 0x2330, Some(EIGHT_SLICES), true)]
#[case::h100_pcie("h100-pcie-80gb", "NVIDIA H100 PCIe", (9, 0), Some(81559), 0x2331, Some(EIGHT_SLICES), true)]
#[case::h100_nvl("h100-nvl-94gb", "NVIDIA H100 NVL", (9, 0), Some(95830), 0x2321, Some(EIGHT_SLICES), true)]
#[case::gh200_96("gh200-96gb", "NVIDIA GH200 480GB", (9, 0), None, 0x2342, Some(EIGHT_SLICES), true)]
#[case::gh200_144("gh200-144gb", "NVIDIA GH200 144G HBM3e", (9, 0), None, 0x2348, Some(EIGHT_SLICES), true)]
#[case::h200("h200-sxm-141gb", "NVIDIA H200", (9, 0), Some(143_771), 0x2335, Some(EIGHT_SLICES), true)]
#[case::h200_nvl("h200-nvl-141gb", "NVIDIA H200 NVL", (9, 0), Some(143_771), 0x233B, Some(EIGHT_SLICES), true)]
#[case::b200("b200-180gb", "NVIDIA B200", (10, 0), Some(183_359), 0x2901, Some(EIGHT_SLICES), true)]
#[case::gb200("gb200-186gb", "NVIDIA GB200", (10, 0), Some(189_471), 0x2941, Some(EIGHT_SLICES), true)]
#[case::b300("b300-269gb", "NVIDIA B300 SXM6 AC", (10, 3), None, 0x3182, Some(EIGHT_SLICES), true)]
#[case::gb300("gb300-278gb", "NVIDIA GB300", (10, 3), Some(284_208), 0x31C2, Some(EIGHT_SLICES), true)]
#[case::rtx("rtx-pro-6000-96gb", "NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), Some(97_887), 0x2BB5, Some(RTX_PRO), true)]
#[case::l40s("l40s-48gb", "NVIDIA L40S", (8, 9), Some(46068), 0x26B9, None, false)]
#[case::t4("t4-16gb", "Tesla T4", (7, 5), Some(15360), 0x1EB8, None, false)]
fn a_board_is_described_as_its_driver_describes_it(
    #[case] board: &str,
    #[case] name: &str,
    #[case] capability: (u32, u32),
    #[case] memory_mib: Option<u64>,
    #[case] device: u32,
    #[case] profiles: Option<&[u32]>,
    #[case] resetless: bool,
) {
    let node = Node::of(board, 2);
    let snapshot = node.open().snapshot().unwrap();
    assert_eq!(snapshot.gpus.len(), 2);
    assert_eq!(snapshot.failed().count(), 0);
    for (index, info) in (0..).zip(snapshot.present()) {
        assert_eq!(info.index, index);
        assert_eq!(info.name, name);
        assert_eq!(info.compute_capability, Some(capability));
        if let Some(mib) = memory_mib {
            assert_eq!(info.memory.unwrap().total, mib * MIB);
        }
        assert_eq!(info.pci.id.device, device << 16 | 0x10DE);
        assert!(
            info.uuid.starts_with("GPU-") && info.uuid.len() == 40,
            "{}",
            info.uuid
        );
        assert_eq!(info.resetless_mig, resetless);
        assert_eq!(info.mig.is_some(), profiles.is_some());
        let ids = info
            .board
            .as_ref()
            .map(|board| board.profiles.iter().map(|p| p.id).collect::<Vec<_>>());
        assert_eq!(ids.as_deref(), profiles);
        assert_eq!(info.layout, Some(gpu::Layout::default()));
        assert_eq!(info.mig_devices, []);
        assert_eq!(info.processes.as_deref(), Some(&[][..]));
    }
}

#[test]
fn an_h100_profile_has_the_vendors_numbers() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let info = node.open().gpu(0).info().unwrap();
    assert_eq!(info.architecture, Some(Architecture::HOPPER));
    let board = info.board.unwrap();
    let profile = |id| board.profiles.iter().find(|p| p.id == id).unwrap();
    let three = profile(9);
    assert_eq!((three.index, three.slices, three.max_instances), (2, 3, 2));
    assert_eq!((three.multiprocessors, three.memory_mib), (60, 40448));
    // Placements count memory slices: 3g takes half of the eight, 7g all of them.
    let half = |start| gpu::Placement { start, size: 4 };
    assert_eq!(three.placements, [half(0), half(4)]);
    assert_eq!(
        profile(0).placements,
        [gpu::Placement { start: 0, size: 8 }]
    );
    let ones: Vec<u32> = profile(19).placements.iter().map(|p| p.start).collect();
    assert_eq!(ones, [0, 1, 2, 3, 4, 5, 6]);
    // Without an instance the driver tells nothing of the compute instances inside.
    assert!(board.profiles.iter().all(|p| p.compute.is_empty()));
}

#[test]
fn a_node_tells_its_versions_and_places() {
    let node = Node::preset("dgx-h100");
    let snapshot = node.open().snapshot().unwrap();
    assert_eq!(snapshot.versions.driver, "580.105.08");
    assert_eq!(snapshot.versions.cuda.unwrap().to_string(), "13.0");
    let buses: Vec<&str> = snapshot.present().map(|g| g.pci.bus_id.as_str()).collect();
    assert_eq!(
        buses,
        [
            "00000000:53:00.0",
            "00000000:64:00.0",
            "00000000:75:00.0",
            "00000000:86:00.0",
            "00000000:97:00.0",
            "00000000:A8:00.0",
            "00000000:B9:00.0",
            "00000000:CA:00.0"
        ]
    );
    let numa: Vec<_> = snapshot.present().map(|g| g.pci.numa_node).collect();
    assert_eq!(numa, [0, 0, 0, 0, 1, 1, 1, 1].map(Some));
}

#[test]
fn a_lost_gpu_hides_no_other() {
    let node = Node::of("h100-sxm5-80gb", 4);
    node.sim.lose(2).unwrap();
    let snapshot = node.open().snapshot().unwrap();
    let failed: Vec<_> = snapshot.failed().collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].0, 2);
    assert!(failed[0].1.is_gpu_lost());
    assert_eq!(failed[0].1.code(), Some(Code::GPU_IS_LOST));
    assert_eq!(failed[0].1.gpu().unwrap().index, 2);
    let present: Vec<u32> = snapshot.present().map(|g| g.index).collect();
    assert_eq!(present, [0, 1, 3]);
}

#[test]
fn a_gpu_lost_later_is_named_by_its_uuid() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let gpu = node.open().gpu(0);
    let uuid = gpu.info().unwrap().uuid;
    node.sim.lose(0).unwrap();
    let error = gpu.info().unwrap_err();
    assert!(error.is_gpu_lost());
    assert_eq!(error.gpu().unwrap().uuid.as_deref(), Some(uuid.as_str()));
}

#[test]
fn a_gpu_that_changes_while_it_is_read_is_read_again() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let gpu = node.open().gpu(0);
    gpu.run(|d| {
        d.set_mig_mode(true)?;
        d.create_gpu_instance(9, None)
    })
    .unwrap();
    // As if another process had destroyed an instance between its listing and the question what it is.
    let fault = Fault::new("nvmlGpuInstanceGetInfo", Effect::Fail(sim_nvml::Code(6)));
    let once = Fault {
        times: Some(1),
        ..fault.clone()
    };
    node.sim.inject(once).unwrap();
    assert_eq!(gpu.info().unwrap().layout.unwrap().instances.len(), 1);
    // What never settles is an error, not an empty GPU.
    node.sim.inject(fault).unwrap();
    assert_eq!(gpu.info().unwrap_err().code(), Some(Code::NOT_FOUND));
    assert_eq!(
        gpu.run(|d| d.layout()).unwrap_err().code(),
        Some(Code::NOT_FOUND)
    );
}

#[test]
fn what_only_root_may_see_is_absent_for_others() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let gpu = node.open().gpu(0);
    gpu.run(|d| d.set_mig_mode(true)).unwrap();
    for symbol in [
        "nvmlDeviceGetGpuInstances",
        "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
        "nvmlDeviceGetMemoryInfo*",
        "nvmlDeviceGetComputeRunningProcesses_v3",
    ] {
        let denied = Fault::new(symbol, Effect::Fail(sim_nvml::Code(4)));
        node.sim.inject(denied).unwrap();
    }
    let info = gpu.info().unwrap();
    assert_eq!((info.layout, info.memory), (None, None));
    let board = info.board.unwrap();
    assert_eq!(board.profiles.len(), EIGHT_SLICES.len());
    assert!(board.profiles.iter().all(|p| p.placements.is_empty()));
    // No MIG device, so nothing to ask instead: nobody is known to use the GPU, and that is known to be so.
    assert_eq!(info.processes.as_deref(), Some(&[][..]));
    assert!(info.mig.unwrap().current);
}

#[test]
fn the_fabric_and_the_way_to_memory_are_those_of_the_machine() {
    let look = |node: &Node| {
        let info = node.open().gpu(0).info().unwrap();
        let fabric = info
            .fabric
            .map(|f| (f.state, f.status, f.clique, f.cluster_uuid != [0; 16]));
        (fabric, info.addressing_mode)
    };
    let done = FabricState::Completed;
    let single = look(&Node::preset("dgx-h100"));
    assert_eq!(single.0, Some((done, Code::SUCCESS, 0, false)));
    assert_eq!(single.1, Some(AddressingMode::Hmm));
    let rack = look(&Node::preset("gb200-tray"));
    assert_eq!(rack.0, Some((done, Code::SUCCESS, 2, true)));
    assert_eq!(rack.1, Some(AddressingMode::Ats));
    assert_eq!(look(&Node::of("t4-16gb", 1)).0, None);
}

#[test]
fn a_mixed_node_is_told_gpu_by_gpu() {
    let node = Node::preset("mixed");
    let snapshot = node.open().snapshot().unwrap();
    let with_mig: Vec<_> = snapshot
        .present()
        .map(|g| (g.name.contains("A100"), g.mig.is_some()))
        .collect();
    assert!(with_mig.contains(&(true, true)) && with_mig.contains(&(false, false)));
    assert!(with_mig.iter().all(|(a100, mig)| a100 == mig));
}

#[test]
fn a_gpu_is_found_by_its_uuid() {
    let node = Node::of("t4-16gb", 3);
    let driver = node.open();
    let uuid = driver.gpu(2).info().unwrap().uuid;
    assert_eq!(driver.find(&uuid).unwrap().index(), 2);
    let error = driver.find("GPU-none").unwrap_err();
    assert_eq!(error.to_string(), "no GPU GPU-none on this node");
    let error = driver.gpu(3).info().unwrap_err();
    assert_eq!(error.to_string(), "no GPU 3 on this node");
}

/// A call that only describes the GPU costs its own value; whoever wants to use the GPU does not need it.
#[rstest]
fn a_value_that_only_describes_a_gpu_costs_no_gpu(
    #[values(
        "nvmlDeviceGetSerial",
        "nvmlDeviceGetBrand",
        "nvmlDeviceGetArchitecture",
        "nvmlDeviceGetAddressingMode",
        "nvmlDeviceGetGpuFabricInfoV"
    )]
    call: &str,
    #[values(
        Code::UNKNOWN,
        Code::CORRUPTED_INFOROM,
        Code::GPU_IS_LOST,
        Code::TIMEOUT
    )]
    code: Code,
) {
    // A machine with an NVLink switch, that there is a fabric.
    let node = match call {
        "nvmlDeviceGetGpuFabricInfoV" => Node::preset("dgx-h100"),
        _ => Node::of("h100-sxm5-80gb", 1),
    };
    let driver = node.open();
    let whole = driver.gpu(0).info().unwrap();
    node.sim
        .inject(Fault::new(call, Effect::Fail(sim_nvml::Code(code.0))))
        .unwrap();
    let told = driver.gpu(0).info();
    if matches!(code, Code::GPU_IS_LOST | Code::TIMEOUT) {
        assert_eq!(told.unwrap_err().code(), Some(code));
        return;
    }
    let told = told.unwrap();
    let missing = [
        whole.serial.is_some() && told.serial.is_none(),
        whole.brand.is_some() && told.brand.is_none(),
        whole.architecture.is_some() && told.architecture.is_none(),
        whole.addressing_mode.is_some() && told.addressing_mode.is_none(),
        whole.fabric.is_some() && told.fabric.is_none(),
    ];
    assert_eq!(missing.iter().filter(|missing| **missing).count(), 1);
    assert_eq!((told.layout, told.board), (whole.layout, whole.board));
}
