//! NVML's return codes (`nvmlReturn_t`, header 13.3), with names, plain words and the classes that callers act on.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A return code of an NVML call.
///
/// A plain number with names, not an enumeration: a newer driver may answer with a code that this program does not know,
/// and that answer must survive as it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Code(pub u32);

macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Code {
            $(#[doc = concat!("`NVML_", stringify!($name), "`: ", $text, ".")]
            pub const $name: Self = Self($number);)*

            /// The code's name in the header without its `NVML_` or `NVML_ERROR_` prefix, or `None` for a number that the
            /// 13.3 header does not list.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }

            /// What the code means, in words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self.0 {
                    $($number => $text,)*
                    _ => "a code that this version of Lathe does not know",
                }
            }

            /// Every code of the 13.3 header, ascending.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

codes! {
    SUCCESS = 0, "the call succeeded";
    UNINITIALIZED = 1, "NVML is not initialised, or its driver was unloaded";
    INVALID_ARGUMENT = 2, "an argument is not valid";
    NOT_SUPPORTED = 3, "this GPU or driver does not offer it";
    NO_PERMISSION = 4, "this process lacks the permission; run it as root";
    ALREADY_INITIALIZED = 5, "NVML was already initialised";
    NOT_FOUND = 6, "no such object";
    INSUFFICIENT_SIZE = 7, "the buffer is too small";
    INSUFFICIENT_POWER = 8, "a power cable of the GPU is missing; plug it in";
    DRIVER_NOT_LOADED = 9, "the NVIDIA driver is not loaded; load its kernel module";
    TIMEOUT = 10, "the driver's own time limit passed";
    IRQ_ISSUE = 11, "the kernel found an interrupt problem with the GPU";
    LIBRARY_NOT_FOUND = 12, "a shared library that NVML needs is missing";
    FUNCTION_NOT_FOUND = 13, "the driver library does not have the function";
    CORRUPTED_INFOROM = 14, "the GPU's InfoROM is corrupted; the board needs service";
    GPU_IS_LOST = 15, "the GPU fell off the bus or cannot be reached; see the kernel log, then reset it or reboot the node";
    RESET_REQUIRED = 16, "the GPU needs a reset before it can be used again";
    OPERATING_SYSTEM = 17, "the operating system refused the GPU access";
    LIB_RM_VERSION_MISMATCH = 18, "the driver library and the kernel module are of different versions; reload the module or reboot the node";
    IN_USE = 19, "a process or an instance still uses it; end that first";
    MEMORY = 20, "not enough memory";
    NO_DATA = 21, "there is no data";
    VGPU_ECC_NOT_SUPPORTED = 22, "the vGPU cannot run with ECC on";
    INSUFFICIENT_RESOURCES = 23, "not enough free slices or engines";
    FREQ_NOT_SUPPORTED = 24, "the clock frequency is not supported";
    ARGUMENT_VERSION_MISMATCH = 25, "the driver does not know this version of the structure";
    DEPRECATED = 26, "the driver no longer offers it";
    NOT_READY = 27, "the GPU or the driver is not ready yet";
    GPU_NOT_FOUND = 28, "no such GPU";
    INVALID_STATE = 29, "the GPU is not in a state that allows it";
    RESET_TYPE_NOT_SUPPORTED = 30, "this kind of reset is not supported";
    UNKNOWN = 999, "the driver reports an internal error";
}

impl Code {
    /// The driver has nothing to say here: an absent value, not a failure.
    ///
    /// `NO_PERMISSION` is not among them, because a refused write is a failure; see [`Optional::readable`] for reads.
    ///
    /// [`Optional::readable`]: crate::Optional::readable
    #[must_use]
    pub const fn is_absent(self) -> bool {
        matches!(
            self,
            Self::NOT_SUPPORTED
                | Self::FUNCTION_NOT_FOUND
                | Self::NO_DATA
                | Self::VGPU_ECC_NOT_SUPPORTED
                | Self::ARGUMENT_VERSION_MISMATCH
                | Self::DEPRECATED
        )
    }

    /// The same call may succeed when it is made again a little later.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(
            self,
            Self::TIMEOUT | Self::IN_USE | Self::MEMORY | Self::NOT_READY | Self::INSUFFICIENT_SIZE
        )
    }

    /// The GPU itself cannot be used until it is reset or the node is restarted.
    #[must_use]
    pub const fn is_gpu_lost(self) -> bool {
        matches!(
            self,
            Self::GPU_IS_LOST | Self::RESET_REQUIRED | Self::GPU_NOT_FOUND
        )
    }

    /// No call can succeed until NVML is opened again: the driver is unloaded, or was replaced under the library.
    #[must_use]
    pub const fn is_driver_gone(self) -> bool {
        matches!(
            self,
            Self::UNINITIALIZED | Self::DRIVER_NOT_LOADED | Self::LIB_RM_VERSION_MISMATCH
        )
    }

    /// A process or an instance still holds what the call wanted to change.
    #[must_use]
    pub const fn is_in_use(self) -> bool {
        matches!(self, Self::IN_USE)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({}): {}", self.0, self.text()),
            None => write!(f, "code {}: {}", self.0, self.text()),
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Code({} {})", self.0, self.name().unwrap_or("?"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0, "SUCCESS")]
    #[case(3, "NOT_SUPPORTED")]
    #[case(15, "GPU_IS_LOST")]
    #[case(18, "LIB_RM_VERSION_MISMATCH")]
    #[case(19, "IN_USE")]
    #[case(22, "VGPU_ECC_NOT_SUPPORTED")]
    #[case(23, "INSUFFICIENT_RESOURCES")]
    #[case(24, "FREQ_NOT_SUPPORTED")]
    #[case(25, "ARGUMENT_VERSION_MISMATCH")]
    #[case(26, "DEPRECATED")]
    #[case(27, "NOT_READY")]
    #[case(28, "GPU_NOT_FOUND")]
    #[case(29, "INVALID_STATE")]
    #[case(30, "RESET_TYPE_NOT_SUPPORTED")]
    #[case(999, "UNKNOWN")]
    fn names_follow_the_header(#[case] number: u32, #[case] name: &str) {
        assert_eq!(Code(number).name(), Some(name));
    }

    #[test]
    fn every_code_of_the_header_is_listed_once() {
        let numbers: Vec<u32> = Code::ALL.iter().map(|c| c.0).collect();
        let expected: Vec<u32> = (0..=30).chain([999]).collect();
        assert_eq!(numbers, expected);
    }

    #[test]
    fn an_unknown_code_keeps_its_number() {
        assert_eq!(Code(31).name(), None);
        assert!(Code(31).to_string().starts_with("code 31"));
        assert!(!Code(31).is_absent() && !Code(31).is_transient() && !Code(31).is_gpu_lost());
    }

    /// One code never asks for two different reactions.
    #[test]
    fn classes_do_not_overlap() {
        for code in Code::ALL {
            let classes = [
                code.is_absent(),
                code.is_transient(),
                code.is_gpu_lost(),
                code.is_driver_gone(),
            ];
            assert!(classes.iter().filter(|&&c| c).count() <= 1, "{code:?}");
        }
    }
}
