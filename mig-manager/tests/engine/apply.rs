//! What an apply does to the hardware, and what it leaves alone.

use mig_manager::engine::{Event, Purpose};
use rstest::rstest;
use sim_nvml::Code;
use sim_nvml::model::faults::{Effect, Fault};

use super::{Node, OFF, all, request};

/// Profile ids and places by hand from the boards' tables; compute slices as the profile has them.
#[rstest]
#[case::a100_40("a100-sxm4-40gb", "1g.5gb: 2, 2g.10gb: 1, 3g.20gb: 1", &[("19", 2), ("14", 1), ("9", 1)])]
#[case::a100_80("a100-pcie-80gb", "1g.20gb: 4", &[("15", 4)])]
#[case::a30("a30-24gb", "1g.6gb: 2, 2g.12gb: 1", &[("14", 2), ("5", 1)])]
#[case::h100("h100-sxm5-80gb", "1g.10gb: 7", &[("19", 7)])]
#[case::h100_media("h100-sxm5-80gb", "1g.10gb+me: 1, 1g.10gb: 6", &[("20", 1), ("19", 6)])]
#[case::h100_nvl("h100-nvl-94gb", "3g.47gb: 2", &[("9", 2)])]
#[case::gh200("gh200-96gb", "4g.48gb: 1, 3g.48gb: 1", &[("5", 1), ("9", 1)])]
#[case::h200("h200-sxm-141gb", "1g.35gb: 4", &[("15", 4)])]
#[case::b200("b200-180gb", "2g.45gb: 3", &[("14", 3)])]
#[case::gb200("gb200-186gb", "7g.186gb: 1", &[("0", 1)])]
#[case::b300("b300-269gb", "1g.34gb: 2, 2g.67gb: 1, 3g.135gb: 1", &[("19", 2), ("14", 1), ("9", 1)])]
#[case::rtx_pro("rtx-pro-6000-96gb", "1g.24gb: 2, 2g.48gb: 1", &[("14", 2), ("5", 1)])]
#[case::rtx_pro_graphics("rtx-pro-6000-96gb", "1g.24gb+gfx: 4", &[("47", 4)])]
fn cuts_every_board(
    #[case] board: &str,
    #[case] devices: &str,
    #[case] expected: &[(&str, usize)],
) {
    let node = Node::of(board, 1);
    node.apply(&all(devices)).unwrap();
    let layout = &node.layouts()[0];
    for (profile, count) in expected {
        let found = layout
            .split(' ')
            .filter(|i| i.split('@').next() == Some(profile))
            .count();
        assert_eq!(found, *count, "profile {profile} in {layout}");
    }
    let instances: usize = expected.iter().map(|(_, n)| n).sum();
    assert_eq!(layout.split(' ').count(), 1 + instances, "{layout}");
    assert!(node.equal(&all(devices)));
    node.apply(OFF).unwrap();
    assert_eq!(node.layouts(), ["off"]);
}

#[test]
fn second_apply_makes_no_mutating_call() {
    let node = Node::preset("dgx-h100");
    let specs = all("1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 1");
    assert_eq!(node.apply(&specs).unwrap().changed.len(), 8);
    assert!(!node.changes().is_empty());
    node.forget_calls();
    assert_eq!(node.apply(&specs).unwrap().changed, []);
    assert_eq!(node.changes(), [""; 0]);
    assert_eq!(node.journal(), None);
}

#[test]
fn instances_that_fit_stay_with_the_processes_in_them() {
    let node = Node::of("h100-sxm5-80gb", 1);
    node.apply(&all("3g.40gb: 1, 1g.10gb: 4")).unwrap();
    let three = node.layouts()[0]
        .split(' ')
        .find(|i| i.starts_with("9@"))
        .unwrap()
        .to_owned();
    let start: u32 = three.split(['@', '/']).nth(1).unwrap().parse().unwrap();
    let pid = node.workload(0, Some(node.instance_at(0, start)));
    node.forget_calls();

    node.apply(&all("3g.40gb: 1, 2g.20gb: 1")).unwrap();
    let layout = &node.layouts()[0];
    assert!(layout.contains(&three), "{layout}");
    assert!(layout.contains(" 14@"), "{layout}");
    assert!(
        node.sim
            .state()
            .unwrap()
            .workloads
            .iter()
            .any(|w| w.pid == pid)
    );
    // Four 1g instances went, one 2g came; mode and 3g were left alone.
    let mut changes = node.changes();
    changes.sort();
    let expected: Vec<&str> = [
        vec!["nvmlComputeInstanceDestroy"; 4],
        vec!["nvmlDeviceCreateGpuInstanceWithPlacement"],
        vec!["nvmlGpuInstanceCreateComputeInstanceWithPlacement"],
        vec!["nvmlGpuInstanceDestroy"; 4],
    ]
    .concat();
    assert_eq!(changes, expected);
}

#[test]
fn gpus_that_no_spec_names_are_never_touched() {
    let node = Node::of("h100-sxm5-80gb", 3);
    node.apply(&all("7g.80gb: 1")).unwrap();
    let pid = node.workload(1, Some(0));
    node.apply("- {devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 1}}\n- {devices: [2], mig-enabled: false}")
        .unwrap();
    let layouts = node.layouts();
    assert!(layouts[0].starts_with("on 19@"), "{layouts:?}");
    assert_eq!(layouts[1], "on 0@0/7");
    assert_eq!(layouts[2], "off");
    assert!(
        node.sim
            .state()
            .unwrap()
            .workloads
            .iter()
            .any(|w| w.pid == pid)
    );
}

#[test]
fn compute_instances_share_gpu_instances() {
    let node = Node::of("a100-sxm4-40gb", 1);
    node.apply(&all("1c.3g.20gb: 3, 3g.20gb: 1")).unwrap();
    let layout = node.layouts()[0].clone();
    assert!(layout.contains("/1+1+1"), "{layout}");
    assert!(layout.contains("/3"), "{layout}");
    assert_eq!(layout.split(' ').count(), 3, "{layout}");

    // One compute instance fewer: its GPU instance and its siblings stay.
    node.forget_calls();
    node.apply(&all("1c.3g.20gb: 2, 3g.20gb: 1")).unwrap();
    assert_eq!(node.changes(), ["nvmlComputeInstanceDestroy"]);
    assert!(node.layouts()[0].contains("/1+1 ") || node.layouts()[0].ends_with("/1+1"));
}

#[test]
fn a_gpu_instance_without_compute_instance_is_seen_and_handled() {
    let node = Node::of("h100-sxm5-80gb", 1);
    node.apply(&all("")).unwrap();
    let driver = nvml::Driver::open(&nvml::Options::at(node.sim.root())).unwrap();
    // A whole-GPU instance that no tool which counts compute instances would notice.
    driver
        .gpu(0)
        .run(|d| d.create_gpu_instance(0, None))
        .unwrap();
    assert_eq!(node.layouts(), ["on 0@0/"]);
    assert!(!node.equal(&all("")));
    let found = node.engine().assert(&request(&all("1g.10gb: 7"))).unwrap();
    assert!(
        found[0]
            .found
            .contains("1 GPU instances that are no device"),
        "{}",
        found[0]
    );

    node.apply(&all("1g.10gb: 7")).unwrap();
    assert_eq!(node.layouts()[0].matches("19@").count(), 7);
    assert!(!node.layouts()[0].contains(" 0@"));
}

#[test]
fn gpus_are_worked_on_in_parallel() {
    let node = Node::of("h100-sxm5-80gb", 4);
    let (result, events) = node.apply_watched(&all("1g.10gb: 1"));
    result.unwrap();
    // Every GPU reports all its steps, in order, whatever the others do meanwhile.
    for index in 0..4 {
        let mine: Vec<String> = events
            .iter()
            .filter_map(|e| match e {
                Event::Started {
                    gpu,
                    purpose: Purpose::Apply,
                    number,
                    of,
                    ..
                } if gpu.index == index => Some(format!("{number}/{of}")),
                Event::Reached { gpu, .. } if gpu.index == index => Some("reached".to_owned()),
                _ => None,
            })
            .collect();
        assert_eq!(mine, ["1/3", "2/3", "3/3", "reached"], "GPU {index}");
    }
}

#[test]
fn a_slow_gpu_does_not_hold_the_others_up() {
    let node = Node::of("h100-sxm5-80gb", 3);
    let hang = node
        .sim
        .inject(Fault {
            gpu: Some(1),
            ..Fault::new("nvmlDeviceSetMigMode", Effect::Hang)
        })
        .unwrap();
    let reached = std::sync::atomic::AtomicUsize::new(0);
    // The hanging call ends only once the two other GPUs are done.
    let watch = |event: &Event| {
        if let Event::Reached { .. } = event
            && reached.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 1
        {
            node.sim.clear(hang).unwrap();
        }
    };
    node.engine()
        .apply(&request(&all("7g.80gb: 1")), &watch)
        .unwrap();
    assert_eq!(node.layouts(), ["on 0@0/7"; 3]);
}

#[test]
fn the_result_is_read_back() {
    let node = Node::of("h100-sxm5-80gb", 1);
    // Somebody else destroys what was just made: every call succeeds, the result is wrong.
    let sabotage = |event: &Event| {
        if let Event::Done { number: 3, .. } = event {
            let driver = nvml::Driver::open(&nvml::Options::at(node.sim.root())).unwrap();
            driver
                .gpu(0)
                .run(|d| d.destroy_compute_instance(0, 0))
                .unwrap();
        }
    };
    let error = node
        .engine()
        .apply(&request(&all("7g.80gb: 1")), &sabotage)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("all steps succeeded, but the GPU has"),
        "{error}"
    );
    assert_eq!(error.exit_code(), 7);
    assert_eq!(node.layouts(), ["off"]);
}

#[test]
fn an_apply_under_way_is_not_an_interrupted_one() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let wanted = request(&all("7g.80gb: 1"));
    let other = node.engine();
    let seen = std::sync::Mutex::new(Vec::new());
    let look = |_: &Event| {
        seen.lock()
            .unwrap()
            .push(other.plan(&wanted).unwrap().interrupted)
    };
    node.engine().apply(&wanted, &look).unwrap();
    let seen = seen.into_inner().unwrap();
    assert!(
        !seen.is_empty() && seen.iter().all(Option::is_none),
        "{seen:?}"
    );
}

/// Old drivers have no call that says where a compute instance is to lie.
#[test]
fn a_driver_that_places_compute_instances_by_itself() {
    let node = Node::of("a100-sxm4-40gb", 1);
    node.sim
        .inject(Fault::new(
            "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
            Effect::Fail(Code::FUNCTION_NOT_FOUND),
        ))
        .unwrap();
    node.apply(&all("2g.10gb: 1, 1c.3g.20gb: 2")).unwrap();
    assert_eq!(node.layouts(), ["on 14@0/2 9@4/1+1"]);
}
