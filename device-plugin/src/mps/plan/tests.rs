//! Which daemons and limits a configuration asks for.

#![allow(clippy::unwrap_used, clippy::panic)]

use configuration::plugin::PluginFile;
use gpu::labels::MigStrategy;
use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::resources::{Gpu, MigDevice, Rules, resources};

/// 80 GiB.
const H100: GpuFacts = GpuFacts {
    memory: Some(80 << 30),
    compute_capability: Some((9, 0)),
    mig_mode: false,
};

fn gpu(index: u32) -> Gpu {
    Gpu {
        index,
        uuid: format!("GPU-{index}"),
        model: "NVIDIA H100 80GB HBM3".to_owned(),
        ..Gpu::default()
    }
}

fn planned(gpus: &[Gpu], sharing: &str, facts: impl Fn(&str) -> GpuFacts) -> (Offer, Plan) {
    let file = format!("version: v1\nsharing:\n{sharing}");
    let (file, _) = PluginFile::parse("f", file.as_bytes()).unwrap();
    let rules = Rules::new(Some(MigStrategy::Mixed), file);
    let offer = resources(gpus, &rules);
    let plan = plan(&offer, rules.sharing.as_ref(), facts);
    (offer, plan)
}

/// `resource[percent]: gpu*replicas@MiB …`, one line per daemon.
fn shown(plan: &Plan) -> String {
    let lines = plan.daemons.iter().map(|(name, daemon)| {
        let gpus = daemon.gpus.iter().map(|gpu| {
            let memory = gpu.memory_mib.map_or("-".to_owned(), |mib| mib.to_string());
            format!("{}*{}@{memory}", gpu.uuid, gpu.replicas)
        });
        let gpus = gpus.collect::<Vec<_>>().join(" ");
        format!("{}[{}]: {gpus}", name.base(), daemon.thread_percentage())
    });
    lines.collect::<Vec<_>>().join("\n")
}

const FOUR: &str = "  mps:\n    resources:\n    - {name: gpu, replicas: 4}";

// 80 GiB = 81920 MiB; a quarter is 20480, a third 27306.67, a seventh 11702.86. 100/3 = 33, 100/7 = 14.
#[rstest]
#[case(FOUR, "gpu[25]: GPU-0*4@20480 GPU-1*4@20480")]
#[case(
    "  mps:\n    resources:\n    - {name: gpu, replicas: 3}",
    "gpu[33]: GPU-0*3@27306 GPU-1*3@27306"
)]
#[case(
    "  mps:\n    renameByDefault: true\n    resources:\n    - {name: gpu, replicas: 7}",
    "gpu.shared[14]: GPU-0*7@11702 GPU-1*7@11702"
)]
#[case(
    "  mps:\n    resources:\n    - {name: gpu, replicas: 48}",
    "gpu[2]: GPU-0*48@1706 GPU-1*48@1706"
)]
// One of two GPUs: the other is offered whole, and no client of the daemon sees it.
#[case(
    "  mps:\n    resources:\n    - {name: gpu, replicas: 2, devices: [1]}",
    "gpu[50]: GPU-1*2@40960"
)]
// Replicas that differ: the default is the larger share.
#[case(
    "  mps:\n    resources:\n    - {name: gpu, replicas: 2, devices: [1]}\n    - {name: gpu, replicas: 4, devices: [0]}",
    "gpu[50]: GPU-0*4@20480 GPU-1*2@40960"
)]
// Two resources, two daemons.
#[case(
    "  mps:\n    resources:\n    - {name: gpu, rename: small, replicas: 8, devices: [1]}\n    - {name: gpu, replicas: 2}",
    "gpu[50]: GPU-0*2@40960\nsmall[12]: GPU-1*8@10240"
)]
#[case("  timeSlicing:\n    resources:\n    - {name: gpu, replicas: 4}", "")]
fn daemons(#[case] sharing: &str, #[case] wanted: &str) {
    let (_, plan) = planned(&[gpu(0), gpu(1)], sharing, |_| H100);
    assert_eq!(shown(&plan), wanted);
    assert_eq!(plan.refusals, []);
}

#[test]
fn without_sharing_there_is_none() {
    let offer = resources(&[gpu(0)], &Rules::default());
    assert_eq!(plan(&offer, None, |_| H100), Plan::default());
}

// 48 from 7.0 on, 16 before; a GPU that does not say is not refused on a guess.
#[rstest]
#[case(Some((9, 0)), 48, None)]
#[case(Some((9, 0)), 49, Some(48))]
#[case(Some((7, 5)), 48, None)]
#[case(Some((7, 0)), 48, None)]
#[case(Some((7, 0)), 49, Some(48))]
#[case(Some((6, 1)), 16, None)]
#[case(Some((6, 1)), 17, Some(16))]
#[case(None, 48, None)]
#[case(None, 49, Some(48))]
fn clients(
    #[case] compute_capability: Option<(u32, u32)>,
    #[case] replicas: u32,
    #[case] most: Option<u32>,
) {
    let sharing = format!("  mps:\n    resources:\n    - {{name: gpu, replicas: {replicas}}}");
    // The other GPU can do it: what is refused is refused alone.
    let facts = |uuid: &str| match uuid {
        "GPU-0" => GpuFacts {
            compute_capability,
            ..H100
        },
        _ => H100,
    };
    let (_, plan) = planned(&[gpu(0), gpu(1)], &sharing, facts);
    let refused: Vec<_> = plan
        .refusals
        .iter()
        .map(|one| match one.reason {
            Reason::Clients { most, .. } => (&*one.gpu, most),
            Reason::MigMode => panic!("{one}"),
        })
        .collect();
    let wanted: Vec<_> = match most {
        None => Vec::new(),
        Some(most) if replicas > 48 => vec![("GPU-0", most), ("GPU-1", 48)],
        Some(most) => vec![("GPU-0", most)],
    };
    assert_eq!(refused, wanted);
    let served = plan.daemons.values().flat_map(Daemon::uuids).count();
    assert_eq!(served + refused.len(), 2);
}

#[rstest]
#[case(
    Reason::Clients { replicas: 60, most: 48 },
    "nvidia.com/gpu: GPU-0 is not served, because MPS takes at most 48 clients on it and 60 replicas are configured: lower replicas to 48 or less"
)]
#[case(
    Reason::MigMode,
    "nvidia.com/gpu: GPU-0 is not served, because it is in MIG mode, in which MPS does not work: turn MIG off, or choose MIG strategy single or mixed"
)]
fn a_refusal_says_what_to_do(#[case] reason: Reason, #[case] wanted: &str) {
    let refusal = Refusal {
        resource: "gpu".parse().unwrap(),
        gpu: "GPU-0".to_owned(),
        reason,
    };
    assert_eq!(refusal.to_string(), wanted);
}

#[test]
fn a_gpu_in_mig_mode_that_is_offered_whole_is_refused() {
    let facts = |uuid: &str| GpuFacts {
        mig_mode: uuid == "GPU-1",
        ..H100
    };
    let (_, plan) = planned(&[gpu(0), gpu(1)], FOUR, facts);
    assert_eq!(shown(&plan), "gpu[25]: GPU-0*4@20480");
    assert_eq!(plan.refusals.len(), 1);
    assert_eq!(plan.refusals[0].reason, Reason::MigMode);
}

#[test]
fn memory_that_is_not_known_is_not_limited() {
    let (_, plan) = planned(&[gpu(0)], FOUR, |_| GpuFacts::default());
    assert_eq!(shown(&plan), "gpu[25]: GPU-0*4@-");
}

#[test]
fn mig_devices_have_no_daemon() {
    let mut cut = gpu(0);
    cut.mig_enabled = true;
    cut.mig = vec![MigDevice {
        index: 0,
        uuid: "MIG-0".to_owned(),
        gpu_instance: 1,
        compute_instance: 0,
        profile: "1g.10gb".parse().ok(),
        attributes: None,
    }];
    let sharing = "  mps:\n    resources:\n    - {name: gpu, replicas: 2}\n    - {name: mig-1g.10gb, replicas: 2}";
    let (offer, plan) = planned(&[cut, gpu(1)], sharing, |_| H100);
    assert_eq!(shown(&plan), "gpu[50]: GPU-1*2@40960");
    assert_eq!(offer.warnings.len(), 1);
}

#[rstest]
// GPU-0 has 4 replicas, GPU-1 has 2 and GPU-2 is not shared; the daemon's default is 50 %.
#[case(&[0], Some(25))]
#[case(&[1], None)]
#[case(&[2], None)]
#[case(&[0, 1], Some(25))]
#[case(&[], None)]
fn a_client_with_less_than_the_default_is_told(
    #[case] granted: &[usize],
    #[case] wanted: Option<u32>,
) {
    let sharing = "  mps:\n    resources:\n    - {name: gpu, replicas: 4, devices: [0]}\n    - {name: gpu, replicas: 2, devices: [1]}";
    let (offer, _) = planned(&[gpu(0), gpu(1), gpu(2)], sharing, |_| H100);
    let resource = &offer.resources[0];
    let granted = granted.iter().map(|&index| &resource.devices[index]);
    assert_eq!(client_percentage(resource, granted), wanted);
}

proptest! {
    /// All clients of a GPU together never exceed it, nor are they given nothing.
    #[test]
    fn shares_fit(replicas in 2_u32..=48, memory in 1_u64 << 30..1 << 40) {
        let sharing = format!("  mps:\n    resources:\n    - {{name: gpu, replicas: {replicas}}}");
        let facts = GpuFacts { memory: Some(memory), ..H100 };
        let (_, plan) = planned(&[gpu(0)], &sharing, |_| facts);
        let daemon = plan.daemons.values().next().unwrap();
        let mib = daemon.gpus[0].memory_mib.unwrap();
        prop_assert!((mib * u64::from(replicas)) << 20 <= memory);
        prop_assert!(((mib + 1) * u64::from(replicas)) << 20 > memory);
        let percentage = daemon.thread_percentage();
        prop_assert!((1..=50).contains(&percentage));
        prop_assert!(percentage * replicas <= 100);
    }
}
