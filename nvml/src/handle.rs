//! A GPU as something to hold on to, from any thread and for as long as one likes.

use std::sync::{Arc, OnceLock};

use crate::context::Context;
use crate::device::{Device, at_index};
use crate::driver::{BETWEEN, Driver};
use crate::error::{Error, GpuRef};
use crate::identity::Pci;
use crate::lane::{Lane, STACK, Ticket};

/// One GPU. Cheap to clone, usable from any thread; the calls run on the GPU's own thread.
///
/// From its first use on it means the board with that UUID: should a driver restart give the index to another board, uses
/// fail with [`Error::Moved`] instead of touching that one.
#[derive(Clone, Debug)]
pub struct Gpu {
    driver: Driver,
    index: u32,
    pin: Arc<OnceLock<Arc<str>>>,
    /// A thread that makes the calls instead of the GPU's own.
    aside: Option<Arc<Lane>>,
}

impl Gpu {
    pub(crate) fn new(driver: Driver, index: u32) -> Self {
        Self {
            driver,
            index,
            pin: Arc::default(),
            aside: None,
        }
    }

    /// The same GPU, with a thread besides its own, which ends with this value and its clones: for questions that may be slow, or
    /// hang, and that nothing else is to wait for.
    pub(crate) fn aside(&self, thread: &str) -> Result<Self, Error> {
        let gpu = GpuRef {
            index: self.index,
            uuid: self.pin.get().cloned(),
        };
        let lane = Lane::start(format!("{thread}{}", self.index), Some(gpu), STACK)?;
        Ok(Self {
            aside: Some(Arc::new(lane)),
            ..self.clone()
        })
    }

    fn lane(&self) -> Result<Arc<Lane>, Error> {
        match &self.aside {
            Some(lane) => Ok(Arc::clone(lane)),
            None => self.driver.lane(self.index),
        }
    }

    /// NVML index.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The driver it belongs to.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Makes a batch of calls on the GPU's own thread, for one hop between threads.
    ///
    /// The handle is looked up for each batch, so a reset by somebody else in between does no harm.
    ///
    /// # Errors
    /// What `work` returns; [`Error::Hung`] when a call (its own or one before it) does not come back, in which case
    /// `work` makes no further call; [`Error::Moved`]; or the GPU or the driver is gone.
    ///
    /// # Panics
    /// When `work` panics.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Device<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.start(work)?.wait()?
    }

    /// As [`run`](Self::run), without waiting: `done` gets the outcome on the GPU's own thread, however late a call comes
    /// back, and must not block.
    ///
    /// # Errors
    /// When the batch is not even begun: a call before it hangs, or the driver is gone.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Device<'_>) -> Result<T, Error> + Send + 'static,
        done: impl FnOnce(Result<T, Error>) + Send + 'static,
    ) -> Result<(), Error> {
        self.submit(work, done).map(drop)
    }

    /// Whether a call on it hangs now: the error that its next use would fail with.
    ///
    /// # Errors
    /// [`Error::Hung`].
    pub fn check(&self) -> Result<(), Error> {
        let limit = self.driver.options().call_timeout;
        self.lane()?.check(limit)
    }

    /// Which GPU this is and where it sits, as far as it was ever seen: for a GPU that answers no more.
    pub(crate) fn last_seen(&self) -> Option<(GpuRef, Pci)> {
        let lane = self.driver.lane(self.index).ok()?;
        let (gpu, place) = (lane.progress().gpu()?, lane.progress().place()?);
        let same = self
            .pin
            .get()
            .is_none_or(|pin| gpu.uuid.as_ref() == Some(pin));
        same.then_some((gpu, place))
    }

    pub(crate) fn start<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Device<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<Ticket<Result<T, Error>>, Error> {
        self.submit(work, |outcome| outcome)
    }

    fn submit<T: Send + 'static, U: Send + 'static>(
        &self,
        work: impl FnOnce(&Device<'_>) -> Result<T, Error> + Send + 'static,
        finish: impl FnOnce(Result<T, Error>) -> U + Send + 'static,
    ) -> Result<Ticket<U>, Error> {
        let lane = self.lane()?;
        let options = self.driver.options();
        let limits = options.limits();
        let root = options.root.clone();
        let gate = self.driver.gate();
        let pass = gate.enter(lane.progress(), self.driver.patience())?;
        let (index, pin) = (self.index, Arc::clone(&self.pin));
        lane.submit(BETWEEN, limits.read, move |memory, progress, abandoned| {
            let batch = || {
                let (library, generation) = pass.library()?;
                let mut context = Context {
                    library,
                    root: &root,
                    limits,
                    gpu: progress.gpu(),
                    progress,
                    abandoned,
                };
                let (handle, uuid) = at_index(&context, memory, generation, index)?;
                let gpu = GpuRef {
                    index,
                    uuid: Some(Arc::clone(&uuid)),
                };
                progress.set_gpu(gpu.clone());
                context.gpu = Some(gpu);
                let pinned = pin.get_or_init(|| Arc::clone(&uuid));
                if *pinned != uuid {
                    return Err(Error::Moved {
                        expected: GpuRef {
                            index,
                            uuid: Some(Arc::clone(pinned)),
                        },
                        found: uuid.to_string(),
                    });
                }
                work(&Device {
                    context: &context,
                    handle,
                    uuid,
                })
            };
            finish(batch())
        })
    }
}

/// Does the same on each of the GPUs at once, each on its thread, and waits for all.
pub(crate) fn on_each<T: Send + 'static>(
    gpus: &[Gpu],
    work: impl Fn(&Device<'_>) -> Result<T, Error> + Send + Sync + 'static,
) -> Vec<Result<T, Error>> {
    let work = Arc::new(work);
    let started: Vec<_> = gpus
        .iter()
        .map(|gpu| {
            let work = Arc::clone(&work);
            gpu.start(move |device| work(device))
        })
        .collect();
    started
        .into_iter()
        .map(|ticket| ticket.and_then(Ticket::wait).and_then(|answer| answer))
        .collect()
}
