//! Whether the node has a GPU at all, as the kernel sees it without a driver of NVIDIA's.

use std::path::Path;

use nvml::PciDevice;

/// Base class of display controllers, which data-centre GPUs are too (0x0300 VGA, 0x0302 3D).
const DISPLAY: u32 = 0x03;

/// Whether there is an NVIDIA GPU on the PCI bus of the node at `root`; `true` when that cannot be told.
pub(crate) fn has_gpu(root: &Path) -> bool {
    let is_gpu = |device: &PciDevice| device.class().is_none_or(|class| class >> 16 == DISPLAY);
    PciDevice::of_nvidia(root).map_or(true, |devices| devices.iter().any(is_gpu))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing(&[], false)]
    #[case::a_3d_accelerator(&[("0x10de", Some("0x030200"))], true)]
    #[case::a_display_adapter(&[("0x8086", Some("0x060400")), ("0x10de", Some("0x030000"))], true)]
    #[case::an_unreadable_class(&[("0x10de", None)], true)]
    #[case::an_nvswitch(&[("0x10de", Some("0x068000"))], false)]
    #[case::another_vendor(&[("0x1002", Some("0x030000"))], false)]
    fn buses(#[case] devices: &[(&str, Option<&str>)], #[case] wanted: bool) {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("sys/bus/pci/devices");
        fs::create_dir_all(&folder).unwrap();
        for (number, (vendor, class)) in devices.iter().enumerate() {
            let device = folder.join(format!("0000:{number:02x}:00.0"));
            fs::create_dir(&device).unwrap();
            fs::write(device.join("vendor"), format!("{vendor}\n")).unwrap();
            if let Some(class) = class {
                fs::write(device.join("class"), format!("{class}\n")).unwrap();
            }
        }
        assert_eq!(has_gpu(root.path()), wanted);
    }

    #[test]
    fn without_a_bus_to_look_at_nothing_is_known() {
        let root = tempfile::tempdir().unwrap();
        assert!(has_gpu(root.path()));
    }
}
