//! The node's configuration as a link: what NVIDIA's config-manager does beside the device plugin, feature discovery or the
//! MPS daemon in manifests that have it.
//!
//! The Node's label chooses a file of a folder ([`cluster::named_config`]); a link at a fixed path points at it; a process is
//! told by a signal when the link or the file's content changed. Lathe's own parts need none of this: they follow the label
//! themselves. The crate must not know what the files say.

mod error;
mod link;
mod process;
mod run;

use std::path::PathBuf;

use cluster::named_config::Rules;
pub use error::Error;
pub use run::run;
pub use rustix::process::Signal;

/// What to do.
#[derive(Clone, Debug)]
pub struct Config {
    /// The Node whose label counts.
    pub node_name: String,
    /// How a file is chosen.
    pub rules: Rules,
    /// The folder of the files.
    pub source: PathBuf,
    /// The link. What is there is replaced; its folder must exist.
    pub link: PathBuf,
    /// Make the link once and end, instead of keeping it right.
    pub oneshot: bool,
    /// Whom to tell of a change, if anybody.
    pub notice: Option<Notice>,
}

/// How a process is told.
#[derive(Clone, Debug)]
pub struct Notice {
    /// Name of the process: its `argv[0]`, or the last part of the path that this is. Every process of that name that this one
    /// can see is told.
    pub process: String,
    /// The signal.
    pub signal: Signal,
}
