//! Options: defaults, what each key says, what is refused.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use configuration::plugin::{AllocationPolicy, DeviceIdStrategy, PluginFile};
use rstest::rstest;

use super::super::fixtures::options;
use super::{DeviceLists, Imex, Options, OptionsError};

fn refused(yaml: &str) -> OptionsError {
    let (file, _) = PluginFile::parse("test", yaml.as_bytes()).unwrap();
    Options::new(&file).unwrap_err()
}

/// Facts §2.1.
#[test]
fn defaults() {
    let wanted = Options {
        lists: DeviceLists {
            envvar: true,
            volume_mounts: false,
            cdi_annotations: false,
            cdi_cri: false,
        },
        ids: DeviceIdStrategy::Uuid,
        device_specs: false,
        gdrcopy: false,
        gds: false,
        mofed: false,
        annotation_prefix: "cdi.k8s.io/".to_owned(),
        dev_root: PathBuf::from("/"),
        mps_root: None,
        imex: Imex::No,
        policy: AllocationPolicy::Distributed,
        one_share: false,
    };
    assert_eq!(options(""), wanted);
    assert_eq!(options("flags: {plugin: {deviceListStrategy: []}}"), wanted);
}

#[test]
fn every_key() {
    let wanted = Options {
        lists: DeviceLists {
            envvar: false,
            volume_mounts: true,
            cdi_annotations: true,
            cdi_cri: true,
        },
        ids: DeviceIdStrategy::Index,
        device_specs: true,
        gdrcopy: true,
        gds: true,
        mofed: true,
        annotation_prefix: "nvidia.cdi.k8s.io/".to_owned(),
        dev_root: PathBuf::from("/dev-root"),
        mps_root: Some(PathBuf::from("/run/nvidia/mps")),
        imex: Imex::Required,
        policy: AllocationPolicy::Packed,
        one_share: true,
    };
    let yaml = "
        flags:
          mpsRoot: /run/nvidia/mps
          nvidiaDriverRoot: /run/nvidia/driver
          nvidiaDevRoot: /dev-root
          gdrcopyEnabled: true
          gdsEnabled: true
          mofedEnabled: true
          migStrategy: mixed
          plugin:
            passDeviceSpecs: true
            deviceListStrategy: [cdi-cri, volume-mounts, cdi-annotations]
            deviceIDStrategy: index
            cdiAnnotationPrefix: nvidia.cdi.k8s.io/
            sharedDevicesAllocationPolicy: packed
        sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}
        imex: {channelIDs: [0], required: true}";
    assert_eq!(options(yaml), wanted);
}

#[rstest]
// The device root is the driver's, unless it has one of its own.
#[case("{nvidiaDriverRoot: /run/nvidia/driver}", "/run/nvidia/driver")]
#[case("{nvidiaDevRoot: /}", "/")]
#[case("{nvidiaDriverRoot: /run/nvidia/driver, nvidiaDevRoot: /}", "/")]
fn device_roots(#[case] flags: &str, #[case] wanted: &str) {
    assert_eq!(
        options(&format!("flags: {flags}")).dev_root,
        Path::new(wanted)
    );
}

#[rstest]
#[case("imex: {channelIDs: [0]}", Imex::IfPresent)]
#[case("imex: {channelIDs: [], required: true}", Imex::No)]
#[case("imex: {required: true}", Imex::No)]
fn imex(#[case] yaml: &str, #[case] wanted: Imex) {
    assert_eq!(options(yaml).imex, wanted);
}

#[rstest]
#[case(&[], Some(false))]
#[case(&[0], Some(true))]
#[case(&[1], None)]
#[case(&[0, 0], None)]
fn imex_channels(#[case] channels: &[u32], #[case] wanted: Option<bool>) {
    assert_eq!(Imex::channel0(channels).ok(), wanted);
}

#[rstest]
// Facts §2.2: what the file leaves out.
#[case("timeSlicing: {", false)]
#[case("timeSlicing: {failRequestsGreaterThanOne: true, ", true)]
#[case("mps: {", true)]
#[case("mps: {failRequestsGreaterThanOne: false, ", false)]
fn one_share(#[case] sharing: &str, #[case] wanted: bool) {
    let yaml = format!(
        "{{flags: {{mpsRoot: /mps}}, sharing: {{{sharing}resources: [{{name: gpu, replicas: 2}}]}}}}}}"
    );
    assert_eq!(options(&yaml).one_share, wanted);
}

const MPS: &str = "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}";

#[rstest]
#[case(MPS, "sharing by MPS needs mpsRoot (--mps-root)")]
#[case(
    "flags: {nvidiaDriverRoot: driver}",
    "nvidiaDriverRoot is \"driver\": use an absolute path"
)]
#[case(
    "flags: {nvidiaDevRoot: .}",
    "nvidiaDevRoot is \".\": use an absolute path"
)]
fn refusals(#[case] yaml: &str, #[case] text: &str) {
    let error = refused(yaml).to_string();
    assert!(error.starts_with(text), "{error}");
}

#[test]
fn an_mps_root_has_to_be_a_place() {
    assert_eq!(
        refused(&format!("{{flags: {{mpsRoot: ''}}, {MPS}}}")),
        OptionsError::NoMpsRoot
    );
    let relative = refused(&format!("{{flags: {{mpsRoot: mps}}, {MPS}}}"));
    assert_eq!(
        relative.to_string(),
        "mpsRoot is \"mps\": use an absolute path"
    );
    // Without MPS nobody looks at it.
    assert_eq!(options("flags: {mpsRoot: mps}").mps_root, None);
}

#[rstest]
#[case("cdi.k8s.io/", true)]
#[case("cdi.k8s.io/x.", true)]
#[case("", false)]
#[case("/", false)]
#[case("cdi.k8s.io", false)]
#[case("CDI.k8s.io/", false)]
#[case("cdi..io/", false)]
#[case("-cdi.io/", false)]
#[case("cdi.io/a/", false)]
#[case("cdi.io/ ", false)]
#[case("cdi.io/-", false)]
// 21 + 16 characters follow the prefix; 63 are allowed after the slash.
#[case("cdi.io/xxxxxxxxxxxxxxxxxxxxxxxxxx", true)]
#[case("cdi.io/xxxxxxxxxxxxxxxxxxxxxxxxxxx", false)]
fn annotation_prefixes(#[case] prefix: &str, #[case] fits: bool) {
    let yaml = format!("flags: {{plugin: {{cdiAnnotationPrefix: '{prefix}'}}}}");
    let (file, _) = PluginFile::parse("test", yaml.as_bytes()).unwrap();
    assert_eq!(Options::new(&file).is_ok(), fits);
}

#[rstest]
#[case("", 1, false)]
#[case("", 2, true)]
#[case("flags: {plugin: {deviceListStrategy: [envvar, cdi-cri]}}", 2, false)]
#[case("flags: {plugin: {deviceListStrategy: volume-mounts}}", 2, false)]
fn a_variable_names_devices_of_one_resource(
    #[case] yaml: &str,
    #[case] resources: usize,
    #[case] caution: bool,
) {
    assert_eq!(options(yaml).caution(resources).is_some(), caution);
}
