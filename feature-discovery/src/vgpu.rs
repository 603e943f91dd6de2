//! Whether this node is a vGPU guest, from PCI configuration space.
//!
//! NVIDIA's hypervisor driver adds a vendor-specific capability whose signature is `VF` to the virtual device, with records
//! inside; record 0 names the host's driver. The layout is the one gpu-feature-discovery reads (`internal/vgpu`). Bytes come
//! from outside, so every length is checked: a record that runs out of the capability ends the search.

/// A whole PCI configuration space header with capabilities. Without privilege the kernel gives only 64 bytes.
pub(crate) const CONFIG_BYTES: usize = 256;

const STATUS: usize = 0x06;
const STATUS_HAS_CAPABILITIES: u8 = 1 << 4;
const FIRST_CAPABILITY: usize = 0x34;
const VENDOR_SPECIFIC: u8 = 0x09;
/// Capabilities begin after the 64-byte header, four bytes apart: there cannot be more.
const MAX_CAPABILITIES: usize = (CONFIG_BYTES - 64) / 4;

/// What the host says about its driver; a text it does not give is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostDriver {
    pub(crate) version: Option<String>,
    pub(crate) branch: Option<String>,
}

/// Looks for the capability; `None` when the device is no vGPU.
pub(crate) fn host_driver(config: &[u8; CONFIG_BYTES]) -> Option<HostDriver> {
    if config[STATUS] & STATUS_HAS_CAPABILITIES == 0 {
        return None;
    }
    let mut at = pointer(config[FIRST_CAPABILITY]);
    for _ in 0..MAX_CAPABILITIES {
        if at < 64 {
            return None;
        }
        let capability = &config[at..];
        if let [VENDOR_SPECIFIC, _, length, b'V', b'F', ..] = *capability {
            let end = usize::from(length).min(capability.len());
            return Some(record_zero(capability.get(5..end).unwrap_or_default()));
        }
        at = pointer(*capability.get(1)?);
    }
    None
}

/// The low two bits are reserved.
fn pointer(byte: u8) -> usize {
    usize::from(byte & !3)
}

/// Records are an id, a length that counts both bytes, and data.
fn record_zero(mut records: &[u8]) -> HostDriver {
    while let [id, length, data @ ..] = records {
        if *id == 0 {
            return HostDriver {
                version: text(data.get(..10)),
                branch: text(data.get(10..20)),
            };
        }
        if *length == 0 {
            break;
        }
        records = records.get(usize::from(*length)..).unwrap_or_default();
    }
    HostDriver::default()
}

fn text(bytes: Option<&[u8]>) -> Option<String> {
    let bytes = bytes?;
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(&bytes[..end]).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    /// Power management at 0x40, then the vGPU capability at 0x50 with these records.
    fn config(records: &[u8]) -> [u8; CONFIG_BYTES] {
        let mut config = [0; CONFIG_BYTES];
        config[STATUS] = STATUS_HAS_CAPABILITIES;
        config[FIRST_CAPABILITY] = 0x40;
        config[0x40..0x42].copy_from_slice(&[0x01, 0x50]);
        config[0x50..0x55].copy_from_slice(&[
            VENDOR_SPECIFIC,
            0,
            u8::try_from(5 + records.len()).unwrap(),
            b'V',
            b'F',
        ]);
        config[0x55..0x55 + records.len()].copy_from_slice(records);
        config
    }

    fn driver(version: &str, branch: &str) -> Option<HostDriver> {
        Some(HostDriver {
            version: Some(version.to_owned()),
            branch: Some(branch.to_owned()),
        })
    }

    #[test]
    fn record_zero_names_the_driver() {
        assert_eq!(
            host_driver(&config(b"\0\x16570.124.03r570_00\0\0\0")),
            driver("570.124.03", "r570_00")
        );
        // After another record.
        let records = b"\x02\x04xy\0\x16535.54\0\0\0\0r535_00\0\0\0";
        assert_eq!(host_driver(&config(records)), driver("535.54", "r535_00"));
    }

    #[test]
    fn bad_records_are_a_vgpu_without_a_driver() {
        for records in [&b""[..], b"\x01\0\0\0", b"\x01\xff", b"\0", b"\0\x16570"] {
            assert_eq!(
                host_driver(&config(records)),
                Some(HostDriver::default()),
                "{records:?}"
            );
        }
    }

    #[test]
    fn other_devices_are_none() {
        assert_eq!(host_driver(&[0; CONFIG_BYTES]), None);
        let mut other = config(b"");
        other[0x53] = b'X';
        assert_eq!(host_driver(&other), None);
        // A list that bites its tail.
        other[0x51] = 0x40;
        assert_eq!(host_driver(&other), None);
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), CONFIG_BYTES), first in 64u8..) {
            let mut config: [u8; CONFIG_BYTES] = bytes.try_into().unwrap();
            config[STATUS] |= STATUS_HAS_CAPABILITIES;
            config[FIRST_CAPABILITY] = first;
            let at = pointer(first);
            if at + 5 < CONFIG_BYTES {
                config[at] = VENDOR_SPECIFIC;
                config[at + 3..at + 5].copy_from_slice(b"VF");
            }
            let _ = host_driver(&config);
        }
    }
}
