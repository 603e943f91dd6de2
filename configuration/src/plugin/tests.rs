//! What the device plugin's file may say, and what is refused.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::PathBuf;

use gpu::labels::MigStrategy;
use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::document::DocumentError;

fn parse(text: &str) -> (PluginFile, Vec<String>) {
    let (file, notices) = PluginFile::parse("f", text.as_bytes()).unwrap();
    (file, notices.iter().map(Notice::to_string).collect())
}

fn fault(text: &str) -> String {
    match PluginFile::parse("f", text.as_bytes()) {
        Err(error @ DocumentError::Invalid { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn name(text: &str) -> ResourceName {
    text.parse().unwrap()
}

const EVERYTHING: &str = r#"
version: v1
flags:
  migStrategy: mixed
  failOnInitError: false
  mpsRoot: /run/nvidia/mps
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot: /
  gdrcopyEnabled: true
  gdsEnabled: false
  mofedEnabled: true
  useNodeFeatureAPI: false
  deviceDiscoveryStrategy: nvml
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [cdi-annotations, cdi-cri, cdi-cri]
    deviceIDStrategy: index
    cdiAnnotationPrefix: cdi.k8s.io/
    nvidiaCTKPath: /usr/bin/nvidia-ctk
    containerDriverRoot: /driver-root
    sharedDevicesAllocationPolicy: distinct
  gfd:
    oneshot: true
    noTimestamp: true
    sleepInterval: 30s
    outputFile: /out
    machineTypeFile: /machine
devices:
  include: [0, "1", GPU-aa]
  exclude: ["0000:65:00.0", "*Display*"]
resources:
  gpus:
  - {pattern: "*A100*", name: a100}
  - {pattern: "*", name: nvidia.com/gpu}
  mig:
  - {pattern: 1g.*, name: small}
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - {name: nvidia.com/gpu, replicas: 4, devices: 2}
    - {name: a100, rename: a100-slice, replicas: 8, devices: [0, "1:2", "MIG-bb"]}
    - {name: small, replicas: 2, devices: all}
imex:
  channelIDs: [0]
  required: true
"#;

#[test]
fn every_key() {
    let (file, notices) = parse(EVERYTHING);
    assert_eq!(notices, Vec::<String>::new());
    let flags = Flags {
        mig_strategy: Some(MigStrategy::Mixed),
        fail_on_init_error: Some(false),
        mps_root: Some(PathBuf::from("/run/nvidia/mps")),
        driver_root: Some(PathBuf::from("/run/nvidia/driver")),
        dev_root: Some(PathBuf::from("/")),
        gdrcopy: Some(true),
        gds: Some(false),
        mofed: Some(true),
        use_node_feature_api: Some(false),
        discovery_strategy: Some(DiscoveryStrategy::Nvml),
        plugin: PluginFlags {
            pass_device_specs: Some(true),
            device_list_strategies: Some(vec![
                DeviceListStrategy::CdiAnnotations,
                DeviceListStrategy::CdiCri,
            ]),
            device_id_strategy: Some(DeviceIdStrategy::Index),
            cdi_annotation_prefix: Some("cdi.k8s.io/".to_owned()),
            cdi_hook_path: Some(PathBuf::from("/usr/bin/nvidia-ctk")),
            container_driver_root: Some(PathBuf::from("/driver-root")),
            allocation_policy: Some(AllocationPolicy::Distinct),
        },
        gfd: GfdFlags {
            oneshot: Some(true),
            no_timestamp: Some(true),
            sleep_interval: Some("30s".to_owned()),
            output_file: Some(PathBuf::from("/out")),
            machine_type_file: Some(PathBuf::from("/machine")),
        },
    };
    assert_eq!(file.flags, flags);
    assert_eq!(
        file.devices,
        DeviceFilter {
            include: vec![
                Selector::Index(0),
                Selector::Index(1),
                Selector::Uuid("GPU-aa".to_owned())
            ],
            exclude: vec![
                Selector::BusId(0, 0x65, 0, 0),
                Selector::Model(Pattern::new("*Display*"))
            ],
        }
    );
    let named = |pattern: &str, text: &str| NamedPattern {
        pattern: Pattern::new(pattern),
        name: name(text),
    };
    assert_eq!(
        file.resources,
        Resources {
            gpus: vec![
                named("*A100*", "nvidia.com/a100"),
                named("*", "nvidia.com/gpu")
            ],
            mig: vec![named("1g.*", "nvidia.com/small")],
        }
    );
    let shared = |of: &str, rename: Option<&str>, replicas, devices| SharedResource {
        name: name(of),
        rename: rename.map(name),
        devices,
        replicas,
    };
    assert_eq!(
        file.sharing,
        Some(Sharing {
            kind: SharingKind::TimeSlicing,
            rename_by_default: true,
            fail_requests_greater_than_one: true,
            resources: vec![
                shared("gpu", None, 4, SharedDevices::Count(2)),
                shared(
                    "a100",
                    Some("a100-slice"),
                    8,
                    SharedDevices::Selected(vec![
                        Selector::Index(0),
                        Selector::MigIndex(1, 2),
                        Selector::Uuid("MIG-bb".to_owned()),
                    ])
                ),
                shared("small", None, 2, SharedDevices::All),
            ],
        })
    );
    assert_eq!(
        file.imex,
        Imex {
            channel0: Some(true),
            required: Some(true)
        }
    );
}

#[rstest]
fn files_that_say_nothing(
    #[values(
        "",
        " \n",
        "# only a comment\n",
        "version: v1",
        "version: ''",
        "version:\nflags:\nsharing:\nresources: {gpus: , mig: []}\nimex: null",
        "{}",
        "{\"version\": \"v1\"}"
    )]
    text: &str,
) {
    assert_eq!(parse(text), (PluginFile::default(), vec![]));
}

#[rstest]
#[case("version: v2", "f:1:10: version \"v2\" is not known: use v1")]
#[case(
    "flags: {migStrategy: both}",
    "f:1:22: flags.migStrategy: unknown MIG strategy \"both\": use none, single or mixed"
)]
#[case(
    "flags:\n  failOnInitError: 3",
    "f:2:20: flags.failOnInitError: expected true or false, found a number"
)]
#[case("flags: [a]", "f:1:8: flags: expected a map, found a list")]
#[case(
    "flags: {plugin: {deviceListStrategy: [envvar, cdi]}}",
    "f:1:47: flags.plugin.deviceListStrategy: \"cdi\" is not known: use envvar, volume-mounts, cdi-annotations or cdi-cri"
)]
#[case(
    "sharing: {mps: {resources: []}}",
    "f:1:16: sharing.mps.resources is empty: name a resource with replicas, or leave mps out"
)]
#[case(
    "sharing: {timeSlicing: {}}",
    "f:1:24: sharing.timeSlicing.resources is empty: name a resource with replicas, or leave timeSlicing out"
)]
#[case(
    "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}",
    "f:1:59: sharing.timeSlicing.resources: nvidia.com/gpu has 1 replicas: sharing needs at least 2"
)]
#[case(
    "sharing: {timeSlicing: {resources: [{name: gpu, replicas: -4}]}}",
    "f:1:59: sharing.timeSlicing.resources: nvidia.com/gpu has -4 replicas: sharing needs at least 2"
)]
#[case(
    "sharing: {mps: {resources: [{name: gpu}]}}",
    "f:1:29: sharing.mps.resources: replicas is missing for nvidia.com/gpu"
)]
#[case(
    "sharing: {mps: {resources: [{replicas: 2}]}}",
    "f:1:29: sharing.mps.resources: name is missing"
)]
#[case(
    "sharing: {mps: {resources: [{name: gpu, replicas: 2, devices: 0}]}}",
    "f:1:63: sharing.mps.resources.devices: expected all, how many (at least 1), or a list of devices"
)]
#[case(
    "sharing: {mps: {resources: [{name: gpu, replicas: 2, devices: [-1]}]}}",
    "f:1:64: sharing.mps.resources.devices: \"-1\" selects no device: use an index (0), GPU and MIG index (0:1), a UUID (GPU-… or MIG-…), a bus id (0000:65:00.0) or a model with its wildcard (*A100*)"
)]
#[case(
    "resources: {gpus: [{name: x}]}",
    "f:1:20: resources.gpus: pattern is missing"
)]
#[case(
    "resources: {mig: [{pattern: x}]}",
    "f:1:19: resources.mig: name is missing"
)]
#[case(
    "imex: {channelIDs: [1]}",
    "f:1:20: imex.channelIDs: only [] and [0] are possible"
)]
fn faults(#[case] text: &str, #[case] wanted: &str) {
    assert_eq!(fault(text), wanted);
}

/// A name that fits by itself but not with `.shared`: 11 + 52 characters, and 7 more.
#[test]
fn a_default_name_that_grows_too_long() {
    let text = format!(
        "sharing: {{mps: {{renameByDefault: true, resources: [{{name: {}, replicas: 2}}]}}}}",
        "a".repeat(52)
    );
    assert!(
        fault(&text).contains("has 70 characters"),
        "{}",
        fault(&text)
    );
}

#[rstest]
fn what_is_no_file_is_an_error(
    #[values("- a", "flags: [", "\u{0}", "version: v1\nversion: v1", "a: b: c")] text: &str,
) {
    fault(text);
}

#[rstest]
#[case("fancy: 1", &["f:1:1: fancy is not known and has no effect"])]
#[case(
    "flags:\n  migstrategy: mixed\n  plugin: {x: 1}",
    &[
        "f:2:3: flags.migstrategy is not known and has no effect; did you mean migStrategy?",
        "f:3:12: flags.plugin.x is not known and has no effect",
    ]
)]
#[case(
    "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, twice: 1}]}, mps: {resources: [{name: gpu, replicas: 3}]}}",
    &[
        "f:1:24: sharing.timeSlicing has no effect beside sharing.mps",
        "f:1:62: sharing.timeSlicing.resources.twice is not known and has no effect",
    ]
)]
fn notices(#[case] text: &str, #[case] wanted: &[&str]) {
    assert_eq!(parse(text).1, wanted);
}

#[test]
fn mps_wins_and_refuses_more_than_one_by_default() {
    let section = "{resources: [{name: gpu, replicas: 2}]}";
    let sharing = |text: String| parse(&text).0.sharing.unwrap();
    let both = sharing(format!(
        "sharing: {{timeSlicing: {section}, mps: {section}}}"
    ));
    assert_eq!(
        (both.kind, both.fail_requests_greater_than_one),
        (SharingKind::Mps, true)
    );
    let one = sharing(format!("sharing: {{timeSlicing: {section}}}"));
    assert_eq!(
        (one.kind, one.fail_requests_greater_than_one),
        (SharingKind::TimeSlicing, false)
    );
    let allowed = sharing(
        "sharing: {mps: {failRequestsGreaterThanOne: false, resources: [{name: gpu, replicas: 2}]}}"
            .to_owned(),
    );
    assert!(!allowed.fail_requests_greater_than_one);
}

fn candidate(index: u32) -> Candidate<'static> {
    Candidate {
        gpu_index: index,
        gpu_uuid: "GPU-x",
        bus_id: "00000000:01:00.0",
        model: "NVIDIA L40S",
        mig: None,
    }
}

#[test]
fn the_first_entry_that_covers_a_device_decides() {
    let (file, _) = parse(
        "sharing: {timeSlicing: {resources: [\
         {name: gpu, replicas: 2, devices: [1], rename: half}, {name: gpu, replicas: 8, devices: 3}]}}",
    );
    let sharing = file.sharing.unwrap();
    let replicas = |index: u32| {
        let entry = sharing.entry(&name("gpu"), index, &candidate(index));
        entry.map(|entry| (entry.replicas, sharing.shared_name(entry).to_string()))
    };
    let gpu = "nvidia.com/gpu".to_owned();
    assert_eq!(
        (0..4).map(replicas).collect::<Vec<_>>(),
        [
            Some((8, gpu.clone())),
            Some((2, "nvidia.com/half".to_owned())),
            Some((8, gpu)),
            None
        ]
    );
    assert_eq!(sharing.entry(&name("other"), 0, &candidate(0)), None);
}

#[rstest]
#[case("{}", [true, true, true])]
#[case("{include: [0, 2]}", [true, false, true])]
#[case("{exclude: [0]}", [false, true, true])]
#[case("{include: [0, 1], exclude: [1]}", [true, false, false])]
#[case("{include: ['*L40S']}", [true, true, true])]
#[case("{exclude: ['*']}", [false, false, false])]
fn filters(#[case] text: &str, #[case] wanted: [bool; 3]) {
    let (file, _) = parse(&format!("devices: {text}"));
    assert_eq!(
        [0, 1, 2].map(|index| file.devices.offers(&candidate(index))),
        wanted
    );
}

proptest! {
    #[test]
    fn any_text_gives_an_answer(text in "[a-z0-9:{}\\[\\], \n\\-\"'&*|>]{0,120}") {
        let _ = PluginFile::parse("f", text.as_bytes());
    }

    /// One character more, less or other in a file that has every key: an answer, and never a place outside the file.
    #[test]
    fn a_slip_gives_an_answer(at in 0..EVERYTHING.len(), what in "[ -~\n]?") {
        let mut text = EVERYTHING.to_owned();
        text.replace_range(at..=at, &what);
        if let Err(DocumentError::Invalid { position, .. }) = PluginFile::parse("f", text.as_bytes()) {
            prop_assert!(position.line <= 1 + text.lines().count() as u64);
        }
    }
}
