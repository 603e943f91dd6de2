//! Who has to go when the server is full and another client waits.
//!
//! A client that holds a connection without asking for anything (an idle keep-alive, a head that never ends, an answer
//! left untaken) must not keep a scrape or a probe out for as long as its own time limits allow.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Shortest time between two looks for somebody to send away.
const PAUSE: Duration = Duration::from_millis(10);

/// One connection, as far as the question goes whether it may stay.
pub(super) struct Guest {
    /// Since when the client has what it asked for; `None` while a handler works for it.
    idle_since: Mutex<Option<Instant>>,
    leave: CancellationToken,
}

impl Guest {
    /// It asked for something.
    pub(super) fn is_served(&self) {
        self.set(None);
    }

    /// It got its answer, though it may not have taken it yet.
    pub(super) fn was_served(&self) {
        self.set(Some(Instant::now()));
    }

    /// Completes when the connection has to go.
    pub(super) async fn must_leave(&self) {
        self.leave.cancelled().await;
    }

    fn set(&self, idle_since: Option<Instant>) {
        *self.lock() = idle_since;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        // The value is whole whoever panicked.
        self.idle_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connections there are. Those that ended are forgotten by themselves.
#[derive(Default)]
pub(super) struct Guests(Vec<Weak<Guest>>);

impl Guests {
    /// A new connection, which has asked for nothing yet.
    pub(super) fn admit(&mut self) -> Arc<Guest> {
        self.0.retain(|guest| guest.strong_count() > 0);
        let guest = Arc::new(Guest {
            idle_since: Mutex::new(Some(Instant::now())),
            leave: CancellationToken::new(),
        });
        self.0.push(Arc::downgrade(&guest));
        guest
    }

    /// Sends away the connection that has idled longest, if that is `patience` or longer; says when to try again if its
    /// place does not come free.
    pub(super) fn make_room(&self, patience: Duration) -> Instant {
        let now = Instant::now();
        let longest = self
            .0
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|guest| !guest.leave.is_cancelled())
            .filter_map(|guest| {
                let since = *guest.lock();
                since.map(|since| (since, guest))
            })
            .min_by_key(|(since, _)| *since);
        match longest {
            Some((since, _)) if now < since + patience => since + patience,
            Some((_, guest)) => {
                guest.leave.cancel();
                now + patience.max(PAUSE)
            }
            // All are served, which is bounded too.
            None => now + patience.max(PAUSE),
        }
    }
}
