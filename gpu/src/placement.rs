//! Where GPU instances go: exact placements for a multiset of profiles beside what is kept, or the proof that there are none.
//!
//! The driver places an instance wherever its own preference says, one at a time, so the order of creation decides whether a
//! mix fits. Here the whole mix is placed at once and every instance is then created at its place: the order does not matter.
//! This module knows geometry and shared engines only; what is worth keeping is decided in `keep`.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{Board, Engines, InstanceProfile, Placement};

/// A GPU instance as geometry: which profile, where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Placed {
    /// GPU-instance profile id.
    pub profile_id: u32,
    /// The memory slices it takes.
    pub placement: Placement,
}

/// There is no way to place everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaceable {
    /// A smallest set of instances to leave out so that the rest fits, by profile id. Of several such sets the one that
    /// takes the fewest memory slices.
    pub missing: BTreeMap<u32, u32>,
}

/// Places `wanted` (instances by profile id) beside `kept`.
///
/// The answer depends on the values alone, not on the order of the board's profiles or of `kept`. Of all solutions it is the
/// one that the driver's own preference would choose, largest instances first: this leaves the largest block free and gives
/// layouts the instance ids that users know. Profile ids that the board lacks count as not fitting.
pub fn place(
    board: &Board,
    kept: &[Placed],
    wanted: &BTreeMap<u32, u32>,
) -> Result<Vec<Placed>, Unplaceable> {
    let solver = Solver::new(board);
    let mut counts = vec![0; solver.shapes.len()];
    let mut missing = BTreeMap::new();
    for (id, count) in wanted {
        match solver.position(*id) {
            Some(position) => counts[position] = *count,
            None if *count > 0 => drop(missing.insert(*id, *count)),
            None => {}
        }
    }
    let mut taken = 0;
    let mut held = vec![0; solver.shapes.len()];
    for instance in kept {
        taken |= instance.placement.mask().unwrap_or(u64::MAX);
        if let Some(position) = solver.position(instance.profile_id) {
            held[position] += 1;
        }
    }
    if missing.is_empty()
        && let Some(placed) = solver.solve(taken, &held, &counts)
    {
        return Ok(placed);
    }
    let left_out = solver.fewest_missing(taken, &held, &counts);
    missing.extend(
        left_out
            .iter()
            .zip(&solver.shapes)
            .filter_map(|(count, shape)| (*count > 0).then_some((shape.id, *count))),
    );
    Err(Unplaceable { missing })
}

/// The kinds of engine, in one order.
const ENGINES: usize = 5;

fn engine_counts(engines: Engines) -> [u32; ENGINES] {
    let Engines {
        copy,
        decoder,
        encoder,
        jpeg,
        ofa,
    } = engines;
    [copy, decoder, encoder, jpeg, ofa]
}

/// A profile as the solver sees it.
#[derive(Debug)]
struct Shape {
    id: u32,
    size: u32,
    max_instances: u32,
    engines: [u32; ENGINES],
    /// Where it can lie, most preferred first.
    places: Vec<(Placement, u64)>,
}

/// One board, prepared for many questions. Counts are indexed like `shapes`: largest first.
#[derive(Debug)]
pub(crate) struct Solver {
    shapes: Vec<Shape>,
    /// The GPU's engines; `None` where the kind does not constrain.
    limits: [Option<u32>; ENGINES],
}

/// Instances and memory slices left out; smaller is better.
type Cost = (u64, u64);

impl Solver {
    pub(crate) fn new(board: &Board) -> Self {
        let order = preference(board);
        let mut profiles = board.profiles.iter().collect::<Vec<_>>();
        profiles.sort_by_key(|profile| {
            (
                std::cmp::Reverse((size(profile), profile.slices)),
                profile.placements.len(),
                profile.id,
            )
        });
        profiles.dedup_by_key(|profile| profile.id);
        let shapes = profiles.into_iter().map(|profile| {
            let places = profile
                .placements
                .iter()
                .filter_map(|at| Some((*at, at.mask()?)));
            let mut places = places.collect::<Vec<_>>();
            places.sort_by_key(|(at, _)| (order(*at), *at));
            places.dedup();
            Shape {
                id: profile.id,
                size: size(profile),
                max_instances: profile
                    .max_instances
                    .min(u32::try_from(places.len()).unwrap_or(u32::MAX)),
                engines: engine_counts(profile.engines),
                places,
            }
        });
        Self {
            shapes: shapes.collect(),
            limits: engine_limits(board),
        }
    }

    /// Where a profile id stands among the counts.
    pub(crate) fn position(&self, id: u32) -> Option<usize> {
        self.shapes.iter().position(|shape| shape.id == id)
    }

    /// How many instances of one profile an empty GPU takes at most, by count alone.
    pub(crate) fn capacity(&self, position: usize) -> u32 {
        self.shapes
            .get(position)
            .map_or(0, |shape| shape.max_instances)
    }

    /// How many profiles there are.
    pub(crate) fn len(&self) -> usize {
        self.shapes.len()
    }

    /// How far a placement is down in its profile's list of preference.
    pub(crate) fn rank(&self, placed: Placed) -> usize {
        let shape = self
            .shapes
            .iter()
            .find(|shape| shape.id == placed.profile_id);
        shape
            .and_then(|shape| {
                shape
                    .places
                    .iter()
                    .position(|(at, _)| *at == placed.placement)
            })
            .unwrap_or(usize::MAX)
    }

    /// Exact placements, grouped by profile from the largest on, or `None` when there are none.
    pub(crate) fn solve(&self, taken: u64, held: &[u32], wanted: &[u32]) -> Option<Vec<Placed>> {
        if !self.is_within_limits(held, wanted) {
            return None;
        }
        let mut search = Search {
            solver: self,
            wanted,
            placed: Vec::new(),
            dead_ends: HashSet::new(),
        };
        search.place_from(0, 0, 0, taken).then_some(search.placed)
    }

    /// Whether the numbers alone allow it: instances per profile and engines in total.
    fn is_within_limits(&self, held: &[u32], wanted: &[u32]) -> bool {
        let mut engines = [0_u32; ENGINES];
        for ((shape, held), wanted) in self.shapes.iter().zip(held).zip(wanted) {
            let count = held.saturating_add(*wanted);
            if *wanted > 0 && count > shape.max_instances {
                return false;
            }
            for (sum, each) in engines.iter_mut().zip(shape.engines) {
                *sum = sum.saturating_add(each.saturating_mul(count));
            }
        }
        self.allows(engines)
    }

    fn allows(&self, engines: [u32; ENGINES]) -> bool {
        engines
            .iter()
            .zip(self.limits)
            .all(|(used, limit)| limit.is_none_or(|limit| *used <= limit))
    }

    /// The fewest instances to leave out so that the rest fits, per profile.
    pub(crate) fn fewest_missing(&self, taken: u64, held: &[u32], wanted: &[u32]) -> Vec<u32> {
        let mut engines = [0_u32; ENGINES];
        for (shape, held) in self.shapes.iter().zip(held) {
            for (sum, each) in engines.iter_mut().zip(shape.engines) {
                *sum = sum.saturating_add(each.saturating_mul(*held));
            }
        }
        let mut shortage = Shortage {
            solver: self,
            held,
            wanted,
            known: HashMap::new(),
        };
        shortage.trace(State {
            shape: 0,
            place: 0,
            placed: 0,
            taken,
            engines,
        })
    }
}

fn size(profile: &InstanceProfile) -> u32 {
    profile
        .placements
        .iter()
        .map(|at| at.size)
        .max()
        .unwrap_or(0)
}

/// Engines that the GPU has, as far as they constrain: those of the largest profile, for each kind of which every profile's
/// full number of instances finds enough. A table that breaks this is inconsistent (some drivers and documents count shared
/// engines as owned ones), and must not forbid what the driver would accept.
fn engine_limits(board: &Board) -> [Option<u32>; ENGINES] {
    let largest = board
        .profiles
        .iter()
        .max_by_key(|profile| (size(profile), profile.slices));
    let Some(largest) = largest else {
        return [None; ENGINES];
    };
    let totals = engine_counts(largest.engines);
    std::array::from_fn(|kind| {
        let fits = |profile: &InstanceProfile| {
            let all = engine_counts(profile.engines)[kind].saturating_mul(profile.max_instances);
            all <= totals[kind]
        };
        board.profiles.iter().all(fits).then_some(totals[kind])
    })
}

/// The order in which the driver tries placements when it is given none.
///
/// With eight memory and seven compute slices the last memory slice has no compute slice, so the upper half is worth less
/// and is used up first. These lists reproduce the instance ids of all captures of drivers since R510; boards of other
/// geometry are filled from the start.
fn preference(board: &Board) -> impl Fn(Placement) -> usize {
    let is_seven_of_eight = board.memory_slices() == 8 && board.compute_slices() == 7;
    move |at| {
        let starts: &[u32] = match at.size {
            1 if is_seven_of_eight => &[6, 4, 5, 0, 1, 2, 3],
            2 if is_seven_of_eight => &[4, 0, 2, 6],
            4 if is_seven_of_eight => &[4, 0],
            _ => &[],
        };
        starts
            .iter()
            .position(|start| *start == at.start)
            .unwrap_or(starts.len())
    }
}

/// Depth-first search for the first solution in order of preference.
struct Search<'a> {
    solver: &'a Solver,
    wanted: &'a [u32],
    placed: Vec<Placed>,
    /// (shape, place, placed of this shape, taken) from which there is no solution.
    dead_ends: HashSet<(usize, usize, u32, u64)>,
}

impl Search<'_> {
    /// Places what is left: of `shape` all but `placed`, at places from `place` on, and all later shapes.
    fn place_from(&mut self, shape: usize, place: usize, placed: u32, taken: u64) -> bool {
        let (Some(this), Some(wanted)) = (self.solver.shapes.get(shape), self.wanted.get(shape))
        else {
            return true;
        };
        if placed >= *wanted {
            return self.place_from(shape + 1, 0, 0, taken);
        }
        let state = (shape, place, placed, taken);
        if self.dead_ends.contains(&state) {
            return false;
        }
        for (next, (at, mask)) in this.places.iter().enumerate().skip(place) {
            if mask & taken != 0 {
                continue;
            }
            self.placed.push(Placed {
                profile_id: this.id,
                placement: *at,
            });
            if self.place_from(shape, next + 1, placed + 1, taken | mask) {
                return true;
            }
            self.placed.pop();
        }
        self.dead_ends.insert(state);
        false
    }
}

/// A point in the search for the smallest shortage.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    shape: usize,
    place: usize,
    placed: u32,
    taken: u64,
    engines: [u32; ENGINES],
}

/// Dynamic programme over shapes and their places: each place is used or left.
struct Shortage<'a> {
    solver: &'a Solver,
    held: &'a [u32],
    wanted: &'a [u32],
    /// By states that stand before a decision.
    known: HashMap<State, Cost>,
}

impl Shortage<'_> {
    fn cost(&mut self, state: State) -> Cost {
        let (left_out, decision) = self.settle(state);
        let rest = match decision {
            None => (0, 0),
            Some((state, using)) => match self.known.get(&state) {
                Some(cost) => *cost,
                None => {
                    let cost = self.cost(using).min(self.cost(leaving(state)));
                    self.known.insert(state, cost);
                    cost
                }
            },
        };
        (left_out.0 + rest.0, left_out.1 + rest.1)
    }

    /// Goes on until there is a place to decide about: what is left out on the way, and the state before the decision with
    /// the one after using the place. `None` at the end.
    fn settle(&self, mut state: State) -> (Cost, Option<(State, State)>) {
        let mut cost = (0, 0);
        while let (Some(shape), Some(wanted)) = (
            self.solver.shapes.get(state.shape),
            self.wanted.get(state.shape),
        ) {
            while state.placed < *wanted && state.place < shape.places.len() {
                if let Some(using) = self.using(state) {
                    return (cost, Some((state, using)));
                }
                state.place += 1;
            }
            let left_out = u64::from(wanted.saturating_sub(state.placed));
            cost.0 += left_out;
            cost.1 += left_out * u64::from(shape.size);
            state.shape += 1;
            state.place = 0;
            state.placed = 0;
        }
        (cost, None)
    }

    /// The state after using the place at hand, if it is free and numbers allow one more.
    fn using(&self, state: State) -> Option<State> {
        let shape = self.solver.shapes.get(state.shape)?;
        let (_, mask) = shape.places.get(state.place)?;
        let held = self.held.get(state.shape).copied().unwrap_or(0);
        if mask & state.taken != 0 || held.saturating_add(state.placed) >= shape.max_instances {
            return None;
        }
        let mut engines = state.engines;
        for (sum, each) in engines.iter_mut().zip(shape.engines) {
            *sum = sum.saturating_add(each);
        }
        self.solver.allows(engines).then_some(State {
            shape: state.shape,
            place: state.place + 1,
            placed: state.placed + 1,
            taken: state.taken | mask,
            engines,
        })
    }

    /// Follows the cheapest path and counts what it leaves out of each shape.
    fn trace(&mut self, mut state: State) -> Vec<u32> {
        let mut missing = self.wanted.to_vec();
        while let (_, Some((at, using))) = self.settle(state) {
            state = leaving(at);
            if self.cost(using) <= self.cost(state) {
                state = using;
                if let Some(count) = missing.get_mut(at.shape) {
                    *count -= 1;
                }
            }
        }
        missing
    }
}

/// The state after leaving the place at hand.
fn leaving(state: State) -> State {
    State {
        place: state.place + 1,
        ..state
    }
}
