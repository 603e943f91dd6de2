//! Events on the part's Node, for people who run `kubectl describe node`.
//!
//! Publishing never waits: events go through a bounded queue to one task, and what does not fit is dropped and counted
//! in the log. What is said again and again becomes one Event object with a growing count, not a flood. Needs the verbs
//! `create` and `patch` on `events` of the API group `events.k8s.io`, nothing else.

mod series;

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event as Object, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc::{Receiver, Sender, error::TrySendError};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{Error, request};
use series::{Book, Step};

/// Events waiting to be written. A part says a few things per change; a longer queue only means an unreachable server.
const QUEUE: usize = 64;

/// How long the task goes on writing after shutdown was asked for.
const DRAIN: Duration = Duration::from_secs(3);

/// Limits of the API (`events.k8s.io/v1` validation): a longer reason or note is refused.
const MAX_REASON: usize = 128;
const MAX_NOTE: usize = 1024;

/// Events about objects without a namespace, such as Nodes, live here.
const NAMESPACE: &str = "default";

/// Whether an event is worth somebody's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// Something went as it should.
    Normal,
    /// Something needs a look.
    Warning,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// Whether it needs a look.
    pub severity: Severity,
    /// Why, in PascalCase, for programs: `MigConfigApplied`.
    pub reason: String,
    /// What was being done, in PascalCase: `ApplyMigConfig`.
    pub action: String,
    /// The same for people. What is longer than the 1024 bytes the API takes is cut.
    pub note: String,
}

/// Where a part says what happens. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: Sender<(ObjectReference, Event)>,
}

impl Recorder {
    /// Starts the task that writes events.
    ///
    /// `controller` is who says it (`lathe-mig-manager`), `instance` which one of them (the pod or the node). The task
    /// ends when `shutdown` is cancelled and the queue is empty, at the latest three seconds later.
    pub fn start(
        client: Client,
        controller: impl Into<String>,
        instance: impl Into<String>,
        shutdown: CancellationToken,
    ) -> (Self, JoinHandle<()>) {
        let (queue, events) = tokio::sync::mpsc::channel(QUEUE);
        let writer = Writer {
            api: Api::namespaced(client, NAMESPACE),
            controller: controller.into(),
            instance: instance.into(),
            book: Book::default(),
        };
        let task = tokio::spawn(writer.run(events, shutdown));
        (Self { queue }, task)
    }

    /// Says that `event` happened to the object `regarding`. Never waits.
    pub fn publish(&self, regarding: &ObjectReference, event: Event) {
        match self.queue.try_send((regarding.clone(), event)) {
            Ok(()) => {}
            Err(TrySendError::Full((_, event))) => {
                tracing::warn!(
                    reason = event.reason,
                    note = event.note,
                    "too many events wait to be written; not recorded"
                );
            }
            Err(TrySendError::Closed((_, event))) => {
                tracing::debug!(
                    reason = event.reason,
                    note = event.note,
                    "shutting down; not recorded"
                );
            }
        }
    }
}

struct Writer {
    api: Api<Object>,
    controller: String,
    instance: String,
    book: Book,
}

impl Writer {
    async fn run(
        mut self,
        events: Receiver<(ObjectReference, Event)>,
        shutdown: CancellationToken,
    ) {
        let too_late = async {
            shutdown.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            () = self.work(events, &shutdown) => {}
            () = too_late => tracing::warn!("shut down before all events were written"),
        }
    }

    async fn work(
        &mut self,
        mut events: Receiver<(ObjectReference, Event)>,
        shutdown: &CancellationToken,
    ) {
        loop {
            let due = self.book.next_due();
            tokio::select! {
                biased;
                event = events.recv() => match event {
                    Some((regarding, event)) => self.take(regarding, event).await,
                    None => return,
                },
                () = sleep_until(due) => self.write_due().await,
                // What is in the queue is still written; nothing more gets in.
                () = shutdown.cancelled(), if !events.is_closed() => events.close(),
            }
        }
    }

    async fn take(&mut self, regarding: ObjectReference, event: Event) {
        let event = Event {
            reason: cut(event.reason, MAX_REASON),
            note: cut(event.note, MAX_NOTE),
            ..event
        };
        let step = self.book.note(&regarding, &event, Instant::now());
        self.write(step).await;
    }

    async fn write_due(&mut self) {
        for step in self.book.due(Instant::now()) {
            self.write(step).await;
        }
    }

    async fn write(&mut self, step: Step) {
        let result = match &step {
            Step::Nothing => return,
            Step::Create { key, name } => self.create(&key.0.0, &key.1, name).await,
            Step::Count { name, count, .. } => self.count(name, *count).await,
        };
        match (result, step) {
            (Ok(()), _) => {}
            // The API server forgets events after an hour; what is still being said is then said anew.
            (Err(error), Step::Count { key, .. }) if error.is_not_found() => {
                let step = self.book.restart(key, Instant::now());
                if let Step::Create { key, name } = &step
                    && let Err(error) = self.create(&key.0.0, &key.1, name).await
                {
                    tracing::warn!(%error, reason = key.1.reason, "event not recorded");
                }
            }
            (Err(error), Step::Create { key, .. }) => {
                tracing::warn!(%error, reason = key.1.reason, "event not recorded");
                self.book.forget(&key);
            }
            (Err(error), _) => tracing::warn!(%error, "count of an event not recorded"),
        }
    }

    async fn create(
        &self,
        regarding: &ObjectReference,
        event: &Event,
        name: &str,
    ) -> Result<(), Error> {
        let object = Object {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(jiff::Timestamp::now())),
            type_: Some(event.severity.name().to_owned()),
            reason: Some(event.reason.clone()),
            action: Some(event.action.clone()),
            note: Some(event.note.clone()),
            regarding: Some(regarding.clone()),
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(self.instance.clone()),
            ..Object::default()
        };
        let params = PostParams::default();
        match request::retried("create event", || self.api.create(&params, &object)).await {
            // An earlier try arrived although its answer did not.
            Err(error) if error.is_conflict() => Ok(()),
            other => other.map(|_| ()),
        }
    }

    async fn count(&self, name: &str, count: i32) -> Result<(), Error> {
        let series = EventSeries {
            count,
            last_observed_time: MicroTime(jiff::Timestamp::now()),
        };
        let patch = Patch::Merge(json!({ "series": series }));
        let params = PatchParams::default();
        request::retried("patch event", || self.api.patch(name, &params, &patch))
            .await
            .map(|_| ())
    }
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// The first `limit` bytes of `text`, whole characters only, with an ellipsis when something is missing.
fn cut(mut text: String, limit: usize) -> String {
    const ELLIPSIS: &str = "…";
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit - ELLIPSIS.len()));
        text.push_str(ELLIPSIS);
    }
    text
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::fits("abcdef", 6, "abcdef")]
    #[case::cut("abcdefg", 6, "abc…")]
    #[case::between_characters("aéééé", 6, "aé…")]
    fn long_notes_are_cut_between_characters(
        #[case] text: &str,
        #[case] limit: usize,
        #[case] expected: &str,
    ) {
        assert_eq!(cut(text.to_owned(), limit), expected);
        assert!(expected.len() <= limit);
    }
}
