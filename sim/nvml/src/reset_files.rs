//! The `reset` file of each GPU in PCI sysfs: writing `1` there asks for a reset, as with the kernel.
//!
//! Nobody runs in the background to notice, so the library looks when a client takes a handle or asks for a MIG mode, and
//! before every change. The files proper lie in one folder beside the state, where looking is cheap; sysfs links to them.
//! What a reset does is the model's business.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use rustix::fs::{AtFlags, Mode, OFlags};

use crate::model::{Gpu, Node};

/// Name of the folder beside the state.
pub(crate) const FOLDER: &str = "resets";

/// The files of one node.
pub(crate) struct ResetFiles {
    folder: PathBuf,
    directory: OnceLock<Option<OwnedFd>>,
}

impl ResetFiles {
    /// The files beside the state in `folder`.
    pub(crate) fn beside(folder: &Path) -> Self {
        ResetFiles {
            folder: folder.join(FOLDER),
            directory: OnceLock::new(),
        }
    }

    /// Whether somebody asks for a reset of a GPU of the node. A node without such files is never asked.
    pub(crate) fn asked(&self, node: &Node) -> bool {
        node.gpus.iter().any(|gpu| self.holds_something(gpu))
    }

    fn holds_something(&self, gpu: &Gpu) -> bool {
        let open = || {
            rustix::fs::open(
                &self.folder,
                OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .ok()
        };
        let Some(directory) = self.directory.get_or_init(open) else {
            return false;
        };
        rustix::fs::statat(directory, gpu.pci.sysfs(), AtFlags::empty())
            .is_ok_and(|stat| stat.st_size > 0)
    }

    /// Empties the files that hold something and calls `reset` for those that ask for a reset. To be called under the
    /// lock, so that one request is served once.
    pub(crate) fn take(&self, node: &Node, mut reset: impl FnMut(usize)) -> io::Result<()> {
        for (position, gpu) in node
            .gpus
            .iter()
            .enumerate()
            .filter(|(_, gpu)| self.holds_something(gpu))
        {
            let path = self.folder.join(gpu.pci.sysfs());
            let content = fs::read(&path)?;
            fs::OpenOptions::new()
                .write(true)
                .truncate(true)
                .open(&path)?;
            if content.trim_ascii() == b"1" {
                reset(position);
            }
        }
        Ok(())
    }
}
