//! The `device-filter` of a spec: which PCI ids it means.

use std::fmt;
use std::str::FromStr;

use gpu::PciId;

/// One filter value: `0xDDDDVVVV`, or `0xDDDDVVVV:0xSSSSVVVV` with the subsystem's ids.
///
/// Each half packs device and vendor as NVML does, for example `0x20B010DE` for an A100-SXM4-40GB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceFilter {
    device: u32,
    subsystem: Option<u32>,
}

impl From<PciId> for DeviceFilter {
    /// The filter for these ids; an unknown subsystem stands for any.
    fn from(id: PciId) -> Self {
        Self {
            device: id.device,
            subsystem: (id.subsystem != 0).then_some(id.subsystem),
        }
    }
}

impl DeviceFilter {
    /// The filter that matches every GPU with this device id, whatever its subsystem.
    pub fn device(id: PciId) -> Self {
        Self {
            device: id.device,
            subsystem: None,
        }
    }

    /// Whether a GPU with these ids passes.
    pub fn matches(self, id: PciId) -> bool {
        self.device == id.device && self.subsystem.is_none_or(|s| s == id.subsystem)
    }
}

/// Why a filter is malformed. mig-parted reads such a filter as zero, which silently matches nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "malformed device-filter {given:?}: write 0xDDDDVVVV or 0xDDDDVVVV:0xSSSSVVVV in quotes (device and vendor in hex, such as 0x20B010DE)"
)]
pub struct FilterError {
    given: String,
}

impl FromStr for DeviceFilter {
    type Err = FilterError;

    fn from_str(s: &str) -> Result<Self, FilterError> {
        let malformed = || FilterError {
            given: s.chars().take(40).collect(),
        };
        let (device, subsystem) = match s.split_once(':') {
            None => (s, None),
            Some((device, subsystem)) => (device, Some(subsystem)),
        };
        Ok(Self {
            device: packed_id(device).ok_or_else(malformed)?,
            subsystem: match subsystem {
                None => None,
                Some(s) => Some(packed_id(s).ok_or_else(malformed)?),
            },
        })
    }
}

/// Parses `0x` and eight hex digits; zero is no id. Fewer digits are a device without its vendor, or a typo: either
/// would match nothing.
fn packed_id(s: &str) -> Option<u32> {
    let digits = s.strip_prefix("0x").or_else(|| s.strip_prefix("0X"))?;
    let hex = digits.len() == 8 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let id = u32::from_str_radix(digits, 16).ok().filter(|_| hex)?;
    (id != 0).then_some(id)
}

impl fmt::Display for DeviceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08X}", self.device)?;
        match self.subsystem {
            Some(subsystem) => write!(f, ":0x{subsystem:08X}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    const H100: PciId = PciId {
        device: 0x2330_10DE,
        subsystem: 0x16C1_10DE,
    };

    #[rstest]
    #[case::device("0x233010DE", true)]
    #[case::lower_case("0x233010de", true)]
    #[case::subsystem("0x233010DE:0x16C110DE", true)]
    #[case::other_device("0x20B010DE", false)]
    #[case::other_subsystem("0x233010DE:0x16C010DE", false)]
    fn matching(#[case] filter: &str, #[case] expected: bool) {
        let filter: DeviceFilter = filter.parse().unwrap();
        assert_eq!(filter.matches(H100), expected);
    }

    #[test]
    fn unknown_subsystem_does_not_pass_a_subsystem_filter() {
        let filter: DeviceFilter = "0x233010DE:0x16C110DE".parse().unwrap();
        assert!(!filter.matches(PciId {
            subsystem: 0,
            ..H100
        }));
    }

    #[rstest]
    #[case("")]
    #[case("233010DE")]
    #[case("0x")]
    #[case("0x0")]
    #[case("0x00000000")]
    #[case("0x2330")]
    #[case("0x233010D")]
    #[case("0x233010DE:0x16C1")]
    #[case("0x1233010DE")]
    #[case("0x+33010DE")]
    #[case("0x2330 10DE")]
    #[case("0x233010DE:")]
    #[case("0x233010DE:0x")]
    #[case("0x233010DE:0x16C110DE:0x1")]
    #[case("A100")]
    #[case("\u{660}x233010DE")]
    fn malformed(#[case] filter: &str) {
        let error = filter.parse::<DeviceFilter>().unwrap_err();
        assert!(error.to_string().contains("malformed device-filter"));
    }

    #[rstest]
    #[case("0x20b010de", "0x20B010DE")]
    #[case("0x233010DE:0x16c110de", "0x233010DE:0x16C110DE")]
    fn text(#[case] given: &str, #[case] shown: &str) {
        assert_eq!(given.parse::<DeviceFilter>().unwrap().to_string(), shown);
    }
}
