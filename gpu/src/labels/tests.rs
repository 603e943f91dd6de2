//! The worked examples of feature discovery, the edge cases of each rule, and that every value is legal.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::Engines;

fn a100() -> Gpu {
    Gpu {
        name: "NVIDIA A100-SXM4-40GB".to_owned(),
        memory_bytes: Some(40960 << 20),
        compute_capability: Some((8, 0)),
        pci_class: Some(CLASS_COMPUTE),
        mig: Some(Mig::default()),
        fabric: None,
    }
}

fn h100(devices: &[(&MigDevice, usize)]) -> Gpu {
    let devices: Vec<MigDevice> = devices
        .iter()
        .flat_map(|&(device, n)| std::iter::repeat_n(device.clone(), n))
        .collect();
    Gpu {
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        memory_bytes: Some(81559 << 20),
        compute_capability: Some((9, 0)),
        pci_class: Some(CLASS_COMPUTE),
        mig: Some(Mig {
            enabled: true,
            devices,
        }),
        fabric: None,
    }
}

fn plain(mut gpu: Gpu) -> Gpu {
    gpu.mig = Some(Mig::default());
    gpu
}

fn t4() -> Gpu {
    Gpu {
        name: "Tesla T4".to_owned(),
        memory_bytes: Some(15360 << 20),
        compute_capability: Some((7, 5)),
        pci_class: Some(CLASS_COMPUTE),
        mig: None,
        fabric: None,
    }
}

fn one_g() -> MigDevice {
    mig_device("1g.10gb", 9984, 16, 1)
}

fn three_g() -> MigDevice {
    mig_device("3g.40gb", 40448, 60, 3)
}

/// A MIG device whose engine and slice counts all equal its slices, as on H100.
fn mig_device(profile: &str, memory_mib: u64, multiprocessors: u32, slices: u32) -> MigDevice {
    MigDevice {
        profile: profile.to_owned(),
        attributes: Some(MigAttributes {
            memory_mib,
            multiprocessors,
            gpu_slices: slices,
            compute_slices: slices,
            engines: Engines {
                copy: slices,
                decoder: slices,
                encoder: 0,
                jpeg: slices,
                ofa: 0,
            },
        }),
    }
}

fn node(machine: &str, gpus: Vec<Gpu>) -> Node {
    Node {
        machine: Some(machine.to_owned()),
        driver: Some(Driver {
            version: "570.124.06".to_owned(),
            cuda: Some((12, 8)),
        }),
        gpus,
        vgpu: Some(Vgpu::Absent),
    }
}

fn rules(strategy: MigStrategy) -> Rules {
    Rules {
        strategy,
        sharing: Sharing::None,
        timestamp: Some(1_755_600_000),
    }
}

fn shared(replicas: &[(&str, u32)], rename_by_default: bool) -> SharedResources {
    let names = replicas.iter().map(|&(name, _)| name.to_owned());
    SharedResources {
        renamed: names.filter(|_| rename_by_default).collect(),
        replicas: replicas
            .iter()
            .map(|&(name, n)| (name.to_owned(), n))
            .collect(),
    }
}

/// What every node of the worked examples has.
const COMMON: &str = "\
nvidia.com/cuda.driver-version.full=570.124.06
nvidia.com/cuda.driver-version.major=570
nvidia.com/cuda.driver-version.minor=124
nvidia.com/cuda.driver-version.revision=06
nvidia.com/cuda.driver.major=570
nvidia.com/cuda.driver.minor=124
nvidia.com/cuda.driver.rev=06
nvidia.com/cuda.runtime-version.full=12.8
nvidia.com/cuda.runtime-version.major=12
nvidia.com/cuda.runtime-version.minor=8
nvidia.com/cuda.runtime.major=12
nvidia.com/cuda.runtime.minor=8
nvidia.com/gfd.timestamp=1755600000
nvidia.com/gpu.mode=compute
nvidia.com/mig.capable=true
nvidia.com/mps.capable=false
nvidia.com/vgpu.present=false
";

const A100_WHOLE: &str = "\
nvidia.com/gpu.compute.major=8
nvidia.com/gpu.compute.minor=0
nvidia.com/gpu.count=8
nvidia.com/gpu.family=ampere
nvidia.com/gpu.machine=DGXA100-920-23687-2530-000
nvidia.com/gpu.memory=40960
nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB
nvidia.com/gpu.replicas=1
nvidia.com/gpu.sharing-strategy=none
";

const H100_SINGLE: &str = "\
nvidia.com/gpu.compute.major=9
nvidia.com/gpu.compute.minor=0
nvidia.com/gpu.count=56
nvidia.com/gpu.engines.copy=1
nvidia.com/gpu.engines.decoder=1
nvidia.com/gpu.engines.encoder=0
nvidia.com/gpu.engines.jpeg=1
nvidia.com/gpu.engines.ofa=0
nvidia.com/gpu.family=hopper
nvidia.com/gpu.machine=DGXH100
nvidia.com/gpu.memory=9984
nvidia.com/gpu.multiprocessors=16
nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3-MIG-1g.10gb
nvidia.com/gpu.replicas=1
nvidia.com/gpu.sharing-strategy=none
nvidia.com/gpu.slices.ci=1
nvidia.com/gpu.slices.gi=1
nvidia.com/mig.strategy=single
";

const H100_MIXED: &str = "\
nvidia.com/gpu.compute.major=9
nvidia.com/gpu.compute.minor=0
nvidia.com/gpu.count=8
nvidia.com/gpu.family=hopper
nvidia.com/gpu.machine=DGXH100
nvidia.com/gpu.memory=81559
nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3
nvidia.com/gpu.replicas=0
nvidia.com/gpu.sharing-strategy=none
nvidia.com/mig-1g.10gb.count=28
nvidia.com/mig-1g.10gb.engines.copy=1
nvidia.com/mig-1g.10gb.engines.decoder=1
nvidia.com/mig-1g.10gb.engines.encoder=0
nvidia.com/mig-1g.10gb.engines.jpeg=1
nvidia.com/mig-1g.10gb.engines.ofa=0
nvidia.com/mig-1g.10gb.memory=9984
nvidia.com/mig-1g.10gb.multiprocessors=16
nvidia.com/mig-1g.10gb.product=NVIDIA-H100-80GB-HBM3-MIG-1g.10gb
nvidia.com/mig-1g.10gb.replicas=1
nvidia.com/mig-1g.10gb.sharing-strategy=none
nvidia.com/mig-1g.10gb.slices.ci=1
nvidia.com/mig-1g.10gb.slices.gi=1
nvidia.com/mig-3g.40gb.count=8
nvidia.com/mig-3g.40gb.engines.copy=3
nvidia.com/mig-3g.40gb.engines.decoder=3
nvidia.com/mig-3g.40gb.engines.encoder=0
nvidia.com/mig-3g.40gb.engines.jpeg=3
nvidia.com/mig-3g.40gb.engines.ofa=0
nvidia.com/mig-3g.40gb.memory=40448
nvidia.com/mig-3g.40gb.multiprocessors=60
nvidia.com/mig-3g.40gb.product=NVIDIA-H100-80GB-HBM3-MIG-3g.40gb
nvidia.com/mig-3g.40gb.replicas=1
nvidia.com/mig-3g.40gb.sharing-strategy=none
nvidia.com/mig-3g.40gb.slices.ci=3
nvidia.com/mig-3g.40gb.slices.gi=3
nvidia.com/mig.strategy=mixed
";

#[track_caller]
fn check(node: &Node, rules: &Rules, own: &str) {
    let mut lines: Vec<&str> = COMMON.lines().chain(own.lines()).collect();
    lines.sort_unstable();
    let wanted: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let got = labels(node, rules);
    assert_eq!(got.to_feature_file(), wanted);
    assert_eq!(got.warnings, []);
}

fn value<'a>(labels: &'a Labels, key: &str) -> Option<&'a str> {
    labels
        .labels
        .get(&format!("nvidia.com/{key}"))
        .map(String::as_str)
}

#[test]
fn eight_whole_a100() {
    check(
        &node("DGXA100 920-23687-2530-000\n", vec![a100(); 8]),
        &rules(MigStrategy::None),
        A100_WHOLE,
    );
}

#[test]
fn eight_h100_cut_alike_under_single() {
    check(
        &node("DGXH100", vec![h100(&[(&one_g(), 7)]); 8]),
        &rules(MigStrategy::Single),
        H100_SINGLE,
    );
}

#[test]
fn eight_h100_cut_in_two_ways_under_mixed() {
    let mut gpus = vec![h100(&[(&one_g(), 7)]); 4];
    gpus.extend(vec![h100(&[(&three_g(), 2)]); 4]);
    check(
        &node("DGXH100", gpus),
        &rules(MigStrategy::Mixed),
        H100_MIXED,
    );
}

#[rstest]
#[case::renamed(true, "NVIDIA-A100-SXM4-40GB")]
#[case::not_renamed(false, "NVIDIA-A100-SXM4-40GB-SHARED")]
fn time_slicing(#[case] rename: bool, #[case] product: &str) {
    let sharing = Sharing::TimeSlicing(shared(&[("nvidia.com/gpu", 4)], rename));
    let rules = Rules {
        sharing,
        ..rules(MigStrategy::None)
    };
    let own = A100_WHOLE
        .replace(
            "gpu.product=NVIDIA-A100-SXM4-40GB",
            &format!("gpu.product={product}"),
        )
        .replace("gpu.replicas=1", "gpu.replicas=4")
        .replace(
            "gpu.sharing-strategy=none",
            "gpu.sharing-strategy=time-slicing",
        );
    check(
        &node("DGXA100-920-23687-2530-000", vec![a100(); 8]),
        &rules,
        &own,
    );
}

#[test]
fn mps() {
    let sharing = Sharing::Mps(shared(&[("nvidia.com/gpu", 4)], false));
    let rules = Rules {
        sharing,
        ..rules(MigStrategy::None)
    };
    let got = labels(&node("m", vec![a100(); 8]), &rules);
    assert_eq!(value(&got, "mps.capable"), Some("true"));
    assert_eq!(value(&got, "gpu.sharing-strategy"), Some("mps"));
    assert_eq!(
        value(&got, "gpu.product"),
        Some("NVIDIA-A100-SXM4-40GB-SHARED")
    );

    let got = labels(&node("m", vec![a100(), h100(&[(&one_g(), 1)])]), &rules);
    assert_eq!(value(&got, "mps.capable"), Some("false"));
    assert!(got.warnings.contains(&Warning::MpsWithMig));
}

#[test]
fn shared_mig_devices() {
    let sharing = Sharing::TimeSlicing(shared(
        &[("nvidia.com/mig-1g.10gb", 3), ("nvidia.com/gpu", 2)],
        false,
    ));
    let gpus = vec![h100(&[(&one_g(), 7)])];
    let mixed = labels(
        &node("m", gpus.clone()),
        &Rules {
            sharing: sharing.clone(),
            ..rules(MigStrategy::Mixed)
        },
    );
    assert_eq!(value(&mixed, "mig-1g.10gb.replicas"), Some("3"));
    assert_eq!(
        value(&mixed, "mig-1g.10gb.sharing-strategy"),
        Some("time-slicing")
    );
    assert_eq!(
        value(&mixed, "mig-1g.10gb.product"),
        Some("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED")
    );
    assert_eq!(value(&mixed, "gpu.replicas"), Some("0"));
    // Under single, MIG devices are offered as nvidia.com/gpu: that entry counts.
    let single = labels(
        &node("m", gpus),
        &Rules {
            sharing,
            ..rules(MigStrategy::Single)
        },
    );
    assert_eq!(value(&single, "gpu.replicas"), Some("2"));
    assert_eq!(
        value(&single, "gpu.product"),
        Some("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED")
    );
}

#[rstest]
#[case::several_profiles(vec![h100(&[(&one_g(), 1), (&three_g(), 2)])],
    Invalid::SeveralProfiles(vec!["1g.10gb".to_owned(), "3g.40gb".to_owned()]))]
#[case::some_whole(vec![h100(&[(&one_g(), 7)]), plain(h100(&[]))], Invalid::SomeNotInMigMode)]
#[case::one_empty(vec![h100(&[(&one_g(), 7)]), h100(&[])], Invalid::EmptyGpu)]
fn single_that_cannot_be(#[case] gpus: Vec<Gpu>, #[case] reason: Invalid) {
    let got = labels(&node("m", gpus), &rules(MigStrategy::Single));
    assert_eq!(got.warnings, [Warning::SingleStrategy(reason)]);
    for (key, wanted) in [
        ("gpu.product", "NVIDIA-H100-80GB-HBM3-MIG-INVALID"),
        ("gpu.count", "0"),
        ("gpu.replicas", "0"),
        ("gpu.sharing-strategy", ""),
        ("gpu.memory", "0"),
        ("gpu.family", "hopper"),
        ("gpu.compute.major", "9"),
        ("mig.capable", "true"),
        ("mig.strategy", "single"),
    ] {
        assert_eq!(value(&got, key), Some(wanted), "{key}");
    }
    assert_eq!(value(&got, "gpu.slices.gi"), None);
}

#[test]
fn strategies_without_mig_mode_only_name_themselves() {
    for strategy in [MigStrategy::Single, MigStrategy::Mixed] {
        let own = format!("{A100_WHOLE}nvidia.com/mig.strategy={strategy}\n");
        check(
            &node("DGXA100-920-23687-2530-000", vec![a100(); 8]),
            &rules(strategy),
            &own,
        );
    }
}

#[test]
fn mig_mode_under_none_is_a_whole_gpu_that_offers_nothing() {
    let got = labels(
        &node("m", vec![h100(&[(&one_g(), 7)]); 2]),
        &rules(MigStrategy::None),
    );
    assert_eq!(value(&got, "gpu.count"), Some("2"));
    assert_eq!(value(&got, "gpu.replicas"), Some("0"));
    assert_eq!(value(&got, "gpu.product"), Some("NVIDIA-H100-80GB-HBM3"));
    assert_eq!(value(&got, "mig.strategy"), None);
}

#[test]
fn media_engine_and_compute_slice_profiles_in_keys() {
    let media = mig_device("1g.10gb+me", 9984, 16, 1);
    let part = mig_device("1c.3g.40gb", 40448, 20, 3);
    let got = labels(
        &node("m", vec![h100(&[(&media, 1), (&part, 3)])]),
        &rules(MigStrategy::Mixed),
    );
    assert_eq!(value(&got, "mig-1g.10gb.me.count"), Some("1"));
    assert_eq!(
        value(&got, "mig-1g.10gb.me.product"),
        Some("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me")
    );
    assert_eq!(value(&got, "mig-1c.3g.40gb.count"), Some("3"));
}

#[rstest]
// The most numerous wins, wherever it stands.
#[case(vec![t4(), a100(), a100()], "NVIDIA-A100-SXM4-40GB", "2")]
// Equal numbers: the lowest index.
#[case(vec![t4(), a100()], "Tesla-T4", "1")]
#[case(vec![a100(), t4()], "NVIDIA-A100-SXM4-40GB", "1")]
// GPUs outside MIG mode are what nvidia.com/gpu offers, however few.
#[case(vec![h100(&[]), h100(&[]), t4()], "Tesla-T4", "1")]
fn several_models(#[case] gpus: Vec<Gpu>, #[case] product: &str, #[case] count: &str) {
    let got = labels(&node("m", gpus), &rules(MigStrategy::None));
    assert_eq!(value(&got, "gpu.product"), Some(product));
    assert_eq!(value(&got, "gpu.count"), Some(count));
    assert!(
        matches!(&got.warnings[..], [Warning::SeveralModels { others, .. }] if others.len() == 1)
    );
}

#[test]
fn a_node_without_gpus_has_two_labels() {
    let got = labels(
        &Node {
            gpus: Vec::new(),
            ..node("m", Vec::new())
        },
        &rules(MigStrategy::Mixed),
    );
    assert_eq!(
        got.to_feature_file(),
        "nvidia.com/gfd.timestamp=1755600000\nnvidia.com/vgpu.present=false\n"
    );
}

#[test]
fn what_is_not_known_is_left_out() {
    let gpu = Gpu {
        name: "Orin".to_owned(),
        ..Gpu::default()
    };
    let node = Node {
        gpus: vec![gpu],
        ..Node::default()
    };
    let got = labels(
        &node,
        &Rules {
            timestamp: None,
            ..rules(MigStrategy::None)
        },
    );
    assert_eq!(
        got.to_feature_file(),
        "nvidia.com/gpu.count=1\nnvidia.com/gpu.machine=unknown\nnvidia.com/gpu.mode=unknown\n\
         nvidia.com/gpu.product=Orin\nnvidia.com/gpu.replicas=1\nnvidia.com/gpu.sharing-strategy=none\n\
         nvidia.com/mig.capable=false\nnvidia.com/mps.capable=false\n"
    );
}

#[rstest]
#[case("535.54", Some(("535", "54", "")), false)]
#[case("570.124.06", Some(("570", "124", "06")), false)]
#[case("unknown", None, true)]
#[case("1.2.3.4", None, true)]
fn driver_versions(
    #[case] version: &str,
    #[case] parts: Option<(&str, &str, &str)>,
    #[case] warns: bool,
) {
    let driver = Some(Driver {
        version: version.to_owned(),
        cuda: None,
    });
    let got = labels(
        &Node {
            driver,
            ..node("m", vec![t4()])
        },
        &rules(MigStrategy::None),
    );
    assert_eq!(value(&got, "cuda.driver-version.full"), Some(version));
    assert_eq!(value(&got, "cuda.driver.major"), parts.map(|p| p.0));
    assert_eq!(value(&got, "cuda.driver-version.minor"), parts.map(|p| p.1));
    assert_eq!(value(&got, "cuda.driver.rev"), parts.map(|p| p.2));
    assert_eq!(value(&got, "cuda.runtime.major"), None);
    assert_eq!(got.warnings.len(), usize::from(warns));
}

#[rstest]
#[case(&[Some(CLASS_COMPUTE), Some(CLASS_COMPUTE)], "compute")]
#[case(&[Some(CLASS_GRAPHICS)], "graphics")]
#[case(&[Some(CLASS_GRAPHICS), Some(CLASS_COMPUTE)], "unknown")]
#[case(&[Some(CLASS_COMPUTE), None], "unknown")]
fn modes(#[case] classes: &[Option<u32>], #[case] wanted: &str) {
    let gpus = classes
        .iter()
        .map(|&pci_class| Gpu { pci_class, ..t4() })
        .collect();
    assert_eq!(
        value(
            &labels(&node("m", gpus), &rules(MigStrategy::None)),
            "gpu.mode"
        ),
        Some(wanted)
    );
}

#[test]
fn cliques() {
    let cluster: [u8; 16] = std::array::from_fn(|i| u8::try_from(i).unwrap());
    let member = |cluster, clique| Gpu {
        fabric: Some(Fabric { cluster, clique }),
        ..t4()
    };
    let of = |gpus| labels(&node("m", gpus), &rules(MigStrategy::None));
    let got = of(vec![member(cluster, 7), t4(), member(cluster, 7)]);
    assert_eq!(
        value(&got, "gpu.clique"),
        Some("00010203-0405-0607-0809-0a0b0c0d0e0f.7")
    );
    let got = of(vec![member(cluster, 7), member(cluster, 8)]);
    assert_eq!(value(&got, "gpu.clique"), None);
    assert_eq!(got.warnings, [Warning::CliquesDiffer]);
    assert_eq!(value(&of(vec![member([0; 16], 0)]), "gpu.clique"), None);
}

#[test]
fn a_vgpu_guest() {
    let vgpu = Some(Vgpu::Present {
        host_driver_version: Some("570.124.03".to_owned()),
        host_driver_branch: Some("r570_00".to_owned()),
    });
    let got = labels(
        &Node {
            vgpu,
            ..node("m", vec![t4()])
        },
        &rules(MigStrategy::None),
    );
    assert_eq!(value(&got, "vgpu.present"), Some("true"));
    assert_eq!(value(&got, "vgpu.host-driver-version"), Some("570.124.03"));
    assert_eq!(value(&got, "vgpu.host-driver-branch"), Some("r570_00"));
}

proptest! {
    /// Whatever names the driver and the firmware give, Kubernetes takes every value.
    #[test]
    fn values_are_legal(
        names in prop::collection::vec("\\PC{0,80}", 1..4),
        machine in "\\PC{0,80}",
        version in "\\PC{0,20}",
        strategy in prop::sample::select(vec![MigStrategy::None, MigStrategy::Single, MigStrategy::Mixed]),
        mig in any::<bool>(),
    ) {
        let gpus = names.into_iter().map(|name| Gpu { name, ..if mig { h100(&[(&one_g(), 2)]) } else { t4() } });
        let mut node = node(&machine, gpus.collect());
        node.driver = Some(Driver { version, cuda: Some((12, 8)) });
        for (key, value) in labels(&node, &rules(strategy)).labels {
            prop_assert!(is_legal_value(&value), "{}={}", key, value);
        }
    }
}
