//! A GPU in its own words: what resources and device nodes are made of.

use nvml::{Device, Error, Optional as _};

use super::KnownGpu;
use crate::resources::{Gpu, MigDevice};

/// Describes a GPU; `None` when it is none that programs compute on ([`gpu::is_display`]). What the driver does not say is
/// left out; an error means that the GPU does not answer.
///
/// # Errors
/// That of the first call that fails with more than "there is no such value".
pub fn describe(device: &Device<'_>) -> Result<Option<KnownGpu>, Error> {
    let model = device.name()?;
    if gpu::is_display(&model) {
        return Ok(None);
    }
    let pci = device.pci()?;
    let (mode, mig) = device.mig()?;
    let gpu = Gpu {
        index: device.gpu_ref().index,
        uuid: device.uuid().to_owned(),
        minor: device.minor().optional()?,
        bus_id: pci.bus_id,
        model,
        numa_node: pci.numa_node,
        mig_enabled: mode.is_some_and(|mode| mode.current),
        mig: mig.into_iter().map(mig_device).collect(),
    };
    Ok(Some(KnownGpu {
        gpu,
        mig_capable: mode.is_some(),
        // In MIG mode only privileged processes may ask.
        memory_bytes: device.memory().readable()?.map(|memory| memory.total),
        compute_capability: device.compute_capability().optional()?,
        trouble: None,
    }))
}

fn mig_device(device: nvml::MigDevice) -> MigDevice {
    MigDevice {
        profile: device.profile(),
        index: device.index,
        uuid: device.uuid,
        gpu_instance: device.gpu_instance,
        compute_instance: device.compute_instance,
        attributes: device.attributes,
    }
}
