//! Trouble of the hardware, and its end.

use std::time::Duration;

use serde_json::json;
use sim_nvml::model::{Effect, Fault};

use crate::rig::{Rig, Setup};

/// 94 passes when it has been quiet for a moment; everything else as built in.
const QUICK: &str =
    "version: v1\ninterval: 1s\nxids:\n- {xids: [94], unhealthy: untilRecheck, quiet: 4s}\n";

/// Heat is looked for all the time.
const HEAT: &str = "{version: v1, interval: 1s, conditions: {thermal: {unhealthy: untilRecheck}}}";

async fn with_policy(setup: Setup, policy: &str) -> Rig {
    let setup = setup
        .node(json!({}))
        .config(|config| config.health_policy = Some(config.root.join("policy.yaml")));
    let mut rig = setup.prepare().await;
    std::fs::write(rig.node.root().join("policy.yaml"), policy).unwrap();
    rig.start_kubelet();
    rig.start_plugin().await.unwrap();
    rig
}

fn says(rig: &Rig, what: &str) -> bool {
    rig.events().iter().any(|event| event.contains(what))
}

fn condition(rig: &Rig) -> serde_json::Value {
    let node = rig
        .server
        .as_ref()
        .unwrap()
        .object("v1", "Node", "", crate::rig::NODE)
        .unwrap();
    let conditions = node["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let own = conditions
        .into_iter()
        .find(|condition| condition["type"] == "GPUProblem");
    own.unwrap_or_default()
}

/// A roll-out replaces the plugin on every node: what a Node says already is not written again, nor anything in between.
#[tokio::test]
async fn a_plugin_finds_the_condition_that_the_former_one_left() {
    let mut rig = Setup::new().node(json!({})).start().await;
    rig.until_so("a condition", |rig| condition(rig)["status"] == "False")
        .await;
    rig.stop_plugin().await.unwrap();
    let writes = |rig: &Rig| {
        let requests = rig.server.as_ref().unwrap().requests().into_iter();
        requests
            .filter(|request| request.path.ends_with("/status"))
            .count()
    };
    let before = writes(&rig);
    rig.start_plugin().await.unwrap();
    rig.until("gpu 2").await;
    rig.listened_to().await;
    rig.node.xid(1, 48, None).unwrap();
    rig.until_so("the condition", |rig| condition(rig)["status"] == "True")
        .await;
    assert_eq!(writes(&rig) - before, 1, "True, and no False again");
}

/// Case 7.
#[tokio::test]
async fn a_passing_fault_passes_and_a_lasting_one_stays() {
    let rig = with_policy(Setup::new(), QUICK).await;
    rig.until("gpu 2").await;
    rig.until_so("a condition", |rig| condition(rig)["status"] == "False")
        .await;
    rig.listened_to().await;
    rig.node.xid(0, 94, None).unwrap();
    rig.until("gpu 1+1").await;
    rig.until_so("the condition", |rig| condition(rig)["status"] == "True")
        .await;
    rig.until("gpu 2").await;
    rig.until_so("an Event for each", |rig| {
        says(rig, "Warning GPUUnhealthy") && says(rig, "Normal GPUHealthy")
    })
    .await;
    rig.node.xid(1, 48, None).unwrap();
    rig.until("gpu 1+1").await;
    // A harmless one clears nothing.
    rig.node.xid(1, 13, None).unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(rig.held(), [("gpu".to_owned(), (1, 1))].into());
    let (_, page) = rig.get("/metrics").await;
    assert!(
        page.contains(
            "lathe_device_plugin_devices{health=\"unhealthy\",resource=\"nvidia.com/gpu\"} 1"
        ),
        "{page}"
    );
    assert!(
        page.contains("lathe_device_plugin_unhealthy_devices{reason=\"xid\"} 1"),
        "{page}"
    );
}

/// Its driver has reported nothing, and what describes it still works.
#[tokio::test]
async fn a_gpu_that_does_not_say_how_it_is_is_not_offered() {
    let rig = with_policy(Setup::new(), HEAT).await;
    rig.until("gpu 2").await;
    let lost = Effect::Fail(sim_nvml::Code::GPU_IS_LOST);
    let fault = Fault {
        gpu: Some(1),
        ..Fault::new("nvmlDeviceGetTotalEnergyConsumption", lost)
    };
    let fault = rig.node.inject(fault).unwrap();
    rig.until("gpu 1+1").await;
    assert!(rig.healthy("gpu").contains(&rig.uuid(0)));
    rig.node.clear(fault).unwrap();
    rig.until("gpu 2").await;
}

/// Nothing but a look at its health finds that a GPU is lost: it is in trouble for everybody then.
#[tokio::test]
async fn a_gpu_that_is_lost_in_silence() {
    let rig = with_policy(Setup::new(), HEAT).await;
    rig.until("gpu 2").await;
    rig.listened_to().await;
    let lost = Effect::Fail(sim_nvml::Code::GPU_IS_LOST);
    let fault = Fault {
        gpu: Some(1),
        ..Fault::new("nvmlDeviceGet*", lost)
    };
    let fault = rig.node.inject(fault).unwrap();
    rig.until("gpu 1+1").await;
    rig.until_so("an Event", |rig| {
        says(rig, "Warning GPUUnhealthy GPU 1") && says(rig, "the GPU does not answer")
    })
    .await;
    rig.node.clear(fault).unwrap();
    rig.until("gpu 2").await;
}

/// It was lost before the plugin started: the others are offered, and people hear of it.
#[tokio::test]
async fn a_gpu_that_was_lost_from_the_start() {
    let mut rig = Setup::new().node(json!({})).prepare().await;
    rig.node.lose(1).unwrap();
    rig.start_kubelet();
    rig.start_plugin().await.unwrap();
    rig.until("gpu 1").await;
    rig.until_so("the condition", |rig| {
        let message = condition(rig)["message"].clone();
        message.as_str().is_some_and(|text| text.contains("GPU 1"))
    })
    .await;
    assert_eq!(condition(&rig)["status"], "True");
    rig.until_so("an Event", |rig| says(rig, "Warning GPUUnhealthy GPU 1"))
        .await;
    rig.node.reset(1).unwrap();
    rig.until("gpu 2").await;
    rig.until_so("the condition", |rig| condition(rig)["status"] == "False")
        .await;
}

/// Case 10: all shares of the GPU.
#[tokio::test]
async fn all_shares_of_a_faulty_gpu() {
    let file = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}";
    let rig = Setup::new().file(file).start().await;
    rig.until("gpu 8").await;
    rig.listened_to().await;
    rig.node.xid(1, 48, None).unwrap();
    rig.until("gpu 4+4").await;
    assert!(
        rig.healthy("gpu")
            .iter()
            .all(|id| id.starts_with(&rig.uuid(0)))
    );
}

/// Case 10: that instance.
#[tokio::test]
async fn one_faulty_instance() {
    let rig = Setup::new()
        .file("flags: {migStrategy: mixed}")
        .start()
        .await;
    rig.until("gpu 2").await;
    rig.cut("{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}")
        .await;
    rig.until("gpu 0, mig-1g.10gb 14").await;
    let (gpu_instance, compute_instance) = {
        let state = rig.node.state().unwrap();
        let instance = &state.gpus[1].mig.instances[2];
        (instance.id, instance.compute[0].id)
    };
    let before = rig.healthy("mig-1g.10gb");
    rig.listened_to().await;
    rig.node
        .xid(1, 94, Some((gpu_instance, compute_instance)))
        .unwrap();
    rig.until("gpu 0, mig-1g.10gb 13+1").await;
    assert_eq!(before.difference(&rig.healthy("mig-1g.10gb")).count(), 1);
}

/// What fails before anything is known of the GPU is not forgotten.
#[tokio::test]
async fn events_that_could_never_be_read() {
    let mut rig = Setup::new().prepare().await;
    let unknown = Effect::Fail(sim_nvml::Code(999));
    let fault = Fault {
        gpu: Some(1),
        ..Fault::new("nvmlDeviceRegisterEvents", unknown)
    };
    let fault = rig.node.inject(fault).unwrap();
    rig.start_kubelet();
    rig.start_plugin().await.unwrap();
    rig.until("gpu 1+1").await;
    assert!(rig.healthy("gpu").contains(&rig.uuid(0)));
    rig.node.clear(fault).unwrap();
    rig.until("gpu 2").await;
}

/// Case 8: the wait for events answers UNKNOWN for ever: one change, no flood.
#[tokio::test]
async fn events_that_cannot_be_read() {
    let rig = Setup::new().node(json!({})).start().await;
    rig.until("gpu 2").await;
    rig.node.set_trace(true).unwrap();
    let unknown = Effect::Fail(sim_nvml::Code(999));
    let fault = rig
        .node
        .inject(Fault::new("nvmlEventSetWait*", unknown))
        .unwrap();
    rig.until("gpu 0+2").await;
    rig.node.clear_trace().unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let waits = rig.node.trace().unwrap().into_iter();
    let waits = waits
        .filter(|call| call.symbol.starts_with("nvmlEventSetWait"))
        .count();
    assert!(waits < 20, "{waits} waits in 2 s");
    assert_eq!(rig.held(), [("gpu".to_owned(), (0, 2))].into());
    rig.node.clear(fault).unwrap();
    rig.until("gpu 2").await;
    let told = |rig: &Rig, reason: &str| {
        let events = rig.events();
        events.iter().filter(|event| event.contains(reason)).count()
    };
    // Events are written in their order, some time after what they tell of.
    rig.until_so("its end is told", |rig| told(rig, " GPUHealthy ") == 2)
        .await;
    assert_eq!(told(&rig, " GPUUnhealthy "), 2, "{:#?}", rig.events());
}
