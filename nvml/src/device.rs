//! A GPU or MIG device inside one batch of calls.

use std::sync::Arc;

use nvml_wrapper_sys::bindings as sys;
use serde::{Deserialize, Serialize};

use crate::Code;
use crate::context::Context;
use crate::error::{Error, GpuRef};
use crate::lane::Memory;
use crate::library::symbol;

/// A GPU (or one of its MIG devices) while a batch of calls runs on its thread.
///
/// It cannot leave the batch, so no handle outlives what it stands for.
pub struct Device<'a> {
    pub(crate) context: &'a Context<'a>,
    pub(crate) handle: sys::nvmlDevice_t,
    pub(crate) uuid: Arc<str>,
}

impl std::fmt::Debug for Device<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.uuid)
    }
}

/// The handle at an index and the UUID behind it. The handle is looked up each time; who it is, once per handle and
/// opening of the library.
pub(crate) fn at_index(
    context: &Context<'_>,
    memory: &mut Memory,
    generation: u64,
    index: u32,
) -> Result<(sys::nvmlDevice_t, Arc<str>), Error> {
    let library = context.library;
    let handle = context
        .get_of(symbol!(library, nvmlDeviceGetHandleByIndex_v2), index)
        .map_err(|error| match error.code() {
            Some(Code::INVALID_ARGUMENT) => Error::NoSuchGpu {
                wanted: index.to_string(),
            },
            _ => error,
        })?;
    if let Some((of, known, uuid)) = &memory.device
        && *of == generation
        && *known == handle
    {
        return Ok((handle, Arc::clone(uuid)));
    }
    let uuid: Arc<str> = context
        .text_of::<96, _>(symbol!(library, nvmlDeviceGetUUID), handle)
        .map(Arc::from)?;
    let device = Device {
        context,
        handle,
        uuid: Arc::clone(&uuid),
    };
    context.progress.set_place(device.pci().ok());
    memory.device = Some((generation, handle, Arc::clone(&uuid)));
    Ok((handle, uuid))
}

/// A MIG device: a compute instance in a GPU instance, as CUDA programs see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigDevice {
    /// Index under its GPU; indices may have holes.
    pub index: u32,
    /// `MIG-…`.
    pub uuid: String,
    /// GPU-instance id.
    pub gpu_instance: u32,
    /// Compute-instance id.
    pub compute_instance: u32,
    /// For example `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
    pub name: Option<String>,
    /// What it consists of.
    pub attributes: Option<gpu::MigAttributes>,
}

impl MigDevice {
    /// Its profile as the driver spells it, for example `1g.10gb`; `None` when the driver does not name the device.
    #[must_use]
    pub fn profile_name(&self) -> Option<&str> {
        let (_, profile) = self.name.as_deref()?.rsplit_once("MIG ")?;
        Some(profile.trim())
    }

    /// Its profile; `None` when the driver names none, or none of the known form.
    #[must_use]
    pub fn profile(&self) -> Option<gpu::Profile> {
        self.profile_name()?.parse().ok()
    }
}

/// How often something is read again that changes while it is read.
const ATTEMPTS: usize = 3;

impl<'a> Device<'a> {
    /// Which GPU this is, for errors and logs. A MIG device gives its GPU.
    #[must_use]
    pub fn gpu_ref(&self) -> GpuRef {
        self.context.gpu.clone().unwrap_or(GpuRef {
            index: 0,
            uuid: Some(Arc::clone(&self.uuid)),
        })
    }

    /// `GPU-…`, or `MIG-…` for a MIG device.
    #[must_use]
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Reads again what another process changed meanwhile: then a handle from a moment ago is not valid any more.
    pub(crate) fn settled<T>(&self, read: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        for _ in 1..ATTEMPTS {
            match read() {
                Err(error)
                    if matches!(error.code(), Some(Code::NOT_FOUND | Code::INVALID_ARGUMENT)) => {}
                other => return other,
            }
        }
        read()
    }

    /// How many MIG devices the GPU can have; 0 with MIG off. Indices below it may be empty.
    ///
    /// # Errors
    /// The call's.
    pub fn max_mig_devices(&self) -> Result<u32, Error> {
        let library = self.context.library;
        self.context.get_of(
            symbol!(library, nvmlDeviceGetMaxMigDeviceCount),
            self.handle,
        )
    }

    /// The MIG device at an index of this GPU, or `None` where there is none.
    ///
    /// # Errors
    /// The call's.
    pub fn mig_device(&self, index: u32) -> Result<Option<Device<'a>>, Error> {
        let context = self.context;
        let library = context.library;
        let handle = context.get_with(
            symbol!(library, nvmlDeviceGetMigDeviceHandleByIndex),
            self.handle,
            index,
        );
        let handle = match handle {
            Ok(handle) => handle,
            // Some drivers answer a hole with the one, some with the other.
            Err(error)
                if error.is_absent()
                    || matches!(error.code(), Some(Code::NOT_FOUND | Code::INVALID_ARGUMENT)) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let uuid = context
            .text_of::<96, _>(symbol!(library, nvmlDeviceGetUUID), handle)?
            .into();
        Ok(Some(Device {
            context,
            handle,
            uuid,
        }))
    }

    /// Every MIG device of this GPU with its index.
    ///
    /// # Errors
    /// The calls'.
    pub fn mig_devices(&self) -> Result<Vec<(u32, Device<'a>)>, Error> {
        let mut devices = Vec::new();
        for index in 0..crate::Optional::optional(self.max_mig_devices())?.unwrap_or(0) {
            if let Some(device) = self.mig_device(index)? {
                devices.push((index, device));
            }
        }
        Ok(devices)
    }

    /// GPU-instance id of a MIG device.
    ///
    /// # Errors
    /// The call's; `NOT_SUPPORTED` or `INVALID_ARGUMENT` on a whole GPU.
    pub fn gpu_instance_id(&self) -> Result<u32, Error> {
        let library = self.context.library;
        self.context
            .get_of(symbol!(library, nvmlDeviceGetGpuInstanceId), self.handle)
    }

    /// Compute-instance id of a MIG device.
    ///
    /// # Errors
    /// The call's; `NOT_SUPPORTED` or `INVALID_ARGUMENT` on a whole GPU.
    pub fn compute_instance_id(&self) -> Result<u32, Error> {
        let library = self.context.library;
        self.context.get_of(
            symbol!(library, nvmlDeviceGetComputeInstanceId),
            self.handle,
        )
    }

    /// The size of a MIG device.
    ///
    /// # Errors
    /// The call's; `NOT_SUPPORTED` on a whole GPU.
    pub fn mig_attributes(&self) -> Result<gpu::MigAttributes, Error> {
        let library = self.context.library;
        let read: sys::nvmlDeviceAttributes_t = self
            .context
            .get_of(symbol!(library, nvmlDeviceGetAttributes_v2), self.handle)?;
        Ok(gpu::MigAttributes {
            multiprocessors: read.multiprocessorCount,
            engines: gpu::Engines {
                copy: read.sharedCopyEngineCount,
                decoder: read.sharedDecoderCount,
                encoder: read.sharedEncoderCount,
                jpeg: read.sharedJpegCount,
                ofa: read.sharedOfaCount,
            },
            gpu_slices: read.gpuInstanceSliceCount,
            compute_slices: read.computeInstanceSliceCount,
            memory_mib: read.memorySizeMB,
        })
    }

    /// Describes this MIG device.
    ///
    /// # Errors
    /// The calls'.
    pub fn describe_mig_device(&self, index: u32) -> Result<MigDevice, Error> {
        use crate::Optional;
        Ok(MigDevice {
            index,
            uuid: self.uuid.to_string(),
            gpu_instance: self.gpu_instance_id()?,
            compute_instance: self.compute_instance_id()?,
            name: self.name().optional()?,
            attributes: self.mig_attributes().optional()?,
        })
    }
}
