//! What a plan says, and what is refused before anything is touched.

use mig_manager::engine::{Error, Verdict};
use rstest::rstest;

use super::{Node, OFF, all};

#[test]
fn shows_what_is_kept_created_and_destroyed_and_touches_nothing() {
    let node = Node::of("h100-sxm5-80gb", 2);
    node.apply("- {devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 1, 1g.10gb: 2}}")
        .unwrap();
    let before = node.layouts();
    node.forget_calls();

    let plan = node.plan(&all("3g.40gb: 1, 2g.20gb: 1")).unwrap();
    let first = plan.gpus[0].verdict.plan().unwrap();
    assert_eq!(first.mode, None);
    assert_eq!(first.kept.len(), 1);
    assert_eq!(first.kept[0].profile_id, 9);
    assert_eq!(first.destroyed.len(), 2);
    assert_eq!(first.created.len(), 1);
    let second = plan.gpus[1].verdict.plan().unwrap();
    assert_eq!((second.mode, second.reset), (Some(true), false));
    assert_eq!(second.created.len(), 2);

    let shown = plan.to_string();
    for line in [
        "GPU 0  NVIDIA H100 80GB HBM3",
        "keep       1 × 3g.40gb",
        "mode       turn MIG on",
    ] {
        assert!(shown.contains(line), "{line} not in\n{shown}");
    }
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["gpus"][0]["verdict"], "change");
    assert_eq!(json["gpus"][0]["kept_devices"]["3g.40gb"], 1);
    assert_eq!(json["gpus"][1]["mode"], true);

    assert_eq!(node.changes(), [""; 0]);
    assert_eq!(node.layouts(), before);
}

#[test]
fn apply_runs_the_plan_that_was_shown() {
    let node = Node::of("a100-sxm4-40gb", 1);
    node.apply(&all("1g.5gb: 7")).unwrap();
    let specs = all("3g.20gb: 1, 1g.5gb: 3");
    let plan = node.plan(&specs).unwrap();
    let wanted: Vec<(u32, u32)> = plan.gpus[0]
        .verdict
        .plan()
        .unwrap()
        .created
        .iter()
        .map(|c| (c.profile_id, c.placement.start))
        .collect();
    node.apply(&specs).unwrap();
    let layout = &node.layouts()[0];
    for (profile, start) in wanted {
        assert!(layout.contains(&format!(" {profile}@{start}/")), "{layout}");
    }
}

#[test]
fn says_that_a_reset_is_needed_on_ampere_only() {
    let reset = |board| {
        let plan = Node::of(board, 1).plan(&all("")).unwrap();
        plan.gpus[0].verdict.plan().unwrap().reset
    };
    assert!(reset("a100-sxm4-80gb"));
    assert!(!reset("h100-sxm5-80gb"));
}

#[test]
fn says_who_holds_the_gpu() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let pid = node.workload(0, None);
    let plan = node.plan(&all("1g.10gb: 7")).unwrap();
    let blockers = &plan.gpus[0].verdict.plan().unwrap().blockers;
    assert_eq!(blockers[0].pid, pid);
    assert_eq!(blockers[0].command, "python train.py");
    assert!(
        plan.to_string()
            .contains(&format!("process {pid} (python train.py)")),
        "{plan}"
    );
    let problem = plan.problem().unwrap();
    assert_eq!(problem.exit_code(), 4);
}

#[test]
fn nothing_to_do() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let plan = node.plan(OFF).unwrap();
    assert!(plan.is_noop());
    assert!(matches!(plan.gpus[0].verdict, Verdict::Unchanged { .. }));
    assert!(plan.to_string().contains("unchanged  MIG off"), "{plan}");
}

/// Each of these must be found before anything is touched, although GPU 0 alone could be changed.
#[rstest]
#[case::unknown_profile("1g.5gb: 1", "GPU 1: this GPU has no profile 1g.5gb; nearest: 1g.10gb")]
#[case::profile_of_another_board("1g.10gb+gfx: 1", "this GPU has no profile 1g.10gb+gfx")]
#[case::too_many("1g.10gb: 8", "8 × 1g.10gb is too many: this GPU takes at most 7")]
#[case::over_capacity("4g.40gb: 1, 3g.40gb: 2", "do not fit on one GPU")]
#[case::media_engines_once("1g.10gb+me: 2", "2 × 1g.10gb+me is too many")]
fn impossible_on_one_gpu_means_nothing_is_touched(#[case] devices: &str, #[case] says: &str) {
    let node = Node::of("h100-sxm5-80gb", 2);
    let specs = format!(
        "- {{devices: [0], mig-enabled: true, mig-devices: {{1g.10gb: 7}}}}\n\
         - {{devices: [1], mig-enabled: true, mig-devices: {{{devices}}}}}"
    );
    let planned = node.plan(&specs).unwrap().problem().unwrap();
    let error = node.apply(&specs).unwrap_err();
    assert_eq!(error.to_string(), planned.to_string());
    assert_eq!(error.exit_code(), 3);
    assert!(error.to_string().contains(says), "{error}");
    assert!(error.to_string().contains("GPU 1"), "{error}");
    assert_eq!(node.changes(), [""; 0]);
    assert_eq!(node.layouts(), ["off", "off"]);
    assert_eq!(node.journal(), None);
}

#[rstest]
#[case::index(
    "- {devices: [0, 2], mig-enabled: true, mig-devices: {1g.10gb: 7}}",
    "names GPU 2"
)]
#[case::filter(
    "- {device-filter: '0x20B010DE', devices: all, mig-enabled: false}",
    "0x20B010DE"
)]
fn filter_or_index_that_matches_no_gpu(#[case] specs: &str, #[case] says: &str) {
    let node = Node::of("h100-sxm5-80gb", 2);
    for error in [
        node.plan(specs).unwrap_err(),
        node.apply(specs).unwrap_err(),
    ] {
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains(says), "{error}");
    }
    assert_eq!(node.changes(), [""; 0]);
}

#[test]
fn a_gpu_without_mig_is_passed_over_by_all_but_not_by_its_index() {
    let node = Node::preset("mixed");
    let capable: Vec<bool> = node
        .sim
        .state()
        .unwrap()
        .gpus
        .iter()
        .map(|g| g.board.mig.is_some())
        .collect();
    let t4 = capable.iter().position(|c| !c).unwrap();
    node.apply(&all("1g.5gb: 7")).unwrap();
    assert!(node.equal(&all("1g.5gb: 7")));
    assert_eq!(node.layouts()[t4], "off");

    node.forget_calls();
    let error = node
        .apply(&format!(
            "- {{devices: [{t4}], mig-enabled: true, mig-devices: {{}}}}"
        ))
        .unwrap_err();
    assert!(matches!(error, Error::Impossible(_)));
    assert!(error.to_string().contains("does not support it"), "{error}");
    assert_eq!(node.changes(), [""; 0]);
}

#[test]
fn assert_looks_only_at_gpus_the_config_speaks_of() {
    let node = Node::of("h100-sxm5-80gb", 2);
    node.apply("- {devices: [1], mig-enabled: true, mig-devices: {7g.80gb: 1}}")
        .unwrap();
    assert!(node.equal("- {devices: [1], mig-enabled: true, mig-devices: {7g.80gb: 1}}"));
    assert!(node.equal("- {devices: [0], mig-enabled: false}"));
    assert!(!node.equal(OFF));
    let found = node
        .engine()
        .assert(&super::request(&all("1g.10gb: 7")))
        .unwrap();
    let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "GPU 0 has MIG off; wanted: 7 × 1g.10gb",
            "GPU 1 has 1 × 7g.80gb; wanted: 7 × 1g.10gb"
        ]
    );
}
