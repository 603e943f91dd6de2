//! Placement: the driver's own choices, and agreement with exhaustive search on every board.

use std::collections::BTreeMap;

use crate::boards::{a30, a100_40, boards, h100_80, h200, rtx_pro_6000};
use crate::reference;
use gpu::{Board, Placed, Placement, place};
use proptest::prelude::*;
use proptest::sample::Index;
use rstest::rstest;

fn counts(ids: &[u32]) -> BTreeMap<u32, u32> {
    let mut counts = BTreeMap::new();
    for id in ids {
        *counts.entry(*id).or_default() += 1;
    }
    counts
}

fn at(profile_id: u32, start: u32, size: u32) -> Placed {
    Placed {
        profile_id,
        placement: Placement { start, size },
    }
}

/// What drivers since R510 were seen to do, largest instances first. Starts follow from the instance ids of the captures.
#[rstest]
#[case::seven_1g(h100_80(), &[19; 7], &[(19, 6), (19, 4), (19, 5), (19, 0), (19, 1), (19, 2), (19, 3)])]
#[case::two_3g(h100_80(), &[9, 9], &[(9, 4), (9, 0)])]
#[case::one_of_each(a100_40(), &[19, 14, 5], &[(5, 0), (14, 4), (19, 6)])]
#[case::h200(h200(), &[9, 14, 19, 19], &[(9, 4), (14, 0), (19, 2), (19, 3)])]
#[case::balanced_without_3g(h100_80(), &[14, 19, 19, 19, 19, 19], &[(14, 4), (19, 6), (19, 0), (19, 1), (19, 2), (19, 3)])]
#[case::three_double_memory(h100_80(), &[15, 15, 15], &[(15, 4), (15, 0), (15, 2)])]
#[case::two(h100_80(), &[9, 14], &[(9, 4), (14, 0)])]
#[case::a30_ascending(a30(), &[5, 14, 14], &[(5, 0), (14, 2), (14, 3)])]
#[case::rtx_ascending(rtx_pro_6000(), &[5, 14, 14], &[(5, 0), (14, 6), (14, 9)])]
fn follows_the_driver(#[case] board: Board, #[case] ids: &[u32], #[case] expected: &[(u32, u32)]) {
    let placed = place(&board, &[], &counts(ids)).unwrap();
    let starts = placed
        .iter()
        .map(|placed| (placed.profile_id, placed.placement.start))
        .collect::<Vec<_>>();
    assert_eq!(starts, expected);
}

/// Mixes that fail in the order written when the driver places one by one (14 takes the upper half, so 5 has to find the
/// lower one free).
#[rstest]
#[case(h100_80(), &[19, 14, 5])]
#[case(h100_80(), &[14, 5, 19])]
#[case(h100_80(), &[19, 19, 14, 9])]
#[case(h100_80(), &[9, 5])]
#[case(h100_80(), &[15, 15, 15, 15])]
#[case(h100_80(), &[14, 14, 14, 15])]
#[case(h100_80(), &[20, 19, 19, 19, 19, 19, 19])]
#[case(rtx_pro_6000(), &[65, 67, 67, 67])]
#[case(rtx_pro_6000(), &[64, 66])]
#[case(a30(), &[21, 14, 5])]
fn order_does_not_matter(#[case] board: Board, #[case] ids: &[u32]) {
    assert!(place(&board, &[], &counts(ids)).is_ok());
}

#[rstest]
#[case::one_too_many(h100_80(), &[19; 8], &[(19, 1)])]
#[case::second_4g(h100_80(), &[5, 5], &[(5, 1)])]
#[case::whole_and_part(h100_80(), &[0, 19], &[(19, 1)])]
#[case::no_2g_at_the_end(h100_80(), &[14, 14, 14, 14], &[(14, 1)])]
#[case::two_3g_and_1g(h100_80(), &[9, 9, 19], &[(19, 1)])]
#[case::one_media_engine(a100_40(), &[20, 20], &[(20, 1)])]
#[case::one_media_engine_in_all(a30(), &[21, 6], &[(21, 1)])]
#[case::all_media_engines_taken(rtx_pro_6000(), &[65, 14], &[(65, 1)])]
#[case::all_media_engines_of_2g(rtx_pro_6000(), &[64, 14, 14], &[(64, 1)])]
#[case::fewer_slices_go(rtx_pro_6000(), &[64, 14], &[(14, 1)])]
#[case::not_a_profile(h100_80(), &[77, 19], &[(77, 1)])]
fn says_what_does_not_fit(
    #[case] board: Board,
    #[case] ids: &[u32],
    #[case] missing: &[(u32, u32)],
) {
    let error = place(&board, &[], &counts(ids)).unwrap_err();
    assert_eq!(error.missing, BTreeMap::from_iter(missing.iter().copied()));
}

#[rstest]
#[case::around_a_1g(&[at(19, 0, 1)], &[9], Some((9, 4)))]
#[case::around_an_upper_1g(&[at(19, 6, 1)], &[9], Some((9, 0)))]
#[case::around_two(&[at(19, 0, 1), at(19, 6, 1)], &[9], None)]
#[case::media_engine_is_kept(&[at(20, 0, 1)], &[20], None)]
#[case::count_is_kept(&[at(14, 0, 2), at(14, 2, 2), at(14, 4, 2)], &[14], None)]
#[case::last_slice_has_no_compute(&[at(5, 0, 4), at(14, 4, 2), at(19, 6, 1)], &[19], None)]
fn kept_instances_count(
    #[case] kept: &[Placed],
    #[case] ids: &[u32],
    #[case] expected: Option<(u32, u32)>,
) {
    let placed = place(&h100_80(), kept, &counts(ids)).ok();
    let first = placed.map(|placed| (placed[0].profile_id, placed[0].placement.start));
    assert_eq!(first, expected);
}

#[test]
fn a_kept_instance_outside_of_any_gpu_leaves_no_room() {
    assert!(place(&h100_80(), &[at(19, u32::MAX, 2)], &counts(&[19])).is_err());
}

#[test]
fn a_huge_number_is_answered_at_once() {
    let wanted = BTreeMap::from([(19, u32::MAX), (14, u32::MAX)]);
    let error = place(&h100_80(), &[], &wanted).unwrap_err();
    assert_eq!(
        error.missing[&19] as u64 + error.missing[&14] as u64,
        2 * u64::from(u32::MAX) - 7
    );
}

#[test]
fn the_drivers_count_holds_where_geometry_allows_more() {
    let mut board = h100_80();
    board
        .profiles
        .iter_mut()
        .for_each(|profile| profile.max_instances = 2);
    let error = place(&board, &[at(19, 0, 1)], &counts(&[19, 19])).unwrap_err();
    assert_eq!(error.missing, BTreeMap::from([(19, 1)]));
}

/// An engine table at odds with itself (seven instances with two copy engines each, ten in all) constrains nothing.
#[test]
fn an_inconsistent_engine_table_forbids_nothing() {
    let mut board = h100_80();
    for profile in &mut board.profiles {
        profile.engines.copy = if profile.id == 0 { 10 } else { 2 };
    }
    assert!(place(&board, &[], &counts(&[19; 7])).is_ok());
}

#[test]
fn an_empty_board_and_an_empty_wish_are_fine() {
    let board = Board {
        memory_bytes: 0,
        profiles: Vec::new(),
    };
    assert_eq!(place(&board, &[], &BTreeMap::new()), Ok(Vec::new()));
    assert_eq!(
        place(&h100_80(), &[], &BTreeMap::from([(19, 0)])),
        Ok(Vec::new())
    );
}

/// Kept instances: whatever of these draws can lie beside the earlier ones.
fn kept(board: &Board, draws: &[(Index, Index)]) -> Vec<Placed> {
    let mut kept = Vec::<Placed>::new();
    for (profile, placement) in draws {
        let profile = &board.profiles[profile.index(board.profiles.len())];
        let placement = profile.placements[placement.index(profile.placements.len())];
        let candidate = Placed {
            profile_id: profile.id,
            placement,
        };
        let is_free = kept
            .iter()
            .all(|other| !other.placement.overlaps(placement));
        let mut all = kept.clone();
        all.push(candidate);
        if is_free
            && reference::fits(
                board,
                &[],
                &counts(
                    &all.iter()
                        .map(|placed| placed.profile_id)
                        .collect::<Vec<_>>(),
                ),
            )
        {
            kept = all;
        }
    }
    kept
}

/// Wanted instances: profiles drawn while they take at most a little more than the whole GPU.
fn wanted(board: &Board, draws: &[Index]) -> BTreeMap<u32, u32> {
    let mut slices = 0;
    let ids = draws
        .iter()
        .map(|draw| &board.profiles[draw.index(board.profiles.len())])
        .take_while(|profile| {
            slices += profile.placements[0].size;
            slices <= board.memory_slices() + 3
        })
        .map(|profile| profile.id)
        .collect::<Vec<_>>();
    counts(&ids)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn agrees_with_exhaustive_search(
        board in 0..boards().len(),
        kept_draws in prop::collection::vec(any::<(Index, Index)>(), 0..6),
        wanted_draws in prop::collection::vec(any::<Index>(), 0..9),
    ) {
        let (label, board) = boards().swap_remove(board);
        let kept = kept(&board, &kept_draws);
        let wanted = wanted(&board, &wanted_draws);
        match place(&board, &kept, &wanted) {
            Ok(placed) => {
                prop_assert_eq!(counts(&placed.iter().map(|placed| placed.profile_id).collect::<Vec<_>>()), wanted);
                let mut all = kept.clone();
                for placed in placed {
                    prop_assert!(board.profile(placed.profile_id).unwrap().placements.contains(&placed.placement));
                    prop_assert!(all.iter().all(|other| !other.placement.overlaps(placed.placement)));
                    all.push(placed);
                }
                let ids = all.iter().map(|placed| placed.profile_id).collect::<Vec<_>>();
                prop_assert!(reference::fits(&board, &[], &counts(&ids)), "{}: numbers", label);
            }
            Err(error) => {
                prop_assert!(!reference::fits(&board, &kept, &wanted), "{}: {:?} fits beside {:?}", label, wanted, kept);
                let cost = reference::cost(&board, error.missing.iter().map(|(id, count)| (*id, *count)));
                prop_assert_eq!(cost, reference::fewest_missing(&board, &kept, &wanted), "{}", label);
                let mut rest = wanted.clone();
                for (id, count) in &error.missing {
                    *rest.get_mut(id).unwrap() -= count;
                }
                prop_assert!(reference::fits(&board, &kept, &rest), "{}: the rest", label);
            }
        }
    }

    #[test]
    fn the_order_of_profiles_and_kept_instances_does_not_matter(
        board in 0..boards().len(),
        kept_draws in prop::collection::vec(any::<(Index, Index)>(), 0..6),
        wanted_draws in prop::collection::vec(any::<Index>(), 0..9),
    ) {
        let (_, board) = boards().swap_remove(board);
        let mut kept = kept(&board, &kept_draws);
        let wanted = wanted(&board, &wanted_draws);
        let answer = place(&board, &kept, &wanted);
        let mut reversed = board.clone();
        reversed.profiles.reverse();
        for profile in &mut reversed.profiles {
            profile.placements.reverse();
        }
        kept.reverse();
        prop_assert_eq!(place(&reversed, &kept, &wanted), answer);
    }
}
