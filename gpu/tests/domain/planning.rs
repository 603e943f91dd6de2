//! Plans for known situations, one by one.

use std::collections::BTreeMap;

use gpu::{
    Board, Client, ComputeInstance, Goal, GpuInstance, GpuPlan, Impossible, Layout, Observed,
    Placement, Profile, Step, matches, plan, undo,
};
use rstest::rstest;

use crate::boards::{a30, a100_40, h100_80, rtx_pro_6000};
use crate::driver::{apply, instance, instance_id};

fn devices(devices: &[(&str, u32)]) -> Goal {
    let devices = devices
        .iter()
        .map(|(name, count)| (name.parse::<Profile>().unwrap(), *count));
    Goal::new(true, devices.collect())
}

/// A Hopper-like GPU with MIG on.
fn on(instances: Vec<GpuInstance>) -> Observed {
    Observed {
        layout: Layout {
            mig_enabled: true,
            instances,
        },
        pending_mig: true,
        resetless: true,
        clients: Vec::new(),
    }
}

fn client(pid: u32, gpu_instance: Option<u32>, compute_instance: Option<u32>) -> Client {
    Client {
        pid,
        command: format!("process {pid}"),
        gpu_instance,
        compute_instance,
    }
}

fn id(start: u32, size: u32) -> u32 {
    instance_id(Placement { start, size })
}

fn lines(plan: &GpuPlan) -> Vec<String> {
    plan.steps().iter().map(Step::to_string).collect()
}

fn plan_on(board: &Board, observed: &Observed, goal: &Goal) -> GpuPlan {
    plan(Some(board), observed, goal).unwrap()
}

#[test]
fn a_fresh_gpu_is_cut_as_the_driver_would() {
    let goal = devices(&[("1g.10gb", 2), ("2g.20gb", 1), ("3g.40gb", 1)]);
    let plan = plan_on(
        &h100_80(),
        &Observed {
            resetless: true,
            ..Observed::default()
        },
        &goal,
    );
    assert_eq!(
        lines(&plan),
        [
            "turn MIG on",
            "create GPU instance 2g.20gb at 0:2",
            "create compute instance 2g.20gb at 0:2 of the GPU instance at 0:2",
            "create GPU instance 1g.10gb at 2:1",
            "create compute instance 1g.10gb at 0:1 of the GPU instance at 2:1",
            "create GPU instance 1g.10gb at 3:1",
            "create compute instance 1g.10gb at 0:1 of the GPU instance at 3:1",
            "create GPU instance 3g.40gb at 4:4",
            "create compute instance 3g.40gb at 0:3 of the GPU instance at 4:4",
        ]
    );
}

/// mig-parted issue 119: one device fewer must not cost the others.
#[test]
fn one_device_fewer_destroys_one() {
    let observed = on(vec![
        instance(14, (0, 2), &[(0, 2)]),
        instance(19, (4, 1), &[(0, 1)]),
        instance(19, (6, 1), &[(0, 1)]),
    ]);
    let plan = plan_on(
        &h100_80(),
        &observed,
        &devices(&[("2g.20gb", 1), ("1g.10gb", 1)]),
    );
    // The one at 6 stays: it is where the driver would put the first.
    assert_eq!(
        lines(&plan),
        [
            format!("destroy compute instance 0 of GPU instance {}", id(4, 1)),
            format!("destroy GPU instance {}", id(4, 1)),
        ]
    );
    assert_eq!(plan.kept.len(), 2);
}

#[test]
fn a_device_with_a_process_stays_rather_than_two_without() {
    // A 4g needs the lower half: of three 1g there, either the busy one or nothing in the lower half can stay. With 3g the
    // lower half can stay.
    let mut observed = on(vec![
        instance(19, (0, 1), &[(0, 1)]),
        instance(19, (4, 1), &[(0, 1)]),
        instance(19, (5, 1), &[(0, 1)]),
    ]);
    let goal = devices(&[("3g.40gb", 1), ("1g.10gb", 2)]);
    let idle = plan_on(&h100_80(), &observed, &goal);
    let kept = |plan: &GpuPlan| {
        plan.kept
            .iter()
            .map(|kept| kept.placement.start)
            .collect::<Vec<_>>()
    };
    assert_eq!(kept(&idle), [4, 5]);
    observed.clients = vec![client(7, Some(id(0, 1)), Some(0))];
    let busy = plan_on(&h100_80(), &observed, &goal);
    assert_eq!(kept(&busy), [0]);
    assert_eq!(busy.blockers, []);
}

/// mig-parted issue 29: a GPU instance without compute instance takes room and is seen.
#[test]
fn an_empty_gpu_instance_is_filled_or_removed() {
    let observed = on(vec![instance(9, (4, 4), &[])]);
    assert!(!matches(Some(&h100_80()), &observed, &devices(&[])));
    assert!(!matches(
        Some(&h100_80()),
        &observed,
        &devices(&[("3g.40gb", 1)])
    ));
    let filled = plan_on(&h100_80(), &observed, &devices(&[("3g.40gb", 1)]));
    assert_eq!(
        lines(&filled),
        ["create compute instance 3g.40gb at 0:3 of the GPU instance at 4:4"]
    );
    let removed = plan_on(&h100_80(), &observed, &devices(&[("7g.80gb", 1)]));
    assert_eq!(
        lines(&removed)[0],
        format!("destroy GPU instance {}", id(4, 4))
    );
}

#[test]
fn an_instance_of_an_unknown_profile_goes() {
    let observed = on(vec![instance(77, (0, 1), &[(0, 1)])]);
    let plan = plan_on(&h100_80(), &observed, &devices(&[]));
    assert_eq!(plan.destroyed.len(), 1);
    assert_eq!(plan.destroyed[0].profile, None);
    assert!(!matches(Some(&h100_80()), &observed, &devices(&[])));
}

#[test]
fn counts_of_zero_say_nothing() {
    let observed = on(vec![instance(0, (0, 8), &[(0, 7)])]);
    let goal = devices(&[("7g.80gb", 1), ("1g.10gb", 0), ("9g.999gb", 0)]);
    assert!(plan_on(&h100_80(), &observed, &goal).is_noop());
    assert!(matches(Some(&h100_80()), &observed, &goal));
}

#[test]
fn parts_share_as_few_gpu_instances_as_possible() {
    let goal = devices(&[("1c.3g.40gb", 4), ("2c.3g.40gb", 1)]);
    let plan = plan_on(&h100_80(), &on(vec![]), &goal);
    let contents = plan
        .created
        .iter()
        .map(|created| {
            created
                .compute
                .iter()
                .map(|compute| compute.placement.size)
                .sum::<u32>()
        })
        .collect::<Vec<_>>();
    assert_eq!(contents, [3, 3]);
}

#[test]
fn parts_that_are_there_are_kept_wherever_they_are() {
    // Two GPU instances with one part each are as good as one with two.
    let observed = on(vec![
        instance(9, (0, 4), &[(2, 1)]),
        instance(9, (4, 4), &[(2, 1)]),
    ]);
    assert!(plan_on(&h100_80(), &observed, &devices(&[("1c.3g.40gb", 2)])).is_noop());
    // More parts go into the room there is.
    let more = plan_on(
        &h100_80(),
        &observed,
        &devices(&[("1c.3g.40gb", 3), ("2c.3g.40gb", 1)]),
    );
    assert!(more.created.iter().all(|created| !created.whole));
    assert_eq!(more.destroyed, []);
}

#[test]
fn only_the_parts_that_differ_are_changed() {
    let observed = on(vec![instance(9, (4, 4), &[(0, 1), (1, 1), (2, 1)])]);
    let plan = plan_on(
        &h100_80(),
        &observed,
        &devices(&[("1c.3g.40gb", 1), ("2c.3g.40gb", 1)]),
    );
    // A 2c lies at 0 only, so the part at 2 stays.
    assert_eq!(
        lines(&plan),
        [
            format!("destroy compute instance 0 of GPU instance {}", id(4, 4)),
            format!("destroy compute instance 1 of GPU instance {}", id(4, 4)),
            "create compute instance 2c.3g.40gb at 0:2 of the GPU instance at 4:4".to_owned(),
        ]
    );
    assert_eq!(plan.kept[0].compute.len(), 1);
}

/// Three 3c in 7g would be nine slices; two fit when the 3c at 4 leaves 0 to 3 for a 4c or two 2c.
#[test]
fn parts_are_packed_exactly() {
    let goal = devices(&[("3c.7g.80gb", 1), ("2c.7g.80gb", 2)]);
    let plan = plan_on(&h100_80(), &on(vec![]), &goal);
    let mut placements = plan.created[0]
        .compute
        .iter()
        .map(|compute| compute.placement)
        .collect::<Vec<_>>();
    placements.sort();
    let expected = [(0, 2), (2, 2), (4, 3)].map(|(start, size)| Placement { start, size });
    assert_eq!(placements, expected);
}

/// current, pending, goal → mode to set, reset
#[rstest]
#[case::ampere_right(false, true, true, true, None, false)]
#[case::ampere_off_right(false, false, false, false, None, false)]
#[case::ampere_on(false, false, false, true, Some(true), true)]
#[case::ampere_off(false, true, true, false, Some(false), true)]
#[case::ampere_waits_for_on(false, false, true, true, None, true)]
#[case::ampere_waits_for_off(false, true, false, false, None, true)]
#[case::ampere_takes_on_back(false, false, true, false, Some(false), false)]
#[case::ampere_takes_off_back(false, true, false, true, Some(true), false)]
#[case::hopper_on(true, false, false, true, Some(true), false)]
#[case::hopper_off(true, true, true, false, Some(false), false)]
#[case::hopper_was_held(true, false, true, true, Some(true), false)]
fn mode_and_reset(
    #[case] resetless: bool,
    #[case] current: bool,
    #[case] pending: bool,
    #[case] wanted: bool,
    #[case] mode: Option<bool>,
    #[case] reset: bool,
) {
    let observed = Observed {
        layout: Layout {
            mig_enabled: current,
            instances: Vec::new(),
        },
        pending_mig: pending,
        resetless,
        clients: vec![client(7, None, None)],
    };
    for goal in [Goal::Mode(wanted), Goal::new(wanted, BTreeMap::new())] {
        let plan = plan_on(&a100_40(), &observed, &goal);
        assert_eq!((plan.mode, plan.reset), (mode, reset));
        // The process is in the way only when the GPU changes under it.
        assert_eq!(plan.blockers.is_empty(), current == wanted);
        assert_eq!(matches(Some(&a100_40()), &observed, &goal), plan.is_noop());
        let after = apply(&a100_40(), &observed, &plan.steps());
        assert!(matches(Some(&a100_40()), &after, &goal));
    }
}

#[test]
fn turning_mig_off_destroys_everything_first() {
    let observed = on(vec![
        instance(9, (4, 4), &[(0, 3)]),
        instance(19, (0, 1), &[]),
    ]);
    let plan = plan_on(&h100_80(), &observed, &Goal::Mode(false));
    assert_eq!(
        lines(&plan),
        [
            format!("destroy compute instance 0 of GPU instance {}", id(4, 4)),
            format!("destroy GPU instance {}", id(4, 4)),
            format!("destroy GPU instance {}", id(0, 1)),
            "turn MIG off".to_owned(),
        ]
    );
}

#[test]
fn mode_alone_leaves_instances_alone() {
    let observed = on(vec![instance(9, (4, 4), &[(0, 3)])]);
    let plan = plan_on(&h100_80(), &observed, &Goal::Mode(true));
    assert!(plan.is_noop());
    assert_eq!(plan.kept, observed.layout.instances);
}

#[test]
fn enabled_without_devices_means_no_devices() {
    let observed = on(vec![instance(9, (4, 4), &[(0, 3)])]);
    assert_eq!(
        plan_on(&h100_80(), &observed, &devices(&[]))
            .destroyed
            .len(),
        1
    );
    assert!(plan_on(&h100_80(), &on(vec![]), &devices(&[])).is_noop());
}

#[test]
fn instances_listed_while_mig_is_off_are_nothing() {
    let mut observed = on(vec![instance(9, (4, 4), &[(0, 3)])]);
    observed.layout.mig_enabled = false;
    observed.pending_mig = false;
    let plan = plan_on(&h100_80(), &observed, &devices(&[("3g.40gb", 1)]));
    assert_eq!(plan.destroyed, []);
    assert_eq!(lines(&plan).len(), 3);
}

#[test]
fn who_stands_on_what_goes_is_named() {
    let mut observed = on(vec![
        instance(9, (4, 4), &[(0, 1), (1, 1)]),
        instance(19, (0, 1), &[(0, 1)]),
    ]);
    observed.clients = vec![
        client(4, Some(id(4, 4)), Some(1)),
        client(3, Some(id(0, 1)), Some(0)),
        client(3, Some(id(0, 1)), Some(0)),
        client(2, Some(id(4, 4)), Some(0)),
        client(1, None, None),
        client(5, Some(99), None),
    ];
    let goal = devices(&[("1c.3g.40gb", 2)]);
    let blockers = plan_on(&h100_80(), &observed, &goal).blockers;
    assert_eq!(blockers, [client(3, Some(id(0, 1)), Some(0))]);
    // A mode change is in everybody's way.
    let pids = plan_on(&h100_80(), &observed, &Goal::Mode(false)).blockers;
    assert_eq!(
        pids.iter().map(|client| client.pid).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5]
    );
}

#[test]
fn a_process_of_unknown_compute_instance_may_stand_on_any() {
    let mut observed = on(vec![instance(9, (4, 4), &[(0, 1), (1, 1)])]);
    observed.clients = vec![client(1, Some(id(4, 4)), None)];
    let plan = plan_on(&h100_80(), &observed, &devices(&[("1c.3g.40gb", 1)]));
    assert_eq!(plan.blockers.len(), 1);
}

#[rstest]
#[case::no_mig(None, &[], "this GPU has no MIG")]
#[case::unknown(Some(h100_80()), &[("1g.5gb", 1)], "this GPU has no profile 1g.5gb; nearest: 1g.10gb, 1g.10gb+me, 1g.20gb")]
#[case::too_many(Some(h100_80()), &[("1g.10gb", 8)], "8 × 1g.10gb is too many: this GPU takes at most 7")]
#[case::too_many_parts(Some(h100_80()), &[("1c.3g.40gb", 7)], "7 × 1c.3g.40gb is too many: this GPU takes at most 6")]
#[case::far_too_many(Some(h100_80()), &[("1g.10gb", u32::MAX)], "4294967295 × 1g.10gb is too many: this GPU takes at most 7")]
#[case::over(Some(h100_80()), &[("4g.40gb", 1), ("1g.10gb", 4)], "these devices do not fit on one GPU: leaving out 1 of 4 × 1g.10gb would do")]
#[case::over_by_two(Some(h100_80()), &[("7g.80gb", 1), ("3g.40gb", 1), ("1g.10gb", 1)], "these devices do not fit on one GPU: leaving out 1 of 1 × 7g.80gb would do")]
#[case::over_by_parts(Some(h100_80()), &[("1c.3g.40gb", 4), ("4g.40gb", 1)], "these devices do not fit on one GPU: leaving out 1 of 4 × 1c.3g.40gb would do")]
#[case::media(Some(a30()), &[("1g.6gb+me", 1), ("2g.12gb+me", 1)], "these devices do not fit on one GPU: leaving out 1 of 1 × 1g.6gb+me would do")]
#[case::two_of_them(Some(rtx_pro_6000()), &[("4g.96gb", 1), ("4g.96gb+gfx", 1), ("1g.24gb", 1)], "these devices do not fit on one GPU: leaving out 1 of 1 × 1g.24gb and 1 of 1 × 4g.96gb+gfx would do")]
#[case::nothing_listed(Some(Board { memory_bytes: 0, profiles: vec![] }), &[("1g.10gb", 1)], "the driver lists no MIG profiles while MIG is off; turn MIG on first")]
fn impossible_goals_say_why(
    #[case] board: Option<Board>,
    #[case] wanted: &[(&str, u32)],
    #[case] message: &str,
) {
    // Whatever is there and whoever uses it makes no difference to what is possible.
    let observed = on(vec![instance(9, (4, 4), &[(0, 3)])]);
    let error = plan(board.as_ref(), &observed, &devices(wanted)).unwrap_err();
    assert_eq!(error.to_string(), message);
}

#[test]
fn a_gpu_without_mig_is_fine_when_none_is_wanted() {
    let plan = plan(None, &Observed::default(), &Goal::Mode(false)).unwrap();
    assert!(plan.is_noop());
    assert!(matches(None, &Observed::default(), &Goal::Mode(false)));
    assert!(!matches(None, &Observed::default(), &devices(&[])));
}

#[test]
fn a_driver_that_lists_nothing_still_turns_mig_on() {
    let board = Board {
        memory_bytes: 0,
        profiles: vec![],
    };
    let observed = Observed {
        resetless: true,
        ..Observed::default()
    };
    assert_eq!(
        lines(&plan_on(&board, &observed, &devices(&[]))),
        ["turn MIG on"]
    );
}

#[test]
fn an_exact_layout_comes_back_placements_and_compute_ids_included() {
    let mut first = instance(9, (0, 4), &[(2, 1), (0, 1)]);
    // Out of order: the compute instance at 2 had the lower id.
    first.compute[1].id = 2;
    first.compute.reverse();
    let before = on(vec![
        first,
        instance(19, (5, 1), &[(0, 1)]),
        instance(14, (6, 2), &[]),
    ]);
    // The board does not offer 14 at 6, so the last one is out of reach.
    let error = undo(Some(&h100_80()), &on(vec![]), &before.layout).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the layout to restore does not suit this GPU: profile 2g.20gb cannot lie at 6:2"
    );
    let mut before = before;
    before.layout.instances.pop();
    let back = undo(
        Some(&h100_80()),
        &on(vec![instance(9, (4, 4), &[(0, 3)])]),
        &before.layout,
    )
    .unwrap();
    assert_eq!(
        lines(&back),
        [
            format!("destroy compute instance 0 of GPU instance {}", id(4, 4)),
            format!("destroy GPU instance {}", id(4, 4)),
            "create GPU instance 3g.40gb at 0:4".to_owned(),
            "create compute instance 1c.3g.40gb at 2:1 of the GPU instance at 0:4".to_owned(),
            "create compute instance 1c.3g.40gb at 0:1 of the GPU instance at 0:4".to_owned(),
            "create GPU instance 1g.10gb at 5:1".to_owned(),
            "create compute instance 1g.10gb at 0:1 of the GPU instance at 5:1".to_owned(),
        ]
    );
}

#[test]
fn an_exact_layout_keeps_what_is_right_already() {
    let now = on(vec![
        instance(9, (4, 4), &[(0, 1), (1, 1)]),
        instance(19, (0, 1), &[(0, 1)]),
    ]);
    let goal = on(vec![
        instance(9, (4, 4), &[(1, 1), (2, 1)]),
        instance(19, (1, 1), &[(0, 1)]),
    ]);
    let plan = undo(Some(&h100_80()), &now, &goal.layout).unwrap();
    assert_eq!(plan.kept.len(), 1);
    assert_eq!(plan.kept[0].compute.len(), 1);
    assert_eq!(plan.destroyed.len(), 2);
    assert_eq!(plan.created.len(), 2);
    let after = apply(&h100_80(), &now, &plan.steps());
    assert!(matches(
        Some(&h100_80()),
        &after,
        &Goal::Layout(goal.layout)
    ));
}

fn with_compute(placement: (u32, u32), others: &[(u32, u32)]) -> GpuInstance {
    let mut parent = instance(9, (0, 4), others);
    parent.compute.push(ComputeInstance {
        id: 9,
        profile_id: 0,
        placement: Placement {
            start: placement.0,
            size: placement.1,
        },
    });
    parent
}

#[rstest]
#[case::profile(vec![instance(77, (0, 1), &[])], "there is no GPU instance profile with id 77")]
#[case::overlap(vec![instance(9, (0, 4), &[]), instance(19, (3, 1), &[])], "two GPU instances share slices: 0:4 and 3:1")]
#[case::outside(vec![with_compute((3, 1), &[])], "a compute instance at 3:1 has no room in its GPU instance 3g.40gb")]
#[case::empty(vec![with_compute((0, 0), &[])], "a compute instance at 0:0 has no room in its GPU instance 3g.40gb")]
#[case::shared(vec![with_compute((1, 1), &[(0, 2)])], "a compute instance at 1:1 has no room in its GPU instance 3g.40gb")]
#[case::huge(vec![with_compute((u32::MAX, u32::MAX), &[])], "a compute instance at 4294967295:4294967295 has no room in its GPU instance 3g.40gb")]
fn a_layout_of_another_board_is_refused(
    #[case] instances: Vec<GpuInstance>,
    #[case] problem: &str,
) {
    let layout = Layout {
        mig_enabled: true,
        instances,
    };
    let error = plan(Some(&h100_80()), &on(vec![]), &Goal::Layout(layout)).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the layout to restore does not suit this GPU: {problem}")
    );
}

#[test]
fn a_layout_with_instances_but_without_mig_is_refused() {
    let layout = Layout {
        mig_enabled: false,
        instances: vec![instance(9, (0, 4), &[])],
    };
    let error = plan(Some(&h100_80()), &on(vec![]), &Goal::Layout(layout)).unwrap_err();
    assert!(matches!(error, Impossible::Layout(_)));
}

#[test]
fn steps_survive_a_journal() {
    let observed = on(vec![instance(9, (4, 4), &[(0, 3)])]);
    let mut steps = plan_on(&h100_80(), &observed, &Goal::Mode(false)).steps();
    steps.extend(
        plan_on(
            &h100_80(),
            &Observed::default(),
            &devices(&[("1g.10gb+me", 1)]),
        )
        .steps(),
    );
    let json = serde_json::to_string(&steps).unwrap();
    assert_eq!(serde_json::from_str::<Vec<Step>>(&json).unwrap(), steps);
}

/// What the driver says counts, also where geometry would allow more.
#[test]
fn the_drivers_own_limits_hold() {
    let mut board = h100_80();
    let profile = board
        .profiles
        .iter_mut()
        .find(|profile| profile.id == 9)
        .unwrap();
    profile.max_instances = 1;
    profile.compute[0].max_instances = 2;
    let goal = devices(&[("1c.3g.40gb", 3)]);
    let error = plan(Some(&board), &on(vec![]), &goal).unwrap_err();
    assert_eq!(
        error.to_string(),
        "3 × 1c.3g.40gb is too many: this GPU takes at most 2"
    );
    let mixed = devices(&[("1c.3g.40gb", 2), ("3g.40gb", 1)]);
    let error = plan(Some(&board), &on(vec![]), &mixed).unwrap_err();
    assert_eq!(
        error.to_string(),
        "these devices do not fit on one GPU: leaving out 1 of 1 × 3g.40gb would do"
    );
    // Two GPU instances for three of which only two fit into one.
    board
        .profiles
        .iter_mut()
        .for_each(|profile| profile.max_instances = 2);
    assert_eq!(plan_on(&board, &on(vec![]), &goal).created.len(), 2);
}

/// Old drivers list nothing, or no places, while MIG is off; then the mode comes first, whatever the goal.
#[rstest]
#[case::no_profiles(Board { profiles: Vec::new(), ..h100_80() })]
#[case::no_places(h100_80_without_places())]
fn a_driver_that_lists_nothing_is_no_reason_to_refuse(#[case] board: Board) {
    let off = Observed {
        resetless: true,
        ..Observed::default()
    };
    let layout = on(vec![instance(9, (4, 4), &[(0, 3)])]).layout;
    for goal in [devices(&[("3g.40gb", 1)]), Goal::Layout(layout)] {
        assert_eq!(plan(Some(&board), &off, &goal), Err(Impossible::NoProfiles));
    }
    let empty = on(vec![]).layout;
    for goal in [devices(&[]), Goal::Layout(empty), Goal::Mode(true)] {
        assert_eq!(lines(&plan_on(&board, &off, &goal)), ["turn MIG on"]);
    }
}

fn h100_80_without_places() -> Board {
    let mut board = h100_80();
    for profile in &mut board.profiles {
        profile.placements.clear();
    }
    board
}
