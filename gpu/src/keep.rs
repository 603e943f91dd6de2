//! Which of the existing instances stay, so that the wanted devices come about with the least disturbance.
//!
//! Exact: of all ways to reach the wanted devices it finds one that keeps the most devices with processes on them, then the
//! most devices, then the most GPU instances, and then needs the fewest new GPU instances. Devices that are no whole GPU
//! instance (`1c.3g.40gb`) share GPU instances, existing ones included.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use crate::compute::{ComputePacker, Counts, subtract};
use crate::placement::{Placed, Solver};
use crate::{Board, Client, GpuInstance, Impossible, InstanceProfile, Layout, Placement, Profile};

/// A way to the wanted devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrangement {
    /// What becomes of each instance of the layout, in its order.
    pub(crate) fates: Vec<Fate>,
    /// New GPU instances, ascending by start, each with the placements of its compute instances.
    pub(crate) new: Vec<(Placed, Vec<Placement>)>,
}

/// What becomes of an existing GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes.
    Destroyed,
    /// It stays.
    Kept {
        /// Which of its compute instances stay, as positions.
        compute: Vec<usize>,
        /// Compute instances to add.
        added: Vec<Placement>,
    },
}

/// Finds the arrangement for `wanted` devices, beginning with `layout`.
pub(crate) fn arrange(
    board: &Board,
    layout: &Layout,
    clients: &[Client],
    wanted: &BTreeMap<Profile, u32>,
) -> Result<Arrangement, Impossible> {
    let solver = Solver::new(board);
    let demands = demands(board, &solver, wanted)?;
    let mut existing = layout
        .instances
        .iter()
        .enumerate()
        .map(|(position, instance)| {
            Existing::new(board, &solver, &demands, clients, position, instance)
        })
        .collect::<Vec<_>>();
    // The driver's preference again: of equals, those that leave the largest block free stay.
    existing.sort_by_key(|existing| (existing.rank, existing.instance.placement));
    let mut search = Search {
        solver: &solver,
        demands: &demands,
        existing: &existing,
        known: HashMap::new(),
        packed: HashMap::new(),
    };
    let start = State {
        next: 0,
        taken: 0,
        held: vec![0; solver.len()],
        wanted: demands.iter().map(|demand| demand.counts.clone()).collect(),
    };
    match search.arrangement(start) {
        Some(arrangement) => Ok(arrangement),
        None => Err(over_capacity(&solver, &demands, wanted)),
    }
}

/// What is wanted of one GPU-instance profile.
struct Demand<'a> {
    name: Profile,
    profile: &'a InstanceProfile,
    /// Position among the solver's counts.
    shape: usize,
    packer: ComputePacker,
    /// Wanted compute instances, by the packer's choices.
    counts: Counts,
}

/// Sorts the wanted devices by GPU-instance profile.
fn demands<'a>(
    board: &'a Board,
    solver: &Solver,
    wanted: &BTreeMap<Profile, u32>,
) -> Result<Vec<Demand<'a>>, Impossible> {
    let mut demands = BTreeMap::new();
    for (name, count) in wanted.iter().filter(|(_, count)| **count > 0) {
        let profile = board.resolve(name)?.instance;
        let Some(shape) = solver.position(profile.id) else {
            continue;
        };
        let demand = demands.entry(shape).or_insert_with(|| {
            let packer = ComputePacker::new(profile);
            let counts = vec![0; packer.choices().len()];
            Demand {
                name: name.whole(),
                profile,
                shape,
                packer,
                counts,
            }
        });
        let choices = demand.packer.choices().iter().zip(&mut demand.counts);
        for (choice, sum) in choices.filter(|(choice, _)| choice.slices == name.compute_slices()) {
            let max = solver
                .capacity(shape)
                .saturating_mul(choice.max_instances.min(profile.slices));
            if *count > max {
                return Err(Impossible::TooMany {
                    profile: name.clone(),
                    wanted: *count,
                    max,
                });
            }
            *sum = *count;
        }
    }
    Ok(demands.into_values().collect())
}

/// An instance there is, and what it could serve as.
struct Existing<'a> {
    position: usize,
    instance: &'a GpuInstance,
    shape: Option<usize>,
    rank: usize,
    /// Which demand it could serve.
    demand: Option<usize>,
    /// Its compute instances that could serve: position, choice, slices as bits, whether a process runs there.
    compute: Vec<Part>,
    /// Slices taken as bits.
    mask: u64,
    /// Whether a process runs in it whose compute instance is unknown.
    is_busy: bool,
}

struct Part {
    position: usize,
    choice: usize,
    mask: u64,
    is_busy: bool,
}

impl<'a> Existing<'a> {
    fn new(
        board: &Board,
        solver: &Solver,
        demands: &[Demand<'_>],
        clients: &[Client],
        position: usize,
        instance: &'a GpuInstance,
    ) -> Self {
        let name = board
            .profile(instance.profile_id)
            .map(|profile| board.name(profile));
        let mask = instance.placement.mask();
        // By name: two ids of one name are the same thing to whoever asked.
        let demand = demands
            .iter()
            .position(|demand| mask.is_some() && Some(&demand.name) == name.as_ref());
        let here = || {
            clients
                .iter()
                .filter(|client| client.gpu_instance == Some(instance.id))
        };
        let part = |(position, compute): (usize, &crate::ComputeInstance)| {
            let choices = demands.get(demand?)?.packer.choices();
            Some(Part {
                position,
                choice: choices
                    .iter()
                    .position(|choice| choice.slices == compute.placement.size)?,
                mask: compute.placement.mask()?,
                is_busy: here().any(|client| client.compute_instance == Some(compute.id)),
            })
        };
        Self {
            position,
            instance,
            shape: solver.position(instance.profile_id),
            rank: solver.rank(Placed {
                profile_id: instance.profile_id,
                placement: instance.placement,
            }),
            demand,
            compute: instance
                .compute
                .iter()
                .enumerate()
                .filter_map(part)
                .collect(),
            mask: mask.unwrap_or(0),
            is_busy: here().any(|client| client.compute_instance.is_none()),
        }
    }
}

/// Devices with processes kept, devices kept, GPU instances kept, new GPU instances. Larger is better.
type Worth = (u32, u32, u32, Reverse<usize>);

/// A point in the search: the fates of all existing instances before `next` are chosen.
#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    next: usize,
    taken: u64,
    held: Vec<u32>,
    wanted: Vec<Counts>,
}

/// A fate with what it is worth by itself and where it leads.
struct Choice {
    fate: Fate,
    worth: (u32, u32, u32),
    next: State,
}

/// Dynamic programme over the existing instances.
struct Search<'a> {
    solver: &'a Solver,
    demands: &'a [Demand<'a>],
    existing: &'a [Existing<'a>],
    known: HashMap<State, Option<Worth>>,
    /// New GPU instances that hold what is wanted of one demand.
    packed: HashMap<(usize, Counts), Option<Vec<Vec<Placement>>>>,
}

impl Search<'_> {
    /// What is best from here on; `None` when the wanted devices cannot be reached from here.
    fn worth(&mut self, state: &State) -> Option<Worth> {
        if let Some(worth) = self.known.get(state) {
            return *worth;
        }
        let worth = if state.next == self.existing.len() {
            self.finish(state).map(|new| (0, 0, 0, Reverse(new.len())))
        } else {
            let mut best = None;
            for choice in self.choices(state) {
                best = best.max(self.total(&choice));
            }
            best
        };
        self.known.insert(state.clone(), worth);
        worth
    }

    fn total(&mut self, choice: &Choice) -> Option<Worth> {
        let rest = self.worth(&choice.next)?;
        let (busy, devices, instances) = choice.worth;
        Some((rest.0 + busy, rest.1 + devices, rest.2 + instances, rest.3))
    }

    fn arrangement(&mut self, mut state: State) -> Option<Arrangement> {
        let mut fates = vec![Fate::Destroyed; self.existing.len()];
        while let Some(existing) = self.existing.get(state.next) {
            let best = self.worth(&state)?;
            let choices = self.choices(&state);
            let mut choices = choices.into_iter();
            let choice = choices.find(|choice| self.total(choice) == Some(best))?;
            if let Some(fate) = fates.get_mut(existing.position) {
                *fate = choice.fate;
            }
            state = choice.next;
        }
        let new = self.finish(&state)?;
        Some(Arrangement { fates, new })
    }

    /// The possible fates of the next instance, keeping first.
    fn choices(&self, state: &State) -> Vec<Choice> {
        let Some(existing) = self.existing.get(state.next) else {
            return Vec::new();
        };
        let mut choices = Vec::new();
        if let Some(demand) = existing.demand
            && let Some(wanted) = state.wanted.get(demand)
        {
            for kept in subsets(&existing.compute) {
                self.keep(existing, demand, wanted, &kept, state, &mut choices);
            }
        }
        choices.push(Choice {
            fate: Fate::Destroyed,
            worth: (0, 0, 0),
            next: State {
                next: state.next + 1,
                ..state.clone()
            },
        });
        choices
    }

    /// Keeps an instance with these of its compute instances, and adds others in all possible ways.
    fn keep(
        &self,
        existing: &Existing<'_>,
        demand: usize,
        wanted: &[u32],
        kept: &[&Part],
        state: &State,
        choices: &mut Vec<Choice>,
    ) {
        let packer = &self.demands[demand].packer;
        let mut held = vec![0; packer.choices().len()];
        for part in kept {
            held[part.choice] += 1;
        }
        let Some(wanted) = subtract(wanted, &held) else {
            return;
        };
        let taken = kept.iter().fold(0, |taken, part| taken | part.mask);
        let busy = kept.iter().filter(|part| part.is_busy).count() + usize::from(existing.is_busy);
        for (counts, added) in packer.fills(taken, &held, &wanted) {
            if kept.is_empty() && added.is_empty() {
                continue;
            }
            let Some(rest) = subtract(&wanted, &counts) else {
                continue;
            };
            let mut next = State {
                next: state.next + 1,
                taken: state.taken | existing.mask,
                ..state.clone()
            };
            next.wanted[demand] = rest;
            if let Some(shape) = existing.shape {
                next.held[shape] += 1;
            }
            choices.push(Choice {
                fate: Fate::Kept {
                    compute: kept.iter().map(|part| part.position).collect(),
                    added,
                },
                worth: (count(busy), count(kept.len()), 1),
                next,
            });
        }
    }

    /// Places what the kept instances do not provide.
    fn finish(&mut self, state: &State) -> Option<Vec<(Placed, Vec<Placement>)>> {
        let mut counts = vec![0; self.solver.len()];
        let mut contents = BTreeMap::new();
        for (index, (demand, wanted)) in self.demands.iter().zip(&state.wanted).enumerate() {
            let packed = self
                .packed
                .entry((index, wanted.clone()))
                .or_insert_with(|| demand.packer.pack(wanted));
            let bins = packed.clone()?;
            counts[demand.shape] = count(bins.len());
            contents.insert(demand.profile.id, bins);
        }
        let placed = self.solver.solve(state.taken, &state.held, &counts)?;
        let mut new = Vec::new();
        for placed in placed {
            new.push((placed, contents.get_mut(&placed.profile_id)?.pop()?));
        }
        new.sort_by_key(|(placed, _)| placed.placement);
        Some(new)
    }
}

/// All subsets, larger ones first.
fn subsets(parts: &[Part]) -> Vec<Vec<&Part>> {
    let mut subsets = vec![Vec::new()];
    for part in parts {
        let with = subsets.iter().map(|subset: &Vec<&Part>| {
            let mut subset = subset.clone();
            subset.push(part);
            subset
        });
        let with = with.collect::<Vec<_>>();
        subsets.extend(with);
    }
    subsets.sort_by_key(|subset| Reverse(subset.len()));
    subsets
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Names the devices that do not fit on the empty GPU.
fn over_capacity(
    solver: &Solver,
    demands: &[Demand<'_>],
    wanted: &BTreeMap<Profile, u32>,
) -> Impossible {
    let mut counts = vec![0; solver.len()];
    let mut contents = Vec::new();
    for demand in demands {
        let mut bins = demand.packer.pack(&demand.counts).unwrap_or_default();
        bins.sort_by_key(|bin| Reverse(bin.len()));
        counts[demand.shape] = count(bins.len());
        contents.push((demand, bins));
    }
    let left_out = solver.fewest_missing(0, &vec![0; solver.len()], &counts);
    let mut missing = BTreeMap::new();
    for (demand, bins) in contents {
        // Leave out the GPU instances that hold the fewest devices.
        let left_out = left_out[demand.shape];
        for placement in bins.iter().rev().zip(0..left_out).flat_map(|(bin, _)| bin) {
            let device = demand.name.clone().with_compute_slices(placement.size);
            *missing.entry(device).or_default() += 1;
        }
    }
    let wanted = wanted.iter().filter(|(_, count)| **count > 0);
    Impossible::OverCapacity {
        missing,
        wanted: wanted
            .map(|(profile, count)| (profile.clone(), *count))
            .collect(),
    }
}
