//! The two jobs that touch the driver, translated from the engine's terms into the state machine's. Both block, for a
//! bounded time, and run on a thread of their own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::state::{Failure, Verdict};
use crate::config::Config;
use crate::engine::{
    self, Cause, Engine, Error, GpuFailure, GpuId, Left, NodePlan, OnFailure, Options, Progress,
    Request, Verdict as GpuVerdict,
};
use crate::listing;

/// Where the named configurations come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file in the format of nvidia-mig-parted, read anew for every check and change.
    File(PathBuf),
    /// What the hardware offers, or the configurations that come with the program where the driver does not tell.
    Hardware,
}

/// What a job needs.
pub(super) struct Jobs {
    pub(super) session: Arc<nvml::Session>,
    pub(super) source: Source,
    pub(super) options: Options,
}

impl Jobs {
    /// Compares the GPUs with configuration `name`; touches nothing.
    pub(super) fn check(&self, name: &str) -> Verdict {
        match self
            .request(name)
            .and_then(|(engine, request)| Ok(engine.plan(&request)?))
        {
            Ok(plan) => judge(&plan, self.options.on_failure),
            Err(trouble) => Verdict::Refused(trouble.into()),
        }
    }

    /// Makes the GPUs what configuration `name` says.
    pub(super) fn apply(&self, name: &str, progress: &Progress<'_>) -> Result<String, Failure> {
        let begun = Instant::now();
        let (engine, request) = self.request(name)?;
        let applied = engine.apply(&request, progress).map_err(Trouble::from)?;
        for left in &applied.unrecovered {
            tracing::warn!(gpu = %left.gpu, cause = ?left.cause, "not brought back from an earlier, interrupted change");
        }
        // What can be tried again is, after a pause; a GPU that does not answer is heard of when it does.
        if !applied.unrecovered.is_empty()
            && engine
                .plan(&request)
                .map_err(Trouble::from)?
                .interrupted
                .is_some()
        {
            return Err(unrecovered(applied.unrecovered));
        }
        Ok(match &*applied.changed {
            [] => "already in place, nothing changed".to_owned(),
            changed => format!(
                "changed {} in {:.1} s",
                listed(changed),
                begun.elapsed().as_secs_f64()
            ),
        })
    }

    fn request(&self, name: &str) -> Result<(Engine, Request), Trouble> {
        // The file first: a mistake in it is worth telling even while there is no driver.
        let file = match &self.source {
            Source::File(path) => Some(Config::read(path).map_err(Trouble::config)?),
            Source::Hardware => None,
        };
        let driver = self.session.driver().map_err(Error::Driver)?;
        let engine = Engine::new(driver, self.options.clone());
        let config = match file {
            Some(config) => config,
            None => engine.generate()?,
        };
        let request = Request::of(&config, Some(name)).map_err(Trouble::config)?;
        Ok((engine, request))
    }
}

/// The configuration is in place, and yet a GPU that it does not speak of is in a state that nobody asked for.
fn unrecovered(left: Vec<Left>) -> Failure {
    let failures: Vec<GpuFailure> = left
        .into_iter()
        .filter_map(|left| {
            Some(GpuFailure {
                gpu: left.gpu,
                cause: left.cause?,
            })
        })
        .collect();
    let told: Vec<String> = failures.iter().map(ToString::to_string).collect();
    Failure {
        driver_missing: false,
        message: format!(
            "in place, but an earlier, interrupted change is neither finished nor undone: {}",
            told.join("; ")
        ),
        holders: holders(&Error::Failed {
            failures,
            left: Vec::new(),
        }),
    }
}

/// Why a job came to nothing.
enum Trouble {
    Config(String),
    Engine(Error),
}

impl Trouble {
    fn config(error: impl std::error::Error) -> Self {
        Self::Config(error.to_string())
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Config(message) => Self {
                driver_missing: false,
                message,
                holders: Vec::new(),
            },
            Trouble::Engine(error) => Self {
                driver_missing: is_driver_missing(&error),
                holders: holders(&error),
                message: error.to_string(),
            },
        }
    }
}

/// What a plan means for the controller. A change that can only fail is refused here, before anybody is told that one
/// begins; a retry of it then changes neither a GPU nor a label.
fn judge(plan: &NodePlan, on_failure: OnFailure) -> Verdict {
    let refused = |error: Error| Verdict::Refused(Trouble::from(error).into());
    if let Some(impossible) = plan.impossible() {
        return refused(impossible);
    }
    if plan.is_noop() && plan.interrupted.is_none() {
        return Verdict::InPlace;
    }
    let blocked = plan.blocked();
    let changing: Vec<GpuId> = plan
        .gpus
        .iter()
        .filter(|gpu| {
            matches!(
                gpu.verdict,
                GpuVerdict::Change { .. } | GpuVerdict::ModeFirst { .. }
            )
        })
        .map(|gpu| gpu.id.clone())
        .collect();
    let unreadable: Vec<GpuFailure> = plan.gpus.iter().filter_map(unreadable).collect();
    let all_or_nothing = on_failure == OnFailure::Rollback;
    if !unreadable.is_empty() && (all_or_nothing || changing.is_empty()) {
        return refused(Error::Failed {
            failures: unreadable,
            left: Vec::new(),
        });
    }
    if !blocked.is_empty() && (all_or_nothing || blocked.len() == changing.len()) {
        return refused(Error::InUse(blocked));
    }
    match (&plan.interrupted, changing.is_empty()) {
        (Some(name), true) => {
            Verdict::Differs(format!("finishing an interrupted change to {name}"))
        }
        _ => Verdict::Differs(format!("changing {}", listed(&changing))),
    }
}

fn unreadable(gpu: &engine::PlannedGpu) -> Option<GpuFailure> {
    match &gpu.verdict {
        GpuVerdict::Unreadable { reason } => Some(GpuFailure {
            gpu: gpu.id.clone(),
            cause: Cause::Driver {
                doing: "reading its state".to_owned(),
                error: reason.clone(),
            },
        }),
        _ => None,
    }
}

/// Whether the driver as a whole is away: then nothing is wrong with what is wanted, and waiting helps.
fn is_driver_missing(error: &Error) -> bool {
    match error {
        Error::Driver(error) => error.is_driver_gone(),
        Error::Failed { failures, .. } => failures
            .iter()
            .all(|failure| matches!(&failure.cause, Cause::Driver { error, .. } if error.is_driver_gone())),
        _ => false,
    }
}

fn holders(error: &Error) -> Vec<u32> {
    let blocked = match error {
        Error::InUse(blocked) => blocked.iter().collect(),
        Error::Failed { failures, .. } => failures
            .iter()
            .filter_map(|failure| match &failure.cause {
                Cause::InUse(blocked) => Some(blocked),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    };
    let mut pids: Vec<u32> = blocked
        .into_iter()
        .flat_map(|blocked| blocked.clients.iter().map(|client| client.pid))
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// `GPU 3`, or `GPUs 0-2, 5`.
fn listed(gpus: &[GpuId]) -> String {
    listing::gpus(gpus.iter().map(|gpu| gpu.index))
}
