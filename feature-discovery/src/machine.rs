//! What the kernel says about the machine, under the node root: its type, and its PCI devices.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use gpu::labels::Vgpu;

use crate::vgpu::{self, CONFIG_BYTES};

const PCI_DEVICES: &str = "sys/bus/pci/devices";
const NVIDIA: u32 = 0x10de;

/// The machine type; `None` when the file is missing or says nothing.
pub(crate) fn machine_type(root: &Path, file: &Path) -> Option<String> {
    let path = root.join(file.strip_prefix("/").unwrap_or(file));
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The PCI class of the device with this name in sysfs.
pub(crate) fn pci_class(root: &Path, sysfs_name: &str) -> Option<u32> {
    hex(&root.join(PCI_DEVICES).join(sysfs_name).join("class"))
}

/// Whether there is a vGPU among the PCI devices; `Err` says why that cannot be known.
pub(crate) fn vgpu(root: &Path) -> Result<Vgpu, String> {
    let folder = root.join(PCI_DEVICES);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) => return Err(format!("{}: {error}", folder.display())),
    };
    let mut devices: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    // Several vGPUs have one host; the order only has to be the same every time.
    devices.sort();
    for device in devices {
        if hex(&device.join("vendor")) != Some(NVIDIA) {
            continue;
        }
        let path = device.join("config");
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

fn hex(path: &Path) -> Option<u32> {
    let text = fs::read_to_string(path).ok()?;
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn device(root: &Path, name: &str, vendor: &str, config: &[u8]) {
        let folder = root.join(PCI_DEVICES).join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("vendor"), vendor).unwrap();
        fs::write(folder.join("class"), "0x030200\n").unwrap();
        fs::write(folder.join("config"), config).unwrap();
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
    fn classes() {
        let root = tempfile::tempdir().unwrap();
        device(root.path(), "0000:1b:00.0", "0x10de\n", &[]);
        assert_eq!(pci_class(root.path(), "0000:1b:00.0"), Some(0x03_02_00));
        assert_eq!(pci_class(root.path(), "0000:1c:00.0"), None);
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
