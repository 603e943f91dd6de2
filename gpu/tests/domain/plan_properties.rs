//! What holds for every plan: it reaches the goal, spares what it keeps, keeps the most, and is empty when nothing differs.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use gpu::{
    Board, Client, ComputeInstance, Goal, GpuInstance, GpuPlan, Layout, Observed, Placement,
    matches, plan, undo,
};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::boards::{a30, a100_40, boards, h100_80, rtx_pro_6000};
use crate::driver::{all_layouts, apply};

/// Boards with every layout that they can have. A few profiles less, or there would be millions.
static ALL: LazyLock<Vec<(Board, Vec<Vec<GpuInstance>>)>> = LazyLock::new(|| {
    let without = |mut board: Board, ids: &[u32]| {
        board.profiles.retain(|profile| !ids.contains(&profile.id));
        let layouts = all_layouts(&board);
        (board, layouts)
    };
    vec![
        without(a30(), &[6]),
        without(a100_40(), &[20, 15]),
        without(h100_80(), &[14, 0]),
        without(rtx_pro_6000(), &[21, 47, 35, 64, 66, 32]),
    ]
});

fn observed(instances: Vec<GpuInstance>, clients: &[Index], resetless: bool) -> Observed {
    let places = instances
        .iter()
        .flat_map(|instance| {
            let inside = instance.compute.iter().map(|compute| Some(compute.id));
            inside.chain([None]).map(|compute| (instance.id, compute))
        })
        .collect::<Vec<_>>();
    let client = |(pid, draw): (u32, &Index)| {
        let (gpu_instance, compute_instance) = places[draw.index(places.len())];
        Client {
            pid,
            command: String::new(),
            gpu_instance: Some(gpu_instance),
            compute_instance,
        }
    };
    let clients = if places.is_empty() {
        Vec::new()
    } else {
        (1..).zip(clients).map(client).collect()
    };
    Observed {
        layout: Layout {
            mig_enabled: true,
            instances,
        },
        pending_mig: true,
        resetless,
        clients,
    }
}

/// Devices with processes kept, devices kept, GPU instances kept, and GPU instances made (less is better).
fn worth(
    kept: &[GpuInstance],
    clients: &[Client],
    made: usize,
) -> (usize, usize, usize, std::cmp::Reverse<usize>) {
    let uses = |instance: &GpuInstance, compute: Option<&ComputeInstance>| {
        let mut clients = clients.iter();
        clients.any(|client| {
            client.gpu_instance == Some(instance.id)
                && client.compute_instance == compute.map(|compute| compute.id)
        })
    };
    let busy = kept.iter().map(|instance| {
        let devices = instance
            .compute
            .iter()
            .filter(|compute| uses(instance, Some(compute)));
        devices.count() + usize::from(uses(instance, None))
    });
    let devices = kept.iter().map(|instance| instance.compute.len());
    (
        busy.sum(),
        devices.sum(),
        kept.len(),
        std::cmp::Reverse(made),
    )
}

/// What of `before` is still there in `after`.
fn common(before: &[GpuInstance], after: &[GpuInstance]) -> Vec<GpuInstance> {
    let kept = before.iter().filter_map(|instance| {
        let same = after.iter().find(|other| {
            (other.profile_id, other.placement) == (instance.profile_id, instance.placement)
        })?;
        let mut kept = instance.clone();
        kept.compute.retain(|compute| {
            let mut others = same.compute.iter();
            others.any(|other| other.placement == compute.placement)
        });
        Some(kept)
    });
    kept.collect()
}

fn plan_worth(
    plan: &GpuPlan,
    clients: &[Client],
) -> (usize, usize, usize, std::cmp::Reverse<usize>) {
    let made = plan.created.iter().filter(|created| created.whole).count();
    worth(&plan.kept, clients, made)
}

/// Everything that must be true of a plan, whatever the goal.
fn check(board: &Board, observed: &Observed, goal: &Goal) -> Result<GpuPlan, TestCaseError> {
    let plan = plan(Some(board), observed, goal)
        .map_err(|error| TestCaseError::fail(error.to_string()))?;
    let after = apply(board, observed, &plan.steps());
    prop_assert!(matches(Some(board), &after, goal), "{:?}", after.layout);
    prop_assert_eq!(plan.is_noop(), plan.steps().is_empty());
    prop_assert_eq!(plan.is_noop(), matches(Some(board), observed, goal));
    if observed.layout.mig_enabled && goal.mig_enabled() {
        for kept in &plan.kept {
            let there = after
                .layout
                .instances
                .iter()
                .find(|instance| instance.id == kept.id);
            let there = there.ok_or_else(|| TestCaseError::fail("a kept instance is gone"))?;
            prop_assert_eq!(
                (there.profile_id, there.placement),
                (kept.profile_id, kept.placement)
            );
            for compute in &kept.compute {
                prop_assert!(there.compute.contains(compute));
            }
        }
    }
    // In the way is who loses what it stands on, and everybody when the GPU itself changes.
    let is_spared = |client: &Client| {
        let before = observed
            .layout
            .instances
            .iter()
            .find(|instance| Some(instance.id) == client.gpu_instance);
        let kept = plan
            .kept
            .iter()
            .find(|instance| Some(instance.id) == client.gpu_instance);
        let holds = |instance: &GpuInstance| {
            instance
                .compute
                .iter()
                .any(|compute| Some(compute.id) == client.compute_instance)
        };
        match client.compute_instance {
            Some(_) => kept.is_some_and(holds),
            None => kept == before,
        }
    };
    let changes = observed.layout.mig_enabled != goal.mig_enabled();
    for client in &observed.clients {
        prop_assert_eq!(
            plan.blockers.contains(client),
            changes || !is_spared(client),
            "{:?}",
            client
        );
    }
    let again = gpu::plan(Some(board), &after, goal)
        .map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert!(again.is_noop(), "{:?}", again.steps());
    Ok(plan)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Against all layouts that the goal allows: no other one keeps more.
    #[test]
    fn no_way_keeps_more(
        board in 0..4_usize,
        before in any::<Index>(),
        emptied in prop::collection::vec(any::<bool>(), 8),
        target in any::<Index>(),
        clients in prop::collection::vec(any::<Index>(), 0..4),
    ) {
        let (board, layouts) = &ALL[board];
        let mut before = layouts[before.index(layouts.len())].clone();
        for (instance, _) in before.iter_mut().zip(emptied).filter(|(_, emptied)| *emptied) {
            instance.compute.clear();
        }
        let observed = observed(before, &clients, true);
        let target = Layout { mig_enabled: true, instances: layouts[target.index(layouts.len())].clone() };
        let wanted = target.devices(board);
        let plan = check(board, &observed, &Goal::Devices(wanted.clone()))?;
        let best = layouts
            .iter()
            .filter(|instances| Layout { mig_enabled: true, instances: (*instances).clone() }.devices(board) == wanted)
            .map(|after| {
                let kept = common(&observed.layout.instances, after);
                worth(&kept, &observed.clients, after.len() - kept.len())
            })
            .max();
        prop_assert_eq!(Some(plan_worth(&plan, &observed.clients)), best);
    }

    /// On every board, from any mode.
    #[test]
    fn every_plan_reaches_its_goal_and_can_be_undone(
        (board, before, target) in (0..boards().len()).prop_flat_map(|board| (Just(board), instances(board), instances(board))),
        (mig_enabled, pending_mig, resetless) in any::<(bool, bool, bool)>(),
        clients in prop::collection::vec(any::<Index>(), 0..4),
        exact in any::<bool>(),
    ) {
        let (_, board) = boards().swap_remove(board);
        let mut observed = observed(if mig_enabled { before } else { Vec::new() }, &clients, resetless);
        observed.layout.mig_enabled = mig_enabled;
        observed.pending_mig = pending_mig;
        let mut target = Layout { mig_enabled: true, instances: target };
        let goal = if exact {
            Goal::Layout(target)
        } else {
            target.instances.retain(|instance| !instance.compute.is_empty());
            Goal::Devices(target.devices(&board))
        };
        let plan = check(&board, &observed, &goal)?;
        check(&board, &observed, &Goal::Mode(false))?;
        check(&board, &observed, &Goal::Mode(true))?;
        // Undo from wherever the plan got to.
        let steps = plan.steps();
        for done in 0..=steps.len() {
            let now = apply(&board, &observed, &steps[..done]);
            let back = undo(Some(&board), &now, &observed.layout).map_err(|error| TestCaseError::fail(error.to_string()))?;
            let after = apply(&board, &now, &back.steps());
            prop_assert!(matches(Some(&board), &after, &Goal::Layout(observed.layout.clone())));
            // And on from there.
            check(&board, &now, &goal)?;
        }
    }

    /// Any counts at all: a plan or a reason, and the reason's remainder fits.
    #[test]
    fn what_is_impossible_is_possible_without_what_is_missing(
        board in 0..boards().len(),
        draws in prop::collection::vec((any::<Index>(), 0..9_u32), 0..6),
    ) {
        let (_, board) = boards().swap_remove(board);
        let names = board.names().into_iter().collect::<Vec<_>>();
        let mut wanted = BTreeMap::new();
        for (draw, count) in draws {
            wanted.insert(names[draw.index(names.len())].clone(), count);
        }
        let observed = observed(Vec::new(), &[], true);
        match plan(Some(&board), &observed, &Goal::Devices(wanted.clone())) {
            Ok(_) => drop(check(&board, &observed, &Goal::Devices(wanted))?),
            Err(gpu::Impossible::OverCapacity { missing, .. }) => {
                prop_assert!(!missing.is_empty());
                for (profile, count) in missing {
                    *wanted.get_mut(&profile).unwrap() -= count;
                }
                check(&board, &observed, &Goal::Devices(wanted))?;
            }
            Err(gpu::Impossible::TooMany { profile, wanted: count, max }) => {
                prop_assert!(count > max);
                let most = BTreeMap::from([(profile, max)]);
                check(&board, &observed, &Goal::Devices(most))?;
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        }
    }
}

/// Instances that lie side by side on a board, with any content, none included.
fn instances(board: usize) -> impl Strategy<Value = Vec<GpuInstance>> {
    let (_, board) = boards().swap_remove(board);
    let places = board
        .profiles
        .iter()
        .flat_map(|profile| {
            profile
                .placements
                .iter()
                .map(|placement| (profile.id, *placement))
        })
        .collect::<Vec<_>>();
    prop::collection::vec(
        (select(places), prop::collection::vec(any::<Index>(), 0..8)),
        0..9,
    )
    .prop_map(move |draws| {
        let mut instances = Vec::<GpuInstance>::new();
        for ((profile_id, placement), sizes) in draws {
            let mut counts = BTreeMap::from([(profile_id, 1)]);
            for other in &instances {
                *counts.entry(other.profile_id).or_default() += 1;
            }
            let is_free = instances
                .iter()
                .all(|other| !other.placement.overlaps(placement));
            if is_free && crate::reference::fits(&board, &[], &counts) {
                let content = content(&board, profile_id, &sizes);
                instances.push(crate::driver::instance(
                    profile_id,
                    (placement.start, placement.size),
                    &content,
                ));
            }
        }
        instances.sort_by_key(|instance| instance.id);
        instances
    })
}

fn content(board: &Board, profile_id: u32, draws: &[Index]) -> Vec<(u32, u32)> {
    let profile = board.profile(profile_id).unwrap();
    let mut content = Vec::<Placement>::new();
    for draw in draws {
        let size = &profile.compute[draw.index(profile.compute.len())];
        let same = content
            .iter()
            .filter(|other| other.size == size.slices)
            .count();
        let mut free = gpu::compute_placements(profile.slices, size.slices)
            .filter(|placement| content.iter().all(|other| !other.overlaps(*placement)));
        if let Some(placement) = free.next()
            && same < size.max_instances as usize
        {
            content.push(placement);
        }
    }
    content
        .iter()
        .map(|placement| (placement.start, placement.size))
        .collect()
}
