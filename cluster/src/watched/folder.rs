//! Tells when something happened in a folder and things are quiet again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::event::ModifyKind;
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::watch::{Receiver, channel};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout_at};

/// Files are seldom written in one go: what is looked at is what is there once this long nothing happened.
pub(super) const SETTLE: Duration = Duration::from_millis(200);

/// Where something happens all the time, what is there after this long is looked at all the same.
const LONGEST_SETTLE: Duration = Duration::from_secs(2);

/// How often a folder is looked at that cannot be watched: the kernel's limit on watches is small, and shared by
/// everything on the node.
const LOOK: Duration = Duration::from_secs(10);

/// A folder that is being watched, not what is below its folders. Dropping it ends the watch.
#[derive(Debug)]
pub struct WatchedFolder {
    path: PathBuf,
    /// Something happened that [`WatchedFolder::settled`] did not report yet.
    stirred: Option<Stirred>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Watch {
        happened: Receiver<Happened>,
        _watcher: RecommendedWatcher,
    },
    Look(Interval),
}

/// When what happened is reported. It is kept between calls: who waits for other things as well calls again whenever one of
/// those happens, and that may be more often than it takes to settle.
#[derive(Clone, Copy, Debug)]
struct Stirred {
    quiet: Instant,
    end: Instant,
}

impl Stirred {
    fn now() -> Self {
        let now = Instant::now();
        Self {
            quiet: now + SETTLE,
            end: now + LONGEST_SETTLE,
        }
    }

    fn again(self) -> Self {
        let quiet = (Instant::now() + SETTLE).min(self.end);
        Self { quiet, ..self }
    }
}

/// What happened since the watch began.
#[derive(Clone, Copy, Debug, Default)]
struct Happened {
    /// The folder itself went, or events were lost: this watch tells nothing more.
    is_over: bool,
}

impl WatchedFolder {
    /// Begins to watch `path`. What is read from now on is either current or followed by a report.
    pub fn new(path: &Path) -> Self {
        Self::looked_at(path, LOOK)
    }

    /// As [`WatchedFolder::new`]; where there is no watch, the folder is looked at every `period`.
    pub(super) fn looked_at(path: &Path, period: Duration) -> Self {
        let source = watch(path).unwrap_or_else(|error| {
            tracing::warn!(folder = %path.display(), %error, "cannot watch the folder; looking at it from time to time");
            look_every(period)
        });
        Self {
            path: path.to_owned(),
            stirred: None,
            source,
        }
    }

    /// Returns when something may have happened and nothing more follows. Dropped and called again, it misses nothing.
    pub async fn settled(&mut self) {
        match &mut self.source {
            Source::Watch { happened, .. } => {
                if self.stirred.is_none() && happened.changed().await.is_err() {
                    self.again();
                    return;
                }
                let mut stirred = *self.stirred.get_or_insert_with(Stirred::now);
                while let Ok(Ok(())) = timeout_at(stirred.quiet, happened.changed()).await {
                    if Instant::now() >= stirred.end {
                        break;
                    }
                    stirred = stirred.again();
                    self.stirred = Some(stirred);
                }
                self.stirred = None;
                if happened.borrow_and_update().is_over {
                    self.again();
                }
            }
            Source::Look(interval) => {
                interval.tick().await;
                // The folder may be back.
                if let Ok(source) = watch(&self.path) {
                    tracing::info!(folder = %self.path.display(), "the folder is watched");
                    self.source = source;
                }
            }
        }
    }

    fn again(&mut self) {
        *self = Self::new(&self.path);
    }
}

fn watch(folder: &Path) -> Result<Source, notify::Error> {
    let (sender, happened) = channel(Happened::default());
    let path = folder.to_owned();
    let mut watcher = notify::recommended_watcher(move |event| {
        if let Some(is_over) = what(&path, &event) {
            sender.send_modify(|happened| happened.is_over |= is_over);
        }
    })?;
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(Source::Watch {
        happened,
        _watcher: watcher,
    })
}

fn look_every(period: Duration) -> Source {
    let mut interval = interval_at(Instant::now() + period, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Source::Look(interval)
}

/// Whether an event is the watch's last; nothing when it is no change.
fn what(folder: &Path, event: &notify::Result<Event>) -> Option<bool> {
    match event {
        // Reading makes events of its own.
        Ok(event) if event.kind.is_access() => None,
        Ok(event) => {
            let is_end = matches!(
                event.kind,
                EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_))
            );
            Some(is_end && event.paths.iter().any(|path| path == folder))
        }
        Err(_) => Some(true),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::fs;

    use futures::FutureExt as _;
    use tokio::time::timeout;

    use super::*;

    const BOUND: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_folder_that_is_always_busy_is_reported_all_the_same() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("x");
        let mut folder = WatchedFolder::new(scratch.path());
        let busy = tokio::spawn(async move {
            loop {
                fs::write(&file, "x").unwrap();
                tokio::time::sleep(SETTLE / 10).await;
            }
        });
        timeout(BOUND, folder.settled()).await.unwrap();
        busy.abort();
    }

    #[tokio::test]
    async fn a_report_that_nobody_waited_for_comes_later() {
        let scratch = tempfile::tempdir().unwrap();
        let mut folder = WatchedFolder::new(scratch.path());
        // One event, not several.
        fs::create_dir(scratch.path().join("x")).unwrap();
        let Source::Watch { happened, .. } = &folder.source else {
            panic!("it is watched");
        };
        timeout(BOUND, happened.clone().changed())
            .await
            .unwrap()
            .unwrap();
        // Given up while things settle.
        assert!(folder.settled().now_or_never().is_none());
        timeout(BOUND, folder.settled()).await.unwrap();
        assert!(timeout(SETTLE * 2, folder.settled()).await.is_err());
    }

    #[tokio::test]
    async fn who_calls_again_all_the_time_is_told_all_the_same() {
        let scratch = tempfile::tempdir().unwrap();
        let mut folder = WatchedFolder::new(scratch.path());
        fs::write(scratch.path().join("x"), "x").unwrap();
        let called = async { while timeout(SETTLE / 4, folder.settled()).await.is_err() {} };
        timeout(BOUND, called).await.unwrap();
    }

    #[tokio::test]
    async fn a_folder_made_anew_is_watched_again() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("configs");
        fs::create_dir(&path).unwrap();
        let mut folder = WatchedFolder::new(&path);
        fs::remove_dir(&path).unwrap();
        fs::create_dir(&path).unwrap();
        timeout(BOUND, folder.settled()).await.unwrap();
        fs::write(path.join("x"), "x").unwrap();
        timeout(BOUND, folder.settled()).await.unwrap();
        assert!(matches!(folder.source, Source::Watch { .. }));
    }

    #[tokio::test]
    async fn a_folder_that_comes_late_is_looked_for_and_then_watched() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("configs");
        let mut folder = WatchedFolder::looked_at(&path, Duration::from_millis(10));
        timeout(BOUND, folder.settled()).await.unwrap();
        assert!(matches!(folder.source, Source::Look(_)));
        fs::create_dir(&path).unwrap();
        timeout(BOUND, folder.settled()).await.unwrap();
        assert!(matches!(folder.source, Source::Watch { .. }));
    }
}
