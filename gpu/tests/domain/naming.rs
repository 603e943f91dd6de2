//! Names of every board's profiles, and names found again on the board.

use crate::boards::{
    a30, a100_40, a100_80, b200, b300, boards, gb200, gb300, gh200_96, gh200_144, h100_80,
    h100_nvl, h200, rtx_pro_6000,
};
use gpu::{Board, Profile};
use rstest::rstest;

fn profile(name: &str) -> Profile {
    name.parse().unwrap()
}

/// (profile id, name) as the vendor's tables and captures have them.
#[rstest]
#[case::a30(a30(), &[(14, "1g.6gb"), (21, "1g.6gb+me"), (5, "2g.12gb"), (6, "2g.12gb+me"), (0, "4g.24gb")])]
#[case::a100_40(a100_40(), &[(19, "1g.5gb"), (20, "1g.5gb+me"), (15, "1g.10gb"), (14, "2g.10gb"), (9, "3g.20gb"), (5, "4g.20gb"), (0, "7g.40gb")])]
#[case::a100_80(a100_80(), &[(19, "1g.10gb"), (20, "1g.10gb+me"), (15, "1g.20gb"), (14, "2g.20gb"), (9, "3g.40gb"), (5, "4g.40gb"), (0, "7g.80gb")])]
#[case::h100_80(h100_80(), &[(19, "1g.10gb"), (20, "1g.10gb+me"), (15, "1g.20gb"), (14, "2g.20gb"), (9, "3g.40gb"), (5, "4g.40gb"), (0, "7g.80gb")])]
#[case::h100_nvl(h100_nvl(), &[(19, "1g.12gb"), (20, "1g.12gb+me"), (15, "1g.24gb"), (14, "2g.24gb"), (9, "3g.47gb"), (5, "4g.47gb"), (0, "7g.94gb")])]
#[case::gh200_96(gh200_96(), &[(19, "1g.12gb"), (20, "1g.12gb+me"), (15, "1g.24gb"), (14, "2g.24gb"), (9, "3g.48gb"), (5, "4g.48gb"), (0, "7g.96gb")])]
#[case::gh200_144(gh200_144(), &[(19, "1g.18gb"), (20, "1g.18gb+me"), (15, "1g.36gb"), (14, "2g.36gb"), (9, "3g.72gb"), (5, "4g.72gb"), (0, "7g.144gb")])]
#[case::h200(h200(), &[(19, "1g.18gb"), (20, "1g.18gb+me"), (15, "1g.35gb"), (14, "2g.35gb"), (9, "3g.71gb"), (5, "4g.71gb"), (0, "7g.141gb")])]
#[case::b200(b200(), &[(19, "1g.23gb"), (20, "1g.23gb+me"), (15, "1g.45gb"), (14, "2g.45gb"), (9, "3g.90gb"), (5, "4g.90gb"), (0, "7g.180gb")])]
#[case::gb200(gb200(), &[(19, "1g.23gb"), (20, "1g.23gb+me"), (15, "1g.47gb"), (14, "2g.47gb"), (9, "3g.93gb"), (5, "4g.93gb"), (0, "7g.186gb")])]
#[case::b300(b300(), &[(19, "1g.34gb"), (20, "1g.34gb+me"), (15, "1g.67gb"), (14, "2g.67gb"), (9, "3g.135gb"), (5, "4g.135gb"), (0, "7g.269gb")])]
#[case::gb300(gb300(), &[(19, "1g.35gb"), (20, "1g.35gb+me"), (15, "1g.70gb"), (14, "2g.70gb"), (9, "3g.139gb"), (5, "4g.139gb"), (0, "7g.278gb")])]
#[case::rtx_pro_6000(rtx_pro_6000(), &[
    (14, "1g.24gb"), (21, "1g.24gb+me"), (47, "1g.24gb+gfx"), (65, "1g.24gb+me.all"), (67, "1g.24gb-me"),
    (5, "2g.48gb"), (35, "2g.48gb+gfx"), (64, "2g.48gb+me.all"), (66, "2g.48gb-me"), (0, "4g.96gb"), (32, "4g.96gb+gfx"),
])]
fn every_profile_has_its_known_name(#[case] board: Board, #[case] names: &[(u32, &str)]) {
    assert_eq!(board.profiles.len(), names.len());
    for (id, name) in names {
        let instance = board.profile(*id).unwrap();
        assert_eq!(board.name(instance).to_string(), *name, "profile id {id}");
        let resolved = board.resolve(&profile(name)).unwrap();
        assert_eq!(resolved.instance.id, *id, "{name}");
        assert_eq!(resolved.compute_slices, instance.slices, "{name}");
    }
}

#[rstest]
#[case(a100_40(), 15)]
#[case(a100_80(), 19)]
#[case(h100_80(), 19)]
fn one_name_means_another_id_on_another_board(#[case] board: Board, #[case] id: u32) {
    assert_eq!(board.resolve(&profile("1g.10gb")).unwrap().instance.id, id);
}

#[test]
fn a_part_of_an_instance_has_a_name_of_its_own() {
    let board = h100_80();
    let resolved = board.resolve(&profile("1c.3g.40gb")).unwrap();
    assert_eq!((resolved.instance.id, resolved.compute_slices), (9, 1));
    assert_eq!(
        board.device_name(resolved.instance, 2).to_string(),
        "2c.3g.40gb"
    );
}

#[rstest]
#[case::other_memory(
    "1g.11gb",
    "this GPU has no profile 1g.11gb; nearest: 1g.10gb, 1g.10gb+me, 1g.20gb"
)]
#[case::other_slices(
    "5g.60gb",
    "this GPU has no profile 5g.60gb; nearest: 4g.40gb, 3g.40gb, 7g.80gb"
)]
#[case::other_attribute(
    "1g.10gb+gfx",
    "this GPU has no profile 1g.10gb+gfx; nearest: 1g.10gb, 1g.10gb+me, 1g.20gb"
)]
#[case::other_board(
    "7g.141gb",
    "this GPU has no profile 7g.141gb; nearest: 7g.80gb, 4g.40gb, 3g.40gb"
)]
#[case::compute_size(
    "3c.4g.40gb",
    "this GPU has no profile 3c.4g.40gb; nearest: 2c.4g.40gb, 4g.40gb, 1c.4g.40gb"
)]
fn an_unknown_profile_is_answered_with_the_nearest(#[case] name: &str, #[case] message: &str) {
    let error = h100_80().resolve(&profile(name)).unwrap_err();
    assert_eq!(error.to_string(), message);
}

#[test]
fn a_board_that_lists_nothing_has_no_nearest() {
    let board = Board {
        memory_bytes: 80 << 30,
        profiles: Vec::new(),
    };
    let error = board.resolve(&profile("1g.10gb")).unwrap_err();
    assert_eq!(error.to_string(), "this GPU has no profile 1g.10gb");
}

#[test]
fn all_names_of_a_board_are_found_again() {
    for (label, board) in boards() {
        for name in board.names() {
            let resolved = board.resolve(&name).unwrap();
            let again = board.device_name(resolved.instance, resolved.compute_slices);
            assert_eq!(again, name, "{label}");
        }
    }
}

#[test]
fn compute_profiles_by_rule_are_those_of_the_driver() {
    for (label, board) in boards() {
        for told in &board.profiles {
            let mut untold = told.clone();
            untold.compute.clear();
            assert_eq!(
                untold.compute_choices(),
                told.compute_choices(),
                "{label}, profile id {}",
                told.id
            );
        }
    }
}

/// Memory shares right at the border of an eighth: the share is rounded up, the product to the nearest.
#[rstest]
#[case(81920, 10240, 10)] // exactly one eighth
#[case(81920, 10400, 10)] // a 64th of an eighth above
#[case(81920, 10401, 20)] // more
#[case(81920, 1, 10)] // hardly anything
#[case(81920, 0, 0)] // nothing
#[case(0, 10240, 0)] // memory unknown
#[case(1, u64::MAX, u32::MAX)] // nonsense from the driver
fn displayed_memory(#[case] total_mib: u64, #[case] memory_mib: u64, #[case] gigabytes: u32) {
    let board = Board {
        memory_bytes: total_mib << 20,
        profiles: Vec::new(),
    };
    assert_eq!(board.displayed_memory_gb(memory_mib), gigabytes);
}
