//! What the state machine of a daemon is told and says, and how patient it is.

use std::collections::BTreeSet;
use std::time::Duration;

use super::plan::Daemon;
use super::status::Served;

/// How patient one is with a daemon.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How often it is asked whether it still answers: a process that hangs cannot be watched.
    pub probe: Duration,
    /// When an answer failed, the next question comes sooner.
    pub probe_again: Duration,
    /// First and longest pause before a start that follows a failure.
    pub pauses: (Duration, Duration),
    /// How long an answer may take. The program answers in milliseconds; a loaded node gets patience.
    pub answer: Duration,
    /// How long it may take from its start to its first answer.
    pub start: Duration,
    /// How long it may take to end when asked to: it waits for its servers.
    pub end: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            probe: Duration::from_secs(15),
            probe_again: Duration::from_secs(5),
            pauses: (Duration::from_secs(1), Duration::from_secs(60)),
            answer: Duration::from_secs(5),
            start: Duration::from_secs(10),
            end: Duration::from_secs(10),
        }
    }
}

/// Time since some fixed moment.
pub(super) type Now = Duration;

/// The one thing to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Make folders and put these GPUs into exclusive mode.
    Prepare(BTreeSet<String>),
    /// Start the program on these GPUs and wait until it answers.
    Start(BTreeSet<String>),
    /// Set these limits.
    Limit(Daemon),
    /// Tell the device plugin what is served.
    Publish(Served),
    /// Tell the device plugin that nothing is served.
    Withdraw,
    /// Ask for the default thread percentage.
    Probe,
    /// Ask whether there are clients.
    AskClients,
    /// Ask the program to end, and end it if it does not.
    Quit,
    /// End what is left of the program and its servers.
    Clear,
    /// Put these GPUs back into the default mode.
    Release(BTreeSet<String>),
    /// Nothing until then, or until something is reported.
    Wait(Option<Now>),
}

/// What came of a step, or happened by itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Seen {
    /// What shall be served: `None` ends the daemon.
    Wanted(Option<Daemon>),
    /// These GPUs can be served; why the others cannot.
    Prepared(BTreeSet<String>, Option<String>),
    /// The program answers.
    Started,
    /// The program could not be started, or ended.
    Ended(String),
    /// Limits are set.
    Limited(Daemon),
    /// The default thread percentage.
    Answered(f64),
    /// No answer.
    Silent(String),
    /// The device plugin knows.
    Published(Served),
    /// The device plugin could not be told.
    Unpublished(String),
    /// The device plugin knows.
    Withdrawn,
    /// Whether there are clients.
    Clients(bool),
    /// Nothing of the program is left.
    Cleared,
    /// These GPUs are back in the default mode; others that should be do not answer.
    Released(BTreeSet<String>),
    /// Whether GPUs that are not in use must be let go.
    Paused(bool),
}
