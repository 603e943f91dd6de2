//! Which device an id means on the simulated node, and which device nodes belong to it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kubelet::pod_resources::{Limits, PodResourcesClient};

use crate::support::cluster::LIMIT;
use crate::support::host::Host;
use crate::support::install::Installed;
use crate::support::pods::bounded;

/// Those of the driver itself, which every container with a device gets.
const CONTROL: [&str; 4] = [
    "/dev/nvidia-modeset",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidiactl",
];

/// What one pod has and sees.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// Ids of its devices, as the kubelet tells.
    pub(super) ids: Vec<String>,
    /// The driver's device nodes in its container, sorted.
    pub(super) nodes: Vec<String>,
    /// The container's environment.
    pub(super) environment: BTreeMap<String, String>,
    /// Mount points in its container.
    pub(super) mounts: Vec<String>,
}

/// A GPU or MIG device.
pub(super) struct Device {
    /// NVML index of its GPU.
    pub(super) gpu: usize,
    minor: u32,
    /// Ids of GPU instance and compute instance.
    pub(super) mig: Option<(u32, u32)>,
}

/// The device that an id means, its share left out.
pub(super) fn find(lathe: &Installed, id: &str) -> Device {
    let uuid = id.split("::").next().unwrap();
    let state = lathe.hardware.state().unwrap();
    for (index, gpu) in state.gpus.iter().enumerate() {
        let device = |mig| Device {
            gpu: index,
            minor: gpu.minor,
            mig,
        };
        if gpu.uuid == uuid {
            return device(None);
        }
        for (instance, compute) in gpu.mig_devices() {
            if gpu.mig_uuid(instance, compute) == uuid {
                return device(Some((instance.id, compute.id)));
            }
        }
    }
    panic!("the node has no device {id}")
}

/// The device nodes of containers with these devices, sorted. A MIG device's capability nodes have the numbers that the driver
/// tells in `mig-minors`.
pub(super) fn nodes_of(lathe: &Installed, ids: &[String]) -> Vec<String> {
    let table = lathe
        .hardware
        .root()
        .join("proc/driver/nvidia-caps/mig-minors");
    let table = std::fs::read_to_string(table).unwrap();
    let capability = |key: String| {
        let number = table
            .lines()
            .find_map(|line| line.strip_prefix(&key)?.strip_prefix(' '))
            .unwrap_or_else(|| panic!("{key} is not in mig-minors"));
        format!("/dev/nvidia-caps/nvidia-cap{number}")
    };
    let mut nodes = BTreeSet::new();
    for id in ids {
        let device = find(lathe, id);
        nodes.extend(CONTROL.map(str::to_owned));
        nodes.insert(format!("/dev/nvidia{}", device.minor));
        if let Some((instance, compute)) = device.mig {
            let key = format!("gpu{}/gi{instance}", device.minor);
            nodes.insert(capability(format!("{key}/access")));
            nodes.insert(capability(format!("{key}/ci{compute}/access")));
        }
    }
    nodes.into_iter().collect()
}

/// Ids of the devices that the kubelet gave the pods of a namespace, sorted, by pod.
pub(super) async fn held(host: &Host, namespace: &str) -> BTreeMap<String, Vec<String>> {
    let pods = asked(host, async |client| client.list().await).await;
    let ours = pods.into_iter().filter(|pod| pod.namespace == namespace);
    ours.map(|pod| {
        let containers = pod.containers.into_iter();
        let devices = containers.flat_map(|container| container.devices);
        let mut ids: Vec<String> = devices.flat_map(|devices| devices.device_ids).collect();
        ids.sort();
        (pod.name, ids)
    })
    .collect()
}

/// Waits until the kubelet itself can give out so many devices of a resource: the Node's status lags, and after a start of the
/// kubelet it still says what the former one wrote.
pub(super) async fn kubelet_has(host: &Host, resource: &str, count: usize) -> Duration {
    let began = Instant::now();
    loop {
        let all = asked(host, async |client| client.allocatable().await).await;
        let ours = all.iter().filter(|one| one.resource_name == resource);
        let found: usize = ours.map(|one| one.device_ids.len()).sum();
        if found == count {
            return began.elapsed();
        }
        assert!(began.elapsed() < LIMIT, "{found} of {count} {resource}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What the kubelet answers; it may be starting, and refuses more than 100 questions a second.
async fn asked<T>(
    host: &Host,
    ask: impl AsyncFn(&PodResourcesClient) -> Result<T, kubelet::Error>,
) -> T {
    let client = PodResourcesClient::new(&host.kubelet.pod_resources(), Limits::default()).unwrap();
    let answer = async {
        loop {
            match ask(&client).await {
                Ok(answer) => return answer,
                Err(error) if error.is_transient() => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    };
    bounded("the kubelet's answer", answer).await
}
