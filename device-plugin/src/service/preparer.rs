//! Keeps ready what has to lie ready ([`Wanted`]): prepares it when it is another, and again after a failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::prepare::{Prepared, Wanted};
use super::work::on_thread;

/// How long the node's folders may take. They are local; a mount that hangs must not hide what else happens.
const LIMIT: Duration = Duration::from_secs(5);

/// First and longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What was prepared last.
#[derive(Default)]
pub(super) struct Preparer {
    good: Option<(Wanted, Prepared)>,
    failed: Option<Failed>,
    /// Work that took too long may still be at it; a second one beside it would only hang too.
    busy: Arc<AtomicBool>,
}

struct Failed {
    wanted: Wanted,
    prepared: Prepared,
    reason: String,
    pause: Duration,
    again: Instant,
}

impl Preparer {
    /// When to try again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.failed.as_ref().map(|failed| failed.again)
    }

    /// Why what lies ready is not what should.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.failed.as_ref().map(|failed| failed.reason.as_str())
    }

    /// What lies ready, after seeing to it that this is as wanted. Waits a few seconds at most.
    pub(super) async fn prepared(&mut self, wanted: Wanted) -> Prepared {
        if let Some(failed) = &self.failed {
            if failed.wanted == wanted && Instant::now() < failed.again {
                return failed.prepared.clone();
            }
        } else if let Some((_, prepared)) = self.good.as_ref().filter(|(then, _)| *then == wanted) {
            return prepared.clone();
        }
        match self.prepare(&wanted).await {
            Ok(prepared) => {
                self.failed = None;
                self.good = Some((wanted, prepared.clone()));
                prepared
            }
            Err(reason) => {
                let pause = match &self.failed {
                    Some(failed) if failed.wanted == wanted => (failed.pause * 2).min(PAUSES.1),
                    _ => PAUSES.0,
                };
                let prepared = wanted.after_failure(self.good.as_ref(), &reason);
                self.failed = Some(Failed {
                    wanted,
                    prepared: prepared.clone(),
                    reason,
                    pause,
                    again: Instant::now() + pause,
                });
                prepared
            }
        }
    }

    async fn prepare(&self, wanted: &Wanted) -> Result<Prepared, String> {
        let slow = || {
            format!(
                "the node's folders do not answer within {} s",
                LIMIT.as_secs()
            )
        };
        if self.busy.swap(true, Ordering::AcqRel) {
            return Err(slow());
        }
        let (free, wanted) = (Free(self.busy.clone()), wanted.clone());
        let work = move || {
            let _free = free;
            wanted.prepare()
        };
        match on_thread("prepare", LIMIT, work).await {
            Some(prepared) => prepared.map_err(|error| error.to_string()),
            None => Err(slow()),
        }
    }
}

/// The work is done, or was never begun, or panicked.
struct Free(Arc<AtomicBool>);

impl Drop for Free {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
