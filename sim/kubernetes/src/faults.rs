//! Faults for tests: slow answers, error answers, broken watches, lost history, a server that is away for a while.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::error::ApiError;
use crate::store::Store;

/// What a fault does to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Answers after this time.
    Delay(Duration),
    /// Answers with this HTTP status and, when given, `Retry-After` in seconds. The request has no effect.
    Answer(u16, Option<u32>),
    /// Does what was asked, then breaks the connection instead of answering: the client cannot know.
    LoseAnswer,
}

/// A fault and the requests it meets. The default meets every request, without end.
#[derive(Debug, Clone)]
pub struct Fault {
    action: Action,
    method: Option<String>,
    path: Option<String>,
    times: Option<u32>,
}

impl Fault {
    /// A fault that meets every request until it is cleared.
    #[must_use]
    pub fn new(action: Action) -> Self {
        Self {
            action,
            method: None,
            path: None,
            times: None,
        }
    }

    /// Meets only requests with this HTTP method.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.method = Some(method.to_uppercase());
        self
    }

    /// Meets only requests whose path contains `part`.
    #[must_use]
    pub fn path(mut self, part: &str) -> Self {
        self.path = Some(part.to_owned());
        self
    }

    /// Meets only this many requests.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    fn meets(&self, method: &str, path: &str) -> bool {
        self.times != Some(0)
            && self.method.as_ref().is_none_or(|wanted| wanted == method)
            && self.path.as_ref().is_none_or(|part| path.contains(part))
    }
}

/// The handle on the faults of one server.
#[derive(Debug, Clone)]
pub struct Faults {
    store: Arc<Store>,
    rules: Arc<Mutex<Vec<Fault>>>,
    broken: watch::Sender<u64>,
    away: watch::Sender<Option<Duration>>,
}

/// What a request has to go through.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) delay: Duration,
    pub(crate) answer: Option<ApiError>,
    pub(crate) lose_answer: bool,
}

impl Faults {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            rules: Arc::default(),
            broken: watch::Sender::new(0),
            away: watch::Sender::new(None),
        }
    }

    fn rules(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a fault. Several may meet one request: delays add up, and the first other action counts.
    pub fn add(&self, fault: Fault) {
        self.rules().push(fault);
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.rules().clear();
    }

    /// Breaks the connections of all running watches.
    pub fn break_watches(&self) {
        self.broken.send_modify(|epoch| *epoch += 1);
    }

    /// Drops all history: a watch or list from an earlier version is answered with 410.
    pub fn expire_history(&self) {
        self.store.compact();
    }

    /// Closes every connection and the port for this time, as a restarting server does.
    pub fn refuse_connections(&self, time: Duration) {
        self.away.send_replace(Some(time));
    }

    pub(crate) fn breaks(&self) -> watch::Receiver<u64> {
        self.broken.subscribe()
    }

    pub(crate) fn absences(&self) -> watch::Receiver<Option<Duration>> {
        self.away.subscribe()
    }

    /// Looks up, and uses up, the faults that meet a request.
    pub(crate) fn judge(&self, method: &str, path: &str) -> Verdict {
        let mut verdict = Verdict::default();
        let mut rules = self.rules();
        for fault in rules.iter_mut().filter(|fault| fault.meets(method, path)) {
            match fault.action {
                Action::Delay(time) => verdict.delay += time,
                _ if verdict.answer.is_some() || verdict.lose_answer => continue,
                Action::Answer(code, retry_after) => {
                    verdict.answer = Some(ApiError::injected(code, retry_after));
                }
                Action::LoseAnswer => verdict.lose_answer = true,
            }
            if let Some(times) = &mut fault.times {
                *times -= 1;
            }
        }
        rules.retain(|fault| fault.times != Some(0));
        verdict
    }
}
