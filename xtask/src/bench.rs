//! Runs every benchmark of the repository: criterion's, then the parts as processes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::bench_node::Program;
use crate::{bench_device_plugin, bench_exporter};

/// Run every benchmark
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    program: Program,

    #[command(flatten)]
    exporter: bench_exporter::ExporterNumbers,

    #[command(flatten)]
    device_plugin: bench_device_plugin::DevicePluginNumbers,
}

/// # Errors
/// A benchmark cannot be built, or fails.
pub(crate) fn run(root: &Path, args: &Args) -> anyhow::Result<()> {
    cargo(root, &["build", "--release", "--package", "lathe"])?;
    cargo(root, &["bench", "--workspace", "--benches"])?;
    let lathe = args.program.find(root)?;
    bench_exporter::measure(&lathe, &args.exporter)?;
    bench_device_plugin::measure(&lathe, &args.device_plugin)
}

fn cargo(root: &Path, args: &[&str]) -> anyhow::Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(args)
        .current_dir(root)
        .status()
        .context("running cargo")?;
    ensure!(status.success(), "cargo {} failed", args.join(" "));
    Ok(())
}
