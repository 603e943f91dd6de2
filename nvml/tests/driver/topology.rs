//! How near GPUs are to each other, and what is left of that when questions fail.

use std::time::Duration;

use gpu::{PcieRelation, Topology};
use nvml::{Code, Driver, NvLinkEnd, Options};
use rstest::rstest;
use sim_nvml::model::{Effect, Fault};

use crate::Node;

fn score(node: &Node, topology: &Topology, a: usize, b: usize) -> u32 {
    let state = node.sim.state().unwrap();
    topology.score(&state.gpus[a].uuid, &state.gpus[b].uuid)
}

fn fault(symbol: &str, gpu: Option<usize>, effect: Effect) -> Fault {
    Fault {
        gpu,
        ..Fault::new(symbol, effect)
    }
}

// A PCIe relation counts 10 to 60, each NVLink 100 (go-gpuallocator); which systems have which links: `nvidia-smi topo -m`.
#[rstest]
// 18 links to switches, one socket or two.
#[case("dgx-h100", 0, 1, 1820)]
#[case("dgx-h100", 3, 4, 1810)]
// 12 links to switches; two GPUs on one PCIe switch, the others across sockets.
#[case("dgx-a100", 0, 1, 1250)]
#[case("dgx-a100", 0, 2, 1210)]
// 12 links to three others, and a display GPU (3) without.
#[case("dgx-station-a100", 0, 4, 420)]
#[case("dgx-station-a100", 0, 3, 20)]
// PCIe alone.
#[case("a30x4", 0, 1, 20)]
#[case("a30x4", 1, 2, 10)]
// The rack's switches are no devices of this machine.
#[case("gb200-tray", 0, 3, 1810)]
fn systems(#[case] preset: &str, #[case] a: usize, #[case] b: usize, #[case] wanted: u32) {
    let node = Node::preset(preset);
    let report = node.open().topology().unwrap();
    assert!(report.failed.is_empty(), "{:?}", report.failed);
    assert_eq!(score(&node, &report.topology, a, b), wanted);
    assert_eq!(score(&node, &report.topology, b, a), wanted);
}

#[test]
fn a_lost_gpu_costs_its_own_pairs() {
    let node = Node::preset("dgx-h100");
    let driver = node.open();
    node.sim.lose(3).unwrap();
    let report = driver.topology().unwrap();
    assert_eq!(report.failed.keys().collect::<Vec<_>>(), [&3]);
    assert_eq!(score(&node, &report.topology, 2, 3), 0);
    assert_eq!(score(&node, &report.topology, 0, 7), 1810);
}

#[test]
fn a_gpu_that_hangs_costs_its_own_pairs() {
    let node = Node::preset("dgx-h100");
    let driver = Driver::open(&Options {
        call_timeout: Duration::from_secs(10),
        ..node.options()
    })
    .unwrap();
    let hang = fault("nvmlDeviceGetNvLinkState", Some(3), Effect::Hang);
    let hang = node.sim.inject(hang).unwrap();
    let report = driver.topology().unwrap();
    let uuid = driver.gpu(3).run(|device| Ok(device.uuid().to_owned()));
    assert_eq!(
        uuid,
        Ok(node.sim.state().unwrap().gpus[3].uuid.clone()),
        "a link that hangs holds up no other use of its GPU"
    );
    node.sim.clear(hang).unwrap();
    assert!(report.failed.get(&3).is_some_and(nvml::Error::is_hung));
    assert_eq!(
        score(&node, &report.topology, 2, 3),
        20,
        "PCIe was asked before"
    );
    assert_eq!(score(&node, &report.topology, 0, 7), 1810);
}

#[test]
fn a_link_that_is_down_does_not_count() {
    let node = Node::preset("dgx-station-a100");
    // Link 0 of GPU 0 leads to GPU 1, which still has it up: the lesser counts.
    node.sim.nvlink(0, 0, false, 0).unwrap();
    let report = node.open().topology().unwrap();
    assert_eq!(score(&node, &report.topology, 0, 1), 320);
    assert_eq!(score(&node, &report.topology, 0, 2), 420);
}

#[test]
fn a_partitioned_gpu_has_no_links() {
    let node = Node::preset("dgx-h100");
    let driver = node.open();
    driver.gpu(0).run(|d| d.set_mig_mode(true)).unwrap();
    let report = driver.topology().unwrap();
    assert!(report.failed.is_empty(), "{:?}", report.failed);
    assert_eq!(score(&node, &report.topology, 0, 1), 20);
    assert_eq!(score(&node, &report.topology, 1, 2), 1820);
}

#[rstest]
// Links without a question about their other end: the address tells, but of a GPU only.
#[case(
    "dgx-station-a100",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    Code::FUNCTION_NOT_FOUND,
    420
)]
#[case(
    "dgx-h100",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    Code::FUNCTION_NOT_FOUND,
    20
)]
#[case("dgx-h100", "nvmlDeviceGetNvLinkState", Code::NOT_SUPPORTED, 20)]
#[case(
    "dgx-h100",
    "nvmlDeviceGetTopologyCommonAncestor",
    Code::NOT_SUPPORTED,
    1800
)]
fn what_is_not_supported_is_left_out(
    #[case] preset: &str,
    #[case] symbol: &str,
    #[case] code: Code,
    #[case] wanted: u32,
) {
    let node = Node::preset(preset);
    let effect = Effect::Fail(sim_nvml::Code(code.0));
    node.sim.inject(fault(symbol, None, effect)).unwrap();
    let report = node.open().topology().unwrap();
    assert!(report.failed.is_empty(), "{:?}", report.failed);
    assert_eq!(score(&node, &report.topology, 0, 1), wanted);
}

#[test]
fn links_and_relations_one_by_one() {
    let node = Node::preset("dgx-station-a100");
    let driver = node.open();
    let second = driver.gpu(1).info().unwrap().pci.bus_id;
    let (count, first, none, relation) = driver
        .gpu(0)
        .run(|d| {
            Ok((
                d.nvlink_count()?,
                d.nvlink(0)?,
                d.nvlink(99)?,
                d.pcie_relation(1)?,
            ))
        })
        .unwrap();
    assert_eq!(count, 12);
    assert_eq!(first, Some(NvLinkEnd::Gpu(second)));
    assert_eq!(none, None);
    assert_eq!(relation, Some(PcieRelation::SameCpu));
    let display = driver.gpu(3).run(|d| Ok((d.nvlink_count()?, d.nvlink(0)?)));
    assert_eq!(display, Ok((0, None)));
}
