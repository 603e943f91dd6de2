//! Whatever the hardware does: what the kubelet holds is what there is, and no device is given twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use sim_kubelet::Admitted;
use sim_nvml::model::health::EccError;

use crate::rig::{Rig, Setup};

const GPUS: usize = 3;

/// From the last thing that happens to a list that is right, as the issue asks; and what a busy machine may take longer.
const QUIET: Duration = Duration::from_secs(2);
const BUSY: Duration = Duration::from_secs(58);

/// What happens to the hardware, or is asked of the kubelet.
#[derive(Clone, Debug)]
enum Step {
    Lose(usize),
    Reset(usize),
    /// An error that only a reset mends.
    Fault(usize),
    /// Cut in one of a few ways.
    Cut(usize, usize),
    Unload,
    Load,
    /// A pod asks for so many of one of the resources.
    Admit(usize, usize),
    /// The oldest pod ends.
    End,
    Kubelet,
    Wait(u64),
}

const LAYOUTS: [&str; 3] = [
    "mig-enabled: false",
    "mig-enabled: true, mig-devices: {1g.10gb: 7}",
    "mig-enabled: true, mig-devices: {1g.10gb: 2, 3g.40gb: 1}",
];

const RESOURCES: [&str; 3] = [
    "nvidia.com/gpu",
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/mig-3g.40gb",
];

fn step() -> impl Strategy<Value = Step> {
    let gpu = 0..GPUS;
    prop_oneof![
        2 => gpu.clone().prop_map(Step::Lose),
        2 => gpu.clone().prop_map(Step::Reset),
        2 => gpu.clone().prop_map(Step::Fault),
        4 => (gpu, 0..LAYOUTS.len()).prop_map(|(gpu, layout)| Step::Cut(gpu, layout)),
        1 => Just(Step::Unload),
        2 => Just(Step::Load),
        6 => (0..RESOURCES.len(), 1_usize..3).prop_map(|(resource, count)| Step::Admit(resource, count)),
        2 => Just(Step::End),
        1 => Just(Step::Kubelet),
        3 => (0_u64..800).prop_map(Step::Wait),
    ]
}

/// A device as a pod has it: its GPU, and its UUID when it is a part of that.
type Place = (usize, Option<String>);

/// What the test knows beside the simulated node.
#[derive(Default)]
struct Known {
    loaded: bool,
    /// GPUs with a fault that needs a reset.
    faulty: BTreeSet<usize>,
    pods: BTreeMap<usize, Vec<Place>>,
    next: usize,
}

/// UUIDs of the GPU's devices as it is cut now.
fn devices(rig: &Rig, gpu: usize) -> Vec<String> {
    let state = rig.node.state().unwrap();
    let gpu = &state.gpus[gpu];
    if !gpu.mig.current {
        return vec![gpu.uuid.clone()];
    }
    let instances = gpu.mig.instances.iter();
    let of = |instance| move |compute| gpu.mig_uuid(instance, compute);
    instances
        .flat_map(|instance| instance.compute.iter().map(of(instance)))
        .collect()
}

fn lost(rig: &Rig, gpu: usize) -> bool {
    rig.node.state().unwrap().gpus[gpu].health.lost
}

async fn take(rig: &mut Rig, known: &mut Known, step: Step) {
    match step {
        Step::Lose(gpu) if known.loaded => rig.node.lose(gpu).unwrap(),
        // Refused while somebody has it open; then it stays as it was.
        Step::Reset(gpu) if known.loaded && rig.node.reset(gpu).is_ok() => {
            known.faulty.remove(&gpu);
        }
        Step::Fault(gpu) if known.loaded && !lost(rig, gpu) => {
            // An event that comes while nobody listens is lost: after the driver was loaded, or the GPU reset.
            settles(rig, known).await;
            rig.listened_to().await;
            rig.node.ecc(gpu, EccError::Dbe, 1).unwrap();
            known.faulty.insert(gpu);
            settles(rig, known).await;
            counted(rig, gpu).await;
        }
        Step::Cut(gpu, layout) if known.loaded && !lost(rig, gpu) => {
            rig.cut(&format!("{{devices: [{gpu}], {}}}", LAYOUTS[layout]))
                .await;
        }
        Step::Unload if known.loaded => {
            // The library is open, or it would be opened meanwhile and not notice.
            driver_is(rig, true).await;
            known.loaded = rig.node.unload_driver().is_err();
        }
        Step::Load if !known.loaded => {
            // No driver is loaded under a library that is open, and nobody would notice.
            driver_is(rig, false).await;
            rig.node.load_driver().unwrap();
            known.loaded = true;
            known.faulty.clear();
        }
        Step::Admit(resource, count) => {
            let pod = known.next;
            known.next += 1;
            let resource = RESOURCES[resource];
            if let Ok(given) = rig
                .kubelet()
                .admit(&format!("pod-{pod}"), resource, count)
                .await
            {
                let places = places(rig, &given);
                for place in &places {
                    not_held(known, place);
                }
                known.pods.insert(pod, places);
            }
        }
        Step::End => {
            if let Some((pod, _)) = known.pods.pop_first() {
                rig.pods.remove(&format!("pod-{pod}"));
            }
        }
        Step::Kubelet => rig.start_kubelet(),
        Step::Wait(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
        _ => {}
    }
}

/// Waits until the plugin has a driver, or has none.
async fn driver_is(rig: &Rig, up: bool) {
    let series = format!("lathe_device_plugin_driver_up {}\n", u8::from(up));
    rig.until_get("/metrics", |_, page| page.contains(&series))
        .await;
}

/// Waits until the plugin has seen the memory errors of a faulty GPU: a reset, or another life of the driver, is known by their
/// being counted anew. What it sees it has taken in when it asks again.
async fn counted(rig: &Rig, gpu: usize) {
    let device = format!("gpu{gpu}");
    rig.until_traced("its errors are counted", |node| {
        let asked = node.trace().unwrap().into_iter().filter(|call| {
            call.symbol == "nvmlDeviceGetTotalEccErrors" && call.args["device"] == *device
        });
        asked.count() >= 2
    })
    .await;
}

fn places(rig: &Rig, given: &Admitted) -> Vec<Place> {
    let place = |id: &String| {
        // The hardware may have changed since; a device that is gone is nobody's.
        let gpu = (0..GPUS).find(|gpu| rig.uuid(*gpu) == *id || devices(rig, *gpu).contains(id))?;
        Some((gpu, (rig.uuid(gpu) != *id).then(|| id.clone())))
    };
    given.ids.iter().filter_map(place).collect()
}

/// No pod that runs has the device, a part of it, or the GPU that it is a part of.
fn not_held(known: &Known, (gpu, part): &Place) {
    for (pod, places) in &known.pods {
        for (other, other_part) in places.iter().filter(|(other, _)| other == gpu) {
            let apart = matches!((part, other_part), (Some(a), Some(b)) if a != b);
            assert!(
                apart,
                "pod {pod} has {other}:{other_part:?}, and {gpu}:{part:?} was given again"
            );
        }
    }
}

/// Ids that should be healthy.
fn usable(rig: &Rig, known: &Known) -> BTreeSet<String> {
    let usable =
        (0..GPUS).filter(|gpu| known.loaded && !lost(rig, *gpu) && !known.faulty.contains(gpu));
    usable.flat_map(|gpu| devices(rig, gpu)).collect()
}

fn held_healthy(rig: &Rig) -> BTreeSet<String> {
    let devices = rig.kubelet().devices();
    let lists = devices.values().flat_map(|devices| devices.list.clone());
    lists
        .filter(|(_, healthy)| *healthy)
        .map(|(id, _)| id)
        .collect()
}

/// A node whose GPUs are asked every second how they are, so that a reset is seen soon: no event tells of one.
async fn prepared() -> Rig {
    let setup = Setup::of("h100-sxm5-80gb", GPUS).file("flags: {migStrategy: mixed}");
    let setup = setup.config(|config| config.health_policy = Some(config.root.join("policy.yaml")));
    let mut rig = setup.prepare().await;
    std::fs::write(
        rig.node.root().join("policy.yaml"),
        "version: v1\ninterval: 1s\n",
    )
    .unwrap();
    rig.start_kubelet();
    rig.start_plugin().await.unwrap();
    rig
}

async fn settles(rig: &Rig, known: &Known) {
    let wanted = usable(rig, known);
    let begun = std::time::Instant::now();
    while held_healthy(rig) != wanted {
        let held = held_healthy(rig);
        assert!(
            begun.elapsed() < QUIET + BUSY,
            "the kubelet holds {held:?}, and there is {wanted:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_kubelet_holds_what_there_is(steps in proptest::collection::vec(step(), 1..20)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let mut rig = prepared().await;
            rig.until(&format!("gpu {GPUS}")).await;
            let mut known = Known { loaded: true, ..Known::default() };
            for step in steps {
                take(&mut rig, &mut known, step).await;
            }
            settles(&rig, &known).await;
            rig.stop_plugin().await.unwrap();
        });
    }
}
