//! What to do about one resource's daemon: a state machine without clock, processes or driver.
//!
//! [`Machine::next`] says the one step to take now; who took it reports with [`Machine::saw`]. Rules:
//! - A daemon that dies or no longer answers is started again, after a pause that doubles up to a minute.
//! - Limits that change are set in the running daemon. GPUs that it must no longer serve end it, since which GPUs a daemon sees
//!   is fixed when it starts. GPUs that it should serve as well wait until it has no clients: nobody's work is killed for them.
//! - The resource is ready only while the daemon answers with the limits that are wanted.
//! - GPUs are put into exclusive mode before the daemon starts and back into the default when no daemon wants them.
//! - While the MIG manager is at work, a daemon without clients ends, since its servers hold the GPUs; one with clients stays.

use std::collections::BTreeSet;

use super::plan::Daemon;
use super::status::Served;
use super::step::{Now, Pace, Seen, Step};

/// So many questions in a row without an answer end a daemon. Its clients compute on without it, so it is not ended lightly.
pub(super) const MISSES: u32 = 4;

/// See the module's words.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    pace: Pace,
    wanted: Option<Daemon>,
    running: Option<Running>,
    /// Something of a program may be left.
    dirty: bool,
    published: Option<Served>,
    exclusive: BTreeSet<String>,
    usable: BTreeSet<String>,
    /// Those that did not go back into the default mode, and when to try again.
    stuck: BTreeSet<String>,
    release_at: Now,
    paused: bool,
    failures: u32,
    not_before: Now,
    trouble: Option<String>,
}

#[derive(Clone, Debug)]
struct Running {
    gpus: BTreeSet<String>,
    since: Now,
    limits: Option<Daemon>,
    misses: u32,
    look_at: Now,
    grow_at: Now,
    idle: bool,
}

impl Machine {
    /// A daemon that does not run. `exclusive` are the GPUs that an earlier process put into exclusive mode and `dirty` says
    /// whether it may have left a program behind.
    pub(super) fn new(pace: Pace, exclusive: BTreeSet<String>, dirty: bool) -> Self {
        Self {
            pace,
            exclusive,
            dirty,
            ..Self::default()
        }
    }

    /// Why the resource is not ready, when something failed.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Whether there shall be a daemon.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.is_some()
    }

    /// Whether everything that is wanted is served.
    pub(super) fn is_ready(&self) -> bool {
        let all = self.wanted.as_ref().map(Served::from);
        self.published.is_some() && self.published == all
    }

    /// Whether nothing is wanted and nothing is left that could be done.
    pub(super) fn is_over(&self) -> bool {
        self.wanted.is_none()
            && self.running.is_none()
            && self.published.is_none()
            && !self.dirty
            && self.exclusive.is_subset(&self.stuck)
    }

    /// What to do now.
    pub(super) fn next(&self, now: Now) -> Step {
        let Some(running) = &self.running else {
            return self.next_stopped(now);
        };
        let Some(wanted) = &self.wanted else {
            return self.withdraw_and(Step::Quit);
        };
        let all = uuids(wanted);
        if !running.gpus.is_subset(&all) || running.idle {
            return self.withdraw_and(Step::Quit);
        }
        if running.misses >= MISSES {
            return self.withdraw_and(Step::Quit);
        }
        if self.paused {
            // Nobody new is let in, or it would never be without clients.
            let ask = running.grow_at;
            return self.withdraw_and(if now < ask {
                Step::Wait(Some(ask))
            } else {
                Step::AskClients
            });
        }
        if running.misses > 0 {
            if self.published.is_some() {
                return Step::Withdraw;
            }
            if now < running.look_at {
                return Step::Wait(Some(running.look_at));
            }
        }
        let limits = only(wanted, &running.gpus);
        if running.limits.as_ref() != Some(&limits) {
            return Step::Limit(limits);
        }
        if now >= running.look_at {
            return Step::Probe;
        }
        let served = Served::from(&limits);
        if self.published.as_ref() != Some(&served) {
            return Step::Publish(served);
        }
        if let Some(release) = self.release(now) {
            return release;
        }
        let missing: BTreeSet<String> = all.difference(&running.gpus).cloned().collect();
        if missing.is_empty() {
            return self.wait(Some(running.look_at));
        }
        if now < running.grow_at {
            return self.wait(Some(running.look_at.min(running.grow_at)));
        }
        if missing.is_disjoint(&self.usable) {
            Step::Prepare(missing)
        } else {
            Step::AskClients
        }
    }

    fn next_stopped(&self, now: Now) -> Step {
        if self.published.is_some() {
            return Step::Withdraw;
        }
        if self.dirty {
            return Step::Clear;
        }
        if let Some(release) = self.release(now) {
            return release;
        }
        let wanted = self.wanted.as_ref().map(uuids).unwrap_or_default();
        if wanted.is_empty() || self.paused {
            return self.wait(None);
        }
        if now < self.not_before {
            return self.wait(Some(self.not_before));
        }
        let usable: BTreeSet<String> = self.usable.intersection(&wanted).cloned().collect();
        if usable.is_empty() {
            Step::Prepare(wanted)
        } else {
            Step::Start(usable)
        }
    }

    /// GPUs in exclusive mode that no daemon wants.
    fn unwanted(&self) -> BTreeSet<String> {
        let wanted = self.wanted.as_ref().map(uuids).unwrap_or_default();
        self.exclusive.difference(&wanted).cloned().collect()
    }

    /// To put them back, unless that failed a moment ago.
    fn release(&self, now: Now) -> Option<Step> {
        let unwanted = self.unwanted();
        let is_due = !unwanted.is_subset(&self.stuck) || now >= self.release_at;
        (!unwanted.is_empty() && is_due).then_some(Step::Release(unwanted))
    }

    /// To wait until then, or until GPUs can be tried to be put back again.
    fn wait(&self, until: Option<Now>) -> Step {
        let release = (!self.unwanted().is_empty()).then_some(self.release_at);
        Step::Wait(until.into_iter().chain(release).min())
    }

    fn withdraw_and(&self, then: Step) -> Step {
        match self.published {
            Some(_) => Step::Withdraw,
            None => then,
        }
    }

    /// Takes a report.
    pub(super) fn saw(&mut self, seen: Seen, now: Now) {
        match seen {
            Seen::Wanted(wanted) => {
                // Other GPUs are another try.
                if self.wanted.as_ref().map(uuids) != wanted.as_ref().map(uuids) {
                    self.failures = 0;
                    self.not_before = Now::ZERO;
                    match &mut self.running {
                        Some(running) => running.grow_at = now,
                        None => self.usable = BTreeSet::new(),
                    }
                }
                self.wanted = wanted;
            }
            Seen::Prepared(usable, trouble) => self.prepared(usable, trouble, now),
            Seen::Started => {
                let gpus = std::mem::take(&mut self.usable);
                self.dirty = true;
                self.running = Some(Running {
                    gpus,
                    since: now,
                    limits: None,
                    misses: 0,
                    look_at: now + self.pace.probe,
                    grow_at: now + self.pace.probe,
                    idle: false,
                });
            }
            Seen::Ended(reason) => self.ended(reason, now),
            Seen::Cleared => self.dirty = false,
            Seen::Published(served) => {
                self.published = Some(served);
                self.trouble = None;
            }
            Seen::Withdrawn => self.published = None,
            Seen::Released(gpus) => {
                self.exclusive.retain(|gpu| !gpus.contains(gpu));
                self.stuck = self.unwanted();
                self.release_at = now + self.pace.pauses.1;
            }
            Seen::Paused(paused) => {
                self.paused = paused;
                if let Some(running) = &mut self.running {
                    running.grow_at = now;
                    // What was asked before is not known any more.
                    running.idle = false;
                }
            }
            Seen::Unpublished(reason) | Seen::Silent(reason) => {
                self.trouble = Some(reason);
                if let Some(running) = &mut self.running {
                    running.misses += 1;
                    running.look_at = now + self.pace.probe_again;
                }
            }
            Seen::Limited(limits) => {
                if let Some(running) = &mut self.running {
                    running.limits = Some(limits);
                    // What was set is read back before anybody is told.
                    running.look_at = now;
                }
            }
            Seen::Answered(percentage) => self.answered(percentage, now),
            Seen::Clients(any) => {
                if let Some(running) = &mut self.running {
                    running.idle = !any;
                    running.grow_at = now
                        + if self.paused {
                            self.pace.probe_again
                        } else {
                            self.pace.probe
                        };
                }
            }
        }
    }

    fn prepared(&mut self, usable: BTreeSet<String>, trouble: Option<String>, now: Now) {
        self.exclusive.extend(usable.iter().cloned());
        if let Some(running) = &mut self.running {
            running.grow_at = if usable.is_empty() {
                now + self.pace.probe
            } else {
                now
            };
        } else if usable.is_empty() {
            self.pause(now);
        }
        self.usable = usable;
        // A failure is over once something is served, not at the next step that succeeds.
        if trouble.is_some() {
            self.trouble = trouble;
        }
    }

    fn answered(&mut self, percentage: f64, now: Now) {
        let Some(running) = &mut self.running else {
            return;
        };
        running.misses = 0;
        running.look_at = now + self.pace.probe;
        let wanted = running.limits.as_ref().map(Daemon::thread_percentage);
        // Somebody else set another: set ours again, but not faster than one looks.
        if wanted.is_some_and(|wanted| (percentage - f64::from(wanted)).abs() >= 1.0) {
            running.misses = 1;
            running.limits = None;
            running.look_at = now + self.pace.probe_again;
            self.trouble = Some(format!(
                "its default thread percentage is {percentage}: does something else control it?"
            ));
        }
    }

    fn ended(&mut self, reason: String, now: Now) {
        let wanted = self.wanted.as_ref().map(uuids);
        if let Some(running) = self.running.take() {
            if now.saturating_sub(running.since) >= self.pace.pauses.1 {
                self.failures = 0;
            }
            // Ended because that was asked for.
            if running.idle || wanted.is_none_or(|wanted| !running.gpus.is_subset(&wanted)) {
                self.dirty = true;
                self.usable = BTreeSet::new();
                return;
            }
        }
        self.dirty = true;
        self.usable = BTreeSet::new();
        self.trouble = Some(reason);
        self.pause(now);
    }

    fn pause(&mut self, now: Now) {
        let doubled = self
            .pace
            .pauses
            .0
            .saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.not_before = now + doubled.min(self.pace.pauses.1);
    }
}

fn uuids(daemon: &Daemon) -> BTreeSet<String> {
    daemon.uuids().map(str::to_owned).collect()
}

/// The part of a daemon that is about these GPUs.
fn only(daemon: &Daemon, gpus: &BTreeSet<String>) -> Daemon {
    let mut daemon = daemon.clone();
    daemon.gpus.retain(|gpu| gpus.contains(&gpu.uuid));
    daemon
}

#[cfg(test)]
mod tests;
