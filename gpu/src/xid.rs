//! What XIDs mean: the numbers that the driver gives to GPU errors.
//!
//! Numbers and their meaning are NVIDIA's XID catalogue; the wording is ours.

/// A short meaning; `None` for a number that is not in the catalogue.
pub fn xid_meaning(xid: u64) -> Option<&'static str> {
    Some(match xid {
        1 | 2 => "invalid or corrupted push buffer stream",
        8 => "GPU stopped processing",
        13 => "graphics engine exception",
        16 => "display engine hung",
        18 => "bus mastering disabled in PCI config space",
        31 => "GPU memory page fault",
        32 => "invalid or corrupted push buffer stream",
        38 => "driver firmware error",
        43 => "GPU stopped processing",
        44 => "graphics engine fault during context switch",
        45 => "preemptive cleanup after previous errors",
        46 => "GPU stopped processing",
        48 => "double-bit ECC error",
        54 => "auxiliary power is not connected",
        56 => "display engine error",
        57 => "error programming video memory interface",
        58 => "unstable video memory interface or ECC error in internal memory",
        60 => "video processor exception",
        61 => "internal microcontroller breakpoint or warning",
        62 => "internal microcontroller halt",
        63 => "ECC page retirement or row remapping recorded",
        64 => "ECC page retirement or row remapping failed",
        65 => "video processor exception",
        68 => "video decoder exception",
        69 => "graphics engine class error",
        74 => "NVLink error",
        78 => "vGPU start error",
        79 => "GPU has fallen off the bus",
        80 => "corrupted data sent to GPU",
        81 => "VGA subsystem error",
        92 => "high rate of single-bit ECC errors",
        94 => "contained memory error",
        95 => "uncontained memory error",
        109 => "context switch timeout",
        110 => "security fault",
        119 => "GSP RPC timeout",
        120 => "GSP error",
        121 => "C2C link error",
        122..=124 => "SPI flash access failed",
        136 => "link training failed",
        137 => "NVLink privilege error",
        140 => "ECC error not recovered",
        143 => "GPU initialization error",
        144..=150 => "NVLink error",
        154 => "GPU recovery action changed",
        155 => "NVLink error in a software-defined link state",
        156 => "resource retirement event",
        157 => "resource retirement failed",
        158 => "GPU fatal timeout",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::xid_meaning;

    #[rstest]
    #[case(79, Some("GPU has fallen off the bus"))]
    #[case(150, Some("NVLink error"))]
    #[case(0, None)]
    #[case(151, None)]
    #[case(u64::MAX, None)]
    fn meanings(#[case] xid: u64, #[case] wanted: Option<&str>) {
        assert_eq!(xid_meaning(xid), wanted);
    }
}
