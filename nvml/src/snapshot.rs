//! What a node has, at one moment.

use serde::{Deserialize, Serialize};

use crate::Code;
use crate::device::{Device, MigDevice};
use crate::driver::Driver;
use crate::error::{Error, Optional};
use crate::fabric::Fabric;
use crate::handle::Gpu;
use crate::identity::{AddressingMode, Architecture, Brand, Pci, Versions};
use crate::memory::Memory;
use crate::mig::MigMode;
use crate::process::Process;

/// A node's GPUs at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Which opening of the driver it was taken with; see [`Driver::generation`].
    pub generation: u64,
    /// Versions of the driver.
    pub versions: Versions,
    /// One entry per NVML index: the GPU, or why it cannot be described.
    pub gpus: Vec<Result<GpuInfo, Error>>,
}

impl Snapshot {
    /// The GPUs that answered.
    pub fn present(&self) -> impl Iterator<Item = &GpuInfo> {
        self.gpus.iter().filter_map(|gpu| gpu.as_ref().ok())
    }

    /// The GPUs that did not, by index, and why.
    pub fn failed(&self) -> impl Iterator<Item = (u32, &Error)> {
        (0..)
            .zip(&self.gpus)
            .filter_map(|(index, gpu)| gpu.as_ref().err().map(|error| (index, error)))
    }
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// NVML index.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// Board serial number.
    pub serial: Option<String>,
    /// Place and ids on the PCI bus.
    pub pci: Pci,
    /// The `N` of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// Product name.
    pub name: String,
    /// Brand.
    pub brand: Option<Brand>,
    /// Architecture.
    pub architecture: Option<Architecture>,
    /// CUDA compute capability.
    pub compute_capability: Option<(u32, u32)>,
    /// How memory is addressed together with the CPU's.
    pub addressing_mode: Option<AddressingMode>,
    /// Place in an NVLink fabric.
    pub fabric: Option<Fabric>,
    /// Memory, unless the driver shows it to privileged processes only.
    pub memory: Option<Memory>,
    /// MIG mode; `None` on a GPU without MIG.
    pub mig: Option<MigMode>,
    /// Whether MIG mode changes without a reset.
    pub resetless_mig: bool,
    /// What it can be cut into; `None` on a GPU without MIG.
    pub board: Option<gpu::Board>,
    /// How it is cut; `None` when the driver does not let this process list instances.
    pub layout: Option<gpu::Layout>,
    /// Its MIG devices, by index.
    pub mig_devices: Vec<MigDevice>,
    /// Who uses it; `None` when the driver does not let this process know.
    pub processes: Option<Vec<Process>>,
}

impl Driver {
    /// Looks at everything, all GPUs at once. A GPU that fails has its error in its place.
    ///
    /// # Errors
    /// Only when the driver as a whole is gone or hangs.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        let generation = self.generation();
        let versions = self.versions()?;
        let gpus = self.for_each_gpu(|device| device.info())?;
        // Gone in the middle: that is no GPU's own trouble.
        if let Some(error) = gpus
            .iter()
            .filter_map(|gpu| gpu.as_ref().err())
            .find(|error| error.is_driver_gone())
        {
            return Err(error.clone());
        }
        Ok(Snapshot {
            generation,
            versions,
            gpus,
        })
    }
}

impl Gpu {
    /// Looks at this GPU.
    ///
    /// # Errors
    /// The GPU or the driver is gone, or hangs.
    pub fn info(&self) -> Result<GpuInfo, Error> {
        self.run(|device| device.info())
    }
}

/// What MIG makes of a GPU.
struct Shape {
    mig: Option<MigMode>,
    board: Option<gpu::Board>,
    layout: Option<gpu::Layout>,
    devices: Vec<MigDevice>,
}

impl Device<'_> {
    /// MIG mode (`None` on a GPU without MIG) and the MIG devices by index, from one moment.
    ///
    /// # Errors
    /// The calls'.
    pub fn mig(&self) -> Result<(Option<MigMode>, Vec<MigDevice>), Error> {
        self.settled(|| {
            let mode = self.mig_mode().optional()?;
            let devices = if mode.is_some_and(|mode| mode.current) {
                self.described_mig_devices()?
            } else {
                Vec::new()
            };
            Ok((mode, devices))
        })
    }

    fn described_mig_devices(&self) -> Result<Vec<MigDevice>, Error> {
        self.mig_devices()?
            .iter()
            .map(|(index, device)| device.describe_mig_device(*index))
            .collect()
    }

    fn shape(&self) -> Result<Shape, Error> {
        let mig = self.mig_mode().optional()?;
        let (board, layout) = match mig {
            None => (None, Some(gpu::Layout::default())),
            Some(mode) => match self.board_and_layout(mode.current) {
                Ok((board, layout)) => (Some(board), Some(layout)),
                // Without the permission to list instances, the profiles can still be told.
                Err(error) if error.code() == Some(Code::NO_PERMISSION) => {
                    (Some(self.board()?), None)
                }
                Err(error) => return Err(error),
            },
        };
        Ok(Shape {
            mig,
            board,
            layout,
            devices: self.described_mig_devices()?,
        })
    }

    /// Describes this GPU.
    ///
    /// # Errors
    /// The first call that fails with more than "there is no such value".
    pub fn info(&self) -> Result<GpuInfo, Error> {
        let shape = self.settled(|| self.shape())?;
        let mig = shape.mig;
        Ok(GpuInfo {
            index: self.gpu_ref().index,
            uuid: self.uuid().to_owned(),
            serial: descriptive(self.serial())?,
            pci: self.pci()?,
            minor: self.minor().optional()?,
            name: self.name()?,
            brand: descriptive(self.brand())?,
            architecture: descriptive(self.architecture())?,
            compute_capability: self.compute_capability().optional()?,
            addressing_mode: descriptive(self.addressing_mode())?,
            fabric: descriptive(self.fabric())?.flatten(),
            memory: self.memory().readable()?,
            mig,
            resetless_mig: mig.is_some() && self.mig_is_resetless()?,
            board: shape.board,
            layout: shape.layout,
            mig_devices: shape.devices,
            processes: self.processes().readable()?,
        })
    }
}

/// A value that only describes a GPU, which can be used without it: a GPU whose InfoROM is damaged, say, has no serial number,
/// and nothing else is wrong with it. That the GPU or the driver is gone, or busy, is no matter of this value.
fn descriptive<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer.optional() {
        Err(error) if error.code().is_some() && !error.is_transient() && !error.is_gpu_lost() => {
            tracing::debug!(%error, "left out of the description");
            Ok(None)
        }
        other => other,
    }
}
