//! The node controller between a simulated API server and a simulated driver.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use std::process::{Child, Command};
use std::time::Duration;

use mig_manager::engine::OnFailure;
use rig::{Rig, SLOW, Setup};
use rstest::rstest;
use serde_json::json;
use sim_kubernetes::Action;
use sim_nvml::admin::WorkloadSpec;
use sim_nvml::model::{Effect, Fault};

/// A process that lives until it is killed, and does not outlive its test.
struct Sleeper(Child);

impl Sleeper {
    fn new() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[tokio::test]
async fn a_label_becomes_a_layout() {
    let mut rig = Rig::start(Setup::default()).await;
    rig.label("all-1g.10gb").await;
    rig.until_state("success").await;
    assert_eq!(rig.instances(), [7, 7]);
    rig.until_said("MigConfigApplied", 1).await;
    rig.stop().await;
    assert_eq!(rig.states(), ["pending", "success"]);
    assert_eq!(
        rig.events(),
        [
            "Normal MigConfigStarted all-1g.10gb: changing GPUs 0-1",
            "Normal MigConfigApplied all-1g.10gb: changed GPUs 0-1 in # s",
        ]
    );
    assert_eq!(rig.layout_changes(), 1);
}

#[tokio::test]
async fn what_is_in_place_is_neither_touched_nor_written_again() {
    let mut rig = Rig::start(Setup::default()).await;
    rig.label("all-balanced").await;
    rig.until_state("success").await;
    rig.stop().await;
    let version = rig.server.resource_version();
    rig.node.clear_trace().unwrap();
    rig.restart().await;
    rig.settle().await;
    rig.stop().await;
    assert_eq!(rig.mutations(), Vec::<String>::new());
    assert_eq!(
        rig.server.resource_version(),
        version,
        "something was written"
    );
    assert_eq!(rig.layout_changes(), 0);
}

#[tokio::test]
async fn an_unknown_name_fails_with_the_nearest_ones_and_touches_nothing() {
    let mut rig = Rig::start(Setup::default()).await;
    rig.label("all-1g.10g").await;
    rig.until_state("failed").await;
    rig.until_said("MigConfigFailed", 1).await;
    rig.stop().await;
    assert_eq!(rig.states(), ["failed"]);
    assert_eq!(rig.mutations(), Vec::<String>::new());
    let events = rig.events();
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(
        events[0].starts_with("Warning MigConfigFailed all-1g.10g: no config named \"all-1g.10g\""),
        "{events:?}"
    );
    assert!(events[0].contains("all-1g.10gb"), "{events:?}");
}

#[tokio::test]
async fn a_name_like_no_other_fails_with_the_whole_choice() {
    let mut rig = Rig::start(Setup::default()).await;
    rig.label("production").await;
    rig.until_state("failed").await;
    rig.until(|rig| !rig.events().is_empty()).await;
    rig.stop().await;
    let event = rig.events().remove(0);
    for name in ["all-1g.10gb", "all-3g.40gb", "all-balanced", "all-disabled"] {
        assert!(event.contains(name), "{name} is missing in {event}");
    }
}

const TOO_MUCH: &str = "version: v1\nmig-configs:\n  too-much:\n  - devices: [1]\n    mig-enabled: true\n    mig-devices: {3g.40gb: 3}\n";

#[tokio::test]
async fn an_impossible_profile_fails_and_touches_nothing() {
    let mut rig = Rig::start(Setup::default().with_file(TOO_MUCH)).await;
    rig.label("too-much").await;
    rig.until_state("failed").await;
    rig.until_said("MigConfigFailed", 1).await;
    rig.stop().await;
    assert_eq!(rig.states(), ["failed"]);
    assert_eq!(rig.mutations(), Vec::<String>::new());
    let events = rig.events();
    assert!(
        events[0].contains("GPU 1") && events[0].contains("3g.40gb"),
        "{events:?}"
    );
}

#[rstest]
#[case::not_yaml("version: v1\nmig-configs: [", "config.yaml")]
#[case::unknown_key(
    "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: false\n    surprise: 1\n",
    "surprise"
)]
#[tokio::test]
async fn a_bad_config_file_fails_and_its_repair_is_noticed(
    #[case] content: &str,
    #[case] named: &str,
) {
    let mut rig = Rig::start(Setup::default().with_file(content).retrying_after(SLOW)).await;
    rig.label("a").await;
    rig.until_state("failed").await;
    rig.until(|rig| !rig.events().is_empty()).await;
    assert!(rig.events()[0].contains(named), "{:?}", rig.events());
    rig.write_file("version: v1\nmig-configs:\n  a:\n  - devices: [0]\n    mig-enabled: true\n    mig-devices: {7g.80gb: 1}\n");
    rig.until_state("success").await;
    assert_eq!(rig.instances(), [1, 0]);
    // Edited again, with the label as it is.
    rig.write_file("version: v1\nmig-configs:\n  a:\n  - devices: [0]\n    mig-enabled: true\n    mig-devices: {3g.40gb: 2}\n");
    rig.until(|rig| rig.instances() == [2, 0] && rig.state() == "success")
        .await;
    rig.stop().await;
}

#[tokio::test]
async fn a_workload_blocks_until_it_ends() {
    let mut rig = Rig::start(Setup::default().retrying_after(SLOW)).await;
    rig.label("all-7g.80gb").await;
    rig.until_state("success").await;
    let workload = Sleeper::new();
    rig.node
        .run_workload(WorkloadSpec {
            gpu: 1,
            instance: Some((0, 0)),
            name: "python train.py".to_owned(),
            pid: Some(workload.pid()),
            ..WorkloadSpec::default()
        })
        .unwrap();
    rig.node.clear_trace().unwrap();
    rig.label("all-1g.10gb").await;
    rig.until_state("failed").await;
    assert_eq!(rig.mutations(), Vec::<String>::new());
    assert_eq!(rig.instances(), [1, 1]);
    rig.until(|rig| rig.count_of("MigConfigFailed") == 1).await;
    let event = rig.events().pop().unwrap();
    for part in [
        "Warning MigConfigFailed",
        "GPU 1",
        &workload.pid().to_string(),
    ] {
        assert!(event.contains(part), "{part} is missing in {event}");
    }
    // The next try is an hour away; the end of the process is what starts it.
    drop(workload);
    rig.until_state("success").await;
    assert_eq!(rig.instances(), [7, 7]);
    rig.stop().await;
}

#[tokio::test]
async fn a_workload_that_cannot_be_watched_is_asked_after_again() {
    let mut rig = Rig::start(Setup::default()).await;
    rig.label("all-7g.80gb").await;
    rig.until_state("success").await;
    let workload = WorkloadSpec {
        instance: Some((0, 0)),
        ..WorkloadSpec::default()
    };
    let pid = rig.node.run_workload(workload).unwrap();
    rig.label("all-1g.10gb").await;
    rig.until_state("failed").await;
    // While it lasts, tries change neither GPUs nor the label.
    rig.node.set_trace(true).unwrap();
    rig.node.clear_trace().unwrap();
    let tries = rig.checks();
    rig.until(|rig| rig.checks() > tries + 3).await;
    assert_eq!(rig.mutations(), Vec::<String>::new());
    rig.node.stop_workload(pid).unwrap();
    rig.until_state("success").await;
    assert_eq!(rig.instances(), [7, 7]);
    rig.stop().await;
    assert_eq!(
        rig.states(),
        ["pending", "success", "failed", "pending", "success"]
    );
}

#[tokio::test]
async fn labels_that_flip_during_a_change_count_as_the_last() {
    let mut rig = Rig::start(Setup::default().slowly()).await;
    // However slow this test is: the first change lasts until the labels have flipped.
    let held = Fault::new("nvmlDeviceSetMigMode", Effect::Hang);
    let held = rig.node.inject(held).unwrap();
    rig.label("all-7g.80gb").await;
    rig.until_state("pending").await;
    rig.label("all-3g.40gb").await;
    rig.label("all-1g.10gb").await;
    // Nothing shows that the controller has heard of it: it has until the calls let go, and the second that they then take.
    rig.settle().await;
    rig.node.clear(held).unwrap();
    rig.until(|rig| rig.instances() == [7, 7] && rig.state() == "success")
        .await;
    rig.until_said("MigConfigApplied", 2).await;
    rig.stop().await;
    let events = rig.events();
    assert!(
        !events.iter().any(|event| event.contains("all-3g.40gb")),
        "{events:?}"
    );
    // The first change ended, but the label never said that it is what is wanted.
    assert!(
        events
            .iter()
            .any(|event| event.contains("Applied all-7g.80gb")),
        "{events:?}"
    );
    assert_eq!(rig.states(), ["pending", "success"]);
}

#[tokio::test]
async fn a_removed_label_changes_nothing() {
    let mut rig = Rig::start(Setup::default()).await;
    rig.label("all-3g.40gb").await;
    rig.until_state("success").await;
    rig.node.clear_trace().unwrap();
    rig.patch_labels(json!({ "nvidia.com/mig.config": null }))
        .await;
    rig.patch_labels(json!({ "other": "1" })).await;
    rig.settle().await;
    rig.stop().await;
    assert_eq!(rig.states(), ["pending", "success"]);
    assert_eq!(rig.mutations(), Vec::<String>::new());
    assert_eq!(rig.instances(), [2, 2]);
}

#[tokio::test]
async fn a_change_outlives_the_api_server() {
    let mut rig = Rig::start(Setup::default().slowly()).await;
    rig.label("all-1g.10gb").await;
    rig.until_state("pending").await;
    rig.server
        .faults()
        .refuse_connections(Duration::from_secs(1));
    rig.until(|rig| rig.instances() == [7, 7]).await;
    rig.until_state("success").await;
    rig.stop().await;
}

#[tokio::test]
async fn a_refused_state_label_is_written_later() {
    let mut rig = Rig::start(Setup::default()).await;
    rig.stop().await;
    rig.label("all-1g.10gb").await;
    rig.server.faults().add(
        sim_kubernetes::Fault::new(Action::Answer(403, None))
            .method("PATCH")
            .times(1),
    );
    rig.restart().await;
    rig.until_state("success").await;
    rig.stop().await;
    assert_eq!(rig.states(), ["pending", "success"]);
}

#[tokio::test]
async fn a_state_label_that_is_never_written_stops_no_change() {
    let mut rig = Rig::start(Setup::default()).await;
    rig.stop().await;
    rig.label("all-1g.10gb").await;
    rig.server
        .faults()
        .add(sim_kubernetes::Fault::new(Action::Answer(403, None)).method("PATCH"));
    rig.restart().await;
    rig.until(|rig| rig.instances() == [7, 7]).await;
    assert_eq!(rig.state(), "");
    rig.server.faults().clear();
    rig.until_state("success").await;
    rig.stop().await;
}

#[tokio::test]
async fn a_late_driver_is_waited_for_and_said_once() {
    let mut rig = Rig::start(Setup::default().without_driver()).await;
    rig.label("all-1g.10gb").await;
    rig.until_state("pending").await;
    rig.until(|rig| rig.events().len() == 1).await;
    // Several looks later it was still said only once.
    tokio::time::sleep(Duration::from_millis(500)).await;
    rig.node.load_driver().unwrap();
    rig.until_state("success").await;
    rig.stop().await;
    assert_eq!(rig.instances(), [7, 7]);
    let waiting: Vec<String> = rig
        .events()
        .into_iter()
        .filter(|event| event.contains("MigConfigWaiting"))
        .collect();
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    assert_eq!(rig.count_of("MigConfigWaiting"), 1);
    assert_eq!(rig.states(), ["pending", "success"]);
}

#[tokio::test]
async fn a_driver_that_was_reloaded_gets_its_layout_back() {
    let mut rig = Rig::start(Setup::default()).await;
    rig.label("all-1g.10gb").await;
    rig.until_state("success").await;
    // Hopper forgets MIG mode and instances with the driver; the label still says what is wanted.
    rig.node.clear_trace().unwrap();
    rig.reload_driver().await;
    rig.until(|rig| {
        rig.mutations()
            .iter()
            .any(|call| call == "nvmlDeviceSetMigMode")
            && rig.instances() == [7, 7]
    })
    .await;
    rig.until_state("success").await;
    rig.stop().await;
    assert_eq!(rig.instances(), [7, 7]);
}

#[tokio::test]
async fn a_restart_in_the_middle_resumes() {
    let mut rig = Rig::start(Setup::default()).await;
    rig.label("all-1g.10gb").await;
    rig.until_state("success").await;
    rig.stop().await;
    // As a killed controller leaves it: the label says pending, and a GPU is half-way.
    rig.patch_labels(
        json!({ "nvidia.com/mig.config": "all-3g.40gb", "nvidia.com/mig.config.state": "pending" }),
    )
    .await;
    rig.restart().await;
    rig.until_state("success").await;
    rig.stop().await;
    assert_eq!(rig.instances(), [2, 2]);
}

#[tokio::test]
async fn a_shutdown_waits_for_the_change_and_tells_how_it_ended() {
    let mut rig = Rig::start(Setup::default().slowly()).await;
    rig.label("all-1g.10gb").await;
    rig.until_state("pending").await;
    rig.stop().await;
    assert_eq!(rig.instances(), [7, 7]);
    assert_eq!(rig.state(), "success");
    assert!(
        rig.events()
            .iter()
            .any(|event| event.contains("MigConfigApplied")),
        "{:?}",
        rig.events()
    );
}

#[rstest]
#[case::all_or_nothing(OnFailure::Rollback, [0, 0], &["failed"])]
#[case::as_far_as_possible(OnFailure::Keep, [0, 7], &["pending", "failed"])]
#[tokio::test]
async fn a_lost_gpu_is_named(
    #[case] on_failure: OnFailure,
    #[case] instances: [usize; 2],
    #[case] states: &[&str],
) {
    let mut rig = Rig::start(Setup::default().on_failure(on_failure).retrying_after(SLOW)).await;
    rig.node.lose(0).unwrap();
    rig.label("all-1g.10gb").await;
    rig.until_state("failed").await;
    rig.until_said("MigConfigFailed", 1).await;
    rig.stop().await;
    assert_eq!(rig.instances(), instances);
    assert_eq!(rig.states(), states);
    let event = rig.events().pop().unwrap();
    assert!(event.contains("GPU 0"), "{event}");
}

#[tokio::test]
async fn a_node_that_comes_late_is_waited_for() {
    let mut rig = Rig::start(Setup::default().without_node()).await;
    rig.settle().await;
    rig.server
        .seed([rig::node(json!({ "nvidia.com/mig.config": "all-3g.40gb" }))])
        .unwrap();
    rig.until_state("success").await;
    rig.stop().await;
    assert_eq!(rig.instances(), [2, 2]);
}

#[tokio::test]
async fn a_state_label_somebody_removed_comes_back() {
    let mut rig = Rig::start(Setup::default()).await;
    rig.label("all-3g.40gb").await;
    rig.until_state("success").await;
    rig.patch_labels(json!({ "nvidia.com/mig.config.state": null }))
        .await;
    rig.until_state("success").await;
    rig.stop().await;
}

#[tokio::test]
async fn ampere_is_reset_gpu_by_gpu() {
    let mut rig = Rig::start(Setup::default().board("a100-sxm4-80gb")).await;
    rig.label("all-balanced").await;
    rig.until_state("success").await;
    rig.stop().await;
    assert_eq!(rig.instances(), [4, 4]);
}

/// What a killed change left on a GPU that the configuration does not speak of, and that cannot be brought back.
#[rstest]
#[case::lost(true, "success")]
#[case::answering(false, "failed")]
#[tokio::test]
async fn what_cannot_be_recovered_is_not_tried_without_a_pause(
    #[case] lost: bool,
    #[case] state: &str,
) {
    const FIRST: &str = "version: v1\nmig-configs:\n  first:\n  \
        - {device-filter: '0x233010DE', devices: [0], mig-enabled: true, mig-devices: {7g.80gb: 1}}\n";
    let mut rig = Rig::start(Setup::default().with_file(FIRST).retrying_after(SLOW)).await;
    rig.leave_journal(1, "1g.5gb");
    if lost {
        rig.node.lose(1).unwrap();
    }
    rig.label("first").await;
    rig.until_state(state).await;
    rig.settle().await;
    rig.stop().await;
    assert_eq!(rig.states(), ["pending", state]);
    assert_eq!(rig.instances(), [1, 0]);
    if !lost {
        let event = rig.events().pop().unwrap();
        assert!(event.contains("GPU 1"), "{event}");
    }
}
