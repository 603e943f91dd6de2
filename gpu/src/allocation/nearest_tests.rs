//! The choice of nearest devices against a search through all choices.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use rstest::rstest;

use super::nearest;

/// A DGX-1 with V100: two quads, one or two links inside and across, PCIe pairs behind one switch.
fn dgx1(a: usize, b: usize) -> u32 {
    const LINKS: [(usize, usize, u32); 16] = [
        (0, 1, 1),
        (0, 2, 1),
        (0, 3, 2),
        (0, 4, 2),
        (1, 2, 2),
        (1, 3, 1),
        (1, 5, 2),
        (2, 3, 2),
        (2, 6, 1),
        (3, 7, 1),
        (4, 5, 1),
        (4, 6, 1),
        (4, 7, 2),
        (5, 6, 2),
        (5, 7, 1),
        (6, 7, 2),
    ];
    let links = LINKS.iter().find(|(x, y, _)| (*x, *y) == (a, b));
    let pcie = match (a / 2 == b / 2, a / 4 == b / 4) {
        (true, _) => 50,
        (_, true) => 30,
        _ => 10,
    };
    pcie + 100 * links.map_or(0, |(_, _, links)| *links)
}

/// Two CPUs with two switches of two GPUs each.
fn pcie(a: usize, b: usize) -> u32 {
    match (a / 2 == b / 2, a / 4 == b / 4) {
        (true, _) => 50,
        (_, true) => 20,
        _ => 10,
    }
}

#[rstest]
// A whole quad. Either scores 9 links.
#[case(&[], 4, &[0, 1, 2, 3])]
#[case(&[6], 4, &[4, 5, 6, 7])]
// All pairs with two links each: 0-3 1-2 4-7 5-6 (4 × 230) or 0-4 1-5 2-3 6-7 (2 × 210, 2 × 250). Of the second, 2-3 is
// behind one switch as well; of those with GPU 0, 0-3 has the shorter way.
#[case(&[], 2, &[2, 3])]
#[case(&[0], 2, &[0, 3])]
#[case(&[], 8, &[0, 1, 2, 3, 4, 5, 6, 7])]
#[case(&[5], 1, &[5])]
#[case(&[], 1, &[0])]
fn on_a_dgx1(#[case] required: &[usize], #[case] size: usize, #[case] wanted: &[usize]) {
    assert_eq!(nearest(8, dgx1, required, size).unwrap(), wanted);
}

#[rstest]
#[case(&[], 2, &[0, 1])]
#[case(&[5], 2, &[4, 5])]
#[case(&[], 4, &[0, 1, 2, 3])]
#[case(&[0, 7], 2, &[0, 7])]
fn over_pcie(#[case] required: &[usize], #[case] size: usize, #[case] wanted: &[usize]) {
    assert_eq!(nearest(8, pcie, required, size).unwrap(), wanted);
}

/// GPU 1 is taken. A pair must not break up another pair: 0 is left alone.
#[test]
fn what_is_left_counts() {
    let free = [0, 2, 3, 4, 5, 6, 7];
    let score = |a: usize, b: usize| pcie(free[a], free[b]);
    assert_eq!(nearest(7, score, &[], 2).unwrap(), [1, 2]);
    // Three: the one that is alone, and the pair beside it.
    assert_eq!(nearest(7, score, &[], 3).unwrap(), [0, 1, 2]);
}

#[rstest]
#[case(4, &[], 0)]
#[case(4, &[], 5)]
#[case(4, &[0, 1], 1)]
#[case(4, &[4], 2)]
#[case(0, &[], 1)]
fn impossible(#[case] count: usize, #[case] required: &[usize], #[case] size: usize) {
    assert_eq!(nearest(count, pcie, required, size), None);
}

#[test]
fn a_node_that_says_nothing() {
    assert_eq!(nearest(8, |_, _| 0, &[3, 3], 2).unwrap(), [0, 3]);
    assert_eq!(nearest(16, |_, _| u32::MAX, &[], 3).unwrap(), [0, 1, 2]);
}

#[test]
fn more_gpus_than_a_machine_has() {
    let score = |a: usize, b: usize| if a / 3 == b / 3 { 50 } else { 10 };
    assert_eq!(nearest(30, score, &[7], 3).unwrap(), [6, 7, 8]);
    assert_eq!(nearest(30, score, &[], 3).unwrap(), [0, 1, 2]);
}

/// Every division of `left` into sets of `size` and one of what remains.
fn divisions(left: &[usize], size: usize) -> Vec<Vec<Vec<usize>>> {
    let Some((&first, others)) = left.split_first() else {
        return vec![vec![]];
    };
    let mut all = Vec::new();
    let remains = left.len() % size;
    for choice in 0..1_usize << others.len() {
        let chosen = |nth: usize| choice >> nth & 1 == 1;
        let mut set = vec![first];
        set.extend(
            (0..others.len())
                .filter(|&nth| chosen(nth))
                .map(|nth| others[nth]),
        );
        if set.len() != size && set.len() != remains {
            continue;
        }
        let rest: Vec<usize> = (0..others.len())
            .filter(|&nth| !chosen(nth))
            .map(|nth| others[nth])
            .collect();
        for mut division in divisions(&rest, size) {
            division.push(set.clone());
            all.push(division);
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The best set, by trying all divisions: as much in sum, and of those with that sum as much by itself.
    #[test]
    fn agrees_with_exhaustive_search(
        count in 1_usize..=8,
        wanted in 0_usize..8,
        required in proptest::collection::btree_set(0_usize..8, 0..3),
        values in proptest::collection::vec(prop_oneof![Just(10_u32), Just(50), Just(110), 0_u32..2000], 64),
        // Neighbours that are placed alike, as behind one switch.
        group in 1_usize..=4,
    ) {
        let score = |a: usize, b: usize| values[8 * (a.min(b) / group) + a.max(b) / group];
        let size = 1 + wanted % count;
        let required: Vec<usize> = required.into_iter().filter(|&one| one < count).collect();
        prop_assume!(required.len() <= size);

        let of_set = |set: &[usize]| -> u32 {
            let pairs = set.iter().flat_map(|&a| set.iter().map(move |&b| (a, b)));
            pairs.filter(|(a, b)| a < b).map(|(a, b)| score(a, b)).sum()
        };
        let gpus: Vec<usize> = (0..count).collect();
        let worth = |given: &dyn Fn(&[usize]) -> bool| {
            divisions(&gpus, size).iter().flat_map(|division| {
                let sum: u32 = division.iter().map(|set| of_set(set)).sum();
                let sets = division.iter().filter(|set| set.len() == size && given(set));
                sets.map(|set| (sum, of_set(set))).collect::<Vec<_>>()
            }).max()
        };
        let best = worth(&|set| required.iter().all(|one| set.contains(one)));
        let chosen = nearest(count, score, &required, size).unwrap();
        prop_assert_eq!(chosen.len(), size);
        prop_assert!(required.iter().all(|one| chosen.contains(one)));
        let own = worth(&|set| {
            let mut set = set.to_vec();
            set.sort_unstable();
            set == chosen
        });
        prop_assert_eq!(own, best, "{:?}", chosen);
    }
}
