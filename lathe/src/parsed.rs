//! A command line of a part, as tests write it.

/// The flags that `arguments` give.
pub(crate) fn parsed<A: clap::Args>(arguments: &[&str]) -> A {
    let command = A::augment_args(clap::Command::new("lathe"));
    let arguments = ["lathe"].iter().chain(arguments);
    let matches = command.try_get_matches_from(arguments);
    matches
        .and_then(|matches| A::from_arg_matches(&matches))
        .unwrap_or_else(|error| error.exit())
}
