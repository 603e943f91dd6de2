//! What an operation is asked for and how it is to behave.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpu::{Goal, Impossible};

use super::error::{Error, Refusal};
use super::look::{Node, Seen};
use crate::checkpoint::Checkpoint;
use crate::config::{Config, SelectionError, Spec};
use crate::hooks::Hooks;
use crate::select::{Candidate, select};

/// The layout to reach.
#[derive(Clone, Debug)]
pub struct Request {
    name: String,
    wanted: Wanted,
    mode_only: bool,
}

#[derive(Clone, Debug)]
enum Wanted {
    Specs(Vec<Spec>),
    Checkpoint(Checkpoint),
}

impl Request {
    /// A named layout of a config; without a name, its only one.
    ///
    /// # Errors
    /// [`SelectionError`] when the name is unknown, or needed and missing.
    pub fn of(config: &Config, selected: Option<&str>) -> Result<Self, SelectionError> {
        let (name, specs) = config.select(selected)?;
        Ok(Self {
            name: name.to_owned(),
            wanted: Wanted::Specs(specs.to_vec()),
            mode_only: false,
        })
    }

    /// The layouts of a checkpoint.
    pub fn restore(checkpoint: Checkpoint) -> Self {
        Self {
            name: "checkpoint".to_owned(),
            wanted: Wanted::Checkpoint(checkpoint),
            mode_only: false,
        }
    }

    /// The same, but only MIG mode counts: instances stay as they are where MIG stays on.
    #[must_use]
    pub fn mode_only(mut self, mode_only: bool) -> Self {
        self.mode_only = mode_only;
        self
    }

    pub(crate) fn is_mode_only(&self) -> bool {
        self.mode_only
    }

    /// Name of the layout.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The goal of every GPU that the request speaks of, by index.
    pub(crate) fn goals(&self, node: &Node) -> Result<BTreeMap<u32, Goal>, Error> {
        let goals = match &self.wanted {
            Wanted::Specs(specs) => spec_goals(specs, node),
            Wanted::Checkpoint(checkpoint) => checkpoint_goals(checkpoint, node, self.mode_only),
        };
        let mut goals = goals.map_err(Error::Impossible)?;
        if self.mode_only {
            for goal in goals.values_mut() {
                *goal = Goal::Mode(goal.mig_enabled());
            }
        }
        Ok(goals)
    }
}

fn spec_goals(specs: &[Spec], node: &Node) -> Result<BTreeMap<u32, Goal>, Vec<Refusal>> {
    let candidates: Vec<Candidate> = node
        .gpus
        .iter()
        .map(|entry| Candidate {
            index: entry.index,
            id: entry.seen.as_ref().ok().map(|s| s.pci),
            mig_capable: entry.seen.as_ref().map_or(true, Seen::mig_capable),
        })
        .collect();
    match select(specs, &candidates) {
        Ok(chosen) => Ok(chosen
            .into_iter()
            .map(|(index, spec)| (index, Goal::new(spec.mig_enabled, spec.mig_devices.clone())))
            .collect()),
        Err(errors) => Err(errors.into_iter().map(Refusal::from).collect()),
    }
}

fn checkpoint_goals(
    checkpoint: &Checkpoint,
    node: &Node,
    mode_only: bool,
) -> Result<BTreeMap<u32, Goal>, Vec<Refusal>> {
    let mut goals = BTreeMap::new();
    let mut refusals = Vec::new();
    for (uuid, mig_enabled) in checkpoint.modes() {
        let Some(seen) = node.seen().find(|s| s.id.uuid == uuid) else {
            refusals.push(Refusal::NoSuchGpu {
                uuid: uuid.to_owned(),
            });
            continue;
        };
        if mode_only || !mig_enabled {
            goals.insert(seen.id.index, Goal::Mode(mig_enabled));
            continue;
        }
        let goal = match &seen.board {
            None => Err(Refusal::Gpu {
                gpu: seen.id.clone(),
                reason: Impossible::NoMig,
            }),
            Some(board) if !board.lists_profiles() => Err(Refusal::Gpu {
                gpu: seen.id.clone(),
                reason: Impossible::NoProfiles,
            }),
            Some(board) => checkpoint.layout(uuid, board).map_err(Refusal::from),
        };
        match goal {
            Ok(layout) => {
                goals.extend(layout.map(|layout| (seen.id.index, Goal::Layout(layout))));
            }
            Err(refusal) => refusals.push(refusal),
        }
    }
    if refusals.is_empty() {
        Ok(goals)
    } else {
        Err(refusals)
    }
}

/// What happens to the GPUs of an apply when one of them fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// All of them go back to the layout they had, placements included.
    #[default]
    Rollback,
    /// Nothing goes back: GPUs that are done stay done, others finish, the failed one stays where it stopped.
    Keep,
}

/// How the engine works on a node.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where lock and journal are kept.
    pub state_dir: PathBuf,
    /// What a failure on one GPU means for the others.
    pub on_failure: OnFailure,
    /// Set modes, but reset no GPU; those that need it then wait for somebody else's reset.
    pub skip_reset: bool,
    /// Commands around an apply.
    pub hooks: Hooks,
    /// How long to try again what the driver refuses because somebody unnamed holds the GPU. Programs that only watch GPUs
    /// hold them, too, and some let go when they see a change coming, a moment late: the device plugin does.
    pub in_use_wait: Duration,
    /// How long to wait for another apply on this node to end.
    pub lock_wait: Duration,
    /// After how long of changing GPUs the change is given up. Each driver call has a bound of its own, so this ends at
    /// most one call later; hooks have theirs, and the way back is not cut short.
    pub change_limit: Option<Duration>,
}

impl Options {
    /// The usual options for the node whose file system is at `root`.
    pub fn at(root: &Path) -> Self {
        Self {
            state_dir: root.join("var/lib/lathe/mig"),
            on_failure: OnFailure::default(),
            skip_reset: false,
            hooks: Hooks::default(),
            in_use_wait: Duration::ZERO,
            lock_wait: Duration::from_secs(60),
            change_limit: None,
        }
    }
}
