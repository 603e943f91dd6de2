//! When to ask one GPU how it is.

use std::time::{Duration, Instant};

use super::fault::Fault;

/// The least time between the beginnings of two looks that events call for, however many there are.
const BREATH: Duration = Duration::from_secs(1);

/// The looks at one GPU that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    /// When a look was last called for, unless one came after.
    wanted: Option<Instant>,
    /// When the last look began.
    asked: Option<Instant>,
    /// When its answer came.
    looked: Option<Instant>,
    /// That was none.
    unanswered: bool,
}

impl Schedule {
    /// Of a GPU that was never looked at.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            wanted: Some(now),
            asked: None,
            looked: None,
            unanswered: false,
        }
    }

    /// A look is called for.
    pub(super) fn want(&mut self, now: Instant) {
        self.wanted = Some(now);
    }

    /// The look that began at `asked` is over. What was called for since is still to come.
    pub(super) fn looked(&mut self, asked: Instant, now: Instant) {
        self.asked = Some(asked);
        self.looked = Some(now);
        self.wanted = self.wanted.filter(|wanted| asked < *wanted);
    }

    /// Whether it had an answer.
    pub(super) fn answered(&mut self, is: bool) {
        self.unanswered = !is;
    }

    /// Whether the last look had no answer.
    pub(super) fn is_silent(&self) -> bool {
        self.unanswered
    }

    /// When to look next, with these faults; `None` while that would be for nothing. `polls`: although nothing happened.
    pub(super) fn due(&self, faults: &[Fault], interval: Duration, polls: bool) -> Option<Instant> {
        let soon = |wanted: Instant| match self.asked {
            Some(asked) => wanted.max(asked + BREATH),
            None => wanted,
        };
        let wanted = self.wanted.map(soon);
        let Some(looked) = self.looked else {
            return wanted;
        };
        let polled = (polls || self.unanswered).then(|| looked + interval);
        faults
            .iter()
            .map(|fault| fault.next_look(looked, interval))
            .chain(wanted)
            .chain(polled)
            .min()
    }
}
