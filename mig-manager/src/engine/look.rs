//! What the node's GPUs are at one moment, in the planner's terms.

use gpu::{Board, Client, Observed, PciId};
use nvml::{Driver, Gpu, GpuInfo};

use super::event::GpuId;

/// All GPUs of the node, those that do not answer included.
pub(crate) struct Node {
    pub(crate) gpus: Vec<Entry>,
}

/// The GPU at an index.
pub(crate) struct Entry {
    pub(crate) index: u32,
    pub(crate) seen: Result<Seen, nvml::Error>,
}

/// A GPU that answered.
pub(crate) struct Seen {
    pub(crate) id: GpuId,
    pub(crate) pci: PciId,
    pub(crate) name: String,
    /// `None` on a GPU without MIG.
    pub(crate) board: Option<Board>,
    pub(crate) observed: Observed,
    /// The way to it.
    pub(crate) gpu: Gpu,
}

impl Seen {
    pub(crate) fn mig_capable(&self) -> bool {
        self.board.is_some()
    }
}

impl Entry {
    pub(crate) fn id(&self) -> GpuId {
        match &self.seen {
            Ok(seen) => seen.id.clone(),
            Err(error) => GpuId {
                index: self.index,
                uuid: error
                    .gpu()
                    .and_then(|g| g.uuid.as_deref())
                    .unwrap_or_default()
                    .to_owned(),
            },
        }
    }
}

impl Node {
    /// The GPUs that answered.
    pub(crate) fn seen(&self) -> impl Iterator<Item = &Seen> {
        self.gpus
            .iter()
            .filter_map(|entry| entry.seen.as_ref().ok())
    }
}

/// Looks at all GPUs at once. A GPU that fails has its error in its place.
pub(crate) fn look(driver: &Driver) -> Result<Node, nvml::Error> {
    let snapshot = driver.snapshot()?;
    let gpus = snapshot
        .gpus
        .into_iter()
        .zip(0..)
        .map(|(info, index)| Entry {
            index,
            seen: info.and_then(|info| seen(driver.gpu(index), info)),
        });
    Ok(Node {
        gpus: gpus.collect(),
    })
}

/// Looks at one GPU.
pub(crate) fn look_at(gpu: &Gpu) -> Result<Seen, nvml::Error> {
    seen(gpu.clone(), gpu.info()?)
}

fn seen(gpu: Gpu, info: GpuInfo) -> Result<Seen, nvml::Error> {
    let id = GpuId {
        index: info.index,
        uuid: info.uuid,
    };
    // Planning over instances that one may not see would destroy or collide with them.
    let layout = info.layout.ok_or_else(|| {
        nvml::Error::hidden_instances(nvml::GpuRef {
            index: id.index,
            uuid: Some(id.uuid.as_str().into()),
        })
    })?;
    let clients = info
        .processes
        .unwrap_or_default()
        .into_iter()
        .map(|p| Client {
            pid: p.pid,
            command: p.command.unwrap_or_default(),
            gpu_instance: p.gpu_instance,
            compute_instance: p.compute_instance,
        });
    Ok(Seen {
        id,
        pci: info.pci.id,
        name: info.name,
        board: info.board,
        observed: Observed {
            layout,
            pending_mig: info.mig.is_some_and(|mode| mode.pending),
            resetless: info.resetless_mig,
            clients: clients.collect(),
        },
        gpu,
    })
}
