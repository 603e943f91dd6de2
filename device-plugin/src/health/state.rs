//! What is wrong now: folds what is observed, one thing after the other.
//!
//! Pure: no clock, no driver. The caller observes the [`Inventory`] first and after each of its changes, passes the driver's
//! events on, and asks the GPUs in [`Health::to_look_at`] how they are, at the latest when [`Health::due`] says. Shown to the
//! kubelet should be only what holds after the looks that are due: a GPU that is new, or back, counts as healthy until then.
//!
//! State lives as long as the process. What the hardware shows is found again after a restart (the driver's recommended
//! recovery action, row remapping, error counters); an XID that left no trace there is not, as in NVIDIA's plugin.

use std::collections::BTreeMap;
use std::time::Instant;

use nvml::{EventKind, GpuRef};

use super::cause::Cause;
use super::early::Early;
use super::fault::Fault;
use super::notice::{Notice, Subject};
use super::one::One;
use super::place::hits;
use super::policy::Policy;
use super::readings::Readings;
use super::rule::{Rule, Until};
use super::unknown::Unknown;
use crate::hardware::{Driver, Inventory};
use crate::resources::Device;

/// What was observed.
#[derive(Clone, Debug)]
pub enum Observation<'a> {
    /// The node's GPUs, as they are now.
    Inventory(&'a Inventory),
    /// An event of the driver.
    Event {
        /// On which GPU.
        gpu: &'a GpuRef,
        /// GPU instance and compute instance, when the driver names both; otherwise it concerns the whole GPU.
        instance: Option<(u32, u32)>,
        /// What happened.
        kind: &'a EventKind,
    },
    /// A GPU was asked how it is.
    Looked {
        /// UUID of the GPU.
        gpu: &'a str,
        /// When it was asked: what happened since is not in the answer.
        asked: Instant,
        /// What it answered; `None` when it did not.
        readings: Option<Readings>,
    },
    /// A GPU was reset, known from who did it. Other resets are found in the readings.
    Reset {
        /// UUID of the GPU.
        gpu: &'a str,
    },
}

/// Whether a device can be given to pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It can.
    Healthy,
    /// It cannot, for at least one reason.
    Unhealthy(Vec<Reason>),
}

impl Verdict {
    /// Whether it can.
    pub fn is_healthy(&self) -> bool {
        *self == Self::Healthy
    }
}

/// Why a device is unhealthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// What happened.
    pub cause: Cause,
    /// What ends it.
    pub until: Until,
}

/// A fault that there is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// What it is on.
    pub subject: Subject,
    /// What it is.
    pub cause: Cause,
    /// What ends it.
    pub until: Until,
    /// How often it happened.
    pub count: u64,
    /// Since when.
    pub since: Instant,
}

/// See the module's words.
#[derive(Clone, Debug)]
pub struct Health {
    policy: Policy,
    /// The driver's fault.
    driver: Option<Fault>,
    /// By UUID.
    gpus: BTreeMap<String, One>,
    /// What GPUs that are gone would have if they came back.
    gone: BTreeMap<String, Vec<Fault>>,
    /// Events of GPUs that are not known yet.
    early: Early,
    unknown: Unknown,
}

impl Health {
    /// Nothing is known yet.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            driver: None,
            gpus: BTreeMap::new(),
            gone: BTreeMap::new(),
            early: Early::default(),
            unknown: Unknown::default(),
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Another policy holds from now on, for what is wrong already too.
    pub fn set_policy(&mut self, policy: Policy, now: Instant) -> Vec<Notice> {
        let mut notices = Vec::new();
        if policy != self.policy {
            self.policy = policy;
            for gpu in self.gpus.values_mut() {
                gpu.policy_changed(&self.policy, now, &mut notices);
            }
            self.unknown.policy_changed(&self.policy, &mut notices);
        }
        notices
    }

    /// Takes in what was observed, and says what changed.
    pub fn observe(&mut self, observation: Observation<'_>, now: Instant) -> Vec<Notice> {
        let mut notices = Vec::new();
        match observation {
            Observation::Inventory(inventory) => self.inventory(inventory, now, &mut notices),
            // Whatever they told of, and of which GPU: what is still to be seen is looked for.
            Observation::Event {
                kind: EventKind::Dropped(_),
                ..
            } => {
                for gpu in self.gpus.values_mut() {
                    gpu.look_soon(now);
                }
            }
            Observation::Event {
                gpu,
                instance,
                kind,
            } => match meant(&mut self.gpus, gpu) {
                Some(one) => one.event(instance, kind, &self.policy, now, &mut notices),
                None => self.early.keep(gpu, instance, kind),
            },
            Observation::Looked {
                gpu,
                asked,
                readings,
            } => {
                if let Some(gpu) = self.gpus.get_mut(gpu) {
                    gpu.looked(asked, readings, &self.policy, now, &mut notices);
                }
            }
            Observation::Reset { gpu } => {
                if let Some(gpu) = self.gpus.get_mut(gpu) {
                    gpu.was_reset(now);
                }
            }
        }
        notices
    }

    fn inventory(&mut self, inventory: &Inventory, now: Instant, notices: &mut Vec<Notice>) {
        let there = |uuid: &str| inventory.gpu(uuid).is_some();
        for (uuid, gpu) in self.gpus.extract_if(.., |uuid, _| !there(uuid)) {
            let faults = gpu.left(notices);
            if !faults.is_empty() {
                self.gone.insert(uuid, faults);
            }
        }
        for known in inventory.gpus() {
            let (uuid, index) = (&known.gpu.uuid, known.gpu.index);
            let gpu = self.gpus.entry(uuid.clone()).or_insert_with(|| {
                let faults = self.gone.remove(uuid).unwrap_or_default();
                One::back(uuid, index, faults, now, notices)
            });
            gpu.seen(known, &self.policy, now, notices);
        }
        let (gpus, policy) = (&mut self.gpus, &self.policy);
        self.early.retain(|event| match meant(gpus, &event.gpu) {
            Some(one) => {
                one.event(event.instance, &event.kind, policy, now, notices);
                false
            }
            None => true,
        });
        let policy = &self.policy;
        self.unknown.observe(inventory, policy, now, notices);
        self.driver(inventory.driver(), now, notices);
    }

    fn driver(&mut self, driver: &Driver, now: Instant, notices: &mut Vec<Notice>) {
        match (driver, &self.driver) {
            (Driver::Gone { reason }, None) => {
                let Rule::Unhealthy(until) = self.policy.rule(Cause::Driver) else {
                    return;
                };
                let mut fault = Fault::new(Cause::Driver, None, until, now);
                fault.detail = Some(reason.clone());
                let text = format!("{}: {}: {reason}", Subject::Driver, fault.cause);
                notices.push(Notice::new(Subject::Driver, &fault, false, text));
                self.driver = Some(fault);
            }
            (Driver::Present { .. }, Some(fault)) => {
                notices.push(Notice::over(Subject::Driver, fault, "over"));
                self.driver = None;
            }
            _ => {}
        }
    }

    /// Whether a device can be given to pods. A GPU that was never observed is.
    pub fn verdict(&self, device: &Device) -> Verdict {
        let gpu = self.gpus.get(&device.gpu_uuid);
        let own = gpu.into_iter().flat_map(|gpu| &gpu.faults);
        let own = own.filter(|fault| hits(fault.instance, device));
        let reasons: Vec<Reason> = self
            .driver
            .iter()
            .chain(own)
            .map(|fault| Reason {
                cause: fault.cause,
                until: fault.until.clone(),
            })
            .collect();
        if reasons.is_empty() {
            Verdict::Healthy
        } else {
            Verdict::Unhealthy(reasons)
        }
    }

    /// Whether a GPU did not answer when it was last asked how it is. It may be well, or not: nobody knows.
    pub fn is_silent(&self, gpu: &str) -> bool {
        self.gpus.get(gpu).is_some_and(One::is_silent)
    }

    /// When the next GPU is to be asked how it is; `None` while nothing is due.
    pub fn due(&self) -> Option<Instant> {
        self.looks().map(|(_, when)| when).min()
    }

    /// UUIDs of the GPUs that are to be asked now. Each answer, and that there is none, is an [`Observation::Looked`].
    pub fn to_look_at(&self, now: Instant) -> Vec<String> {
        let due = self.looks().filter(|(_, when)| *when <= now);
        due.map(|(uuid, _)| uuid.to_owned()).collect()
    }

    fn looks(&self) -> impl Iterator<Item = (&str, Instant)> {
        let gpus = self.gpus.iter().filter(|_| self.driver.is_none());
        gpus.filter_map(|(uuid, gpu)| gpu.due(&self.policy).map(|when| (uuid.as_str(), when)))
    }

    /// All faults that there are now: the driver's, those of GPUs that are not known, and those of the others by index.
    pub fn standing(&self) -> Vec<Standing> {
        let standing = |subject, fault: &Fault| Standing {
            subject,
            cause: fault.cause,
            until: fault.until.clone(),
            count: fault.count,
            since: fault.since,
        };
        let mut gpus: Vec<&One> = self.gpus.values().collect();
        gpus.sort_by_key(|gpu| gpu.index());
        let driver = self.driver.iter();
        let own = gpus
            .into_iter()
            .flat_map(|gpu| gpu.faults.iter().map(move |fault| (gpu, fault)));
        driver
            .map(|fault| standing(Subject::Driver, fault))
            .chain(
                self.unknown
                    .faults()
                    .map(|(gpu, fault)| standing(gpu, fault)),
            )
            .chain(own.map(|(gpu, fault)| standing(gpu.subject(fault.instance), fault)))
            .collect()
    }

    /// How many GPUs are known.
    pub(super) fn gpus(&self) -> usize {
        self.gpus.len()
    }
}

/// The GPU that an event is of. Before the driver has told a GPU's UUID, there is only its place in the driver's list.
fn meant<'a>(gpus: &'a mut BTreeMap<String, One>, gpu: &GpuRef) -> Option<&'a mut One> {
    match &gpu.uuid {
        Some(uuid) => gpus.get_mut(&**uuid),
        None => gpus.values_mut().find(|one| one.is_at(gpu.index)),
    }
}
