//! The boards against the captures and documents their numbers come from.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rstest::rstest;

use super::*;
use crate::model::board::{Architecture, InstanceProfile};

#[test]
fn the_boards_there_are() {
    let expected = [
        "a30-24gb",
        "a100-sxm4-40gb",
        "a100-pcie-40gb",
        "a100-sxm4-80gb",
        "a100-pcie-80gb",
        "h100-sxm5-80gb",
        "h100-pcie-80gb",
        "h100-nvl-94gb",
        "gh200-96gb",
        "gh200-144gb",
        "h200-sxm-141gb",
        "h200-nvl-141gb",
        "b200-180gb",
        "gb200-186gb",
        "b300-269gb",
        "gb300-278gb",
        "rtx-pro-6000-96gb",
        "l40s-48gb",
        "t4-16gb",
    ];
    assert_eq!(names().collect::<Vec<_>>(), expected);
}

#[test]
fn an_unknown_board_names_the_known() {
    let error = load("h100").unwrap_err().to_string();
    assert!(
        error.contains("`h100`") && error.contains("h100-nvl-94gb"),
        "{error}"
    );
}

/// PCI device word, total MiB, multiprocessors, compute capability; `nvidia-smi -q` captures and the vendor's tables.
#[rstest]
#[case("a30-24gb", 0x20B7_10DE, 24576, 56, (8, 0))]
#[case("a100-sxm4-40gb", 0x20B0_10DE, 40960, 108, (8, 0))]
#[case("a100-pcie-40gb", 0x20F1_10DE, 40960, 108, (8, 0))]
#[case("a100-sxm4-80gb", 0x20B2_10DE, 81920, 108, (8, 0))]
#[case("a100-pcie-80gb", 0x20B5_10DE, 81920, 108, (8, 0))]
#[case("h100-sxm5-80gb", 0x2330_10DE, 81559, 132, (9, 0))]
#[case("h100-pcie-80gb", 0x2331_10DE, 81559, 114, (9, 0))]
#[case("h100-nvl-94gb", 0x2321_10DE, 95830, 132, (9, 0))]
#[case("gh200-96gb", 0x2342_10DE, 97900, 132, (9, 0))]
#[case("h200-sxm-141gb", 0x2335_10DE, 143771, 132, (9, 0))]
#[case("h200-nvl-141gb", 0x233B_10DE, 143771, 132, (9, 0))]
#[case("b200-180gb", 0x2901_10DE, 183359, 148, (10, 0))]
#[case("gb200-186gb", 0x2941_10DE, 189471, 152, (10, 0))]
#[case("gb300-278gb", 0x31C2_10DE, 284208, 152, (10, 3))]
#[case("rtx-pro-6000-96gb", 0x2BB5_10DE, 97887, 188, (12, 0))]
#[case("l40s-48gb", 0x26B9_10DE, 46068, 142, (8, 9))]
#[case("t4-16gb", 0x1EB8_10DE, 15360, 40, (7, 5))]
fn board_facts(
    #[case] name: &str,
    #[case] device: u32,
    #[case] total: u64,
    #[case] multiprocessors: u32,
    #[case] capability: (u32, u32),
) {
    let board = load(name).unwrap();
    assert_eq!(
        (
            board.pci.device_word(),
            board.memory.total_mib,
            board.multiprocessors,
            board.compute_capability
        ),
        (device, total, multiprocessors, capability)
    );
}

/// (id, name, MiB, multiprocessors, [copy, decoder, jpeg, ofa]) of `nvidia-smi mig -lgip`.
type Row = (u32, &'static str, u64, u32, [u32; 4]);

#[rstest]
#[case("a100-sxm4-40gb", &[
    (19, "1g.5gb", 4864, 14, [1, 0, 0, 0]), (20, "1g.5gb+me", 4864, 14, [1, 1, 1, 1]), (15, "1g.10gb", 9856, 14, [1, 1, 0, 0]),
    (14, "2g.10gb", 9856, 28, [2, 1, 0, 0]), (9, "3g.20gb", 19968, 42, [3, 2, 0, 0]), (5, "4g.20gb", 19968, 56, [4, 2, 0, 0]),
    (0, "7g.40gb", 40192, 98, [7, 5, 1, 1]),
])]
#[case("h100-sxm5-80gb", &[
    (19, "1g.10gb", 9984, 16, [1, 1, 1, 0]), (20, "1g.10gb+me", 9984, 16, [1, 1, 1, 1]), (15, "1g.20gb", 20096, 26, [1, 1, 1, 0]),
    (14, "2g.20gb", 20096, 32, [2, 2, 2, 0]), (9, "3g.40gb", 40448, 60, [3, 3, 3, 0]), (5, "4g.40gb", 40448, 64, [4, 4, 4, 0]),
    (0, "7g.80gb", 81152, 132, [8, 7, 7, 1]),
])]
#[case("h100-nvl-94gb", &[
    (19, "1g.12gb", 10880, 16, [1, 1, 1, 0]), (15, "1g.24gb", 22016, 26, [1, 1, 1, 0]), (9, "3g.47gb", 47232, 60, [3, 3, 3, 0]),
    (0, "7g.94gb", 94848, 132, [8, 7, 7, 1]),
])]
#[case("h200-sxm-141gb", &[
    (19, "1g.18gb", 16384, 16, [1, 1, 1, 0]), (14, "2g.35gb", 33280, 32, [2, 2, 2, 0]), (9, "3g.71gb", 71424, 60, [3, 3, 3, 0]),
])]
#[case("b200-180gb", &[
    (19, "1g.23gb", 22528, 18, [2, 1, 1, 0]), (15, "1g.45gb", 45312, 30, [2, 1, 1, 0]), (14, "2g.45gb", 45312, 36, [4, 2, 2, 0]),
])]
#[case("a30-24gb", &[
    (14, "1g.6gb", 5952, 14, [1, 1, 0, 0]), (21, "1g.6gb+me", 5952, 14, [1, 1, 1, 1]), (5, "2g.12gb", 11968, 28, [2, 2, 0, 0]),
    (6, "2g.12gb+me", 11968, 28, [2, 2, 1, 1]), (0, "4g.24gb", 24000, 56, [4, 4, 1, 1]),
])]
fn profile_rows(#[case] board: &str, #[case] rows: &[Row]) {
    let mig = load(board).unwrap().mig.unwrap();
    for (id, name, memory, multiprocessors, engines) in rows {
        let profile = mig.by_id(*id).unwrap();
        let found = profile.engines;
        assert_eq!(
            (
                profile.name.as_str(),
                profile.memory_mib,
                profile.multiprocessors
            ),
            (*name, *memory, *multiprocessors),
            "{board} {id}"
        );
        assert_eq!(
            [found.copy, found.decoder, found.jpeg, found.ofa],
            *engines,
            "{board} {id}"
        );
    }
}

/// The name that clients compute: the profile's share of the memory, rounded up to an eighth, of the whole GiB.
fn computed_name(board: &Board, profile: &InstanceProfile) -> String {
    let total_gib = board.memory.total_mib.div_ceil(1024) as f64;
    let share = profile.memory_mib as f64 / board.memory.total_mib as f64;
    let eighths = (share * 8.0).ceil() / 8.0;
    let suffix = profile
        .name
        .split_once("gb")
        .map_or("", |(_, suffix)| suffix);
    format!(
        "{}g.{}gb{suffix}",
        profile.slices,
        (eighths * total_gib).round()
    )
}

#[test]
fn names_are_those_that_clients_compute() {
    for name in names() {
        let board = load(name).unwrap();
        for profile in board.mig.iter().flat_map(|mig| &mig.profiles) {
            assert_eq!(computed_name(&board, profile), profile.name, "{name}");
        }
    }
}

#[test]
fn every_profile_is_sound() {
    for name in names() {
        let board = load(name).unwrap();
        let Some(mig) = &board.mig else { continue };
        assert!(
            mig.profiles
                .windows(2)
                .all(|pair| pair[0].index < pair[1].index),
            "{name}: indices ascend"
        );
        assert_eq!(
            mig.resetless,
            board.architecture >= Architecture::Hopper,
            "{name}"
        );
        for profile in &mig.profiles {
            let ends = profile.starts.iter().map(|start| start + profile.size);
            assert!(
                ends.clone().all(|end| end <= mig.memory_slices),
                "{name} {}",
                profile.name
            );
            assert!(
                profile.starts.windows(2).all(|pair| pair[0] < pair[1]),
                "{name} {}",
                profile.name
            );
            let widest = profile
                .compute
                .iter()
                .max_by_key(|compute| compute.slices)
                .unwrap();
            assert_eq!(widest.slices, profile.slices, "{name} {}", profile.name);
            assert_eq!(
                widest.multiprocessors, profile.multiprocessors,
                "{name} {}",
                profile.name
            );
            for compute in &profile.compute {
                assert!(
                    compute
                        .starts
                        .iter()
                        .all(|start| start + compute.slices <= profile.slices)
                );
                assert_eq!(
                    compute.starts.len() as u32,
                    compute.max_instances,
                    "{name} {}",
                    profile.name
                );
                assert!(compute.multiprocessors * compute.max_instances <= profile.multiprocessors);
            }
        }
    }
}

#[test]
fn rtx_pro_has_eleven_profiles_in_units_of_a_twelfth() {
    let mig = load("rtx-pro-6000-96gb").unwrap().mig.unwrap();
    let ids: Vec<(u32, u32)> = mig
        .profiles
        .iter()
        .map(|profile| (profile.index, profile.id))
        .collect();
    let expected = [
        (0, 14),
        (1, 5),
        (3, 0),
        (7, 21),
        (0xA, 47),
        (0xB, 35),
        (0xC, 32),
        (0xD, 67),
        (0xE, 66),
        (0xF, 65),
        (0x10, 64),
    ];
    assert_eq!(ids, expected);
    assert_eq!(
        mig.by_id(47)
            .map(|profile| (profile.size, profile.graphics)),
        Some((3, true))
    );
}

#[test]
fn text_that_is_no_board_names_the_place() {
    let error = parse("odd", "product: X\nspeed: 9\n")
        .unwrap_err()
        .to_string();
    assert!(error.contains("odd") && error.contains("speed"), "{error}");
}
