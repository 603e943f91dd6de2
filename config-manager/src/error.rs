//! Why there is no right link.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use cluster::named_config::Trouble;

/// A failure that ends the program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No file could be chosen (only when asked to do it once).
    #[error(transparent)]
    Choice(#[from] Trouble),
    /// What has to be known did not come in time (only when asked to do it once).
    #[error("gave up after {} s {waiting_for}", after.as_secs())]
    TimedOut {
        /// What was waited for, as [`Trouble`] says it.
        waiting_for: String,
        /// How long.
        after: Duration,
    },
    /// Asked to end before there was a link (only when asked to do it once).
    #[error("asked to end before a config was chosen")]
    Interrupted,
    /// The link cannot be made.
    #[error("cannot make the link {}: {source}; its folder must exist and be writable", link.display())]
    Link {
        /// The link.
        link: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The process cannot be told. While running this is tried again.
    #[error(
        "cannot send {signal} to {process}: {source}; it must run in the same pod, with a shared process namespace and as the same user"
    )]
    Signal {
        /// The signal's name.
        signal: String,
        /// The process' name.
        process: String,
        /// Why not.
        source: io::Error,
    },
}
