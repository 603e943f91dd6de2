//! The thread that follows the driver.
//!
//! Events say most of what happens; a look at the GPU follows, since an event says only that something changed. What no
//! event tells of is looked for once a second: files in `/proc` ([`super::proc`]), GPUs in trouble, and GPUs that report no
//! events. The thread itself never waits for a GPU: looks run on the GPUs' own threads and come back as messages.

mod driver;
mod look;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use nvml::{Error, Event, EventKind, EventWatch, Session};
use tokio::sync::{mpsc, oneshot, watch};

use super::inventory::{Inventory, KnownGpu, Observation};
use super::looks::Looks;
use super::topology::{Of, Readings};
use driver::Mending;

/// How often that is looked for of which no event tells. With the look that follows, a change shows within two seconds.
const TICK: Duration = Duration::from_secs(1);

/// How long a first inventory waits for GPUs that are slow to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the thread hears.
#[derive(Debug)]
pub(super) enum Message {
    /// From the driver.
    Event(Event),
    /// A look came back.
    Answer {
        /// With which opening of the library it was made.
        generation: u64,
        index: u32,
        answer: Result<Option<KnownGpu>, Error>,
    },
    /// A reading of the topology came back.
    Topology(Result<nvml::TopologyReport, Error>),
    /// Somebody asked the GPU with this UUID something and got no answer.
    Doubt(String),
    /// Let go of the GPUs.
    Pause {
        until: Instant,
        reply: oneshot::Sender<Result<(), Error>>,
    },
    /// Take them up again.
    Resume,
    /// End.
    Stop,
}

/// The driver while it is open.
struct Open {
    driver: nvml::Driver,
    generation: u64,
    looks: Looks,
    /// Whether the list was complete since it was opened.
    was_complete: bool,
    /// Whether the list was seen to be another than the one that was opened.
    moved: bool,
    since: Instant,
}

/// What `/proc` showed last.
#[derive(Default)]
struct Shown {
    version: Option<String>,
    boards: Option<BTreeSet<String>>,
}

/// See the module's words.
pub(super) struct Follower {
    session: Arc<Session>,
    root: PathBuf,
    messages: Sender<Message>,
    inventory: Inventory,
    inventories: watch::Sender<Arc<Inventory>>,
    topologies: watch::Sender<Arc<gpu::Topology>>,
    events: mpsc::Sender<Event>,
    /// Events that the consumer had no room for.
    dropped: u64,
    /// Driver events on their way to this thread.
    waiting: Arc<AtomicUsize>,
    watch: Option<EventWatch>,
    open: Option<Open>,
    paused: Option<Instant>,
    shown: Shown,
    /// GPUs that report no events, by index; with when that began if it is a failure that opening anew may mend.
    blind: BTreeMap<u32, Option<Instant>>,
    mending: Mending,
    readings: Readings,
}

impl Follower {
    pub(super) fn new(
        session: Arc<Session>,
        messages: Sender<Message>,
        inventories: watch::Sender<Arc<Inventory>>,
        topologies: watch::Sender<Arc<gpu::Topology>>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self {
            root: session.root().to_path_buf(),
            session,
            messages,
            inventory: Inventory::default(),
            inventories,
            topologies,
            events,
            dropped: 0,
            waiting: Arc::default(),
            watch: None,
            open: None,
            paused: None,
            shown: Shown::default(),
            blind: BTreeMap::new(),
            mending: Mending::new(Instant::now()),
            readings: Readings::default(),
        }
    }

    pub(super) fn follow(mut self, incoming: &Receiver<Message>) {
        let mut tick = Instant::now();
        loop {
            let now = Instant::now();
            if now >= tick {
                self.tick(now);
                tick = Instant::now() + TICK;
            }
            self.look(Instant::now());
            self.publish(Instant::now());
            let next = self.open.as_ref().and_then(|open| open.looks.next());
            let wake = next.map_or(tick, |next| next.min(tick));
            let message = incoming.recv_timeout(wake.saturating_duration_since(Instant::now()));
            let first = match message {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            for message in std::iter::once(first).chain(incoming.try_iter()) {
                if matches!(message, Message::Stop) {
                    return;
                }
                if matches!(message, Message::Resume) {
                    tick = Instant::now();
                }
                self.hear(message, Instant::now());
            }
        }
    }

    fn hear(&mut self, message: Message, now: Instant) {
        match message {
            Message::Event(event) => {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                self.happened(&event, now);
                self.pass_on(event);
            }
            Message::Answer {
                generation,
                index,
                answer,
            } => self.answered(generation, index, answer),
            Message::Topology(result) => {
                if let Some(topology) = self.readings.done(result) {
                    self.topologies.send_replace(Arc::new(topology));
                }
            }
            Message::Doubt(uuid) => {
                let index = self.inventory.gpu(&uuid).map(|known| known.gpu.index);
                if let (Some(index), Some(open)) = (index, &mut self.open) {
                    open.looks.want_now(index, now);
                }
            }
            Message::Pause { until, reply } => {
                let _ = reply.send(self.pause(until, now));
            }
            Message::Resume => self.resume(),
            // Ends the loop that calls this.
            Message::Stop => {}
        }
    }

    // Events.

    fn happened(&mut self, event: &Event, now: Instant) {
        let index = event.gpu.index;
        match &event.kind {
            EventKind::Watching => {
                self.blind.remove(&index);
            }
            EventKind::Silent => {
                self.blind.insert(index, None);
            }
            EventKind::Lost(error) => {
                self.blind.insert(index, None);
                self.inventory.observe(Observation::Trouble {
                    gpu: event.gpu.clone(),
                    error: error.clone(),
                });
            }
            EventKind::Failed(error) => {
                if self.open.as_ref().is_some_and(|open| open.driver.is_gone()) {
                    return self.gone(error.clone());
                }
                // Opening anew gives nobody a permission, nor a driver a function.
                let denied = error.is_absent() || error.code() == Some(nvml::Code::NO_PERMISSION);
                self.blind
                    .insert(index, (!denied && !error.is_hung()).then_some(now));
            }
            _ => {}
        }
        let Some(open) = &mut self.open else { return };
        if matches!(event.kind, EventKind::Dropped(_)) {
            for index in 0..open.looks.count() {
                open.looks.want(index, now);
            }
        } else if !open.looks.want(index, now) {
            // The list has grown.
            let (driver, generation) = (open.driver.clone(), open.generation);
            self.opened(driver, generation, now);
        }
    }

    fn pass_on(&mut self, event: Event) {
        if self.dropped > 0 {
            let lost = Event {
                kind: EventKind::Dropped(self.dropped),
                gpu_instance: None,
                compute_instance: None,
                ..event.clone()
            };
            if self.events.try_send(lost).is_ok() {
                self.dropped = 0;
            }
        }
        if let Err(mpsc::error::TrySendError::Full(_)) = self.events.try_send(event) {
            self.dropped += 1;
        }
    }

    // Letting go.

    fn pause(&mut self, until: Instant, now: Instant) -> Result<(), Error> {
        if self.paused.is_none() {
            // Withdrawn before they change, not after.
            self.inventory.observe(Observation::Reshaping);
            self.publish(now);
            if let Err(error) = self.session.suspend() {
                // Their trouble has them looked at again.
                tracing::warn!("cannot let go of the GPUs: {error}");
                return Err(error);
            }
            self.open = None;
            self.blind.clear();
        }
        self.paused = Some(until);
        Ok(())
    }

    fn resume(&mut self) {
        if self.paused.take().is_some() {
            self.session.resume();
        }
    }

    // What others see.

    fn publish(&mut self, now: Instant) {
        if let Some(open) = &mut self.open {
            if let Some(uuids) = open.looks.complete() {
                open.was_complete = true;
                self.inventory.observe(Observation::Listed {
                    count: open.looks.count(),
                    uuids,
                });
            }
            let first = *self.inventories.borrow().driver() == super::Driver::Unknown;
            if first && !open.was_complete && now < open.since + PATIENCE {
                return;
            }
        }
        self.inventories.send_if_modified(|published| {
            let differs = **published != self.inventory;
            if differs {
                *published = Arc::new(self.inventory.clone());
            }
            differs
        });
        if let Some(open) = self.open.as_ref().filter(|open| open.was_complete) {
            let of = Of::new(open.generation, &self.inventory);
            self.readings.update(&open.driver, of, &self.messages);
        }
    }
}
