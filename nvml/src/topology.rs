//! How near the GPUs are to each other: PCIe relations and NVLinks.
//!
//! Everything here may be slow (links are asked one by one, and some boards take seconds for all) and anything may be
//! missing: a GPU that fails, a link that is down or a question that the driver does not know costs only what it concerns.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpu::{Path, PcieRelation, Topology};
use nvml_wrapper_sys::bindings as sys;

use crate::Code;
use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Error, Optional};
use crate::field::Field;
use crate::handle::{Gpu, on_each};
use crate::library::symbol;

/// `NVML_NVLINK_MAX_LINKS` of the 13.3 header; drivers answer for those they know.
const MAX_LINKS: u32 = 36;

/// `NVML_FEATURE_ENABLED`.
const ENABLED: u32 = 1;

/// `nvmlIntNvLinkDeviceType_t`: what an NVLink ends at.
const REMOTE_GPU: u32 = 0;
const REMOTE_SWITCH: u32 = 2;

/// Where an NVLink ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NvLinkEnd {
    /// At the GPU with this PCI bus id, in the form of [`Pci::bus_id`](crate::Pci::bus_id).
    Gpu(String),
    /// At an NVSwitch, of this machine or of its rack.
    Switch,
    /// At something else, or the driver does not say.
    Other,
}

impl Device<'_> {
    /// What the PCIe path to the GPU at another NVML index crosses; `None` for a level that this version does not know.
    ///
    /// # Errors
    /// The calls', which fail for this GPU or for the other.
    pub fn pcie_relation(&self, other: u32) -> Result<Option<PcieRelation>, Error> {
        let library = self.context.library;
        let other: sys::nvmlDevice_t = self
            .context
            .get_of(symbol!(library, nvmlDeviceGetHandleByIndex_v2), other)?;
        let level: u32 = self.context.get_with(
            symbol!(library, nvmlDeviceGetTopologyCommonAncestor),
            self.handle,
            other,
        )?;
        // `nvmlGpuTopologyLevel_t`.
        Ok(match level {
            0 => Some(PcieRelation::SameBoard),
            10 => Some(PcieRelation::SingleSwitch),
            20 => Some(PcieRelation::MultipleSwitches),
            30 => Some(PcieRelation::HostBridge),
            40 => Some(PcieRelation::SameCpu),
            50 => Some(PcieRelation::CrossCpu),
            _ => None,
        })
    }

    /// How many NVLinks the GPU has at most, up or down; 0 when it has none, or does not say (in MIG mode).
    ///
    /// # Errors
    /// The calls'.
    pub fn nvlink_count(&self) -> Result<u32, Error> {
        let count = match self.field(Field::NVLINK_COUNT) {
            // A driver that does not know the field: then each link has to be asked, if there is a first one.
            Err(error) if error.code() == Some(Code::INVALID_ARGUMENT) => None,
            other => other.optional()?.map(|count| count.low_u32()),
        };
        match count {
            Some(count) => Ok(count.min(MAX_LINKS)),
            None if self.nvlink_is_up(0)?.is_some() => Ok(MAX_LINKS),
            None => Ok(0),
        }
    }

    /// Whether an NVLink is up; `None` where there is none, or the driver does not say.
    fn nvlink_is_up(&self, link: u32) -> Result<Option<bool>, Error> {
        let symbol = symbol!(self.context.library, nvmlDeviceGetNvLinkState);
        let state: Result<u32, _> = self.context.get_with(symbol, self.handle, link);
        match state {
            Err(error) if error.code() == Some(Code::INVALID_ARGUMENT) => Ok(None),
            other => Ok(other.optional()?.map(|state| state == ENABLED)),
        }
    }

    /// Where an NVLink ends; `None` when it is down, or there is no such link.
    ///
    /// # Errors
    /// The calls'.
    pub fn nvlink(&self, link: u32) -> Result<Option<NvLinkEnd>, Error> {
        if self.nvlink_is_up(link)? != Some(true) {
            return Ok(None);
        }
        let library = self.context.library;
        let remote = symbol!(library, nvmlDeviceGetNvLinkRemoteDeviceType);
        let remote: Option<u32> = self
            .context
            .get_with(remote, self.handle, link)
            .optional()?;
        match remote {
            Some(REMOTE_SWITCH) => return Ok(Some(NvLinkEnd::Switch)),
            // A driver without that question can still say whose address it is.
            Some(REMOTE_GPU) | None => {}
            Some(_) => return Ok(Some(NvLinkEnd::Other)),
        }
        let pci = symbol!(library, nvmlDeviceGetNvLinkRemotePciInfo_v2);
        let pci: Option<sys::nvmlPciInfo_t> =
            self.context.get_with(pci, self.handle, link).optional()?;
        Ok(Some(pci.map_or(NvLinkEnd::Other, |pci| {
            NvLinkEnd::Gpu(crate::plain::text(&pci.busId))
        })))
    }
}

/// What could be found out.
#[derive(Clone, Debug, Default)]
pub struct TopologyReport {
    /// The scores of all pairs that are known.
    pub topology: Topology,
    /// What could not be asked; the first failure of each GPU.
    pub failed: BTreeMap<u32, Error>,
}

impl Driver {
    /// Reads how near the GPUs are to each other. Takes as long as the driver needs, seconds on some boards, on threads of its
    /// own: no other use of a GPU waits for it.
    ///
    /// # Errors
    /// The driver is gone, or the system gives no threads: then nothing is known.
    pub fn topology(&self) -> Result<TopologyReport, Error> {
        Reading::new(self)?.read()
    }
}

/// A reading under way.
struct Reading {
    handles: Vec<Gpu>,
    /// UUID and bus id of the GPUs that answer, by index.
    gpus: BTreeMap<u32, (String, String)>,
    failed: BTreeMap<u32, Error>,
}

impl Reading {
    fn new(driver: &Driver) -> Result<Self, Error> {
        let handles = driver.gpus()?;
        let handles = handles.iter().map(|gpu| gpu.aside("nvml-links"));
        let mut reading = Self {
            handles: handles.collect::<Result<_, _>>()?,
            gpus: BTreeMap::new(),
            failed: BTreeMap::new(),
        };
        reading.gpus =
            reading.ask(|device| Ok((device.uuid().to_owned(), device.pci()?.bus_id)))?;
        Ok(reading)
    }

    /// Asks all GPUs the same at once. Those that fail are left out of the answers.
    fn ask<T: Send + 'static>(
        &mut self,
        question: impl Fn(&Device<'_>) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<BTreeMap<u32, T>, Error> {
        let mut answers = BTreeMap::new();
        for (index, answer) in (0..).zip(on_each(&self.handles, question)) {
            match answer {
                Ok(answer) => {
                    answers.insert(index, answer);
                }
                Err(error) if error.is_driver_gone() => return Err(error),
                Err(error) => {
                    self.failed.entry(index).or_insert(error);
                }
            }
        }
        Ok(answers)
    }

    fn read(mut self) -> Result<TopologyReport, Error> {
        let gpus = Arc::new(self.gpus.clone());
        let mut paths: BTreeMap<(String, String), Path> = BTreeMap::new();
        let mut switched: BTreeMap<String, u32> = BTreeMap::new();
        let own = |index| gpus.get(&index).map(|(uuid, _)| uuid.clone());
        for (other, (other_uuid, _)) in gpus.iter() {
            let other = *other;
            let relations = self.ask(move |device| match device.gpu_ref().index {
                own if own == other => Ok(None),
                _ => device.pcie_relation(other).optional().map(Option::flatten),
            })?;
            for (index, pcie) in relations {
                // A path of which nothing is known is one nevertheless: both may have links to a switch.
                if let Some(uuid) = own(index).filter(|uuid| uuid != other_uuid) {
                    paths.entry((uuid, other_uuid.clone())).or_default().pcie = pcie;
                }
            }
        }
        let counts = Arc::new(self.ask(|device| device.nvlink_count())?);
        for link in 0..counts.values().copied().max().unwrap_or_default() {
            let counts = Arc::clone(&counts);
            let ends = self.ask(move |device| {
                let has = counts
                    .get(&device.gpu_ref().index)
                    .is_some_and(|n| link < *n);
                if has { device.nvlink(link) } else { Ok(None) }
            })?;
            for (index, end) in ends {
                let Some(uuid) = own(index) else { continue };
                match end {
                    Some(NvLinkEnd::Switch) => *switched.entry(uuid).or_default() += 1,
                    Some(NvLinkEnd::Gpu(bus_id)) => {
                        let other = gpus.values().find(|(_, other)| *other == bus_id);
                        if let Some((other, _)) = other {
                            paths.entry((uuid, other.clone())).or_default().nvlinks += 1;
                        }
                    }
                    Some(NvLinkEnd::Other) | None => {}
                }
            }
        }
        Ok(TopologyReport {
            topology: Topology::new(&paths, &switched),
            failed: self.failed,
        })
    }
}
