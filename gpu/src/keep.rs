//! Which of the existing instances stay, so that the wanted devices come about with the least disturbance.
//!
//! Exact: of all ways to reach the wanted devices it finds one that keeps the most devices with processes on them, then the
//! most devices, then the most GPU instances, and then needs the fewest new GPU instances. Devices that are no whole GPU
//! instance (`1c.3g.40gb`) share GPU instances, existing ones included.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use crate::compute::{Counts, MAX_COMPUTE_INSTANCES, subtract};
use crate::demand::{Demand, demands, over_capacity};
use crate::placement::{Placed, Solver};
use crate::{Board, Client, GpuInstance, Impossible, Layout, Placement, Profile};

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
                .take(MAX_COMPUTE_INSTANCES as usize)
                .collect(),
            mask: mask.unwrap_or(0),
            is_busy: here().any(|client| client.compute_instance.is_none()),
        }
    }

    /// What keeping all of it is worth in devices with processes.
    fn busy(&self) -> usize {
        let parts = self.compute.iter().filter(|part| part.is_busy);
        parts.count() + usize::from(self.is_busy)
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

/// Dynamic programme over the existing instances, cut short where a choice reaches what is possible at all.
struct Search<'a> {
    solver: &'a Solver,
    demands: &'a [Demand<'a>],
    existing: &'a [Existing<'a>],
    known: HashMap<State, Option<Worth>>,
    /// New GPU instances that hold what is wanted of one demand.
    packed: HashMap<(usize, Counts), Option<Vec<Vec<Placement>>>>,
}

impl<'a> Search<'a> {
    /// What is best from here on; `None` when the wanted devices cannot be reached from here.
    fn worth(&mut self, state: &State) -> Option<Worth> {
        if let Some(worth) = self.known.get(state) {
            return *worth;
        }
        let worth = if state.next == self.existing.len() {
            self.finish(state).map(|new| (0, 0, 0, Reverse(new.len())))
        } else {
            let bound = self.bound(state);
            let mut best = None;
            for choice in choices(self.existing, self.demands, state) {
                best = best.max(self.total(&choice));
                if best >= Some(bound) {
                    break;
                }
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

    /// Nothing from here on can be worth more: everything that could serve stays, as far as it is wanted.
    fn bound(&mut self, state: &State) -> Worth {
        let mut bound = (0, 0, 0, Reverse(0));
        for (index, wanted) in state.wanted.iter().enumerate() {
            let rest = self.existing.iter().skip(state.next);
            let (mut instances, mut devices) = (0, 0);
            for existing in rest.filter(|existing| existing.demand == Some(index)) {
                instances += 1;
                devices += existing.compute.len();
                bound.0 += count(existing.busy());
            }
            let all = wanted.iter().sum::<u32>();
            bound.1 += count(devices).min(all);
            bound.2 += count(instances).min(all);
            let needed = self.pack(index, wanted).as_ref().map_or(0, Vec::len);
            bound.3.0 += needed.saturating_sub(instances);
        }
        bound
    }

    fn arrangement(&mut self, mut state: State) -> Option<Arrangement> {
        let mut fates = vec![Fate::Destroyed; self.existing.len()];
        while let Some(existing) = self.existing.get(state.next) {
            let best = self.worth(&state)?;
            let mut choices = choices(self.existing, self.demands, &state);
            let choice = choices.find(|choice| self.total(choice) == Some(best))?;
            drop(choices);
            if let Some(fate) = fates.get_mut(existing.position) {
                *fate = choice.fate;
            }
            state = choice.next;
        }
        let new = self.finish(&state)?;
        Some(Arrangement { fates, new })
    }

    fn pack(&mut self, demand: usize, wanted: &Counts) -> &Option<Vec<Vec<Placement>>> {
        let packer = &self.demands[demand].packer;
        self.packed
            .entry((demand, wanted.clone()))
            .or_insert_with(|| packer.pack(wanted))
    }

    /// Places what the kept instances do not provide.
    fn finish(&mut self, state: &State) -> Option<Vec<(Placed, Vec<Placement>)>> {
        let mut counts = vec![0; self.solver.len()];
        let mut contents = BTreeMap::new();
        let demands = self.demands;
        for (index, (demand, wanted)) in demands.iter().zip(&state.wanted).enumerate() {
            let bins = self.pack(index, wanted).clone()?;
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

/// The possible fates of the next instance, those that keep most first.
fn choices<'a>(
    existing: &'a [Existing<'a>],
    demands: &'a [Demand<'a>],
    state: &'a State,
) -> impl Iterator<Item = Choice> {
    let existing = existing.get(state.next);
    let serving = existing.and_then(|existing| Some((existing, existing.demand?)));
    let kept = serving.into_iter().flat_map(move |(existing, demand)| {
        let subsets = subsets(&existing.compute);
        subsets.flat_map(move |kept| keeping(existing, demand, &demands[demand], &kept, state))
    });
    let destroyed = Choice {
        fate: Fate::Destroyed,
        worth: (0, 0, 0),
        next: State {
            next: state.next + 1,
            ..state.clone()
        },
    };
    kept.chain([destroyed])
}

/// All ways to keep an instance with these of its compute instances, adding others where there is room.
fn keeping(
    existing: &Existing<'_>,
    demand: usize,
    Demand { packer, .. }: &Demand<'_>,
    kept: &[&Part],
    state: &State,
) -> Vec<Choice> {
    let mut held = vec![0; packer.choices().len()];
    for part in kept {
        held[part.choice] += 1;
    }
    let Some(wanted) = subtract(&state.wanted[demand], &held) else {
        return Vec::new();
    };
    let taken = kept.iter().fold(0, |taken, part| taken | part.mask);
    let busy = kept.iter().filter(|part| part.is_busy).count() + usize::from(existing.is_busy);
    let fills = packer.fills(taken, &held, &wanted).into_iter().rev();
    let choices = fills.filter_map(|(counts, added)| {
        // A GPU instance without compute instance is no device.
        if kept.is_empty() && added.is_empty() {
            return None;
        }
        let mut next = State {
            next: state.next + 1,
            taken: state.taken | existing.mask,
            ..state.clone()
        };
        next.wanted[demand] = subtract(&wanted, &counts)?;
        if let Some(shape) = existing.shape {
            next.held[shape] += 1;
        }
        Some(Choice {
            fate: Fate::Kept {
                compute: kept.iter().map(|part| part.position).collect(),
                added,
            },
            worth: (count(busy), count(kept.len()), 1),
            next,
        })
    });
    choices.collect()
}

/// All subsets, larger ones first.
fn subsets(parts: &[Part]) -> impl Iterator<Item = Vec<&Part>> {
    let mut subsets = (0..1_u32 << parts.len()).collect::<Vec<_>>();
    subsets.sort_by_key(|subset| Reverse(subset.count_ones()));
    subsets.into_iter().map(|subset| {
        let members = parts.iter().enumerate();
        let members = members.filter(|(position, _)| subset >> position & 1 == 1);
        members.map(|(_, part)| part).collect()
    })
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
