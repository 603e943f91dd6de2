//! Asks the driver and the kernel, and makes the value that the label rules see.

use std::path::Path;

use gpu::labels;
use nvml::{Device, Driver, Error, FabricState, Optional as _, PciDevice};

use crate::machine;

/// A node as found, and what could not be found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) node: labels::Node,
    /// GPUs that could not be read. They are not in `node`; the others' labels do not depend on them.
    pub(crate) failed: Vec<Error>,
    /// Why vGPU labels are missing.
    pub(crate) vgpu: Option<String>,
}

/// What there is to say without a driver.
pub(crate) fn without_driver(root: &Path) -> Found {
    let (vgpu, reason) = match machine::vgpu(root) {
        Ok(vgpu) => (Some(vgpu), None),
        Err(reason) => (None, Some(reason)),
    };
    Found {
        node: labels::Node {
            vgpu,
            ..labels::Node::default()
        },
        failed: Vec::new(),
        vgpu: reason,
    }
}

/// Looks at the whole node.
///
/// # Errors
/// The driver is gone, or its GPUs cannot even be counted.
pub(crate) fn find(root: &Path, driver: &Driver, machine_type_file: &Path) -> Result<Found, Error> {
    let versions = driver.versions()?;
    let mut found = without_driver(root);
    let answers = driver.for_each_gpu(read_gpu)?;
    for answer in answers {
        match answer {
            Ok(Read { gpu, sysfs_name }) if !gpu::is_display(&gpu.name) => {
                let pci_class = PciDevice::named(root, &sysfs_name).class();
                found.node.gpus.push(labels::Gpu { pci_class, ..gpu });
            }
            Ok(_) => {}
            // Gone in the middle: what was read before is no node.
            Err(error) if error.is_driver_gone() => return Err(error),
            Err(error) => found.failed.push(error),
        }
    }
    found.node.machine = machine::machine_type(root, machine_type_file);
    found.node.driver = Some(labels::Driver {
        version: versions.driver,
        cuda: versions.cuda.map(|cuda| (cuda.major, cuda.minor)),
    });
    Ok(found)
}

struct Read {
    gpu: labels::Gpu,
    sysfs_name: String,
}

fn read_gpu(device: &Device<'_>) -> Result<Read, Error> {
    let (mode, devices) = device.mig()?;
    let mig = mode.map(|mode| labels::Mig {
        enabled: mode.current,
        devices: devices.into_iter().map(mig_device).collect(),
    });
    let gpu = labels::Gpu {
        name: device.name()?,
        // In MIG mode only privileged processes may ask; then the label is left out.
        memory_bytes: device.memory().readable()?.map(|memory| memory.total),
        compute_capability: device.compute_capability().optional()?,
        pci_class: None,
        mig,
        fabric: device.fabric().optional()?.flatten().and_then(joined),
    };
    Ok(Read {
        gpu,
        sysfs_name: device.pci()?.sysfs_name(),
    })
}

/// The fabric, once the GPU has joined it.
fn joined(fabric: nvml::Fabric) -> Option<labels::Fabric> {
    let has_joined = fabric.state == FabricState::Completed && fabric.status == nvml::Code::SUCCESS;
    has_joined.then_some(labels::Fabric {
        cluster: fabric.cluster_uuid,
        clique: fabric.clique,
    })
}

fn mig_device(device: nvml::MigDevice) -> labels::MigDevice {
    labels::MigDevice {
        profile: device.profile_name().unwrap_or_default().to_owned(),
        attributes: device.attributes,
    }
}
