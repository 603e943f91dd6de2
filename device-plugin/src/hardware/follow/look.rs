//! Looking at GPUs: which, and what becomes of the answers.

use std::time::Instant;

use nvml::Error;

use super::{Follower, Message};
use crate::hardware::describe;
use crate::hardware::inventory::{Cause, KnownGpu, Observation};
use crate::hardware::proc;

impl Follower {
    /// Looks for what no event tells of.
    pub(super) fn search(&mut self, now: Instant) {
        self.watch_events();
        let Some(open) = &mut self.open else { return };
        for index in open.looks.awaited() {
            if let Err(error) = open.driver.gpu(index).check() {
                open.looks.hangs(index);
                let answer = Err(error);
                self.inventory.observe(Observation::Gpu { index, answer });
            }
        }
        for index in self.blind.keys() {
            open.looks.want_now(*index, now);
        }
        for known in self.inventory.gpus() {
            let index = known.gpu.index;
            if known.trouble.is_some() {
                open.looks.want_now(index, now);
            }
            if !known.mig_capable {
                continue;
            }
            // Compared with what the last look saw: between two ticks instances can come, be seen, and go. Where that is
            // hidden, only the driver can tell.
            let shown = known
                .gpu
                .minor
                .and_then(|minor| proc::instances(&self.root, minor));
            let mig = known.gpu.mig.iter();
            let seen = mig.map(|device| (device.gpu_instance, device.compute_instance));
            if shown != Some(seen.collect()) {
                open.looks.want_now(index, now);
            }
        }
        for (index, _) in self.inventory.unknown() {
            open.looks.want_now(index, now);
        }
    }

    /// Asks the GPUs that are due.
    pub(super) fn look(&mut self, now: Instant) {
        let Some(open) = &mut self.open else { return };
        let mut failures = Vec::new();
        for index in open.looks.due(now) {
            let generation = open.generation;
            let messages = self.messages.clone();
            let begun = open.driver.gpu(index).spawn(describe, move |answer| {
                // Nobody listens when the thread has ended.
                let _ = messages.send(Message::Answer {
                    generation,
                    index,
                    answer,
                });
            });
            if let Err(error) = begun {
                failures.push((generation, index, error));
            }
        }
        for (generation, index, error) in failures {
            self.answered(generation, index, Err(error));
        }
    }

    pub(super) fn answered(
        &mut self,
        generation: u64,
        index: u32,
        answer: Result<Option<KnownGpu>, Error>,
    ) {
        let Some(open) = self
            .open
            .as_mut()
            .filter(|open| open.generation == generation)
        else {
            return;
        };
        let uuid = answer.as_ref().ok().and_then(Option::as_ref);
        let uuid = uuid.map(|known| known.gpu.uuid.clone());
        if let (Some(uuid), Some(watch)) = (&uuid, &self.watch) {
            let was_lost = self
                .inventory
                .gpu(uuid)
                .and_then(|known| known.trouble.as_ref())
                .is_some_and(|trouble| trouble.cause != Cause::DriverGone);
            if was_lost {
                watch.retry(index);
            }
        }
        open.looks.answered(index, uuid);
        if let Err(error) = &answer {
            if open.driver.is_gone() {
                return self.gone(error.clone());
            }
            let is_beyond = matches!(error, Error::NoSuchGpu { .. });
            if is_beyond && open.driver.count().is_ok_and(|count| count <= index) {
                // The board that was there has another place now, which says nothing about it.
                open.moved = true;
                return;
            }
        }
        self.inventory.observe(Observation::Gpu { index, answer });
    }
}
