//! Which container has which device, as the kubelet tells: a table that follows its pod resources API.
//!
//! A scrape never waits for the kubelet: the table is kept by a task of its own, and a change makes a new page. The API has
//! no watch, so it is asked again and again. While the kubelet does not answer, what it said last counts on for a while,
//! since a kubelet that restarts stops no pod; then samples have no pod labels rather than old ones.
//!
//! A device that several containers share carries no pod labels: its values are those of all of them together, and
//! dcgm-exporter, which names whichever it read last, is wrong for the others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use kubelet::pod_resources::{Limits, PodResources, PodResourcesClient};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::collector::Wake;

/// Time between two questions: pods live longer than this, and an answer takes the kubelet about a millisecond.
const PERIOD: Duration = Duration::from_secs(5);

/// How long an answer counts when no other follows.
const TRUSTED: Duration = Duration::from_secs(60);

/// Resources of this domain are ours; others have to be named.
const DOMAIN: &str = "nvidia.com/";

/// Where pods are learned of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The socket of the kubelet's pod resources API.
    pub socket: PathBuf,
    /// Names of resources outside `nvidia.com` that stand for GPUs.
    pub resources: Vec<String>,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
}

/// The containers by the ids of their devices, without the number of a share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pods {
    /// Those that have a share of a device.
    shared: BTreeMap<String, BTreeSet<Holder>>,
    /// Those that have a device alone, in the order in which they came. All but the last have ended: older kubelets list
    /// pods until they are deleted.
    alone: BTreeMap<String, Vec<Holder>>,
}

impl Pods {
    /// The one container that has a device that goes by any of `ids`.
    pub(crate) fn holder<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> Option<&Holder> {
        let mut holders = ids.into_iter().flat_map(|id| {
            let alone = self.alone.get(id).and_then(|holders| holders.last());
            alone
                .into_iter()
                .chain(self.shared.get(id).into_iter().flatten())
        });
        let first = holders.next()?;
        holders.all(|other| other == first).then_some(first)
    }

    /// The table after this one, from a new answer.
    fn next(&self, list: &[PodResources], resources: &[String]) -> Self {
        let mut next = Self::default();
        let mut alone = BTreeMap::<String, Vec<Holder>>::new();
        for pod in list {
            for container in &pod.containers {
                let holder = Holder {
                    namespace: pod.namespace.clone(),
                    pod: pod.name.clone(),
                    container: container.name.clone(),
                };
                let ours = container.devices.iter().filter(|devices| {
                    devices.resource_name.starts_with(DOMAIN)
                        || resources.contains(&devices.resource_name)
                });
                for id in ours.flat_map(|devices| &devices.device_ids) {
                    if let Some(device) = without_share(id) {
                        let holders = next.shared.entry(device.to_owned()).or_default();
                        holders.insert(holder.clone());
                    } else {
                        let holders = alone.entry(id.clone()).or_default();
                        holders.push(holder.clone());
                    }
                }
            }
        }
        for (id, listed) in alone {
            let known = self.alone.get(&id).into_iter().flatten();
            let mut holders: Vec<Holder> = known
                .filter(|holder| listed.contains(holder))
                .cloned()
                .collect();
            for holder in listed {
                if !holders.contains(&holder) {
                    holders.push(holder);
                }
            }
            next.alone.insert(id, holders);
        }
        next
    }
}

/// The device of a share: `GPU-…::3` of NVIDIA's plugin, `nvidia0/vgpu3` and `nvidia0/gi7/vgpu3` of GKE's.
fn without_share(id: &str) -> Option<&str> {
    let (device, share) = id.split_once("::").or_else(|| id.rsplit_once("/vgpu"))?;
    (!share.is_empty() && share.bytes().all(|c| c.is_ascii_digit())).then_some(device)
}

/// What the follower knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) pods: Arc<Pods>,
    /// Whether the kubelet answered the last time; `None` when it was not asked yet.
    pub(crate) answers: Option<bool>,
}

/// Keeps `known` true; never ends.
pub(crate) async fn follow(
    client: PodResourcesClient,
    resources: Vec<String>,
    known: watch::Sender<Known>,
    wake: Sender<Wake>,
) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut answered = Instant::now();
    loop {
        ticks.tick().await;
        let answer = client.list().await;
        let changed = known.send_if_modified(|known| {
            let before = known.answers.replace(answer.is_ok());
            let pods = match &answer {
                Ok(list) => {
                    answered = Instant::now();
                    if before == Some(false) {
                        tracing::info!("the kubelet tells again which pods hold GPUs");
                    }
                    known.pods.next(list, &resources)
                }
                Err(error) => {
                    if before != Some(false) {
                        tracing::warn!(%error, "cannot ask the kubelet which pods hold GPUs");
                    }
                    if answered.elapsed() < TRUSTED {
                        return before != known.answers;
                    }
                    Pods::default()
                }
            };
            let changed = pods != *known.pods;
            if changed {
                known.pods = Arc::new(pods);
            }
            changed || before != known.answers
        });
        if changed {
            // The collector has ended: so does this, with the runtime.
            let _ = wake.send(Wake::Event);
        }
    }
}

/// A client of the socket.
///
/// # Errors
/// The path is not UTF-8.
pub(crate) fn client(source: &Source) -> Result<PodResourcesClient, kubelet::Error> {
    PodResourcesClient::new(&source.socket, Limits::default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use kubelet::pod_resources::{ContainerDevices, ContainerResources};
    use rstest::rstest;

    use super::*;

    fn pod(name: &str, resource: &str, ids: &[&str]) -> PodResources {
        PodResources {
            name: name.to_owned(),
            namespace: "ml".to_owned(),
            containers: vec![ContainerResources {
                name: "main".to_owned(),
                devices: vec![ContainerDevices {
                    resource_name: resource.to_owned(),
                    device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
                    topology: None,
                }],
                dynamic_resources: Vec::new(),
            }],
        }
    }

    fn name<'a>(pods: &'a Pods, ids: &[&str]) -> Option<&'a str> {
        pods.holder(ids.iter().copied())
            .map(|holder| holder.pod.as_str())
    }

    #[rstest]
    #[case("GPU-a::3", Some("GPU-a"))]
    #[case("MIG-a::0", Some("MIG-a"))]
    #[case("nvidia0/vgpu2", Some("nvidia0"))]
    #[case("nvidia0/gi7/vgpu2", Some("nvidia0/gi7"))]
    #[case("GPU-a", None)]
    #[case("nvidia0/gi7", None)]
    #[case("MIG-GPU-a/7/0", None)]
    #[case("GPU-a::", None)]
    fn shares(#[case] id: &str, #[case] device: Option<&str>) {
        assert_eq!(without_share(id), device);
    }

    #[test]
    fn devices_are_found_by_any_of_their_names() {
        let list = [
            pod("gpu", "nvidia.com/gpu", &["GPU-a", "GPU-b"]),
            pod("mig", "nvidia.com/mig-1g.10gb", &["MIG-c"]),
            pod("named", "nvidia.com/a100", &["GPU-d"]),
            pod("own", "example.com/gpu", &["GPU-e"]),
            pod("other", "example.org/gpu", &["GPU-f"]),
        ];
        let pods = Pods::default().next(&list, &["example.com/gpu".to_owned()]);
        assert_eq!(name(&pods, &["GPU-b", "nvidia1"]), Some("gpu"));
        assert_eq!(name(&pods, &["nvidia2", "MIG-c"]), Some("mig"));
        assert_eq!(name(&pods, &["GPU-d"]), Some("named"));
        assert_eq!(name(&pods, &["GPU-e"]), Some("own"));
        assert_eq!(name(&pods, &["GPU-f"]), None);
        assert_eq!(name(&pods, &[]), None);
        // Two compute instances of one GPU instance, held by two pods.
        assert_eq!(name(&pods, &["GPU-a", "MIG-c"]), None);
    }

    #[test]
    fn what_several_share_is_nobodys() {
        let one = [pod("x", "nvidia.com/gpu.shared", &["GPU-a::0", "GPU-a::1"])];
        let pods = Pods::default().next(&one, &[]);
        assert_eq!(name(&pods, &["GPU-a"]), Some("x"));
        let two = [
            pod("x", "nvidia.com/gpu", &["GPU-a::0"]),
            pod("y", "nvidia.com/gpu", &["GPU-a::1"]),
        ];
        assert_eq!(name(&pods.next(&two, &[]), &["GPU-a"]), None);
    }

    #[test]
    fn of_pods_that_have_ended_and_one_that_runs_the_last_to_come_counts() {
        let old = pod("old", "nvidia.com/gpu", &["GPU-a"]);
        let new = pod("new", "nvidia.com/gpu", &["GPU-a"]);
        let pods = Pods::default().next(std::slice::from_ref(&old), &[]);
        assert_eq!(name(&pods, &["GPU-a"]), Some("old"));
        // In whatever order the kubelet lists them, and however often.
        for list in [[old.clone(), new.clone()], [new.clone(), old.clone()]] {
            let pods = pods.next(&list, &[]);
            let again = pods.next(&list, &[]);
            assert_eq!(name(&pods, &["GPU-a"]), Some("new"));
            assert_eq!(name(&again, &["GPU-a"]), Some("new"));
            assert_eq!(name(&again.next(&list, &[]), &["GPU-a"]), Some("new"));
            assert_eq!(
                name(&pods.next(std::slice::from_ref(&old), &[]), &["GPU-a"]),
                Some("old")
            );
        }
        assert_eq!(name(&pods.next(&[], &[]), &["GPU-a"]), None);
    }
}
