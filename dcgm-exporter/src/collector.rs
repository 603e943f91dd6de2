//! Reads all GPUs on its own clock and publishes the page a scrape gets.
//!
//! A collection begins when the interval is over, and at once when the driver reports an event. Values that need two
//! readings get their second one soon after the first. When the driver is gone the page says so and holds no GPU's values;
//! attempts to reach it go on, with the pauses of [`Session`]. While the MIG layout of this node is changed, the session is
//! [suspended](Session::give_way) and the page stays.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use nvml::{Driver, EventStop, Optional as _, Session};
use tokio::sync::watch;

use crate::Error;
use crate::convert;
use crate::events;
use crate::page::{self, Readings};
use crate::pods;
use crate::read::{self, GpuReading, Plan, VersionTexts, Wanted};
use crate::selector::{Ids, NUMBERS_PER_GPU, Selector};
use crate::state::State;
use crate::steady;
use crate::value::Failure;

/// When the second reading follows the first, unless the interval is shorter.
const SECOND_READING: Duration = Duration::from_secs(1);
/// However many events there are, collections are this far apart.
const MIN_PAUSE: Duration = Duration::from_millis(100);

/// Why the collector should look before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// Something happened to a GPU.
    Event,
    /// The exporter ends.
    Stop,
}

/// What a scrape gets; empty before the first collection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub(crate) text: Bytes,
    /// Whether any GPU could be read.
    pub(crate) has_gpus: bool,
}

pub(crate) struct Collector {
    session: Arc<Session>,
    plan: Arc<Plan>,
    selector: Arc<Selector>,
    interval: Duration,
    state: State,
    /// Which pods hold what, when that is wanted.
    pods: Option<watch::Receiver<pods::Known>>,
    wake: Sender<Wake>,
    /// Ends the event thread, once there is one.
    events: Option<EventStop>,
    /// Failures of the last collection, and whether they are in the log already.
    known: Vec<(Failure, bool)>,
    driver_was_up: Option<bool>,
    devices_checked: bool,
}

/// One collection's outcome.
pub(crate) struct Collection {
    pub(crate) readings: Readings,
    half: bool,
    /// The GPUs were let go, so that another process can change them: nothing was read.
    let_go: bool,
}

impl Collector {
    pub(crate) fn new(
        session: Arc<Session>,
        plan: Plan,
        selector: Selector,
        interval: Duration,
        pods: Option<watch::Receiver<pods::Known>>,
        wake: Sender<Wake>,
    ) -> Self {
        Self {
            session,
            plan: Arc::new(plan),
            selector: Arc::new(selector),
            interval,
            state: State::default(),
            pods,
            wake,
            events: None,
            known: Vec::new(),
            driver_was_up: None,
            devices_checked: false,
        }
    }

    /// Collects and publishes until told to stop.
    ///
    /// # Errors
    /// The first collection shows that a named device does not exist.
    pub(crate) fn run(
        mut self,
        wakes: &Receiver<Wake>,
        pages: &watch::Sender<Page>,
    ) -> Result<(), Error> {
        let mut length = 0;
        loop {
            let begun = Instant::now();
            let collection = self.collect(begun)?;
            // While the GPUs are changed, the page of before goes on to say what they were, and when.
            if !collection.let_go || length == 0 {
                // A page is about as long as the one before.
                let mut text = String::with_capacity(length + 1024);
                page::render(&self.plan.counters, &collection.readings, &mut text);
                length = text.len();
                let has_gpus = !collection.readings.entities.is_empty();
                pages.send_replace(Page {
                    text: Bytes::from(text),
                    has_gpus,
                });
            }
            let pause = if collection.let_go {
                // Its end wakes.
                self.interval
            } else if !collection.readings.driver_up {
                self.session.next_attempt().min(self.interval)
            } else if collection.half {
                self.interval.min(SECOND_READING)
            } else {
                self.interval
            };
            if !wait(wakes, begun, pause.max(MIN_PAUSE)) {
                return Ok(());
            }
        }
    }

    pub(crate) fn collect(&mut self, begun: Instant) -> Result<Collection, Error> {
        let at = SystemTime::now();
        let answer = self.session.driver().and_then(|driver| {
            self.watch_events(&driver);
            self.read(&driver, begun)
        });
        let mut readings = Readings {
            driver_up: false,
            entities: Vec::new(),
            failures: Vec::new(),
            pods_known: None,
            at,
            took: Duration::ZERO,
        };
        let mut half = false;
        let let_go = matches!(answer, Err(nvml::Error::Closed));
        if let_go {
            return Ok(Collection {
                readings,
                half,
                let_go,
            });
        }
        match answer {
            Ok(gpus) => {
                self.note_driver(Ok(()));
                readings.driver_up = true;
                self.check_devices(&gpus)?;
                for (index, gpu) in (0..).zip(gpus) {
                    match gpu {
                        Ok(gpu) => {
                            half |= gpu.half;
                            readings.failures.extend(gpu.failures);
                            readings.entities.extend(gpu.gpu);
                            let selected = (0..)
                                .zip(gpu.instances)
                                .filter(|(place, _)| self.is_selected(index, *place));
                            readings
                                .entities
                                .extend(selected.map(|(_, instance)| instance));
                        }
                        Err(error) => {
                            let failure = convert::failure(index, &error);
                            if let Some(uuid) = &failure.uuid {
                                readings.entities.extend(read::of_lost_gpu(
                                    &self.plan,
                                    uuid,
                                    &self.state,
                                    |place| self.is_selected(index, place),
                                ));
                            }
                            readings.failures.push(failure);
                        }
                    }
                }
            }
            Err(error) => self.note_driver(Err(&error)),
        }
        self.note_failures(&readings.failures);
        self.name_holders(&mut readings);
        readings.took = begun.elapsed();
        Ok(Collection {
            readings,
            half,
            let_go,
        })
    }

    fn read(
        &self,
        driver: &Driver,
        now: Instant,
    ) -> Result<Vec<Result<GpuReading, nvml::Error>>, nvml::Error> {
        let versions = driver.versions().optional()?;
        let versions = VersionTexts {
            nvml: versions.as_ref().and_then(|versions| versions.nvml.clone()),
            driver: versions.map(|versions| versions.driver),
        };
        let (plan, selector, state) = (
            Arc::clone(&self.plan),
            Arc::clone(&self.selector),
            self.state.clone(),
        );
        let known: Vec<Failure> = self
            .known
            .iter()
            .map(|(failure, _)| failure.clone())
            .collect();
        let gpus = steady::read(driver, &known, move |device| {
            read::read_gpu(
                device,
                &plan,
                wanted(&selector, device.gpu_ref().index),
                &versions,
                &state,
                now,
            )
        })?;
        // Gone in the middle: what was read before is no page.
        match gpus
            .iter()
            .find_map(|gpu| gpu.as_ref().err().filter(|error| error.is_driver_gone()))
        {
            Some(gone) => Err(gone.clone()),
            None => Ok(gpus),
        }
    }

    /// Starts the event thread. One stream lasts: it goes on through resets and driver restarts.
    fn watch_events(&mut self, driver: &Driver) {
        if self.events.is_some() {
            return;
        }
        match events::start(driver, self.state.clone(), self.wake.clone()) {
            Ok(stop) => self.events = Some(stop),
            // The next collection tries again; until then changes show an interval late.
            Err(error) => tracing::warn!(%error, "cannot watch for driver events"),
        }
    }

    fn is_selected(&self, gpu: u32, place: u32) -> bool {
        match &*self.selector {
            Selector::Flex => true,
            Selector::Named { instances, .. } => instances
                .as_ref()
                .is_some_and(|ids| ids.contains(gpu * NUMBERS_PER_GPU + place)),
        }
    }

    /// Named devices must exist once: later, they may come and go.
    fn check_devices(&mut self, gpus: &[Result<GpuReading, nvml::Error>]) -> Result<(), Error> {
        if self.devices_checked {
            return Ok(());
        }
        self.devices_checked = true;
        let Selector::Named {
            gpus: named,
            instances,
        } = &*self.selector
        else {
            return Ok(());
        };
        let numbers = |ids: &Option<Ids>| {
            ids.as_ref()
                .map(|ids| ids.named().to_vec())
                .unwrap_or_default()
        };
        if let Some(number) = numbers(named)
            .into_iter()
            .find(|&number| number as usize >= gpus.len())
        {
            return Err(Error::NoSuchGpu {
                number,
                count: gpus.len(),
            });
        }
        let missing = numbers(instances).into_iter().find(|&number| {
            let (gpu, place) = (
                (number / NUMBERS_PER_GPU) as usize,
                (number % NUMBERS_PER_GPU) as usize,
            );
            match gpus.get(gpu) {
                None => true,
                Some(Ok(gpu)) if !gpu.changed => place >= gpu.instances.len(),
                // What cannot be read may well be there.
                Some(_) => false,
            }
        });
        match missing {
            Some(number) => Err(Error::NoSuchInstance {
                number,
                gpu: number / NUMBERS_PER_GPU,
            }),
            None => Ok(()),
        }
    }

    fn name_holders(&self, readings: &mut Readings) {
        let Some(pods) = &self.pods else { return };
        let known = pods.borrow().clone();
        readings.pods_known = known.answers;
        for entity in &mut readings.entities {
            let ids = entity.ids.iter().map(String::as_str);
            if let Some(holder) = known.pods.holder(ids) {
                self.plan.style.push_holder(&mut entity.labels, holder);
            }
        }
    }

    fn note_driver(&mut self, answer: Result<(), &nvml::Error>) {
        let was_up = self.driver_was_up.replace(answer.is_ok());
        match answer {
            Ok(()) if was_up == Some(false) => tracing::info!("the driver is back"),
            Err(error) if was_up != Some(false) => {
                tracing::warn!(%error, "no driver: serving no GPU metrics until it is there");
            }
            _ => {}
        }
    }

    fn note_failures(&mut self, failures: &[Failure]) {
        let known = std::mem::take(&mut self.known);
        for failure in failures {
            let before = known.iter().find(|(known, _)| known == failure);
            // What a change of the layout brings is worth a line when it is still there the next time.
            let logged = match before {
                Some((_, true)) => true,
                None if failure.is_fleeting() => false,
                Some((_, false)) | None => {
                    tracing::warn!(
                        gpu = failure.gpu,
                        call = failure.call,
                        code = failure.code,
                        "a driver call failed: its values are missing"
                    );
                    true
                }
            };
            self.known.push((failure.clone(), logged));
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(events) = &self.events {
            events.stop();
        }
    }
}

fn wanted(selector: &Selector, gpu: u32) -> Wanted {
    match selector {
        Selector::Flex => Wanted::Flex,
        Selector::Named { gpus, instances } => Wanted::Named {
            gpu: gpus.as_ref().is_some_and(|ids| ids.contains(gpu)),
            instances: instances.is_some(),
        },
    }
}

/// Waits until `pause` after `begun`, or for an event; `false` when told to stop.
fn wait(wakes: &Receiver<Wake>, begun: Instant, pause: Duration) -> bool {
    let mut until = begun + pause;
    loop {
        match wakes.recv_timeout(until.saturating_duration_since(Instant::now())) {
            // Further events until then are part of the same look.
            Ok(Wake::Event) => until = until.min(begun + MIN_PAUSE),
            Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => return true,
        }
    }
}
