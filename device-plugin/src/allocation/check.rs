//! Whether the devices that the kubelet chose can be given: the kubelet's list may lag behind the hardware, and some wishes
//! show only now.

use configuration::plugin::{AllocationPolicy, ResourceName};

use super::Options;
use crate::DeviceId;
use crate::resources::{Device, Resource};

/// Why a container does not get its devices. The text is what the pod's status shows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No device was asked for.
    #[error("{resource}: no device is named")]
    Nothing {
        /// The resource.
        resource: ResourceName,
    },
    /// The node has no such device, any more.
    #[error(
        "{resource}: {device} is not on this node any more, the node's devices have changed; create the pod anew to have it placed anew"
    )]
    Unknown {
        /// The resource.
        resource: ResourceName,
        /// The id, as the kubelet gave it.
        device: String,
    },
    /// The device is out of order.
    #[error(
        "{resource}: {device} is unhealthy: {reason}; create the pod anew to have it placed anew"
    )]
    Unhealthy {
        /// The resource.
        resource: ResourceName,
        /// Its UUID.
        device: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Somebody has it: through another resource, through a claim, or the GPU that it is a part of.
    #[error("{resource}: {conflict}")]
    Held {
        /// The resource.
        resource: ResourceName,
        /// Who has what.
        conflict: gpu::ledger::Conflict,
    },
    /// More than one share, where that is refused.
    #[error(
        "{resource}: {wanted} shares wanted: more than one gives a container no more of a GPU, and failRequestsGreaterThanOne is set; ask for 1"
    )]
    MoreThanOne {
        /// The resource.
        resource: ResourceName,
        /// How many.
        wanted: usize,
    },
    /// Several shares of one physical GPU, where each has to be of another.
    #[error(
        "{resource}: {wanted} shares wanted, each of another GPU (sharedDevicesAllocationPolicy distinct), but two of them are of {gpu}; ask for fewer, or wait until more GPUs have a share free"
    )]
    NotDistinct {
        /// The resource.
        resource: ResourceName,
        /// How many.
        wanted: usize,
        /// UUID of the GPU.
        gpu: String,
    },
}

/// What a container is given: devices, each once, by index, and which shares of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The devices in the order of the resource.
    pub devices: Vec<&'a Device>,
    /// Each id of the request once, with its device.
    pub ids: Vec<(&'a Device, Option<u32>)>,
}

/// Checks the devices that the kubelet chose. `trouble` says what is wrong with a device, if anything is.
///
/// # Errors
/// The first [`Refusal`].
pub fn check<'a>(
    options: &Options,
    resource: &'a Resource,
    ids: &[String],
    trouble: impl Fn(&Device) -> Option<String>,
) -> Result<Request<'a>, Refusal> {
    let name = || resource.name.clone();
    let mut found: Vec<(usize, &Device, Option<u32>)> = Vec::new();
    for id in ids {
        let (position, device, share) = find(resource, id).ok_or_else(|| Refusal::Unknown {
            resource: name(),
            device: id.chars().take(80).collect(),
        })?;
        if let Some(reason) = trouble(device) {
            return Err(Refusal::Unhealthy {
                resource: name(),
                device: device.uuid.clone(),
                reason,
            });
        }
        found.push((position, device, share));
    }
    found.sort_unstable_by_key(|&(position, _, share)| (position, share));
    found.dedup_by_key(|(position, _, share)| (*position, *share));
    if found.is_empty() {
        return Err(Refusal::Nothing { resource: name() });
    }
    let wanted = found.len();
    let shared = found.iter().any(|(_, device, _)| device.shares.is_some());
    if shared && wanted > 1 {
        if options.one_share {
            return Err(Refusal::MoreThanOne {
                resource: name(),
                wanted,
            });
        }
        if options.policy == AllocationPolicy::Distinct {
            distinct(&resource.name, &found)?;
        }
    }
    let ids = found.iter().map(|&(_, device, share)| (device, share));
    let ids: Vec<_> = ids.collect();
    found.dedup_by_key(|(position, ..)| *position);
    Ok(Request {
        devices: found.into_iter().map(|(_, device, _)| device).collect(),
        ids,
    })
}

/// The device and share that an id of a resource means; `None` when the resource has no such id.
fn find<'a>(resource: &'a Resource, id: &str) -> Option<(usize, &'a Device, Option<u32>)> {
    let id = DeviceId::parse(id)?;
    let mut devices = resource.devices.iter().enumerate();
    let (position, device) = devices.find(|(_, device)| device.uuid == id.uuid)?;
    device.has(id.share).then_some((position, device, id.share))
}

/// Refuses two of one physical GPU.
fn distinct(
    resource: &ResourceName,
    found: &[(usize, &Device, Option<u32>)],
) -> Result<(), Refusal> {
    let mut gpus: Vec<_> = found
        .iter()
        .map(|(_, device, _)| &device.gpu_uuid)
        .collect();
    gpus.sort_unstable();
    match gpus.windows(2).find(|pair| pair.first() == pair.last()) {
        Some([gpu, _]) => Err(Refusal::NotDistinct {
            resource: resource.clone(),
            wanted: found.len(),
            gpu: (*gpu).clone(),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
