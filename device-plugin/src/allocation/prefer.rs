//! Which of the free devices a container should get.
//!
//! The kubelet takes an error here for a reason to fail the pod, and takes an empty answer for "any". So there are no errors:
//! what cannot be done as the policy wants it is done as near to it as possible, and [`check`](super::check()) has the last word.

use std::collections::{BTreeMap, BTreeSet};

use configuration::plugin::AllocationPolicy;
use gpu::Topology;
use gpu::allocation::{Policy, Share, ShareState, nearest, shares};
use kubelet::device_plugin::ContainerPreferredAllocationRequest;

use crate::DeviceId;
use crate::resources::{Device, Resource};

/// A device that somebody has otherwise than as an id of the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// Its UUID.
    pub uuid: String,
    /// UUID of its GPU.
    pub gpu: String,
}

/// The ids to give, among those that are free and with those that have to be in it.
///
/// Whole GPUs come as the set that works best together. MIG devices and shares come as `policy` wants, with the physical GPU
/// in mind: `elsewhere` are devices taken in other ways than as ids of this resource, so that a GPU is filled or spared
/// whatever its instances are called. What would be refused, because somebody has it, the GPU it is a part of, or a part of
/// it, comes last. Under `distinct`, MIG devices come from different GPUs as far as there are any; shares do, or are refused
/// later.
pub fn prefer(
    resource: &Resource,
    topology: &Topology,
    policy: AllocationPolicy,
    elsewhere: &[InUse],
    request: &ContainerPreferredAllocationRequest,
) -> Vec<String> {
    let wanted = usize::try_from(request.allocation_size).unwrap_or(0);
    let required = unique(&request.must_include_device_ids);
    let available = unique(&request.available_device_ids);
    let own: BTreeMap<&str, &Device> = resource
        .devices
        .iter()
        .map(|device| (device.uuid.as_str(), device))
        .collect();
    let known = |id: &&str| DeviceId::parse(id).is_some_and(|id| own.contains_key(id.uuid));
    // An id that we no longer have would be refused; it comes last.
    let (candidates, others): (Vec<&str>, Vec<&str>) = available
        .iter()
        .copied()
        .filter(|id| !required.contains(id))
        .partition(known);
    let wanted_more = wanted.saturating_sub(required.len());
    let would_be_given = |id: &&str| {
        DeviceId::parse(id)
            .and_then(|id| own.get(id.uuid))
            .is_some_and(|device| !elsewhere.iter().any(|in_use| excludes(in_use, device)))
    };
    let (mut candidates, refused): (Vec<&str>, Vec<&str>) =
        candidates.into_iter().partition(would_be_given);
    if candidates.len() < wanted_more {
        candidates.extend(refused);
    }
    let chosen =
        if wanted_more == 0 || wanted_more >= candidates.len() || !required.iter().all(known) {
            None
        } else if resource.devices.iter().all(is_whole) {
            whole(resource, topology, &required, &candidates, wanted)
        } else {
            parts(resource, policy, elsewhere, &required, &candidates, wanted)
        };
    let plain = || {
        let all = required.iter().chain(&candidates).chain(&others);
        all.take(wanted).map(|id| (*id).to_owned()).collect()
    };
    chosen.unwrap_or_else(plain)
}

fn is_whole(device: &Device) -> bool {
    device.mig.is_none() && device.shares.is_none()
}

/// Whether the device cannot be given while that is in use. A share can while others of its device are: it depends on how many.
fn excludes(in_use: &InUse, device: &Device) -> bool {
    let is_gpu = in_use.uuid == in_use.gpu;
    in_use.gpu == device.gpu_uuid
        && match (device.mig.is_some(), in_use.uuid == device.uuid) {
            (_, true) => device.shares.is_none(),
            (true, false) => is_gpu,
            (false, false) => true,
        }
}

/// Each id once, in order.
fn unique(ids: &[String]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    let ids = ids.iter().map(String::as_str);
    ids.filter(|id| seen.insert(*id)).collect()
}

/// Whole GPUs: the set that works best together.
fn whole(
    resource: &Resource,
    topology: &Topology,
    required: &[&str],
    candidates: &[&str],
    wanted: usize,
) -> Option<Vec<String>> {
    // In the order of the resource, so that equal sets are decided by index and not by the order of the request.
    let free: Vec<&str> = resource
        .devices
        .iter()
        .map(|device| device.uuid.as_str())
        .filter(|uuid| required.contains(uuid) || candidates.contains(uuid))
        .collect();
    let required: Vec<usize> = (0..free.len())
        .filter(|&position| free.get(position).is_some_and(|id| required.contains(id)))
        .collect();
    let score = |a: usize, b: usize| match (free.get(a), free.get(b)) {
        (Some(a), Some(b)) => topology.score(a, b),
        _ => 0,
    };
    let set = nearest(free.len(), score, &required, wanted)?;
    let ids = set.iter().filter_map(|&position| free.get(position));
    Some(ids.map(|id| (*id).to_owned()).collect())
}

/// MIG devices and shares: spread, packed or each of another GPU.
fn parts(
    resource: &Resource,
    policy: AllocationPolicy,
    elsewhere: &[InUse],
    required: &[&str],
    candidates: &[&str],
    wanted: usize,
) -> Option<Vec<String>> {
    let required: BTreeSet<&str> = required.iter().copied().collect();
    let candidates: BTreeSet<&str> = candidates.iter().copied().collect();
    let mut ids = Vec::new();
    let mut all = Vec::new();
    for device in &resource.devices {
        for id in device.ids() {
            let id = id.to_string();
            let state = if required.contains(id.as_str()) {
                ShareState::Required
            } else if candidates.contains(id.as_str()) {
                ShareState::Free
            } else {
                ShareState::Taken
            };
            all.push(Share {
                device: &device.uuid,
                gpu: &device.gpu_uuid,
                state,
            });
            ids.push(id);
        }
    }
    all.extend(elsewhere.iter().map(|in_use| Share {
        device: &in_use.uuid,
        gpu: &in_use.gpu,
        state: ShareState::Taken,
    }));
    let policy = match policy {
        AllocationPolicy::Distributed => Policy::Distributed,
        AllocationPolicy::Packed => Policy::Packed,
        AllocationPolicy::Distinct => Policy::Distinct,
    };
    let chosen = shares(&all, wanted, policy)
        .or_else(|_| shares(&all, wanted, Policy::Distributed))
        .ok()?;
    let chosen = chosen.into_iter().filter_map(|position| ids.get(position));
    Some(chosen.cloned().collect())
}

#[cfg(test)]
#[path = "prefer_tests.rs"]
mod tests;
