//! Admission of pods: which devices a container gets, as the kubelet's device manager decides it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use kubelet::api::device_plugin as wire;
use kubelet::api::pod_resources;
use kubelet::device_plugin::ContainerAllocateResponse;

use crate::DeviceManager;

/// What a container was given.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// Ids of its devices.
    pub ids: Vec<String>,
    /// What the plugin wants done for it.
    pub response: ContainerAllocateResponse,
}

/// A resource and ids of it.
type Share = (String, Vec<String>);

/// The pods of a node, each with one container. They outlive a kubelet, which finds them again in its checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Pods(Arc<Mutex<BTreeMap<String, Vec<Share>>>>);

impl Pods {
    /// Ids of `resource` that pods have, each as often as it was given.
    pub fn taken(&self, resource: &str) -> Vec<String> {
        let pods = self.0.lock().unwrap();
        let all = pods.values().flatten();
        let ours = all.filter(|(name, _)| name == resource);
        ours.flat_map(|(_, ids)| ids.clone()).collect()
    }

    /// A pod is there that has `ids` of a resource, as if it had been admitted.
    pub fn insert(&self, pod: &str, resource: &str, ids: &[&str]) {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        let mut pods = self.0.lock().unwrap();
        let resources = pods.entry(pod.to_owned()).or_default();
        resources.push((resource.to_owned(), ids));
    }

    /// A pod ends.
    pub fn remove(&self, pod: &str) {
        self.0.lock().unwrap().remove(pod);
    }

    pub(crate) fn resources(&self) -> Vec<pod_resources::PodResources> {
        let pods = self.0.lock().unwrap();
        let pods = pods.iter().map(|(name, resources)| {
            let devices = resources
                .iter()
                .map(|(resource, ids)| pod_resources::ContainerDevices {
                    resource_name: resource.clone(),
                    device_ids: ids.clone(),
                    topology: None,
                });
            pod_resources::PodResources {
                name: name.clone(),
                namespace: "default".to_owned(),
                containers: vec![pod_resources::ContainerResources {
                    name: "main".to_owned(),
                    devices: devices.collect(),
                    dynamic_resources: Vec::new(),
                }],
            }
        });
        pods.collect()
    }
}

impl DeviceManager {
    /// Admits a pod that asks for `count` of `resource`, or says why not. A pod may ask again, for another resource.
    ///
    /// # Errors
    /// There are too few devices, or the plugin refused: the text is what the pod's status would show.
    ///
    /// # Panics
    /// The plugin breaks the protocol.
    pub async fn admit(&self, pod: &str, resource: &str, count: usize) -> Result<Admitted, String> {
        let (socket, devices) = self
            .devices()
            .remove(resource)
            .map(|devices| (devices.socket, devices.list))
            .ok_or_else(|| format!("no plugin for {resource}"))?;
        let taken: BTreeSet<String> = self.pods().taken(resource).into_iter().collect();
        let healthy = devices.into_iter().filter(|(_, healthy)| *healthy);
        let free: Vec<String> = healthy
            .map(|(id, _)| id)
            .filter(|id| !taken.contains(id))
            .collect();
        if free.len() < count {
            let few = free.len();
            return Err(format!("Insufficient {resource}: {few} of {count}"));
        }
        let mut plugin = self.plugin(&socket).await;
        let mut ids = Vec::new();
        if free.len() > count {
            let request = wire::PreferredAllocationRequest {
                container_requests: vec![wire::ContainerPreferredAllocationRequest {
                    available_device_ids: free.clone(),
                    must_include_device_ids: Vec::new(),
                    allocation_size: i32::try_from(count).unwrap(),
                }],
            };
            let answer = plugin.get_preferred_allocation(request).await;
            let answer = answer.map_err(|refusal| refusal.message().to_owned())?;
            let preferred = answer.into_inner().container_responses.remove(0).device_ids;
            ids.extend(preferred.into_iter().filter(|id| free.contains(id)));
            ids.truncate(count);
        }
        for id in free {
            if ids.len() < count && !ids.contains(&id) {
                ids.push(id);
            }
        }
        let request = wire::AllocateRequest {
            container_requests: vec![wire::ContainerAllocateRequest {
                device_ids: ids.clone(),
            }],
        };
        let answer = plugin.allocate(request).await;
        let answer = answer.map_err(|refusal| refusal.message().to_owned())?;
        let response = answer.into_inner().container_responses.remove(0);
        let mut pods = self.pods().0.lock().unwrap();
        let resources = pods.entry(pod.to_owned()).or_default();
        resources.push((resource.to_owned(), ids.clone()));
        Ok(Admitted { ids, response })
    }
}
