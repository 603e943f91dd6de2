//! A DRA plugin as the kubelet calls it, in both versions of each service.

use std::path::Path;
use std::sync::{Arc, Mutex};

use kubelet::api::dra::v1 as wire;
use kubelet::api::dra::v1::dra_plugin_client::DraPluginClient as V1;
use kubelet::api::dra::v1beta1::dra_plugin_client::DraPluginClient as V1Beta1;
use kubelet::api::health::v1::dra_resource_health_client::DraResourceHealthClient as HealthV1;
use kubelet::api::health::v1::{HealthStatus, NodeWatchResourcesRequest};
use kubelet::api::health::v1alpha1::dra_resource_health_client::DraResourceHealthClient as HealthV1Alpha1;
use kubelet::api::registration::InfoRequest;
use kubelet::api::registration::registration_client::RegistrationClient;
use kubelet::dra::{Claim, Config, DeviceHealth, Driver, Plugin, PreparedDevice};
use kubelet::{Error, Paths};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{bounded, connect};

/// Gives each claim one device named after the claim, except to those whose name says otherwise.
#[derive(Clone, Default)]
struct Example {
    unprepared: Arc<Mutex<Vec<String>>>,
}

impl Driver for Example {
    type Error = String;

    async fn prepare(&self, claim: Claim) -> Result<Vec<PreparedDevice>, String> {
        let mut device = PreparedDevice {
            requests: vec!["main/small".to_owned(), "second".to_owned()],
            pool: "node-0".to_owned(),
            device: format!("device-of-{}", claim.name),
            cdi_devices: vec!["example.com/claim=a".to_owned()],
            share: Some("5e1c".to_owned()),
        };
        match claim.name.as_str() {
            "refused" => return Err("device-0 is held by claim other".to_owned()),
            "panics" => panic!("a defect of the driver"),
            "nameless" => device.device.clear(),
            "empty" => return Ok(Vec::new()),
            _ => {}
        }
        Ok(vec![device])
    }

    async fn unprepare(&self, claim: Claim) -> Result<(), String> {
        if claim.name == "refused" {
            return Err("device-0 is busy".to_owned());
        }
        self.unprepared.lock().unwrap().push(claim.uid);
        Ok(())
    }
}

fn claims(names: &[&str]) -> Vec<Claim> {
    let claim = |name: &&str| Claim {
        namespace: "ml".to_owned(),
        uid: format!("uid-{name}"),
        name: (*name).to_owned(),
    };
    names.iter().map(claim).collect()
}

fn config(kubelet: &Path) -> Config {
    Config {
        driver: "gpu.example.com".to_owned(),
        paths: Paths::below(Path::new("/"), kubelet),
        instance: None,
    }
}

#[tokio::test]
async fn each_claim_has_its_own_answer() {
    let scratch = tempfile::tempdir().unwrap();
    let plugin = Plugin::open(&config(scratch.path()), Example::default(), None)
        .await
        .unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(plugin.run(shutdown.clone()));
    let socket = scratch.path().join("plugins/gpu.example.com/@dra.sock");
    let mut kubelet = V1::new(connect(&socket).await);

    let request = wire::NodePrepareResourcesRequest {
        claims: claims(&["good", "refused", "panics", "nameless", "empty"]),
    };
    let answer = bounded(kubelet.node_prepare_resources(request)).await;
    let mut answers = answer.unwrap().into_inner().claims;
    let mut answer = |name: &str| answers.remove(&format!("uid-{name}")).unwrap();
    let good = answer("good");
    assert_eq!(good.error, "");
    assert_eq!(
        good.devices,
        [wire::Device {
            // The kubelet knows requests, not their alternatives.
            request_names: vec!["main".to_owned(), "second".to_owned()],
            pool_name: "node-0".to_owned(),
            device_name: "device-of-good".to_owned(),
            cdi_device_ids: vec!["example.com/claim=a".to_owned()],
            share_id: Some("5e1c".to_owned()),
        }]
    );
    assert_eq!(answer("refused").error, "device-0 is held by claim other");
    assert!(answer("panics").error.starts_with("the driver failed"));
    assert!(answer("nameless").error.contains("names no device"));
    let empty = answer("empty");
    assert_eq!((empty.error.as_str(), empty.devices.len()), ("", 0));
    assert!(answers.is_empty());

    shutdown.cancel();
    bounded(task).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_older_kubelet_is_served_alike() {
    let scratch = tempfile::tempdir().unwrap();
    let driver = Example::default();
    let plugin = Plugin::open(&config(scratch.path()), driver.clone(), None)
        .await
        .unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(plugin.run(shutdown.clone()));
    let socket = scratch.path().join("plugins/gpu.example.com/@dra.sock");
    let mut kubelet = V1Beta1::new(connect(&socket).await);

    let request = wire::NodePrepareResourcesRequest {
        claims: claims(&["good", "refused"]),
    };
    let answer = bounded(kubelet.node_prepare_resources(request)).await;
    let answers = answer.unwrap().into_inner().claims;
    assert_eq!(answers["uid-good"].devices[0].device_name, "device-of-good");
    assert_eq!(
        answers["uid-refused"].error,
        "device-0 is held by claim other"
    );

    let request = wire::NodeUnprepareResourcesRequest {
        claims: claims(&["good", "refused"]),
    };
    let answer = bounded(kubelet.node_unprepare_resources(request)).await;
    let answers = answer.unwrap().into_inner().claims;
    assert_eq!(answers["uid-good"].error, "");
    assert_eq!(answers["uid-refused"].error, "device-0 is busy");
    assert_eq!(*driver.unprepared.lock().unwrap(), ["uid-good"]);

    shutdown.cancel();
    bounded(task).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_kubelet_learns_where_the_services_are() {
    let scratch = tempfile::tempdir().unwrap();
    let kubelet_folder = scratch.path().join("var/lib/kubelet");
    let config = Config {
        driver: "gpu.example.com".to_owned(),
        paths: Paths::below(scratch.path(), Path::new("/var/lib/kubelet")),
        instance: Some("b3a7".to_owned()),
    };
    let health = watch::Sender::new(Vec::new());
    let plugin = Plugin::open(&config, Example::default(), Some(health.subscribe()))
        .await
        .unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(plugin.run(shutdown.clone()));

    let socket = kubelet_folder.join("plugins_registry/gpu.example.com-b3a7@reg.sock");
    let mut kubelet = RegistrationClient::new(connect(&socket).await);
    let told = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!(told.name, "gpu.example.com");
    assert_eq!(
        told.endpoint,
        "/var/lib/kubelet/plugins/gpu.example.com/b3a7@dra.sock"
    );
    assert_eq!(
        told.supported_versions,
        [
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth"
        ]
    );

    shutdown.cancel();
    bounded(task).await.unwrap().unwrap();
    assert!(!socket.exists());
    assert!(
        !kubelet_folder
            .join("plugins/gpu.example.com/b3a7@dra.sock")
            .exists()
    );
}

#[tokio::test]
async fn health_follows_the_devices() {
    let scratch = tempfile::tempdir().unwrap();
    let device = |healthy, message: &str| DeviceHealth {
        pool: "node-0".to_owned(),
        device: "gpu-0".to_owned(),
        healthy,
        message: message.to_owned(),
    };
    let health = watch::Sender::new(vec![device(Some(true), "")]);
    let plugin = Plugin::open(
        &config(scratch.path()),
        Example::default(),
        Some(health.subscribe()),
    )
    .await
    .unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(plugin.run(shutdown.clone()));
    let channel = connect(&scratch.path().join("plugins/gpu.example.com/@dra.sock")).await;

    let mut v1 = HealthV1::new(channel.clone());
    let mut v1alpha1 = HealthV1Alpha1::new(channel);
    let request = NodeWatchResourcesRequest {};
    let mut streams = [
        v1.node_watch_resources(request).await.unwrap().into_inner(),
        v1alpha1
            .node_watch_resources(request)
            .await
            .unwrap()
            .into_inner(),
    ];
    for (change, expected, message) in [
        (None, HealthStatus::Healthy, String::new()),
        (
            Some(device(Some(false), &"x".repeat(2000))),
            HealthStatus::Unhealthy,
            "x".repeat(1024),
        ),
        (
            Some(device(None, "driver gone")),
            HealthStatus::Unknown,
            "driver gone".to_owned(),
        ),
    ] {
        if let Some(change) = change {
            health.send_replace(vec![change]);
        }
        for stream in &mut streams {
            let list = bounded(stream.message()).await.unwrap().unwrap().devices;
            assert_eq!(list.len(), 1);
            assert_eq!(list[0].health(), expected);
            assert_eq!(list[0].message, message);
            let identity = list[0].device.clone().unwrap();
            assert_eq!(
                (identity.pool_name.as_str(), identity.device_name.as_str()),
                ("node-0", "gpu-0")
            );
            // 2020-01-01: seconds, not milliseconds, and not nothing.
            assert!((1_577_836_800..10_000_000_000).contains(&list[0].last_updated_time));
        }
    }

    // Streams that have no end do not hold the plugin up.
    shutdown.cancel();
    bounded(task).await.unwrap().unwrap();
}

#[tokio::test]
async fn without_health_there_is_no_health_service() {
    let scratch = tempfile::tempdir().unwrap();
    let plugin = Plugin::open(&config(scratch.path()), Example::default(), None)
        .await
        .unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(plugin.run(shutdown.clone()));
    let channel = connect(&scratch.path().join("plugins/gpu.example.com/@dra.sock")).await;
    let status = HealthV1::new(channel)
        .node_watch_resources(NodeWatchResourcesRequest {})
        .await
        .unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unimplemented);
    shutdown.cancel();
    bounded(task).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_plugin_that_loses_its_registration_gives_its_service_up_as_well() {
    let scratch = tempfile::tempdir().unwrap();
    let plugin = Plugin::open(&config(scratch.path()), Example::default(), None)
        .await
        .unwrap();
    let task = tokio::spawn(plugin.run(CancellationToken::new()));
    let registry = scratch.path().join("plugins_registry");
    let other = registry.join(".other");
    let _listener = std::os::unix::net::UnixListener::bind(&other).unwrap();
    std::fs::rename(&other, registry.join("gpu.example.com@reg.sock")).unwrap();
    let error = bounded(task).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Displaced { .. }), "{error}");
    assert!(
        !scratch
            .path()
            .join("plugins/gpu.example.com/@dra.sock")
            .exists()
    );
}
