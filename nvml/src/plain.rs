//! Plain C data that NVML fills in: zeroed structures, version words, fixed-size strings.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use nvml_wrapper_sys::bindings as sys;

/// C data without invariants: every bit pattern, all zeroes included, is a valid value.
///
/// # Safety
/// Only for types of which that is true: no references, no Rust enumerations, no `bool`.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($name:ty),* $(,)?) => {
        // SAFETY: integers, raw pointers, and `repr(C)` structures and unions made only of those.
        $(unsafe impl Plain for $name {})*
    };
}

plain!(
    i32,
    u32,
    u64,
    sys::nvmlDevice_t,
    sys::nvmlGpuInstance_t,
    sys::nvmlComputeInstance_t,
    sys::nvmlEventSet_t,
    sys::nvmlGpmSample_t,
    sys::nvmlPciInfo_t,
    sys::nvmlMemory_t,
    sys::nvmlMemory_v2_t,
    sys::nvmlBAR1Memory_t,
    sys::nvmlUtilization_t,
    sys::nvmlProcessInfo_t,
    sys::nvmlDeviceAttributes_t,
    sys::nvmlGpuInstancePlacement_t,
    sys::nvmlGpuInstanceProfileInfo_t,
    sys::nvmlGpuInstanceInfo_t,
    sys::nvmlComputeInstanceProfileInfo_t,
    sys::nvmlComputeInstanceInfo_t,
    sys::nvmlComputeInstancePlacement_t,
    crate::library::RemappedRowsInfoV2,
    sys::nvmlEventData_t,
    sys::nvmlFieldValue_t,
    sys::nvmlGpmSupport_t,
    sys::nvmlGpuFabricInfo_t,
    sys::nvmlGpuFabricInfo_v2_t,
    sys::nvmlGpuFabricInfo_v3_t,
    sys::nvmlTemperature_t,
    sys::nvmlDeviceAddressingMode_v1_t,
    sys::nvmlGridLicensableFeatures_t,
    sys::nvmlRowRemapperHistogramValues_t,
);

/// A value with every byte zero.
pub(crate) fn zeroed<T: Plain>() -> T {
    // SAFETY: `Plain` promises that all zeroes are a valid `T`.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// The version word of a versioned structure: its size, and the version in the top byte (NVML header,
/// `NVML_STRUCT_VERSION`). The bindings do not carry these macros.
pub(crate) const fn version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | (number << 24)
}

/// Reads a fixed-size C string: ends at the first NUL or at the buffer's end; bytes that are not UTF-8 become U+FFFD.
pub(crate) fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer
        .iter()
        .take_while(|&&c| c != 0)
        .map(|&c| c.to_ne_bytes()[0])
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// The constants that the 13.3 header's macros give.
    #[test]
    fn version_words_follow_the_header() {
        assert_eq!(version::<sys::nvmlMemory_v2_t>(2), 0x0200_0028);
        assert_eq!(version::<sys::nvmlGpuFabricInfo_v2_t>(2), 0x0200_0024);
        assert_eq!(version::<sys::nvmlGpuFabricInfo_v3_t>(3), 0x0300_0028);
        assert_eq!(version::<sys::nvmlTemperature_t>(1), 0x0100_000C);
        assert_eq!(
            version::<sys::nvmlDeviceAddressingMode_v1_t>(1),
            0x0100_0008
        );
    }

    /// Sizes of the structures whose layout the driver relies on, from the 13.3 header.
    #[test]
    fn structures_have_the_sizes_of_the_header() {
        assert_eq!(size_of::<sys::nvmlPciInfo_t>(), 68);
        assert_eq!(size_of::<sys::nvmlProcessInfo_t>(), 24);
        assert_eq!(size_of::<sys::nvmlDeviceAttributes_t>(), 40);
        assert_eq!(size_of::<sys::nvmlGpuInstanceProfileInfo_t>(), 48);
        assert_eq!(size_of::<sys::nvmlComputeInstanceProfileInfo_t>(), 36);
        assert_eq!(size_of::<sys::nvmlGpuInstanceInfo_t>(), 24);
        assert_eq!(size_of::<sys::nvmlComputeInstanceInfo_t>(), 32);
        assert_eq!(size_of::<sys::nvmlEventData_t>(), 32);
        assert_eq!(size_of::<sys::nvmlFieldValue_t>(), 40);
    }

    #[test]
    fn text_ends_at_nul_or_at_the_buffers_end() {
        let c = |s: &[u8]| s.iter().map(|&b| b as c_char).collect::<Vec<_>>();
        assert_eq!(text(&c(b"H100\0rest")), "H100");
        assert_eq!(text(&c(b"H100")), "H100");
        assert_eq!(text(&c(b"\xFFx\0")), "\u{FFFD}x");
        assert_eq!(text(&[]), "");
    }
}
