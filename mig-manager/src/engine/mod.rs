//! The partition engine: plans, applies, compares and records how a node's GPUs are cut.
//!
//! The only place in the process that writes to GPUs. Every change is planned whole before anything is touched, journalled
//! step by step, read back, and undone when it fails. It knows nothing of Kubernetes.

mod apply;
mod crew;
mod error;
mod event;
mod journal;
mod lock;
mod look;
mod plan;
mod reach;
mod recover;
mod request;
mod table;
mod write;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use apply::Applied;
pub use error::{Blocked, Cause, Error, GpuFailure, Left, Refusal, ResetNeeded};
pub use event::{Event, GpuId, Progress, Purpose};
pub use journal::JournalError;
pub use lock::LockError;
pub use plan::{NodePlan, PlannedGpu, Verdict};
pub use request::{OnFailure, Options, Request};

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::export::{Exported, export};
use crate::generate::generate;
use look::{Node, look};

/// The engine for one node. Cheap to make; holds no state but the driver.
#[derive(Clone, Debug)]
pub struct Engine {
    driver: nvml::Driver,
    options: Options,
}

/// A GPU that is not as a request wants it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Difference {
    /// Which.
    #[serde(flatten)]
    pub gpu: GpuId,
    /// What it has, or why it does not answer.
    pub found: String,
    /// What it should have.
    pub wanted: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { gpu, found, wanted } = self;
        write!(f, "{gpu} has {found}; wanted: {wanted}")
    }
}

impl Engine {
    /// An engine that works through this driver.
    pub fn new(driver: nvml::Driver, options: Options) -> Self {
        Self { driver, options }
    }

    /// What the request comes to, GPU by GPU. Touches nothing, waits for nobody.
    ///
    /// # Errors
    /// [`Error::Impossible`] when the request does not suit the node's GPUs as such; what is impossible for a single GPU is
    /// in the plan ([`NodePlan::impossible`]). [`Error::Driver`] when the driver does not answer.
    pub fn plan(&self, request: &Request) -> Result<NodePlan, Error> {
        let node = look(&self.driver)?;
        let interrupted = self.interrupted(&node);
        Ok(NodePlan::new(
            request.name(),
            request.goals(&node)?,
            &node,
            interrupted,
        ))
    }

    /// Name of the layout whose apply was killed, where an apply can do something about it now. Whoever may not read the
    /// journal can still see a plan.
    fn interrupted(&self, node: &Node) -> Option<String> {
        if let Some(holder) = lock::holder_of(&self.lock()) {
            tracing::warn!(
                holder,
                "another change of this node is running; a plan may be wrong when that ends"
            );
            return None;
        }
        match journal::left(&self.options.state_dir) {
            Ok(left) => {
                let head = left?.head;
                let mut entries = head.gpus.iter();
                let is_due =
                    entries.len() == 0 || entries.any(|entry| recover::is_due(node, entry));
                is_due.then_some(head.name)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot tell whether an apply was interrupted");
                None
            }
        }
    }

    fn lock(&self) -> PathBuf {
        self.options.state_dir.join("lock")
    }

    /// Brings the node to what the request wants, and nothing else. What an earlier, killed apply left on other GPUs is
    /// finished or undone first; an impossible request touches nothing, and leaves that to the next one.
    ///
    /// # Errors
    /// [`Error`]; where it is neither [`Error::Failed`] with something left nor a hook after the change, the GPUs are as
    /// they were.
    pub fn apply(&self, request: &Request, progress: &Progress<'_>) -> Result<Applied, Error> {
        let _lock = lock::Lock::take(&self.lock(), self.options.lock_wait)?;
        let run = apply::Run {
            driver: &self.driver,
            options: &self.options,
            request,
            progress,
        };
        run.with_hooks()
    }

    /// How the GPUs that the request speaks of differ from it. Empty when there is no difference.
    ///
    /// # Errors
    /// As [`Engine::plan`].
    pub fn assert(&self, request: &Request) -> Result<Vec<Difference>, Error> {
        let node = look(&self.driver)?;
        let goals = request.goals(&node)?;
        let differences = goals.into_iter().filter_map(|(index, goal)| {
            let entry = node.gpus.iter().find(|g| g.index == index)?;
            let board = entry.seen.as_ref().ok().and_then(|s| s.board.as_ref());
            let found = match &entry.seen {
                Ok(seen) if gpu::matches(board, &seen.observed, &goal) => return None,
                Ok(seen) => plan::describe(seen),
                Err(error) => error.to_string(),
            };
            Some(Difference {
                gpu: entry.id(),
                found,
                wanted: plan::describe_goal(&goal, board),
            })
        });
        Ok(differences.collect())
    }

    /// The exact layouts of the GPUs that can do MIG.
    ///
    /// # Errors
    /// [`Error::Driver`], also when a single GPU does not answer: a checkpoint without it would not bring it back.
    pub fn checkpoint(&self) -> Result<Checkpoint, Error> {
        let node = look(&self.driver)?;
        let mut capable = Vec::new();
        for entry in node.gpus {
            let seen = entry.seen?;
            if let Some(board) = seen.board {
                capable.push((seen.id.uuid, board, seen.observed.layout));
            }
        }
        Ok(Checkpoint::of(
            capable
                .iter()
                .map(|(uuid, board, layout)| (&**uuid, board, layout)),
        ))
    }

    /// The node's present layout as a config with one named layout; `None` on a node without GPUs.
    ///
    /// # Errors
    /// [`Error::Driver`], also when a single GPU does not answer: `all` would then mean more than was seen.
    pub fn export(&self, label: &str) -> Result<Option<Config>, Error> {
        let node = look(&self.driver)?;
        let mut gpus = Vec::new();
        for entry in node.gpus {
            let seen = entry.seen?;
            let layout = &seen.observed.layout;
            let devices = match &seen.board {
                Some(board) if layout.mig_enabled => layout.devices(board),
                _ => BTreeMap::new(),
            };
            if let Some(board) = &seen.board {
                for stray in layout.strays(board) {
                    tracing::warn!(gpu = %seen.id, instance = stray.id, "a GPU instance without compute instance is not exported");
                }
            }
            gpus.push(Exported {
                index: entry.index,
                id: seen.pci,
                mig_enabled: layout.mig_enabled,
                mig_devices: devices,
            });
        }
        Ok(export(label, &gpus))
    }

    /// Named layouts for the GPUs there are; the default config of all known boards where the driver lists no profiles
    /// (old ones do so only while MIG is on).
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn generate(&self) -> Result<Config, Error> {
        let node = look(&self.driver)?;
        let boards: Vec<_> = node
            .seen()
            .filter_map(|s| Some((s.pci, s.board.clone()?)))
            .collect();
        Ok(generate(&boards)?)
    }
}
