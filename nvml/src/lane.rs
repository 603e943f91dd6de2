//! A lane: one thread that makes one GPU's NVML calls, so that a call that hangs costs nobody but that GPU's callers.
//!
//! NVML calls cannot be cancelled. A caller therefore never makes one itself: it hands a job to the lane and waits until
//! the call that the lane is in has used up its time. A job whose caller gave up is not started, and makes no further call
//! if it was already running.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings as sys;

use crate::error::{Error, GpuRef};
use crate::identity::Pci;

/// Enough for NVML's own frames and for the largest structure we put on the stack (`nvmlGpmMetricsGet_t`, 13 KiB).
pub(crate) const STACK: usize = 256 * 1024;

/// Loading the library looks up some four hundred functions in one frame, which is large in an unoptimised build.
pub(crate) const LOADING_STACK: usize = 1024 * 1024;

/// Locks a mutex; a thread that panicked while it held it left plain data behind, which stays usable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a thread is doing now, and since when.
#[derive(Clone, Copy)]
struct Now {
    call: &'static str,
    since: Instant,
    limit: Duration,
}

/// What a lane's thread is doing, visible to those who wait for it.
pub(crate) struct Progress {
    now: Mutex<Option<Now>>,
    gpu: Mutex<Option<GpuRef>>,
    place: Mutex<Option<Pci>>,
}

impl Progress {
    pub(crate) fn new(gpu: Option<GpuRef>) -> Self {
        Self {
            now: Mutex::new(None),
            gpu: Mutex::new(gpu),
            place: Mutex::new(None),
        }
    }

    /// The thread enters `call`, which may take up to `limit`.
    pub(crate) fn enter(&self, call: &'static str, limit: Duration) {
        *lock(&self.now) = Some(Now {
            call,
            since: Instant::now(),
            limit,
        });
    }

    /// The thread is idle.
    pub(crate) fn rest(&self) {
        *lock(&self.now) = None;
    }

    pub(crate) fn gpu(&self) -> Option<GpuRef> {
        lock(&self.gpu).clone()
    }

    pub(crate) fn set_gpu(&self, gpu: GpuRef) {
        *lock(&self.gpu) = Some(gpu);
    }

    /// Where the GPU sat when it was last looked at: what a GPU that answers no more can be reset by.
    pub(crate) fn place(&self) -> Option<Pci> {
        lock(&self.place).clone()
    }

    pub(crate) fn set_place(&self, place: Option<Pci>) {
        *lock(&self.place) = place;
    }

    /// The error to give when the present call has used up its time, or how long it may still take.
    fn check(&self, idle: Duration) -> Result<Duration, Error> {
        let now = *lock(&self.now);
        let Some(now) = now else { return Ok(idle) };
        let waited = now.since.elapsed();
        match now.limit.checked_sub(waited) {
            Some(left) if !left.is_zero() => Ok(left),
            _ => Err(Error::Hung {
                gpu: self.gpu(),
                call: now.call,
                waited,
            }),
        }
    }

    /// What the thread is in, as the error that somebody gets who cannot wait for it any longer.
    pub(crate) fn as_hung(&self) -> Error {
        let now = *lock(&self.now);
        Error::Hung {
            gpu: self.gpu(),
            call: now.map_or("a job", |n| n.call),
            waited: now.map_or(Duration::ZERO, |n| n.since.elapsed()),
        }
    }
}

/// What a lane's thread remembers from one job to the next.
#[derive(Default)]
pub(crate) struct Memory {
    /// The handle, of which opening of the library, and whose it is; saves reading the UUID again for every job.
    pub(crate) device: Option<(u64, sys::nvmlDevice_t, Arc<str>)>,
}

type Job = Box<dyn FnOnce(&mut Memory, &Progress) + Send>;

/// A thread for one GPU's calls. It ends when the lane is dropped and its queue is empty.
pub(crate) struct Lane {
    queue: Sender<Job>,
    progress: Arc<Progress>,
    thread: ThreadId,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").finish_non_exhaustive()
    }
}

impl Lane {
    pub(crate) fn start(name: String, gpu: Option<GpuRef>, stack: usize) -> Result<Self, Error> {
        let (queue, jobs) = channel::<Job>();
        let progress = Arc::new(Progress::new(gpu));
        let seen = Arc::clone(&progress);
        let handle = std::thread::Builder::new()
            .name(name)
            .stack_size(stack)
            .spawn(move || work(&jobs, &seen))
            .map_err(|error| Error::System {
                what: "cannot start a thread for driver calls",
                reason: error.to_string(),
            })?;
        Ok(Self {
            queue,
            progress,
            thread: handle.thread().id(),
        })
    }

    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Whether the calling thread is this lane's own: it must not wait for itself.
    pub(crate) fn is_current(&self) -> bool {
        self.thread == std::thread::current().id()
    }

    /// Queues a job, unless the lane hangs. `limit` bounds what the job does outside NVML calls.
    ///
    /// A job that is refused is dropped on the calling thread; what must not be dropped there goes by
    /// [`enqueue`](Self::enqueue).
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        label: &'static str,
        limit: Duration,
        job: impl FnOnce(&mut Memory, &Progress, &AtomicBool) -> T + Send + 'static,
    ) -> Result<Ticket<T>, Error> {
        self.check(limit)?;
        self.enqueue(label, limit, job)
    }

    /// The error to give when this lane hangs or is the calling thread's own, which must not wait for itself.
    pub(crate) fn check(&self, limit: Duration) -> Result<(), Error> {
        if self.is_current() {
            return Err(Error::System {
                what: "a batch of driver calls cannot wait for another on the same GPU",
                reason: "it would wait for itself".into(),
            });
        }
        self.progress.check(limit).map(|_| ())
    }

    /// Queues a job even while the lane hangs; it runs, and is dropped, on the lane's thread.
    pub(crate) fn enqueue<T: Send + 'static>(
        &self,
        label: &'static str,
        limit: Duration,
        job: impl FnOnce(&mut Memory, &Progress, &AtomicBool) -> T + Send + 'static,
    ) -> Result<Ticket<T>, Error> {
        let slot = Arc::new(Slot::default());
        let theirs = Arc::clone(&slot);
        let work: Job = Box::new(move |memory, progress| {
            if theirs.abandoned.load(Ordering::Acquire) {
                return;
            }
            progress.enter(label, limit);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                job(memory, progress, &theirs.abandoned)
            }));
            progress.rest();
            *lock(&theirs.outcome) = Some(outcome);
            theirs.done.notify_all();
        });
        self.queue.send(work).map_err(|_| Error::Closed)?;
        Ok(Ticket {
            slot,
            progress: Arc::clone(&self.progress),
            limit,
        })
    }
}

fn work(jobs: &Receiver<Job>, progress: &Progress) {
    let mut memory = Memory::default();
    while let Ok(job) = jobs.recv() {
        job(&mut memory, progress);
    }
}

struct Slot<T> {
    outcome: Mutex<Option<Result<T, Box<dyn Any + Send>>>>,
    done: Condvar,
    abandoned: AtomicBool,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self {
            outcome: Mutex::new(None),
            done: Condvar::new(),
            abandoned: AtomicBool::new(false),
        }
    }
}

/// A queued job's result to come.
pub(crate) struct Ticket<T> {
    slot: Arc<Slot<T>>,
    progress: Arc<Progress>,
    limit: Duration,
}

impl<T> Ticket<T> {
    /// Waits for the result, as long as the calls that the lane makes keep to their times.
    pub(crate) fn wait(self) -> Result<T, Error> {
        let mut outcome = lock(&self.slot.outcome);
        loop {
            match outcome.take() {
                Some(Ok(value)) => return Ok(value),
                // The job is the caller's own code: its panic is the caller's to see.
                Some(Err(panic)) => resume_unwind(panic),
                None => {}
            }
            match self.progress.check(self.limit) {
                Ok(left) => {
                    outcome = self
                        .slot
                        .done
                        .wait_timeout(outcome, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                }
                Err(hung) => {
                    self.slot.abandoned.store(true, Ordering::Release);
                    return Err(hung);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(30);

    fn lane() -> Lane {
        Lane::start("test".into(), None, STACK).unwrap()
    }

    /// Occupies the lane inside `call` until the returned sender is dropped.
    fn hang(lane: &Lane, call: &'static str) -> mpsc::Sender<()> {
        let (release, held) = mpsc::channel::<()>();
        let (entered, inside) = mpsc::channel();
        let _ticket = lane
            .submit("job", LONG, move |_, progress, _| {
                progress.enter(call, SHORT);
                entered.send(()).unwrap();
                let _ = held.recv();
            })
            .unwrap();
        inside.recv().unwrap();
        release
    }

    #[test]
    fn results_come_back() {
        let ticket = lane().submit("job", LONG, |_, _, _| 7).unwrap();
        assert_eq!(ticket.wait(), Ok(7));
    }

    #[test]
    fn a_call_that_hangs_is_named_and_later_jobs_fail_at_once() {
        let lane = lane();
        let ticket = lane.submit("job", LONG, |_, _, _| ()).unwrap();
        ticket.wait().unwrap();
        let release = hang(&lane, "nvmlDeviceGetName");
        let queued = lane.submit("job", LONG, |_, _, _| ());
        // Queued before the call used up its time, or refused after: either way the caller learns which call hangs.
        let error = match queued {
            Ok(ticket) => ticket.wait().unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.call(), Some("nvmlDeviceGetName"));
        assert!(
            lane.submit("job", LONG, |_, _, _| ())
                .is_err_and(|e| e.is_hung())
        );
        drop(release);
        let mut clears = 0;
        while lane.submit("job", LONG, |_, _, _| ()).is_err() {
            clears += 1;
            assert!(
                clears < 12_000,
                "the lane must come back once the call returns"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_job_whose_caller_gave_up_never_runs() {
        let lane = lane();
        let release = hang(&lane, "nvmlDeviceSetMigMode");
        let (ran, seen) = mpsc::channel();
        if let Ok(ticket) = lane.submit("job", LONG, move |_, _, _| ran.send(()).unwrap()) {
            assert!(ticket.wait().is_err());
        }
        drop(release);
        // The lane works in order: once a later job is through, the abandoned one would have run.
        let mut done = false;
        for _ in 0..12_000 {
            if let Ok(ticket) = lane.submit("job", LONG, |_, _, _| ()) {
                ticket.wait().unwrap();
                done = true;
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(done);
        assert!(seen.try_recv().is_err());
    }

    #[test]
    fn a_panicking_job_reaches_its_caller_and_spares_the_lane() {
        let lane = lane();
        let ticket = lane
            .submit("job", LONG, |_, _, _| -> u32 { panic!("mine") })
            .unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| ticket.wait()));
        assert!(caught.is_err());
        let ticket = lane.submit("job", LONG, |_, _, _| 1).unwrap();
        assert_eq!(ticket.wait(), Ok(1));
    }
}
