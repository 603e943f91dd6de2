//! PCI addresses, in the forms of the kernel and of NVML.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A PCI address; the function is always 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
}

impl PciAddress {
    /// NVML's 32-byte form: `00000000:53:00.0`.
    pub fn long(&self) -> String {
        format!("{:08X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }

    /// NVML's 16-byte form: `0000:53:00.0`, upper case.
    pub fn legacy(&self) -> String {
        format!("{:04X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }

    /// The kernel's form: `0000:53:00.0`, lower case.
    pub fn sysfs(&self) -> String {
        format!("{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sysfs())
    }
}

/// A text that is no PCI address.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no PCI address: write it as 0000:53:00.0")]
pub struct BadPciAddress(String);

impl FromStr for PciAddress {
    type Err = BadPciAddress;

    /// Accepts `DOMAIN:BUS:DEVICE.FUNCTION` with any number of domain digits, and the same without the domain.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (front, function) = text.rsplit_once('.').unwrap_or((text, "0"));
            if function != "0" {
                return None;
            }
            let parts: Vec<&str> = front.split(':').collect();
            let (domain, bus, device) = match parts[..] {
                [domain, bus, device] => (u32::from_str_radix(domain, 16).ok()?, bus, device),
                [bus, device] => (0, bus, device),
                _ => return None,
            };
            let device = u8::from_str_radix(device, 16)
                .ok()
                .filter(|device| *device < 32)?;
            Some(PciAddress {
                domain,
                bus: u8::from_str_radix(bus, 16).ok()?,
                device,
            })
        };
        parse().ok_or_else(|| BadPciAddress(text.to_owned()))
    }
}

impl Serialize for PciAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PciAddress {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("00000000:53:00.0", 0, 0x53, 0)]
    #[case("0008:06:00.0", 8, 6, 0)]
    #[case("c9:1f.0", 0, 0xc9, 0x1f)]
    #[case("0000:C9:00", 0, 0xc9, 0)]
    fn pci_addresses_parse(
        #[case] text: &str,
        #[case] domain: u32,
        #[case] bus: u8,
        #[case] device: u8,
    ) {
        assert_eq!(
            text.parse::<PciAddress>().unwrap(),
            PciAddress {
                domain,
                bus,
                device
            }
        );
    }

    #[rstest]
    #[case("")]
    #[case("53")]
    #[case("0000:53:00.1")]
    #[case("0000:53:20.0")]
    #[case("0000:153:00.0")]
    #[case("0:0:0:0.0")]
    fn other_texts_do_not(#[case] text: &str) {
        assert!(text.parse::<PciAddress>().is_err());
    }

    #[test]
    fn pci_address_forms() {
        let address = PciAddress {
            domain: 9,
            bus: 0xc9,
            device: 0,
        };
        assert_eq!(address.long(), "00000009:C9:00.0");
        assert_eq!(address.legacy(), "0009:C9:00.0");
        assert_eq!(address.sysfs(), "0009:c9:00.0");
    }
}
