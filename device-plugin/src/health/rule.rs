//! What a kind of trouble means.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::cause::Cause;

/// What a kind of trouble means for the devices it hits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Nothing.
    Never,
    /// Unhealthy until then.
    Unhealthy(Until),
}

/// What makes a device healthy again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Until {
    /// It has been quiet for a while and looks well.
    Recheck {
        /// How long nothing more must have happened.
        quiet: Duration,
        /// What must be well then, beside that the GPU answers. What the GPU cannot tell counts as well.
        checks: BTreeSet<Check>,
    },
    /// The GPU was reset, or its driver loaded anew.
    Reset,
    /// Another GPU is in its place.
    Replaced,
}

/// What can be looked at before a device is healthy again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// The driver recommends no recovery action.
    RecoveryAction,
    /// No memory row waits to be remapped, and none could not be.
    RowRemapping,
    /// No further uncorrected memory error was counted.
    UncorrectedEcc,
    /// The hardware does not slow the GPU down because of heat.
    Thermal,
}

impl Check {
    pub(super) const ALL: [Self; 4] = [
        Self::RecoveryAction,
        Self::RowRemapping,
        Self::UncorrectedEcc,
        Self::Thermal,
    ];

    /// The checks after something that happened, where the rule names none. What lasts is looked at itself.
    pub(super) const USUAL: [Self; 3] = [
        Self::RecoveryAction,
        Self::RowRemapping,
        Self::UncorrectedEcc,
    ];

    /// Its name in the policy file.
    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::RecoveryAction => "recoveryAction",
            Self::RowRemapping => "rowRemapping",
            Self::UncorrectedEcc => "uncorrectedEcc",
            Self::Thermal => "thermal",
        }
    }
}

impl Until {
    /// A recheck with the checks that are usual for this cause.
    pub(super) fn recheck(cause: Cause, quiet: Duration) -> Self {
        let checks = if cause.lasts() {
            BTreeSet::new()
        } else {
            Check::USUAL.into()
        };
        Self::Recheck { quiet, checks }
    }
}

impl fmt::Display for Until {
    /// For people: what brings the device back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recheck { quiet, .. } if quiet.is_zero() => {
                f.write_str("healthy again as soon as this is over")
            }
            Self::Recheck { quiet, .. } => write!(
                f,
                "healthy again when it has been well for {} s",
                quiet.as_secs_f64()
            ),
            Self::Reset => f.write_str("reset the GPU or reboot the node to make it healthy again"),
            Self::Replaced => f.write_str("the GPU must be replaced"),
        }
    }
}
