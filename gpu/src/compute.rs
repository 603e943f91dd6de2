//! How compute instances lie inside one GPU instance.
//!
//! NVML tells the compute profiles of a GPU-instance profile, and their placements, only once such an instance exists. A plan
//! is made before, so this module holds the rules that every capture of a driver agrees with.

use std::collections::BTreeMap;

use crate::{InstanceProfile, Placement};

/// The driver keeps room for this many compute instances in one GPU instance.
pub(crate) const MAX_COMPUTE_INSTANCES: u32 = 8;

/// `NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2`, the 1g profile with the memory of a 2g.
const DOUBLE_MEMORY_INDEX: u32 = 9;

/// A size of compute instance that a GPU-instance profile offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeChoice {
    /// Compute-instance profile id. Where the driver has not told (see [`InstanceProfile::compute_choices`]), the id that the
    /// header's enumeration suggests; look it up by `slices` once the GPU instance exists.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// How many fit into an empty GPU instance.
    pub max_instances: u32,
}

impl InstanceProfile {
    /// The sizes of compute instance inside, ascending: as the driver told, or by rule when it could not.
    ///
    /// The rule: the whole width, and every size of the header that fits about twice (`2C ≤ G + 1`, the condition under which
    /// go-nvlib lists a size).
    #[must_use]
    pub fn compute_choices(&self) -> Vec<ComputeChoice> {
        let mut choices = if self.compute.is_empty() {
            self.compute_choices_by_rule()
        } else {
            let told = self.compute.iter().map(|profile| ComputeChoice {
                id: profile.id,
                slices: profile.slices,
                max_instances: profile.max_instances,
            });
            told.filter(|choice| choice.slices > 0 && choice.slices <= self.slices)
                .collect()
        };
        choices.sort_by_key(|choice| choice.slices);
        choices.dedup_by_key(|choice| choice.slices);
        choices
    }

    fn compute_choices_by_rule(&self) -> Vec<ComputeChoice> {
        /// Slices and ids of `NVML_COMPUTE_INSTANCE_PROFILE_*`; in every capture the id equals the enumeration index.
        const SIZES: [(u32, u32); 7] = [(1, 0), (2, 1), (3, 2), (4, 3), (6, 6), (7, 4), (8, 5)];
        const ONE_SLICE_REV1: u32 = 7;
        let is_offered = |slices| {
            slices == self.slices
                || 2 * slices <= self.slices.saturating_add(1) && slices < self.slices
        };
        let sizes = SIZES.into_iter().filter(|(slices, _)| is_offered(*slices));
        sizes
            .map(|(slices, id)| ComputeChoice {
                id: if self.index == DOUBLE_MEMORY_INDEX {
                    ONE_SLICE_REV1
                } else {
                    id
                },
                slices,
                max_instances: u32::try_from(compute_placements(self.slices, slices).count())
                    .unwrap_or(0),
            })
            .collect()
    }
}

/// Where a compute instance of `size` slices can lie in a GPU instance of `slices`, ascending: at multiples of the next power
/// of two. The counts that drivers report (7g: 7, 3, 2, 1, 1 for 1c, 2c, 3c, 4c, 7c) are those of this rule.
pub fn compute_placements(slices: u32, size: u32) -> impl Iterator<Item = Placement> {
    let step = size.max(1).checked_next_power_of_two().unwrap_or(u32::MAX);
    let end = slices.min(u64::BITS);
    let starts = (0..end).step_by(usize::try_from(step).unwrap_or(usize::MAX));
    starts
        .map(move |start| Placement { start, size })
        .filter(move |placement| size > 0 && placement.end() <= end)
}

/// One GPU-instance profile's compute instances, with the packing of many of them into few GPU instances.
#[derive(Clone, Debug)]
pub(crate) struct ComputePacker {
    slices: u32,
    choices: Vec<ComputeChoice>,
}

/// How many compute instances of each choice; indexed like [`ComputePacker::choices`].
pub(crate) type Counts = Vec<u32>;

impl ComputePacker {
    pub(crate) fn new(profile: &InstanceProfile) -> Self {
        Self {
            slices: profile.slices,
            choices: profile.compute_choices(),
        }
    }

    /// The offered sizes, ascending.
    pub(crate) fn choices(&self) -> &[ComputeChoice] {
        &self.choices
    }

    /// Everything that fits beside what a GPU instance already holds: sub-multisets of `wanted` (the empty one among them),
    /// each with placements. `held` says what the instance holds, `taken` which of its slices that covers.
    pub(crate) fn fills(
        &self,
        taken: u64,
        held: &[u32],
        wanted: &[u32],
    ) -> BTreeMap<Counts, Vec<Placement>> {
        let mut found = BTreeMap::new();
        let mut chosen = Fill {
            counts: vec![0; self.choices.len()],
            placements: Vec::new(),
        };
        self.fill_from(
            self.choices.len(),
            0,
            taken,
            held,
            wanted,
            &mut chosen,
            &mut found,
        );
        found
    }

    /// Tries what can still be added: choices below `choice` (the larger ones are done), and of choice `choice - 1` only
    /// placements from `first` on, so that each set of placements is met once.
    #[expect(
        clippy::too_many_arguments,
        reason = "one recursion's state; a struct would only rename it"
    )]
    fn fill_from(
        &self,
        choice: usize,
        first: u32,
        taken: u64,
        held: &[u32],
        wanted: &[u32],
        chosen: &mut Fill,
        found: &mut BTreeMap<Counts, Vec<Placement>>,
    ) {
        let Some(index) = choice.checked_sub(1) else {
            found
                .entry(chosen.counts.clone())
                .or_insert_with(|| chosen.placements.clone());
            return;
        };
        let ComputeChoice {
            slices,
            max_instances,
            ..
        } = self.choices[index];
        let all = held.iter().sum::<u32>() + chosen.counts.iter().sum::<u32>();
        let same = held[index] + chosen.counts[index];
        if all < MAX_COMPUTE_INSTANCES
            && same < max_instances
            && chosen.counts[index] < wanted[index]
        {
            let free = compute_placements(self.slices, slices)
                .filter(|placement| placement.start >= first)
                .filter_map(|placement| Some((placement, placement.mask()?)))
                .filter(|(_, mask)| mask & taken == 0);
            for (placement, mask) in free {
                chosen.counts[index] += 1;
                chosen.placements.push(placement);
                self.fill_from(
                    choice,
                    placement.end(),
                    taken | mask,
                    held,
                    wanted,
                    chosen,
                    found,
                );
                chosen.placements.pop();
                chosen.counts[index] -= 1;
            }
        }
        self.fill_from(index, 0, taken, held, wanted, chosen, found);
    }

    /// The fewest GPU instances that hold these compute instances, with each one's content. `None` when not even one of
    /// them fits into an empty GPU instance.
    pub(crate) fn pack(&self, wanted: &[u32]) -> Option<Vec<Vec<Placement>>> {
        let fills = self.fills(0, &vec![0; self.choices.len()], wanted);
        let bins = fewest_bins(wanted, &fills, &mut BTreeMap::new())?;
        Some(
            bins.into_iter()
                .filter_map(|counts| fills.get(&counts).cloned())
                .collect(),
        )
    }
}

struct Fill {
    counts: Counts,
    placements: Vec<Placement>,
}

/// The fewest of `fills` that add up to `wanted`.
fn fewest_bins(
    wanted: &[u32],
    fills: &BTreeMap<Counts, Vec<Placement>>,
    known: &mut BTreeMap<Counts, Option<Vec<Counts>>>,
) -> Option<Vec<Counts>> {
    let Some(largest) = wanted.iter().rposition(|count| *count > 0) else {
        return Some(Vec::new());
    };
    if let Some(answer) = known.get(wanted) {
        return answer.clone();
    }
    let mut best = None::<Vec<Counts>>;
    // The largest one left has to lie somewhere: only fills with it need trying. Fullest first.
    for fill in fills.keys().rev().filter(|fill| fill[largest] > 0) {
        let Some(rest) = subtract(wanted, fill) else {
            continue;
        };
        if let Some(mut bins) = fewest_bins(&rest, fills, known)
            && best.as_ref().is_none_or(|best| bins.len() + 1 < best.len())
        {
            bins.insert(0, fill.clone());
            best = Some(bins);
        }
    }
    known.insert(wanted.to_vec(), best.clone());
    best
}

/// `from - what`, or `None` when that is negative somewhere.
pub(crate) fn subtract(from: &[u32], what: &[u32]) -> Option<Counts> {
    from.iter()
        .zip(what)
        .map(|(from, what)| from.checked_sub(*what))
        .collect()
}
