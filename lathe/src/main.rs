//! Lathe: the GPU lifecycle of a Kubernetes cluster in one binary.
//!
//! This crate only wires: each part is a library, and each subcommand turns flags and environment into that library's
//! configuration.

// They panic when nobody reads; `output` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod config_choice;
mod config_manager;
mod config_source;
mod dcgm_exporter;
mod demo;
mod device_plugin;
mod environment;
mod feature_discovery;
mod help;
mod logging;
mod mig;
mod mig_manager;
mod mps_daemon;
mod name;
mod output;
#[cfg(test)]
mod parsed;
mod reload;
mod sim;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Shapes the GPUs of a Kubernetes node: finds them, cuts them, measures them
#[derive(Debug, Parser)]
#[command(name = "lathe", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    log: logging::LogArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Args),
    Sim(sim::Args),
    Mig(mig::Args),
    MigManager(mig_manager::Args),
    FeatureDiscovery(feature_discovery::Args),
    DcgmExporter(dcgm_exporter::Args),
    DevicePlugin(device_plugin::Args),
    ConfigManager(config_manager::Args),
    MpsDaemon(mps_daemon::Args),
}

fn main() -> ExitCode {
    let command = environment::without_empty(Cli::command(), &environment::is_empty);
    let arguments = name::arguments(std::env::args_os());
    let matches = match command.clone().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => match environment::explained(&command, &error) {
            Some(text) => {
                output::complain(&text);
                return ExitCode::from(2);
            }
            None => error.exit(),
        },
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            if let Some(usage) = error.downcast_ref::<clap::Error>() {
                usage.exit();
            }
            output::complain(&format!("error: {}", output::chain(&error)));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let format = match &cli.command {
        Command::DcgmExporter(_) => dcgm_exporter::default_log_format()?,
        _ => logging::LogFormat::default(),
    };
    let filter = match &cli.command {
        Command::Demo(args) => args.default_log(),
        Command::DcgmExporter(args) => args.default_log(),
        Command::Mig(args) => args.log_filter(),
        Command::Sim(_) => "warn",
        Command::MigManager(_)
        | Command::FeatureDiscovery(_)
        | Command::DevicePlugin(_)
        | Command::ConfigManager(_)
        | Command::MpsDaemon(_) => "info",
    };
    cli.log.start(filter, format)?;
    match cli.command {
        Command::Sim(args) => sim::run(&args),
        Command::Mig(args) => Ok(mig::run(&args)),
        Command::MigManager(args) => part(|shutdown| mig_manager::run(args, shutdown)),
        Command::Demo(args) => part(|shutdown| demo::run(args, shutdown)),
        Command::FeatureDiscovery(args) => part(|shutdown| feature_discovery::run(args, shutdown)),
        Command::DcgmExporter(args) => part(|shutdown| dcgm_exporter::run(args, shutdown)),
        Command::DevicePlugin(args) => part(|shutdown| device_plugin::run(args, shutdown)),
        Command::ConfigManager(args) => part(|shutdown| config_manager::run(args, shutdown)),
        Command::MpsDaemon(args) => part(|shutdown| mps_daemon::run(args, shutdown)),
    }
}

/// By then a part has read its configuration, opened the driver and talked to whom it talks.
const STARTED: std::time::Duration = std::time::Duration::from_secs(10);

/// Runs a part on one thread until it ends; SIGINT and SIGTERM ask it to.
///
/// One thread is enough: parts keep driver calls on threads of their own, and a second worker costs memory on every node.
fn part<F>(start: impl FnOnce(CancellationToken) -> F) -> anyhow::Result<ExitCode>
where
    F: Future<Output = anyhow::Result<()>>,
{
    nvml::share_heap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let shutdown = CancellationToken::new();
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let asked = shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            asked.cancel();
        });
        tokio::spawn(async {
            tokio::time::sleep(STARTED).await;
            nvml::unmap_start();
        });
        start(shutdown).await
    })?;
    Ok(ExitCode::SUCCESS)
}
