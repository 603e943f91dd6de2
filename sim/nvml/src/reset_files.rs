//! The `reset` file of each GPU in PCI sysfs: writing `1` there asks for a reset, as with the kernel.
//!
//! Nobody runs in the background to notice, so every call of the library looks, by one read of an inotify descriptor that
//! mostly has nothing to say. What a reset does is the model's business.

use std::{fs, io, path::Path};

use rustix::fs::inotify;

use crate::{model::Node, tree};

/// Watches the files of one node.
pub(crate) struct ResetFiles {
    /// Absent when the host has no inotify instance left; then the files are looked at only before a change.
    events: Option<std::os::fd::OwnedFd>,
}

impl ResetFiles {
    pub(crate) fn new() -> Self {
        ResetFiles {
            events: inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)
                .ok(),
        }
    }

    /// Watches the files of a node; those already watched stay so.
    pub(crate) fn watch(&self, node: &Node) {
        let Some(events) = self
            .events
            .as_ref()
            .filter(|_| !node.root.as_os_str().is_empty())
        else {
            return;
        };
        for path in tree::reset_files(node) {
            // A removed GPU has no file; it is watched again when the node changes.
            let _ = inotify::add_watch(
                events,
                node.root.join(path),
                inotify::WatchFlags::CLOSE_WRITE,
            );
        }
    }

    /// Whether somebody wrote to one of the files since the last call.
    pub(crate) fn touched(&self) -> bool {
        let mut buffer = [0_u8; 1024];
        let mut touched = false;
        while let Some(events) = &self.events {
            match rustix::io::read(events, &mut buffer) {
                Ok(read) if read > 0 => touched = true,
                _ => break,
            }
        }
        touched
    }

    /// Empties the files that hold something and calls `reset` for those that ask for a reset. To be called under the
    /// lock, so that one request is served once.
    pub(crate) fn take(&self, node: &Node, mut reset: impl FnMut(usize)) -> io::Result<()> {
        if node.root.as_os_str().is_empty() {
            return Ok(());
        }
        for (gpu, path) in tree::reset_files(node).enumerate() {
            let path = node.root.join(path);
            if !fs::metadata(&path).is_ok_and(|data| data.len() > 0) {
                continue;
            }
            if asks_for_reset(&path)? {
                reset(gpu);
            }
        }
        Ok(())
    }
}

fn asks_for_reset(path: &Path) -> io::Result<bool> {
    let content = fs::read(path)?;
    fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)?;
    Ok(content.trim_ascii() == b"1")
}
