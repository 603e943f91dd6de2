//! What the controller does next, as a pure function of what it saw: no clock, no network, no driver.
//!
//! The runner feeds [`State::step`] one [`Input`] after the other and carries out the [`Action`]s it answers with. One job
//! (a check or a change) is in flight at a time; label values that come and go meanwhile count only as the last of them.
//!
//! ```text
//!            label set              plan: differs               done
//!   idle ───────────────▶ checking ───────────────▶ changing ───────▶ idle, success
//!    ▲                      │ plan: nothing to do ─────────────────▶ idle, success
//!    │ retry due, label     │ plan: impossible, in use, no such config
//!    └──────────────────────┴──────────────────────────┴───────────▶ idle, failed, retry armed
//! ```

use std::time::Duration;

use super::label::Progress;

/// What the runner saw.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// The node's labels, now. An absent node has none.
    Node {
        /// `nvidia.com/mig.config`.
        config: Option<String>,
        /// `nvidia.com/mig.config.state`.
        shown: Option<String>,
    },
    /// The check asked for is done.
    Checked(Verdict),
    /// The change asked for is done, with a line that says what was changed, or why not.
    Applied(Result<String, Failure>),
    /// The retry armed as `turn` is due.
    RetryDue {
        /// Which one: a later action may have made it pointless.
        turn: u64,
    },
    /// The config file changed, or the driver came back: what was decided before may no longer hold.
    Reconsider,
    /// The GPUs are watched from now on: what was found or made before may have been undone meanwhile, unseen.
    Watched,
}

/// What a check, which touches nothing, found.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The GPUs are cut as wanted.
    InPlace,
    /// They are not, and can be; with a line that says what would change.
    Differs(String),
    /// They cannot be.
    Refused(Failure),
}

/// Why a configuration is not in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Whether only the driver is missing: then there is nothing wrong with what is wanted.
    pub driver_missing: bool,
    /// One line: the GPU, what is wrong, what to do.
    pub message: String,
    /// The processes in the way: once they are gone, another try makes sense at once.
    pub holders: Vec<u32>,
}

/// What the runner shall do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Compare the GPUs with the configuration of this name; answer with [`Input::Checked`].
    Check(String),
    /// Make the GPUs what the configuration of this name says; answer with [`Input::Applied`].
    Apply(String),
    /// Let `nvidia.com/mig.config.state` have this value.
    Show(Progress),
    /// Record an Event on the node.
    Say(Note),
    /// Come back with [`Input::RetryDue`] after this time, or once these processes are gone; in place of any retry armed
    /// before.
    RetryIn {
        /// To be handed back.
        turn: u64,
        /// How long to wait at most.
        delay: Duration,
        /// The processes to wait for; with none, only the time counts.
        holders: Vec<u32>,
    },
}

/// What an Event says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether it needs a look.
    pub warning: bool,
    /// The Event's reason.
    pub reason: &'static str,
    /// The Event's text.
    pub text: String,
}

/// Reasons of the Events the controller records.
pub mod reason {
    /// A change begins.
    pub const STARTED: &str = "MigConfigStarted";
    /// The GPUs are cut as wanted.
    pub const APPLIED: &str = "MigConfigApplied";
    /// They are not, and why.
    pub const FAILED: &str = "MigConfigFailed";
    /// The driver is not there (yet).
    pub const WAITING: &str = "MigConfigWaiting";
}

/// How the pauses between tries grow: doubled after each failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// After the first failure.
    pub first: Duration,
    /// Never longer than this.
    pub longest: Duration,
}

impl Retry {
    fn delay(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }
}

/// The pauses for each kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// When the GPUs cannot be cut as wanted. A blocking process is often on its way out; a node that cannot be cut should
    /// cost next to nothing.
    pub failed: Retry,
    /// While there is no driver: it comes within minutes of the node, and a look costs little.
    pub waiting: Retry,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            failed: Retry {
                first: Duration::from_secs(5),
                longest: Duration::from_secs(300),
            },
            waiting: Retry {
                first: Duration::from_secs(1),
                longest: Duration::from_secs(30),
            },
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
enum Work {
    #[default]
    Idle,
    Checking(String),
    Changing(String),
}

/// What the controller knows.
#[derive(Clone, Debug)]
pub struct State {
    retries: Retries,
    /// The label's value; `None` before the first look, and when the label is not there or empty.
    wanted: Option<String>,
    /// Whether the node was seen at all.
    seen: bool,
    work: Work,
    /// Something changed since the job in flight began.
    again: bool,
    /// What the state label shall say, once something was decided about `wanted`.
    progress: Option<Progress>,
    /// Whether it is worth an Event that the configuration is in place.
    announce: bool,
    failures: u32,
    turn: u64,
    /// The current absence of the driver was already announced.
    driver_missed: bool,
}

impl State {
    /// Nothing seen, nothing to do.
    pub fn new(retries: Retries) -> Self {
        Self {
            retries,
            wanted: None,
            seen: false,
            work: Work::Idle,
            again: false,
            progress: None,
            announce: false,
            failures: 0,
            turn: 0,
            driver_missed: false,
        }
    }

    /// Whether a job is in flight.
    pub fn is_busy(&self) -> bool {
        self.work != Work::Idle
    }

    /// Whether a change is in flight.
    pub fn is_changing(&self) -> bool {
        matches!(self.work, Work::Changing(_))
    }

    /// Takes in what was seen and says what to do, in this order.
    pub fn step(&mut self, input: Input) -> Vec<Action> {
        match input {
            Input::Node { config, shown } => {
                self.node(config.filter(|name| !name.is_empty()), shown.as_deref())
            }
            Input::Checked(verdict) => self.checked(verdict),
            Input::Applied(result) => self.applied(result),
            Input::RetryDue { turn } if turn == self.turn => self.check_when_idle(),
            Input::RetryDue { .. } => Vec::new(),
            Input::Reconsider => {
                if self.is_busy() {
                    self.again = true;
                    return Vec::new();
                }
                self.forget_failures();
                self.check_when_idle()
            }
            Input::Watched => match (&self.work, self.progress) {
                (Work::Idle, Some(Progress::Success)) => self.check_when_idle(),
                (Work::Checking(_), _) => {
                    self.again = true;
                    Vec::new()
                }
                // What failed has its retry armed; starting over now would be one without a pause.
                (Work::Idle | Work::Changing(_), _) => Vec::new(),
            },
        }
    }

    fn node(&mut self, config: Option<String>, shown: Option<&str>) -> Vec<Action> {
        let first = !std::mem::replace(&mut self.seen, true);
        if config == self.wanted {
            // The object was made anew, or somebody removed the label. One that says something else is left alone: two
            // writers correcting each other would never end.
            return match self.progress {
                Some(progress) if shown.is_none() && self.wanted.is_some() => {
                    vec![Action::Show(progress)]
                }
                _ => Vec::new(),
            };
        }
        self.wanted = config;
        self.progress = None;
        // After a restart nothing is news but what the label does not say yet.
        self.announce = !(first && shown == Some(Progress::Success.as_str()));
        self.forget_failures();
        self.check_when_idle()
    }

    fn checked(&mut self, verdict: Verdict) -> Vec<Action> {
        let Work::Checking(name) = std::mem::take(&mut self.work) else {
            return Vec::new();
        };
        if self.is_outdated(&name) {
            return self.check_when_idle();
        }
        match verdict {
            Verdict::InPlace => {
                let text = self
                    .announce
                    .then(|| format!("{name}: already in place, nothing changed"));
                self.settled(text)
            }
            Verdict::Differs(changes) => {
                self.driver_missed = false;
                self.progress = Some(Progress::Pending);
                self.work = Work::Changing(name.clone());
                vec![
                    Action::Show(Progress::Pending),
                    say(false, reason::STARTED, format!("{name}: {changes}")),
                    Action::Apply(name),
                ]
            }
            Verdict::Refused(failure) => self.failed(&name, failure),
        }
    }

    fn applied(&mut self, result: Result<String, Failure>) -> Vec<Action> {
        let Work::Changing(name) = std::mem::take(&mut self.work) else {
            return Vec::new();
        };
        if self.wanted.is_none() {
            self.again = false;
            self.progress = None;
            // Nobody wants anything any more, but `pending` must not stay for ever: the label says how the change ended.
            return match result {
                Ok(changes) => vec![applied(&name, &changes), Action::Show(Progress::Success)],
                Err(failure) => vec![failed(&name, &failure), Action::Show(Progress::Failed)],
            };
        }
        if self.is_outdated(&name) {
            // The label speaks of what is wanted now, so only the Event tells how the old change ended.
            let event = match result {
                Ok(changes) => {
                    // Should it turn out to be what is wanted after all, it is not news a second time.
                    self.announce = self.wanted.as_ref() != Some(&name);
                    applied(&name, &changes)
                }
                Err(failure) => failed(&name, &failure),
            };
            let mut actions = vec![event];
            actions.extend(self.check_when_idle());
            return actions;
        }
        match result {
            Ok(changes) => self.settled(Some(format!("{name}: {changes}"))),
            Err(failure) => self.failed(&name, failure),
        }
    }

    fn settled(&mut self, text: Option<String>) -> Vec<Action> {
        self.forget_failures();
        self.driver_missed = false;
        self.announce = false;
        self.progress = Some(Progress::Success);
        let event = text.map(|text| say(false, reason::APPLIED, text));
        event
            .into_iter()
            .chain([Action::Show(Progress::Success)])
            .collect()
    }

    fn failed(&mut self, name: &str, failure: Failure) -> Vec<Action> {
        self.announce = true;
        let waited = std::mem::replace(&mut self.driver_missed, failure.driver_missing);
        if waited != failure.driver_missing {
            self.failures = 0;
        }
        let (event, progress, retry) = if failure.driver_missing {
            let event = say(
                true,
                reason::WAITING,
                format!("{name}: {}", failure.message),
            );
            (
                (!waited).then_some(event),
                Progress::Pending,
                self.retries.waiting,
            )
        } else {
            (
                Some(failed(name, &failure)),
                Progress::Failed,
                self.retries.failed,
            )
        };
        self.progress = Some(progress);
        self.failures = self.failures.saturating_add(1);
        self.turn += 1;
        let retry = Action::RetryIn {
            turn: self.turn,
            delay: retry.delay(self.failures),
            holders: failure.holders,
        };
        event
            .into_iter()
            .chain([Action::Show(progress), retry])
            .collect()
    }

    /// A retry armed for what is no longer so must not fire.
    fn forget_failures(&mut self) {
        self.failures = 0;
        self.turn += 1;
    }

    fn is_outdated(&mut self, name: &str) -> bool {
        std::mem::take(&mut self.again) || self.wanted.as_deref() != Some(name)
    }

    fn check_when_idle(&mut self) -> Vec<Action> {
        match &self.wanted {
            Some(name) if self.work == Work::Idle => {
                self.work = Work::Checking(name.clone());
                vec![Action::Check(name.clone())]
            }
            _ => Vec::new(),
        }
    }
}

fn say(warning: bool, reason: &'static str, text: String) -> Action {
    Action::Say(Note {
        warning,
        reason,
        text,
    })
}

fn applied(name: &str, changes: &str) -> Action {
    say(false, reason::APPLIED, format!("{name}: {changes}"))
}

fn failed(name: &str, failure: &Failure) -> Action {
    say(true, reason::FAILED, format!("{name}: {}", failure.message))
}

#[cfg(test)]
mod tests;
