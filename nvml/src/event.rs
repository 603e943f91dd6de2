//! What the driver reports by itself.

use crate::error::{Error, GpuRef};

/// Which events to report: bits of `nvmlEventType*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventMask(pub u64);

impl EventMask {
    /// Single-bit ECC error.
    pub const SINGLE_BIT_ECC: Self = Self(0x1);
    /// Double-bit ECC error.
    pub const DOUBLE_BIT_ECC: Self = Self(0x2);
    /// XID: an error that the driver also writes to the kernel log.
    pub const XID: Self = Self(0x8);
    /// MIG mode or instances changed.
    pub const MIG_CONFIG: Self = Self(0x100);
    /// Many single-bit ECC errors.
    pub const SINGLE_BIT_ECC_STORM: Self = Self(0x200);
    /// Memory was retired, or its replacement failed.
    pub const DRAM_RETIREMENT: Self = Self(0x400 | 0x800);
    /// Contained or uncontained poison.
    pub const POISON: Self = Self(0x1000 | 0x2000);
    /// The GPU became unavailable.
    pub const UNAVAILABLE: Self = Self(0x4000);
    /// What would recover the GPU changed.
    pub const RECOVERY_ACTION: Self = Self(0x8000);
    /// Everything that speaks of a GPU's health or shape.
    pub const ALL: Self = Self(0x1 | 0x2 | 0x8 | 0x100 | 0x200 | 0xC00 | 0x3000 | 0x4000 | 0x8000);

    /// These events, and those of `other`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Something happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// On which GPU.
    pub gpu: GpuRef,
    /// In which GPU instance, when in one.
    pub gpu_instance: Option<u32>,
    /// In which compute instance, when in one.
    pub compute_instance: Option<u32>,
    /// What.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// An XID with its number.
    Xid(u64),
    /// Single-bit ECC error.
    SingleBitEcc,
    /// Double-bit ECC error.
    DoubleBitEcc,
    /// MIG mode or instances changed.
    MigConfigChange,
    /// Many single-bit ECC errors.
    SingleBitEccStorm,
    /// Memory was retired.
    DramRetirement,
    /// Memory should have been retired, but could not be.
    DramRetirementFailure,
    /// Poison that was contained.
    NonFatalPoison,
    /// Poison that was not contained.
    FatalPoison,
    /// The GPU became unavailable.
    Unavailable,
    /// What would recover the GPU changed.
    RecoveryAction,
    /// An event that this version does not know.
    Other {
        /// `nvmlEventType*` bit.
        kind: u64,
        /// The driver's data.
        data: u64,
    },
    /// The GPU is lost; it will report nothing until it is back.
    Lost(Error),
    /// Events cannot be read, for another reason; reported once, while attempts go on.
    Failed(Error),
    /// The GPU has no events of the wanted kinds: whoever wants to know of it has to look.
    Silent,
    /// Reporting began, or began again after a reset, a driver restart or a failure: changes before it may have gone
    /// unreported, so look at the GPU.
    Watching,
    /// So many events were not fetched in time that this many were dropped.
    Dropped(u64),
}

impl EventKind {
    pub(crate) fn from_driver(kind: u64, data: u64) -> Self {
        match kind {
            0x1 => Self::SingleBitEcc,
            0x2 => Self::DoubleBitEcc,
            0x8 => Self::Xid(data),
            0x100 => Self::MigConfigChange,
            0x200 => Self::SingleBitEccStorm,
            0x400 => Self::DramRetirement,
            0x800 => Self::DramRetirementFailure,
            0x1000 => Self::NonFatalPoison,
            0x2000 => Self::FatalPoison,
            0x4000 => Self::Unavailable,
            0x8000 => Self::RecoveryAction,
            kind => Self::Other { kind, data },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0x8, 79, EventKind::Xid(79))]
    #[case(0x2, 0, EventKind::DoubleBitEcc)]
    #[case(0x100, 0, EventKind::MigConfigChange)]
    #[case(0x4000, 0, EventKind::Unavailable)]
    #[case(0x10, 3, EventKind::Other { kind: 0x10, data: 3 })]
    fn driver_bits_become_kinds(#[case] kind: u64, #[case] data: u64, #[case] expected: EventKind) {
        assert_eq!(EventKind::from_driver(kind, data), expected);
    }

    #[test]
    fn all_leaves_out_what_says_nothing_about_health() {
        assert_eq!(EventMask::ALL.0, 0xFF0B);
    }
}
