//! Environment variables whose value is no value.
//!
//! Manifests and unit files set variables to nothing where a value was left out. clap takes that for an empty value, which
//! is no number, no folder and no choice; here it counts as not set. Of a value that is no text, clap does not say whose it
//! is; here it is said.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::PathBuf;

use clap::builder::Resettable;
use clap::error::ErrorKind;

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

/// What to say instead of clap's own words when a variable is what is wrong.
pub(crate) fn explained(command: &clap::Command, error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::InvalidUtf8 {
        return None;
    }
    let mut names = BTreeSet::new();
    unreadable(command, &mut names);
    let names: Vec<String> = names.into_iter().collect();
    // Otherwise it is an argument.
    (!names.is_empty()).then(|| {
        let names = names.join(", ");
        format!("error: the environment has what is no text in UTF-8: {names}; unset or correct it")
    })
}

/// Variables that are set to what is no text, and are no paths, which may be that.
fn unreadable(command: &clap::Command, names: &mut BTreeSet<String>) {
    for arg in command.get_arguments() {
        let is_path = arg.get_value_parser().type_id() == std::any::TypeId::of::<PathBuf>();
        let set = arg.get_env().filter(|_| !is_path);
        let is_text = |name: &&OsStr| std::env::var_os(name).is_none_or(|it| it.to_str().is_some());
        let bad = set.filter(|name| !is_text(name));
        names.extend(bad.map(|name| name.to_string_lossy().into_owned()));
    }
    for command in command.get_subcommands() {
        unreadable(command, names);
    }
}
