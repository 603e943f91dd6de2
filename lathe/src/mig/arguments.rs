//! Flags and environment variables of `lathe mig`: those of `nvidia-mig-parted`, and a few more.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{BoolishValueParser, OsStringValueParser, TypedValueParser};
use clap::{Subcommand, ValueEnum};
use mig_manager::engine::OnFailure;
use mig_manager::output::Format;

use crate::help;

const EXIT_CODES: &str = "\
Exit codes:
  0  done, or already so
  1  differs (assert)
  2  wrong usage, or a bad config, hooks or checkpoint file
  3  the hardware cannot do it; nothing was touched
  4  in use by a process, or by another apply; nothing is changed
  5  a reset or reboot is needed
  6  no driver, or it does not answer
  7  failed, and everything is as it was
  8  failed, and something is not as it was";

/// Cut GPUs into MIG devices: plan, apply, compare, export, save and restore
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Args {
    /// Log what is done in detail
    #[arg(short, long, global = true, help_heading = help::LOGGING, env = "MIG_PARTED_DEBUG", value_parser = BoolishValueParser::new())]
    pub(crate) debug: bool,

    /// Where the node's file system is mounted
    #[arg(
        long,
        global = true,
        display_order = help::SHARED,
        env = "LATHE_ROOT",
        value_name = "DIR",
        default_value = "/"
    )]
    pub(crate) root: PathBuf,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Args {
    /// What to log when no filter was given.
    pub(crate) fn log_filter(&self) -> &'static str {
        if self.debug { "debug" } else { "info" }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what an apply would keep, create and destroy; touches nothing
    #[command(after_help = EXIT_CODES)]
    Plan(PlanArgs),
    /// Bring the GPUs to a config
    #[command(after_help = EXIT_CODES)]
    Apply(ApplyArgs),
    /// Tell whether the GPUs are as a config says
    #[command(after_help = EXIT_CODES)]
    Assert(AssertArgs),
    /// Print the GPUs' present state as a config
    Export(ExportArgs),
    /// Save the exact layout of all GPUs to a file
    Checkpoint(CheckpointArgs),
    /// Bring back a saved layout, placements included
    #[command(after_help = EXIT_CODES)]
    Restore(RestoreArgs),
    /// Make named configs from what the GPUs offer
    GenerateConfig(GenerateArgs),
}

impl Command {
    /// The structured format that was asked for; `None` for text for people.
    pub(crate) fn format(&self) -> Option<Format> {
        let format = match self {
            Self::Plan(args) => args.output_format,
            Self::Apply(args) => args.change.output_format,
            Self::Assert(args) => args.output_format,
            Self::Restore(args) => args.change.output_format,
            // What these write is kept: nothing but a config may get there.
            Self::Export(_) | Self::GenerateConfig(_) | Self::Checkpoint(_) => None,
        };
        format.map(Format::from)
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OutputFormat {
    Json,
    Yaml,
}

impl From<OutputFormat> for Format {
    fn from(format: OutputFormat) -> Self {
        match format {
            OutputFormat::Json => Self::Json,
            OutputFormat::Yaml => Self::Yaml,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum FailurePolicy {
    /// All GPUs go back to the layout they had
    Rollback,
    /// What is done stays
    Keep,
}

impl From<FailurePolicy> for OnFailure {
    fn from(policy: FailurePolicy) -> Self {
        match policy {
            FailurePolicy::Rollback => Self::Rollback,
            FailurePolicy::Keep => Self::Keep,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// Config file; - for standard input
    #[arg(short = 'f', long, env = "MIG_PARTED_CONFIG_FILE", value_name = "FILE")]
    pub(crate) config_file: PathBuf,

    /// Name of the config in the file; may be left out when there is only one
    #[arg(
        short = 'c',
        long,
        env = "MIG_PARTED_SELECTED_CONFIG",
        value_name = "NAME"
    )]
    selected_config: Option<String>,

    /// Look at and change only MIG mode, not the devices
    #[arg(short = 'm', long, env = "MIG_PARTED_MODE_CHANGE_ONLY", value_parser = BoolishValueParser::new())]
    pub(crate) mode_only: bool,
}

impl ConfigArgs {
    pub(crate) fn selected(&self) -> Option<&str> {
        // An empty variable counts as unset, as in mig-parted.
        self.selected_config
            .as_deref()
            .filter(|name| !name.is_empty())
    }
}

/// What all commands that change GPUs take.
#[derive(Debug, clap::Args)]
pub(crate) struct ChangeArgs {
    /// File of commands to run around the change
    #[arg(short = 'k', long, env = "MIG_PARTED_HOOKS_FILE", value_name = "FILE", value_parser = path_or_empty())]
    hooks_file: Option<PathBuf>,

    /// How many seconds one hook command may take
    #[arg(long, env = "LATHE_HOOK_TIMEOUT", value_name = "SECONDS", value_parser = seconds, default_value = "240")]
    pub(crate) hook_timeout: Duration,

    /// What a failure on one GPU means for the others
    #[arg(
        long,
        env = "LATHE_ON_FAILURE",
        value_name = "POLICY",
        value_enum,
        default_value = "rollback"
    )]
    pub(crate) on_failure: FailurePolicy,

    /// Where lock and journal are kept [default: ROOT/var/lib/lathe/mig]
    #[arg(long, env = "LATHE_STATE_DIR", value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// How many seconds to wait for another apply on this node to end
    #[arg(long, env = "LATHE_LOCK_WAIT", value_name = "SECONDS", value_parser = seconds, default_value = "60")]
    pub(crate) lock_wait: Duration,

    /// After how many seconds of changing GPUs to give up and go back [default: none; each driver call has its own bound]
    #[arg(long, env = "LATHE_TIMEOUT", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,

    /// Print the outcome for programs
    #[arg(short = 'o', long, value_name = "FORMAT", value_enum)]
    output_format: Option<OutputFormat>,
}

impl ChangeArgs {
    pub(crate) fn hooks_file(&self) -> Option<&Path> {
        set(self.hooks_file.as_deref())
    }
}

/// A path; an empty variable counts as unset, as in mig-parted, see [`set`].
fn path_or_empty() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

fn set(path: Option<&Path>) -> Option<&Path> {
    path.filter(|p| !p.as_os_str().is_empty())
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u32>() {
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds.into())),
        _ => Err("expected a number of seconds from 1 to 86400".to_owned()),
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Where lock and journal are kept [default: ROOT/var/lib/lathe/mig]
    #[arg(long, env = "LATHE_STATE_DIR", value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Print the plan for programs
    #[arg(short = 'o', long, value_name = "FORMAT", value_enum)]
    output_format: Option<OutputFormat>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Set MIG modes, but reset no GPU
    #[arg(short, long, env = "MIG_PARTED_SKIP_RESET", value_parser = BoolishValueParser::new())]
    pub(crate) skip_reset: bool,

    #[command(flatten)]
    pub(crate) change: ChangeArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AssertArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Only check that the file is valid and has the config
    #[arg(short = 'a', long, env = "MIG_PARTED_VALID_CONFIG", value_parser = BoolishValueParser::new())]
    pub(crate) valid_config: bool,

    /// Print the differences for programs
    #[arg(short = 'o', long, value_name = "FORMAT", value_enum)]
    output_format: Option<OutputFormat>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// Format of the config
    #[arg(
        short = 'o',
        long,
        env = "MIG_PARTED_OUTPUT_FORMAT",
        value_name = "FORMAT",
        value_enum,
        default_value = "yaml"
    )]
    pub(crate) output_format: OutputFormat,

    /// Name that the config gets
    #[arg(
        short = 'l',
        long,
        env = "MIG_PARTED_CONFIG_LABEL",
        value_name = "NAME",
        default_value = "current"
    )]
    pub(crate) config_label: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckpointArgs {
    /// File to write
    #[arg(
        short = 'f',
        long,
        env = "MIG_PARTED_CHECKPOINT_FILE",
        value_name = "FILE"
    )]
    pub(crate) checkpoint_file: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// File that `checkpoint` wrote
    #[arg(
        short = 'f',
        long,
        env = "MIG_PARTED_CHECKPOINT_FILE",
        value_name = "FILE"
    )]
    pub(crate) checkpoint_file: PathBuf,

    /// Only MIG mode comes back, not the instances
    #[arg(short = 'm', long, env = "MIG_PARTED_MODE_CHANGE_ONLY", value_parser = BoolishValueParser::new())]
    pub(crate) mode_only: bool,

    #[command(flatten)]
    pub(crate) change: ChangeArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GenerateArgs {
    /// File to write instead of standard output
    #[arg(short = 'f', long, env = "MIG_PARTED_OUTPUT_FILE", value_name = "FILE", value_parser = path_or_empty())]
    output_file: Option<PathBuf>,

    /// Format of the config
    #[arg(
        short = 'o',
        long,
        env = "MIG_PARTED_OUTPUT_FORMAT",
        value_name = "FORMAT",
        value_enum,
        default_value = "yaml"
    )]
    pub(crate) output_format: OutputFormat,
}

impl GenerateArgs {
    pub(crate) fn output_file(&self) -> Option<&Path> {
        set(self.output_file.as_deref())
    }
}
