//! Runs every benchmark of the repository: criterion's, then the parts as processes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::bench_exporter;

/// Run every benchmark
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    processes: bench_exporter::Args,
}

/// # Errors
/// A benchmark cannot be built, or fails.
pub(crate) fn run(root: &Path, args: &Args) -> anyhow::Result<()> {
    cargo(root, &["build", "--release", "--package", "lathe"])?;
    cargo(root, &["bench", "--workspace", "--benches"])?;
    bench_exporter::run(root, &args.processes)
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
