//! Rules of the driver as captures and documents state them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::presets::NodeSpec;

const CALLER: u32 = 1;

/// One GPU of a board with MIG on.
fn partitionable(board: &str) -> Node {
    let mut node = NodeSpec::uniform(board, 1).unwrap().build(0).unwrap();
    assert_eq!(node.set_mig_mode(0, true, CALLER, 0), Ok(Code::SUCCESS));
    node
}

fn create(node: &mut Node, profile: u32) -> Result<u32, Code> {
    node.create_gpu_instance(0, profile, None, CALLER, 0)
}

fn mig_boards() -> Vec<&'static str> {
    crate::boards::names()
        .filter(|name| crate::boards::load(name).unwrap().mig.is_some())
        .collect()
}

/// Captures and documents of R510 and later drivers: profiles asked for in turn, ids given. 23 stands for the error.
#[rstest]
#[case("a100-sxm4-40gb", &[19, 19, 19, 19, 19, 19, 19], &[13, 11, 12, 7, 8, 9, 10])]
#[case("a100-sxm4-40gb", &[9, 9], &[2, 1])]
#[case("a100-sxm4-40gb", &[19, 14, 5], &[13, 5, 1])]
#[case("a100-sxm4-40gb", &[9, 19, 14, 19], &[2, 7, 4, 8])]
#[case("a100-sxm4-40gb", &[14, 19, 19, 19, 19, 19], &[5, 13, 7, 8, 9, 10])]
#[case("gh200-96gb", &[15, 15, 15], &[5, 3, 4])]
#[case("h200-sxm-141gb", &[9, 14, 19, 19], &[2, 3, 9, 10])]
#[case("h100-sxm5-80gb", &[9, 14], &[2, 3])]
#[case("h100-nvl-94gb", &[19, 19, 19, 19, 19, 19, 19], &[13, 11, 12, 7, 8, 9, 10])]
#[case("a30-24gb", &[14, 14, 14, 14], &[3, 4, 5, 6])]
#[case("a30-24gb", &[5, 5], &[1, 2])]
#[case("rtx-pro-6000-96gb", &[5, 14, 14], &[1, 5, 6])]
#[case("b200-180gb", &[0], &[0])]
fn automatic_placement_gives_the_captured_ids(
    #[case] board: &str,
    #[case] profiles: &[u32],
    #[case] ids: &[u32],
) {
    let mut node = partitionable(board);
    let given: Vec<u32> = profiles
        .iter()
        .map(|profile| create(&mut node, *profile).unwrap())
        .collect();
    assert_eq!(given, ids);
}

/// A mode that takes a reset needs a GPU that can be reset; one that takes none does not.
#[rstest]
#[case("a100-sxm4-40gb", Code::RESET_REQUIRED, (false, true))]
#[case("h100-sxm5-80gb", Code::SUCCESS, (true, true))]
fn a_gpu_that_refuses_resets(
    #[case] board: &str,
    #[case] status: Code,
    #[case] modes: (bool, bool),
) {
    let mut node = NodeSpec::uniform(board, 1).unwrap().build(0).unwrap();
    node.gpus[0].health.reset_refused = true;
    assert_eq!(node.set_mig_mode(0, true, CALLER, 0), Ok(status));
    assert_eq!((node.gpus[0].mig.current, node.gpus[0].mig.pending), modes);
}

#[test]
fn a_2g_that_would_split_the_3g_range_leaves_no_room() {
    let mut node = partitionable("h100-sxm5-80gb");
    let given: Vec<Result<u32, Code>> = [19, 19, 14, 9]
        .map(|profile| create(&mut node, profile))
        .into();
    assert_eq!(given, [Ok(13), Ok(11), Ok(3), Err(Code(23))]);
}

/// (memory slices, start, size) to id, by the driver's rule; mirrored halves are those of R450 to R470.
#[rstest]
#[case((8, 0, 8), 0, 0)]
#[case((8, 0, 4), 1, 2)]
#[case((8, 4, 4), 2, 1)]
#[case((8, 0, 2), 3, 3)]
#[case((8, 6, 2), 6, 6)]
#[case((8, 0, 1), 7, 7)]
#[case((8, 6, 1), 13, 13)]
#[case((4, 2, 2), 2, 1)]
#[case((4, 3, 1), 6, 6)]
#[case((12, 6, 6), 2, 1)]
#[case((12, 9, 3), 6, 6)]
fn ids_follow_from_placements(
    #[case] extent: (u32, u32, u32),
    #[case] id: u32,
    #[case] mirrored: u32,
) {
    let placement = Placement {
        start: extent.1,
        size: extent.2,
    };
    assert_eq!(instance_id(extent.0, placement, false), id);
    assert_eq!(instance_id(extent.0, placement, true), mirrored);
}

#[test]
fn old_drivers_number_halves_from_the_top() {
    let mut node = partitionable("a100-sxm4-40gb");
    node.personality.mirrored_ids = true;
    assert_eq!([create(&mut node, 9), create(&mut node, 9)], [Ok(2), Ok(1)]);
    let at = |id| node.gpus[0].instance(id).unwrap().placement.start;
    assert_eq!((at(2), at(1)), (0, 4));
}

#[test]
fn a_mode_change_on_ampere_is_done_when_idle_and_waits_for_a_reset_when_not() {
    let mut node = NodeSpec::uniform("a100-sxm4-40gb", 1)
        .unwrap()
        .build(0)
        .unwrap();
    node.register(77, 1, true);
    let generation = node.gpus[0].generation;
    assert_eq!(node.set_mig_mode(0, true, CALLER, 0), Ok(Code::IN_USE));
    assert_eq!(
        (node.gpus[0].mig.current, node.gpus[0].mig.pending),
        (false, true)
    );
    assert_eq!(node.gpus[0].generation, generation);
    assert_eq!(create(&mut node, 19), Err(Code::NOT_SUPPORTED));
    assert_eq!(node.reset(0, CALLER), Err(Code::IN_USE));
    node.unregister(77);
    node.reset(0, CALLER).unwrap();
    assert!(node.gpus[0].mig.current);
    // The mode is in the InfoROM, the instances are not.
    create(&mut node, 19).unwrap();
    node.reboot(5);
    assert!(node.gpus[0].mig.current && node.gpus[0].mig.instances.is_empty());
}

#[test]
fn a_mode_change_on_hopper_is_immediate_and_lost_with_the_driver() {
    let mut node = partitionable("h100-sxm5-80gb");
    let generation = node.gpus[0].generation;
    create(&mut node, 0).unwrap();
    node.reset(0, CALLER).unwrap();
    assert!(node.gpus[0].mig.current && node.gpus[0].mig.instances.is_empty());
    assert_ne!(
        node.gpus[0].generation, generation,
        "a reset makes handles stale"
    );
    node.unload_driver(CALLER).unwrap();
    node.load_driver(9);
    assert!(!node.gpus[0].mig.current && !node.gpus[0].mig.pending);
}

#[test]
fn a_hopper_in_use_keeps_its_mode_without_a_wish_pending() {
    let mut node = NodeSpec::uniform("h100-sxm5-80gb", 2)
        .unwrap()
        .build(0)
        .unwrap();
    node.register(77, 1, true);
    assert_eq!(node.set_mig_mode(1, true, CALLER, 0), Ok(Code::IN_USE));
    assert_eq!(
        (node.gpus[1].mig.current, node.gpus[1].mig.pending),
        (false, false)
    );
}

#[test]
fn instances_keep_mig_on() {
    let mut node = partitionable("h100-sxm5-80gb");
    let instance = create(&mut node, 9).unwrap();
    assert_eq!(node.set_mig_mode(0, false, CALLER, 0), Ok(Code::IN_USE));
    assert!(node.gpus[0].mig.current);
    node.destroy_gpu_instance(0, instance, 0).unwrap();
    assert_eq!(node.set_mig_mode(0, false, CALLER, 0), Ok(Code::SUCCESS));
    assert!(!node.gpus[0].mig.current);
}

#[test]
fn a_passed_through_ampere_needs_a_reset_from_outside() {
    let mut node = NodeSpec::uniform("a30-24gb", 1).unwrap().build(0).unwrap();
    node.personality.passthrough = true;
    assert_eq!(
        node.set_mig_mode(0, true, CALLER, 0),
        Ok(Code::RESET_REQUIRED)
    );
    assert_eq!(
        (node.gpus[0].mig.current, node.gpus[0].mig.pending),
        (false, true)
    );
}

#[test]
fn boards_without_mig_say_so() {
    let mut node = NodeSpec::uniform("l40s-48gb", 1).unwrap().build(0).unwrap();
    assert_eq!(
        node.set_mig_mode(0, true, CALLER, 0),
        Err(Code::NOT_SUPPORTED)
    );
    assert_eq!(create(&mut node, 19), Err(Code::NOT_SUPPORTED));
    assert_eq!(
        node.gpus[0].possible_placements(19),
        Err(Code::NOT_SUPPORTED)
    );
}

#[test]
fn placements_are_known_with_mig_off_and_capacity_is_not() {
    let node = NodeSpec::uniform("h100-sxm5-80gb", 1)
        .unwrap()
        .build(0)
        .unwrap();
    let starts: Vec<(u32, u32)> = node.gpus[0]
        .possible_placements(9)
        .unwrap()
        .iter()
        .map(|placement| (placement.start, placement.size))
        .collect();
    assert_eq!(starts, [(0, 4), (4, 4)]);
    assert_eq!(node.gpus[0].remaining_capacity(9), Err(Code::NOT_SUPPORTED));
    assert_eq!(
        node.gpus[0].possible_placements(99),
        Err(Code::INVALID_ARGUMENT)
    );
}

#[test]
fn explicit_placements_are_checked_against_the_offered_and_the_free() {
    let mut node = partitionable("h100-sxm5-80gb");
    let mut at =
        |start, size| node.create_gpu_instance(0, 14, Some(Placement { start, size }), CALLER, 0);
    assert_eq!(at(4, 2), Ok(5));
    assert_eq!(at(4, 2), Err(Code::INSUFFICIENT_RESOURCES));
    assert_eq!(at(6, 2), Err(Code::INVALID_ARGUMENT));
    assert_eq!(at(1, 2), Err(Code::INVALID_ARGUMENT));
    assert_eq!(at(0, 1), Err(Code::INVALID_ARGUMENT));
}

#[test]
fn the_one_media_engine_goes_to_one_instance() {
    let mut node = partitionable("h100-sxm5-80gb");
    create(&mut node, 20).unwrap();
    assert_eq!(create(&mut node, 20), Err(Code::INSUFFICIENT_RESOURCES));
    create(&mut node, 19).unwrap();
    // On A30, 1g and 2g with media share the same engine.
    let mut node = partitionable("a30-24gb");
    create(&mut node, 21).unwrap();
    assert_eq!(node.gpus[0].remaining_capacity(6), Ok(0));
    assert_eq!(create(&mut node, 6), Err(Code::INSUFFICIENT_RESOURCES));
    create(&mut node, 5).unwrap();
    // On RTX PRO 6000, one instance may take them all; others then go without.
    let mut node = partitionable("rtx-pro-6000-96gb");
    create(&mut node, 65).unwrap();
    assert_eq!(create(&mut node, 14), Err(Code::INSUFFICIENT_RESOURCES));
    assert_eq!(node.gpus[0].remaining_capacity(67), Ok(3));
    create(&mut node, 67).unwrap();
}

#[test]
fn children_and_clients_are_in_the_way_of_destruction() {
    let mut node = partitionable("h100-sxm5-80gb");
    let instance = create(&mut node, 9).unwrap();
    let compute = node
        .create_compute_instance(0, instance, 2, None, 0)
        .unwrap();
    assert_eq!(node.destroy_gpu_instance(0, instance, 0), Err(Code::IN_USE));
    let workload = crate::model::Workload {
        pid: 5,
        start: None,
        name: "train".into(),
        gpu: 0,
        instance: Some(instance),
        compute: Some(compute),
        memory_mib: 1,
        load: crate::model::Load::default(),
        graphics: false,
        mps: false,
        since_us: 0,
    };
    node.workloads.push(workload);
    assert_eq!(
        node.destroy_compute_instance(0, instance, compute, 0),
        Err(Code::IN_USE)
    );
    node.workloads.clear();
    node.destroy_compute_instance(0, instance, compute, 0)
        .unwrap();
    node.destroy_gpu_instance(0, instance, 0).unwrap();
    assert_eq!(
        node.destroy_gpu_instance(0, instance, 0),
        Err(Code::NOT_FOUND)
    );
}

#[test]
fn a_profiler_on_the_whole_gpu_keeps_it_whole() {
    let mut node = partitionable("gh200-96gb");
    node.register(9, 1, true);
    assert_eq!(create(&mut node, 15), Err(Code::IN_USE));
    node.unregister(9);
    create(&mut node, 15).unwrap();
}

#[test]
fn compute_instances_take_the_lowest_id_and_the_cheapest_slots() {
    // The H200 capture: a 1c and then a 2c inside one 3g, ids 0 and 1.
    let mut node = partitionable("h200-sxm-141gb");
    let instance = create(&mut node, 9).unwrap();
    assert_eq!(node.create_compute_instance(0, instance, 0, None, 0), Ok(0));
    assert_eq!(node.create_compute_instance(0, instance, 1, None, 0), Ok(1));
    assert_eq!(
        node.create_compute_instance(0, instance, 0, None, 0),
        Err(Code::INSUFFICIENT_RESOURCES)
    );
    node.destroy_compute_instance(0, instance, 0, 0).unwrap();
    assert_eq!(node.create_compute_instance(0, instance, 0, None, 0), Ok(0));
    let gpu = &node.gpus[0];
    let names: Vec<String> = gpu
        .mig_devices()
        .map(|(gi, ci)| gpu.mig_name(gi, ci))
        .collect();
    assert_eq!(
        names,
        ["NVIDIA H200 MIG 1c.3g.71gb", "NVIDIA H200 MIG 2c.3g.71gb"]
    );
}

#[test]
fn compute_instance_refusals() {
    let mut node = partitionable("h100-sxm5-80gb");
    assert_eq!(
        node.create_compute_instance(0, 2, 0, None, 0),
        Err(Code::NOT_FOUND)
    );
    let instance = create(&mut node, 14).unwrap();
    assert_eq!(
        node.create_compute_instance(0, instance, 2, None, 0),
        Err(Code::INVALID_ARGUMENT)
    );
    let wide = Some(Placement { start: 1, size: 2 });
    assert_eq!(
        node.create_compute_instance(0, instance, 1, wide, 0),
        Err(Code::INVALID_ARGUMENT)
    );
    assert_eq!(node.gpus[0].compute_remaining_capacity(instance, 0), Ok(2));
    let second = Some(Placement { start: 1, size: 1 });
    assert_eq!(
        node.create_compute_instance(0, instance, 0, second, 0),
        Ok(0)
    );
    assert_eq!(
        node.create_compute_instance(0, instance, 0, second, 0),
        Err(Code::INSUFFICIENT_RESOURCES)
    );
    assert_eq!(node.gpus[0].compute_remaining_capacity(instance, 0), Ok(1));
    assert_eq!(node.gpus[0].compute_remaining_capacity(instance, 1), Ok(0));
}

#[test]
fn device_indices_close_up_or_keep_their_holes() {
    let mut node = partitionable("h100-sxm5-80gb");
    let instances: Vec<u32> = (0..3).map(|_| create(&mut node, 19).unwrap()).collect();
    for instance in &instances {
        node.create_compute_instance(0, *instance, 0, None, 0)
            .unwrap();
    }
    // Created as 13, 11, 12; indices ascend by id.
    assert_eq!(
        [0, 1, 2].map(|index| node.mig_device(0, index).unwrap().0),
        [11, 12, 13]
    );
    node.destroy_compute_instance(0, 12, 0, 0).unwrap();
    assert_eq!(
        [0, 1, 2].map(|index| node.mig_device(0, index)),
        [Ok((11, 0)), Ok((13, 0)), Err(Code::NOT_FOUND)]
    );
    assert_eq!(node.mig_device_index(0, 13, 0), Some(1));
    node.personality.repack_indices = false;
    // Without closing up, each keeps the index of its creation: 13 was first, 11 second.
    assert_eq!(
        [0, 1, 2].map(|index| node.mig_device(0, index)),
        [Ok((13, 0)), Ok((11, 0)), Err(Code::NOT_FOUND)]
    );
}

#[test]
fn the_same_geometry_gives_the_same_uuid_again() {
    let mut node = partitionable("h100-nvl-94gb");
    let mut once = || {
        let instance = create(&mut node, 19).unwrap();
        let compute = node
            .create_compute_instance(0, instance, 0, None, 0)
            .unwrap();
        let gpu = &node.gpus[0];
        let found = gpu.instance(instance).unwrap();
        let uuid = gpu.mig_uuid(found, &found.compute[0]);
        node.destroy_compute_instance(0, instance, compute, 0)
            .unwrap();
        node.destroy_gpu_instance(0, instance, 0).unwrap();
        uuid
    };
    let first = once();
    assert_eq!(first, once());
    assert!(first.starts_with("MIG-") && first.len() == 40, "{first}");
}

#[test]
fn every_change_is_an_event() {
    let mut node = partitionable("h100-sxm5-80gb");
    let before = node.events.last;
    let instance = create(&mut node, 0).unwrap();
    node.create_compute_instance(0, instance, 4, None, 0)
        .unwrap();
    let kinds: Vec<u64> = node.events.after(before).map(|event| event.kind).collect();
    assert_eq!(kinds, [kind::MIG_CONFIG_CHANGE, kind::MIG_CONFIG_CHANGE]);
}

/// The most instances of a profile that fit beside what exists, by trying every subset of its placements.
fn brute_force_capacity(node: &Node, profile: u32) -> u32 {
    let placements = node.gpus[0].possible_placements(profile).unwrap();
    let subsets = 0..1_u32 << placements.len();
    let fits = |subset: u32| {
        let mut node = node.clone();
        placements
            .iter()
            .enumerate()
            .filter(|(bit, _)| subset & 1 << bit != 0)
            .all(|(_, placement)| {
                node.create_gpu_instance(0, profile, Some(*placement), CALLER, 0)
                    .is_ok()
            })
    };
    subsets
        .filter(|subset| fits(*subset))
        .map(u32::count_ones)
        .max()
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn capacity_agrees_with_trying_everything(
        board in proptest::sample::select(mig_boards()),
        picks in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..8),
    ) {
        let mut node = partitionable(board);
        let profiles = node.gpus[0].mig_spec().unwrap().profiles.clone();
        for (profile, start) in picks {
            let profile = &profiles[profile.index(profiles.len())];
            let start = profile.starts[start.index(profile.starts.len())];
            let _ = node.create_gpu_instance(0, profile.id, Some(Placement { start, size: profile.size }), CALLER, 0);
        }
        for (n, a) in node.gpus[0].mig.instances.iter().enumerate() {
            for b in &node.gpus[0].mig.instances[n + 1..] {
                prop_assert!(!a.placement.overlaps(&b.placement) && a.id != b.id);
            }
        }
        for profile in &profiles {
            prop_assert_eq!(
                node.gpus[0].remaining_capacity(profile.id).unwrap(),
                brute_force_capacity(&node, profile.id),
                "profile {}", profile.name
            );
        }
    }
}

/// The documents' count of instances per profile is what fits on an empty GPU, engines included.
#[test]
fn an_empty_gpu_holds_the_documented_number_of_each_profile() {
    for board in mig_boards() {
        let node = partitionable(board);
        for profile in &node.gpus[0].mig_spec().unwrap().profiles {
            let capacity = node.gpus[0].remaining_capacity(profile.id).unwrap();
            assert_eq!(capacity, profile.max_instances, "{board} {}", profile.name);
        }
    }
}
