//! One fault of a GPU or of an instance on it: when it counts as over.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::cause::Cause;
use super::readings::Readings;
use super::rule::{Check, Until};

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub cause: Cause,
    /// GPU instance and compute instance; `None` for the whole GPU.
    pub instance: Option<(u32, u32)>,
    /// What the cause alone does not say, for people.
    pub detail: Option<String>,
    pub until: Until,
    pub since: Instant,
    /// When it happened last, or was last seen.
    pub last: Instant,
    /// How often it happened.
    pub count: u64,
    /// Since when something that lasts is seen to be over.
    pub over: Option<Instant>,
    /// Uncorrected memory errors at the first look after it happened last.
    pub uncorrected: Option<u64>,
}

/// What is known when a fault is judged.
pub(super) struct Look<'a> {
    pub readings: &'a Readings,
    /// Whether the GPU was reset since the look before.
    pub reset: bool,
    /// Whether its events can be read.
    pub watched: bool,
    /// When the GPU was asked.
    pub asked: Instant,
    pub now: Instant,
}

impl Fault {
    pub(super) fn new(
        cause: Cause,
        instance: Option<(u32, u32)>,
        until: Until,
        now: Instant,
    ) -> Self {
        Self {
            cause,
            instance,
            detail: None,
            until,
            since: now,
            last: now,
            count: 1,
            over: None,
            uncorrected: None,
        }
    }

    /// It happens again.
    pub(super) fn again(&mut self, now: Instant) {
        self.count = self.count.saturating_add(1);
        self.last = now;
        self.over = None;
        self.uncorrected = None;
    }

    /// Whether it is over, now that the GPU was looked at and answered.
    pub(super) fn ends(&mut self, look: &Look<'_>) -> bool {
        // An answer from before it happened says nothing of it.
        if look.asked < self.last {
            return false;
        }
        let there = match self.cause {
            // It answered.
            Cause::Lost | Cause::Reshaping => Some(false),
            Cause::Unwatched => Some(!look.watched),
            cause => look.readings.shows(cause),
        };
        if there == Some(true) {
            self.over = None;
            self.last = look.now;
            return false;
        }
        // No opinion is no sign that it is over: with MIG instances, a GPU does not tell of its rows.
        if there.is_none() && self.cause.lasts() {
            return look.reset && self.until != Until::Replaced;
        }
        match &self.until {
            Until::Replaced => false,
            Until::Reset => look.reset,
            Until::Recheck { quiet, checks } => {
                let (quiet, checks) = (*quiet, checks.clone());
                let grown = self.note_uncorrected(look);
                if checks.contains(&Check::UncorrectedEcc) && grown {
                    self.last = look.now;
                }
                // Something that happened was dealt with by a reset; something that lasts must be seen to be over.
                let (from, dealt_with) = match there {
                    Some(_) => (*self.over.get_or_insert(look.now), false),
                    None => (self.last, look.reset),
                };
                let quiet = dealt_with || look.now.saturating_duration_since(from) >= quiet;
                quiet && well(look.readings, &checks)
            }
        }
    }

    /// Whether uncorrected errors were counted since the first look after it happened.
    fn note_uncorrected(&mut self, look: &Look<'_>) -> bool {
        let Some(now) = look.readings.uncorrected else {
            return false;
        };
        let grown = self.uncorrected.is_some_and(|then| now > then);
        self.uncorrected = Some(now);
        grown
    }

    /// When to look at the GPU because of it, after the look at `looked`.
    pub(super) fn next_look(&self, looked: Instant, interval: Duration) -> Instant {
        let again = looked + interval;
        match &self.until {
            Until::Recheck { quiet, .. } => {
                let quiet = self.over.unwrap_or(self.last) + *quiet;
                // Past it, something else is not well yet.
                if quiet > looked {
                    quiet.min(again)
                } else {
                    again
                }
            }
            Until::Reset | Until::Replaced => again,
        }
    }
}

/// Whether nothing that a rule looks at speaks against it.
fn well(readings: &Readings, checks: &BTreeSet<Check>) -> bool {
    checks
        .iter()
        .all(|check| readings.check(*check) != Some(false))
}
