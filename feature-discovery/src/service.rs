//! The loop: look, write, wait for an event or for the interval.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use nvml::{Driver, EventKind, EventMask, EventStop, Session};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::duration::Interval;
use crate::{
    Config, Discovery, Error, Written, discover, discover_without_driver, timestamp, write,
};

/// What changes labels.
const EVENTS: EventMask = EventMask(EventMask::MIG_CONFIG.0 | EventMask::UNAVAILABLE.0);
/// A change of the MIG layout comes as a burst of events; one look after the last of them is enough.
const SETTLE: Duration = Duration::from_millis(200);
/// However long a burst goes on.
const SETTLE_AT_MOST: Duration = Duration::from_secs(2);
/// How long the end waits for a look that is under way.
const STOP_AT_MOST: Duration = Duration::from_secs(15);
/// When a look failed and no better time is known.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The events thread only passes on; the loop renders labels.
const EVENTS_STACK: usize = 128 * 1024;
const LOOP_STACK: usize = 512 * 1024;

enum Wake {
    Event,
    Stop,
}

/// Labels the node at `root` once.
///
/// # Errors
/// The driver is not there and [`Config::fail_on_init_error`] is set, or the labels cannot be written.
pub fn once(root: &Path, config: &Config, session: &Session) -> Result<Written, Error> {
    Service::new(root, config).look(session.driver())
}

/// Labels the node at `root` until `shutdown` is cancelled.
///
/// # Errors
/// The driver is not there at the start and [`Config::fail_on_init_error`] is set. Later failures are logged and tried
/// again.
pub async fn run(
    root: PathBuf,
    config: Config,
    session: Arc<Session>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let (wake, wakes) = mpsc::channel();
    let stop = StopOnDrop(wake.clone());
    let (ended, end) = oneshot::channel();
    std::thread::Builder::new()
        .name("feature-discovery".to_owned())
        .stack_size(LOOP_STACK)
        .spawn(move || {
            // Nobody listens when the caller is over already.
            let _ = ended.send(repeat(&root, &config, &session, &wake, &wakes));
        })
        .map_err(Error::Thread)?;
    let mut end = std::pin::pin!(end);
    tokio::select! {
        result = end.as_mut() => return result.unwrap_or(Err(Error::Died)),
        () = shutdown.cancelled() => {}
    }
    drop(stop);
    // It may be in a driver call, which is bounded, but need not be waited for: nothing is half done.
    match tokio::time::timeout(STOP_AT_MOST, end).await {
        Ok(result) => result.unwrap_or(Err(Error::Died)),
        Err(_) => Ok(()),
    }
}

struct StopOnDrop(Sender<Wake>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.send(Wake::Stop);
    }
}

fn repeat(
    root: &Path,
    config: &Config,
    session: &Arc<Session>,
    wake: &Sender<Wake>,
    wakes: &Receiver<Wake>,
) -> Result<(), Error> {
    let mut service = Service::new(root, config);
    let mut pause = RETRY.0;
    let look = wake.clone();
    // The loop may have ended.
    let told = move || look.send(Wake::Event).unwrap_or(());
    let _give_way = session
        .give_way(told)
        .inspect_err(|error| tracing::warn!("MIG changes may find the GPUs in use: {error}"));
    loop {
        // Asked once for all of this: a driver that comes or goes meanwhile must be missed by none of it.
        let driver = session.driver();
        let has_driver = driver.is_ok();
        if let Ok(driver) = &driver {
            service.watch_events(driver, wake);
        }
        let wait = match service.look(driver) {
            Ok(written) => {
                service.told.failure = None;
                if written == Written::Replaced {
                    tracing::info!("labels written");
                }
                pause = RETRY.0;
                match config.interval {
                    // Labelled as a node without a driver: it may come at any time.
                    _ if !has_driver => Some(match session.next_attempt() {
                        Duration::ZERO => RETRY.0,
                        next_attempt => next_attempt,
                    }),
                    Interval::Every(interval) => Some(interval),
                    Interval::Infinite => None,
                }
            }
            // Let go of while the layout is changed: what the file says holds until that is over, and then somebody wakes.
            Err(Error::Driver(nvml::Error::Closed)) => None,
            // At the start only: whoever starts us knows better than we do whether to wait.
            Err(error @ Error::Driver(_)) if config.fail_on_init_error && !service.seen_driver => {
                return Err(error);
            }
            Err(error) => {
                if service.told.is_news(&error.to_string()) {
                    tracing::warn!("{error}; the labels stay as they are");
                }
                let wait = session.next_attempt().max(pause);
                pause = (pause * 2).min(RETRY.1);
                Some(wait)
            }
        };
        if !next(wakes, wait) {
            return Ok(());
        }
    }
}

struct Service<'a> {
    root: &'a Path,
    config: &'a Config,
    timestamp: Option<u64>,
    seen_driver: bool,
    events: Option<EventStop>,
    told: Told,
}

impl<'a> Service<'a> {
    fn new(root: &'a Path, config: &'a Config) -> Self {
        Self {
            root,
            config,
            // Once per start, so that the file is the same until something changes.
            timestamp: config.timestamp.then(timestamp),
            seen_driver: false,
            events: None,
            told: Told::default(),
        }
    }

    fn look(&mut self, driver: Result<Driver, nvml::Error>) -> Result<Written, Error> {
        let discovery = match driver {
            Ok(driver) => {
                let discovery = discover(self.root, &driver, self.config, self.timestamp)?;
                self.seen_driver = true;
                discovery
            }
            Err(error)
                if self.config.fail_on_init_error
                    || self.seen_driver
                    || matches!(error, nvml::Error::Closed) =>
            {
                return Err(error.into());
            }
            Err(error) => {
                tracing::debug!(%error, "no driver: labelling as a node without GPUs");
                discover_without_driver(self.root, self.config, self.timestamp)
            }
        };
        self.report(&discovery);
        write(self.root, self.config, &discovery.labels)
    }

    fn report(&mut self, discovery: &Discovery) {
        let mut said: HashSet<String> = HashSet::new();
        said.extend(discovery.labels.warnings.iter().map(ToString::to_string));
        said.extend(
            discovery
                .failed
                .iter()
                .map(|error| format!("left out of the labels: {error}")),
        );
        said.extend(
            discovery
                .vgpu
                .iter()
                .map(|reason| format!("no vGPU labels: {reason}")),
        );
        for line in self.told.news(said) {
            tracing::warn!("{line}");
        }
    }

    /// Starts the event thread with the first driver. Its stream goes on through resets and driver restarts.
    fn watch_events(&mut self, driver: &Driver, wake: &Sender<Wake>) {
        if self.events.is_some() {
            return;
        }
        match driver.watch(EVENTS) {
            Ok(stream) => {
                let stop = stream.stopper();
                let wake = wake.clone();
                let thread = std::thread::Builder::new()
                    .name("discovery-events".to_owned())
                    .stack_size(EVENTS_STACK);
                let started = thread.spawn(move || {
                    for event in stream {
                        let matters = !matches!(event.kind, EventKind::Failed(_));
                        if matters && wake.send(Wake::Event).is_err() {
                            return;
                        }
                    }
                });
                match started {
                    Ok(_) => self.events = Some(stop),
                    // The next look tries again; until then changes show an interval late.
                    Err(error) => tracing::debug!(%error, "cannot watch for driver events"),
                }
            }
            Err(error) => tracing::debug!(%error, "cannot watch for driver events"),
        }
    }
}

/// What is in the log already: what lasts is said once, however often it is looked at.
#[derive(Debug, Default)]
struct Told {
    /// What the last look had to say about the labels.
    labels: HashSet<String>,
    /// Why it failed nevertheless.
    failure: Option<String>,
}

impl Told {
    /// Which of these lines about the labels are to be said.
    fn news(&mut self, lines: HashSet<String>) -> Vec<String> {
        let news = lines.difference(&self.labels).cloned().collect();
        self.labels = lines;
        news
    }

    /// Whether this failure is to be said.
    fn is_news(&mut self, failure: &str) -> bool {
        let is_news = self.failure.as_deref() != Some(failure);
        self.failure = Some(failure.to_owned());
        is_news
    }
}

impl Drop for Service<'_> {
    fn drop(&mut self) {
        if let Some(events) = &self.events {
            events.stop();
        }
    }
}

/// Waits for the interval, or for a burst of events to end; `false` when told to stop.
fn next(wakes: &Receiver<Wake>, wait: Option<Duration>) -> bool {
    let first = match wait {
        Some(wait) => wakes.recv_timeout(wait),
        None => wakes.recv().map_err(|_| RecvTimeoutError::Disconnected),
    };
    match first {
        Ok(Wake::Event) => {}
        Err(RecvTimeoutError::Timeout) => return true,
        Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
    }
    let until = Instant::now() + SETTLE_AT_MOST;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match wakes.recv_timeout(SETTLE.min(left)) {
            Ok(Wake::Event) if !left.is_zero() => {}
            Ok(Wake::Event) | Err(RecvTimeoutError::Timeout) => return true,
            Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_said_once() {
        let mut told = Told::default();
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        assert_eq!(told.news(lines(&["left out"])), ["left out"]);
        assert!(told.is_news("disk full"));
        // The next look finds the same about the labels and cannot write them for the same reason.
        assert_eq!(told.news(lines(&["left out"])), Vec::<String>::new());
        assert!(!told.is_news("disk full"));
        assert!(told.is_news("read-only"));
        assert_eq!(told.news(lines(&["left out", "late"])), ["late"]);
        assert_eq!(told.news(lines(&[])), Vec::<String>::new());
        assert_eq!(told.news(lines(&["left out"])), ["left out"]);
    }
}
