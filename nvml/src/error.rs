//! What can go wrong at the driver door. Every error names the GPU, the call and the code, as far as there are any.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::Code;

/// Which GPU an error or an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuRef {
    /// NVML index at the time.
    pub index: u32,
    /// GPU UUID (`GPU-…`), where the driver still told it.
    pub uuid: Option<Arc<str>>,
}

impl fmt::Display for GpuRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.uuid {
            Some(uuid) => write!(f, "GPU {} ({uuid})", self.index),
            None => write!(f, "GPU {}", self.index),
        }
    }
}

/// An error of the driver door. Cheap to clone, so one failure can be reported to everybody who waits for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call returned a code other than success, or its function is missing from the library (`FUNCTION_NOT_FOUND`).
    #[error("{}{call} failed with {code}", about(.gpu))]
    Call {
        /// The GPU the call was about.
        gpu: Option<GpuRef>,
        /// The NVML function.
        call: &'static str,
        /// Its answer.
        code: Code,
    },
    /// A call does not come back. While it hangs, every further use of this GPU (or of the library, when `gpu` is
    /// `None`) fails at once with this error; it clears by itself when the call returns.
    ///
    /// When the call was a write, the driver may still carry it out.
    #[error("{}{call} has not returned for {:.1} s; the driver or the GPU hangs", about(.gpu), .waited.as_secs_f64())]
    Hung {
        /// The GPU whose call hangs.
        gpu: Option<GpuRef>,
        /// The call that hangs.
        call: &'static str,
        /// How long it has been hanging.
        waited: Duration,
    },
    /// No driver library lies under the root.
    #[error(
        "no libnvidia-ml.so.1 under {}; is the NVIDIA driver installed there? (looked in {})", .root.display(), list(.searched)
    )]
    LibraryNotFound {
        /// The node root that was searched.
        root: PathBuf,
        /// The folders that were looked in.
        searched: Vec<PathBuf>,
    },
    /// The driver library is there, but cannot be loaded.
    #[error("cannot load {}: {reason}", .path.display())]
    Load {
        /// The library's path, or its bare name where the loader searched itself.
        path: PathBuf,
        /// The dynamic loader's words.
        reason: String,
    },
    /// NVML is not open: it was closed, or never opened. [`Driver::reopen`](crate::Driver::reopen) opens it.
    #[error("the driver library is not open")]
    Closed,
    /// A handle to a GPU outlived a driver restart, and another GPU now has its index.
    #[error("{expected} is no longer at that index (now {found}); look at the node again")]
    Moved {
        /// The GPU that was meant.
        expected: GpuRef,
        /// The UUID now found at its index.
        found: String,
    },
    /// The driver has no such GPU.
    #[error("no GPU {wanted} on this node")]
    NoSuchGpu {
        /// The index or UUID that was asked for.
        wanted: String,
    },
    /// A GPU could not be reset.
    #[error("{gpu} could not be reset: {reason}")]
    Reset {
        /// The GPU.
        gpu: GpuRef,
        /// Why, in one line.
        reason: String,
    },
    /// The operating system refused something that this crate needs, such as a thread.
    #[error("{what}: {reason}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The system's words.
        reason: String,
    },
}

fn about(gpu: &Option<GpuRef>) -> String {
    gpu.as_ref()
        .map_or_else(String::new, |gpu| format!("{gpu}: "))
}

fn list(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
    shown.join(", ")
}

/// Failures that only a caller can see, in the words that the driver would use.
impl Error {
    /// The GPU is partitioned, and its instances are hidden from this process.
    #[must_use]
    pub fn hidden_instances(gpu: GpuRef) -> Self {
        Self::Call {
            gpu: Some(gpu),
            call: "nvmlDeviceGetGpuInstances",
            code: Code::NO_PERMISSION,
        }
    }

    /// A GPU instance that was there is there no longer.
    #[must_use]
    pub fn no_such_instance(gpu: Option<GpuRef>) -> Self {
        Self::Call {
            gpu,
            call: "nvmlDeviceGetGpuInstanceById",
            code: Code::NOT_FOUND,
        }
    }

    /// The driver took a MIG mode and answered `code` about making it so: the second answer of the call.
    #[must_use]
    pub fn not_activated(gpu: Option<GpuRef>, code: Code) -> Self {
        Self::Call {
            gpu,
            call: "nvmlDeviceSetMigMode (activation)",
            code,
        }
    }
}

impl Error {
    /// The code of the failed call, if a call answered at all.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Call { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The GPU it is about.
    #[must_use]
    pub fn gpu(&self) -> Option<&GpuRef> {
        match self {
            Self::Call { gpu, .. } | Self::Hung { gpu, .. } => gpu.as_ref(),
            Self::Moved { expected: gpu, .. } | Self::Reset { gpu, .. } => Some(gpu),
            _ => None,
        }
    }

    /// The NVML function that failed or hangs.
    #[must_use]
    pub fn call(&self) -> Option<&'static str> {
        match self {
            Self::Call { call, .. } | Self::Hung { call, .. } => Some(call),
            _ => None,
        }
    }

    /// The driver has nothing to say here; see [`Code::is_absent`].
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.code().is_some_and(Code::is_absent)
    }

    /// Trying again later, without doing anything else, may help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Hung { .. } => true,
            _ => self.is_driver_gone() || self.code().is_some_and(Code::is_transient),
        }
    }

    /// The GPU is lost or must be reset; see [`Code::is_gpu_lost`].
    #[must_use]
    pub fn is_gpu_lost(&self) -> bool {
        self.code().is_some_and(Code::is_gpu_lost)
    }

    /// There is no working driver now: not installed, not loaded, unloaded since, or replaced under the library.
    /// Opening NVML again is what helps.
    #[must_use]
    pub fn is_driver_gone(&self) -> bool {
        match self {
            Self::LibraryNotFound { .. } | Self::Load { .. } | Self::Closed => true,
            _ => self.code().is_some_and(Code::is_driver_gone),
        }
    }

    /// Something still uses what the call wanted to change.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.code().is_some_and(Code::is_in_use)
    }

    /// A call hangs.
    #[must_use]
    pub fn is_hung(&self) -> bool {
        matches!(self, Self::Hung { .. })
    }
}

/// Turns answers that mean "there is no such value" into `None`.
pub trait Optional<T> {
    /// `NOT_SUPPORTED` and its kin become `None`; see [`Code::is_absent`].
    ///
    /// # Errors
    /// Every other error stays.
    fn optional(self) -> Result<Option<T>, Error>;

    /// As [`optional`](Self::optional), and `NO_PERMISSION` and `NOT_FOUND` become `None` too: for reads that the driver
    /// shows to privileged processes only, or that speak of things which may not exist.
    ///
    /// # Errors
    /// Every other error stays.
    fn readable(self) -> Result<Option<T>, Error>;
}

impl<T> Optional<T> for Result<T, Error> {
    fn optional(self) -> Result<Option<T>, Error> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn readable(self) -> Result<Option<T>, Error> {
        match self.optional() {
            Err(error) if matches!(error.code(), Some(Code::NO_PERMISSION | Code::NOT_FOUND)) => {
                Ok(None)
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use rstest::rstest;

    use super::*;

    fn failed(code: Code) -> Error {
        Error::Call {
            gpu: Some(GpuRef {
                index: 3,
                uuid: Some("GPU-1".into()),
            }),
            call: "nvmlDeviceGetName",
            code,
        }
    }

    #[test]
    fn one_line_names_gpu_call_and_code() {
        assert_eq!(
            failed(Code::IN_USE).to_string(),
            "GPU 3 (GPU-1): nvmlDeviceGetName failed with IN_USE (19): a process or an instance still uses it; end that first"
        );
    }

    #[rstest]
    #[case(Code::NOT_SUPPORTED)]
    #[case(Code::NO_DATA)]
    #[case(Code::FUNCTION_NOT_FOUND)]
    #[case(Code::ARGUMENT_VERSION_MISMATCH)]
    fn absent_values_are_none(#[case] code: Code) {
        assert_eq!(Err::<u32, _>(failed(code)).optional(), Ok(None));
    }

    #[rstest]
    #[case(Code::GPU_IS_LOST)]
    #[case(Code::NO_PERMISSION)]
    #[case(Code::INVALID_ARGUMENT)]
    #[case(Code::UNKNOWN)]
    fn failures_stay_failures(#[case] code: Code) {
        assert_eq!(Err::<u32, _>(failed(code)).optional(), Err(failed(code)));
    }

    #[test]
    fn a_read_that_is_not_permitted_is_none() {
        assert_eq!(
            Err::<u32, _>(failed(Code::NO_PERMISSION)).readable(),
            Ok(None)
        );
        assert_eq!(
            Err::<u32, _>(failed(Code::GPU_IS_LOST)).readable(),
            Err(failed(Code::GPU_IS_LOST))
        );
    }

    #[test]
    fn a_missing_library_counts_as_a_missing_driver() {
        let error = Error::LibraryNotFound {
            root: "/node".into(),
            searched: vec!["/node/usr/lib64".into()],
        };
        assert!(error.is_driver_gone() && error.is_transient() && !error.is_gpu_lost());
    }
}
