//! Trouble that comes again soon after it ended by itself has to stay away for longer: a GPU must not go back and forth.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::cause::Cause;
use super::fault::Fault;
use super::rule::Until;

/// The longest quiet period that trouble which comes again and again leads to.
const MAX_QUIET: Duration = Duration::from_secs(3600);

/// Trouble that comes again within so many of its quiet periods has to stay away for twice as long as before.
const SOON: u32 = 10;

/// What kind of trouble, and in which instance.
type Kind = (Cause, Option<(u32, u32)>);

/// When trouble ended by itself, and after how long a quiet period.
type Ended = (Instant, Duration);

/// How trouble of one GPU ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Relapses(BTreeMap<Kind, Ended>);

impl Relapses {
    /// What ends trouble that begins now, where its rule says `until`.
    pub(super) fn lengthened(
        &self,
        cause: Cause,
        instance: Option<(u32, u32)>,
        until: Until,
        now: Instant,
    ) -> Until {
        match (until, self.0.get(&(cause, instance))) {
            (Until::Recheck { quiet, checks }, Some((when, before)))
                if now.saturating_duration_since(*when) < *before * SOON =>
            {
                let quiet = quiet.max((*before * 2).min(MAX_QUIET));
                Until::Recheck { quiet, checks }
            }
            (until, _) => until,
        }
    }

    /// A fault is over. What lasts is seen to be over, and needs no caution.
    pub(super) fn remember(&mut self, fault: &Fault, now: Instant) {
        self.0
            .retain(|_, (when, quiet)| now.saturating_duration_since(*when) < *quiet * SOON);
        if let (false, Until::Recheck { quiet, .. }) = (fault.cause.lasts(), &fault.until) {
            self.0.insert((fault.cause, fault.instance), (now, *quiet));
        }
    }
}
