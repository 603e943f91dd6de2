//! One of the kubelet's folders, watched: whoever waits on it wakes when an entry comes or goes.
//!
//! One watch per folder, shared by all who wait: a node allows few inotify instances, and a device plugin has up to ten
//! sockets in one folder.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use notify::event::ModifyKind;
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use crate::Error;

/// While a folder cannot be watched (deleted, or no inotify instance left on the node), it is looked at this often.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A folder in which sockets come and go. Clones share one watch, which ends with the last of them.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    changes: watch::Receiver<u64>,
    _task: Arc<AbortOnDrop>,
}

#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Folder {
    /// Begins to watch `path`. The folder is made if it is not there: a plugin may start before the kubelet.
    ///
    /// # Errors
    /// [`Error::Folder`] when it neither exists nor can be made.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        make(&path).await.map_err(|source| Error::Folder {
            path: path.clone(),
            source,
        })?;
        let (sender, mut changes) = watch::channel(0);
        let task = tokio::spawn(follow(path.clone(), sender));
        let folder = Self {
            path,
            changes: changes.clone(),
            _task: Arc::new(AbortOnDrop(task.abort_handle())),
        };
        // The watch stands (or is known to be impossible) once the first mark is set.
        let _ = changes.changed().await;
        Ok(folder)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder again if it was deleted. The watch cannot see that while a socket that was in it still listens,
    /// since the socket keeps the deleted folder alive.
    pub(crate) async fn restore(&self) -> io::Result<()> {
        make(&self.path).await
    }

    /// Changes after this call. A mark stands for any number of changes, and at times for none.
    pub(crate) fn changes(&self) -> Changes {
        let mut receiver = self.changes.clone();
        receiver.mark_unchanged();
        Changes(receiver)
    }
}

/// The changes of a folder.
#[derive(Debug)]
pub(crate) struct Changes(watch::Receiver<u64>);

impl Changes {
    /// Waits for the next change.
    pub(crate) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // Only at the end of the runtime: the sender lives as long as a Folder does.
            std::future::pending().await
        }
    }
}

async fn make(path: &Path) -> io::Result<()> {
    let mut builder = tokio::fs::DirBuilder::new();
    builder.recursive(true).mode(0o750);
    builder.create(path).await
}

/// Marks every change until the task is aborted, also across the folder's own end.
async fn follow(path: PathBuf, marks: watch::Sender<u64>) {
    let pauses = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(LONGEST_PAUSE)
        .without_max_times();
    let mut pause = pauses.build();
    let mut reported = false;
    loop {
        let ended = match Watch::new(&path) {
            Ok(standing) => {
                pause = pauses.build();
                reported = false;
                // What happened before the watch stood goes unreported otherwise.
                marks.send_modify(|mark| *mark += 1);
                standing.run(&marks).await
            }
            Err(error) => Err(error),
        };
        marks.send_modify(|mark| *mark += 1);
        if let Err(error) = ended
            && !reported
        {
            tracing::warn!(folder = %path.display(), %error, "cannot watch; looking at it now and then");
            reported = true;
        }
        tokio::time::sleep(pause.next().unwrap_or(LONGEST_PAUSE)).await;
        // Failing that, the next round reports it.
        let _ = make(&path).await;
    }
}

/// A watch on a folder that exists.
struct Watch {
    _watcher: RecommendedWatcher,
    events: mpsc::UnboundedReceiver<Seen>,
}

/// What there is to know of an event.
enum Seen {
    /// An entry came, went or changed.
    Entry,
    /// The folder itself went.
    Gone,
    /// Events were lost, or can no longer be had.
    Trouble(notify::Error),
}

impl Watch {
    fn new(path: &Path) -> Result<Self, notify::Error> {
        let (sender, events) = mpsc::unbounded_channel();
        let folder = path.to_owned();
        let mut watcher = notify::recommended_watcher(move |event| {
            if let Some(seen) = seen(&folder, event) {
                // Nobody listens any more while the watch is being dropped.
                let _ = sender.send(seen);
            }
        })?;
        watcher.watch(path, RecursiveMode::NonRecursive)?;
        Ok(Self {
            _watcher: watcher,
            events,
        })
    }

    /// Marks changes until the folder itself is gone.
    async fn run(mut self, marks: &watch::Sender<u64>) -> Result<(), notify::Error> {
        loop {
            match self.events.recv().await {
                Some(Seen::Entry) => marks.send_modify(|mark| *mark += 1),
                Some(Seen::Gone) | None => return Ok(()),
                Some(Seen::Trouble(error)) => return Err(error),
            }
        }
    }
}

fn seen(folder: &Path, event: notify::Result<Event>) -> Option<Seen> {
    match event {
        // Reading is no change.
        Ok(event) if matches!(event.kind, EventKind::Access(_)) => None,
        Ok(event) if event.paths.iter().any(|path| path == folder) => match event.kind {
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)) => Some(Seen::Gone),
            _ => Some(Seen::Entry),
        },
        Ok(_) => Some(Seen::Entry),
        Err(error) => Some(Seen::Trouble(error)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    async fn wakes(changes: &mut Changes) {
        tokio::time::timeout(Duration::from_secs(60), changes.next())
            .await
            .expect("a change is reported");
    }

    #[tokio::test]
    async fn entries_that_come_and_go_are_reported() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = Folder::open(scratch.path().join("a/b")).await.unwrap();
        assert!(folder.path().is_dir());
        let mut changes = folder.changes();
        let file = folder.path().join("x");
        std::fs::write(&file, "").unwrap();
        wakes(&mut changes).await;
        std::fs::rename(&file, folder.path().join("y")).unwrap();
        wakes(&mut changes).await;
        let mut later = folder.clone().changes();
        std::fs::remove_file(folder.path().join("y")).unwrap();
        wakes(&mut later).await;
    }

    #[tokio::test]
    async fn a_quiet_folder_wakes_nobody() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join("x"), "").unwrap();
        let folder = Folder::open(scratch.path()).await.unwrap();
        let mut changes = folder.changes();
        // Reading is no change.
        std::fs::read_dir(scratch.path()).unwrap().count();
        let quiet = tokio::time::timeout(Duration::from_millis(100), changes.next()).await;
        assert!(quiet.is_err());
    }

    #[tokio::test]
    async fn a_folder_that_was_deleted_is_made_and_watched_again() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("plugins");
        let folder = Folder::open(&path).await.unwrap();
        let mut changes = folder.changes();
        std::fs::remove_dir(&path).unwrap();
        while !path.exists() {
            wakes(&mut changes).await;
        }
        std::fs::write(path.join("x"), "").unwrap();
        wakes(&mut changes).await;
    }

    #[tokio::test]
    async fn a_file_in_the_folders_place_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        std::fs::write(&path, "").unwrap();
        let error = Folder::open(&path).await.unwrap_err();
        assert!(matches!(error, Error::Folder { .. }), "{error}");
    }
}
