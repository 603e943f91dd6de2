//! What containers are given, asked for as the kubelet asks.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rstest::rstest;
use sim_nvml::model::{Effect, Fault};
use sim_nvml::presets::NodeSpec;

use crate::rig::{Rig, Setup};

const CDI: &str = "k8s.device-plugin.nvidia.com";

/// The GPUs that ids are of.
fn gpus(rig: &Rig, ids: &[String]) -> BTreeSet<usize> {
    let gpu = |id: &String| (0..).find(|gpu| id.starts_with(&rig.uuid(*gpu))).unwrap();
    ids.iter().map(gpu).collect()
}

/// Case 6: two GPUs × 4 slices, a pod asks for 2.
#[rstest]
#[case("distributed", 2)]
#[case("packed", 1)]
#[case("distinct", 2)]
#[tokio::test]
async fn two_slices_by_policy(#[case] policy: &str, #[case] wanted: usize) {
    let file = format!(
        "flags: {{plugin: {{sharedDevicesAllocationPolicy: {policy}}}}}\n\
         sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: 4}}]}}}}"
    );
    let rig = Setup::new().file(&file).start().await;
    rig.until("gpu 8").await;
    let given = rig.kubelet().admit("a", "nvidia.com/gpu", 2).await.unwrap();
    assert_eq!(gpus(&rig, &given.ids).len(), wanted, "{:?}", given.ids);
    let visible = &given.response.envs["NVIDIA_VISIBLE_DEVICES"];
    assert_eq!(visible.split(',').count(), wanted);
}

/// Three different GPUs of two: refused with a text that says why, and nobody else is hurt.
#[tokio::test]
async fn distinct_refuses_what_cannot_be() {
    let file = "flags: {plugin: {sharedDevicesAllocationPolicy: distinct}}\n\
                sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}";
    let rig = Setup::new().file(file).start().await;
    rig.until("gpu 8").await;
    let refusal = rig
        .kubelet()
        .admit("a", "nvidia.com/gpu", 3)
        .await
        .unwrap_err();
    assert!(
        refusal.contains("distinct") && refusal.contains("nvidia.com/gpu"),
        "{refusal}"
    );
    rig.kubelet().admit("b", "nvidia.com/gpu", 2).await.unwrap();
}

/// Case 5: 7 of 8 GPUs, and links that take half a minute each to ask, or never answer.
#[rstest]
#[case::slow(Effect::Delay(30_000_000))]
#[case::hanging(Effect::Hang)]
#[tokio::test]
async fn slow_links_make_no_call_slow(#[case] effect: Effect) {
    let setup = Setup::spec(NodeSpec::preset("dgx-h100").unwrap());
    let setup = setup.config(|config| config.look_wait = Duration::from_secs(1));
    let mut rig = setup.prepare().await;
    for symbol in [
        "nvmlDeviceGetNvLink*",
        "nvmlDeviceGetTopology*",
        "nvmlDeviceGetP2PStatus",
    ] {
        rig.node.inject(Fault::new(symbol, effect)).unwrap();
    }
    rig.start_kubelet();
    rig.start_plugin().await.unwrap();
    rig.until("gpu 8").await;
    // The first calls of all, so that nothing was learned by an earlier one. One link alone takes longer, however busy the
    // machine is; how long they take on an idle one is a benchmark.
    let begun = Instant::now();
    let given = rig.kubelet().admit("a", "nvidia.com/gpu", 7).await.unwrap();
    let took = begun.elapsed();
    assert_eq!(given.ids.len(), 7);
    assert!(took < Duration::from_secs(29), "{took:?}");
    // A GPU that does not say within a second how it is would be withdrawn, and stay so as long as its links are asked.
    tokio::time::sleep(Duration::from_secs(3)).await;
    rig.until("gpu 8").await;
}

/// Case 9.
#[tokio::test]
async fn what_a_gpu_does_not_say_is_left_out() {
    let mut rig = Setup::new().prepare().await;
    for symbol in [
        "nvmlDeviceGetMemoryInfo*",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetCudaComputeCapability",
    ] {
        let not_supported = Effect::Fail(sim_nvml::Code(3));
        rig.node.inject(Fault::new(symbol, not_supported)).unwrap();
    }
    rig.start_kubelet();
    rig.start_plugin().await.unwrap();
    rig.until("gpu 2").await;
    rig.kubelet().admit("a", "nvidia.com/gpu", 2).await.unwrap();
}

/// Case 11: one container asks for two resources.
#[tokio::test]
async fn two_resources_in_one_container() {
    let file =
        "flags: {migStrategy: mixed, plugin: {deviceListStrategy: [cdi-cri, cdi-annotations]}}";
    let rig = Setup::new().file(file).start().await;
    rig.until("gpu 2").await;
    rig.cut("{devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 7}}, {devices: [1], mig-enabled: false}")
        .await;
    rig.until("gpu 1, mig-1g.10gb 7").await;
    let kubelet = rig.kubelet();
    let gpu = kubelet.admit("a", "nvidia.com/gpu", 1).await.unwrap();
    let mig = kubelet
        .admit("a", "nvidia.com/mig-1g.10gb", 1)
        .await
        .unwrap();
    let name = |given: &sim_kubelet::Admitted| given.response.cdi_devices[0].name.clone();
    assert_eq!(name(&gpu), format!("{CDI}/gpu={}", rig.uuid(1)));
    assert_eq!(name(&mig), format!("{CDI}/gpu={}", mig.ids[0]));
    // The kubelet keeps the first of two equal keys.
    let keys = |given: &sim_kubelet::Admitted| {
        given
            .response
            .annotations
            .keys()
            .cloned()
            .collect::<BTreeSet<_>>()
    };
    assert!(keys(&gpu).is_disjoint(&keys(&mig)));
    assert!(
        gpu.response
            .envs
            .keys()
            .all(|key| !mig.response.envs.contains_key(key))
    );
}

/// Case 12: with CDI nothing is in an image that could ask for GPUs. What the plugin writes names devices one by one, and no
/// device stands for all.
#[tokio::test]
async fn no_cdi_device_stands_for_all() {
    let rig = Setup::new()
        .file("flags: {plugin: {deviceListStrategy: cdi-cri}}")
        .start()
        .await;
    rig.until("gpu 2").await;
    let names = cdi_names(&rig);
    assert_eq!(names, [rig.uuid(0), rig.uuid(1)].into());
    let given = rig.kubelet().admit("a", "nvidia.com/gpu", 1).await.unwrap();
    assert!(given.response.envs.is_empty(), "{:?}", given.response.envs);
}

/// Names in the spec of class gpu.
fn cdi_names(rig: &Rig) -> BTreeSet<String> {
    let path = rig.config.cdi_folder.join(format!("{CDI}-gpu.json"));
    let text = std::fs::read(&path).unwrap();
    let spec: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let devices = spec["devices"].as_array().unwrap();
    devices
        .iter()
        .map(|device| device["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Whoever is given a device finds it in the spec, at each stage.
#[tokio::test]
async fn specs_are_there_before_the_list() {
    let file = "flags: {migStrategy: mixed, plugin: {deviceListStrategy: cdi-cri}}";
    let rig = Setup::new().file(file).start().await;
    rig.until("gpu 2").await;
    for (cut, list, resource) in [
        (
            "{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}",
            "gpu 0, mig-1g.10gb 14",
            "mig-1g.10gb",
        ),
        (
            "{devices: all, mig-enabled: true, mig-devices: {3g.40gb: 2}}",
            "gpu 0, mig-1g.10gb 0, mig-3g.40gb 4",
            "mig-3g.40gb",
        ),
        (
            "{devices: all, mig-enabled: false}",
            "gpu 2, mig-1g.10gb 0, mig-3g.40gb 0",
            "gpu",
        ),
    ] {
        rig.cut(cut).await;
        rig.until(list).await;
        assert!(cdi_names(&rig).is_superset(&rig.healthy(resource)));
    }
}

/// A folder that cannot be written: new devices are not offered, and an Event says why; later they are.
#[tokio::test]
async fn without_a_spec_no_device() {
    let setup = Setup::new().file("flags: {plugin: {deviceListStrategy: cdi-cri}}");
    let mut rig = setup.node(serde_json::json!({})).prepare().await;
    let folder = rig.config.cdi_folder.clone();
    std::fs::create_dir_all(folder.parent().unwrap()).unwrap();
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::write(&folder, "in the way").unwrap();
    rig.start_kubelet();
    rig.start_plugin().await.unwrap();
    rig.until("gpu 0+2").await;
    rig.until_so("an Event", |rig| {
        rig.events()
            .iter()
            .any(|event| event.contains("NotPrepared"))
    })
    .await;
    let (status, body) = rig.get("/readyz").await;
    assert_eq!(status, 503, "{body}");
    std::fs::remove_file(&folder).unwrap();
    rig.until("gpu 2").await;
}

/// What keeps devices from being given is told, whichever way containers learn of them.
#[rstest]
#[case::imex_channel("imex: {channelIDs: [0], required: true}", "imex.required")]
#[case::device_nodes("flags: {plugin: {passDeviceSpecs: true}}", "/dev/nvidia")]
#[tokio::test]
async fn what_all_devices_lack_is_told(#[case] file: &str, #[case] what: &str) {
    let setup = Setup::new().file(file).node(serde_json::json!({}));
    let mut rig = setup.prepare().await;
    let nodes = rig.config.root.join("dev");
    std::fs::rename(&nodes, rig.config.root.join("elsewhere")).unwrap();
    rig.start_kubelet();
    rig.start_plugin().await.unwrap();
    rig.until("gpu 0+2").await;
    rig.until_so("an Event", |rig| {
        let events = rig.events();
        let told = |event: &String| event.contains("NotPrepared") && event.contains(what);
        events.iter().any(told)
    })
    .await;
}

/// 56 MIG devices to 56 pods, one each.
#[tokio::test]
async fn every_pod_its_own_instance() {
    let rig = Setup::of("h100-sxm5-80gb", 8)
        .file("flags: {migStrategy: mixed}")
        .start()
        .await;
    rig.until("gpu 8").await;
    rig.cut("{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}")
        .await;
    rig.until("gpu 0, mig-1g.10gb 56").await;
    let mut given = BTreeSet::new();
    for pod in 0..56 {
        let pod = format!("pod-{pod}");
        let admitted = rig
            .kubelet()
            .admit(&pod, "nvidia.com/mig-1g.10gb", 1)
            .await
            .unwrap();
        assert_eq!(
            admitted.response.envs["NVIDIA_VISIBLE_DEVICES"],
            admitted.ids[0]
        );
        assert!(given.insert(admitted.ids[0].clone()));
    }
    let none = rig
        .kubelet()
        .admit("one more", "nvidia.com/mig-1g.10gb", 1)
        .await;
    assert!(none.unwrap_err().starts_with("Insufficient"));
}

/// The kubelet's list may lag: what it still has for healthy is refused when it is not.
#[tokio::test]
async fn a_device_is_checked_again_when_it_is_given() {
    let rig = Setup::new().start().await;
    rig.until("gpu 2").await;
    let mut plugin = rig.kubelet().plugin("nvidia-gpu.sock").await;
    let uuid = rig.uuid(1);
    rig.node.lose(1).unwrap();
    rig.until("gpu 1+1").await;
    for (id, about) in [
        (uuid.as_str(), "unhealthy"),
        ("GPU-none", "not on this node"),
    ] {
        let request = kubelet::api::device_plugin::AllocateRequest {
            container_requests: vec![kubelet::api::device_plugin::ContainerAllocateRequest {
                device_ids: vec![id.to_owned()],
            }],
        };
        let refusal = plugin.allocate(request).await.unwrap_err();
        let text = refusal.message();
        assert!(
            text.contains(about) && text.contains(id) && text.contains("nvidia.com/gpu"),
            "{text}"
        );
    }
    let (_, page) = rig.get("/metrics").await;
    for series in [
        "{call=\"Allocate\",result=\"refused\"} 2",
        // Asked by the kubelet when it registers a plugin.
        "{call=\"GetDevicePluginOptions\",result=\"ok\"} 1",
    ] {
        let series = format!("lathe_device_plugin_call_duration_seconds_count{series}");
        assert!(page.contains(&series), "{page}");
    }
}
