//! A driver that may come late, go, and come back.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::driver::{Driver, Options};
use crate::error::Error;
use crate::lane::lock;

/// First and longest pause between two attempts to open a driver that is not there.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Keeps a driver open: opens it when it is first there, and again after it was gone (unloaded, or replaced by another
/// version). All users share one [`Driver`], which stays the same through all of that.
#[derive(Debug)]
pub struct Session {
    driver: Driver,
    pauses: (Duration, Duration),
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Why there is no driver.
    last: Option<Failure>,
    /// Whether the driver is to stay shut.
    suspended: bool,
}

#[derive(Debug)]
struct Failure {
    error: Error,
    pause: Duration,
    next: Instant,
}

impl Session {
    /// A session that is not open yet. It opens at the first use.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn new(options: &Options) -> Result<Self, Error> {
        Self::with_pauses(options, PAUSES.0, PAUSES.1)
    }

    /// With other pauses between attempts: each is twice the one before, from `first` to `longest`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn with_pauses(
        options: &Options,
        first: Duration,
        longest: Duration,
    ) -> Result<Self, Error> {
        Ok(Self {
            driver: Driver::detached(options)?,
            pauses: (first, longest),
            state: Mutex::default(),
        })
    }

    /// The driver, open. When it is gone this opens it again; while the pause after a failed attempt lasts, the error of
    /// that attempt comes back at once.
    ///
    /// # Errors
    /// Why there is no driver now: [`Error::is_driver_gone`], or [`Error::Hung`].
    pub fn driver(&self) -> Result<Driver, Error> {
        self.open(false)
    }

    /// As [`driver`](Self::driver), forgetting failed attempts and their pauses: for who has reason to think that the driver
    /// comes now.
    ///
    /// # Errors
    /// As [`driver`](Self::driver).
    pub fn attempt(&self) -> Result<Driver, Error> {
        self.open(true)
    }

    /// Shuts the driver, so that this process holds no GPU, and keeps it shut until [`resume`](Self::resume): a MIG mode
    /// change and a GPU reset by another process need GPUs that nobody holds. Event watches go on afterwards.
    ///
    /// # Errors
    /// [`Error::Hung`] when a running call does not come back. The driver is then still open, and not suspended.
    pub fn suspend(&self) -> Result<(), Error> {
        let mut state = lock(&self.state);
        self.driver.close()?;
        state.suspended = true;
        Ok(())
    }

    /// Ends what [`suspend`](Self::suspend) began: the next use opens the driver.
    pub fn resume(&self) {
        *lock(&self.state) = State::default();
    }

    fn open(&self, at_once: bool) -> Result<Driver, Error> {
        let mut state = lock(&self.state);
        if state.suspended {
            return Err(Error::Closed);
        }
        if !self.driver.is_gone() {
            state.last = None;
            return Ok(self.driver.clone());
        }
        if at_once {
            state.last = None;
        }
        if let Some(failure) = &state.last
            && Instant::now() < failure.next
        {
            return Err(failure.error.clone());
        }
        match self.driver.reopen() {
            Ok(()) => {
                state.last = None;
                Ok(self.driver.clone())
            }
            Err(error) => {
                let pause = match &state.last {
                    Some(failure) => (failure.pause * 2).min(self.pauses.1),
                    None => self.pauses.0,
                };
                state.last = Some(Failure {
                    error: error.clone(),
                    pause,
                    next: Instant::now() + pause,
                });
                Err(error)
            }
        }
    }

    /// Where the node's file system is.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.driver.root()
    }

    /// How long until [`driver`](Self::driver) will make its next attempt; zero when it would now, or is open.
    #[must_use]
    pub fn next_attempt(&self) -> Duration {
        let state = lock(&self.state);
        state.last.as_ref().map_or(Duration::ZERO, |failure| {
            failure.next.saturating_duration_since(Instant::now())
        })
    }

    /// Waits up to `limit` for the driver. Meant for threads that can do nothing else without one.
    ///
    /// # Errors
    /// The last attempt's, when the limit passed.
    pub fn wait(&self, limit: Duration) -> Result<Driver, Error> {
        let deadline = Instant::now() + limit;
        loop {
            let error = match self.driver() {
                Ok(driver) => return Ok(driver),
                Err(error) => error,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(error);
            }
            let pause = match self.next_attempt() {
                // Suspended: nobody says when that ends.
                Duration::ZERO => self.pauses.0,
                pause => pause,
            };
            std::thread::sleep(pause.min(left));
        }
    }
}
