//! Tells when the driver came (back) or a GPU was reset: both can undo a layout, so what was decided may no longer hold.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nvml::{EventKind, EventMask, EventStop, Session};
use tokio::sync::mpsc::{Receiver, Sender};

/// The shortest pause before the driver is asked for again; the session has growing ones of its own.
const PAUSE: Duration = Duration::from_millis(500);

/// A driver that is being watched, by a thread of its own. Dropping it ends the watch soon; [`DriverWatch::end`] waits.
#[derive(Debug)]
pub(super) struct DriverWatch {
    changes: Receiver<()>,
    shared: Arc<Shared>,
    /// `None` when the system gave no thread: then only labels and retries lead to another look.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    stream: Mutex<Option<EventStop>>,
}

impl DriverWatch {
    pub(super) fn start(session: Arc<Session>) -> Self {
        let (sender, changes) = tokio::sync::mpsc::channel(1);
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new()
            .name("mig-driver".to_owned())
            .spawn({
                let shared = shared.clone();
                move || follow(&session, &shared, &sender)
            });
        Self {
            changes,
            shared,
            thread: thread
                .inspect_err(|error| tracing::warn!(%error, "cannot watch the driver"))
                .ok(),
        }
    }

    /// Returns when the GPUs may have lost their layout. Dropped and called again, it misses nothing.
    pub(super) async fn changed(&mut self) {
        if self.changes.recv().await.is_none() {
            std::future::pending().await
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

fn follow(session: &Session, shared: &Shared, changes: &Sender<()>) {
    let tell = || {
        // A full channel means somebody is about to look anyway.
        let _ = changes.try_send(());
    };
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
            tell();
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
                EventKind::Watching if !watched.insert(event.gpu.index) => tell(),
                EventKind::Failed(error) if error.is_driver_gone() => {
                    gone = true;
                    break;
                }
                _ => {}
            }
        }
    }
}
