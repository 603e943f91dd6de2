//! Chores of the repository: `cargo xtask <chore>`.

mod bench;
mod bench_device_plugin;
mod bench_exporter;
mod bench_node;
mod cluster;
mod image;
mod manifest;
mod tidy;

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

/// Chores of the repository
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Check the conventions that lints cannot hold
    Tidy,
    Bench(bench::Args),
    BenchDevicePlugin(bench_device_plugin::Args),
    BenchExporter(bench_exporter::Args),
    Cluster(cluster::ClusterArgs),
    Image(image::ImageArgs),
    Manifest(manifest::ManifestArgs),
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lies in the workspace")?;
    match &cli.chore {
        Chore::Tidy => tidy::run(root)?,
        Chore::Bench(args) => bench::run(root, args)?,
        Chore::BenchDevicePlugin(args) => bench_device_plugin::run(root, args)?,
        Chore::BenchExporter(args) => bench_exporter::run(root, args)?,
        Chore::Image(args) => image::run(root, args)?,
        Chore::Manifest(args) => manifest::run(root, args)?,
        Chore::Cluster(args) => {
            if let Some(status) = cluster::run(root, args)? {
                // As shells do: a signal is 128 and its number.
                let code = status.code().or_else(|| Some(128 + status.signal()?));
                let code = code.and_then(|code| u8::try_from(code).ok());
                return Ok(code.map_or(ExitCode::FAILURE, ExitCode::from));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_sound() {
        <super::Cli as clap::CommandFactory>::command().debug_assert();
    }
}
