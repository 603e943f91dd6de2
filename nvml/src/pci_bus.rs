//! NVIDIA's devices on a node's PCI bus as the kernel shows them, with or without a driver.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the kernel shows PCI devices, below the node's root.
const FOLDER: &str = "sys/bus/pci/devices";

/// NVIDIA's vendor id.
const NVIDIA: u32 = 0x10de;

/// A device on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    folder: PathBuf,
}

impl PciDevice {
    /// All of NVIDIA's on the node at `root`, in the order of their addresses: GPUs, their audio functions, switches.
    ///
    /// # Errors
    /// The bus is not shown: there is none, or `/sys` of the node is not mounted.
    pub fn of_nvidia(root: &Path) -> io::Result<Vec<Self>> {
        let entries = fs::read_dir(root.join(FOLDER))?.flatten();
        let devices = entries.map(|entry| Self {
            folder: entry.path(),
        });
        let mut devices: Vec<Self> = devices
            .filter(|device| device.number("vendor") == Some(NVIDIA))
            .collect();
        devices.sort_by(|one, other| one.folder.cmp(&other.folder));
        Ok(devices)
    }

    /// The one with this name ([`Pci::sysfs_name`](crate::Pci::sysfs_name)), whether or not it is there.
    #[must_use]
    pub fn named(root: &Path, sysfs_name: &str) -> Self {
        Self {
            folder: root.join(FOLDER).join(sysfs_name),
        }
    }

    /// Base class, subclass and programming interface, such as `0x030200`; `None` when it cannot be read.
    #[must_use]
    pub fn class(&self) -> Option<u32> {
        self.number("class")
    }

    /// A file that the kernel offers of it.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn number(&self, file: &str) -> Option<u32> {
        let text = fs::read_to_string(self.file(file)).ok()?;
        u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn only_nvidias_devices_count_in_the_order_of_their_addresses() {
        let root = tempfile::tempdir().unwrap();
        assert!(PciDevice::of_nvidia(root.path()).is_err(), "no bus");
        for (name, vendor, class) in [
            ("0000:c1:00.0", "0x10de\n", "0x030200\n"),
            ("0000:00:1f.0", "0x8086\n", "0x060100\n"),
            ("0000:03:00.0", "0x10de\n", "0x068000\n"),
            ("0000:04:00.0", "10de\n", "0x030200\n"),
        ] {
            let device = PciDevice::named(root.path(), name);
            fs::create_dir_all(&device.folder).unwrap();
            fs::write(device.file("vendor"), vendor).unwrap();
            fs::write(device.file("class"), class).unwrap();
        }
        // One that goes while it is looked at.
        fs::create_dir(PciDevice::named(root.path(), "0000:05:00.0").folder).unwrap();
        let found = PciDevice::of_nvidia(root.path()).unwrap();
        let named = |name| PciDevice::named(root.path(), name);
        assert_eq!(found, [named("0000:03:00.0"), named("0000:c1:00.0")]);
        let classes: Vec<_> = found.iter().map(PciDevice::class).collect();
        assert_eq!(classes, [Some(0x06_80_00), Some(0x03_02_00)]);
        assert_eq!(named("0000:05:00.0").class(), None);
    }
}
