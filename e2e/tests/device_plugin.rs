//! The device plugin on a real kubelet and container runtime: what the node offers, what containers get, what changes.

mod devices;

use std::collections::BTreeSet;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::support::cluster::{cluster, cluster_alone, skipped, variable};
use crate::support::host::{Host, host};
use crate::support::install::{Installed, with_device_plugin};
use crate::support::pods::Pods;
use crate::support::tools::run;
use devices::{Seen, held, kubelet_has, nodes_of};

/// Devices of one board in the layout `all-balanced`, 8 GPUs.
const BALANCED: [(&str, usize); 4] = [
    ("gpu", 0),
    ("mig-1g.10gb", 16),
    ("mig-2g.20gb", 8),
    ("mig-3g.40gb", 8),
];

/// Nothing but what these tests look at.
fn plugin_alone() -> Value {
    json!({"featureDiscovery": {"enabled": false}, "dcgmExporter": {"enabled": false}})
}

fn plugin_with(values: Value) -> Value {
    let mut all = plugin_alone();
    for (key, value) in values.as_object().unwrap() {
        all[key] = value.clone();
    }
    all
}

#[tokio::test]
async fn a_label_becomes_a_device_in_a_pod_and_the_pods_name_in_the_metrics() {
    let (Some(cluster), Some(host)) = (cluster().await, host()) else {
        return;
    };
    with_device_plugin(
        &cluster,
        &host.clone(),
        "dgx-h100",
        json!({}),
        |lathe| async move {
            let pods = Pods::new(&lathe.cluster.client, &lathe.namespace);
            lathe.allocatable_is(&[("gpu", 8)]).await;
            pods.ask("waiting", json!({"nvidia.com/mig-3g.40gb": 1}))
                .await;
            pods.is_unschedulable("waiting").await;

            lathe.cut("all-balanced").await;
            lathe.allocatable_is(&BALANCED).await;

            let seen = seen(&lathe, &host, &pods, "waiting").await;
            assert_eq!(seen.ids.len(), 1);
            assert_eq!(seen.nodes, nodes_of(&lathe, &seen.ids));

            let mine = format!(
                "container=\"main\",namespace=\"{}\",pod=\"waiting\"}}",
                lathe.namespace
            );
            let page = lathe.metrics_say(|page| page.contains(&mine)).await;
            let named: Vec<&str> = page
                .lines()
                .filter(|line| line.starts_with("DCGM_FI_DEV_FB_USED{") && line.contains("pod="))
                .collect();
            assert_eq!(named.len(), 1, "{named:?}");
            let device = devices::find(&lathe, &seen.ids[0]);
            for label in [
                format!("gpu=\"{}\"", device.gpu),
                "GPU_I_PROFILE=\"3g.40gb\"".to_owned(),
                format!("GPU_I_ID=\"{}\"", device.mig.unwrap().0),
                mine,
            ] {
                assert!(named[0].contains(&label), "{label} is not in {}", named[0]);
            }
        },
    )
    .await;
}

#[tokio::test]
async fn containers_see_what_they_asked_for_and_nothing_else() {
    let (Some(cluster), Some(host)) = (cluster().await, host()) else {
        return;
    };
    let layouts = "version: v1\nmig-configs:\n  half:\n  - {devices: [0, 1, 2, 3], mig-enabled: false}\n  - {devices: [4, 5, 6, 7], mig-enabled: true, mig-devices: {1g.10gb: 7}}\n";
    let shared =
        "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n";
    let values = plugin_with(json!({
        "migManager": {"config": {"data": layouts}},
        "devicePlugin": {"config": {"map": {"default": "version: v1\n", "shared": shared}}},
    }));
    with_device_plugin(
        &cluster,
        &host.clone(),
        "dgx-h100",
        values,
        |lathe| async move {
            let pods = Pods::new(&lathe.cluster.client, &lathe.namespace);
            lathe.cut("half").await;
            lathe
                .allocatable_is(&[("gpu", 4), ("mig-1g.10gb", 28)])
                .await;
            let asked = [
                ("two", json!({"nvidia.com/gpu": 2}), 2),
                ("part", json!({"nvidia.com/mig-1g.10gb": 1}), 1),
                (
                    "both",
                    json!({"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 1}),
                    2,
                ),
                ("none", json!({}), 0),
            ];
            for (name, limits, _) in &asked {
                pods.ask(name, limits.clone()).await;
            }
            let mut given = BTreeSet::new();
            for (name, _, count) in &asked {
                let seen = seen(&lathe, &host, &pods, name).await;
                assert_eq!(seen.ids.len(), *count, "{name}");
                assert_eq!(seen.nodes, nodes_of(&lathe, &seen.ids), "{name}");
                // The driver comes with a device, and only with one. With `void`, NVIDIA's runtime adds nothing of its own.
                let visible = seen.environment.get("NVIDIA_VISIBLE_DEVICES");
                assert_eq!(
                    visible.map(String::as_str),
                    (*count > 0).then_some("void"),
                    "{name}"
                );
                assert_eq!(
                    seen.mounts
                        .iter()
                        .any(|mount| mount.ends_with("/nvidia-smi")),
                    *count > 0,
                    "{name}: {:?}",
                    seen.mounts
                );
                for id in seen.ids {
                    assert!(given.insert(id.clone()), "{id} was given twice");
                }
            }
            for (name, _, _) in &asked {
                pods.delete(name).await;
            }

            lathe.configure("shared").await;
            lathe
                .allocatable_is(&[("gpu", 16), ("mig-1g.10gb", 28)])
                .await;
            pods.ask("slice", json!({"nvidia.com/gpu": 1})).await;
            let seen = seen(&lathe, &host, &pods, "slice").await;
            assert!(seen.ids[0].contains("::"), "{:?}", seen.ids);
            assert_eq!(seen.nodes, nodes_of(&lathe, &seen.ids));
        },
    )
    .await;
}

#[tokio::test]
async fn fifty_six_pods_have_an_instance_each_whatever_the_kubelet_does() {
    let (Some(cluster), Some(host)) = (cluster_alone().await, host()) else {
        return;
    };
    let Some(restart) = variable("LATHE_E2E_RESTART_KUBELET") else {
        skipped("LATHE_E2E_RESTART_KUBELET names no command");
        return;
    };
    let values = plugin_alone();
    with_device_plugin(
        &cluster,
        &host.clone(),
        "dgx-h100",
        values,
        |lathe| async move {
            let pods = Pods::new(&lathe.cluster.client, &lathe.namespace);
            lathe.cut("all-1g.10gb").await;
            lathe.allocatable_is(&[("mig-1g.10gb", 56)]).await;
            let names: Vec<String> = (0..56).map(|number| format!("user-{number}")).collect();
            for name in &names {
                pods.ask(name, json!({"nvidia.com/mig-1g.10gb": 1})).await;
            }
            let before = join_all(names.iter().map(|name| seen(&lathe, &host, &pods, name))).await;
            let mut given = BTreeSet::new();
            for seen in &before {
                assert_eq!(seen.ids.len(), 1);
                assert_eq!(seen.nodes, nodes_of(&lathe, &seen.ids));
                assert!(given.insert(seen.ids[0].clone()), "{:?} twice", seen.ids);
            }

            run("sh", &["-c", &restart], "").await;
            let took = kubelet_has(&host, "nvidia.com/mig-1g.10gb", 56).await;
            eprintln!("56 allocatable {took:?} after the kubelet's start was over");
            // One that ends makes room for one, and the kubelet still knows whom the others belong to.
            pods.delete("user-7").await;
            pods.ask("late", json!({"nvidia.com/mig-1g.10gb": 1})).await;
            let late = seen(&lathe, &host, &pods, "late").await;
            assert_eq!(late.ids, before[7].ids);
            let held = held(&host, &lathe.namespace).await;
            let others = names.iter().zip(&before);
            for (name, before) in others.filter(|(name, _)| *name != "user-7") {
                assert_eq!(held[name], before.ids, "{name}");
                let pod = pods.get(name).await;
                let status = pod.status.unwrap().container_statuses.unwrap();
                let runs = status[0].state.as_ref().unwrap().running.is_some();
                assert!(runs && status[0].restart_count == 0, "{name}");
            }
        },
    )
    .await;
}

#[tokio::test]
async fn one_lost_gpu_costs_one_gpu_until_it_is_back() {
    let (Some(cluster), Some(host)) = (cluster().await, host()) else {
        return;
    };
    let values = plugin_alone();
    with_device_plugin(
        &cluster,
        &host.clone(),
        "dgx-h100",
        values,
        |lathe| async move {
            let pods = Pods::new(&lathe.cluster.client, &lathe.namespace);
            lathe.allocatable_is(&[("gpu", 8)]).await;
            let lost = lathe.hardware.state().unwrap().gpus[3].uuid.clone();
            lathe.hardware.lose(3).unwrap();
            let took = lathe.allocatable_is(&[("gpu", 7)]).await;
            eprintln!("7 allocatable {took:?} after the GPU was lost");

            pods.ask("several", json!({"nvidia.com/gpu": 5})).await;
            pods.ask("single", json!({"nvidia.com/gpu": 1})).await;
            for name in ["several", "single"] {
                let seen = seen(&lathe, &host, &pods, name).await;
                assert!(!seen.ids.contains(&lost), "{name}: {:?}", seen.ids);
                assert_eq!(seen.nodes, nodes_of(&lathe, &seen.ids), "{name}");
            }

            lathe.hardware.reset(3).unwrap();
            let took = lathe.allocatable_is(&[("gpu", 8)]).await;
            eprintln!("8 allocatable {took:?} after the GPU came back");
        },
    )
    .await;
}

#[tokio::test]
async fn resources_follow_the_layout() {
    let (Some(cluster), Some(host)) = (cluster().await, host()) else {
        return;
    };
    with_device_plugin(
        &cluster,
        &host,
        "dgx-h100",
        plugin_alone(),
        |lathe| async move {
            lathe.allocatable_is(&[("gpu", 8)]).await;
            let stages: [(&str, &[(&str, usize)]); 3] = [
                ("all-balanced", &BALANCED),
                (
                    "all-1g.10gb",
                    &[
                        ("gpu", 0),
                        ("mig-1g.10gb", 56),
                        ("mig-2g.20gb", 0),
                        ("mig-3g.40gb", 0),
                    ],
                ),
                ("all-disabled", &[("gpu", 8), ("mig-1g.10gb", 0)]),
            ];
            for (config, wanted) in stages {
                lathe.cut(config).await;
                let took = lathe.allocatable_is(wanted).await;
                eprintln!("{config}: allocatable {took:?} after the layout");
            }
        },
    )
    .await;
}

/// What the pod may do where the container runtime gives it the device nodes: nothing. (The simulated driver needs no nodes.)
#[tokio::test]
async fn it_serves_without_a_capability() {
    let (Some(cluster), Some(host)) = (cluster().await, host()) else {
        return;
    };
    let values = plugin_with(json!({
        "devicePlugin": {"deviceAccess": "runtime", "migStrategy": "none"},
    }));
    with_device_plugin(
        &cluster,
        &host.clone(),
        "a30x4",
        values,
        |lathe| async move {
            let pods = Pods::new(&lathe.cluster.client, &lathe.namespace);
            lathe.allocatable_is(&[("gpu", 4)]).await;
            pods.ask("one", json!({"nvidia.com/gpu": 1})).await;
            let seen = seen(&lathe, &host, &pods, "one").await;
            assert_eq!(seen.ids.len(), 1);
            assert_eq!(seen.nodes, nodes_of(&lathe, &seen.ids));
        },
    )
    .await;
}

#[tokio::test]
async fn a_driver_that_goes_takes_its_capacity_along_and_brings_it_back() {
    let (Some(cluster), Some(host)) = (cluster().await, host()) else {
        return;
    };
    with_device_plugin(
        &cluster,
        &host,
        "a30x4",
        plugin_alone(),
        |lathe| async move {
            lathe.allocatable_is(&[("gpu", 4)]).await;
            lathe.hardware.unload_driver().unwrap();
            let took = lathe.allocatable_is(&[("gpu", 0)]).await;
            eprintln!("none allocatable {took:?} after the driver went");
            lathe.hardware.load_driver().unwrap();
            let took = lathe.allocatable_is(&[("gpu", 4)]).await;
            eprintln!("4 allocatable {took:?} after the driver came back");
        },
    )
    .await;
}

/// What a pod's container sees, and which devices the kubelet says it has.
async fn seen(lathe: &Installed, host: &Host, pods: &Pods, name: &str) -> Seen {
    let view = pods.view(name).await;
    Seen {
        ids: held(host, &lathe.namespace)
            .await
            .remove(name)
            .unwrap_or_default(),
        nodes: view.gpu_nodes().into_iter().map(str::to_owned).collect(),
        environment: view.environment,
        mounts: view.mounts,
    }
}
