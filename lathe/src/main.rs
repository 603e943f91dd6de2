//! Lathe: the GPU lifecycle of a Kubernetes cluster in one binary.
//!
//! This crate only wires: each part is a library, and each subcommand turns flags and environment into that library's
//! configuration.

mod logging;
mod name;

use clap::Parser;

/// Shapes the GPUs of a Kubernetes node: finds them, cuts them, publishes what it cut, measures them.
#[derive(Debug, Parser)]
#[command(name = "lathe", version, propagate_version = true)]
struct Cli {}

fn main() -> std::process::ExitCode {
    let _cli = Cli::parse_from(name::arguments(std::env::args_os()));
    std::process::ExitCode::SUCCESS
}
