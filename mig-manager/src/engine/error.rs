//! How an operation on the node's GPUs can end badly, and the exit code that says so.

use std::fmt;
use std::time::Duration;

use gpu::{Client, Impossible};

use super::event::GpuId;
use super::journal::JournalError;
use super::lock::LockError;
use crate::checkpoint::CheckpointError;
use crate::hooks::HookError;
use crate::listing;
use crate::select::SelectError;
use crate::strict::DocumentError;

/// Why the node does not have the layout that was asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The node's hardware cannot do it. Nothing was touched.
    #[error("{}", lines(.0))]
    Impossible(Vec<Refusal>),
    /// Somebody uses what would have to change. Nothing was touched, or everything was put back.
    #[error("{}", lines(.0))]
    InUse(Vec<Blocked>),
    /// MIG mode is set but counts only after a reset, which was not wanted or not possible.
    #[error("{}", lines(.0))]
    NeedsReset(Vec<ResetNeeded>),
    /// A config cannot be read. Nothing was touched.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The driver as a whole does not answer. Nothing was touched.
    #[error(transparent)]
    Driver(#[from] nvml::Error),
    /// The change failed on these GPUs.
    #[error("{}; {}", lines(.failures), aftermath(.left))]
    Failed {
        /// What went wrong where.
        failures: Vec<GpuFailure>,
        /// GPUs that are not as they were before; empty when everything was undone.
        left: Vec<Left>,
    },
    /// A hook failed.
    #[error("{source}{}", if *.changed { "; the GPUs are changed all the same" } else { "; the GPUs are as they were" })]
    Hook {
        /// Which and why.
        source: HookError,
        /// Whether the GPUs have the new layout.
        changed: bool,
    },
    /// Another apply runs, or the lock file cannot be used. Nothing was touched.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The journal cannot be kept. Nothing was touched.
    #[error("cannot keep a journal, so nothing was touched: {0}")]
    Journal(#[from] JournalError),
}

/// One reason why the node cannot have a layout.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The specs do not suit the node's GPUs.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// A GPU cannot be cut like this.
    #[error("{gpu}: {reason}")]
    Gpu {
        /// The GPU.
        gpu: GpuId,
        /// Why.
        reason: Impossible,
    },
    /// A checkpoint is of another board.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A checkpoint speaks of a GPU that the node does not have.
    #[error("the checkpoint has {uuid}, which is not in this node")]
    NoSuchGpu {
        /// UUID.
        uuid: String,
    },
}

impl Complaint for Refusal {
    fn gpu(&self) -> Option<u32> {
        match self {
            Self::Gpu { gpu, .. } => Some(gpu.index),
            Self::Select(_) | Self::Checkpoint(_) | Self::NoSuchGpu { .. } => None,
        }
    }

    fn about(&self, gpus: &str, _several: bool) -> String {
        match self {
            Self::Gpu { reason, .. } => format!("{gpus}: {reason}"),
            other => other.to_string(),
        }
    }
}

/// A GPU that cannot be changed because of its users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The GPU.
    pub gpu: GpuId,
    /// Who; empty when the driver says "in use" without saying by whom.
    pub clients: Vec<Client>,
}

impl Complaint for Blocked {
    fn gpu(&self) -> Option<u32> {
        Some(self.gpu.index)
    }

    fn about(&self, gpus: &str, several: bool) -> String {
        let are = if several { "are" } else { "is" };
        if self.clients.is_empty() {
            return format!(
                "{gpus} {are} in use by a process that the driver does not name: stop monitoring agents, persistence and display services"
            );
        }
        let clients: Vec<String> = self.clients.iter().map(super::plan::client).collect();
        format!("{gpus} {are} in use by {}", clients.join(", "))
    }
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.about(&self.gpu.to_string(), false))
    }
}

/// A GPU whose MIG mode waits for a reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetNeeded {
    /// The GPU.
    pub gpu: GpuId,
    /// Why it was not reset.
    pub reason: String,
}

impl Complaint for ResetNeeded {
    fn gpu(&self) -> Option<u32> {
        Some(self.gpu.index)
    }

    fn about(&self, gpus: &str, _several: bool) -> String {
        format!(
            "{gpus}: the MIG mode counts only after a reset or reboot: {}",
            self.reason
        )
    }
}

impl fmt::Display for ResetNeeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.about(&self.gpu.to_string(), false))
    }
}

/// What went wrong on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFailure {
    /// The GPU.
    pub gpu: GpuId,
    /// How.
    pub cause: Cause,
}

impl Complaint for GpuFailure {
    fn gpu(&self) -> Option<u32> {
        Some(self.gpu.index)
    }

    fn about(&self, gpus: &str, several: bool) -> String {
        match &self.cause {
            Cause::InUse(blocked) => blocked.about(gpus, several),
            Cause::NeedsReset(needed) => needed.about(gpus, several),
            other => format!("{gpus}: {other}"),
        }
    }
}

impl fmt::Display for GpuFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.about(&self.gpu.to_string(), false))
    }
}

/// The ways in which one GPU fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// Its users.
    #[error("{0}")]
    InUse(Blocked),
    /// A reset that did not happen.
    #[error("{0}")]
    NeedsReset(ResetNeeded),
    /// A driver call.
    #[error("{doing}: {error}")]
    Driver {
        /// The step, or the look at the GPU.
        doing: String,
        /// The driver's answer.
        error: nvml::Error,
    },
    /// A driver call failed because the GPU is not as the steps before left it.
    #[error(
        "{doing}: meanwhile somebody else changed the GPU, or its driver was loaded anew: it has {found}; {error}"
    )]
    Disturbed {
        /// The step.
        doing: String,
        /// What the GPU has.
        found: String,
        /// The driver's answer to the step.
        error: nvml::Error,
    },
    /// It turned out impossible once MIG was on and the driver listed its profiles.
    #[error("{0}")]
    Impossible(Impossible),
    /// All calls succeeded, but what was read back is something else.
    #[error("all steps succeeded, but the GPU has {found}, not {wanted}")]
    Mismatch {
        /// What it has.
        found: String,
        /// What it should have.
        wanted: String,
    },
    /// The journal could not be written before the next step.
    #[error("stopped, because the journal cannot be written: {0}")]
    Journal(String),
    /// The whole change took longer than it may.
    #[error("stopped, because the change took longer than {} s", .0.as_secs_f64())]
    TooLong(Duration),
    /// Nothing wrong here: another GPU failed first, and all go back.
    #[error("stopped, because another GPU failed")]
    Stopped,
}

/// A GPU that is neither as it was nor known to be as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The GPU.
    pub gpu: GpuId,
    /// Why it was left; `None` when the policy says so.
    pub cause: Option<Cause>,
}

/// Something that may be true of several GPUs, and is then said once.
trait Complaint {
    /// Index of the GPU it is about, if it is about one.
    fn gpu(&self) -> Option<u32>;

    /// The sentence, about `gpus` instead of its own.
    fn about(&self, gpus: &str, several: bool) -> String;
}

/// All complaints in one line, in their order; GPUs with the same one share it.
fn lines<T: Complaint>(complaints: &[T]) -> String {
    let mut groups: Vec<(&T, Vec<u32>)> = Vec::new();
    for complaint in complaints {
        let same = |(first, gpus): &&mut (&T, Vec<u32>)| {
            !gpus.is_empty() && first.about("", false) == complaint.about("", false)
        };
        let gpu = complaint.gpu();
        match (gpu, groups.iter_mut().find(same)) {
            (Some(gpu), Some((_, gpus))) => gpus.push(gpu),
            _ => groups.push((complaint, gpu.into_iter().collect())),
        }
    }
    let sentences: Vec<String> = groups
        .into_iter()
        .map(|(complaint, gpus)| {
            let several = gpus.len() > 1;
            complaint.about(&listing::gpus(gpus), several)
        })
        .collect();
    sentences.join("; ")
}

/// How the GPUs are now. Where nothing is left over, nothing was touched or everything was put back, which comes to the same.
fn aftermath(left: &[Left]) -> String {
    let kept: Vec<u32> = left
        .iter()
        .filter(|l| l.cause.is_none())
        .map(|l| l.gpu.index)
        .collect();
    let stuck: Vec<String> = left
        .iter()
        .filter_map(|l| Some(format!("{} ({})", l.gpu, l.cause.as_ref()?)))
        .collect();
    let mut said = Vec::new();
    if !kept.is_empty() {
        said.push(format!("changed and kept: {}", listing::gpus(kept)));
    }
    if !stuck.is_empty() {
        said.push(format!("not put back: {}", stuck.join(", ")));
    }
    if said.is_empty() {
        return "every GPU is as it was".to_owned();
    }
    said.join("; ")
}

impl Error {
    /// The exit code of `lathe mig` for this error (the table in `lathe mig --help`).
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Document(_) => 2,
            Self::Impossible(_) => 3,
            Self::InUse(_) | Self::Lock(LockError::Held { .. }) => 4,
            Self::NeedsReset(_) => 5,
            Self::Driver(_) => 6,
            Self::Failed { left, .. } if !left.is_empty() => 8,
            Self::Hook { changed: true, .. } => 8,
            Self::Failed { .. } | Self::Hook { .. } | Self::Lock(_) | Self::Journal(_) => 7,
        }
    }

    /// Whether the same request may succeed later without anybody changing it: users leave, a driver comes back.
    pub fn is_transient(&self) -> bool {
        !matches!(self, Self::Impossible(_) | Self::Document(_))
    }
}

#[cfg(test)]
mod tests {
    use gpu::Client;

    use super::*;

    fn gpu(index: u32) -> GpuId {
        GpuId {
            index,
            uuid: format!("GPU-{index}"),
        }
    }

    #[test]
    fn what_is_true_of_several_gpus_is_said_once() {
        let mut refusals: Vec<Refusal> = (0..8)
            .map(|index| Refusal::Gpu {
                gpu: gpu(index),
                reason: if index == 5 {
                    Impossible::NoProfiles
                } else {
                    Impossible::NoMig
                },
            })
            .collect();
        refusals.push(SelectError::NotCapable { index: 9 }.into());
        refusals.push(SelectError::NotCapable { index: 10 }.into());
        assert_eq!(
            Error::Impossible(refusals).to_string(),
            "GPUs 0-4, 6-7: this GPU has no MIG; \
             GPU 5: the driver lists no MIG profiles while MIG is off; turn MIG on first; \
             the config enables MIG on GPU 9, which does not support it; \
             the config enables MIG on GPU 10, which does not support it"
        );
    }

    #[test]
    fn users_of_several_gpus_are_named_once() {
        let blocked = |index, pid| Blocked {
            gpu: gpu(index),
            clients: vec![Client {
                pid,
                command: "train".to_owned(),
                gpu_instance: None,
                compute_instance: None,
            }],
        };
        let of = |blocked: &[Blocked]| Error::InUse(blocked.to_vec()).to_string();
        assert_eq!(of(&[blocked(0, 7)]), "GPU 0 is in use by process 7 (train)");
        assert_eq!(
            of(&[blocked(0, 7), blocked(1, 8), blocked(2, 7)]),
            "GPUs 0, 2 are in use by process 7 (train); GPU 1 is in use by process 8 (train)"
        );
    }
}
