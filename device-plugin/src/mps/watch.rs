//! Wakes the device plugin when a daemon may have become ready, or may have ended.
//!
//! A daemon that is killed closes its files without a trace in the folder's entries; closing a file that was written to is an
//! event too, so that end is seen as well.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use configuration::plugin::ResourceName;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::paths::Root;

/// How often files are looked at that cannot be watched: a root that is mounted read-only and still empty, or a node without
/// inotify instances left.
const LOOK: Duration = Duration::from_secs(5);

/// The folders of resources, watched.
#[derive(Debug)]
pub struct Watch {
    root: Root,
    /// Made for the first resource: most nodes have no MPS, and a node has few inotify instances.
    descriptor: Option<AsyncFd<OwnedFd>>,
    /// Resources, and the number of each one's watch where it stands.
    resources: BTreeMap<ResourceName, Option<i32>>,
}

impl Watch {
    /// Watches nothing yet.
    pub fn new(root: Root) -> Self {
        Self {
            root,
            descriptor: None,
            resources: BTreeMap::new(),
        }
    }

    /// Watches the daemon of a resource from now on. What happened before is not told: look at it after this call. To be called
    /// inside the runtime that waits.
    pub fn add(&mut self, resource: &ResourceName) {
        if self.resources.contains_key(resource) {
            return;
        }
        if self.descriptor.is_none() {
            let descriptor = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
            match descriptor.map_err(io::Error::from).and_then(readable) {
                Ok(descriptor) => self.descriptor = Some(descriptor),
                Err(error) => {
                    tracing::warn!(%error, "cannot watch MPS daemons; looking at them now and then");
                }
            }
        }
        let watch = self.begin(resource);
        self.resources.insert(resource.clone(), watch);
    }

    fn begin(&self, resource: &ResourceName) -> Option<i32> {
        let descriptor = self.descriptor.as_ref()?;
        let folder = self.root.resource(resource);
        // The daemon makes the folder otherwise; where this fails, adding the watch does as well.
        let _ = std::fs::create_dir_all(&folder);
        let what = WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONLYDIR;
        inotify::add_watch(descriptor, folder, what).ok()
    }

    /// Waits until something may have changed; at times nothing has. Never returns while nothing is watched.
    pub async fn changed(&mut self) {
        if self.resources.is_empty() {
            return std::future::pending().await;
        }
        let look = async {
            if self.resources.values().any(Option::is_none) {
                tokio::time::sleep(LOOK).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        let event = async {
            match &self.descriptor {
                Some(descriptor) => drained(descriptor).await,
                None => std::future::pending().await,
            }
        };
        let gone = tokio::select! {
            () = look => Vec::new(),
            gone = event => gone,
        };
        let lost: Vec<ResourceName> = self
            .resources
            .iter()
            .filter(|(_, watch)| watch.is_none_or(|watch| gone.contains(&watch)))
            .map(|(resource, _)| resource.clone())
            .collect();
        for resource in lost {
            let watch = self.begin(&resource);
            self.resources.insert(resource, watch);
        }
    }
}

/// A descriptor to wait on until it can be read.
#[expect(
    deprecated,
    reason = "its unsafe successor guards against types that lose their descriptor early; OwnedFd does not"
)]
pub(super) fn readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

/// Waits for events and reads all there are; returns the watches that ended.
async fn drained(descriptor: &AsyncFd<OwnedFd>) -> Vec<i32> {
    let mut gone = Vec::new();
    loop {
        let Ok(mut ready) = descriptor.readable().await else {
            // Only at the end of the runtime.
            return std::future::pending().await;
        };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(descriptor, &mut buffer);
        let mut any = false;
        while let Ok(event) = reader.next() {
            any = true;
            if event.events().contains(inotify::ReadFlags::IGNORED) {
                gone.push(event.wd());
            }
        }
        ready.clear_ready();
        if any {
            return gone;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::mps::status::{Served, Started, ready};

    fn watch(folder: &Path) -> (Watch, Root, ResourceName) {
        let root = Root::new(folder);
        let resource: ResourceName = "gpu".parse().unwrap();
        let mut watch = Watch::new(root.clone());
        watch.add(&resource);
        (watch, root, resource)
    }

    /// Wakes without having to look by the clock.
    async fn wakes(watch: &mut Watch) {
        assert!(watch.resources.values().all(Option::is_some));
        tokio::time::timeout(Duration::from_secs(60), watch.changed())
            .await
            .expect("a change is seen");
    }

    async fn is_quiet(watch: &mut Watch) {
        let quiet = tokio::time::timeout(Duration::from_millis(50), watch.changed()).await;
        assert!(quiet.is_err());
    }

    #[tokio::test]
    async fn a_daemon_that_starts_and_ends_is_seen() {
        let scratch = tempfile::tempdir().unwrap();
        let (mut watch, root, resource) = watch(scratch.path());
        is_quiet(&mut watch).await;
        let started = Started::publish(&root, &resource, &Served::default()).unwrap();
        while ready(&root, &resource).is_err() {
            wakes(&mut watch).await;
        }
        drop(started);
        while ready(&root, &resource).is_ok() {
            wakes(&mut watch).await;
        }
    }

    /// What a process leaves that is killed: the file, without its lock.
    #[tokio::test]
    async fn a_daemon_that_is_killed_is_seen() {
        let scratch = tempfile::tempdir().unwrap();
        let (mut watch, root, resource) = watch(scratch.path());
        let file = root.started_file(&resource);
        let script = "exec 9>\"$1\" && flock 9 && echo locked && exec sleep 60";
        let mut child = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&file)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        assert_eq!(ready(&root, &resource).unwrap(), Served::default());
        child.kill().unwrap();
        child.wait().unwrap();
        while ready(&root, &resource).is_ok() {
            wakes(&mut watch).await;
        }
    }

    #[tokio::test]
    async fn a_folder_that_was_deleted_is_watched_again() {
        let scratch = tempfile::tempdir().unwrap();
        let (mut watch, root, resource) = watch(scratch.path());
        std::fs::remove_dir_all(root.resource(&resource)).unwrap();
        wakes(&mut watch).await;
        let _started = Started::publish(&root, &resource, &Served::default()).unwrap();
        while ready(&root, &resource).is_err() {
            wakes(&mut watch).await;
        }
    }

    /// As where the root is mounted read-only and the daemon has not been there yet.
    #[tokio::test]
    async fn what_cannot_be_watched_is_looked_at() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("file");
        std::fs::write(&file, "").unwrap();
        let mut watch = Watch::new(Root::new(file));
        watch.add(&"gpu".parse().unwrap());
        assert_eq!(watch.resources.values().next(), Some(&None));
        tokio::time::timeout(LOOK * 4, watch.changed())
            .await
            .unwrap();
    }
}
