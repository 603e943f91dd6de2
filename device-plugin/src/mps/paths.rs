//! Where MPS keeps its files: the layout of NVIDIA's `mps-control-daemon`.
//!
//! ```text
//! <root>/shm                       tmpfs that is /dev/shm of the daemon and of every client
//! <root>/.ready                    all daemons are up
//! <root>/<resource>/pipe           CUDA_MPS_PIPE_DIRECTORY
//! <root>/<resource>/log            CUDA_MPS_LOG_DIRECTORY
//! <root>/<resource>/.started       this daemon is up, and what it serves (`status`)
//! <root>/<resource>/.driver       links to the libraries of the driver (`program`)
//! <root>/<resource>/.exclusive     GPUs whose compute mode is ours to set back (`gpus`)
//! ```
//!
//! A resource's name has a `/`, so `<resource>` is two folders deep.

use std::path::{Path, PathBuf};

use configuration::plugin::ResourceName;

/// Where the root is mounted in the containers of the device plugin and of the daemon, and where clients find their pipe.
pub const CONTAINER_ROOT: &str = "/mps";

/// The folder that all daemons of a node share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// The root as this process sees it.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Memory that the daemon and its clients share.
    pub fn shm(&self) -> PathBuf {
        self.0.join("shm")
    }

    /// Says to readiness probes that all daemons are up.
    pub fn ready_file(&self) -> PathBuf {
        self.0.join(".ready")
    }

    /// What belongs to one resource.
    pub fn resource(&self, name: &ResourceName) -> PathBuf {
        self.0.join(name.as_str())
    }

    /// Sockets of a resource's daemon.
    pub fn pipe(&self, name: &ResourceName) -> PathBuf {
        self.resource(name).join("pipe")
    }

    /// Logs of a resource's daemon.
    pub fn log(&self, name: &ResourceName) -> PathBuf {
        self.resource(name).join("log")
    }

    /// See [`super::status`].
    pub fn started_file(&self, name: &ResourceName) -> PathBuf {
        self.resource(name).join(".started")
    }

    /// GPUs that were put into exclusive mode for a resource.
    pub fn exclusive_file(&self, name: &ResourceName) -> PathBuf {
        self.resource(name).join(".exclusive")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::{CONTAINER_ROOT, Root};

    /// Facts §2.4 and §2.10: these paths are in the environment of every client.
    #[test]
    fn as_in_nvidias_daemon() {
        let root = Root::new(CONTAINER_ROOT);
        let name = "nvidia.com/gpu.shared".parse().unwrap();
        assert_eq!(
            root.pipe(&name),
            Path::new("/mps/nvidia.com/gpu.shared/pipe")
        );
        assert_eq!(root.log(&name), Path::new("/mps/nvidia.com/gpu.shared/log"));
        assert_eq!(root.shm(), Path::new("/mps/shm"));
        assert_eq!(root.ready_file(), Path::new("/mps/.ready"));
        assert_eq!(
            root.started_file(&name),
            Path::new("/mps/nvidia.com/gpu.shared/.started")
        );
    }
}
