//! The open driver and its GPUs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::context::{Context, Limits};
use crate::device::Device;
use crate::error::{Error, GpuRef};
use crate::gate::{Alone, Gate};
use crate::handle::{Gpu, on_each};
use crate::identity::Versions;
use crate::lane::{LOADING_STACK, Lane, STACK, Ticket, lock};
use crate::library::{Library, symbol};

/// How to reach the driver.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the node's file system is: the library, `/proc` and `/sys` are looked up under it.
    pub root: PathBuf,
    /// The library's own path, when it is not to be searched for.
    pub library: Option<PathBuf>,
    /// How long one call that reads may take before its GPU counts as hung.
    pub call_timeout: Duration,
    /// How long one call that changes a GPU may take, and opening and shutting down NVML. A MIG mode change takes
    /// seconds on idle hardware; so does opening per GPU, where nothing else keeps the driver initialised.
    pub write_timeout: Duration,
    /// How long the reset of one GPU may take.
    pub reset_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            root: PathBuf::from("/"),
            library: None,
            call_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(60),
            reset_timeout: Duration::from_secs(120),
        }
    }
}

impl Options {
    /// The usual times, with the node at `root`.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            ..Self::default()
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            read: self.call_timeout,
            write: self.write_timeout,
        }
    }
}

/// The driver library, open. Clones share it.
///
/// Dropping the last clone shuts NVML down.
#[derive(Clone)]
pub struct Driver {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    gate: Arc<Gate>,
    /// Calls that are about no single GPU.
    system: Lane,
    /// One lane per NVML index, started when first used.
    lanes: Mutex<BTreeMap<u32, Arc<Lane>>>,
}

impl Driver {
    /// Finds, loads and initialises the driver library.
    ///
    /// # Errors
    /// [`Error::LibraryNotFound`], [`Error::Load`], the code of `nvmlInit_v2`, or [`Error::Hung`]. Wherever
    /// [`Error::is_driver_gone`] holds, trying again later may help; [`Session`](crate::Session) does that.
    pub fn open(options: &Options) -> Result<Self, Error> {
        let driver = Self::detached(options)?;
        driver.reopen()?;
        Ok(driver)
    }

    /// A driver that is not open yet.
    pub(crate) fn detached(options: &Options) -> Result<Self, Error> {
        Ok(Self {
            inner: Arc::new(Inner {
                options: options.clone(),
                gate: Arc::new(Gate::closed()),
                system: Lane::start("nvml".into(), None, LOADING_STACK)?,
                lanes: Mutex::new(BTreeMap::new()),
            }),
        })
    }

    /// Opens the library again: after a driver restart, or after [`close`](Self::close). Loads the file anew, so a
    /// replaced driver is picked up. Waits, within bounds, until running jobs are through; so it must not be called from
    /// inside one.
    ///
    /// # Errors
    /// As [`open`](Self::open). After a failure every use of the driver fails with the same error until a later
    /// `reopen` succeeds.
    pub fn reopen(&self) -> Result<(), Error> {
        let alone = self.alone(self.inner.options.call_timeout)?;
        self.shut(&alone)?;
        self.start(&alone)
    }

    /// Shuts NVML down and unloads the library, as soon as running jobs are through. Uses fail with [`Error::Closed`]
    /// from then on.
    ///
    /// # Errors
    /// [`Error::Hung`] when a running call does not come back; the library then stays open.
    pub fn close(&self) -> Result<(), Error> {
        let alone = self.alone(self.inner.options.call_timeout)?;
        self.shut(&alone)
    }

    /// Goes alone into the library, once everybody else has left it.
    pub(crate) fn alone(&self, limit: Duration) -> Result<Alone, Error> {
        self.inner.gate.alone(limit, self.patience())
    }

    /// Shuts the library down.
    pub(crate) fn shut(&self, alone: &Alone) -> Result<(), Error> {
        let limit = self.inner.options.write_timeout;
        self.inner.system.check(limit)?;
        let Some(library) = alone.take() else {
            return Ok(());
        };
        let closed = self
            .inner
            .system
            .enqueue("nvmlShutdown", limit, move |_, _, _| drop(library))
            .and_then(Ticket::wait);
        if let Err(error) = &closed {
            alone.put(Err(error.clone()));
        }
        closed
    }

    /// Loads and initialises the library.
    pub(crate) fn start(&self, alone: &Alone) -> Result<(), Error> {
        let options = self.inner.options.clone();
        let limit = options.write_timeout;
        let opened = self
            .inner
            .system
            .submit("dlopen", limit, move |_, progress, abandoned| {
                let library = Arc::new(Library::load(&options.root, options.library.as_deref())?);
                let context = Context {
                    library: &library,
                    root: &options.root,
                    limits: options.limits(),
                    gpu: None,
                    progress,
                    abandoned,
                };
                let symbol = symbol!(library, nvmlInit_v2);
                // SAFETY: takes no arguments; the library was just loaded.
                context.call_within(limit, symbol, |init| unsafe { init() })?;
                library.initialised();
                Ok(library)
            })
            .and_then(Ticket::wait)
            .and_then(|opened| opened);
        alone.put(opened.clone());
        opened.map(|library| {
            tracing::debug!(library = %library.path.display(), "driver library open");
        })
    }

    /// Where the node's file system is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.inner.options.root
    }

    /// The options it was opened with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.inner.gate
    }

    /// How often the library was opened: it changes when the driver restarted, and when a GPU was reset.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.inner.gate.generation()
    }

    /// Whether a call has found the driver gone, or the library is closed. Only [`reopen`](Self::reopen) helps.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.inner.gate.is_gone()
    }

    /// Makes calls that are about no single GPU, on their own thread.
    pub(crate) fn on_system<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Context<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = &self.inner;
        let limits = inner.options.limits();
        let root = inner.options.root.clone();
        let pass = inner.gate.enter(inner.system.progress(), self.patience())?;
        inner
            .system
            .submit(BETWEEN, limits.read, move |_, progress, abandoned| {
                let (library, _) = pass.library()?;
                work(&Context {
                    library,
                    root: &root,
                    limits,
                    gpu: None,
                    progress,
                    abandoned,
                })
            })?
            .wait()?
    }

    /// How long a reset or a restart of the driver may keep others waiting: the library is shut down, and opened again.
    pub(crate) fn patience(&self) -> Duration {
        let options = &self.inner.options;
        options.reset_timeout + options.write_timeout * 2
    }

    /// How many GPUs the driver sees, lost ones included.
    ///
    /// # Errors
    /// The driver is gone, or hangs.
    pub fn count(&self) -> Result<u32, Error> {
        self.on_system(|context| context.get(symbol!(context.library, nvmlDeviceGetCount_v2)))
    }

    /// The versions of the driver, of CUDA and of NVML.
    ///
    /// # Errors
    /// The driver is gone, or hangs.
    pub fn versions(&self) -> Result<Versions, Error> {
        self.on_system(Versions::read)
    }

    /// The GPU at an NVML index. No call is made: whether it is there shows when it is used.
    #[must_use]
    pub fn gpu(&self, index: u32) -> Gpu {
        Gpu::new(self.clone(), index)
    }

    /// All GPUs, by index, lost ones included.
    ///
    /// # Errors
    /// The driver is gone, or hangs.
    pub fn gpus(&self) -> Result<Vec<Gpu>, Error> {
        Ok((0..self.count()?).map(|index| self.gpu(index)).collect())
    }

    /// The GPU with a UUID (`GPU-…`).
    ///
    /// # Errors
    /// [`Error::NoSuchGpu`]; or the driver is gone, or hangs.
    pub fn find(&self, uuid: &str) -> Result<Gpu, Error> {
        // Where it was last, and nobody else: another GPU may hang.
        if let Some(gpu) = self.last_place(uuid) {
            match gpu.run(|device| Ok(device.uuid().to_owned())) {
                Ok(found) if found == uuid => return Ok(gpu),
                Err(error) if error.is_hung() => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        let found = self.for_each_gpu(|device| Ok(device.uuid().to_owned()))?;
        found
            .iter()
            .position(|answer| answer.as_deref() == Ok(uuid))
            .map(|index| self.gpu(index as u32))
            .ok_or_else(|| Error::NoSuchGpu {
                wanted: uuid.to_owned(),
            })
    }

    /// Where a GPU was when it last answered.
    fn last_place(&self, uuid: &str) -> Option<Gpu> {
        let lanes = lock(&self.inner.lanes);
        let seen = |lane: &Arc<Lane>| lane.progress().gpu().and_then(|gpu| gpu.uuid);
        let mut lanes = lanes.iter();
        let place = lanes.find(|(_, lane)| seen(lane).as_deref() == Some(uuid));
        place.map(|(index, _)| self.gpu(*index))
    }

    /// Does the same on every GPU at once, each on its own thread, and waits for all. A GPU that fails or hangs has its
    /// error in its place.
    ///
    /// # Errors
    /// Only when the GPUs cannot even be counted.
    pub fn for_each_gpu<T: Send + 'static>(
        &self,
        work: impl Fn(&Device<'_>) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<Vec<Result<T, Error>>, Error> {
        Ok(on_each(&self.gpus()?, work))
    }

    pub(crate) fn lane(&self, index: u32) -> Result<Arc<Lane>, Error> {
        let mut lanes = lock(&self.inner.lanes);
        if let Some(lane) = lanes.get(&index) {
            return Ok(Arc::clone(lane));
        }
        let gpu = GpuRef { index, uuid: None };
        let lane = Arc::new(Lane::start(format!("nvml-gpu{index}"), Some(gpu), STACK)?);
        lanes.insert(index, Arc::clone(&lane));
        Ok(lane)
    }
}

/// What a thread does while a batch makes no call.
pub(crate) const BETWEEN: &str = "work between driver calls";

impl Drop for Inner {
    /// Shuts down on the system thread, since that may hang; waits for it, within bounds, so that the process is no
    /// client of the driver any more when this returns.
    fn drop(&mut self) {
        let Some(library) = self.gate.forget() else {
            return;
        };
        let limit = self.options.write_timeout;
        let closing = self
            .system
            .enqueue("nvmlShutdown", limit, move |_, _, _| drop(library));
        let inside =
            self.system.is_current() || lock(&self.lanes).values().any(|lane| lane.is_current());
        if let (Ok(ticket), false) = (closing, inside)
            && let Err(error) = ticket.wait()
        {
            tracing::warn!(%error, "the driver library could not be shut down");
        }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("root", &self.inner.options.root)
            .field("generation", &self.generation())
            .finish_non_exhaustive()
    }
}
