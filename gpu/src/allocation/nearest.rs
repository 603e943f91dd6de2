//! The best set of whole GPUs.
//!
//! As go-gpuallocator defines it: the free GPUs are divided into sets of the wanted size and one set of what remains; the
//! division whose sets score most together is the best one, and of it the set that scores most is given. It tries all
//! divisions one by one (2.6 million for 4 of 16 GPUs); here every subset of GPUs is divided once, GPUs that are placed alike
//! stand for each other, and a bound on what a division can score leaves most of the rest out.

use std::cmp::Ordering;

/// More GPUs than this are narrowed down first; it is the most a machine has.
const MOST: usize = 16;

/// Positions (ascending) of the `size` GPUs to give, of the free GPUs `0..count`. `score` says how near two of them are,
/// `required` have to be among them.
///
/// `None` when there is no such set: more wanted than are free, or fewer than are required.
pub fn nearest(
    count: usize,
    score: impl Fn(usize, usize) -> u32,
    required: &[usize],
    size: usize,
) -> Option<Vec<usize>> {
    let mut required = required.to_vec();
    required.sort_unstable();
    required.dedup();
    let possible = (1..=count).contains(&size)
        && required.len() <= size
        && required.last().is_none_or(|&last| last < count);
    if !possible {
        return None;
    }
    if size == count {
        return Some((0..count).collect());
    }
    if count > MOST {
        return Some(grown(count, &score, required, size));
    }
    let pairs = |a: usize, b: usize| score(a, b).min(MAX_SCORE);
    let mut division = Division::new(count, pairs, size as u32);
    let set = division.best(required.iter().fold(0, |set, one| set | 1 << one));
    Some((0..count).filter(|one| set >> one & 1 == 1).collect())
}

/// A node with more GPUs than any there is: not the best set, but a good one. Adds whoever is nearest to those chosen.
fn grown(
    count: usize,
    score: &impl Fn(usize, usize) -> u32,
    mut chosen: Vec<usize>,
    size: usize,
) -> Vec<usize> {
    while chosen.len() < size {
        let near = |one: usize| -> u64 {
            let others = chosen.iter().copied();
            others.map(|other| u64::from(score(one, other))).sum()
        };
        let free = (0..count).filter(|one| !chosen.contains(one));
        // `rev` because `max_by_key` takes the last of equals.
        let Some(next) = free.rev().max_by_key(|&one| near(one)) else {
            break;
        };
        chosen.push(next);
    }
    chosen.sort_unstable();
    chosen
}

/// The largest score of a pair, so that sums fit: 64 NVLinks and the nearest PCIe relation make 6,460.
const MAX_SCORE: u32 = 1 << 14;

/// What a division scores: in sum, then its best set. Ordered, packed into one number: 120 pairs of 2^14 need 21 bits each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Worth(u64);

impl Worth {
    const SHIFT: u32 = 32;

    fn new(sum: u64, best_set: u64) -> Self {
        Self(sum << Self::SHIFT | best_set)
    }

    fn sum(self) -> u64 {
        self.0 >> Self::SHIFT
    }

    fn best_set(self) -> u64 {
        self.0 & ((1 << Self::SHIFT) - 1)
    }
}

/// Divides sets of GPUs, each a bit mask, into sets of one size and one of what remains.
struct Division {
    count: usize,
    size: u32,
    /// Score of every set.
    scores: Vec<u32>,
    /// Doubled, the most that each GPU can add to a sum in a set of 1, 2, … GPUs.
    reach: Vec<Vec<u64>>,
    /// The GPUs that are as near to all others as this one is: to exchange two of them changes no score.
    twins: Vec<u32>,
    /// The most that any set of the wanted size scores.
    top: u64,
    /// What the best division of every set is worth, as far as it is known.
    worths: Vec<u64>,
    /// The set that its lowest GPU is in; 0 where it is not known.
    sets: Vec<u32>,
}

impl Division {
    fn new(count: usize, pair: impl Fn(usize, usize) -> u32, size: u32) -> Self {
        let matrix: Vec<Vec<u32>> = (0..count)
            .map(|a| {
                (0..count)
                    .map(|b| if a == b { 0 } else { pair(a.min(b), a.max(b)) })
                    .collect()
            })
            .collect();
        let reach = matrix.iter().map(|row| {
            let mut row = row.clone();
            row.sort_unstable_by(|a, b| b.cmp(a));
            let sums = row.iter().scan(0, |sum, score| {
                let before = *sum;
                *sum += u64::from(*score);
                Some(before)
            });
            sums.collect()
        });
        let twins = (0..count).map(|a| {
            let alike =
                |b: &usize| (0..count).all(|c| c == a || c == *b || matrix[a][c] == matrix[*b][c]);
            (0..count).filter(alike).fold(0, |set, b| set | 1 << b)
        });
        let twins = twins.collect();
        let scores = set_scores(count, &matrix);
        let sized = (0_u32..)
            .zip(&scores)
            .filter(|(set, _)| set.count_ones() == size);
        let top = sized.map(|(_, score)| u64::from(*score)).max().unwrap_or(0);
        Self {
            count,
            size,
            reach: reach.collect(),
            twins,
            top,
            worths: vec![0; scores.len()],
            sets: vec![0; scores.len()],
            scores,
        }
    }

    /// The set to give, which contains `required`.
    fn best(&mut self, required: u32) -> u32 {
        let all = (1_u32 << self.count) - 1;
        if required == 0 {
            return self.best_of_division(all);
        }
        let mut search = Search {
            of: all,
            sets: Sets::Given,
            best: None,
        };
        let left = self.size - required.count_ones();
        self.extend(&mut search, required, all & !required, left);
        search.best.map_or(required, |(_, set)| set)
    }

    /// The best set of the wanted size in the best division of `all`.
    fn best_of_division(&mut self, all: u32) -> u32 {
        let (mut rest, mut best) = (all, 0);
        while rest.count_ones() >= self.size {
            let (_, set) = self.divide(rest);
            let better = best == 0 || self.scores[set as usize] > self.scores[best as usize];
            if set.count_ones() == self.size && better {
                best = set;
            }
            rest &= !set;
        }
        best
    }

    /// What the best division of `of` is worth and the set that its lowest GPU is in, when that is known without a search.
    fn known(&self, of: u32) -> Option<(Worth, u32)> {
        let score = u64::from(self.scores[of as usize]);
        match of.count_ones().cmp(&self.size) {
            Ordering::Less => Some((Worth::new(score, 0), of)),
            Ordering::Equal => Some((Worth::new(score, score), of)),
            Ordering::Greater => match self.sets[of as usize] {
                0 => None,
                set => Some((Worth(self.worths[of as usize]), set)),
            },
        }
    }

    /// The best division of `of` and the set that its lowest GPU is in.
    fn divide(&mut self, of: u32) -> (Worth, u32) {
        if let Some(known) = self.known(of) {
            return known;
        }
        let lowest = of & of.wrapping_neg();
        let mut search = Search {
            of,
            sets: Sets::Whole,
            best: None,
        };
        self.extend(&mut search, lowest, of & !lowest, self.size - 1);
        let remains = of.count_ones() % self.size;
        if remains > 0 {
            search.sets = Sets::Remaining;
            self.extend(&mut search, lowest, of & !lowest, remains - 1);
        }
        // There is always one: either the lowest GPU is in a whole set, or it remains.
        let best = search.best.unwrap_or((Worth::new(0, 0), of));
        self.worths[of as usize] = best.0.0;
        self.sets[of as usize] = best.1;
        best
    }

    /// The most that a division of `of` can score: each GPU with those nearest to it, and the GPUs that lose least by it in
    /// the smaller set of what remains.
    fn bound(&self, of: u32) -> u64 {
        let whole = self.size as usize - 1;
        let remains = (of.count_ones() % self.size) as usize;
        let mut losses = [u64::MAX; MOST];
        let (mut doubled, mut count) = (0, 0);
        let mut left = of;
        while left != 0 {
            let reach = &self.reach[left.trailing_zeros() as usize];
            doubled += reach[whole];
            if remains > 0 {
                losses[count] = reach[whole] - reach[remains - 1];
                count += 1;
            }
            left &= left - 1;
        }
        if remains > 0 {
            losses[..count].sort_unstable();
            doubled -= losses[..remains].iter().sum::<u64>();
        }
        doubled / 2
    }

    /// Tries every set made of `set` and `left` more GPUs of `from`.
    fn extend(&mut self, search: &mut Search, set: u32, mut from: u32, left: u32) {
        if left == 0 {
            self.weigh(search, set);
            return;
        }
        while from.count_ones() >= left {
            let next = from & from.wrapping_neg();
            from &= !next;
            match left {
                1 => self.weigh(search, set | next),
                _ => self.extend(search, set | next, from, left - 1),
            }
            // Without this one, a twin of it would make the same set over again.
            from &= !self.twins[next.trailing_zeros() as usize];
        }
    }

    fn weigh(&mut self, search: &mut Search, set: u32) {
        let score = u64::from(self.scores[set as usize]);
        let rest = search.of & !set;
        let worth = match (self.known(rest), search.best) {
            (Some((worth, _)), _) => worth,
            (None, Some((best, _))) if Worth::new(score + self.bound(rest), self.top) <= best => {
                return;
            }
            _ => self.divide(rest).0,
        };
        let best_set = match search.sets {
            Sets::Given => score,
            Sets::Whole => score.max(worth.best_set()),
            Sets::Remaining => worth.best_set(),
        };
        let worth = Worth::new(score + worth.sum(), best_set);
        if search.best.is_none_or(|(best, _)| worth > best) {
            search.best = Some((worth, set));
        }
    }
}

/// Which sets a search is among.
enum Sets {
    /// The one to give, whatever the others score.
    Given,
    /// Any of the wanted size.
    Whole,
    /// What remains when no more whole sets can be made.
    Remaining,
}

/// A search for the best set to take out of `of`.
struct Search {
    of: u32,
    sets: Sets,
    best: Option<(Worth, u32)>,
}

/// The sum of the pairs of every set.
fn set_scores(count: usize, matrix: &[Vec<u32>]) -> Vec<u32> {
    // What a GPU adds to a set of 8 GPUs, by the half of the node they are in.
    let mut halves = vec![[[0_u32; 256]; 2]; count];
    for (row, halves) in matrix.iter().zip(&mut halves) {
        for (half, table) in halves.iter_mut().enumerate() {
            for set in 1..256_usize {
                let lowest = set.trailing_zeros() as usize;
                let own = row.get(8 * half + lowest).copied().unwrap_or_default();
                table[set] = table[set & (set - 1)] + own;
            }
        }
    }
    let mut scores = vec![0; 1 << count];
    for set in 1..scores.len() {
        let rest = set & (set - 1);
        let [low, high] = &halves[set.trailing_zeros() as usize];
        scores[set] = scores[rest] + low[rest & 255] + high[rest >> 8];
    }
    scores
}

#[cfg(test)]
#[path = "nearest_tests.rs"]
mod tests;
