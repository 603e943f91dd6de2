//! What people and other programs are told when health changes.

use std::fmt;

use super::cause::Cause;
use super::fault::Fault;
use super::rule::Until;

/// Reason of the Event when something becomes unhealthy.
pub const EVENT_UNHEALTHY: &str = "GPUUnhealthy";
/// Reason of the Event when something is healthy again.
pub const EVENT_HEALTHY: &str = "GPUHealthy";
/// Action of both Events.
pub const EVENT_ACTION: &str = "WatchHealth";

/// What a fault is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// All GPUs: their driver.
    Driver,
    /// A GPU that has never described itself.
    Unknown {
        /// Its place in the driver's list.
        index: u32,
    },
    /// A GPU, or an instance on it.
    Gpu {
        /// `GPU-…`.
        uuid: String,
        /// NVML index.
        index: u32,
        /// GPU instance and compute instance; `None` for the whole GPU.
        instance: Option<(u32, u32)>,
    },
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver => f.write_str("all GPUs"),
            Self::Unknown { index } => write!(f, "GPU {index} (unknown)"),
            Self::Gpu {
                uuid,
                index,
                instance,
            } => {
                write!(f, "GPU {index} ({uuid})")?;
                match instance {
                    Some((gpu, compute)) => write!(f, ", MIG instance {gpu}/{compute}"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// A fault began or ended. There is one per change, however often the trouble happens in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What it is on.
    pub subject: Subject,
    /// What it is.
    pub cause: Cause,
    /// Whether it is over. Other faults may still keep the device unhealthy.
    pub over: bool,
    /// What ends it.
    pub until: Until,
    /// How often it happened; 1 when it began.
    pub count: u64,
    /// The same for people, in one line that says what to do.
    pub text: String,
}

impl Notice {
    pub(super) fn new(subject: Subject, fault: &Fault, over: bool, text: String) -> Self {
        Self {
            subject,
            cause: fault.cause,
            over,
            until: fault.until.clone(),
            count: fault.count,
            text,
        }
    }

    /// That a fault begins: what it is on, what it is, and what brings the device back.
    pub(super) fn begun(subject: Subject, fault: &Fault) -> Self {
        let text = match &fault.detail {
            Some(detail) => format!("{subject}: {}: {detail}; {}", fault.cause, fault.until),
            None => format!("{subject}: {}; {}", fault.cause, fault.until),
        };
        Self::new(subject, fault, false, text)
    }

    /// That a fault is over, and how that came.
    pub(super) fn over(subject: Subject, fault: &Fault, how: &str) -> Self {
        let text = match fault.count {
            1 => format!("{subject}: {}: {how}", fault.cause),
            count => format!("{subject}: {}, {count} times: {how}", fault.cause),
        };
        Self::new(subject, fault, true, text)
    }

    /// Reason of the Event.
    pub fn reason(&self) -> &'static str {
        if self.over {
            EVENT_HEALTHY
        } else {
            EVENT_UNHEALTHY
        }
    }

    /// Whether it is of trouble. A change of layout is none: somebody asked for it, and MIG manager's own Events tell of it.
    pub fn is_trouble(&self) -> bool {
        self.cause != Cause::Reshaping
    }

    /// Whether somebody should look.
    pub fn is_warning(&self) -> bool {
        !self.over && self.is_trouble()
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
