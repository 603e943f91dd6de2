//! Tells when the driver came (back) or a GPU was reset: both can undo a layout, so what was decided may no longer hold.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nvml::{EventKind, EventMask, EventStop, Session};
use tokio::sync::Notify;

/// The shortest pause before the driver is asked for again; the session has growing ones of its own.
const PAUSE: Duration = Duration::from_millis(500);

/// What a watch tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DriverChange {
    /// A GPU is watched for the first time: what it went through before, nobody saw.
    Watched,
    /// The driver came back, or a GPU was reset.
    Returned,
}

/// A driver that is being watched, by a thread of its own. Dropping it ends the watch soon; [`DriverWatch::end`] waits.
#[derive(Debug)]
pub(super) struct DriverWatch {
    shared: Arc<Shared>,
    /// `None` when the system gave no thread: then only labels and retries lead to another look.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    watched: AtomicBool,
    returned: AtomicBool,
    news: Notify,
    stream: Mutex<Option<EventStop>>,
}

impl Shared {
    fn tell(&self, change: DriverChange) {
        let flag = match change {
            DriverChange::Watched => &self.watched,
            DriverChange::Returned => &self.returned,
        };
        flag.store(true, Ordering::Release);
        self.news.notify_one();
    }

    fn take(&self) -> Option<DriverChange> {
        // A look at everything, which is what a return leads to, covers the other.
        let watched = self.watched.swap(false, Ordering::AcqRel);
        if self.returned.swap(false, Ordering::AcqRel) {
            Some(DriverChange::Returned)
        } else {
            watched.then_some(DriverChange::Watched)
        }
    }
}

impl DriverWatch {
    pub(super) fn start(session: Arc<Session>) -> Self {
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new()
            .name("mig-driver".to_owned())
            .spawn({
                let shared = shared.clone();
                move || follow(&session, &shared)
            });
        Self {
            shared,
            thread: thread
                .inspect_err(|error| tracing::warn!(%error, "cannot watch the driver"))
                .ok(),
        }
    }

    /// Returns when the GPUs may have lost their layout. Dropped and called again, it misses nothing.
    pub(super) async fn changed(&self) -> DriverChange {
        loop {
            if let Some(change) = self.shared.take() {
                return change;
            }
            self.shared.news.notified().await;
        }
    }

    /// Ends the watch and waits, at most about a second, until it holds no GPU any more: an open event set counts as a
    /// client, and a mode change needs a GPU without any.
    pub(super) fn end(mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A panic there was already reported, and here nothing depends on it.
            let _ = thread.join();
        }
    }

    fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
        if let Some(stream) = &*self
            .shared
            .stream
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
        {
            stream.stop();
        }
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for DriverWatch {
    fn drop(&mut self) {
        self.stop();
    }
}

fn follow(session: &Session, shared: &Shared) {
    let mut gone = false;
    while !shared.stopped.load(Ordering::Acquire) {
        let driver = match session.driver() {
            Ok(driver) => driver,
            Err(_) => {
                gone = true;
                std::thread::park_timeout(session.next_attempt().max(PAUSE));
                continue;
            }
        };
        if std::mem::take(&mut gone) {
            shared.tell(DriverChange::Returned);
        }
        // One kind of event that all GPUs with MIG support is enough to hear that reporting began anew.
        let Ok(stream) = driver.watch(EventMask::MIG_CONFIG) else {
            std::thread::park_timeout(PAUSE);
            continue;
        };
        *shared.stream.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream.stopper());
        if shared.stopped.load(Ordering::Acquire) {
            return;
        }
        let mut watched = BTreeSet::new();
        for event in stream {
            match event.kind {
                EventKind::Watching if watched.insert(event.gpu.index) => {
                    shared.tell(DriverChange::Watched);
                }
                EventKind::Watching => shared.tell(DriverChange::Returned),
                EventKind::Failed(error) if error.is_driver_gone() => {
                    gone = true;
                    break;
                }
                _ => {}
            }
        }
    }
}
