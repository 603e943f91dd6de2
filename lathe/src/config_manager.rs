//! `lathe config-manager`: links the configuration that the node's label chooses, for manifests that have NVIDIA's
//! config-manager.
//!
//! Flags and environment variables are those of that program, so that its manifest keeps working. `lathe device-plugin` does
//! not need it: it follows the label itself.

use std::path::PathBuf;

use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use config_manager::{Config, Notice, Signal};
use tokio_util::sync::CancellationToken;

use crate::config_choice::ConfigChoice;

/// Link the configuration file that the node's label chooses, and tell a process when it changes
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Link once and end
    #[arg(long, env = "ONESHOT", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_name = "BOOL")]
    oneshot: bool,

    /// Kubeconfig file; without it those in KUBECONFIG, or else the pod's service account
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// The node this runs on
    #[arg(long, env = "NODE_NAME", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    node_name: String,

    #[command(flatten)]
    choice: ConfigChoice,

    /// Folder of the configuration files
    #[arg(
        long,
        env = "CONFIG_FILE_SRCDIR",
        value_name = "DIR",
        default_value = "/available-configs"
    )]
    config_file_srcdir: PathBuf,

    /// Where the link goes
    #[arg(
        long,
        env = "CONFIG_FILE_DST",
        value_name = "FILE",
        default_value = "/config/config.yaml"
    )]
    config_file_dst: PathBuf,

    /// Tell the process when the configuration changes
    #[arg(long, env = "SEND_SIGNAL", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", value_name = "BOOL")]
    send_signal: bool,

    /// Number of the signal
    #[arg(long, env = "SIGNAL", value_name = "N", default_value = "1", value_parser = signal)]
    signal: Signal,

    /// Name of the process: what it was started as
    #[arg(long, env = "PROCESS_TO_SIGNAL", value_name = "NAME", default_value = "nvidia-device-plugin",
          value_parser = NonEmptyStringValueParser::new())]
    process_to_signal: String,
}

fn signal(text: &str) -> Result<Signal, String> {
    text.parse()
        .ok()
        .and_then(Signal::from_named_raw)
        .ok_or_else(|| "there is no such signal; 1 is SIGHUP".to_owned())
}

/// Keeps the link right until `shutdown` is cancelled, or makes it once.
///
/// # Errors
/// No way to reach a cluster is configured, a link that cannot be made, or, with `--oneshot`, nothing to link.
pub(crate) async fn run(args: Args, shutdown: CancellationToken) -> anyhow::Result<()> {
    let client = cluster::client("config-manager", args.kubeconfig.as_deref()).await?;
    let config = Config {
        node_name: args.node_name,
        rules: args.choice.rules(),
        source: args.config_file_srcdir,
        link: args.config_file_dst,
        oneshot: args.oneshot,
        notice: args.send_signal.then_some(Notice {
            process: args.process_to_signal,
            signal: args.signal,
        }),
    };
    config_manager::run(config, client, shutdown).await?;
    Ok(())
}
