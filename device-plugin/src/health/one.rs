//! The faults of one GPU and its instances.

use std::collections::BTreeSet;
use std::time::Instant;

use nvml::EventKind;

use super::cause::Cause;
use super::fault::{Fault, Look};
use super::notice::{Notice, Subject};
use super::policy::Policy;
use super::readings::Readings;
use super::relapse::Relapses;
use super::rule::{Rule, Until};
use super::schedule::Schedule;
use crate::hardware;

type Instance = (u32, u32);

/// See the module's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct One {
    uuid: String,
    index: u32,
    pub faults: Vec<Fault>,
    /// Instances by GPU-instance and compute-instance id.
    instances: BTreeSet<Instance>,
    /// Whether it answered when it was last heard of.
    answers: bool,
    watched: bool,
    /// Since when it must have been reset if it answers.
    reset: Option<Instant>,
    readings: Option<Readings>,
    looks: Schedule,
    relapses: Relapses,
}

impl One {
    fn new(uuid: &str, index: u32, now: Instant) -> Self {
        Self {
            uuid: uuid.to_owned(),
            index,
            faults: Vec::new(),
            instances: BTreeSet::new(),
            answers: true,
            watched: true,
            reset: None,
            readings: None,
            looks: Schedule::new(now),
            relapses: Relapses::default(),
        }
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Whether it answers at this place of the driver's list. One that does not may have had the place before another.
    pub(super) fn is_at(&self, index: u32) -> bool {
        self.answers && self.index == index
    }

    /// Whether the last look had no answer.
    pub(super) fn is_silent(&self) -> bool {
        self.looks.is_silent()
    }

    pub(super) fn subject(&self, instance: Option<Instance>) -> Subject {
        Subject::Gpu {
            uuid: self.uuid.clone(),
            index: self.index,
            instance,
        }
    }

    /// It is, or is not, what the inventory says.
    pub(super) fn seen(
        &mut self,
        known: &hardware::KnownGpu,
        policy: &Policy,
        now: Instant,
        notices: &mut Vec<Notice>,
    ) {
        self.index = known.gpu.index;
        match &known.trouble {
            Some(trouble) => {
                // A look that is under way may still tell of better times.
                self.answers = false;
                let detail = Some(trouble.text.clone());
                let (cause, detail) = match trouble.cause {
                    // Told once for all GPUs.
                    hardware::Cause::DriverGone => return,
                    // The cause says it all.
                    hardware::Cause::Reshaping => (Cause::Reshaping, None),
                    // Only a reset, or a place on the bus taken anew, brings it back.
                    hardware::Cause::Lost | hardware::Cause::Absent => {
                        self.reset = Some(now);
                        (Cause::Lost, detail)
                    }
                    _ => (Cause::Lost, detail),
                };
                let already = |fault: &Fault| fault.cause == cause && fault.over.is_none();
                if !self.faults.iter().any(already) {
                    self.raise(cause, None, detail, policy, now, notices);
                }
            }
            None => {
                if !self.answers {
                    self.answers = true;
                    self.look_soon(now);
                }
                let devices = known.gpu.mig.iter();
                let instances = devices
                    .map(|device| (device.gpu_instance, device.compute_instance))
                    .collect();
                if instances != self.instances {
                    self.instances = instances;
                    self.look_soon(now);
                    self.reshaped(notices);
                }
            }
        }
    }

    /// Its instances are others now. Trouble that would have ended by itself ends with its instance; what needs a reset is in
    /// the hardware, which may be under any new instance.
    fn reshaped(&mut self, notices: &mut Vec<Notice>) {
        let mut faults = std::mem::take(&mut self.faults);
        let gone = |fault: &mut Fault| {
            let instance = fault.instance;
            instance.is_some_and(|instance| !self.instances.contains(&instance))
        };
        let orphans: Vec<Fault> = faults.extract_if(.., gone).collect();
        self.faults = faults;
        for mut fault in orphans {
            notices.push(self.over(&fault, "over, its instance is gone"));
            if matches!(fault.until, Until::Recheck { .. }) {
                continue;
            }
            fault.instance = None;
            let same = |other: &&mut Fault| other.cause == fault.cause && other.instance.is_none();
            match self.faults.iter_mut().find(same) {
                Some(other) => other.count = other.count.saturating_add(fault.count),
                None => {
                    notices.push(self.begun(&fault));
                    self.faults.push(fault);
                }
            }
        }
    }

    /// The driver reports something about it.
    pub(super) fn event(
        &mut self,
        instance: Option<Instance>,
        kind: &EventKind,
        policy: &Policy,
        now: Instant,
        notices: &mut Vec<Notice>,
    ) {
        match kind {
            EventKind::Watching => self.watched = true,
            EventKind::Failed(error) if !error.is_driver_gone() => self.watched = false,
            // Nothing to look at: errors that were corrected, other parts' business.
            EventKind::SingleBitEcc
            | EventKind::MigConfigChange
            | EventKind::Failed(_)
            | EventKind::Other { .. } => return,
            _ => {}
        }
        self.look_soon(now);
        if let Some(cause) = Cause::of(kind) {
            let detail = match kind {
                EventKind::Failed(error) => Some(error.to_string()),
                _ => None,
            };
            self.raise(cause, instance, detail, policy, now, notices);
        }
    }

    /// It was reset, as somebody knows who did it.
    pub(super) fn was_reset(&mut self, now: Instant) {
        self.reset = Some(now);
        self.look_soon(now);
    }

    /// It was asked how it is.
    pub(super) fn looked(
        &mut self,
        asked: Instant,
        readings: Option<Readings>,
        policy: &Policy,
        now: Instant,
        notices: &mut Vec<Notice>,
    ) {
        self.looks.looked(asked, now);
        if !self.answers {
            return;
        }
        self.looks.answered(readings.is_some());
        // Without an answer nothing is known; that it does not answer is the inventory's business.
        let Some(readings) = readings else {
            return;
        };
        let earlier = self.readings.take();
        self.readings = Some(readings.clone().counting_on(earlier.as_ref()));
        let known = self.reset.take_if(|known| *known <= asked).is_some();
        // A GPU that still wants to be reset was not.
        let known = known && !readings.wants_reset();
        let seen = earlier.as_ref();
        let reset = known || seen.is_some_and(|earlier| readings.reset_since(earlier));
        // First what is wrong now, so that nothing is called healthy in between.
        for cause in Cause::CONDITIONS {
            if readings.shows(cause) == Some(true) && !self.has(cause) {
                let detail = match (cause, readings.recovery) {
                    (Cause::RecoveryAction, Some(Some(action))) => Some(action.to_string()),
                    _ => None,
                };
                self.raise(cause, None, detail, policy, now, notices);
            }
        }
        let before = earlier
            .filter(|_| !reset)
            .and_then(|earlier| earlier.uncorrected)
            .unwrap_or(0);
        if readings.uncorrected.is_some_and(|now| now > before) && !self.has(Cause::UncorrectedEcc)
        {
            self.raise(Cause::UncorrectedEcc, None, None, policy, now, notices);
        }
        let look = Look {
            readings: &readings,
            reset,
            watched: self.watched,
            asked,
            now,
        };
        let mut faults = std::mem::take(&mut self.faults);
        let over: Vec<Fault> = faults.extract_if(.., |fault| fault.ends(&look)).collect();
        self.faults = faults;
        for fault in over {
            notices.push(self.over(&fault, "over"));
            self.relapses.remember(&fault, now);
        }
    }

    fn has(&self, cause: Cause) -> bool {
        self.faults.iter().any(|fault| fault.cause == cause)
    }

    /// The policy is another one now.
    pub(super) fn policy_changed(
        &mut self,
        policy: &Policy,
        now: Instant,
        notices: &mut Vec<Notice>,
    ) {
        for mut fault in std::mem::take(&mut self.faults) {
            match policy.rule(fault.cause) {
                Rule::Never => notices.push(self.over(&fault, "of no meaning any more")),
                Rule::Unhealthy(until) => {
                    fault.until = until;
                    self.faults.push(fault);
                }
            }
        }
        self.look_soon(now);
    }

    /// It is no longer among the node's GPUs. What only ends when it is replaced is still wrong with it.
    pub(super) fn left(self, notices: &mut Vec<Notice>) -> Vec<Fault> {
        notices.extend(
            self.faults
                .iter()
                .map(|fault| self.over(fault, "over, the GPU is gone")),
        );
        let faults = self.faults.into_iter();
        faults
            .filter(|fault| fault.until == Until::Replaced)
            .collect()
    }

    /// A GPU that is back, with what [`One::left`] returned.
    pub(super) fn back(
        uuid: &str,
        index: u32,
        faults: Vec<Fault>,
        now: Instant,
        notices: &mut Vec<Notice>,
    ) -> Self {
        let one = Self {
            faults,
            ..Self::new(uuid, index, now)
        };
        notices.extend(one.faults.iter().map(|fault| one.begun(fault)));
        one
    }

    fn raise(
        &mut self,
        cause: Cause,
        instance: Option<Instance>,
        detail: Option<String>,
        policy: &Policy,
        now: Instant,
        notices: &mut Vec<Notice>,
    ) {
        let Rule::Unhealthy(until) = policy.rule(cause) else {
            return;
        };
        let same = |fault: &&mut Fault| fault.cause == cause && fault.instance == instance;
        if let Some(fault) = self.faults.iter_mut().find(same) {
            fault.again(now);
            return;
        }
        let until = self.relapses.lengthened(cause, instance, until, now);
        let mut fault = Fault::new(cause, instance, until, now);
        fault.detail = detail;
        notices.push(self.begun(&fault));
        self.faults.push(fault);
    }

    pub(super) fn look_soon(&mut self, now: Instant) {
        self.looks.want(now);
    }

    /// When to look at it; `None` while that would be in vain or for nothing.
    pub(super) fn due(&self, policy: &Policy) -> Option<Instant> {
        if !self.answers {
            return None;
        }
        self.looks
            .due(&self.faults, policy.interval, policy.polls())
    }

    fn begun(&self, fault: &Fault) -> Notice {
        Notice::begun(self.subject(fault.instance), fault)
    }

    fn over(&self, fault: &Fault, how: &str) -> Notice {
        Notice::over(self.subject(fault.instance), fault, how)
    }
}
