//! What the kernel says about the machine, under the node root: its type, and whether it is a virtual one with a vGPU.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use gpu::labels::Vgpu;
use nvml::PciDevice;

use crate::vgpu::{self, CONFIG_BYTES};

/// The machine type; `None` when the file is missing or says nothing.
pub(crate) fn machine_type(root: &Path, file: &Path) -> Option<String> {
    let path = root.join(file.strip_prefix("/").unwrap_or(file));
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Whether there is a vGPU among the PCI devices; `Err` says why that cannot be known.
pub(crate) fn vgpu(root: &Path) -> Result<Vgpu, String> {
    let devices = PciDevice::of_nvidia(root)
        .map_err(|error| format!("PCI devices below {}: {error}", root.display()))?;
    // Several vGPUs have one host: the first will do.
    for device in devices {
        let path = device.file("config");
        let config = read_config(&path).map_err(|error| {
            format!(
                "{}: {error}; reading PCI capabilities needs root",
                path.display()
            )
        })?;
        if let Some(host) = vgpu::host_driver(&config) {
            return Ok(Vgpu::Present {
                host_driver_version: host.version,
                host_driver_branch: host.branch,
            });
        }
    }
    Ok(Vgpu::Absent)
}

fn read_config(path: &Path) -> io::Result<[u8; CONFIG_BYTES]> {
    let mut config = [0; CONFIG_BYTES];
    File::open(path)?.read_exact(&mut config)?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn device(root: &Path, name: &str, vendor: &str, config: &[u8]) {
        let device = PciDevice::named(root, name);
        fs::create_dir_all(device.file("")).unwrap();
        fs::write(device.file("vendor"), vendor).unwrap();
        fs::write(device.file("config"), config).unwrap();
    }

    #[test]
    fn only_nvidia_devices_count() {
        let root = tempfile::tempdir().unwrap();
        assert!(vgpu(root.path()).is_err(), "no PCI devices folder");
        // Another vendor's short configuration space does not matter.
        device(root.path(), "0000:00:1f.0", "0x8086\n", &[0; 64]);
        assert_eq!(vgpu(root.path()), Ok(Vgpu::Absent));
        device(root.path(), "0000:01:00.0", "0x10de\n", &[0; 256]);
        assert_eq!(vgpu(root.path()), Ok(Vgpu::Absent));
        device(root.path(), "0000:02:00.0", "0x10de\n", &[0; 64]);
        assert!(vgpu(root.path()).is_err_and(|reason| reason.contains("needs root")));
    }

    #[test]
    fn an_empty_machine_type_is_none() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("product_name"), "DGXH100\n").unwrap();
        fs::write(root.path().join("empty"), "\n").unwrap();
        assert_eq!(
            machine_type(root.path(), Path::new("/product_name")).as_deref(),
            Some("DGXH100")
        );
        assert_eq!(machine_type(root.path(), Path::new("/empty")), None);
        assert_eq!(machine_type(root.path(), Path::new("/missing")), None);
    }
}
