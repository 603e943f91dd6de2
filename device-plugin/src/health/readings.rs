//! What a GPU tells of its own health when it is asked.

use std::fmt;

use nvml::{Device, Error, Field};

use super::cause::Cause;
use super::rule::Check;

/// The clock event reason "hardware thermal slowdown" (`nvmlClocksEventReasonHwThermalSlowdown`).
const HARDWARE_THERMAL: u64 = 0x40;

/// What would recover a GPU (`nvmlDeviceGpuRecoveryAction_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryAction {
    /// Reset the GPU.
    Reset,
    /// Reboot the node.
    Reboot,
    /// End what uses peer-to-peer access.
    DrainP2p,
    /// End what runs on the GPU, then reset it.
    DrainAndReset,
    /// Recover the node's IMEX domain. The GPU itself is well.
    RecoverImex,
    /// An action that this version does not know.
    Other(u64),
}

impl RecoveryAction {
    /// Whether only a reset, or the reboot that has one in it, can have been what was recommended.
    const fn is_reset(self) -> bool {
        matches!(self, Self::Reset | Self::Reboot | Self::DrainAndReset)
    }

    /// From the value of the field; `None` when there is nothing to recover.
    pub fn from_driver(value: u64) -> Option<Self> {
        match value {
            0 => None,
            1 => Some(Self::Reset),
            2 => Some(Self::Reboot),
            3 => Some(Self::DrainP2p),
            4 => Some(Self::DrainAndReset),
            5 => Some(Self::RecoverImex),
            other => Some(Self::Other(other)),
        }
    }
}

impl fmt::Display for RecoveryAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset => f.write_str("reset the GPU"),
            Self::Reboot => f.write_str("reboot the node"),
            Self::DrainP2p => f.write_str("end what uses peer-to-peer access"),
            Self::DrainAndReset => f.write_str("drain and reset the GPU"),
            Self::RecoverImex => f.write_str("recover the IMEX domain"),
            Self::Other(number) => write!(f, "recovery action {number}"),
        }
    }
}

/// A GPU's health as it tells it. `None` is what it does not tell: no opinion, neither good nor bad.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readings {
    /// What the driver recommends; `Some(None)` for nothing.
    pub recovery: Option<Option<RecoveryAction>>,
    /// Whether memory rows wait for a reset to be remapped. Not told while MIG instances exist.
    pub remap_pending: Option<bool>,
    /// Whether a memory row could not be remapped. Not told while MIG instances exist.
    pub remap_failure: Option<bool>,
    /// Uncorrected memory errors since the last reset.
    pub uncorrected: Option<u64>,
    /// Whether the hardware slows the GPU down because of heat.
    pub thermal: Option<bool>,
    /// Energy used since the driver was loaded, in mJ.
    pub energy_mj: Option<u64>,
}

impl Readings {
    /// Asks a GPU: a handful of calls, bounded as all calls on a GPU's thread are.
    ///
    /// # Errors
    /// The GPU is lost, hangs, or has no driver. Any other failure leaves out what failed.
    pub fn read(device: &Device<'_>) -> Result<Self, Error> {
        let rows = told(device.remapped_rows())?;
        let recovery = told(device.field(Field::RECOVERY_ACTION))?;
        let reasons = told(device.clock_reasons())?;
        Ok(Self {
            recovery: recovery.map(|value| RecoveryAction::from_driver(value.as_u64())),
            remap_pending: rows.map(|rows| rows.pending),
            remap_failure: rows.map(|rows| rows.failure),
            uncorrected: told(device.ecc_errors(true, false))?,
            thermal: reasons.map(|bits| bits & HARDWARE_THERMAL != 0),
            energy_mj: told(device.energy())?,
        })
    }

    /// Counters that are not told, as in the middle of a reset, stay those that were told last: later ones are compared with them.
    pub(super) fn counting_on(self, earlier: Option<&Self>) -> Self {
        Self {
            uncorrected: self.uncorrected.or(earlier.and_then(|e| e.uncorrected)),
            energy_mj: self.energy_mj.or(earlier.and_then(|e| e.energy_mj)),
            ..self
        }
    }

    /// Whether this trouble is there now; `None` when the readings do not say.
    pub(super) fn shows(&self, cause: Cause) -> Option<bool> {
        match cause {
            Cause::RecoveryAction => self.check(Check::RecoveryAction).map(|well| !well),
            Cause::RowRemapPending => self.remap_pending,
            Cause::RowRemapFailure => self.remap_failure,
            Cause::Thermal => self.thermal,
            _ => None,
        }
    }

    /// Whether a check finds all well, [`Check::UncorrectedEcc`] aside: that one compares; `None` when the readings do not
    /// say.
    pub(super) fn check(&self, check: Check) -> Option<bool> {
        match check {
            Check::RecoveryAction => self
                .recovery
                .map(|action| matches!(action, None | Some(RecoveryAction::RecoverImex))),
            Check::RowRemapping => match (self.remap_pending, self.remap_failure) {
                (None, None) => None,
                (pending, failure) => Some(pending != Some(true) && failure != Some(true)),
            },
            Check::Thermal => self.thermal.map(|hot| !hot),
            Check::UncorrectedEcc => None,
        }
    }

    /// Whether the GPU must have been reset since the earlier readings. NVML does not tell of resets, but what only a reset
    /// ends has ended: the energy counter or the volatile error counter began anew, rows that waited are remapped, the
    /// recommended action is done.
    ///
    /// An administrator who clears the volatile error counter by hand says the same: the past is dealt with.
    pub fn reset_since(&self, earlier: &Self) -> bool {
        let fell = |now: Option<u64>, then: Option<u64>| matches!((now, then), (Some(now), Some(then)) if now < then);
        // Twice as much before: more than any unsteadiness of the counter.
        let energy = fell(
            self.energy_mj.map(|now| now.saturating_mul(2)),
            earlier.energy_mj,
        );
        let remapped = earlier.remap_pending == Some(true) && self.remap_pending == Some(false);
        let recovered = earlier.wants_reset() && self.check(Check::RecoveryAction) == Some(true);
        let fewer = fell(self.uncorrected, earlier.uncorrected);
        !self.wants_reset() && (energy || remapped || recovered || fewer)
    }

    /// Whether the driver recommends what a reset would end.
    pub(super) fn wants_reset(&self) -> bool {
        self.recovery
            .flatten()
            .is_some_and(RecoveryAction::is_reset)
    }
}

/// A value, unless the GPU does not tell it; an error only when it tells nothing at all.
fn told<T>(read: Result<T, Error>) -> Result<Option<T>, Error> {
    match read {
        Ok(value) => Ok(Some(value)),
        // Without a code no call has answered: it hangs.
        Err(error) if error.is_gpu_lost() || error.is_driver_gone() || error.code().is_none() => {
            Err(error)
        }
        Err(error) => {
            if !error.is_absent() {
                tracing::debug!(%error, "a reading of a GPU's health is left out");
            }
            Ok(None)
        }
    }
}
