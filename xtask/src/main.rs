//! Chores of the repository: `cargo xtask <chore>`.

mod tidy;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let result = match (args.next().as_deref(), args.next()) {
        (Some("tidy"), None) => tidy::run(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
