//! Whether a resource's daemon is up: what the daemon says in a file, and what the device plugin reads there.
//!
//! The file `.started` is there while clients can connect. It lists the GPUs that are served, one `<uuid> <replicas>` per
//! line, and its writer keeps it locked. Locks end with their process, so a daemon that was killed is known to be gone although
//! nobody removed its file; the device plugin starts no program and needs no network to find out.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use configuration::plugin::ResourceName;
use rustix::fs::{FlockOperation, flock};

use super::paths::Root;
use super::plan::Daemon;
use crate::resources::Device;

/// More than any daemon writes: 64 GPUs, 64 bytes each.
const MAX_FILE: u64 = 16 << 10;

/// What a daemon serves: UUIDs and the replicas of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served(BTreeMap<String, u32>);

impl Served {
    /// Whether a device of the resource can be given to a container: one that is not shared needs no daemon.
    pub fn covers(&self, device: &Device) -> bool {
        match device.shares {
            None => true,
            Some(replicas) => self.0.get(&device.uuid) == Some(&replicas),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let line = |line: &str| {
            let (uuid, replicas) = line.split_once(' ')?;
            Some((uuid.to_owned(), replicas.parse().ok()?))
        };
        text.lines().map(line).collect::<Option<_>>().map(Self)
    }

    fn text(&self) -> String {
        let lines = self
            .0
            .iter()
            .map(|(uuid, replicas)| format!("{uuid} {replicas}\n"));
        lines.collect()
    }
}

impl From<&Daemon> for Served {
    fn from(daemon: &Daemon) -> Self {
        let gpus = daemon.gpus.iter();
        Self(gpus.map(|gpu| (gpu.uuid.clone(), gpu.replicas)).collect())
    }
}

/// Why a resource's daemon serves nobody.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    /// No daemon has said so.
    #[error(
        "the MPS daemon of {resource} is not ready: see the log of lathe mps-daemon on this node"
    )]
    NotStarted {
        /// The resource.
        resource: ResourceName,
    },
    /// The process that said so is gone.
    #[error(
        "the MPS daemon of {resource} has ended: see why the pod of lathe mps-daemon on this node does not run"
    )]
    Ended {
        /// The resource.
        resource: ResourceName,
    },
    /// The file is none of ours.
    #[error("{} is not a file of lathe mps-daemon: is another MPS daemon using the same root?", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What the daemon of a resource serves now. It reads one small file and never waits.
///
/// # Errors
/// Why it serves nobody.
pub fn ready(root: &Root, resource: &ResourceName) -> Result<Served, NotReady> {
    let path = root.started_file(resource);
    let unreadable = |source| NotReady::Unreadable {
        path: path.clone(),
        source,
    };
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(NotReady::NotStarted {
                resource: resource.clone(),
            });
        }
        Err(error) => return Err(unreadable(error)),
    };
    let mut text = String::new();
    let read = (&file).take(MAX_FILE).read_to_string(&mut text);
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => {}
        Err(error) => return Err(unreadable(error.into())),
        Ok(()) => {
            return Err(NotReady::Ended {
                resource: resource.clone(),
            });
        }
    }
    match read {
        Ok(_) => Served::parse(&text).ok_or(NotReady::Foreign { path }),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(NotReady::Foreign { path }),
        Err(error) => Err(unreadable(error)),
    }
}

/// Says that a daemon is up, until it is dropped.
#[derive(Debug)]
pub struct Started {
    path: Option<PathBuf>,
    /// Locked.
    _file: File,
}

impl Started {
    /// Writes the file in one step: whoever sees it sees it whole and locked.
    ///
    /// # Errors
    /// The folder of the resource cannot be written.
    pub fn publish(root: &Root, resource: &ResourceName, served: &Served) -> io::Result<Self> {
        let path = root.started_file(resource);
        let hidden = path.with_extension("new");
        let mut file = File::create(&hidden)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(served.text().as_bytes())?;
        std::fs::rename(&hidden, &path)?;
        Ok(Self {
            path: Some(path),
            _file: file,
        })
    }

    /// Says no more, after somebody else published in its place.
    pub fn replaced(mut self) {
        self.path = None;
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // A file that stays is known to be stale by its lock, which ends with `self.file`.
        if let Some(path) = &self.path {
            let _ = remove(path);
        }
    }
}

/// Removes a file that may be gone already.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::mps::plan::SharedGpu;

    fn root() -> (tempfile::TempDir, Root, ResourceName) {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        let resource: ResourceName = "gpu".parse().unwrap();
        std::fs::create_dir_all(root.resource(&resource)).unwrap();
        (folder, root, resource)
    }

    fn served() -> Served {
        Served::from(&Daemon {
            gpus: vec![SharedGpu {
                uuid: "GPU-0".to_owned(),
                index: 0,
                replicas: 4,
                memory_mib: None,
            }],
        })
    }

    fn device(uuid: &str, shares: Option<u32>) -> Device {
        Device {
            uuid: uuid.to_owned(),
            gpu_index: 0,
            gpu_uuid: uuid.to_owned(),
            numa_node: None,
            mig: None,
            shares,
        }
    }

    #[test]
    fn it_is_ready_exactly_while_somebody_says_so() {
        let (_folder, root, resource) = root();
        let not_started = ready(&root, &resource).unwrap_err();
        assert!(
            matches!(not_started, NotReady::NotStarted { .. }),
            "{not_started}"
        );
        let started = Started::publish(&root, &resource, &served()).unwrap();
        // As often as one asks: asking must not take the lock.
        for _ in 0..3 {
            assert_eq!(ready(&root, &resource).unwrap(), served());
        }
        drop(started);
        assert!(matches!(
            ready(&root, &resource),
            Err(NotReady::NotStarted { .. })
        ));
    }

    #[test]
    fn it_can_be_said_anew() {
        let (_folder, root, resource) = root();
        let first = Started::publish(&root, &resource, &Served::default()).unwrap();
        let second = Started::publish(&root, &resource, &served()).unwrap();
        assert_eq!(ready(&root, &resource).unwrap(), served());
        first.replaced();
        assert_eq!(ready(&root, &resource).unwrap(), served());
        drop(second);
        assert!(matches!(
            ready(&root, &resource),
            Err(NotReady::NotStarted { .. })
        ));
    }

    #[test]
    fn a_file_that_nobody_holds_is_stale() {
        let (_folder, root, resource) = root();
        std::fs::write(root.started_file(&resource), "GPU-0 4\n").unwrap();
        assert!(matches!(
            ready(&root, &resource),
            Err(NotReady::Ended { .. })
        ));
    }

    #[test]
    fn what_is_served_is_that_gpu_with_those_replicas() {
        let served = served();
        assert!(served.covers(&device("GPU-0", Some(4))));
        assert!(!served.covers(&device("GPU-0", Some(2))));
        assert!(!served.covers(&device("GPU-1", Some(4))));
        assert!(served.covers(&device("GPU-1", None)));
    }

    #[test]
    fn a_file_of_somebody_else_is_named() {
        let (_folder, root, resource) = root();
        std::fs::write(root.started_file(&resource), "ready").unwrap();
        let file = File::open(root.started_file(&resource)).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(matches!(
            ready(&root, &resource),
            Err(NotReady::Foreign { .. })
        ));
    }

    proptest! {
        #[test]
        fn text_comes_back(served in prop::collection::btree_map("GPU-[0-9a-f]{1,8}", 2_u32..49, 0..9)) {
            let served = Served(served);
            prop_assert_eq!(Served::parse(&served.text()), Some(served));
        }

        #[test]
        fn any_text_is_read_without_panic(text in "(?s).{0,64}") {
            let _ = Served::parse(&text);
        }
    }
}
