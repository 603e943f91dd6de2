//! Having the driver open: for the first time, again, and anew where that mends something.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nvml::{Error, EventMask};

use super::{Follower, Message, Open};
use crate::hardware::BACKLOG;
use crate::hardware::inventory::Observation;
use crate::hardware::looks::Looks;
use crate::hardware::proc;

/// How long the events of a GPU must be unreadable before the driver is opened anew, which interrupts the events of all.
const BLIND: Duration = Duration::from_secs(3);

/// First and longest pause between two openings that were to mend something.
const MEND: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));

/// When the driver may be opened anew to mend something.
#[derive(Debug)]
pub(super) struct Mending {
    pause: Duration,
    next: Instant,
}

impl Mending {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            pause: MEND.0,
            next: now,
        }
    }

    fn may(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// It is opened anew; the pause before the next time doubles.
    fn begin(&mut self, now: Instant) {
        self.next = now + self.pause;
        self.pause = (self.pause * 2).min(MEND.1);
    }

    /// There is nothing to mend; after long enough of that, what comes next is another matter.
    fn rest(&mut self, now: Instant) {
        if now >= self.next + MEND.1 {
            self.pause = MEND.0;
        }
    }
}

impl Follower {
    /// Once a second.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.paused.is_some_and(|until| until <= now) {
            tracing::warn!("the GPUs were left alone for long enough; taking them up again");
            self.resume();
        }
        if self.paused.is_some() {
            return;
        }
        // It may be loaded again before anybody noticed that it was gone.
        let version = proc::version(&self.root);
        let came = version.is_some() && version != self.shown.version;
        self.shown.version = version;
        let driver = if came {
            self.session.attempt()
        } else {
            self.session.driver()
        };
        match driver {
            Ok(driver) => {
                let generation = driver.generation();
                if self.open.as_ref().map(|open| open.generation) != Some(generation) {
                    self.opened(driver, generation, now);
                }
            }
            Err(error) => self.gone(error),
        }
        self.search(now);
        self.mend(now);
    }

    /// The driver is open for the first time, or anew.
    pub(super) fn opened(&mut self, driver: nvml::Driver, generation: u64, now: Instant) {
        self.shown.boards = proc::boards(&self.root);
        let asked = driver
            .versions()
            .and_then(|versions| Ok((versions, driver.count()?)));
        let (versions, count) = match asked {
            Ok(asked) => asked,
            Err(error) => return self.gone(error),
        };
        self.inventory.observe(Observation::Driver {
            version: versions.driver,
            generation,
        });
        self.open = Some(Open {
            looks: Looks::new(count, now),
            driver,
            generation,
            was_complete: false,
            moved: false,
            // Opening may have taken seconds itself.
            since: Instant::now(),
        });
        self.watch_events();
    }

    /// Begins to watch. A watch goes on through restarts and resets.
    pub(super) fn watch_events(&mut self) {
        let Some(open) = self.open.as_ref().filter(|_| self.watch.is_none()) else {
            return;
        };
        let messages = self.messages.clone();
        let waiting = Arc::clone(&self.waiting);
        let watch = open.driver.watch_with(EventMask::ALL, move |event| {
            if waiting.fetch_add(1, Ordering::AcqRel) >= BACKLOG {
                waiting.fetch_sub(1, Ordering::AcqRel);
                return false;
            }
            // Nobody listens when the thread has ended.
            let _ = messages.send(Message::Event(event));
            true
        });
        match watch {
            Ok(watch) => self.watch = Some(watch),
            Err(error) => tracing::debug!(%error, "cannot watch for driver events yet"),
        }
    }

    pub(super) fn gone(&mut self, error: Error) {
        self.open = None;
        self.blind.clear();
        self.inventory.observe(Observation::DriverGone(error));
    }

    /// Opens the driver anew where that is what helps: boards came or went, which an open library does not notice, or the
    /// events of a GPU cannot be read.
    fn mend(&mut self, now: Instant) {
        let Some(open) = self.open.as_ref().filter(|_| self.mending.may(now)) else {
            return;
        };
        let boards = proc::boards(&self.root);
        let moved = open.moved || (boards.is_some() && boards != self.shown.boards);
        let is_blind = |since: &&Instant| now.saturating_duration_since(**since) >= BLIND;
        let blind = self.blind.values().flatten().any(|since| is_blind(&since));
        if !moved && !blind {
            self.mending.rest(now);
            return;
        }
        self.mending.begin(now);
        tracing::info!(
            "opening the driver anew: {}",
            if moved {
                "GPUs were added or removed"
            } else {
                "driver events cannot be read"
            }
        );
        // Those that still fail begin to count again.
        for since in self.blind.values_mut().flatten() {
            *since = now;
        }
        match open.driver.reopen() {
            Ok(()) => {
                let (driver, generation) = (open.driver.clone(), open.driver.generation());
                self.opened(driver, generation, now);
            }
            // A call that hangs: the library stays open, and the next attempt is later.
            Err(error) if error.is_hung() => tracing::warn!("{error}"),
            Err(error) => self.gone(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mending_is_tried_ever_more_seldom_and_anew_after_a_long_quiet() {
        let start = Instant::now();
        let mut mending = Mending::new(start);
        let mut now = start;
        let mut pauses = Vec::new();
        for _ in 0..10 {
            assert!(mending.may(now));
            mending.begin(now);
            assert!(!mending.may(now));
            pauses.push(mending.next.duration_since(now).as_secs());
            now = mending.next;
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        mending.rest(now + Duration::from_secs(299));
        mending.begin(now);
        assert_eq!(mending.next, now + Duration::from_secs(300), "too soon");
        now = mending.next;
        mending.rest(now + Duration::from_secs(300));
        mending.begin(now);
        assert_eq!(mending.next, now + Duration::from_secs(2));
    }
}
