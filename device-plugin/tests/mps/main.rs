//! MPS daemons on a simulated node, with a stand-in for NVIDIA's program.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;
mod service;

use rig::{Rig, daemon};
use sim_nvml::model::ComputeMode;

/// From start to end: what the driver, the program and the device plugin see. 80 GiB and 4 replicas: 20480 MiB and 25 %.
#[tokio::test]
async fn a_daemon_is_prepared_served_and_put_away() {
    let mut rig = Rig::new();
    rig.apply(&[("gpu", daemon(&[(0, 4), (1, 4)]))]);
    rig.until_ready().await;
    assert_eq!(
        rig.record("gpu"),
        [
            "start {0},{1}",
            "set_default_active_thread_percentage 25",
            "set_default_device_pinned_mem_limit {0} 20480M",
            "set_default_device_pinned_mem_limit {1} 20480M",
        ]
    );
    assert_eq!(rig.served("gpu"), "{0}*4 {1}*4");
    assert_eq!(rig.modes(), [ComputeMode::ExclusiveProcess; 2]);
    assert!(rig.file(".ready").exists());

    let rig = rig.end().await;
    assert_eq!(rig.record("gpu").last().unwrap(), "quit");
    assert_eq!(rig.served("gpu"), "nothing");
    assert_eq!(rig.modes(), [ComputeMode::Default; 2]);
    for gone in [
        ".ready",
        "nvidia.com/gpu/.started",
        "nvidia.com/gpu/.exclusive",
    ] {
        assert!(!rig.file(gone).exists(), "{gone}");
    }
}

#[tokio::test]
async fn without_daemons_all_is_ready_once_that_is_known() {
    let mut rig = Rig::new();
    assert!(!rig.supervisor.is_ready());
    assert!(!rig.file(".ready").exists());
    rig.apply(&[]);
    assert!(rig.file(".ready").exists());
}

#[tokio::test]
async fn a_killed_daemon_comes_back_and_its_neighbour_does_not_notice() {
    let mut rig = Rig::new();
    rig.apply(&[("gpu", daemon(&[(0, 2)])), ("small", daemon(&[(1, 8)]))]);
    rig.until_ready().await;
    rig.kill("gpu");
    rig.until("it is withdrawn", |rig| {
        rig.served("gpu") == "nothing" && !rig.file(".ready").exists()
    })
    .await;
    assert_eq!(rig.served("small"), "{1}*8");
    rig.until_ready().await;
    assert_eq!(rig.starts("gpu"), 2);
    assert_eq!(rig.starts("small"), 1);
    assert_eq!(rig.served("gpu"), "{0}*2");
    // The limits are those of the new one, too.
    assert_eq!(
        rig.record("gpu").last().unwrap(),
        "set_default_device_pinned_mem_limit {0} 40960M"
    );
}

#[tokio::test]
async fn a_daemon_that_hangs_is_withdrawn_and_replaced() {
    let mut rig = Rig::impatient();
    rig.apply(&[("gpu", daemon(&[(0, 2)]))]);
    rig.until_ready().await;
    rig.put("gpu", "hang", "");
    rig.until("it is withdrawn, and says why", |rig| {
        let trouble = rig.report("gpu").trouble.unwrap_or_default();
        rig.served("gpu") == "nothing" && trouble.contains("did not answer")
    })
    .await;
    rig.until("it is replaced", |rig| rig.starts("gpu") == 2)
        .await;
    rig.take("gpu", "hang");
    rig.until_ready().await;
}

#[tokio::test]
async fn a_refusal_is_told_in_the_programs_words() {
    let mut rig = Rig::new();
    rig.put(
        "gpu",
        "refuse",
        "An instance of this daemon is already running\n",
    );
    rig.apply(&[("gpu", daemon(&[(0, 2)]))]);
    rig.until("it failed twice", |rig| rig.starts("gpu") >= 2)
        .await;
    assert_eq!(
        rig.report("gpu").trouble.unwrap(),
        "its daemon ended (exit status: 1): An instance of this daemon is already running"
    );
    assert!(!rig.supervisor.is_ready());
    rig.take("gpu", "refuse");
    rig.until_ready().await;
    assert_eq!(rig.report("gpu").trouble, None);
}

#[tokio::test]
async fn a_node_without_the_program_waits_for_it() {
    let mut rig = Rig::new();
    let program = rig.uninstall();
    rig.apply(&[("gpu", daemon(&[(0, 2)]))]);
    rig.until("it says what is missing", |rig| {
        let trouble = rig.report("gpu").trouble;
        trouble.is_some_and(|text| text.contains("there is no nvidia-cuda-mps-control"))
    })
    .await;
    rig.install(&program);
    rig.until_ready().await;
}

#[tokio::test]
async fn new_limits_reach_servers_that_run() {
    let mut rig = Rig::new();
    rig.apply(&[("gpu", daemon(&[(0, 2)]))]);
    rig.until_ready().await;
    rig.put("gpu", "servers", "4711\n");
    rig.put("gpu", "clients.4711", "4712\n");
    rig.apply(&[("gpu", daemon(&[(0, 8)]))]);
    rig.until("the new limits are served", |rig| {
        rig.served("gpu") == "{0}*8"
    })
    .await;
    assert_eq!(
        rig.record("gpu")[3..],
        [
            "set_default_active_thread_percentage 12",
            "set_default_device_pinned_mem_limit {0} 10240M",
            "set_active_thread_percentage 4711 12",
            "set_device_pinned_mem_limit 4711 {0} 10240M",
        ]
    );
    assert_eq!(rig.starts("gpu"), 1);
}

#[tokio::test]
async fn a_gpu_that_comes_waits_for_the_last_client() {
    let mut rig = Rig::new();
    rig.apply(&[("gpu", daemon(&[(0, 2)]))]);
    rig.until_ready().await;
    rig.put("gpu", "servers", "4711\n");
    rig.put("gpu", "clients.4711", "4712\n");
    rig.apply(&[("gpu", daemon(&[(0, 2), (1, 2)]))]);
    rig.until("the GPU is claimed", |rig| {
        rig.modes()[1] == ComputeMode::ExclusiveProcess
    })
    .await;
    rig.some_probes().await;
    assert_eq!(rig.starts("gpu"), 1);
    assert_eq!(rig.served("gpu"), "{0}*2");
    rig.take("gpu", "clients.4711");
    rig.until_ready().await;
    assert_eq!(rig.served("gpu"), "{0}*2 {1}*2");
    assert_eq!(rig.starts("gpu"), 2);
}

#[tokio::test]
async fn a_resource_that_goes_is_put_away_and_can_come_back() {
    let mut rig = Rig::new();
    rig.apply(&[("gpu", daemon(&[(0, 2)])), ("small", daemon(&[(1, 8)]))]);
    rig.until_ready().await;
    rig.apply(&[("gpu", daemon(&[(0, 2)]))]);
    rig.until("its GPU is free", |rig| {
        rig.modes()[1] == ComputeMode::Default
    })
    .await;
    assert_eq!(rig.served("small"), "nothing");
    assert_eq!(rig.served("gpu"), "{0}*2");
    rig.apply(&[("gpu", daemon(&[(0, 2)])), ("small", daemon(&[(1, 8)]))]);
    rig.until("it is back", |rig| rig.served("small") == "{1}*8")
        .await;
    assert_eq!(rig.starts("gpu"), 1);
}

#[tokio::test]
async fn a_lost_gpu_is_left_out_alone() {
    let mut rig = Rig::new();
    rig.sim.lose(1).unwrap();
    rig.apply(&[("gpu", daemon(&[(0, 2), (1, 2)]))]);
    rig.until("the other is served", |rig| rig.served("gpu") == "{0}*2")
        .await;
    assert_eq!(rig.record("gpu")[0], "start {0}");
    assert!(!rig.supervisor.is_ready());
    rig.sim.reset(1).unwrap();
    rig.until_ready().await;
    assert_eq!(rig.served("gpu"), "{0}*2 {1}*2");
}

#[tokio::test]
async fn while_the_mig_manager_works_unused_gpus_are_let_go() {
    let mut rig = Rig::new();
    rig.apply(&[("gpu", daemon(&[(0, 2)])), ("small", daemon(&[(1, 8)]))]);
    rig.until_ready().await;
    rig.put("gpu", "servers", "4711\n");
    rig.put("gpu", "clients.4711", "4712\n");
    rig.supervisor.pause(true);
    rig.until("the unused one ends", |rig| {
        rig.record("small").last().unwrap() == "quit"
    })
    .await;
    rig.until("the other takes nobody in", |rig| {
        rig.served("gpu") == "nothing"
    })
    .await;
    rig.supervisor.pause(false);
    rig.until_ready().await;
    assert_eq!((rig.starts("gpu"), rig.starts("small")), (1, 2));
}

/// A process that is killed leaves its daemon, exclusive GPUs and a file that says that all is well.
#[tokio::test]
async fn what_a_killed_process_left_is_put_right() {
    let mut rig = Rig::new();
    rig.apply(&[("gpu", daemon(&[(0, 2)])), ("small", daemon(&[(1, 8)]))]);
    rig.until_ready().await;
    let mut rig = rig.killed().await;
    assert_eq!(rig.modes(), [ComputeMode::ExclusiveProcess; 2]);
    assert_eq!(rig.served("gpu"), "nothing");
    rig.apply(&[("gpu", daemon(&[(0, 2)]))]);
    rig.until_ready().await;
    rig.until("the other's GPU is free", |rig| {
        let claimed = rig.file("nvidia.com/small/.exclusive").exists();
        rig.modes()[1] == ComputeMode::Default && !claimed
    })
    .await;
    assert_eq!(rig.served("gpu"), "{0}*2");
}

#[tokio::test]
async fn one_root_has_one_supervisor() {
    let rig = Rig::new();
    let error = rig.supervisor().err().unwrap();
    assert!(
        error.to_string().contains("only one can run on a node"),
        "{error}"
    );
}

#[tokio::test]
async fn a_daemon_that_does_not_answer_can_be_ended() {
    let mut rig = Rig::impatient();
    rig.apply(&[("gpu", daemon(&[(0, 2)]))]);
    rig.until_ready().await;
    rig.put("gpu", "hang", "");
    let rig = rig.end().await;
    assert_eq!(rig.modes(), [ComputeMode::Default; 2]);
    assert!(!rig.is_alive("gpu"));
}

#[tokio::test]
async fn a_pod_that_is_set_up_wrong_is_told() {
    let rig = Rig::new();
    let concerns = rig.supervisor.concerns(&rig.file("."));
    assert!(
        concerns
            .iter()
            .any(|text| text.contains("mount that folder")),
        "{concerns:?}"
    );
    std::fs::create_dir(rig.file("shm")).unwrap();
    let concerns = rig.supervisor.concerns(&rig.file("shm"));
    assert!(
        !concerns
            .iter()
            .any(|text| text.contains("mount that folder")),
        "{concerns:?}"
    );
}
