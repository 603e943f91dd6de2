//! Finds GPUs and writes what it found as node labels.
//!
//! The labels are feature discovery's (`nvidia.com/…`); the rules are [`gpu::labels`]. They go to the file that the worker
//! of node feature discovery reads. Differences from NVIDIA's program:
//! - The file is sorted and written only when it says something new, and stays when the program ends, so that an update of
//!   the DaemonSet does not take the labels off the node.
//! - A GPU that cannot be read costs its own share of the labels, not the program.
//! - It looks at once when the driver reports a changed MIG layout, and notices a driver that comes late or again.
//! - It lets go of the GPUs while the MIG layout is changed, which nobody may hold then.
//! - While the driver is gone after it had been there, the file stays as it was: the GPUs are still in the machine.

pub mod config;
pub mod duration;
pub mod file;
mod machine;
mod node;
mod service;
mod vgpu;

use std::io::{self, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use gpu::labels::{Labels, Rules};
use nvml::Driver;

pub use config::{Config, ConfigError, Settings};
pub use file::{WriteError, Written};
pub use service::{once, run};

/// Why there are no labels.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The driver cannot be asked.
    #[error("cannot ask the GPU driver: {0}")]
    Driver(#[from] nvml::Error),
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Stdout(#[source] io::Error),
    /// The system gives no thread.
    #[error("cannot start the labelling thread: {0}")]
    Thread(#[source] io::Error),
    /// The labelling thread ended by itself, which it never should.
    #[error("the labelling thread died; its last words are in the log")]
    Died,
}

/// Labels, and GPUs that could not be read for them.
#[derive(Debug)]
pub struct Discovery {
    /// The labels, with warnings about what they cannot say.
    pub labels: Labels,
    /// One error per GPU that is not in them.
    pub failed: Vec<nvml::Error>,
    /// Why vGPU labels are missing, when they are.
    pub vgpu: Option<String>,
}

/// Finds the labels of the node at `root`. `timestamp` is Unix seconds for `gfd.timestamp`; `None` leaves the label out.
///
/// # Errors
/// [`Error::Driver`]: the driver is gone.
pub fn discover(
    root: &Path,
    driver: &Driver,
    config: &Config,
    timestamp: Option<u64>,
) -> Result<Discovery, Error> {
    let found = node::find(root, driver, &config.machine_type_file)?;
    Ok(label(found, config, timestamp))
}

/// Labels of a node whose driver cannot be asked: those of a node without GPUs.
pub fn discover_without_driver(root: &Path, config: &Config, timestamp: Option<u64>) -> Discovery {
    label(node::without_driver(root), config, timestamp)
}

fn label(found: node::Found, config: &Config, timestamp: Option<u64>) -> Discovery {
    let rules = Rules {
        strategy: config.strategy,
        sharing: config.sharing.clone(),
        timestamp,
    };
    Discovery {
        labels: gpu::labels::labels(&found.node, &rules),
        failed: found.failed,
        vgpu: found.vgpu,
    }
}

/// Writes labels where the configuration says, under the node root.
///
/// # Errors
/// [`Error::Write`] or [`Error::Stdout`].
pub fn write(root: &Path, config: &Config, labels: &Labels) -> Result<Written, Error> {
    let text = labels.to_feature_file();
    match &config.output {
        Some(path) => Ok(file::write(
            &root.join(path.strip_prefix("/").unwrap_or(path)),
            &text,
        )?),
        None => {
            let mut out = io::stdout().lock();
            match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
                // A reader that has gone has seen enough.
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    Err(Error::Stdout(error))
                }
                _ => Ok(Written::Replaced),
            }
        }
    }
}

/// Now, as `gfd.timestamp` writes it.
pub fn timestamp() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
