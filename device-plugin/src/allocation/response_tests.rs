//! Every row of what NVIDIA's plugin answers, alone and together (facts §2.4, written down by hand).

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use rstest::rstest;

use super::super::fixtures::{options, resource};
use super::{Ready, annotation_key, response};
use kubelet::device_plugin::ContainerAllocateResponse;

/// A response as lines, those of one kind in the order of the answer, environment and annotations by key.
fn lines(response: &ContainerAllocateResponse) -> Vec<String> {
    let mut envs: Vec<_> = response.envs.iter().collect();
    envs.sort_unstable();
    let envs = envs
        .into_iter()
        .map(|(key, value)| format!("env {key}={value}"));
    let mounts = response.mounts.iter().map(|mount| {
        let mode = if mount.read_only { "ro" } else { "rw" };
        format!("mount {} {} {mode}", mount.host_path, mount.container_path)
    });
    let devices = response.devices.iter().map(|device| {
        format!(
            "device {} {} {}",
            device.host_path, device.container_path, device.permissions
        )
    });
    let annotations = response
        .annotations
        .iter()
        .map(|(key, value)| format!("annotation {key}={value}"));
    let cdi = response
        .cdi_devices
        .iter()
        .map(|device| format!("cdi {}", device.name));
    envs.chain(mounts)
        .chain(devices)
        .chain(annotations)
        .chain(cdi)
        .collect()
}

/// A node that has everything.
fn ready() -> Ready {
    let paths = |names: &[&str]| {
        names
            .iter()
            .map(|name| PathBuf::from(format!("/dev/{name}")))
            .collect()
    };
    let capabilities = |gpu: &str, instances: [u32; 2]| {
        let [gi, ci] = instances.map(|minor| format!("nvidia-caps/nvidia-cap{minor}"));
        paths(&[gpu, &gi, &ci])
    };
    Ready {
        imex_channel0: true,
        gdrcopy: true,
        gds: true,
        mofed: true,
        control_nodes: paths(&["nvidiactl", "nvidia-uvm"]),
        device_nodes: [
            ("GPU-0".to_owned(), paths(&["nvidia4"])),
            ("GPU-1".to_owned(), paths(&["nvidia5"])),
            ("MIG-0-0".to_owned(), capabilities("nvidia4", [12, 13])),
            ("MIG-0-1".to_owned(), capabilities("nvidia4", [21, 22])),
        ]
        .into(),
    }
}

/// The options `flags`, with `more` beside them; the resource `name` with `devices`, all of them given.
fn answer(flags: &str, more: &str, name: &str, devices: &str) -> Vec<String> {
    let options = options(&format!("{{flags: {{{flags}}}, {more}}}"));
    let resource = resource(name, devices);
    let given: Vec<_> = resource.devices.iter().collect();
    lines(&response(&options, &ready(), &resource.name, &given))
}

const IMEX: &str = "imex: {channelIDs: [0]}";
const SLICES: &str = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}";
const MPS: &str = "sharing: {mps: {resources: [{name: gpu, replicas: 4}]}}";

#[rstest]
#[case::envvar("", "", "gpu", "0 1", &["env NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1"])]
#[case::envvar_mig("", "", "mig-1g.10gb", "0:0 0:1", &["env NVIDIA_VISIBLE_DEVICES=MIG-0-0,MIG-0-1"])]
#[case::envvar_index("plugin: {deviceIDStrategy: index}", "", "gpu", "0 1", &["env NVIDIA_VISIBLE_DEVICES=0,1"])]
#[case::envvar_mig_index("plugin: {deviceIDStrategy: index}", "", "mig-1g.10gb", "0:0 1:1", &["env NVIDIA_VISIBLE_DEVICES=0:0,1:1"])]
#[case::envvar_shares("", SLICES, "gpu", "0*4 1*4", &["env NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1"])]
#[case::envvar_imex("", IMEX, "gpu", "0", &["env NVIDIA_IMEX_CHANNELS=0", "env NVIDIA_VISIBLE_DEVICES=GPU-0"])]
#[case::volume_mounts("plugin: {deviceListStrategy: volume-mounts}", IMEX, "gpu", "0 1", &[
    "env NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices",
    "mount /dev/null /var/run/nvidia-container-devices/GPU-0 rw",
    "mount /dev/null /var/run/nvidia-container-devices/GPU-1 rw",
    "mount /dev/null /var/run/nvidia-container-devices/imex/0 rw",
])]
#[case::volume_mounts_index("plugin: {deviceListStrategy: volume-mounts, deviceIDStrategy: index}", "", "mig-1g.10gb", "0:1", &[
    "env NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices",
    "mount /dev/null /var/run/nvidia-container-devices/0:1 rw",
])]
#[case::cdi_annotations("plugin: {deviceListStrategy: cdi-annotations}", IMEX, "gpu", "0 1", &[
    "annotation cdi.k8s.io/nvidia-device-plugin_4f75cf4c78df7ee4=k8s.device-plugin.nvidia.com/gpu=GPU-0,k8s.device-plugin.nvidia.com/gpu=GPU-1,k8s.device-plugin.nvidia.com/imex-channel=0",
])]
#[case::cdi_annotations_prefix("plugin: {deviceListStrategy: cdi-annotations, cdiAnnotationPrefix: nvidia.cdi.k8s.io/}", "", "mig-1g.10gb", "0:1", &[
    "annotation nvidia.cdi.k8s.io/nvidia-device-plugin_b44ccdb35f98952e=k8s.device-plugin.nvidia.com/gpu=MIG-0-1",
])]
#[case::cdi_cri("plugin: {deviceListStrategy: cdi-cri}", IMEX, "gpu", "0 1", &[
    "cdi k8s.device-plugin.nvidia.com/gpu=GPU-0",
    "cdi k8s.device-plugin.nvidia.com/gpu=GPU-1",
    "cdi k8s.device-plugin.nvidia.com/imex-channel=0",
])]
#[case::cdi_cri_index("plugin: {deviceListStrategy: cdi-cri, deviceIDStrategy: index}", "", "mig-1g.10gb", "1:0", &[
    "cdi k8s.device-plugin.nvidia.com/gpu=1:0",
])]
#[case::features("gdrcopyEnabled: true, gdsEnabled: true, mofedEnabled: true, plugin: {deviceListStrategy: cdi-cri}", IMEX, "gpu", "0", &[
    "env NVIDIA_GDRCOPY=enabled",
    "env NVIDIA_GDS=enabled",
    "env NVIDIA_MOFED=enabled",
    "cdi k8s.device-plugin.nvidia.com/gpu=GPU-0",
    "cdi k8s.device-plugin.nvidia.com/imex-channel=0",
    "cdi k8s.device-plugin.nvidia.com/gdrcopy=all",
    "cdi k8s.device-plugin.nvidia.com/gds=all",
    "cdi k8s.device-plugin.nvidia.com/mofed=all",
])]
#[case::features_envvar("gdsEnabled: true", "", "gpu", "0", &["env NVIDIA_GDS=enabled", "env NVIDIA_VISIBLE_DEVICES=GPU-0"])]
#[case::specs("plugin: {passDeviceSpecs: true}", IMEX, "gpu", "0 1", &[
    "env NVIDIA_IMEX_CHANNELS=0",
    "env NVIDIA_VISIBLE_DEVICES=GPU-0,GPU-1",
    "device /dev/nvidiactl /dev/nvidiactl rw",
    "device /dev/nvidia-uvm /dev/nvidia-uvm rw",
    "device /dev/nvidia4 /dev/nvidia4 rw",
    "device /dev/nvidia5 /dev/nvidia5 rw",
    "device /dev/nvidia-caps-imex-channels/channel0 /dev/nvidia-caps-imex-channels/channel0 rw",
])]
// Two MIG devices of one GPU: its node once.
#[case::specs_mig("nvidiaDriverRoot: /run/nvidia/driver, plugin: {passDeviceSpecs: true}", "", "mig-1g.10gb", "0:0 0:1", &[
    "env NVIDIA_VISIBLE_DEVICES=MIG-0-0,MIG-0-1",
    "device /run/nvidia/driver/dev/nvidiactl /dev/nvidiactl rw",
    "device /run/nvidia/driver/dev/nvidia-uvm /dev/nvidia-uvm rw",
    "device /run/nvidia/driver/dev/nvidia4 /dev/nvidia4 rw",
    "device /run/nvidia/driver/dev/nvidia-caps/nvidia-cap12 /dev/nvidia-caps/nvidia-cap12 rw",
    "device /run/nvidia/driver/dev/nvidia-caps/nvidia-cap13 /dev/nvidia-caps/nvidia-cap13 rw",
    "device /run/nvidia/driver/dev/nvidia-caps/nvidia-cap21 /dev/nvidia-caps/nvidia-cap21 rw",
    "device /run/nvidia/driver/dev/nvidia-caps/nvidia-cap22 /dev/nvidia-caps/nvidia-cap22 rw",
])]
#[case::specs_are_not_for_cdi("plugin: {passDeviceSpecs: true, deviceListStrategy: cdi-cri}", "", "gpu", "0", &[
    "cdi k8s.device-plugin.nvidia.com/gpu=GPU-0",
])]
#[case::mps("mpsRoot: /run/nvidia/mps", MPS, "gpu", "0*4", &[
    "env CUDA_MPS_PIPE_DIRECTORY=/mps/nvidia.com/gpu/pipe",
    "env NVIDIA_VISIBLE_DEVICES=GPU-0",
    "mount /run/nvidia/mps/nvidia.com/gpu/pipe /mps/nvidia.com/gpu/pipe rw",
    "mount /run/nvidia/mps/shm /dev/shm rw",
])]
#[case::mps_cdi("mpsRoot: /mps, plugin: {deviceListStrategy: cdi-cri}", MPS, "gpu.shared", "0*4", &[
    "env CUDA_MPS_PIPE_DIRECTORY=/mps/nvidia.com/gpu.shared/pipe",
    "mount /mps/nvidia.com/gpu.shared/pipe /mps/nvidia.com/gpu.shared/pipe rw",
    "mount /mps/shm /dev/shm rw",
    "cdi k8s.device-plugin.nvidia.com/gpu=GPU-0",
])]
// MIG devices are not shared by MPS, so they do without its daemon.
#[case::mps_mig("mpsRoot: /mps", MPS, "mig-1g.10gb", "0:0", &["env NVIDIA_VISIBLE_DEVICES=MIG-0-0"])]
#[case::all_at_once("gdsEnabled: true, mpsRoot: /mps, plugin: {passDeviceSpecs: true, deviceListStrategy: [envvar, volume-mounts, cdi-annotations, cdi-cri]}", MPS, "gpu", "0*4", &[
    "env CUDA_MPS_PIPE_DIRECTORY=/mps/nvidia.com/gpu/pipe",
    "env NVIDIA_GDS=enabled",
    "env NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices",
    "mount /mps/nvidia.com/gpu/pipe /mps/nvidia.com/gpu/pipe rw",
    "mount /mps/shm /dev/shm rw",
    "mount /dev/null /var/run/nvidia-container-devices/GPU-0 rw",
    "device /dev/nvidiactl /dev/nvidiactl rw",
    "device /dev/nvidia-uvm /dev/nvidia-uvm rw",
    "device /dev/nvidia4 /dev/nvidia4 rw",
    "annotation cdi.k8s.io/nvidia-device-plugin_4f75cf4c78df7ee4=k8s.device-plugin.nvidia.com/gpu=GPU-0,k8s.device-plugin.nvidia.com/gds=all",
    "cdi k8s.device-plugin.nvidia.com/gpu=GPU-0",
    "cdi k8s.device-plugin.nvidia.com/gds=all",
])]
fn rows(
    #[case] flags: &str,
    #[case] more: &str,
    #[case] name: &str,
    #[case] devices: &str,
    #[case] wanted: &[&str],
) {
    assert_eq!(answer(flags, more, name, devices), wanted);
}

/// What the node lacks is left out: channels and specs that are not there are not named.
#[test]
fn a_node_that_has_little() {
    let options = options(
        "{flags: {gdrcopyEnabled: true, plugin: {deviceListStrategy: [envvar, cdi-cri], passDeviceSpecs: true}}, imex: {channelIDs: [0]}}",
    );
    let resource = resource("gpu", "0");
    let given: Vec<_> = resource.devices.iter().collect();
    assert_eq!(
        lines(&response(
            &options,
            &Ready::default(),
            &resource.name,
            &given
        )),
        [
            "env NVIDIA_GDRCOPY=enabled",
            "env NVIDIA_VISIBLE_DEVICES=GPU-0",
            "cdi k8s.device-plugin.nvidia.com/gpu=GPU-0",
        ]
    );
}

/// Case 11 of the issue: the kubelet drops the second of two values for one key, so what names devices must not share keys.
#[rstest]
#[case("cdi-annotations", true)]
#[case("cdi-cri", true)]
#[case("volume-mounts", true)]
#[case("envvar", false)]
fn two_resources_in_one_container(#[case] strategy: &str, #[case] both_arrive: bool) {
    let flags = format!("plugin: {{deviceListStrategy: {strategy}}}");
    let mut merged = answer(&flags, "", "gpu", "1");
    let second = answer(&flags, "", "mig-1g.10gb", "0:0");
    // As the kubelet merges: environment, mounts and annotations by key, CDI devices all.
    let key = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        ["mount", _, container, _] => container.to_owned(),
        ["env" | "annotation", pair] => pair.split('=').next().unwrap().to_owned(),
        _ => line.to_owned(),
    };
    for line in second {
        if !merged.iter().any(|first| key(first) == key(&line)) {
            merged.push(line);
        }
    }
    let all = merged.join("\n");
    assert_eq!(
        all.contains("GPU-1") && all.contains("MIG-0-0"),
        both_arrive,
        "{all}"
    );
}

/// The API takes 63 characters after the slash, whatever the resource is called.
#[test]
fn annotation_keys_fit() {
    let name = format!("nvidia.com/{}", "x".repeat(52));
    let key = annotation_key("cdi.k8s.io/", &name);
    assert!(key.strip_prefix("cdi.k8s.io/").unwrap().len() <= 63);
    assert_ne!(key, annotation_key("cdi.k8s.io/", "nvidia.com/gpu"));
}
