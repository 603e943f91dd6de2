//! Node files and the machines that come with the simulator.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rstest::rstest;

use super::*;
use crate::model::{Node, nvlink::Remote};

fn build(name: &str) -> Node {
    NodeSpec::preset(name).unwrap().build(0).unwrap()
}

#[test]
fn dgx_h100_has_the_captured_addresses_and_modules() {
    let node = build("dgx-h100");
    let gpus: Vec<(u8, u32, Option<u32>)> = node
        .gpus
        .iter()
        .map(|gpu| (gpu.pci.bus, gpu.module_id, gpu.numa))
        .collect();
    let low =
        [(0x53, 7), (0x64, 5), (0x75, 6), (0x86, 8)].map(|(bus, module)| (bus, module, Some(0)));
    let high =
        [(0x97, 1), (0xA8, 3), (0xB9, 4), (0xCA, 2)].map(|(bus, module)| (bus, module, Some(1)));
    assert_eq!(gpus, [low, high].concat());
    assert_eq!(node.near_cpus(&node.gpus[0], false).len(), 112);
    assert_eq!(node.gpus[0].links.len(), 18);
    assert!(
        node.gpus[0]
            .links
            .iter()
            .all(|link| link.up && matches!(link.remote, Remote::Switch(_)))
    );
    let fabric = &node.gpus[0].fabric;
    assert_eq!(
        (
            fabric.state.number(),
            fabric.clique,
            fabric.cluster,
            fabric.summary()
        ),
        (3, 0, [0; 16], 1)
    );
    assert_eq!(
        (
            node.driver.version.as_str(),
            node.driver.cuda,
            node.driver.nvml.as_str()
        ),
        ("580.105.08", 13000, "13.580.105.08")
    );
}

#[test]
fn dgx_b200_has_the_captured_addresses_and_modules() {
    let gpus: Vec<(u8, u32)> = build("dgx-b200")
        .gpus
        .iter()
        .map(|gpu| (gpu.pci.bus, gpu.module_id))
        .collect();
    let captured = [
        (0x8F, 6),
        (0x90, 8),
        (0x96, 7),
        (0x97, 5),
        (0xC4, 2),
        (0xC5, 4),
        (0xCB, 3),
        (0xCC, 1),
    ];
    assert_eq!(gpus, captured);
}

#[test]
fn dgx_a100_has_two_gpus_on_each_of_four_of_eight_numa_nodes() {
    let node = build("dgx-a100");
    let mut per_node = [0; 8];
    for gpu in &node.gpus {
        per_node[gpu.numa.unwrap() as usize] += 1;
    }
    assert_eq!(per_node.iter().filter(|count| **count == 2).count(), 4);
    assert_eq!(node.gpus[0].fabric.state, FabricState::NotSupported);
    assert_eq!(node.level(0, 1).number(), 10);
    assert_eq!(node.level(0, 2).number(), 50);
    assert_eq!(node.gpus[0].links.len(), 12);
}

#[test]
fn a_gb200_tray_belongs_to_a_rack() {
    let node = build("gb200-tray");
    let gpu = &node.gpus[3];
    assert_eq!(gpu.pci.long(), "00000019:06:00.0");
    assert_eq!(
        (
            gpu.fabric.clique,
            gpu.fabric.cluster[0],
            gpu.fabric.cluster[15]
        ),
        (2, 0x1B, 0x41)
    );
    let platform = gpu.platform.as_ref().unwrap();
    assert_eq!((platform.slot, platform.tray), (14, 4));
    assert_eq!([gpu.numa, node.gpus[0].numa], [Some(1), Some(0)]);
}

#[test]
fn a_dgx_station_links_its_gpus_directly_and_has_one_that_only_displays() {
    let node = build("dgx-station-a100");
    let display = node
        .gpus
        .iter()
        .position(|gpu| gpu.board.product == "NVIDIA DGX Display")
        .unwrap();
    assert_eq!(node.gpus[display].board.pci.class, 0x03_0000);
    assert!(node.gpus[display].links.is_empty() && node.gpus[display].board.mig.is_none());
    let ends: std::collections::BTreeSet<usize> = node.gpus[0]
        .links
        .iter()
        .map(|link| match link.remote {
            Remote::Gpu(gpu) => gpu,
            _ => panic!("{link:?}"),
        })
        .collect();
    assert_eq!(ends.len(), 3);
    assert!(!ends.contains(&display) && !ends.contains(&0));
}

#[test]
fn gpus_lie_in_the_order_of_their_addresses() {
    for name in names() {
        let node = build(name);
        assert!(
            node.gpus.windows(2).all(|pair| pair[0].pci < pair[1].pci),
            "{name}"
        );
    }
}

#[rstest]
#[case(1)]
#[case(8)]
#[case(16)]
fn equal_boards_get_addresses_of_their_own(#[case] count: usize) {
    let node = NodeSpec::uniform("h100-sxm5-80gb", count)
        .unwrap()
        .build(0)
        .unwrap();
    assert_eq!(node.gpus.len(), count);
    assert_eq!(node.gpus.last().unwrap().numa, Some(u32::from(count > 1)));
}

#[test]
fn counts_out_of_range_are_refused() {
    for count in [0, 17, usize::MAX] {
        assert!(matches!(
            NodeSpec::uniform("t4-16gb", count),
            Err(Error::Count(_))
        ));
    }
}

#[test]
fn the_drivers_version_decides_how_it_behaves() {
    let with = |version: &str| {
        let mut spec = NodeSpec::uniform("a100-sxm4-40gb", 1).unwrap();
        spec.driver.version = version.to_owned();
        spec.build(0).unwrap()
    };
    assert!(with("470.256.02").personality.mirrored_ids);
    assert!(!with("510.47.03").personality.mirrored_ids);
    assert_eq!(
        with("580.65.06").field_scheme(),
        crate::model::FieldScheme::Twelve
    );
    assert_eq!(
        with("580.82.07").field_scheme(),
        crate::model::FieldScheme::Thirteen
    );
    assert_eq!(
        with("595.58.03").field_scheme(),
        crate::model::FieldScheme::Thirteen
    );
}

const HEAD: &str = "driver: {version: 580.105.08, cuda: 13000}\n";

#[test]
fn a_node_file_may_bring_a_board_of_its_own() {
    let board: String = include_str!("../../boards/t4-16gb.yaml")
        .lines()
        .map(|line| format!("    {line}\n"))
        .collect();
    let board = board.replace("Tesla T4", "Tesla T4 (engineering sample)");
    let text = format!(
        "{HEAD}name: odd\nboards:\n  mine:\n{board}gpus:\n  - {{board: mine, pci: \"0000:01:00.0\", minor: 5}}\n"
    );
    let node = NodeSpec::parse(&text).unwrap().build(0).unwrap();
    assert_eq!(node.gpus[0].board.product, "Tesla T4 (engineering sample)");
    assert_eq!((node.name.as_str(), node.gpus[0].minor), ("odd", 5));
}

#[rstest]
#[case("gpus: []", "1 to 16")]
#[case(
    "gpus: [{board: h200, pci: \"0000:01:00.0\"}]",
    "there is no board `h200`"
)]
#[case(
    "gpus: [{board: t4-16gb, pci: \"0000:01:00.0\"}, {board: t4-16gb, pci: \"1:0.0\"}]",
    "address 0000:01:00.0"
)]
#[case(
    "gpus: [{board: t4-16gb, pci: \"1:0.0\"}, {board: t4-16gb, pci: \"2:0.0\", minor: 0}]",
    "minor 0"
)]
#[case("gpus: [{board: t4-16gb, pci: \"1:0.0\", numa: 3}]", "NUMA node 3")]
#[case(
    "gpus: [{board: t4-16gb, pci: \"nowhere\"}]",
    "`nowhere` is no PCI address"
)]
#[case("gpu: []", "unknown field")]
#[case("gpus: [", "line")]
fn bad_node_files_say_what_is_wrong(#[case] rest: &str, #[case] reason: &str) {
    let error = NodeSpec::parse(&format!("{HEAD}{rest}\n"))
        .and_then(|spec| spec.build(0))
        .unwrap_err()
        .to_string();
    assert!(error.contains(reason), "{error}");
}

#[test]
fn an_unknown_preset_names_the_known() {
    let error = NodeSpec::preset("dgx-1").unwrap_err().to_string();
    assert!(
        error.contains("dgx-1") && error.contains("dgx-h100"),
        "{error}"
    );
}
