//! Which devices a rule is about: an index, a UUID, a bus id or a model.
//!
//! Index, `gpu:mig` and UUID are what NVIDIA's plugin reads under `devices` (and then drops); bus id and model are ours.

use std::fmt;
use std::str::FromStr;

use super::pattern::Pattern;

/// What is known of a device when it is selected.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// NVML index of the GPU.
    pub gpu_index: u32,
    /// UUID of the GPU, `GPU-…`.
    pub gpu_uuid: &'a str,
    /// PCI bus id of the GPU, `00000000:65:00.0`.
    pub bus_id: &'a str,
    /// Product name of the GPU.
    pub model: &'a str,
    /// MIG index and UUID, `MIG-…`; `None` for a whole GPU.
    pub mig: Option<(u32, &'a str)>,
}

/// Selects devices. What selects a GPU selects its MIG devices too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selector {
    /// NVML index of a GPU.
    Index(u32),
    /// GPU index and MIG index.
    MigIndex(u32, u32),
    /// `GPU-…` or `MIG-…`.
    Uuid(String),
    /// PCI domain, bus, device and function.
    BusId(u32, u8, u8, u8),
    /// Product name.
    Model(Pattern),
}

/// The text selects nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} selects no device: use an index (0), GPU and MIG index (0:1), a UUID (GPU-… or MIG-…), a bus id (0000:65:00.0) or a model with its wildcard (*A100*)"
)]
pub struct BadSelector(pub String);

impl Selector {
    /// Whether the device is meant.
    pub fn selects(&self, device: &Candidate<'_>) -> bool {
        match self {
            Self::Index(index) => device.gpu_index == *index,
            Self::MigIndex(gpu, mig) => {
                device.gpu_index == *gpu && device.mig.is_some_and(|(index, _)| index == *mig)
            }
            Self::Uuid(uuid) => {
                // Tools print UUIDs in either case.
                device.gpu_uuid.eq_ignore_ascii_case(uuid)
                    || device
                        .mig
                        .is_some_and(|(_, own)| own.eq_ignore_ascii_case(uuid))
            }
            Self::BusId(domain, bus, slot, function) => {
                bus_id(device.bus_id) == Some((*domain, *bus, *slot, *function))
            }
            Self::Model(pattern) => pattern.matches(device.model),
        }
    }
}

/// `[domain:]bus:device.function` in hexadecimal; the driver writes domains with eight digits, the kernel with four.
fn bus_id(text: &str) -> Option<(u32, u8, u8, u8)> {
    let (place, function) = text.split_once('.')?;
    let mut parts = place.rsplit(':');
    let (slot, bus) = (parts.next()?, parts.next()?);
    let domain = parts.next().unwrap_or("0");
    // `from_str_radix` takes a sign.
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_hexdigit());
    if parts.next().is_some() || ![domain, bus, slot, function].into_iter().all(plain) {
        return None;
    }
    Some((
        u32::from_str_radix(domain, 16).ok()?,
        u8::from_str_radix(bus, 16).ok()?,
        u8::from_str_radix(slot, 16).ok()?,
        u8::from_str_radix(function, 16).ok()?,
    ))
}

impl FromStr for Selector {
    type Err = BadSelector;

    fn from_str(text: &str) -> Result<Self, BadSelector> {
        let bad = || BadSelector(text.chars().take(80).collect());
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
            digits.then(|| text.parse::<u32>().ok()).flatten()
        };
        if let Some(index) = number(text) {
            return Ok(Self::Index(index));
        }
        if let Some((gpu, mig)) = text.split_once(':')
            && let (Some(gpu), Some(mig)) = (number(gpu), number(mig))
        {
            return Ok(Self::MigIndex(gpu, mig));
        }
        if let Some(rest) = text.strip_prefix("GPU-").or(text.strip_prefix("MIG-")) {
            return if rest.is_empty() {
                Err(bad())
            } else {
                Ok(Self::Uuid(text.to_owned()))
            };
        }
        if let Some((domain, bus, slot, function)) = bus_id(text) {
            return Ok(Self::BusId(domain, bus, slot, function));
        }
        // Without a wildcard or a letter it is a mistyped index or bus id, not a product.
        let is_model = text.contains('*') || text.bytes().any(|c| c.is_ascii_alphabetic());
        if is_model && !text.contains(':') {
            Ok(Self::Model(Pattern::new(text)))
        } else {
            Err(bad())
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::MigIndex(gpu, mig) => write!(f, "{gpu}:{mig}"),
            Self::Uuid(uuid) => f.write_str(uuid),
            Self::BusId(domain, bus, slot, function) => {
                write!(f, "{domain:04x}:{bus:02x}:{slot:02x}.{function:x}")
            }
            Self::Model(pattern) => write!(f, "{pattern}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::{BadSelector, Candidate, Selector};

    const GPU: Candidate<'_> = Candidate {
        gpu_index: 3,
        gpu_uuid: "GPU-aa",
        bus_id: "00000000:65:00.0",
        model: "NVIDIA A100-SXM4-40GB",
        mig: None,
    };
    const MIG: Candidate<'_> = Candidate {
        mig: Some((1, "MIG-bb")),
        ..GPU
    };

    #[rstest]
    #[case("3", true, true)]
    #[case("1", false, false)]
    #[case("3:1", false, true)]
    #[case("3:0", false, false)]
    #[case("GPU-aa", true, true)]
    #[case("GPU-AA", true, true)]
    #[case("MIG-bb", false, true)]
    #[case("MIG-aa", false, false)]
    #[case("0000:65:00.0", true, true)]
    #[case("65:00.0", true, true)]
    #[case("00000000:65:00.0", true, true)]
    #[case("0001:65:00.0", false, false)]
    #[case("0000:66:00.0", false, false)]
    #[case("*A100*", true, true)]
    #[case("*H100*", false, false)]
    #[case("NVIDIA A100-SXM4-40GB", true, true)]
    fn selects(#[case] text: &str, #[case] gpu: bool, #[case] mig: bool) {
        let selector: Selector = text.parse().unwrap();
        assert_eq!((selector.selects(&GPU), selector.selects(&MIG)), (gpu, mig));
        assert_eq!(selector.to_string().parse(), Ok(selector));
    }

    #[rstest]
    fn bad(
        #[values(
            "",
            "-1",
            "0:",
            ":1",
            "0:1:2",
            "GPU-",
            "MIG-",
            "+3",
            "4294967296",
            "A100:0",
            "1.5"
        )]
        text: &str,
    ) {
        assert_eq!(text.parse::<Selector>(), Err(BadSelector(text.to_owned())));
    }
}
