//! Which resources a node's GPUs become.

#![allow(clippy::unwrap_used)]

use configuration::plugin::PluginFile;
use gpu::labels::{Invalid, MigStrategy};
use proptest::prelude::*;
use rstest::rstest;

use super::*;

/// GPUs `0..n`; a GPU is its MIG profiles, or `-` for one that is not in MIG mode: `- - 1g.10gb,2g.20gb`. An empty list
/// (`,`) is a GPU in MIG mode without devices.
fn node(text: &str) -> Vec<Gpu> {
    let one = |(index, text): (u32, &str)| {
        let profiles = text
            .split(',')
            .filter(|profile| !matches!(*profile, "" | "-"));
        let mig = (0..).zip(profiles).map(|(mig, profile)| MigDevice {
            index: mig,
            uuid: format!("MIG-{index}-{mig}"),
            gpu_instance: mig + 7,
            compute_instance: 0,
            profile: profile.parse().ok(),
            attributes: None,
        });
        Gpu {
            index,
            uuid: format!("GPU-{index}"),
            minor: Some(index),
            bus_id: format!("00000000:{:02X}:00.0", index + 1),
            model: if index < 2 {
                "NVIDIA A100-SXM4-40GB"
            } else {
                "Tesla T4"
            }
            .to_owned(),
            numa_node: Some(index / 2),
            mig_enabled: text != "-",
            mig: mig.collect(),
        }
    };
    (0..).zip(text.split(' ')).map(one).collect()
}

fn offer(gpus: &str, strategy: MigStrategy, file: &str) -> Offer {
    let (file, _) = PluginFile::parse("f", file.as_bytes()).unwrap();
    resources(&node(gpus), &Rules::new(Some(strategy), file))
}

/// `name: id id …`, one line per resource.
fn shown(offer: &Offer) -> String {
    let lines = offer.resources.iter().map(|resource| {
        let ids = resource.devices.iter().flat_map(Device::ids);
        let ids: Vec<_> = ids.map(|id| id.to_string()).collect();
        format!("{}: {}", resource.name.base(), ids.join(" "))
    });
    lines.collect::<Vec<_>>().join("\n")
}

use MigStrategy::{Mixed, None as NoMig, Single};

// Facts §2.3.
#[rstest]
#[case("- -", NoMig, "gpu: GPU-0 GPU-1")]
#[case("- 1g.5gb", NoMig, "gpu: GPU-0 GPU-1")]
#[case("- -", Single, "gpu: GPU-0 GPU-1")]
#[case("1g.5gb,1g.5gb 1g.5gb", Single, "gpu: MIG-0-0 MIG-0-1 MIG-1-0")]
#[case("- -", Mixed, "gpu: GPU-0 GPU-1")]
#[case(
    "- 3g.20gb,1g.5gb+me 1g.5gb,3g.20gb",
    Mixed,
    "gpu: GPU-0\nmig-1g.5gb: MIG-2-0\nmig-1g.5gb.me: MIG-1-1\nmig-3g.20gb: MIG-1-0 MIG-2-1"
)]
fn strategies(#[case] gpus: &str, #[case] strategy: MigStrategy, #[case] wanted: &str) {
    assert_eq!(shown(&offer(gpus, strategy, "")), wanted);
}

#[rstest]
#[case("- 1g.5gb", Invalid::SomeNotInMigMode)]
#[case("1g.5gb ,", Invalid::EmptyGpu)]
#[case("1g.5gb 2g.10gb", Invalid::SeveralProfiles(vec!["1g.5gb".to_owned(), "2g.10gb".to_owned()]))]
fn what_single_cannot_express(#[case] gpus: &str, #[case] reason: Invalid) {
    let offer = offer(gpus, Single, "");
    assert_eq!(
        (offer.resources, offer.warnings),
        (vec![], vec![Warning::Single(reason)])
    );
}

/// Same profile, other attributes: not alike, as in upstream's plugin.
#[test]
fn single_compares_attributes() {
    let mut gpus = node("1g.5gb 1g.5gb");
    for (gpu, multiprocessors) in gpus.iter_mut().zip([14, 16]) {
        gpu.mig[0].attributes = Some(MigAttributes {
            multiprocessors,
            ..MigAttributes::default()
        });
    }
    let rules = Rules {
        strategy: Single,
        ..Rules::default()
    };
    assert_eq!(
        resources(&gpus, &rules).warnings,
        [Warning::Single(Invalid::SeveralProfiles(vec![
            "1g.5gb".to_owned()
        ]))]
    );
}

#[rstest]
#[case("- ,", Mixed, "gpu: GPU-0", Warning::EmptyGpu { gpu: "GPU-1".to_owned() })]
#[case("- 1g.5gb", NoMig, "gpu: GPU-0 GPU-1", Warning::WholeInMigMode { gpu: "GPU-1".to_owned() })]
#[case(
    "- 1c.3g.20gb",
    Mixed,
    "gpu: GPU-0",
    Warning::NoName { device: "MIG-1-0".to_owned(), what: "1c.3g.20gb".to_owned() }
)]
fn the_rest_is_offered(
    #[case] gpus: &str,
    #[case] strategy: MigStrategy,
    #[case] wanted: &str,
    #[case] warning: Warning,
) {
    let offer = offer(gpus, strategy, "");
    assert_eq!(
        (shown(&offer).as_str(), offer.warnings),
        (wanted, vec![warning])
    );
}

#[test]
fn a_name_per_model() {
    let file = "resources: {gpus: [{pattern: '*A100*', name: a100}, {pattern: '*', name: gpu}]}";
    assert_eq!(
        shown(&offer("- 1g.5gb -", Mixed, file)),
        "a100: GPU-0\ngpu: GPU-2\nmig-1g.5gb: MIG-1-0"
    );
}

#[test]
fn a_name_for_compute_instances_that_share() {
    let file = "resources: {mig: [{pattern: '1c.*', name: sliver}]}";
    let offer = offer("1c.3g.20gb,1g.5gb", Mixed, file);
    assert_eq!(shown(&offer), "sliver: MIG-0-0");
    assert_eq!(
        offer.warnings,
        [Warning::NoName {
            device: "MIG-0-1".to_owned(),
            what: "1g.5gb".to_owned()
        }]
    );
}

#[rstest]
// One number for all.
#[case(
    "{resources: [{name: gpu, replicas: 2}]}",
    "gpu: GPU-0::0 GPU-0::1 GPU-2::0 GPU-2::1\nmig-1g.5gb: MIG-1-0"
)]
// Renamed by default.
#[case(
    "{renameByDefault: true, resources: [{name: mig-1g.5gb, replicas: 2}]}",
    "gpu: GPU-0 GPU-2\nmig-1g.5gb.shared: MIG-1-0::0 MIG-1-0::1"
)]
// Some devices, under a name of their own.
#[case(
    "{resources: [{name: gpu, replicas: 2, devices: [2], rename: slice}]}",
    "gpu: GPU-0\nmig-1g.5gb: MIG-1-0\nslice: GPU-2::0 GPU-2::1"
)]
// Some devices, under the same name: shared and whole ones side by side.
#[case(
    "{resources: [{name: gpu, replicas: 2, devices: 1}]}",
    "gpu: GPU-0::0 GPU-0::1 GPU-2\nmig-1g.5gb: MIG-1-0"
)]
// Several entries: replicas per model.
#[case(
    "{resources: [{name: gpu, replicas: 3, devices: ['*T4']}, {name: gpu, replicas: 2}]}",
    "gpu: GPU-0::0 GPU-0::1 GPU-2::0 GPU-2::1 GPU-2::2\nmig-1g.5gb: MIG-1-0"
)]
#[case(
    "{resources: [{name: mig-1g.5gb, replicas: 2, devices: ['1:0']}]}",
    "gpu: GPU-0 GPU-2\nmig-1g.5gb: MIG-1-0::0 MIG-1-0::1"
)]
fn shares(#[case] sharing: &str, #[case] wanted: &str) {
    let offer = offer(
        "- 1g.5gb -",
        Mixed,
        &format!("sharing: {{timeSlicing: {sharing}}}"),
    );
    assert_eq!((shown(&offer).as_str(), offer.warnings), (wanted, vec![]));
}

#[test]
fn mps_leaves_mig_devices_whole() {
    let offer = offer(
        "1g.5gb,1g.5gb -",
        Mixed,
        "sharing: {mps: {renameByDefault: true, resources: [{name: gpu, replicas: 2}, {name: mig-1g.5gb, replicas: 2}]}}",
    );
    assert_eq!(
        shown(&offer),
        "gpu.shared: GPU-1::0 GPU-1::1\nmig-1g.5gb: MIG-0-0 MIG-0-1"
    );
    assert_eq!(
        offer.warnings,
        [Warning::MpsOnMig {
            resource: "mig-1g.5gb".parse().unwrap()
        }]
    );
}

#[test]
fn no_list_longer_than_the_kubelet_takes() {
    let file = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4000000000}]}}";
    let offer = offer("- -", NoMig, file);
    let shares: Vec<_> = offer.resources[0]
        .devices
        .iter()
        .map(|one| one.shares)
        .collect();
    assert_eq!(shares, [Some(20_000), Some(20_000)]);
    assert_eq!(
        offer.warnings,
        [Warning::TooManyShares {
            resource: "gpu".parse().unwrap(),
            offered: 20_000,
            configured: 4_000_000_000
        }]
    );
}

#[rstest]
#[case("{exclude: [0]}", Mixed, "gpu: GPU-2\nmig-1g.5gb: MIG-1-0")]
#[case("{exclude: ['1:0']}", Mixed, "gpu: GPU-0 GPU-2")]
#[case("{include: ['0000:02:00.0']}", Mixed, "mig-1g.5gb: MIG-1-0")]
#[case("{include: ['*A100*']}", Mixed, "gpu: GPU-0\nmig-1g.5gb: MIG-1-0")]
// Without the plain GPUs, strategy single becomes possible.
#[case("{include: [1]}", Single, "gpu: MIG-1-0")]
fn filters(#[case] devices: &str, #[case] strategy: MigStrategy, #[case] wanted: &str) {
    let offer = offer("- 1g.5gb -", strategy, &format!("devices: {devices}"));
    assert_eq!((shown(&offer).as_str(), offer.warnings), (wanted, vec![]));
}

#[rstest]
#[case("{exclude: ['*']}")]
#[case("{include: [7]}")]
fn a_node_of_which_nothing_is_left_is_told_of(#[case] devices: &str) {
    let offer = offer("- 1g.5gb -", Mixed, &format!("devices: {devices}"));
    assert_eq!(shown(&offer), "");
    assert_eq!(offer.warnings, [Warning::AllLeftOut { gpus: 3 }]);
    let none = resources(&[], &Rules::default());
    assert_eq!(none, Offer::default(), "a node without GPUs lacks nothing");
}

#[test]
fn a_device_knows_its_place() {
    let offer = offer("- - 1g.5gb,2g.10gb", Mixed, "");
    let device = &offer.resources[2].devices[0];
    assert_eq!(
        *device,
        Device {
            uuid: "MIG-2-1".to_owned(),
            gpu_index: 2,
            gpu_uuid: "GPU-2".to_owned(),
            numa_node: Some(1),
            mig: Some(MigPlace {
                index: 1,
                gpu_instance: 8,
                compute_instance: 0
            }),
            shares: None,
        }
    );
    assert_eq!(device.index(), "2:1");
    assert_eq!(offer.resources[0].devices[1].index(), "1");
}

/// 8 × 7 instances, as in the facts' example B and C.
#[test]
fn a_node_cut_small() {
    let gpus = vec![["1g.10gb"; 7].join(","); 8].join(" ");
    for (strategy, name) in [
        (Single, "nvidia.com/gpu"),
        (Mixed, "nvidia.com/mig-1g.10gb"),
    ] {
        let offer = offer(&gpus, strategy, "");
        let counts: Vec<_> = offer
            .resources
            .iter()
            .map(|resource| (resource.name.as_str(), resource.devices.len()))
            .collect();
        assert_eq!(counts, [(name, 56)]);
    }
}

proptest! {
    /// Whatever the layout: no device under two names, none invented, and every id once.
    #[test]
    fn each_device_once(
        gpus in proptest::collection::vec(prop_oneof![Just("-"), Just(","), Just("1g.5gb,1g.5gb"), Just("1c.3g.20gb,2g.10gb")], 1..6),
        strategy in prop_oneof![Just(NoMig), Just(Single), Just(Mixed)],
        replicas in 2_u32..5,
    ) {
        let gpus = gpus.join(" ");
        let file = format!("sharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: {replicas}}}]}}}}");
        let offer = offer(&gpus, strategy, &file);
        let ids: Vec<String> = offer.resources.iter().flat_map(|resource| &resource.devices)
            .flat_map(Device::ids).map(|id| id.to_string()).collect();
        let unique: std::collections::BTreeSet<_> = ids.iter().collect();
        prop_assert_eq!(unique.len(), ids.len());
        let known: Vec<String> = node(&gpus).into_iter()
            .flat_map(|gpu| gpu.mig.into_iter().map(|mig| mig.uuid).chain([gpu.uuid])).collect();
        for id in &ids {
            let parsed = DeviceId::parse(id);
            prop_assert!(parsed.is_some_and(|id| known.iter().any(|uuid| uuid == id.uuid)), "{}", id);
        }
    }
}
