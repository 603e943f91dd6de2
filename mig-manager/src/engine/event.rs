//! What an apply reports while it runs, for logs and live views.

use std::fmt;
use std::time::Duration;

use gpu::Step;
use serde::Serialize;

use crate::hooks::Point;

/// Which GPU, in the words people use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct GpuId {
    /// NVML index at the time.
    pub index: u32,
    /// UUID.
    pub uuid: String,
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {}", self.index)
    }
}

/// Takes the events of an apply, from several threads at once.
pub type Progress<'a> = dyn Fn(&Event) + Sync + 'a;

/// Why a step is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To reach what was asked for.
    Apply,
    /// To go back after a failure.
    Undo,
    /// To finish or undo what a killed apply left.
    Recover,
}

/// Something an apply does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An earlier apply of layout `name` was killed; its GPUs are dealt with first.
    Interrupted {
        /// Name of the layout.
        name: String,
        /// The last step it announced for each GPU that it worked on.
        last_steps: Vec<(String, String)>,
    },
    /// The commands of a hook run now.
    Hook(Point),
    /// A step begins; it is in the journal already.
    Started {
        /// The GPU.
        gpu: GpuId,
        /// Why.
        purpose: Purpose,
        /// Which step, from 1.
        number: usize,
        /// Of how many.
        of: usize,
        /// What.
        step: Step,
    },
    /// The step is done.
    Done {
        /// The GPU.
        gpu: GpuId,
        /// Which step, from 1.
        number: usize,
        /// How long it took.
        took: Duration,
    },
    /// The GPU is as it was wanted, read back from the driver.
    Reached {
        /// The GPU.
        gpu: GpuId,
        /// Why it was changed.
        purpose: Purpose,
    },
    /// The GPU could not be brought there.
    Failed {
        /// The GPU.
        gpu: GpuId,
        /// Why it was changed.
        purpose: Purpose,
        /// One line.
        reason: String,
    },
}

impl Event {
    /// Logs it: what went wrong as a warning, that a step is done as detail, the rest as information.
    pub fn log(&self) {
        match self {
            Self::Failed { .. } | Self::Interrupted { .. } => tracing::warn!("{self}"),
            Self::Done { .. } => tracing::debug!("{self}"),
            _ => tracing::info!("{self}"),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted { name, .. } => {
                write!(f, "an earlier apply of {name:?} was interrupted")
            }
            Self::Hook(point) => write!(f, "running hook {point}"),
            Self::Started {
                gpu,
                purpose,
                number,
                of,
                step,
            } => {
                let why = match purpose {
                    Purpose::Apply => "",
                    Purpose::Undo => "undo ",
                    Purpose::Recover => "recover ",
                };
                write!(f, "{gpu}: {why}{number}/{of}: {step}")
            }
            Self::Done { gpu, number, took } => {
                write!(
                    f,
                    "{gpu}: {number} done in {:.1} ms",
                    took.as_secs_f64() * 1e3
                )
            }
            Self::Reached {
                gpu,
                purpose: Purpose::Undo,
            } => write!(f, "{gpu}: as it was before"),
            Self::Reached { gpu, .. } => write!(f, "{gpu}: as it should be"),
            Self::Failed { gpu, reason, .. } => write!(f, "{gpu}: {reason}"),
        }
    }
}
