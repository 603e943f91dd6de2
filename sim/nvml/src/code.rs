//! The return codes of NVML (`nvmlReturn_t`) under the names of NVIDIA's header.
//!
//! Knows nothing of the calls that return them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// One `nvmlReturn_t` value. Unknown numbers are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Code(pub u32);

macro_rules! codes {
    ($($name:ident = $value:literal),+ $(,)?) => {
        impl Code {
            $(#[doc = concat!("`NVML_` code ", stringify!($value), ".")] pub const $name: Code = Code($value);)+

            /// Every code of the 13.3 header, ascending.
            pub const ALL: &'static [Code] = &[$(Code($value)),+];

            /// The header's name without its `NVML_ERROR_` prefix; `None` for a number the header does not define.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)+
                    _ => None,
                }
            }
        }
    };
}

codes! {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    ALREADY_INITIALIZED = 5,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    INSUFFICIENT_POWER = 8,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    IRQ_ISSUE = 11,
    LIBRARY_NOT_FOUND = 12,
    FUNCTION_NOT_FOUND = 13,
    CORRUPTED_INFOROM = 14,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    OPERATING_SYSTEM = 17,
    LIB_RM_VERSION_MISMATCH = 18,
    IN_USE = 19,
    MEMORY = 20,
    NO_DATA = 21,
    VGPU_ECC_NOT_SUPPORTED = 22,
    INSUFFICIENT_RESOURCES = 23,
    FREQ_NOT_SUPPORTED = 24,
    ARGUMENT_VERSION_MISMATCH = 25,
    DEPRECATED = 26,
    NOT_READY = 27,
    GPU_NOT_FOUND = 28,
    INVALID_STATE = 29,
    RESET_TYPE_NOT_SUPPORTED = 30,
    UNKNOWN = 999,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "code {}", self.0),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that names no code.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no NVML code: give a number or a name such as IN_USE or GPU_IS_LOST")]
pub struct UnknownCode(String);

impl FromStr for Code {
    type Err = UnknownCode;

    /// Accepts the number, the short name and the header's full name, in any case.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(number) = text.parse() {
            return Ok(Code(number));
        }
        let upper = text.to_ascii_uppercase();
        let short = upper.strip_prefix("NVML_").unwrap_or(&upper);
        let short = short.strip_prefix("ERROR_").unwrap_or(short);
        Code::ALL
            .iter()
            .copied()
            .find(|code| code.name() == Some(short))
            .ok_or_else(|| UnknownCode(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("19", 19)]
    #[case("in_use", 19)]
    #[case("NVML_ERROR_GPU_IS_LOST", 15)]
    #[case("INSUFFICIENT_RESOURCES", 23)]
    #[case("NVML_SUCCESS", 0)]
    #[case("999", 999)]
    fn parses_numbers_and_names(#[case] text: &str, #[case] number: u32) {
        assert_eq!(text.parse::<Code>().unwrap(), Code(number));
    }

    #[test]
    fn names_of_codes_the_bindings_lack() {
        assert_eq!(Code(23).to_string(), "INSUFFICIENT_RESOURCES (23)");
        assert_eq!(Code(30).to_string(), "RESET_TYPE_NOT_SUPPORTED (30)");
        assert_eq!(Code(77).to_string(), "code 77");
        assert!(
            "NOPE"
                .parse::<Code>()
                .unwrap_err()
                .to_string()
                .contains("NOPE")
        );
    }
}
