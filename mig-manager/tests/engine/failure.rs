//! What a failure in the middle of an apply leaves, and what it says.

use std::time::Duration;

use mig_manager::engine::{Engine, Error, Event, OnFailure, Options, Purpose};
use rstest::rstest;
use sim_nvml::Code;
use sim_nvml::model::faults::{Effect, Fault};

use super::{Node, OFF, all, request};

fn fail(node: &Node, gpu: usize, symbol: &str, after: u64) {
    node.sim
        .inject(Fault {
            gpu: Some(gpu),
            after,
            ..Fault::new(symbol, Effect::Fail(Code::UNKNOWN))
        })
        .unwrap();
}

fn keeping(node: &Node) -> Engine {
    node.engine_with(Options {
        on_failure: OnFailure::Keep,
        ..node.options()
    })
}

const CREATE: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";
const CREATE_COMPUTE: &str = "nvmlGpuInstanceCreateComputeInstanceWithPlacement";

/// Whatever call fails, after however many successes, all GPUs get their old layout back, placements included.
#[rstest]
#[case::mode("nvmlDeviceSetMigMode", 0)]
#[case::first_instance(CREATE, 0)]
#[case::later_instance(CREATE, 2)]
#[case::first_compute(CREATE_COMPUTE, 0)]
#[case::last_compute(CREATE_COMPUTE, 2)]
fn rollback_from_off(#[case] symbol: &str, #[case] after: u64) {
    let node = Node::of("h100-sxm5-80gb", 3);
    fail(&node, 1, symbol, after);
    let error = node.apply(&all("1g.10gb: 2, 3g.40gb: 1")).unwrap_err();
    assert_eq!(error.exit_code(), 7, "{error}");
    let text = error.to_string();
    assert!(
        text.starts_with("GPU 1: ") && text.contains(symbol) && text.contains("999"),
        "{text}"
    );
    assert!(text.ends_with("every GPU is as it was"), "{text}");
    assert_eq!(node.layouts(), ["off"; 3]);
    assert_eq!(node.journal(), None);
}

#[rstest]
#[case::destroy_compute("nvmlComputeInstanceDestroy", 1)]
#[case::destroy_instance("nvmlGpuInstanceDestroy", 1)]
#[case::create(CREATE, 0)]
#[case::create_compute(CREATE_COMPUTE, 0)]
fn rollback_between_layouts_brings_placements_back(#[case] symbol: &str, #[case] after: u64) {
    let node = Node::of("h100-sxm5-80gb", 2);
    node.apply(&all("3g.40gb: 1, 1g.10gb: 3")).unwrap();
    let before = node.layouts();
    // Once only: the same call is needed on the way back.
    node.sim
        .inject(Fault {
            gpu: Some(1),
            after,
            times: Some(1),
            ..Fault::new(symbol, Effect::Fail(Code::UNKNOWN))
        })
        .unwrap();
    let error = node.apply(&all("4g.40gb: 1, 2g.20gb: 1")).unwrap_err();
    assert_eq!(error.exit_code(), 7, "{error}");
    assert_eq!(node.layouts(), before);
}

#[test]
fn keep_leaves_the_others_done_and_the_failed_one_where_it_stopped() {
    let node = Node::of("h100-sxm5-80gb", 3);
    fail(&node, 1, CREATE, 1);
    let error = keeping(&node)
        .apply(&request(&all("3g.40gb: 2")), &|_| {})
        .unwrap_err();
    assert_eq!(error.exit_code(), 8, "{error}");
    assert!(
        error.to_string().ends_with("changed and kept: GPUs 0-2"),
        "{error}"
    );
    let layouts = node.layouts();
    assert_eq!(layouts[0], "on 9@0/3 9@4/3");
    assert_eq!(layouts[1].matches("9@").count(), 1, "{layouts:?}");
    assert_eq!(layouts[2], "on 9@0/3 9@4/3");
    assert_eq!(node.journal(), None);
    // The next apply goes on from there.
    node.sim.clear_all().unwrap();
    node.apply(&all("3g.40gb: 2")).unwrap();
    assert_eq!(node.layouts(), ["on 9@0/3 9@4/3"; 3]);
}

#[test]
fn what_cannot_be_undone_is_said_and_stays_in_the_journal() {
    let node = Node::of("h100-sxm5-80gb", 2);
    node.apply(&all("7g.80gb: 1")).unwrap();
    // The new layout fails and the old one cannot come back either.
    fail(&node, 1, CREATE, 0);
    let error = node.apply(&all("3g.40gb: 2")).unwrap_err();
    assert_eq!(error.exit_code(), 8, "{error}");
    assert!(error.to_string().contains("not put back: GPU 1"), "{error}");
    assert_eq!(node.layouts()[0], "on 0@0/7");
    assert!(node.journal().is_some());

    // Once the trouble is over, an apply that does not even speak of that GPU finishes what was begun.
    node.sim.clear_all().unwrap();
    node.apply("- {devices: [0], mig-enabled: true, mig-devices: {7g.80gb: 1}}")
        .unwrap();
    assert_eq!(node.layouts(), ["on 0@0/7", "on 9@0/3 9@4/3"]);
    assert_eq!(node.journal(), None);
}

#[test]
fn lost_gpu_stops_everything_before_anything_is_touched() {
    let node = Node::of("h100-sxm5-80gb", 3);
    node.sim.lose(1).unwrap();
    node.forget_calls();
    let error = node.apply(&all("1g.10gb: 7")).unwrap_err();
    assert_eq!(error.exit_code(), 7, "{error}");
    assert!(
        error.to_string().starts_with("GPU 1: reading its state"),
        "{error}"
    );
    assert_eq!(node.changes(), [""; 0]);
    // It is no reason not to change the others when only they are meant.
    node.apply("- {devices: [0, 2], mig-enabled: true, mig-devices: {7g.80gb: 1}}")
        .unwrap();
    // Or when the policy says so.
    let error = keeping(&node)
        .apply(&request(&all("1g.10gb: 1")), &|_| {})
        .unwrap_err();
    assert_eq!(error.exit_code(), 8, "{error}");
    assert_eq!(node.layouts()[2].matches("19@").count(), 1);
}

#[test]
fn gpu_lost_on_the_way() {
    let node = Node::of("h100-sxm5-80gb", 2);
    let lose = |event: &mig_manager::engine::Event| {
        if let mig_manager::engine::Event::Done { gpu, number: 2, .. } = event
            && gpu.index == 1
        {
            node.sim.lose(1).unwrap();
        }
    };
    let error = node
        .engine()
        .apply(&request(&all("3g.40gb: 2")), &lose)
        .unwrap_err();
    assert_eq!(error.exit_code(), 8, "{error}");
    assert!(error.to_string().contains("GPU_IS_LOST"), "{error}");
    assert_eq!(node.layouts()[0], "off");
}

#[test]
fn in_use_says_by_whom_and_touches_nothing() {
    let node = Node::of("h100-sxm5-80gb", 2);
    node.apply(&all("7g.80gb: 1")).unwrap();
    let pid = node.workload(1, Some(0));
    node.forget_calls();
    let error = node.apply(&all("1g.10gb: 7")).unwrap_err();
    assert_eq!(error.exit_code(), 4);
    assert_eq!(
        error.to_string(),
        format!("GPU 1 is in use by process {pid} (python train.py)")
    );
    assert_eq!(node.changes(), [""; 0]);
    node.sim.stop_workload(pid).unwrap();
    node.apply(&all("1g.10gb: 7")).unwrap();
}

#[test]
fn holder_that_the_driver_does_not_name() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let mut agent = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap();
    node.sim.hold(agent.id()).unwrap();
    let result = node.apply(&all("1g.10gb: 7"));
    agent.kill().unwrap();
    agent.wait().unwrap();
    let error = result.unwrap_err();
    assert_eq!(error.exit_code(), 4, "{error}");
    assert!(error.to_string().contains("does not name"), "{error}");
    assert_eq!(node.layouts(), ["off"]);
}

#[test]
fn a_holder_that_lets_go_in_time() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let mut agent = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap();
    node.sim.hold(agent.id()).unwrap();
    let engine = node.engine_with(mig_manager::engine::Options {
        in_use_wait: std::time::Duration::from_secs(60),
        ..node.options()
    });
    let refused = || {
        node.changes()
            .iter()
            .any(|call| call == "nvmlDeviceSetMigMode")
    };
    let result = std::thread::scope(|scope| {
        let applied = scope.spawn(|| engine.apply(&request(&all("1g.10gb: 7")), &|_| {}));
        while !refused() && !applied.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        agent.kill().unwrap();
        agent.wait().unwrap();
        applied.join().unwrap()
    });
    result.unwrap();
    assert!(node.layouts()[0].starts_with("on "), "{:?}", node.layouts());
}

#[test]
fn somebody_starts_a_process_during_the_apply() {
    let node = Node::of("h100-sxm5-80gb", 2);
    node.apply(&all("3g.40gb: 2")).unwrap();
    let intrude = |event: &mig_manager::engine::Event| {
        if let mig_manager::engine::Event::Started { gpu, number: 1, .. } = event
            && gpu.index == 1
        {
            node.workload(1, Some(node.instance_at(1, 4)));
        }
    };
    let before = node.layouts();
    let error = node
        .engine()
        .apply(&request(&all("7g.80gb: 1")), &intrude)
        .unwrap_err();
    assert!(matches!(error, Error::InUse(_)), "{error}");
    assert!(error.to_string().contains("python train.py"), "{error}");
    assert_eq!(node.layouts(), before);
}

#[test]
fn hanging_call_fails_its_gpu_within_its_bound() {
    let node = Node::of("h100-sxm5-80gb", 2);
    let hang = node
        .sim
        .inject(Fault {
            gpu: Some(1),
            ..Fault::new(CREATE, Effect::Hang)
        })
        .unwrap();
    let options = nvml::Options {
        // Longer than a change that does not hang takes on a busy machine.
        write_timeout: Duration::from_secs(10),
        ..nvml::Options::at(node.sim.root())
    };
    let engine = Engine::new(nvml::Driver::open(&options).unwrap(), node.options());
    let error = engine
        .apply(&request(&all("7g.80gb: 1")), &|_| {})
        .unwrap_err();
    assert_eq!(error.exit_code(), 8, "{error}");
    assert!(error.to_string().contains("has not returned"), "{error}");
    assert_eq!(node.layouts()[0], "off");
    node.sim.clear(hang).unwrap();
}

#[test]
fn a_change_that_takes_too_long_is_given_up_and_taken_back() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let limit = Duration::from_secs(1);
    let engine = node.engine_with(Options {
        change_limit: Some(limit),
        ..node.options()
    });
    let linger = |event: &Event| {
        if let Event::Done { number: 1, .. } = event {
            std::thread::sleep(limit);
        }
    };
    let error = engine
        .apply(&request(&all("7g.80gb: 1")), &linger)
        .unwrap_err();
    assert_eq!(error.exit_code(), 7, "{error}");
    assert_eq!(
        error.to_string(),
        "GPU 0: stopped, because the change took longer than 1 s; every GPU is as it was"
    );
    assert_eq!(node.layouts(), ["off"]);
    assert_eq!(node.journal(), None);
}

#[test]
fn a_change_with_no_time_ends_before_its_first_step() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let engine = node.engine_with(Options {
        change_limit: Some(Duration::ZERO),
        ..node.options()
    });
    node.forget_calls();
    engine
        .apply(&request(&all("7g.80gb: 1")), &|_| {})
        .unwrap_err();
    assert_eq!(node.changes(), [""; 0]);
}

#[test]
fn driver_gone() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let engine = node.engine();
    node.sim.unload_driver().unwrap();
    let error = engine.apply(&request(OFF), &|_| {}).unwrap_err();
    assert_eq!(error.exit_code(), 6, "{error}");
}

#[test]
fn two_applies_do_not_interleave() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let impatient = Options {
        lock_wait: Duration::from_millis(50),
        ..node.options()
    };
    let second = std::sync::Mutex::new(None);
    let during = |event: &mig_manager::engine::Event| {
        if let mig_manager::engine::Event::Started { number: 1, .. } = event {
            let result = node
                .engine_with(impatient.clone())
                .apply(&request(OFF), &|_| {});
            *second.lock().unwrap() = Some(result);
        }
    };
    node.engine()
        .apply(&request(&all("7g.80gb: 1")), &during)
        .unwrap();
    let error = second.into_inner().unwrap().unwrap().unwrap_err();
    assert_eq!(error.exit_code(), 4);
    assert!(
        error.to_string().contains(&std::process::id().to_string()),
        "{error}"
    );
    assert_eq!(node.layouts(), ["on 0@0/7"]);
}

#[test]
fn journal_that_cannot_be_written_means_nothing_is_touched() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let state_dir = node.options().state_dir;
    std::fs::create_dir_all(state_dir.join("journal")).unwrap();
    node.forget_calls();
    let error = node.apply(&all("7g.80gb: 1")).unwrap_err();
    assert_eq!(error.exit_code(), 7, "{error}");
    assert!(error.to_string().contains("journal"), "{error}");
    assert_eq!(node.changes(), [""; 0]);
}

#[test]
fn journal_that_nobody_can_read_is_said_and_kept() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let journal = node.options().state_dir.join("journal");
    std::fs::write(&journal, "{\"version\":99}").unwrap();
    let error = node.apply(&all("7g.80gb: 1")).unwrap_err();
    assert_eq!(error.exit_code(), 7);
    assert!(error.to_string().contains("remove it to go on"), "{error}");
    assert_eq!(node.changes(), [""; 0]);
    // A plan does not need it.
    assert!(!node.plan(&all("7g.80gb: 1")).unwrap().is_noop());
    std::fs::remove_file(&journal).unwrap();
    node.apply(&all("7g.80gb: 1")).unwrap();
}

/// A GPU ahead of it falls off the bus and the driver is opened again: the index now means another GPU.
#[test]
fn gpu_that_moves_to_another_index_on_the_way() {
    let node = Node::of("h100-sxm5-80gb", 2);
    let driver = nvml::Driver::open(&nvml::Options::at(node.sim.root())).unwrap();
    let engine = Engine::new(driver.clone(), node.options());
    let shift = |event: &mig_manager::engine::Event| {
        if let mig_manager::engine::Event::Done { number: 2, .. } = event {
            node.sim.fall_off(0).unwrap();
            driver.reopen().unwrap();
        }
    };
    let specs = "- {devices: [1], mig-enabled: true, mig-devices: {3g.40gb: 2}}";
    engine.apply(&request(specs), &shift).unwrap();
    assert_eq!(node.layouts()[1], "on 9@0/3 9@4/3");
}

/// On Hopper MIG goes with the driver, on Ampere the instances do: either way the next step fails, with a code that says
/// nothing of it.
#[rstest]
#[case::hopper("h100-sxm5-80gb", "MIG off")]
#[case::ampere("a100-sxm4-80gb", "MIG on without devices")]
fn a_driver_reload_in_the_middle_is_named(#[case] board: &str, #[case] found: &str) {
    let node = Node::of(board, 1);
    node.apply(&all("1g.10gb: 2")).unwrap();
    let before = node.layouts();
    let reload = |event: &Event| {
        if let Event::Started {
            number: 2,
            purpose: Purpose::Apply,
            ..
        } = event
        {
            node.sim.reload_driver().unwrap();
        }
    };
    let error = node
        .engine()
        .apply(&request(&all("7g.80gb: 1")), &reload)
        .unwrap_err();
    assert_eq!(error.exit_code(), 7, "{error}");
    let expected = format!(
        "meanwhile somebody else changed the GPU, or its driver was loaded anew: it has {found}; "
    );
    assert!(error.to_string().contains(&expected), "{error}");
    assert_eq!(node.layouts(), before);
}

/// The change is made, and read back: what happens to the journal then is no failure of it.
#[test]
fn journal_that_cannot_be_removed_afterwards() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let journal = node.options().state_dir.join("journal");
    let spoil = |event: &Event| {
        if let Event::Reached { .. } = event {
            std::fs::remove_file(&journal).unwrap();
            std::fs::create_dir(&journal).unwrap();
        }
    };
    let applied = node
        .engine()
        .apply(&request(&all("7g.80gb: 1")), &spoil)
        .unwrap();
    assert_eq!(applied.changed.len(), 1);
    assert_eq!(node.layouts(), ["on 0@0/7"]);
}

/// The way back leads through a driver that lists no profiles while MIG is off.
#[test]
fn rollback_on_a_driver_that_lists_no_profiles_while_mig_is_off() {
    let node = Node::of("h100-sxm5-80gb", 2);
    node.apply(&all("1g.10gb: 2, 3g.40gb: 1")).unwrap();
    let before = node.layouts();
    fail(&node, 1, "nvmlDeviceSetMigMode", 0);
    let (reached, turn) = std::sync::mpsc::channel();
    let turn = std::sync::Mutex::new(turn);
    let watch = |event: &Event| match event {
        // GPU 0 is through before GPU 1 fails.
        Event::Started {
            gpu,
            step: gpu::Step::SetMode { enabled: false },
            ..
        } if gpu.index == 1 => {
            turn.lock().unwrap().recv().unwrap();
        }
        // Until MIG is on again: a look to compare, and one to plan the way back.
        Event::Done { gpu, .. } if gpu.index == 0 && node.layouts()[0] == "off" => {
            node.sim
                .inject(Fault {
                    gpu: Some(0),
                    times: Some(2),
                    ..Fault::new(
                        "nvmlDeviceGetGpuInstanceProfileInfo",
                        Effect::Fail(Code::INVALID_ARGUMENT),
                    )
                })
                .unwrap();
        }
        Event::Reached {
            gpu,
            purpose: Purpose::Apply,
        } if gpu.index == 0 => {
            reached.send(()).unwrap();
        }
        _ => {}
    };
    let error = node.engine().apply(&request(OFF), &watch).unwrap_err();
    assert_eq!(error.exit_code(), 7, "{error}");
    assert_eq!(node.layouts(), before);
}
