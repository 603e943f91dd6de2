//! Why a device can be unhealthy.

use std::fmt;

use nvml::EventKind;

/// A kind of trouble. One kind on one GPU or instance is one fault, however often it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The driver does not answer: no device of the node can be used.
    Driver,
    /// The GPU does not answer.
    Lost,
    /// The GPU is left alone while MIG manager may change its layout.
    Reshaping,
    /// The GPU's events cannot be read, so nothing would be heard of trouble.
    Unwatched,
    /// An XID: an error that the driver also writes to the kernel log.
    Xid(u64),
    /// Memory errors that ECC could not correct.
    UncorrectedEcc,
    /// Many memory errors that ECC corrected.
    CorrectedEccStorm,
    /// Memory rows wait for a reset to be replaced by spare ones.
    RowRemapPending,
    /// A memory row could not be replaced.
    RowRemapFailure,
    /// Poisoned data that was contained.
    ContainedPoison,
    /// Poisoned data that was not contained.
    UncontainedPoison,
    /// The driver reported the GPU as unavailable.
    Unavailable,
    /// The driver recommends an action that would recover the GPU.
    RecoveryAction,
    /// The hardware slows the GPU down because it is too hot.
    Thermal,
}

impl Cause {
    /// Every kind that a policy has a rule for, XIDs aside.
    pub(super) const CONDITIONS: [Self; 11] = [
        Self::Lost,
        Self::Unwatched,
        Self::UncorrectedEcc,
        Self::CorrectedEccStorm,
        Self::RowRemapPending,
        Self::RowRemapFailure,
        Self::ContainedPoison,
        Self::UncontainedPoison,
        Self::Unavailable,
        Self::RecoveryAction,
        Self::Thermal,
    ];

    /// Its name in the policy file and, for all XIDs together, in metrics.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Lost => "lost",
            Self::Reshaping => "reshaping",
            Self::Unwatched => "unwatched",
            Self::Xid(_) => "xid",
            Self::UncorrectedEcc => "uncorrectedEcc",
            Self::CorrectedEccStorm => "correctedEccStorm",
            Self::RowRemapPending => "rowRemapPending",
            Self::RowRemapFailure => "rowRemapFailure",
            Self::ContainedPoison => "containedPoison",
            Self::UncontainedPoison => "uncontainedPoison",
            Self::Unavailable => "unavailable",
            Self::RecoveryAction => "recoveryAction",
            Self::Thermal => "thermal",
        }
    }

    /// Whether it is a state that can be seen to be over, rather than something that happened.
    pub(super) const fn lasts(self) -> bool {
        match self {
            Self::Driver
            | Self::Lost
            | Self::Reshaping
            | Self::Unwatched
            | Self::RowRemapPending
            | Self::RowRemapFailure
            | Self::RecoveryAction
            | Self::Thermal => true,
            Self::Xid(_)
            | Self::UncorrectedEcc
            | Self::CorrectedEccStorm
            | Self::ContainedPoison
            | Self::UncontainedPoison
            | Self::Unavailable => false,
        }
    }

    /// What an event of the driver says has happened; `None` for what is no trouble by itself.
    pub(super) fn of(kind: &EventKind) -> Option<Self> {
        match kind {
            EventKind::Xid(number) => Some(Self::Xid(*number)),
            EventKind::DoubleBitEcc => Some(Self::UncorrectedEcc),
            EventKind::SingleBitEccStorm => Some(Self::CorrectedEccStorm),
            EventKind::DramRetirementFailure => Some(Self::RowRemapFailure),
            EventKind::NonFatalPoison => Some(Self::ContainedPoison),
            EventKind::FatalPoison => Some(Self::UncontainedPoison),
            EventKind::Unavailable => Some(Self::Unavailable),
            // The driver as a whole: its own observation.
            EventKind::Failed(error) if error.is_driver_gone() => None,
            EventKind::Failed(_) => Some(Self::Unwatched),
            _ => None,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Driver => "the driver does not answer",
            Self::Lost => "the GPU does not answer",
            Self::Reshaping => "the GPU is left alone while MIG manager changes its layout",
            Self::Unwatched => "the GPU's events cannot be read",
            Self::Xid(number) => {
                return match gpu::xid_meaning(*number) {
                    Some(meaning) => write!(f, "XID {number} ({meaning})"),
                    None => write!(f, "XID {number}"),
                };
            }
            Self::UncorrectedEcc => "uncorrected memory errors",
            Self::CorrectedEccStorm => "a storm of corrected memory errors",
            Self::RowRemapPending => "memory rows wait for a reset to be remapped",
            Self::RowRemapFailure => "a memory row could not be remapped",
            Self::ContainedPoison => "contained poison",
            Self::UncontainedPoison => "uncontained poison",
            Self::Unavailable => "the driver reported the GPU as unavailable",
            Self::RecoveryAction => "the driver recommends a recovery action",
            Self::Thermal => "the hardware slows the GPU down because of heat",
        })
    }
}
