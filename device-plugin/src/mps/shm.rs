//! The memory that a daemon and its clients share: a tmpfs of its own, which is `/dev/shm` of all of them.

use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount};

use super::paths::Root;

/// Size without a known amount of memory.
const FALLBACK_KIB: u64 = 65_536;

/// `TMPFS_MAGIC` of `linux/magic.h`.
const TMPFS: i64 = 0x0102_1994;

/// The tmpfs cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ShmError {
    /// Its folder cannot be made or looked at.
    #[error("cannot use {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It cannot be mounted.
    #[error("cannot mount a tmpfs at {}: {source}: run it privileged, with the MPS root mounted with propagation Bidirectional", path.display())]
    Mount {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Mounts the tmpfs, unless it is mounted already: clients that run use that one.
///
/// Returns whether it was mounted now.
///
/// # Errors
/// [`ShmError`].
pub fn mount_shm(root: &Root) -> Result<bool, ShmError> {
    let path = root.shm();
    let failed = |source: io::Error| ShmError::Folder {
        path: path.clone(),
        source,
    };
    std::fs::create_dir_all(&path).map_err(failed)?;
    if is_mounted(&path).map_err(failed)? {
        return Ok(false);
    }
    let options = format!(
        "size={}k,mode=1777",
        size_kib(std::fs::read_to_string("/proc/meminfo").ok().as_deref())
    );
    let options = std::ffi::CString::new(options).unwrap_or_default();
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RELATIME;
    mount("shm", &path, "tmpfs", flags, Some(options.as_c_str())).map_err(|error| {
        ShmError::Mount {
            path: path.clone(),
            source: error.into(),
        }
    })?;
    Ok(true)
}

/// A tmpfs that is not the one its folder lies in.
fn is_mounted(path: &Path) -> io::Result<bool> {
    let is_tmpfs = i128::from(rustix::fs::statfs(path)?.f_type) == i128::from(TMPFS);
    let parent = path.parent().unwrap_or(path);
    Ok(is_tmpfs && rustix::fs::stat(path)?.st_dev != rustix::fs::stat(parent)?.st_dev)
}

/// Whether `folder` (usually `/dev/shm`) is the memory that clients have there. Otherwise they and the servers wait for each
/// other in vain.
pub(super) fn is_shared(root: &Root, folder: &Path) -> bool {
    let device = |path: &Path| {
        rustix::fs::stat(path)
            .ok()
            .map(|stat| (stat.st_dev, stat.st_ino))
    };
    let ours = device(&root.shm());
    ours.is_some() && ours == device(folder)
}

/// Half of the node's memory.
fn size_kib(meminfo: Option<&str>) -> u64 {
    let total = meminfo.and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    });
    total.map_or(FALLBACK_KIB, |kib| kib / 2)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Some("MemTotal:       131900416 kB\nMemFree: 1 kB\n"), 65_950_208)]
    #[case(Some("MemFree: 1 kB\nMemTotal: 10 kB\n"), 5)]
    #[case(Some("MemTotal: much\n"), 65_536)]
    #[case(Some(""), 65_536)]
    #[case(None, 65_536)]
    fn size(#[case] meminfo: Option<&str>, #[case] wanted: u64) {
        assert_eq!(size_kib(meminfo), wanted);
    }

    #[test]
    fn a_folder_is_no_mount_and_two_folders_are_not_one() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        assert!(!is_shared(&root, folder.path()));
        std::fs::create_dir(root.shm()).unwrap();
        assert!(!is_mounted(&root.shm()).unwrap());
        assert!(!is_shared(&root, folder.path()));
        assert!(is_shared(&root, &root.shm()));
    }
}
