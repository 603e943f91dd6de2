//! Watch: the history of a collection from a version on, as a stream of events that ends at its deadline, when the
//! history it needs is gone, or when the server stops.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::read::{ListOptions, list_options, parse_version};
use super::{Target, served};
use crate::error::{ApiError, Cause};
use crate::render::Render;
use crate::store::{Change, Event, Store};

/// The annotation of the bookmark that ends the initial events of a streaming list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// How a watch was asked for.
#[derive(Debug, Clone)]
pub(crate) struct WatchOptions {
    pub(crate) list: ListOptions,
    pub(crate) bookmarks: bool,
    /// `sendInitialEvents`.
    pub(crate) initial: Option<bool>,
    pub(crate) timeout: Duration,
    pub(crate) bookmark_interval: Duration,
}

/// One running watch.
pub(crate) struct Watcher {
    store: Arc<Store>,
    target: Target,
    options: WatchOptions,
    render: Render,
    /// Everything up to this version was looked at.
    position: u64,
    queue: VecDeque<Value>,
    ended: bool,
    deadline: Instant,
    bookmark: Instant,
    changed: watch::Receiver<u64>,
    /// Changes when running watches are to break.
    broken: watch::Receiver<u64>,
    stop: CancellationToken,
}

/// What ends the wait for the next event.
enum Wake {
    Changed,
    Bookmark,
    Deadline,
    Broken,
    Stop,
}

impl Watcher {
    /// Checks the options and takes the initial events.
    pub(crate) fn start(
        store: Arc<Store>,
        target: Target,
        options: WatchOptions,
        render: Render,
        broken: watch::Receiver<u64>,
        stop: CancellationToken,
    ) -> Result<Self, ApiError> {
        check(&options)?;
        let text = options.list.version.as_str();
        let version = parse_version(text).map_err(|_| {
            ApiError::unexpected(format!(
                "resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"
            ))
        })?;
        let now = Instant::now();
        let mut watcher = Self {
            changed: store.subscribe(),
            store,
            target,
            render,
            position: version,
            queue: VecDeque::new(),
            ended: false,
            deadline: now + options.timeout,
            bookmark: now + options.bookmark_interval,
            broken,
            stop,
            options,
        };
        watcher.broken.mark_unchanged();
        let wanted = watcher.options.initial.unwrap_or(version == 0);
        if wanted || version == 0 {
            watcher.initial(wanted);
        }
        Ok(watcher)
    }

    /// Starts from the present: with the objects there are, when `wanted`.
    fn initial(&mut self, wanted: bool) {
        let store = Arc::clone(&self.store);
        let state = store.read();
        self.position = state.version;
        if !wanted {
            return;
        }
        let namespace = self.target.namespace.as_deref();
        let objects: Vec<Value> = state
            .shelf(&self.target.resource.storage)
            .into_iter()
            .flat_map(|shelf| shelf.objects_in(namespace))
            .filter(|(key, _)| self.target.name.is_empty() || self.target.name == key.1)
            .map(|(_, object)| served(&self.target.resource, object))
            .collect();
        drop(state);
        for object in objects {
            if self.options.list.selects(&object) {
                self.push("ADDED", &object);
            }
        }
        if self.options.initial == Some(true) {
            self.push_bookmark(true);
        }
    }

    fn push(&mut self, kind: &str, object: &Value) {
        let object = self.render.event(&self.target.resource, object);
        self.queue
            .push_back(json!({"type": kind, "object": object}));
    }

    fn push_bookmark(&mut self, initial_end: bool) {
        let mut object = json!({
            "apiVersion": self.target.resource.api_version(),
            "kind": self.target.resource.kind,
            "metadata": {"resourceVersion": self.position.to_string(), "creationTimestamp": null},
        });
        if initial_end {
            object["metadata"]["annotations"] = json!({ INITIAL_EVENTS_END: "true" });
        }
        let object = self.render.bookmark(&object);
        self.queue
            .push_back(json!({"type": "BOOKMARK", "object": object}));
        self.bookmark = Instant::now() + self.options.bookmark_interval;
    }

    /// The next event; `None` at the end, an error when the connection is to break.
    pub(crate) async fn next(&mut self) -> Option<io::Result<Value>> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(Ok(event));
            }
            if self.ended {
                return None;
            }
            self.fill();
            if !self.queue.is_empty() {
                continue;
            }
            match self.wait().await {
                Wake::Changed => {}
                Wake::Bookmark => self.push_bookmark(false),
                Wake::Deadline => {
                    // A last bookmark lets the client come back where it was.
                    if self.options.bookmarks {
                        self.push_bookmark(false);
                    }
                    self.ended = true;
                }
                Wake::Stop => self.ended = true,
                Wake::Broken => {
                    self.ended = true;
                    return Some(Err(io::Error::from(io::ErrorKind::ConnectionReset)));
                }
            }
        }
    }

    async fn wait(&mut self) -> Wake {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Wake::Stop,
            found = self.broken.changed() => if found.is_ok() { Wake::Broken } else { Wake::Stop },
            found = self.changed.changed() => if found.is_ok() { Wake::Changed } else { Wake::Stop },
            () = tokio::time::sleep_until(self.deadline) => Wake::Deadline,
            () = tokio::time::sleep_until(self.bookmark), if self.options.bookmarks => Wake::Bookmark,
        }
    }

    /// Takes what happened since the last look.
    fn fill(&mut self) {
        self.changed.mark_unchanged();
        let store = Arc::clone(&self.store);
        let state = store.read();
        let found = state.since(&self.target.resource.storage, self.position);
        let version = state.version;
        drop(state);
        match found {
            Ok(events) => {
                for event in events {
                    self.take(&event);
                }
                self.position = self.position.max(version);
            }
            Err(forgotten) => {
                let error = ApiError::expired(format!(
                    "too old resource version: {} ({})",
                    self.position, forgotten.oldest
                ));
                self.queue
                    .push_back(json!({"type": "ERROR", "object": error.to_status()}));
                self.ended = true;
            }
        }
    }

    /// Turns a change into the event that this watch sees: objects enter and leave a selection.
    fn take(&mut self, event: &Event) {
        let (namespace, name) = &event.key;
        let in_scope = self
            .target
            .namespace
            .as_ref()
            .is_none_or(|wanted| wanted == namespace)
            && (self.target.name.is_empty() || self.target.name == *name);
        if !in_scope {
            return;
        }
        let resource = Arc::clone(&self.target.resource);
        let object = served(&resource, &event.object);
        let before = event
            .previous
            .as_ref()
            .map(|previous| served(&resource, previous));
        let was = before
            .as_ref()
            .is_some_and(|before| self.options.list.selects(before));
        let is = event.change != Change::Deleted && self.options.list.selects(&object);
        match (was, is) {
            (false, true) => self.push("ADDED", &object),
            (true, true) => self.push("MODIFIED", &object),
            (true, false) => {
                // The last state that was selected, at the version at which it left.
                let mut last = match (event.change, before) {
                    (Change::Deleted, _) | (_, None) => object,
                    (_, Some(before)) => before,
                };
                last["metadata"]["resourceVersion"] = json!(event.version.to_string());
                self.push("DELETED", &last);
            }
            (false, false) => {}
        }
    }
}

fn check(options: &WatchOptions) -> Result<(), ApiError> {
    let matched = options.list.version_match.as_str();
    let cause = match (options.initial, matched) {
        (Some(_), "NotOlderThan") | (None, "") => return Ok(()),
        (Some(_), _) => Cause::forbidden(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        (None, _) => Cause::forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
    };
    Err(list_options(&[cause]))
}
