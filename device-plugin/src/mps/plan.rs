//! What the configuration asks of MPS on this node: one daemon per shared resource, and the limits of each of its clients.

use std::collections::BTreeMap;
use std::fmt;

use configuration::plugin::{ResourceName, Sharing, SharingKind};

use crate::resources::{Device, Offer, Resource};

/// Clients of one GPU from compute capability 7.0 on, and before (manual page of `nvidia-cuda-mps-control`).
///
/// NVIDIA's daemon draws the line at 7.5, so that it refuses on a V100 (7.0) what the V100 can do.
const MOST_CLIENTS: [u32; 2] = [48, 16];

const MANY_FROM: (u32, u32) = (7, 0);

/// What MPS must know of a GPU besides its place in a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuFacts {
    /// All of its memory, in bytes; `None` where the driver does not say.
    pub memory: Option<u64>,
    /// CUDA compute capability; `None` where the driver does not say.
    pub compute_capability: Option<(u32, u32)>,
    /// Whether MIG mode is on.
    pub mig_mode: bool,
}

impl GpuFacts {
    fn most_clients(self) -> u32 {
        let [many, few] = MOST_CLIENTS;
        // Unknown is a GPU newer than the driver's tables, not one from before 2017.
        match self.compute_capability {
            Some(capability) if capability < MANY_FROM => few,
            _ => many,
        }
    }
}

/// A GPU that clients of a daemon share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedGpu {
    /// `GPU-…`.
    pub uuid: String,
    /// NVML index.
    pub index: u32,
    /// How many clients share it.
    pub replicas: u32,
    /// Memory of each of them in MiB, rounded down; `None`: no limit, since the GPU's memory is not known.
    pub memory_mib: Option<u64>,
}

/// The daemon of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Daemon {
    /// Its GPUs, by index. There is at least one.
    pub gpus: Vec<SharedGpu>,
}

impl Daemon {
    /// The daemon's default share of a GPU's threads for each client, in percent. It is one number for all GPUs, so it is
    /// that of the GPU with the fewest replicas; where there are more, [`client_percentage`] tells the client.
    pub fn thread_percentage(&self) -> u32 {
        let fewest = self.gpus.iter().map(|gpu| gpu.replicas).min();
        percentage(fewest)
    }

    /// UUIDs of its GPUs.
    pub fn uuids(&self) -> impl Iterator<Item = &str> {
        self.gpus.iter().map(|gpu| gpu.uuid.as_str())
    }
}

fn percentage(replicas: Option<u32>) -> u32 {
    (100 / replicas.unwrap_or(1).max(1)).max(1)
}

/// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` of a container that is granted these devices of a resource: `None` unless it may use
/// less than the daemon's default. A client can lower its share, never raise it.
pub fn client_percentage<'a>(
    resource: &Resource,
    granted: impl IntoIterator<Item = &'a Device>,
) -> Option<u32> {
    let fewest = resource
        .devices
        .iter()
        .filter_map(|device| device.shares)
        .min();
    let most = granted.into_iter().filter_map(|device| device.shares).max();
    (most > fewest).then(|| percentage(most))
}

/// A GPU that is not shared although the configuration says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The resource.
    pub resource: ResourceName,
    /// UUID of the GPU.
    pub gpu: String,
    /// Why.
    pub reason: Reason,
}

/// Why a GPU is not shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// MPS does not serve so many clients on it.
    Clients {
        /// Replicas that are configured.
        replicas: u32,
        /// Clients that are served.
        most: u32,
    },
    /// It is in MIG mode, and offered whole all the same.
    MigMode,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, gpu, .. } = self;
        write!(f, "{resource}: {gpu} is not served, because ")?;
        match self.reason {
            Reason::Clients { replicas, most } => write!(
                f,
                "MPS takes at most {most} clients on it and {replicas} replicas are configured: lower replicas to {most} or less"
            ),
            Reason::MigMode => f.write_str(
                "it is in MIG mode, in which MPS does not work: turn MIG off, or choose MIG strategy single or mixed",
            ),
        }
    }
}

/// The daemons of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// One per resource that MPS shares.
    pub daemons: BTreeMap<ResourceName, Daemon>,
    /// GPUs that are left out.
    pub refusals: Vec<Refusal>,
}

/// What daemons an offer needs. Without MPS in the configuration, none.
///
/// MIG devices never appear: [`crate::resources`](mod@crate::resources) offers them unshared, with a warning.
pub fn plan(offer: &Offer, sharing: Option<&Sharing>, facts: impl Fn(&str) -> GpuFacts) -> Plan {
    let mut plan = Plan::default();
    if sharing.is_none_or(|sharing| sharing.kind != SharingKind::Mps) {
        return plan;
    }
    for resource in &offer.resources {
        let mut gpus = Vec::new();
        for device in resource
            .devices
            .iter()
            .filter(|device| device.mig.is_none())
        {
            let Some(replicas) = device.shares else {
                continue;
            };
            let facts = facts(&device.uuid);
            let most = facts.most_clients();
            let reason = if facts.mig_mode {
                Some(Reason::MigMode)
            } else {
                (replicas > most).then_some(Reason::Clients { replicas, most })
            };
            if let Some(reason) = reason {
                plan.refusals.push(Refusal {
                    resource: resource.name.clone(),
                    gpu: device.uuid.clone(),
                    reason,
                });
                continue;
            }
            gpus.push(SharedGpu {
                uuid: device.uuid.clone(),
                index: device.gpu_index,
                replicas,
                memory_mib: facts
                    .memory
                    .map(|bytes| bytes / u64::from(replicas.max(1)) / (1 << 20)),
            });
        }
        if !gpus.is_empty() {
            plan.daemons.insert(resource.name.clone(), Daemon { gpus });
        }
    }
    plan
}

#[cfg(test)]
mod tests;
