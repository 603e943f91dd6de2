//! One call in progress: what it can ask of the node, whose handles it can resolve, how it changes the node.
//!
//! A stale handle is an invalid argument, a lost GPU answers as lost, and neither can crash. Must not know any NVML
//! function, nor how a call came to its body.

use std::{cell::RefCell, sync::Arc};

use serde_json::Value;

use super::{
    dispatch::{check_driver, load},
    handle::{Handle, Named},
    session::Client,
};
use crate::{
    Code,
    model::{
        ComputeInstance, Gpu, GpuInstance, Node,
        counters::{Meters, Reading},
    },
    store::now_us,
};

/// One call in progress: the node as it was when the call began, and what its first handle names.
pub(super) struct Call {
    client: Client,
    node: Arc<Node>,
    handle: Option<Handle>,
    notes: RefCell<Notes>,
}

/// What a call reports to the trace beyond its result.
pub(super) type Notes = Vec<(&'static str, Value)>;

/// What a device handle can name.
pub(super) enum Device<'a> {
    /// A whole GPU, with its position in the node.
    Gpu(&'a Gpu),
    /// A MIG device.
    Mig(MigDevice<'a>),
}

/// A compute instance seen as a device.
pub(super) struct MigDevice<'a> {
    /// Its GPU.
    pub(super) gpu: &'a Gpu,
    /// Its GPU instance.
    pub(super) instance: &'a GpuInstance,
    /// Itself.
    pub(super) compute: &'a ComputeInstance,
}

impl<'a> Device<'a> {
    /// The GPU, or the GPU that the MIG device is part of.
    pub(super) fn physical(&self) -> &'a Gpu {
        match self {
            Device::Gpu(gpu) => gpu,
            Device::Mig(device) => device.gpu,
        }
    }
}

impl Call {
    /// A call by a client on the node as it is, about what `handle` names.
    pub(super) fn new(client: Client, node: Arc<Node>, handle: Option<Handle>) -> Self {
        Call {
            client,
            node,
            handle,
            notes: RefCell::default(),
        }
    }

    /// What the call noted for the trace.
    pub(super) fn into_notes(self) -> Notes {
        self.notes.into_inner()
    }

    /// The node as it was when the call began.
    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// The node as it is now, for calls that wait; an error when the driver does not answer any more.
    pub(super) fn latest(&self) -> Result<Arc<Node>, Code> {
        let node = load(self.client.store())?;
        check_driver(&node)?;
        Ok(node)
    }

    /// The node's clock, microseconds since the epoch.
    pub(super) fn now_us(&self) -> u64 {
        now_us(&self.node)
    }

    /// This process's use of the library.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// A handle for something of this node.
    pub(super) fn handle_of(&self, named: Named) -> Result<Handle, Code> {
        handle_in(&self.node, named)
    }

    /// Position in the node of the GPU that the first handle belongs to.
    pub(super) fn position(&self) -> Result<usize, Code> {
        let handle = self.handle.ok_or(Code::INVALID_ARGUMENT)?;
        position(&self.node, &self.client, handle)
    }

    /// The first handle as a whole GPU; a MIG device cannot answer what is asked of whole GPUs.
    pub(super) fn gpu(&self) -> Result<&Gpu, Code> {
        match self.device()? {
            Device::Gpu(gpu) => Ok(gpu),
            Device::Mig(_) => Err(Code::NOT_SUPPORTED),
        }
    }

    /// The first handle as a GPU that is not partitioned; partitioned ones do not answer what is asked.
    pub(super) fn whole_gpu(&self) -> Result<&Gpu, Code> {
        let gpu = self.gpu()?;
        if gpu.mig.current {
            Err(Code::NOT_SUPPORTED)
        } else {
            Ok(gpu)
        }
    }

    /// The first handle as a device of either kind.
    pub(super) fn device(&self) -> Result<Device<'_>, Code> {
        self.device_of(self.handle.ok_or(Code::INVALID_ARGUMENT)?)
    }

    /// Any handle as a device of either kind.
    pub(super) fn device_of(&self, handle: Handle) -> Result<Device<'_>, Code> {
        let gpu = &self.node.gpus[position(&self.node, &self.client, handle)?];
        match handle.named() {
            Some(Named::Gpu { .. }) => Ok(Device::Gpu(gpu)),
            Some(Named::MigDevice {
                instance, compute, ..
            }) => {
                let instance = gpu.instance(instance).ok_or(Code::INVALID_ARGUMENT)?;
                let compute = instance
                    .compute_by_id(compute)
                    .ok_or(Code::INVALID_ARGUMENT)?;
                Ok(Device::Mig(MigDevice {
                    gpu,
                    instance,
                    compute,
                }))
            }
            _ => Err(Code::INVALID_ARGUMENT),
        }
    }

    /// Any handle as a whole GPU, with its position in the node.
    pub(super) fn gpu_of(&self, handle: Handle) -> Result<(usize, &Gpu), Code> {
        match self.device_of(handle)? {
            Device::Gpu(gpu) => Ok((position(&self.node, &self.client, handle)?, gpu)),
            Device::Mig(_) => Err(Code::NOT_SUPPORTED),
        }
    }

    /// The first handle as a GPU instance that still exists.
    pub(super) fn instance(&self) -> Result<(&Gpu, &GpuInstance), Code> {
        let gpu = &self.node.gpus[self.position()?];
        match self.handle.and_then(Handle::named) {
            Some(Named::Instance { instance, .. }) => {
                Ok((gpu, gpu.instance(instance).ok_or(Code::INVALID_ARGUMENT)?))
            }
            _ => Err(Code::INVALID_ARGUMENT),
        }
    }

    /// The first handle as a compute instance that still exists.
    pub(super) fn compute(&self) -> Result<(&Gpu, &GpuInstance, &ComputeInstance), Code> {
        let gpu = &self.node.gpus[self.position()?];
        match self.handle.and_then(Handle::named) {
            Some(Named::Compute {
                instance, compute, ..
            }) => {
                let instance = gpu.instance(instance).ok_or(Code::INVALID_ARGUMENT)?;
                Ok((
                    gpu,
                    instance,
                    instance
                        .compute_by_id(compute)
                        .ok_or(Code::INVALID_ARGUMENT)?,
                ))
            }
            _ => Err(Code::INVALID_ARGUMENT),
        }
    }

    /// What the sensors of the first handle's GPU show now.
    pub(super) fn reading(&self) -> Result<Reading, Code> {
        self.gpu()?;
        Ok(self.node.reading(self.position()?, self.now_us()))
    }

    /// What the meters of the first handle's GPU have counted until now.
    pub(super) fn meters(&self) -> Result<Meters, Code> {
        self.gpu()?;
        Ok(self.node.meters_at(self.position()?, self.now_us()))
    }

    /// Changes the node under its lock. The change is made on the newest state, not on `node()`.
    pub(super) fn update<T>(
        &self,
        change: impl FnOnce(&mut Node) -> Result<T, Code>,
    ) -> Result<T, Code> {
        self.client
            .store()
            .update(change)
            .unwrap_or(Err(Code::UNKNOWN))
    }

    /// Changes the first handle's GPU under the node's lock.
    pub(super) fn change(&self, change: impl FnOnce(&mut Gpu)) -> Result<(), Code> {
        let position = self.position()?;
        self.update(|node| {
            node.gpus
                .get_mut(position)
                .map(change)
                .ok_or(Code::INVALID_ARGUMENT)
        })
    }

    /// `NO_PERMISSION` where the node enforces permissions and the caller is not root.
    pub(super) fn privileged(&self) -> Result<(), Code> {
        let refused =
            self.node.personality.enforce_permissions && !rustix::process::geteuid().is_root();
        if refused {
            Err(Code::NO_PERMISSION)
        } else {
            Ok(())
        }
    }

    /// Adds to the traced call something that it reports beyond its result.
    pub(super) fn note(&self, name: &'static str, value: impl Into<Value>) {
        self.notes.borrow_mut().push((name, value.into()));
    }
}

/// A handle for something of a GPU that `node` has; `INVALID_ARGUMENT` when it has no such thing.
pub(super) fn handle_in(node: &Node, named: Named) -> Result<Handle, Code> {
    let generation = generation(node, named).ok_or(Code::INVALID_ARGUMENT)?;
    Ok(Handle::new(named, generation))
}

/// Generation that handles of a thing belong to: it rises with every driver reload and every reset of the GPU, and for an
/// instance with every creation, so that the handle of a destroyed one is not that of a later one with the same id.
fn generation(node: &Node, named: Named) -> Option<u64> {
    let gpu = node.gpus.get(gpu_of(named)?)?;
    let created = match named {
        Named::Instance { instance, .. } => gpu.instance(instance)?.created,
        Named::MigDevice {
            instance, compute, ..
        }
        | Named::Compute {
            instance, compute, ..
        } => gpu.instance(instance)?.compute_by_id(compute)?.created,
        _ => 0,
    };
    Some(u64::from(node.generation) + u64::from(gpu.generation) + u64::from(created))
}

/// Where in the node the GPU of a handle is: `INVALID_ARGUMENT` for a stale or foreign handle, `GPU_IS_LOST` for a lost GPU.
fn position(node: &Node, client: &Client, handle: Handle) -> Result<usize, Code> {
    let named = handle.named().ok_or(Code::INVALID_ARGUMENT)?;
    let position = gpu_of(named).ok_or(Code::INVALID_ARGUMENT)?;
    let gpu = node.gpus.get(position).ok_or(Code::INVALID_ARGUMENT)?;
    if gpu.is_lost() {
        return Err(Code::GPU_IS_LOST);
    }
    let current = generation(node, named).is_some_and(|generation| handle.is_of(generation));
    if !gpu.visible_since(client.since()) || !current {
        return Err(Code::INVALID_ARGUMENT);
    }
    Ok(position)
}

/// Which GPU a handle belongs to, whether or not it is stale.
pub(super) fn named_gpu(handle: Handle) -> Option<usize> {
    gpu_of(handle.named()?)
}

fn gpu_of(named: Named) -> Option<usize> {
    match named {
        Named::Gpu { gpu }
        | Named::MigDevice { gpu, .. }
        | Named::Instance { gpu, .. }
        | Named::Compute { gpu, .. } => Some(gpu as usize),
        Named::EventSet { .. } | Named::SystemEventSet { .. } | Named::Sample { .. } => None,
    }
}
