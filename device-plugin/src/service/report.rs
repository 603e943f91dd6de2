//! What the service says to people: in its log, as Events of its Node, and as a condition of it.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use cluster::events::{Event, Recorder, Severity};
use cluster::node::{Condition, Node, Observed};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Cluster;

/// What the service is called in Events.
const CONTROLLER: &str = "lathe-device-plugin";

/// Until a condition is written again that could not be: the client has tried for a minute by then.
const AGAIN: Duration = Duration::from_secs(60);

/// Events that are kept while the Node is not known; of more, the oldest are in the log only.
const BACKLOG: usize = 32;

/// Where to say things.
pub(super) struct Reporter {
    node: Option<Node>,
    recorder: Option<Recorder>,
    recording: Option<JoinHandle<()>>,
    farewell: CancellationToken,
    condition: Option<watch::Sender<Option<Condition>>>,
    /// Lasting things that were said already.
    said: BTreeSet<(&'static str, String)>,
    /// Events that wait for their Node: what is wrong from the start is found out before the API server has answered.
    waiting: VecDeque<Event>,
}

impl Reporter {
    /// Without a cluster everything goes to the log only.
    pub(super) fn start(cluster: Option<&Cluster>, node: Option<&Node>, condition: bool) -> Self {
        let farewell = CancellationToken::new();
        let recording = cluster.map(|cluster| {
            let client = cluster.client.clone();
            Recorder::start(client, CONTROLLER, &cluster.instance, farewell.clone())
        });
        let (recorder, recording) = recording.unzip();
        let condition = node.filter(|_| condition).map(|node| {
            let (sender, receiver) = watch::channel(None);
            tokio::spawn(write_condition(node.clone(), receiver));
            sender
        });
        Self {
            node: node.cloned(),
            recorder,
            recording,
            farewell,
            condition,
            said: BTreeSet::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Something happened.
    pub(super) fn say(
        &mut self,
        severity: Severity,
        reason: &'static str,
        action: &str,
        note: String,
    ) {
        match severity {
            Severity::Normal => tracing::info!(reason, "{note}"),
            Severity::Warning => tracing::warn!(reason, "{note}"),
        }
        if self.recorder.is_none() {
            return;
        }
        if self.waiting.len() >= BACKLOG {
            self.waiting.pop_front();
        }
        self.waiting.push_back(Event {
            severity,
            reason: reason.to_owned(),
            action: action.to_owned(),
            note,
        });
        self.node_changed();
    }

    /// The Node may be known now: what waits for that is said.
    pub(super) fn node_changed(&mut self) {
        let node = self.node.as_ref().map(Node::latest);
        if let (Some(recorder), Some(Observed::Present(node))) = (&self.recorder, node) {
            let reference = node.reference();
            for event in self.waiting.drain(..) {
                recorder.publish(&reference, event);
            }
        }
    }

    /// These things about `reason` are so now. Each is said when it begins to be so.
    pub(super) fn lasting(
        &mut self,
        reason: &'static str,
        action: &str,
        now: impl IntoIterator<Item = String>,
    ) {
        let now: BTreeSet<_> = now.into_iter().map(|note| (reason, note)).collect();
        let others = |said: &&(&'static str, String)| said.0 != reason;
        let new: Vec<String> = now
            .difference(&self.said)
            .map(|(_, note)| note.clone())
            .collect();
        self.said = self.said.iter().filter(others).cloned().collect();
        self.said.extend(now);
        for note in new {
            self.say(Severity::Warning, reason, action, note);
        }
    }

    /// The condition is to be so. Writing it never holds the caller up.
    pub(super) fn condition(&self, condition: Condition) {
        if let Some(sender) = &self.condition {
            sender.send_if_modified(|last| {
                let is_new = last.as_ref() != Some(&condition);
                *last = Some(condition);
                is_new
            });
        }
    }

    /// What was said last is still written; that takes a few seconds at most.
    pub(super) async fn finish(self) {
        drop(self.condition);
        self.farewell.cancel();
        if let Some(recording) = self.recording {
            // A panic in it must not become one here.
            let _ = recording.await;
        }
    }
}

/// What a Node has of our condition, as far as is known.
struct Written {
    /// Of which Node: one that is made anew has another.
    uid: String,
    /// The condition, and since when it holds or not.
    last: Option<(Condition, Timestamp)>,
}

/// Writes each condition, the newest if several came meanwhile. A Node that is made anew gets it again; one that has it already,
/// from a former life of this plugin, does not.
async fn write_condition(node: Node, mut wanted: watch::Receiver<Option<Condition>>) {
    let mut seen = node.subscribe();
    let mut written = None;
    let mut changed = None;
    loop {
        let mut again = false;
        let condition = wanted.borrow_and_update().clone();
        let uid = seen
            .borrow_and_update()
            .state()
            .map(|state| state.uid.clone());
        if let Some(condition) = &condition
            && changed.is_none_or(|(holds, _)| holds != condition.holds)
        {
            changed = Some((condition.holds, Timestamp::now()));
        }
        if let (Some(condition), Some(uid), Some((_, since))) = (condition, uid, changed) {
            match write(&node, uid, condition, since, &mut written).await {
                Ok(()) => {}
                Err(error) if error.status() == Some(403) => {
                    tracing::warn!(%error, "the node gets no condition: allow get on nodes and patch on nodes/status, or turn it off");
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "the node's condition is not written yet");
                    again = true;
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(AGAIN), if again => {}
            changed = wanted.changed() => if changed.is_err() { return },
            changed = seen.changed() => if changed.is_err() { return },
        }
    }
}

/// Writes a condition that holds or not `since` then, unless the Node has it so.
async fn write(
    node: &Node,
    uid: String,
    condition: Condition,
    since: Timestamp,
    written: &mut Option<Written>,
) -> Result<(), cluster::Error> {
    let last = match written.take() {
        Some(written) if written.uid == uid => written.last,
        _ => node.condition(&condition.kind).await?,
    };
    let is_new = last.as_ref().is_none_or(|(last, _)| *last != condition);
    let since = match &last {
        Some((last, since)) if last.holds == condition.holds => *since,
        _ => since,
    };
    let last = written.insert(Written { uid, last });
    if is_new {
        node.set_condition(&condition, since).await?;
        last.last = Some((condition, since));
    }
    Ok(())
}
