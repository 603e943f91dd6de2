//! What `lathe mig` says in the end, for people or for programs, and the exit code that goes with it.

use std::path::PathBuf;
use std::process::ExitCode;

use mig_manager::checkpoint::Checkpoint;
use mig_manager::config::{Config, SelectionError};
use mig_manager::engine::{self, Applied, Difference, NodePlan};
use mig_manager::output::{Format, WriteError};
use mig_manager::strict::DocumentError;
use serde::Serialize;

use super::file;
use crate::output::{self, complain};

/// How a command ended well, or with an answer.
pub(crate) enum Outcome {
    Plan(NodePlan),
    Applied {
        applied: Applied,
        /// mig-parted's line for it.
        done: &'static str,
    },
    /// What was asserted holds; mig-parted's line for it.
    Holds(&'static str),
    Differs(Vec<Difference>),
    Config {
        config: Config,
        file: Option<PathBuf>,
        format: Format,
    },
    Checkpoint {
        checkpoint: Checkpoint,
        file: PathBuf,
    },
}

/// How a command failed: one line for people, and the exit code.
#[derive(Debug, Serialize)]
pub(crate) struct Failure {
    error: String,
    exit_code: u8,
}

/// Exit code for wrong usage and bad files.
const BAD_INPUT: u8 = 2;

/// Exit code for what the hardware cannot do.
const IMPOSSIBLE: u8 = 3;

impl Failure {
    fn bad(error: impl ToString) -> Self {
        Self {
            error: error.to_string(),
            exit_code: BAD_INPUT,
        }
    }

    pub(crate) fn no_gpus() -> Self {
        Self {
            error: "this node has no GPU".to_owned(),
            exit_code: IMPOSSIBLE,
        }
    }
}

impl From<engine::Error> for Failure {
    fn from(error: engine::Error) -> Self {
        Self {
            error: error.to_string(),
            exit_code: error.exit_code(),
        }
    }
}

impl From<nvml::Error> for Failure {
    fn from(error: nvml::Error) -> Self {
        engine::Error::from(error).into()
    }
}

impl From<DocumentError> for Failure {
    fn from(error: DocumentError) -> Self {
        Self::bad(error)
    }
}

impl From<SelectionError> for Failure {
    fn from(error: SelectionError) -> Self {
        Self::bad(error)
    }
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Self {
        Self::bad(error)
    }
}

#[derive(Serialize)]
struct AppliedReport<'a> {
    changed: &'a [engine::GpuId],
    awaiting_reset: &'a [engine::GpuId],
    unrecovered: Vec<&'a engine::GpuId>,
}

#[derive(Serialize)]
struct AssertReport<'a> {
    equal: bool,
    differences: &'a [Difference],
}

/// Prints the outcome and gives the exit code. `format` is `None` for people.
pub(crate) fn report(outcome: Result<Outcome, Failure>, format: Option<Format>) -> ExitCode {
    let code = outcome.and_then(|outcome| print(outcome, format));
    match code {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            complain(&format!("error: {}", failure.error));
            if let Some(format) = format {
                // Where standard output is gone, standard error and the exit code have told it.
                let _told = structured(format, "error", &failure);
            }
            ExitCode::from(failure.exit_code)
        }
    }
}

fn print(outcome: Outcome, format: Option<Format>) -> Result<u8, Failure> {
    match outcome {
        Outcome::Plan(plan) => {
            match format {
                Some(format) => structured(format, "plan", &plan)?,
                None => say(&plan.to_string())?,
            }
            plan.problem().map_or(Ok(0), |problem| Err(problem.into()))
        }
        Outcome::Applied { applied, done } => {
            let report = AppliedReport {
                changed: &applied.changed,
                awaiting_reset: &applied.awaiting_reset,
                unrecovered: applied.unrecovered.iter().map(|l| &l.gpu).collect(),
            };
            // The GPUs are changed whether or not anybody reads this.
            let _told = match format {
                Some(format) => structured(format, "outcome", &report),
                None => say(&format!("{done}\n")),
            };
            Ok(0)
        }
        Outcome::Holds(line) => {
            match format {
                Some(format) => {
                    let report = AssertReport {
                        equal: true,
                        differences: &[],
                    };
                    structured(format, "outcome", &report)?;
                }
                None => say(&format!("{line}\n"))?,
            }
            Ok(0)
        }
        Outcome::Differs(differences) => {
            for difference in &differences {
                complain(&difference.to_string());
            }
            match format {
                Some(format) => {
                    let report = AssertReport {
                        equal: false,
                        differences: &differences,
                    };
                    structured(format, "outcome", &report)?;
                }
                None => complain("error: selected configuration not currently applied"),
            }
            Ok(1)
        }
        Outcome::Config {
            config,
            file,
            format,
        } => {
            let text = format.write("config", &config)?;
            match file {
                Some(path) => save(path, &text)?,
                None => say(&text)?,
            }
            Ok(0)
        }
        Outcome::Checkpoint { checkpoint, file } => {
            save(file, &Format::Json.write("checkpoint", &checkpoint)?)?;
            say("MIG configuration checkpointed successfully\n")?;
            Ok(0)
        }
    }
}

fn save(path: PathBuf, text: &str) -> Result<(), Failure> {
    file::write(&path, text).map_err(|error| Failure::bad(format!("{}: {error}", path.display())))
}

fn structured<T: Serialize>(format: Format, what: &'static str, value: &T) -> Result<(), Failure> {
    say(&format.write(what, value)?)
}

fn say(text: &str) -> Result<(), Failure> {
    output::say(text).map_err(|error| Failure::bad(format!("standard output: {error}")))
}
