//! Environment variables that are set and empty.
//!
//! Manifests and unit files set variables to nothing where a value was left out. clap takes that for an empty value, which
//! is no number, no folder and no choice; here it counts as not set.

use std::ffi::OsStr;

use clap::builder::Resettable;

/// Variables whose empty value means something of its own: labels go to standard output.
const MEANINGFUL: [&str; 1] = ["GFD_OUTPUT_FILE"];

/// The command, blind to variables that `is_empty` says are set and empty.
pub(crate) fn without_empty(
    command: clap::Command,
    is_empty: &impl Fn(&OsStr) -> bool,
) -> clap::Command {
    let ignore = |arg: clap::Arg| match arg.get_env() {
        Some(name) if !MEANINGFUL.iter().any(|kept| name == *kept) && is_empty(name) => {
            arg.env(Resettable::Reset)
        }
        _ => arg,
    };
    command
        .mut_args(ignore)
        .mut_subcommands(|command| without_empty(command, is_empty))
}

/// Whether a variable is set and empty.
pub(crate) fn is_empty(name: &OsStr) -> bool {
    std::env::var_os(name).is_some_and(|value| value.is_empty())
}
