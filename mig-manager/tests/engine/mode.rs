//! MIG mode: resets on Ampere, none on Hopper, `--mode-only`, `--skip-reset`, drivers that list no profiles before.

use mig_manager::engine::{Engine, Error, Options, Request};
use rstest::rstest;
use sim_nvml::Code;
use sim_nvml::model::faults::{Effect, Fault};
use sim_nvml::presets::NodeSpec;

use super::{Node, OFF, all, request};

/// An Ampere node in a virtual machine: the driver does not reset on a mode change.
fn passed_through(gpus: usize) -> Node {
    let mut spec = NodeSpec::uniform("a100-sxm4-40gb", gpus).unwrap();
    spec.personality = Some(sim_nvml::model::Personality {
        passthrough: true,
        ..Default::default()
    });
    Node::new(&spec)
}

fn skipping_resets(node: &Node) -> Engine {
    node.engine_with(Options {
        skip_reset: true,
        ..node.options()
    })
}

fn mode_only(specs: &str) -> Request {
    request(specs).mode_only(true)
}

#[rstest]
fn mode_changes_on_every_generation(
    #[values(
        "a30-24gb",
        "a100-pcie-40gb",
        "h100-pcie-80gb",
        "b200-180gb",
        "rtx-pro-6000-96gb"
    )]
    board: &str,
) {
    let node = Node::of(board, 2);
    node.apply(&all("")).unwrap();
    assert_eq!(node.layouts(), ["on", "on"]);
    node.apply(OFF).unwrap();
    assert_eq!(node.layouts(), ["off", "off"]);
}

#[test]
fn mode_only_leaves_instances_alone() {
    let node = Node::of("h100-sxm5-80gb", 2);
    node.apply("- {devices: [0], mig-enabled: true, mig-devices: {7g.80gb: 1}}")
        .unwrap();
    let engine = node.engine();
    let wanted = mode_only(&all("1g.10gb: 7"));
    assert_eq!(engine.assert(&wanted).unwrap().len(), 1);
    engine.apply(&wanted, &|_| {}).unwrap();
    assert_eq!(node.layouts(), ["on 0@0/7", "on"]);
    assert!(engine.assert(&wanted).unwrap().is_empty());
    assert_eq!(
        engine.assert(&request(&all("1g.10gb: 7"))).unwrap().len(),
        2
    );
}

#[test]
fn skip_reset_sets_the_mode_and_leaves_the_reset_to_others() {
    let node = passed_through(1);
    let engine = skipping_resets(&node);
    let applied = engine
        .apply(&mode_only(&all("1g.5gb: 7")), &|_| {})
        .unwrap();
    assert_eq!(applied.awaiting_reset.len(), 1);
    assert_eq!(node.layouts(), ["off until reset"]);
    assert_eq!(
        engine.assert(&mode_only(&all("1g.5gb: 7"))).unwrap().len(),
        1
    );
    // Devices cannot come before the reset; the mode stays set.
    let error = engine
        .apply(&request(&all("1g.5gb: 7")), &|_| {})
        .unwrap_err();
    assert!(matches!(error, Error::NeedsReset(_)), "{error}");
    assert_eq!(error.exit_code(), 5);
    assert_eq!(node.layouts(), ["off until reset"]);
    node.sim.reboot().unwrap();
    node.apply(&all("7g.40gb: 1")).unwrap();
    assert_eq!(node.layouts(), ["on 0@0/7"]);
}

#[test]
fn pending_mode_is_taken_back_without_a_reset() {
    let node = passed_through(1);
    skipping_resets(&node)
        .apply(&mode_only(&all("")), &|_| {})
        .unwrap();
    assert_eq!(node.layouts(), ["off until reset"]);
    node.forget_calls();
    node.apply(OFF).unwrap();
    assert_eq!(node.layouts(), ["off"]);
    assert_eq!(node.changes(), ["nvmlDeviceSetMigMode"]);
}

#[test]
fn refused_reset_is_undone_and_said() {
    let node = passed_through(2);
    for gpu in 0..2 {
        node.sim.refuse_reset(gpu, true).unwrap();
    }
    let error = node.apply(&all("1g.5gb: 7")).unwrap_err();
    assert_eq!(error.exit_code(), 5, "{error}");
    assert!(error.to_string().contains("reset or reboot"), "{error}");
    assert_eq!(node.layouts(), ["off", "off"]);
}

#[test]
fn a_driver_that_does_not_come_up_after_a_reset_gets_another_chance() {
    let node = passed_through(2);
    let engine = node.engine();
    node.sim
        .inject(Fault {
            times: Some(1),
            ..Fault::new("nvmlInit_v2", Effect::Fail(Code::UNKNOWN))
        })
        .unwrap();
    let error = engine
        .apply(&request(&all("1g.5gb: 7")), &|_| {})
        .unwrap_err();
    assert!(error.to_string().contains("nvmlInit_v2"), "{error}");
    assert_eq!(error.exit_code(), 7, "{error}");
    assert_eq!(node.layouts(), ["off", "off"]);
}

/// In both directions and whether or not a reset is part of the way.
#[rstest]
fn mode_that_stays_pending_needs_a_reset(
    #[values("a100-sxm4-40gb", "h100-sxm5-80gb")] board: &str,
    #[values("", "7g.40gb: 1", "7g.80gb: 1")] devices: &str,
) {
    let nodes = [Node::of(board, 2), passed_through(2)];
    for node in nodes.iter().filter(|n| {
        n.engine()
            .plan(&request(&all(devices)))
            .is_ok_and(|p| p.impossible().is_none())
    }) {
        node.sim.stick_mig_mode(1, true).unwrap();
        let error = node.apply(&all(devices)).unwrap_err();
        assert_eq!(error.exit_code(), 5, "{error}");
        assert!(
            error
                .to_string()
                .starts_with("GPU 1: the MIG mode counts only after a reset or reboot"),
            "{error}"
        );
        assert_eq!(node.layouts(), ["off", "off"]);
        node.sim.stick_mig_mode(1, false).unwrap();
        node.apply(&all(devices)).unwrap();
        let before = node.layouts();
        node.sim.stick_mig_mode(1, true).unwrap();
        let error = node.apply(OFF).unwrap_err();
        assert_eq!(error.exit_code(), 5, "{error}");
        assert_eq!(node.layouts(), before);
    }
}

#[test]
fn driver_that_lists_no_profiles_while_mig_is_off() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let list_nothing = |looks| {
        node.sim
            .inject(Fault {
                times: Some(looks),
                // The first index answers as the end of the enumeration does.
                ..Fault::new(
                    "nvmlDeviceGetGpuInstanceProfileInfo",
                    Effect::Fail(Code::INVALID_ARGUMENT),
                )
            })
            .unwrap()
    };
    // One look for the node's plan, one before the mode changes.
    list_nothing(2);
    node.apply(&all("3g.40gb: 2")).unwrap();
    assert_eq!(node.layouts(), ["on 9@0/3 9@4/3"]);

    node.apply(OFF).unwrap();
    list_nothing(2);
    let error = node.apply(&all("3g.20gb: 2")).unwrap_err();
    assert!(error.to_string().contains("no profile 3g.20gb"), "{error}");
    assert_eq!(error.exit_code(), 7, "{error}");
    assert_eq!(node.layouts(), ["off"]);
}
