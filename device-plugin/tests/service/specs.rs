//! The CDI specs on the node, whatever others do to them.

use std::fs;

use rstest::rstest;

use crate::rig::Setup;

/// Runtimes cannot start a container whose devices no spec names.
#[rstest]
#[case::deleted(|path: &std::path::Path| fs::remove_file(path).unwrap())]
#[case::overwritten(|path: &std::path::Path| fs::write(path, "{}").unwrap())]
#[case::with_its_folder(|path: &std::path::Path| fs::remove_dir_all(path.parent().unwrap()).unwrap())]
#[tokio::test]
async fn a_spec_that_somebody_spoils_is_made_again(#[case] spoil: impl Fn(&std::path::Path)) {
    let setup = Setup::new().file("flags: {plugin: {deviceListStrategy: cdi-cri}}");
    let rig = setup.start().await;
    rig.until("gpu 2").await;
    let path = rig
        .config
        .cdi_folder
        .join("k8s.device-plugin.nvidia.com-gpu.json");
    let good = fs::read_to_string(&path).unwrap();
    assert!(good.contains(&rig.uuid(1)), "{good}");
    for _ in 0..2 {
        spoil(&path);
        let whole = || fs::read_to_string(&path).is_ok_and(|now| now == good);
        rig.until_so("the spec is whole again", |_| whole()).await;
    }
    assert_eq!(rig.held(), [("gpu".to_owned(), (2, 0))].into());
}

/// A driver that was installed anew has the same version, and perhaps more in it.
#[tokio::test]
async fn a_driver_installed_anew_is_looked_through_again() {
    let setup = Setup::new().file("flags: {plugin: {deviceListStrategy: cdi-cri}}");
    let rig = setup.start().await;
    rig.until("gpu 2").await;
    rig.until_so("the driver can be unloaded", |rig| {
        rig.node.unload_driver().is_ok()
    })
    .await;
    let version = rig.node.state().unwrap().driver.version.clone();
    let name = format!("libnvidia-vksc-core.so.{version}");
    let file = rig.node.root().join("usr/lib/x86_64-linux-gnu").join(&name);
    assert!(!file.exists());
    fs::write(file, "").unwrap();
    rig.load_anew("gpu 0+2").await;
    let path = rig
        .config
        .cdi_folder
        .join("k8s.device-plugin.nvidia.com-gpu.json");
    rig.until_so("the spec has it", |_| {
        fs::read_to_string(&path).is_ok_and(|spec| spec.contains(&name))
    })
    .await;
    rig.until("gpu 2").await;
}

/// With the driver opened anew, its list is shorter and the others have other indices: the one that is gone keeps none of them.
#[tokio::test]
async fn by_index_a_gpu_off_the_bus_costs_one_gpu() {
    let file = "flags: {plugin: {deviceListStrategy: cdi-cri, deviceIDStrategy: index}}";
    let rig = Setup::of("h100-sxm5-80gb", 3).file(file).start().await;
    rig.until("gpu 3").await;
    let path = rig
        .config
        .cdi_folder
        .join("k8s.device-plugin.nvidia.com-gpu.json");
    let node_of = |name: &str| {
        let spec = fs::read(&path).unwrap();
        let spec: serde_json::Value = serde_json::from_slice(&spec).unwrap();
        let devices = spec["devices"].as_array().cloned().unwrap_or_default();
        let device = devices.iter().find(|device| device["name"] == name);
        device.map(|device| device["containerEdits"]["deviceNodes"][0]["path"].clone())
    };
    assert_eq!(node_of("0").unwrap(), "/dev/nvidia0");
    rig.node.fall_off(0).unwrap();
    rig.until_so("the driver is unloaded", |rig| {
        rig.node.unload_driver().is_ok()
    })
    .await;
    rig.load_anew("gpu 0+3").await;
    rig.until_so("the second GPU is the first", |_| {
        node_of("0").is_some_and(|node| node == "/dev/nvidia1")
    })
    .await;
    rig.until("gpu 2+1").await;
    assert_eq!(node_of("1").unwrap(), "/dev/nvidia2");
    assert_eq!(node_of("2"), None);
    let given = rig.kubelet().admit("a", "nvidia.com/gpu", 2).await.unwrap();
    let names = given.response.cdi_devices.iter();
    let names: Vec<_> = names.map(|device| device.name.as_str()).collect();
    let of = |name| format!("k8s.device-plugin.nvidia.com/gpu={name}");
    assert_eq!(names, [of("0"), of("1")]);
}
