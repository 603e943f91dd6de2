//! A driver that may come late, go, and come back.

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
    last: Mutex<Option<Failure>>,
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
            last: Mutex::new(None),
        })
    }

    /// The driver, open. When it is gone this opens it again; while the pause after a failed attempt lasts, the error of
    /// that attempt comes back at once.
    ///
    /// # Errors
    /// Why there is no driver now: [`Error::is_driver_gone`], or [`Error::Hung`].
    pub fn driver(&self) -> Result<Driver, Error> {
        let mut last = lock(&self.last);
        if !self.driver.is_gone() {
            *last = None;
            return Ok(self.driver.clone());
        }
        if let Some(failure) = &*last
            && Instant::now() < failure.next
        {
            return Err(failure.error.clone());
        }
        match self.driver.reopen() {
            Ok(()) => {
                *last = None;
                Ok(self.driver.clone())
            }
            Err(error) => {
                let pause = match &*last {
                    Some(failure) => (failure.pause * 2).min(self.pauses.1),
                    None => self.pauses.0,
                };
                *last = Some(Failure {
                    error: error.clone(),
                    pause,
                    next: Instant::now() + pause,
                });
                Err(error)
            }
        }
    }

    /// How long until [`driver`](Self::driver) will make its next attempt; zero when it would now, or is open.
    #[must_use]
    pub fn next_attempt(&self) -> Duration {
        lock(&self.last).as_ref().map_or(Duration::ZERO, |failure| {
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
            std::thread::sleep(self.next_attempt().min(left));
        }
    }
}
