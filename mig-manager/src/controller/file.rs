//! Tells when the content of the config file changes, so that an edited ConfigMap takes effect without a new label.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Files are seldom written in one go: what is looked at is what is there once this long nothing happened.
const SETTLE: Duration = Duration::from_millis(200);

/// How often the file is looked at where it cannot be watched: the kernel's limit on watches is small, and shared by
/// everything on the node.
const LOOK: Duration = Duration::from_secs(10);

/// A file that is being watched. Dropping it ends the watch.
#[derive(Debug)]
pub(super) struct WatchedFile {
    path: PathBuf,
    content: Option<u64>,
    /// Something happened that was not looked at yet.
    stirred: bool,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Watch {
        changes: Receiver<()>,
        _watcher: RecommendedWatcher,
    },
    Look(Interval),
}

impl WatchedFile {
    pub(super) fn new(path: &Path) -> Self {
        let source = watch(path).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "cannot watch the config file; looking at it from time to time");
            look_every(LOOK)
        });
        Self {
            path: path.to_owned(),
            // Read once it is watched, so that no change falls between.
            content: digest(path),
            stirred: false,
            source,
        }
    }

    /// Returns when the content is another than before. Dropped and called again, it misses nothing.
    pub(super) async fn changed(&mut self) {
        loop {
            match &mut self.source {
                Source::Watch { changes, .. } => {
                    if !self.stirred && changes.recv().await.is_none() {
                        return std::future::pending().await;
                    }
                    self.stirred = true;
                    while tokio::time::timeout(SETTLE, changes.recv())
                        .await
                        .is_ok_and(|event| event.is_some())
                    {}
                    self.stirred = false;
                }
                Source::Look(interval) => {
                    interval.tick().await;
                }
            }
            let content = digest(&self.path);
            if content != self.content {
                self.content = content;
                return;
            }
        }
    }
}

/// Watches the folder of `path`: a ConfigMap volume swaps a link beside the file, and an editor replaces the file, so
/// watching the file itself would go on watching what is no longer there.
fn watch(path: &Path) -> Result<Source, notify::Error> {
    let (sender, changes) = tokio::sync::mpsc::channel(1);
    let mut watcher = notify::recommended_watcher(move |event| wake(&sender, &event))?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(Source::Watch {
        changes,
        _watcher: watcher,
    })
}

fn look_every(period: Duration) -> Source {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Source::Look(interval)
}

fn wake(changes: &Sender<()>, event: &notify::Result<notify::Event>) {
    // Reading the file makes events of its own.
    if !event.as_ref().is_ok_and(|event| event.kind.is_access()) {
        // A full queue means somebody is about to look anyway.
        let _ = changes.try_send(());
    }
}

/// `None` when the file cannot be read.
fn digest(path: &Path) -> Option<u64> {
    let content = std::fs::read(path).ok()?;
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::fs;
    use std::os::unix::fs::symlink;

    use tokio::time::timeout;

    use super::*;

    const BOUND: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_rewritten_file_is_noticed_and_an_untouched_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        fs::write(&path, "a").unwrap();
        let mut file = WatchedFile::new(&path);
        fs::write(&path, "a").unwrap();
        fs::write(folder.path().join("other"), "b").unwrap();
        assert!(
            timeout(SETTLE * 3, file.changed()).await.is_err(),
            "the content is the same"
        );
        fs::write(&path, "b").unwrap();
        timeout(BOUND, file.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn a_swapped_config_map_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for (version, content) in [("v1", "a"), ("v2", "b")] {
            fs::create_dir(root.join(version)).unwrap();
            fs::write(root.join(version).join("config.yaml"), content).unwrap();
        }
        symlink("v1", root.join("..data")).unwrap();
        symlink("..data/config.yaml", root.join("config.yaml")).unwrap();
        let mut file = WatchedFile::new(&root.join("config.yaml"));
        symlink("v2", root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
        timeout(BOUND, file.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn a_file_that_appears_later_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        let mut file = WatchedFile::new(&path);
        fs::write(&path, "a").unwrap();
        timeout(BOUND, file.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_watched_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        fs::write(&path, "a").unwrap();
        let mut file = WatchedFile {
            path: path.clone(),
            content: digest(&path),
            stirred: false,
            source: look_every(Duration::from_millis(10)),
        };
        assert!(
            timeout(SETTLE, file.changed()).await.is_err(),
            "the content is the same"
        );
        fs::write(&path, "b").unwrap();
        timeout(BOUND, file.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn a_folder_that_is_not_there_is_looked_at() {
        let file = WatchedFile::new(Path::new("/does/not/exist/config.yaml"));
        assert!(matches!(file.source, Source::Look(_)));
    }
}
