//! Logs on standard error, so that standard output stays what a command was asked for.

use clap::{Args, ValueEnum};
use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;

use crate::help;

/// What the API client has to say the parts say themselves, once; it says it at every try.
const SILENT: &str = "kube_client=off,kube_runtime=off";

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One human line per event.
    #[default]
    Text,
    /// One JSON object per event.
    Json,
}

/// Flags every subcommand takes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = help::LOGGING)]
pub(crate) struct LogArgs {
    /// What to log: a level, or directives such as `mig_manager=debug,info`
    #[arg(long, global = true, env = "LATHE_LOG", value_name = "FILTER")]
    log: Option<String>,

    /// How log lines look: text unless told otherwise
    #[arg(
        long,
        global = true,
        env = "LATHE_LOG_FORMAT",
        value_name = "FORMAT",
        value_enum
    )]
    log_format: Option<LogFormat>,
}

impl LogArgs {
    /// Starts logging with `default` as the filter and `format` as the format when none was given.
    ///
    /// # Errors
    /// The filter cannot be parsed, or logging was already started.
    pub(crate) fn start(&self, default: &str, format: LogFormat) -> anyhow::Result<()> {
        let filter = match &self.log {
            Some(filter) => filter.clone(),
            None => format!("{default},{SILENT}"),
        };
        let filter = EnvFilter::try_new(&filter)
            .map_err(|error| anyhow::anyhow!("--log {filter:?} is no log filter: {error}"))?;
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr);
        let started = match self.log_format.unwrap_or(format) {
            LogFormat::Json => builder.json().try_init(),
            LogFormat::Text => builder
                .with_ansi(std::io::stderr().is_terminal())
                .try_init(),
        };
        started.map_err(|error| anyhow::anyhow!("logging could not be started: {error}"))
    }
}
