//! Shares of GPUs under MPS: they can be had exactly while their daemon serves them.

use std::collections::BTreeMap;

use device_plugin::mps::plan::{Daemon, SharedGpu};
use device_plugin::mps::status::Started;
use device_plugin::mps::{Root, Served};

use crate::rig::Setup;

const SHARED: &str =
    "flags: {mpsRoot: /run/nvidia/mps}\nsharing: {mps: {resources: [{name: gpu, replicas: 4}]}}";

fn served(gpus: &[String]) -> Served {
    let gpus = gpus.iter().map(|uuid| SharedGpu {
        uuid: uuid.clone(),
        index: 0,
        replicas: 4,
        memory_mib: None,
    });
    Served::from(&Daemon {
        gpus: gpus.collect(),
    })
}

#[tokio::test]
async fn shares_are_as_healthy_as_their_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::new(folder.path());
    let path = folder.path().to_owned();
    let setup = Setup::new().file(SHARED).node(serde_json::json!({}));
    let rig = setup.config(|config| config.mps_root = path).start().await;
    let held = |healthy, unhealthy| BTreeMap::from([("gpu".to_owned(), (healthy, unhealthy))]);
    rig.until_so("no daemon", |rig| rig.held() == held(0, 8))
        .await;
    let why = "Warning MPSNotReady the MPS daemon of nvidia.com/gpu is not ready";
    rig.until_so("an Event", |rig| {
        let events = rig.events();
        events.len() == 1 && events[0].starts_with(why)
    })
    .await;

    let resource = "gpu".parse().unwrap();
    std::fs::create_dir_all(root.resource(&resource)).unwrap();
    let one = Started::publish(&root, &resource, &served(&[rig.uuid(0)])).unwrap();
    rig.until_so("a daemon of one GPU", |rig| rig.held() == held(4, 4))
        .await;

    let both = served(&[rig.uuid(0), rig.uuid(1)]);
    let both = Started::publish(&root, &resource, &both).unwrap();
    one.replaced();
    rig.until_so("a daemon of both", |rig| rig.held() == held(8, 0))
        .await;

    drop(both);
    rig.until_so("its end", |rig| rig.held() == held(0, 8))
        .await;
}
