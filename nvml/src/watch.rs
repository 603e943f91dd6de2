//! Watching for events.
//!
//! Each GPU has its own event set and thread. With one set for all, as usual, a lost GPU makes every wait fail and nobody
//! can tell which GPU it was; a call that hangs would silence all of them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nvml_wrapper_sys::bindings as sys;

use crate::Code;
use crate::context::{Context, Limits};
use crate::device::at_index;
use crate::driver::Driver;
use crate::error::{Error, GpuRef, Optional};
use crate::event::{Event, EventKind, EventMask};
use crate::gate::{Gate, Pass};
use crate::lane::{Memory, Progress, STACK, lock};
use crate::library::symbol;
use crate::process::instance;

/// How long one wait in the driver lasts. It cannot be interrupted, so this bounds how soon a watcher stops, and how long
/// a GPU reset waits for it.
const WAIT: Duration = Duration::from_millis(500);

/// First and longest pause after a failure. A try is four calls, and what happens during the pause is not heard of.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Events kept for a slow consumer.
const BACKLOG: usize = 1024;

/// A longer sleep than any that matters: watchers are woken, they do not poll.
const IDLE: Duration = Duration::from_secs(3600);

/// Events as they come. Iterating blocks until the next one; it ends when the stream is stopped or the driver dropped.
#[derive(Debug)]
pub struct EventStream {
    events: Receiver<Event>,
    watch: EventWatch,
}

/// A watch under way. Dropping it ends it within a second.
#[derive(Debug)]
pub struct EventWatch(Arc<Control>);

impl EventWatch {
    /// Tries a GPU whose events cannot be read again at once, instead of when its pause is over: for who learns by other
    /// means that it is back.
    pub fn retry(&self, index: u32) {
        lock(&self.0.hurry).insert(index);
        self.0.gate.wake();
    }
}

impl Drop for EventWatch {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Takes an event, or says that there is no room for it now. Only the threads hold it, so that a channel behind it closes with them.
type Sink = Arc<dyn Fn(Event) -> bool + Send + Sync>;

struct Control {
    gate: Arc<Gate>,
    stop: AtomicBool,
    dropped: AtomicU64,
    mask: u64,
    limits: Limits,
    root: PathBuf,
    /// Indices that have a thread.
    watched: Mutex<BTreeSet<u32>>,
    /// Indices to be tried again at once.
    hurry: Mutex<BTreeSet<u32>>,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control")
            .field("mask", &self.mask)
            .finish_non_exhaustive()
    }
}

impl Control {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn is_over(&self) -> bool {
        self.stopped() || self.gate.is_demolished()
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.gate.wake();
    }
}

/// Stops an [`EventStream`] from another thread.
#[derive(Clone, Debug)]
pub struct EventStop(Arc<Control>);

impl EventStop {
    /// The stream ends within a second.
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl EventStream {
    /// The next event, if one comes within `limit`.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn next_within(&self, limit: Duration) -> Result<Option<Event>, Error> {
        match self.events.recv_timeout(limit) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::Closed),
        }
    }

    /// Ends this stream from another thread, even while that one blocks in `next`.
    #[must_use]
    pub fn stopper(&self) -> EventStop {
        EventStop(Arc::clone(&self.watch.0))
    }
}

impl Iterator for EventStream {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.events.recv().ok()
    }
}

impl Driver {
    /// Watches all GPUs for events. What a GPU does not support is left out; a GPU without events says so once ([`EventKind::Silent`]). Through
    /// resets and driver restarts the stream goes on ([`EventKind::Watching`]); it picks up GPUs that come later.
    ///
    /// # Errors
    /// The driver is gone, or the system gives no thread.
    pub fn watch(&self, mask: EventMask) -> Result<EventStream, Error> {
        let (sender, events) = sync_channel(BACKLOG);
        let watch = self.watch_with(mask, move |event| sender.try_send(event).is_ok())?;
        Ok(EventStream { events, watch })
    }

    /// As [`watch`](Self::watch), with a function that takes the events. It is called from several threads and must not
    /// block; when it has no room for an event it says `false`, and [`EventKind::Dropped`] follows.
    ///
    /// # Errors
    /// The driver is gone, or the system gives no thread.
    pub fn watch_with(
        &self,
        mask: EventMask,
        sink: impl Fn(Event) -> bool + Send + Sync + 'static,
    ) -> Result<EventWatch, Error> {
        let count = self.count()?;
        let control = Arc::new(Control {
            gate: Arc::clone(self.gate()),
            stop: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            mask: mask.0,
            limits: self.options().limits(),
            root: self.root().to_path_buf(),
            watched: Mutex::default(),
            hurry: Mutex::default(),
        });
        let sink: Sink = Arc::new(sink);
        let watch = EventWatch(Arc::clone(&control));
        // On a node without GPUs, index 0 waits for the first one.
        ensure(&control, &sink, count.max(1))?;
        Ok(watch)
    }
}

/// Starts the threads that are missing.
fn ensure(control: &Arc<Control>, sink: &Sink, count: u32) -> Result<(), Error> {
    let mut watched = lock(&control.watched);
    for index in 0..count {
        if watched.contains(&index) {
            continue;
        }
        let gpu = GpuRef { index, uuid: None };
        let watcher = Watcher {
            control: Arc::clone(control),
            sink: Arc::clone(sink),
            progress: Arc::new(Progress::new(Some(gpu))),
            index,
            told: None,
            silent: false,
        };
        std::thread::Builder::new()
            .name(format!("nvml-watch{index}"))
            .stack_size(STACK)
            .spawn(move || watcher.work())
            .map_err(|error| Error::System {
                what: "cannot start a thread for driver events",
                reason: error.to_string(),
            })?;
        watched.insert(index);
    }
    Ok(())
}

/// Why a watcher left the library, other than by a failure.
enum Left {
    /// Somebody wants to be alone in there, or the stream is over.
    Asked,
    /// This opening of the library has no events for this GPU.
    Nothing,
}

struct Watcher {
    control: Arc<Control>,
    sink: Sink,
    progress: Arc<Progress>,
    index: u32,
    /// The failure that was reported last.
    told: Option<Error>,
    /// Whether it was reported that the GPU has no events.
    silent: bool,
}

impl Watcher {
    fn work(mut self) {
        let mut pause = PAUSES.0;
        let mut memory = Memory::default();
        while !self.control.is_over() {
            let gate = Arc::clone(&self.control.gate);
            let limit = self.control.limits.write;
            let (but_not, sleep) = match gate.enter(&self.progress, limit) {
                // Closed, or somebody is alone inside: back when it opens.
                Err(_) => (None, IDLE),
                Ok(pass) => match self.watch(&pass, &mut memory) {
                    Ok(Left::Asked) => (None, IDLE),
                    Ok(Left::Nothing) => (pass.library().ok().map(|(_, g)| g), IDLE),
                    Err(error) => {
                        if self.told.is_none() {
                            pause = PAUSES.0;
                        }
                        self.tell(error);
                        let sleep = pause;
                        pause = (pause * 2).min(PAUSES.1);
                        (pass.library().ok().map(|(_, g)| g), sleep)
                    }
                },
            };
            self.progress.rest();
            let hurried = || lock(&self.control.hurry).contains(&self.index);
            gate.wait_until_open(but_not, || self.control.stopped() || hurried(), sleep);
            if lock(&self.control.hurry).remove(&self.index) {
                pause = PAUSES.0;
            }
        }
    }

    /// Reports a failure, once.
    fn tell(&mut self, error: Error) {
        let same = |told: &Error| {
            // A GPU that is lost fails the next try at its first call.
            let call = told.call() == error.call() || error.is_gpu_lost();
            call && told.code() == error.code()
        };
        if !self.told.as_ref().is_some_and(same) {
            let kind = if error.is_gpu_lost() {
                EventKind::Lost(error.clone())
            } else {
                EventKind::Failed(error.clone())
            };
            self.send(kind, None, None);
        }
        self.told = Some(error);
    }

    /// Watches until something else is wanted of this thread.
    fn watch(&mut self, pass: &Pass, memory: &mut Memory) -> Result<Left, Error> {
        let control = Arc::clone(&self.control);
        let progress = Arc::clone(&self.progress);
        let (library, generation) = pass.library()?;
        let mut context = Context {
            library,
            root: &control.root,
            limits: control.limits,
            gpu: progress.gpu(),
            progress: &progress,
            // Stopping is looked at between waits: an event set that exists must be freed first.
            abandoned: &AtomicBool::new(false),
        };
        let count = context.get(symbol!(library, nvmlDeviceGetCount_v2))?;
        ensure(&control, &self.sink, count)?;
        if self.index >= count {
            return Ok(Left::Nothing);
        }
        let (device, uuid) = at_index(&context, memory, generation, self.index)?;
        let gpu = GpuRef {
            index: self.index,
            uuid: Some(uuid),
        };
        progress.set_gpu(gpu.clone());
        context.gpu = Some(gpu);
        let supported: Option<u64> = context
            .get_of(symbol!(library, nvmlDeviceGetSupportedEventTypes), device)
            .optional()?;
        let mask = supported.unwrap_or(0) & control.mask;
        if mask == 0 {
            if !std::mem::replace(&mut self.silent, true) {
                self.send(EventKind::Silent, None, None);
            }
            return Ok(Left::Nothing);
        }
        let set: sys::nvmlEventSet_t = context.get(symbol!(library, nvmlEventSetCreate))?;
        let register = symbol!(library, nvmlDeviceRegisterEvents);
        // SAFETY: both handles are of this opening of the library.
        let outcome = context
            .call(register, |f| unsafe { f(device, mask, set) })
            .and_then(|()| self.read(&context, pass, set));
        // SAFETY: created above; nobody uses it any more. What freeing says changes nothing.
        let _ = context.call(symbol!(library, nvmlEventSetFree), |f| unsafe { f(set) });
        outcome
    }

    fn read(
        &mut self,
        context: &Context<'_>,
        pass: &Pass,
        set: sys::nvmlEventSet_t,
    ) -> Result<Left, Error> {
        let library = context.library;
        let mut watching = false;
        loop {
            if pass.should_leave() || self.control.is_over() {
                return Ok(Left::Asked);
            }
            // The first wait only looks: a GPU that is lost takes registrations, and fails here.
            let wait = if watching { WAIT } else { Duration::ZERO };
            let mut data: sys::nvmlEventData_t = crate::plain::zeroed();
            let symbol = symbol!(library, nvmlEventSetWait_v2);
            let limit = wait + context.limits.read;
            // SAFETY: the set is of this opening of the library; the result is valid for the call.
            let answer = context.call_within(limit, symbol, |f| unsafe {
                f(set, &raw mut data, wait.as_millis() as u32)
            });
            let event = match answer {
                Ok(()) => Some(data),
                Err(error) if error.code() == Some(Code::TIMEOUT) => None,
                Err(error) => return Err(error),
            };
            if !watching {
                watching = true;
                self.silent = false;
                self.told = None;
                self.send(EventKind::Watching, None, None);
            }
            if let Some(event) = event {
                self.send(
                    EventKind::from_driver(event.eventType, event.eventData),
                    instance(event.gpuInstanceId),
                    instance(event.computeInstanceId),
                );
            }
        }
    }

    /// Hands an event over, or counts it as dropped when the consumer is too far behind.
    fn send(&self, kind: EventKind, gpu_instance: Option<u32>, compute_instance: Option<u32>) {
        let gpu = self.progress.gpu().unwrap_or(GpuRef {
            index: self.index,
            uuid: None,
        });
        let event = |kind, gpu_instance, compute_instance| Event {
            gpu: gpu.clone(),
            gpu_instance,
            compute_instance,
            kind,
        };
        let control = &self.control;
        let dropped = control.dropped.swap(0, Ordering::AcqRel);
        if dropped > 0 && !(self.sink)(event(EventKind::Dropped(dropped), None, None)) {
            control.dropped.fetch_add(dropped, Ordering::AcqRel);
        }
        if !(self.sink)(event(kind, gpu_instance, compute_instance)) {
            control.dropped.fetch_add(1, Ordering::AcqRel);
        }
    }
}
