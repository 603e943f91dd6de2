//! Lets go of the GPUs while the MIG engine, in another process, changes them.
//!
//! A mode change and a reset need GPUs that nobody holds, and whoever has the library open holds all of them, if only to
//! look. The engine keeps a journal while it changes GPUs and writes to it before each step, so a journal that was written
//! to lately says that a change is under way. One that was not is that of an engine that was killed: nobody waits for it.
//!
//! What the journal says is the engine's affair.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use crate::{Error, Session};

/// Where the engine keeps its journal below the node root, unless it is told another folder.
const JOURNAL: &str = "var/lib/lathe/mig/journal";

/// How long a journal counts that nobody writes to: longer than any step takes.
const FRESH: Duration = Duration::from_secs(120);

/// When to try again after a call that ran did not end.
const AGAIN: Duration = Duration::from_secs(1);

/// How often the journal is looked for where the folder cannot be watched: a node allows few inotify instances.
const LOOK: Duration = Duration::from_secs(1);

/// It calls into the library to shut it.
const STACK: usize = 256 * 1024;

/// Gives way until it is dropped.
#[derive(Debug)]
pub struct GiveWay {
    stop: Arc<OwnedFd>,
}

impl Drop for GiveWay {
    fn drop(&mut self) {
        // The thread may have ended.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
    }
}

impl Session {
    /// [Suspends](Self::suspend) this session while the node's MIG engine changes GPUs, and resumes it afterwards. `told` is
    /// called after each of the two. Not for a session that the engine works with: it would shut the engine out.
    ///
    /// # Errors
    /// [`Error::System`]: no thread, or no descriptor.
    pub fn give_way(self: &Arc<Self>, told: impl Fn() + Send + 'static) -> Result<GiveWay, Error> {
        let failed = |reason: String| Error::System {
            what: "cannot watch for changes of the MIG layout",
            reason,
        };
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| failed(error.to_string()))?;
        let stop = Arc::new(stop);
        let mut follower = Follower {
            journal: self.root().join(JOURNAL),
            session: Arc::clone(self),
            stop: Arc::clone(&stop),
            watch: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok(),
            suspended: false,
        };
        std::thread::Builder::new()
            .name("nvml-give-way".to_owned())
            .stack_size(STACK)
            .spawn(move || follower.run(&told))
            .map_err(|error| failed(error.to_string()))?;
        Ok(GiveWay { stop })
    }
}

struct Follower {
    session: Arc<Session>,
    journal: PathBuf,
    stop: Arc<OwnedFd>,
    watch: Option<OwnedFd>,
    suspended: bool,
}

impl Follower {
    fn run(&mut self, told: &impl Fn()) {
        let mut sight = Sight::default();
        loop {
            // Watched first, then looked at, so that nothing falls between.
            let is_watched = self.watch();
            let written = fs::metadata(&self.journal).and_then(|file| file.modified());
            let now = Instant::now();
            let until = sight.until(written.ok(), SystemTime::now(), now);
            let mut wait = until.map(|until| until.saturating_duration_since(now));
            if until.is_some() && !self.suspended {
                match self.session.suspend() {
                    Ok(()) => {
                        self.suspended = true;
                        tracing::info!("letting go of the GPUs while their MIG layout is changed");
                        told();
                    }
                    Err(error) => {
                        tracing::debug!(%error, "cannot let go of the GPUs yet");
                        wait = wait.map(|wait| wait.min(AGAIN));
                    }
                }
            } else if until.is_none() && self.suspended {
                self.resume();
                told();
            }
            if !is_watched {
                wait = Some(wait.map_or(LOOK, |wait| wait.min(LOOK)));
            }
            if !self.wait(wait) {
                return;
            }
        }
    }

    fn resume(&mut self) {
        self.session.resume();
        self.suspended = false;
    }

    /// Watches the journal's folder, or as much of the way there as exists.
    fn watch(&self) -> bool {
        let Some(watch) = &self.watch else {
            return false;
        };
        let flags = WatchFlags::CREATE
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        loop {
            let Some(folder) = deepest(&self.journal) else {
                return false;
            };
            if inotify::add_watch(watch, folder, flags).is_err() {
                return false;
            }
            // The rest of the way may have come before the watch.
            if deepest(&self.journal) == Some(folder) {
                return true;
            }
        }
    }

    /// Waits until something happened on the way to the journal or the time is over; `false` when told to stop.
    fn wait(&self, limit: Option<Duration>) -> bool {
        // What cannot be told in the system's numbers is as good as for ever.
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut descriptors = vec![PollFd::new(&*self.stop, PollFlags::IN)];
        if let Some(watch) = &self.watch {
            descriptors.push(PollFd::new(watch, PollFlags::IN));
        }
        // An interrupted poll is a wake-up without a change.
        let _ = poll(&mut descriptors, limit.as_ref());
        if !descriptors[0].revents().is_empty() {
            return false;
        }
        if let Some(watch) = &self.watch {
            let mut buffer = [0_u8; 4096];
            // What happened does not matter, only that the queue is empty again.
            while rustix::io::read(watch, &mut buffer).is_ok_and(|length| length > 0) {}
        }
        true
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if self.suspended {
            self.resume();
        }
    }
}

/// The deepest folder on the way to a file that exists.
fn deepest(file: &Path) -> Option<&Path> {
    file.ancestors().skip(1).find(|folder| folder.is_dir())
}

/// What was seen of the journal.
#[derive(Debug, Default)]
struct Sight {
    /// When it was written to, by the file system's clock, and until when that counts.
    written: Option<(SystemTime, Instant)>,
}

impl Sight {
    /// Until when the change goes on that the journal speaks of; `None` when there is none, or it was given up.
    fn until(
        &mut self,
        written: Option<SystemTime>,
        wall: SystemTime,
        now: Instant,
    ) -> Option<Instant> {
        let Some(written) = written else {
            self.written = None;
            return None;
        };
        let until = match self.written {
            Some((known, until)) if known == written => until,
            _ => {
                // A clock that was set back makes it written in the future: that counts from now.
                let age = wall.duration_since(written).unwrap_or_default();
                now + FRESH.saturating_sub(age)
            }
        };
        self.written = Some((written, until));
        (now < until).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn a_journal_counts_until_nobody_wrote_to_it_for_long() {
        let (mut sight, start) = (Sight::default(), Instant::now());
        let wall = |seconds: u64| UNIX_EPOCH + Duration::from_secs(1000 + seconds);
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(sight.until(None, wall(0), at(0)), None);
        assert_eq!(sight.until(Some(wall(10)), wall(10), at(10)), Some(at(130)));
        assert_eq!(sight.until(Some(wall(10)), wall(60), at(60)), Some(at(130)));
        // Another step.
        assert_eq!(sight.until(Some(wall(61)), wall(61), at(61)), Some(at(181)));
        // The wall clock's jumps do not matter once it is known.
        assert_eq!(
            sight.until(Some(wall(61)), wall(9000), at(180)),
            Some(at(181))
        );
        assert_eq!(sight.until(Some(wall(61)), wall(0), at(181)), None);
        // Over, and another one.
        assert_eq!(sight.until(None, wall(200), at(200)), None);
        assert_eq!(
            sight.until(Some(wall(300)), wall(300), at(300)),
            Some(at(420))
        );
    }

    #[test]
    fn one_that_was_left_long_ago_does_not_count_at_a_start() {
        let (now, wall) = (Instant::now(), UNIX_EPOCH + Duration::from_secs(5000));
        let old = wall - FRESH;
        assert_eq!(Sight::default().until(Some(old), wall, now), None);
        let younger = old + Duration::from_secs(30);
        let until = Sight::default().until(Some(younger), wall, now);
        assert_eq!(until, Some(now + Duration::from_secs(30)));
        let future = wall + Duration::from_secs(86_400);
        let mut sight = Sight::default();
        assert_eq!(sight.until(Some(future), wall, now), Some(now + FRESH));
        assert_eq!(sight.until(Some(future), wall, now + FRESH), None);
    }
}
