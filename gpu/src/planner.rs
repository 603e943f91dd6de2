//! From an observed GPU and a goal to a plan. Pure: the same values give the same plan.

use std::collections::BTreeMap;

use crate::keep::{Arrangement, Fate, arrange};
use crate::{
    Board, Client, Created, CreatedCompute, Destroyed, Goal, GpuInstance, GpuPlan, Impossible,
    InstanceProfile, Layout, LayoutProblem, Observed, Placement, Profile,
};

/// Plans how a GPU gets from what it is to a goal. `board` is `None` for a GPU without MIG.
///
/// Either the whole goal can be reached, or nothing is planned and the error says why.
pub fn plan(
    board: Option<&Board>,
    observed: &Observed,
    goal: &Goal,
) -> Result<GpuPlan, Impossible> {
    let Some(board) = board else {
        return if goal.mig_enabled() {
            Err(Impossible::NoMig)
        } else {
            Ok(GpuPlan::default())
        };
    };
    let mut plan = mode_change(observed, goal.mig_enabled());
    let is_changed = plan.reset
        || plan
            .mode
            .is_some_and(|mode| mode != observed.layout.mig_enabled);
    let empty = Layout::default();
    let before = if observed.layout.mig_enabled {
        &observed.layout
    } else {
        &empty
    };
    match goal {
        Goal::Layout(goal) => {
            check(board, goal)?;
            to_layout(board, before, goal, &mut plan);
        }
        Goal::Mode(true) => plan.kept.clone_from(&before.instances),
        Goal::Mode(false) => to_layout(board, before, &empty, &mut plan),
        Goal::Devices(wanted) => to_devices(board, before, &observed.clients, wanted, &mut plan)?,
    }
    plan.blockers = blockers(&plan, &observed.clients, is_changed);
    Ok(plan)
}

/// Plans the way back to the layout that a GPU had before, placements included.
pub fn undo(
    board: Option<&Board>,
    observed: &Observed,
    before: &Layout,
) -> Result<GpuPlan, Impossible> {
    plan(board, observed, &Goal::Layout(before.clone()))
}

/// Whether a GPU is as a goal wants it: the mode, now and after a reset, and the instances.
#[must_use]
pub fn matches(board: Option<&Board>, observed: &Observed, goal: &Goal) -> bool {
    let Some(board) = board else {
        return !goal.mig_enabled();
    };
    let enabled = goal.mig_enabled();
    if observed.layout.mig_enabled != enabled || observed.pending_mig != enabled {
        return false;
    }
    match goal {
        Goal::Mode(_) => true,
        Goal::Devices(wanted) => {
            let wanted = wanted.iter().filter(|(_, count)| **count > 0);
            let devices = observed.layout.devices(board);
            observed.layout.strays(board).next().is_none() && devices.iter().eq(wanted)
        }
        Goal::Layout(goal) => !enabled || shape_of(&observed.layout) == shape_of(goal),
    }
}

/// A layout without ids.
fn shape_of(layout: &Layout) -> BTreeMap<(u32, Placement), Vec<Placement>> {
    let instances = layout.instances.iter().map(|instance| {
        let mut compute = instance
            .compute
            .iter()
            .map(|compute| compute.placement)
            .collect::<Vec<_>>();
        compute.sort_unstable();
        ((instance.profile_id, instance.placement), compute)
    });
    instances.collect()
}

/// What the mode needs. Current and pending differ where a change waits for a reset (Ampere), so there are four cases:
/// both right: nothing; only the pending one right: reset; only the current one right: take the change back; none right:
/// set it, and reset unless this GPU needs none.
fn mode_change(observed: &Observed, enabled: bool) -> GpuPlan {
    let is_current = observed.layout.mig_enabled == enabled;
    let is_pending = observed.pending_mig == enabled;
    // A resetless GPU whose change hangs (a client held it) gets it by asking again.
    let is_waiting = !is_current && is_pending && !observed.resetless;
    let is_right = is_current && is_pending;
    GpuPlan {
        mode: (!is_right && !is_waiting).then_some(enabled),
        reset: !is_current && !observed.resetless,
        ..GpuPlan::default()
    }
}

fn to_devices(
    board: &Board,
    before: &Layout,
    clients: &[Client],
    wanted: &BTreeMap<Profile, u32>,
    plan: &mut GpuPlan,
) -> Result<(), Impossible> {
    if !board.lists_profiles() && wanted.values().any(|count| *count > 0) {
        return Err(Impossible::NoProfiles);
    }
    let Arrangement { fates, new } = arrange(board, before, clients, wanted)?;
    for (instance, fate) in before.instances.iter().zip(fates) {
        match fate {
            Fate::Destroyed => plan
                .destroyed
                .push(destroyed(board, instance, true, |_| false)),
            Fate::Kept { compute, added } => {
                keep(
                    board,
                    instance,
                    |position| compute.contains(&position),
                    plan,
                );
                if let Some(profile) = board.profile(instance.profile_id)
                    && !added.is_empty()
                {
                    plan.created
                        .push(created(board, profile, instance.placement, false, added));
                }
            }
        }
    }
    for (placed, compute) in new {
        if let Some(profile) = board.profile(placed.profile_id) {
            plan.created
                .push(created(board, profile, placed.placement, true, compute));
        }
    }
    Ok(())
}

/// Plans an exact layout; `goal` has been checked.
fn to_layout(board: &Board, before: &Layout, goal: &Layout, plan: &mut GpuPlan) {
    let same = |one: &GpuInstance, other: &GpuInstance| {
        one.profile_id == other.profile_id && one.placement == other.placement
    };
    for instance in &before.instances {
        match goal.instances.iter().find(|goal| same(goal, instance)) {
            None => plan
                .destroyed
                .push(destroyed(board, instance, true, |_| false)),
            Some(goal) => {
                let stays = |position: usize| {
                    let compute = instance.compute.get(position);
                    compute.is_some_and(|compute| has_compute(goal, compute.placement))
                };
                keep(board, instance, stays, plan);
            }
        }
    }
    for instance in &goal.instances {
        let there = before.instances.iter().find(|there| same(there, instance));
        let Some(profile) = board.profile(instance.profile_id) else {
            continue;
        };
        let mut compute = instance.compute.clone();
        compute.retain(|compute| there.is_none_or(|there| !has_compute(there, compute.placement)));
        if there.is_some() && compute.is_empty() {
            continue;
        }
        // The driver gives the lowest free id: in this order the ids come back as well.
        compute.sort_by_key(|compute| compute.id);
        let placements = compute.iter().map(|compute| compute.placement).collect();
        let mut created = created(
            board,
            profile,
            instance.placement,
            there.is_none(),
            placements,
        );
        for (created, compute) in created.compute.iter_mut().zip(&compute) {
            created.profile_id = compute.profile_id;
        }
        plan.created.push(created);
    }
}

fn has_compute(instance: &GpuInstance, placement: Placement) -> bool {
    instance
        .compute
        .iter()
        .any(|compute| compute.placement == placement)
}

/// Plans that an instance stays, and that those of its compute instances go that do not.
fn keep(board: &Board, instance: &GpuInstance, stays: impl Fn(usize) -> bool, plan: &mut GpuPlan) {
    let gone = destroyed(board, instance, false, &stays);
    let mut kept = instance.clone();
    kept.compute
        .retain(|compute| !gone.compute.contains(compute));
    plan.kept.push(kept);
    if !gone.compute.is_empty() {
        plan.destroyed.push(gone);
    }
}

fn destroyed(
    board: &Board,
    instance: &GpuInstance,
    whole: bool,
    stays: impl Fn(usize) -> bool,
) -> Destroyed {
    let compute = instance
        .compute
        .iter()
        .enumerate()
        .filter(|(position, _)| !stays(*position));
    Destroyed {
        gpu_instance: instance.id,
        profile: board
            .profile(instance.profile_id)
            .map(|profile| board.name(profile)),
        placement: instance.placement,
        whole,
        compute: compute.map(|(_, compute)| compute.clone()).collect(),
    }
}

fn created(
    board: &Board,
    profile: &InstanceProfile,
    placement: Placement,
    whole: bool,
    compute: Vec<Placement>,
) -> Created {
    let choices = profile.compute_choices();
    let compute = compute.into_iter().map(|placement| {
        let choice = choices
            .iter()
            .find(|choice| choice.slices == placement.size);
        CreatedCompute {
            profile: board.device_name(profile, placement.size),
            profile_id: choice.map_or(0, |choice| choice.id),
            placement,
        }
    });
    Created {
        profile: board.name(profile),
        profile_id: profile.id,
        placement,
        whole,
        compute: compute.collect(),
    }
}

/// Checks that a layout is one that this board can have.
fn check(board: &Board, layout: &Layout) -> Result<(), Impossible> {
    if !layout.mig_enabled {
        return match layout.instances.is_empty() {
            true => Ok(()),
            false => Err(Impossible::Layout(LayoutProblem::InstancesWithoutMig)),
        };
    }
    if !board.lists_profiles() && !layout.instances.is_empty() {
        return Err(Impossible::NoProfiles);
    }
    for (position, instance) in layout.instances.iter().enumerate() {
        check_instance(board, instance).map_err(Impossible::Layout)?;
        let others = layout.instances.iter().take(position);
        let overlap = others
            .map(|other| other.placement)
            .find(|other| other.overlaps(instance.placement));
        if let Some(other) = overlap {
            return Err(Impossible::Layout(LayoutProblem::Overlap(
                other,
                instance.placement,
            )));
        }
    }
    Ok(())
}

fn check_instance(board: &Board, instance: &GpuInstance) -> Result<(), LayoutProblem> {
    let profile = board
        .profile(instance.profile_id)
        .ok_or(LayoutProblem::Profile(instance.profile_id))?;
    if !profile.placements.contains(&instance.placement) {
        return Err(LayoutProblem::Placement {
            profile: board.name(profile),
            placement: instance.placement,
        });
    }
    for (position, compute) in instance.compute.iter().enumerate() {
        let Placement { size, .. } = compute.placement;
        let mut others = instance.compute.iter().take(position);
        if size == 0
            || compute.placement.end() > profile.slices
            || others.any(|other| other.placement.overlaps(compute.placement))
        {
            return Err(LayoutProblem::Compute {
                profile: board.name(profile),
                placement: compute.placement,
            });
        }
    }
    Ok(())
}

/// Who stands in the way.
fn blockers(plan: &GpuPlan, clients: &[Client], is_mode_changed: bool) -> Vec<Client> {
    let is_hit = |client: &&Client| {
        is_mode_changed
            || plan.destroyed.iter().any(|destroyed| {
                let is_inside = destroyed.whole
                    || destroyed
                        .compute
                        .iter()
                        .any(|compute| client.compute_instance.is_none_or(|id| id == compute.id));
                client.gpu_instance == Some(destroyed.gpu_instance) && is_inside
            })
    };
    let mut blockers = clients.iter().filter(is_hit).cloned().collect::<Vec<_>>();
    blockers.sort();
    blockers.dedup();
    blockers
}
