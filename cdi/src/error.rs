//! What can go wrong, and what is left out without being an error.

use std::io;
use std::path::PathBuf;

use crate::name::NameError;
use crate::spec::SpecError;

/// Why there is no spec, or none was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Part of the node cannot be read.
    #[error("{path}: {source}; can this process read it?", path = path.display())]
    Read {
        /// What was read.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The driver that answers is not the one that is installed there.
    #[error(
        "no libcuda.so.{version} or libnvidia-ml.so.{version} below {root}: is the driver {version} installed there? \
         After an update of the driver, reload its kernel module or reboot",
        root = root.display()
    )]
    NoDriver {
        /// The driver's root.
        root: PathBuf,
        /// The version that the driver says it has.
        version: String,
    },
    /// A name breaks the grammar.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Runtimes would refuse the spec.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The folder of specs cannot be used.
    #[error("{path}: cannot {action}: {source}; is the folder mounted writable?", path = path.display())]
    Write {
        /// File or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// What a spec leaves out. A GPU that lacks something lacks it alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Skipped {
    /// Nothing says which device node a GPU has.
    #[error(
        "GPU {uuid}: neither the driver nor /proc/driver/nvidia says its minor number; containers cannot get it through CDI"
    )]
    NoMinor {
        /// The GPU.
        uuid: String,
    },
    /// A device node is missing.
    #[error("{of}: there is no {path}; containers cannot get it until the node is there (nvidia-modprobe makes it)", path = path.display())]
    NoNode {
        /// UUID of the GPU or MIG device, or what else it belongs to.
        of: String,
        /// The node, as this process sees it.
        path: PathBuf,
    },
    /// The kernel's table has no entry for a MIG device.
    #[error(
        "{uuid}: /proc/driver/nvidia-caps/mig-minors has no {capability}; containers cannot get it through CDI"
    )]
    NoCapability {
        /// The MIG device.
        uuid: String,
        /// The entry.
        capability: String,
    },
    /// The name of a device breaks the grammar.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Another GPU has the index by which this one would be called.
    #[error("{uuid}: another GPU is called {name} by now; containers cannot get this one by index")]
    Taken {
        /// UUID of the GPU or MIG device.
        uuid: String,
        /// The name.
        name: String,
    },
    /// The program for hooks is not there.
    #[error(
        "there is no {path}: containers are made without NVIDIA's hooks, so `ldconfig -p` does not list the driver's libraries there",
        path = path.display()
    )]
    NoHook {
        /// The program, as this process sees it.
        path: PathBuf,
    },
}
