//! An apply is killed at every step, on every board family: the next run ends in one of the two layouts.
//!
//! The apply runs in a process of its own (this test program again) that kills itself, without any clean-up, at the n-th
//! event: after a step was journalled and before it is taken, or after it was taken.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use mig_manager::engine::{Engine, Event, OnFailure, Options};
use rstest::rstest;
use sim_nvml::Code;
use sim_nvml::model::faults::{Effect, Fault};

use super::{Node, OFF, all, options, request};

const ROOT: &str = "LATHE_TEST_KILL_ROOT";
const STATE: &str = "LATHE_TEST_KILL_STATE";
const SPECS: &str = "LATHE_TEST_KILL_SPECS";
const AT: &str = "LATHE_TEST_KILL_AT";

/// Not a test of its own: the process that dies.
#[test]
fn child() {
    let Ok(root) = std::env::var(ROOT) else {
        return;
    };
    let specs = std::env::var(SPECS).unwrap();
    let at: usize = std::env::var(AT).unwrap().parse().unwrap();
    let driver = nvml::Driver::open(&nvml::Options::at(&root)).unwrap();
    let state_dir = std::env::var(STATE).unwrap();
    let engine = Engine::new(driver, options(Path::new(&root), Path::new(&state_dir)));
    let seen = AtomicUsize::new(0);
    let die = |event: &Event| {
        let counts = matches!(event, Event::Started { .. } | Event::Done { .. });
        if counts && seen.fetch_add(1, Ordering::SeqCst) + 1 == at {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                .unwrap();
        }
    };
    engine.apply(&request(&specs), &die).unwrap();
}

/// Applies in a process that dies at event `at`; false when the apply had fewer events and succeeded.
pub(crate) fn killed(node: &Node, specs: &str, at: usize) -> bool {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::child", "--nocapture"])
        .env(ROOT, node.sim.root())
        .env(STATE, node.state.path())
        .env(SPECS, specs)
        .env(AT, at.to_string())
        .output()
        .unwrap();
    let killed = output.status.signal() == Some(9);
    assert!(
        killed || output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    killed
}

/// The layout without its placements.
fn devices(layout: &str) -> Vec<String> {
    let mut parts: Vec<String> = layout
        .split(' ')
        .map(|part| match part.split_once('@') {
            Some((profile, place)) => {
                format!("{profile}/{}", place.split('/').nth(1).unwrap_or_default())
            }
            None => part.to_owned(),
        })
        .collect();
    parts.sort();
    parts
}

/// Kills `first → second` at every event; `next` is the run after it.
fn at_every_step(
    board: &str,
    first: &str,
    second: &str,
    next: impl Fn(&Node),
    allowed: impl Fn(&str, &str, &str) -> bool,
) {
    // A node costs a copy of the driver library; one serves for all.
    let node = Node::of(board, 2);
    node.apply(&only_first_gpu(second)).unwrap();
    let wanted = node.layouts()[0].clone();

    for at in 1..200 {
        node.sim.clear_all().unwrap();
        node.apply(&only_first_gpu(first)).unwrap();
        let before = node.layouts()[0].clone();
        if !killed(&node, &only_first_gpu(second), at) {
            assert!(at > 2, "the apply had no step to be killed at");
            return;
        }
        assert!(
            node.journal().is_some(),
            "killed at event {at}, and no journal"
        );
        next(&node);
        let end = &node.layouts()[0];
        assert!(
            allowed(end, &before, &wanted),
            "killed at event {at}: {before} → {end}, wanted {wanted}"
        );
        assert_eq!(node.journal(), None, "killed at event {at}");
    }
    panic!("an apply with more than 200 events");
}

fn only_first_gpu(specs: &str) -> String {
    specs.replace("devices: all", "devices: [0]")
}

/// A run that does not speak of the killed apply's GPU.
fn elsewhere(node: &Node) {
    node.apply("- {devices: [1], mig-enabled: false}").unwrap();
}

fn one_of_the_two(end: &str, before: &str, wanted: &str) -> bool {
    end == before || devices(end) == devices(wanted)
}

#[rstest]
#[case::a30("a30-24gb", "1g.6gb: 2, 2g.12gb: 1", "2g.12gb: 2")]
#[case::a100("a100-sxm4-40gb", "3g.20gb: 1, 1g.5gb: 2", "3g.20gb: 1, 1c.3g.20gb: 2")]
#[case::h100("h100-sxm5-80gb", "1g.10gb: 2, 3g.40gb: 1", "2g.20gb: 1, 3g.40gb: 1")]
#[case::h200("h200-sxm-141gb", "1g.35gb: 2", "7g.141gb: 1")]
#[case::b200("b200-180gb", "4g.90gb: 1", "1g.23gb+me: 1, 1g.23gb: 2")]
#[case::rtx_pro(
    "rtx-pro-6000-96gb",
    "1g.24gb: 2, 2g.48gb: 1",
    "1g.24gb+gfx: 2, 2g.48gb: 1"
)]
fn next_run_elsewhere_finishes_or_undoes(
    #[case] board: &str,
    #[case] first: &str,
    #[case] second: &str,
    #[values("up", "across", "down")] way: &str,
) {
    let (from, to) = match way {
        "up" => (OFF.to_owned(), all(first)),
        "across" => (all(first), all(second)),
        _ => (all(second), OFF.to_owned()),
    };
    at_every_step(board, &from, &to, elsewhere, one_of_the_two);
}

#[rstest]
#[case::ampere("a100-pcie-80gb", "1g.10gb: 3", "7g.80gb: 1")]
#[case::hopper("h100-pcie-80gb", "1g.10gb: 3", "7g.80gb: 1")]
fn same_request_again_finishes(#[case] board: &str, #[case] first: &str, #[case] second: &str) {
    let again = |node: &Node| drop(node.apply(&only_first_gpu(&all(second))).unwrap());
    at_every_step(board, &all(first), &all(second), again, |end, _, wanted| {
        devices(end) == devices(wanted)
    });
}

#[test]
fn other_request_for_the_same_gpu_goes_straight_to_its_goal() {
    let other = |node: &Node| drop(node.apply("- {devices: [0], mig-enabled: false}").unwrap());
    at_every_step(
        "h100-sxm5-80gb",
        &all("1g.10gb: 2"),
        &all("3g.40gb: 2"),
        other,
        |end, _, _| end == "off",
    );
}

/// What cannot be finished is undone, to the placements there were before the killed apply.
#[test]
fn undone_when_it_cannot_be_finished() {
    let hinder = |node: &Node| {
        node.sim
            .inject(Fault {
                gpu: Some(0),
                times: Some(1),
                ..Fault::new(
                    "nvmlDeviceCreateGpuInstanceWithPlacement",
                    Effect::Fail(Code::INSUFFICIENT_RESOURCES),
                )
            })
            .unwrap();
        elsewhere(node);
    };
    at_every_step(
        "h100-sxm5-80gb",
        &all("1g.10gb: 2"),
        &all("7g.80gb: 1"),
        hinder,
        one_of_the_two,
    );
}

/// A failing next run takes a half-changed GPU back to what it was before the killed one.
#[test]
fn failing_next_run_goes_back_to_the_layout_before_the_killed_one() {
    let node = Node::of("h100-sxm5-80gb", 1);
    node.apply(&all("1g.10gb: 2, 3g.40gb: 1")).unwrap();
    let before = node.layouts();
    // Five events in: two compute instances and one GPU instance are gone.
    assert!(killed(&node, &all("7g.80gb: 1"), 9));
    assert_ne!(node.layouts(), before);
    node.sim
        .inject(Fault {
            times: Some(1),
            ..Fault::new(
                "nvmlDeviceCreateGpuInstanceWithPlacement",
                Effect::Fail(Code::UNKNOWN),
            )
        })
        .unwrap();
    let error = node.apply(&all("2g.20gb: 3")).unwrap_err();
    assert_eq!(error.exit_code(), 7, "{error}");
    assert_eq!(node.layouts(), before);
}

#[test]
fn all_gpus_at_once() {
    let node = Node::of("h100-sxm5-80gb", 3);
    for at in [1, 5, 12, 20, 27] {
        node.apply("- {devices: [0, 1], mig-enabled: true, mig-devices: {1g.10gb: 2}}\n- {devices: [2], mig-enabled: false}")
            .unwrap();
        assert!(
            killed(&node, &all("3g.40gb: 2"), at),
            "too few events for {at}"
        );
        let planned = node.plan(&all("3g.40gb: 2")).unwrap();
        assert_eq!(planned.interrupted.as_deref(), Some("wanted"));
        node.apply(&all("3g.40gb: 2")).unwrap();
        assert_eq!(
            node.layouts(),
            ["on 9@0/3 9@4/3"; 3],
            "killed at event {at}"
        );
    }
}

/// The half-changed GPU goes back even when the failing run never got to touch it.
#[test]
fn failing_next_run_goes_back_on_gpus_it_did_not_touch() {
    let node = Node::of("h100-sxm5-80gb", 2);
    node.apply(&only_first_gpu(&all("1g.10gb: 2, 3g.40gb: 1")))
        .unwrap();
    let before = node.layouts();
    assert!(killed(&node, &only_first_gpu(&all("7g.80gb: 1")), 3));
    node.sim
        .inject(Fault {
            gpu: Some(1),
            ..Fault::new("nvmlDeviceSetMigMode", Effect::Fail(Code::UNKNOWN))
        })
        .unwrap();
    // GPU 0 is in use: it fails before its first step, and its users are gone when it is to go back.
    let state = node.sim.state().unwrap();
    let left = state.gpus[0]
        .mig
        .instances
        .iter()
        .find(|i| !i.compute.is_empty())
        .unwrap();
    let pid = node.workload(0, Some(left.id));
    let leave = |event: &Event| {
        if let Event::Failed { gpu, .. } = event
            && gpu.index == 0
        {
            node.sim.stop_workload(pid).unwrap();
        }
    };
    let hooks = mig_manager::hooks::Hooks::parse(
        "hooks",
        b"version: v1\nhooks: {pre-apply-mode: [{command: 'true'}]}",
    );
    let engine = node.engine_with(mig_manager::engine::Options {
        hooks: hooks.unwrap(),
        ..node.options()
    });
    let error = engine
        .apply(&request(&all("2g.20gb: 3")), &leave)
        .unwrap_err();
    assert_eq!(error.exit_code(), 7, "{error}");
    assert_eq!(node.layouts(), before);
    assert_eq!(node.journal(), None);
}

/// A GPU that is lost when the next run comes is dealt with by the run after it is back.
#[test]
fn lost_gpu_stays_in_the_journal_until_it_is_back() {
    let node = Node::of("h100-sxm5-80gb", 2);
    node.apply(&only_first_gpu(&all("1g.10gb: 2"))).unwrap();
    assert!(killed(&node, &only_first_gpu(&all("3g.40gb: 2")), 5));
    node.sim.lose(0).unwrap();
    let applied = node
        .apply("- {devices: [1], mig-enabled: true, mig-devices: {7g.80gb: 1}}")
        .unwrap();
    assert_eq!(applied.unrecovered.len(), 1);
    assert!(node.journal().is_some());
    assert_eq!(node.layouts()[1], "on 0@0/7");
    // Until then there is nothing to be done about it.
    let plan = node
        .plan("- {devices: [1], mig-enabled: true, mig-devices: {7g.80gb: 1}}")
        .unwrap();
    assert!(plan.is_noop());
    assert_eq!(plan.interrupted, None);
    // A reboot brings it back, without MIG.
    node.sim.reboot().unwrap();
    elsewhere(&node);
    assert_eq!(node.layouts()[0], "on 9@0/3 9@4/3");
    assert_eq!(node.journal(), None);
}

/// Also when this run speaks of the GPU, and goes on without it.
#[test]
fn lost_gpu_stays_in_the_journal_when_the_others_are_changed_all_the_same() {
    let node = Node::of("h100-sxm5-80gb", 2);
    node.apply(&only_first_gpu(&all("1g.10gb: 2"))).unwrap();
    assert!(killed(&node, &only_first_gpu(&all("3g.40gb: 2")), 5));
    let engine = node.engine_with(Options {
        on_failure: OnFailure::Keep,
        ..node.options()
    });
    // It was seen before it was lost: then it is known by its UUID.
    engine.plan(&request(&all("7g.80gb: 1"))).unwrap();
    node.sim.lose(0).unwrap();
    let error = engine
        .apply(&request(&all("7g.80gb: 1")), &|_| {})
        .unwrap_err();
    assert!(error.to_string().starts_with("GPU 0: "), "{error}");
    assert_eq!(node.layouts()[1], "on 0@0/7");
    node.sim.reboot().unwrap();
    elsewhere(&node);
    assert_eq!(node.layouts()[0], "on 9@0/3 9@4/3");
    assert_eq!(node.journal(), None);
}
