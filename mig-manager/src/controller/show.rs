//! Keeps the state label at what the controller last said, however long the API server is away.
//!
//! Only the last value counts: after an outage the node gets that one, not the history.

use std::time::Duration;

use cluster::node::{Change, Node};
use tokio::sync::watch::{self, Receiver, Sender};
use tokio::task::JoinHandle;

use super::label::{self, Progress};

/// Pauses between tries, each of which already lasts up to a minute when the server is away.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Where the controller says how far it is. The task behind it ends when this is dropped.
#[derive(Debug)]
pub(super) struct StateLabel {
    wanted: Sender<Option<Progress>>,
    written: Receiver<Option<Progress>>,
    task: JoinHandle<()>,
}

impl StateLabel {
    pub(super) fn start(node: Node) -> Self {
        let (wanted, receiver) = watch::channel(None);
        let (sender, written) = watch::channel(None);
        Self {
            wanted,
            written,
            task: tokio::spawn(write(node, receiver, sender)),
        }
    }

    /// The label shall have this value, soon.
    pub(super) fn show(&self, progress: Progress) {
        self.wanted.send_replace(Some(progress));
    }

    /// Waits until the label has the value said last, at most `bound`; answers whether it has.
    pub(super) async fn is_written(&self, bound: Duration) -> bool {
        let wanted = *self.wanted.borrow();
        if wanted.is_none() {
            return true;
        }
        let mut written = self.written.clone();
        let reached = written.wait_for(|written| *written == wanted);
        matches!(tokio::time::timeout(bound, reached).await, Ok(Ok(_)))
    }
}

impl Drop for StateLabel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn write(
    node: Node,
    mut wanted: Receiver<Option<Progress>>,
    written: Sender<Option<Progress>>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let Some(progress) = *wanted.borrow_and_update() else {
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        };
        let change = Change::set(label::STATE, progress.as_str());
        // Never given up half-way: an abandoned request could still arrive after the next one.
        match node.patch_labels(&[change]).await {
            Ok(_) => {
                pause = FIRST_PAUSE;
                written.send_replace(Some(progress));
                if wanted.changed().await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(%error, state = progress.as_str(), "the state label is not written yet");
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    changed = wanted.changed() => if changed.is_err() {
                        return;
                    },
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}
