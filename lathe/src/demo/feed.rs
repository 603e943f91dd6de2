//! Everything that happens in the demo's world, in one stream: steps of changes, Events, labels, hardware.

use std::pin::Pin;
use std::sync::Arc;

use anyhow::Context as _;
use cluster::node::{Node, NodeState, Observed};
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use mig_manager::engine;
use notify::Watcher as _;
use tokio::sync::Notify;
use tokio::sync::watch::Receiver;

use super::stage::{Stage, part_ended};

/// Something to show.
pub(crate) enum Update {
    /// One line for the list of steps.
    Step(String),
    /// The node's labels changed.
    Labels(NodeState),
    /// The hardware's state changed.
    Hardware,
}

/// The stream. It holds its watches; dropping it ends them.
pub(crate) struct Feed {
    labels: Receiver<Observed>,
    events: Pin<Box<dyn Stream<Item = Event> + Send>>,
    hardware: Arc<Notify>,
    /// Watches end with their handles.
    _node: Node,
    _watcher: notify::RecommendedWatcher,
}

impl Feed {
    /// Starts watching a stage.
    ///
    /// # Errors
    /// The hardware's folder cannot be watched.
    pub(crate) fn of(stage: &Stage) -> anyhow::Result<Self> {
        let hardware = Arc::new(Notify::new());
        let wake = Arc::clone(&hardware);
        let mut file_watcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                // The state file is replaced by a rename; that many processes read it is no news.
                if !event.is_ok_and(|event| event.kind.is_access()) {
                    wake.notify_one();
                }
            })
            .context("starting to watch files")?;
        file_watcher
            .watch(
                stage.hardware.library_folder(),
                notify::RecursiveMode::NonRecursive,
            )
            .context("watching the simulated hardware")?;
        let about_nodes = watcher::Config::default().fields("involvedObject.kind=Node");
        let events = watcher(Api::<Event>::all(stage.client.clone()), about_nodes)
            .default_backoff()
            .applied_objects()
            .filter_map(|event| async { event.ok() })
            .boxed();
        let node = Node::watch(stage.client.clone(), &stage.node_name);
        let mut labels = node.subscribe();
        labels.mark_changed();
        Ok(Self {
            labels,
            events,
            hardware,
            _node: node,
            _watcher: file_watcher,
        })
    }

    /// The next thing that happens; an error when one of the parts ended.
    ///
    /// # Errors
    /// Which part failed, and why.
    pub(crate) async fn next(&mut self, stage: &mut Stage) -> anyhow::Result<Update> {
        let Stage { steps, parts, .. } = stage;
        loop {
            tokio::select! {
                Some(step) = steps.recv() => {
                    if let Some(line) = worth_telling(&step) {
                        return Ok(Update::Step(line));
                    }
                }
                Some(event) = self.events.next() => return Ok(Update::Step(line_of(&event))),
                Ok(()) = self.labels.changed() => {
                    let seen = self.labels.borrow_and_update().clone();
                    if let Observed::Present(state) = seen {
                        return Ok(Update::Labels(state));
                    }
                }
                () = self.hardware.notified() => return Ok(Update::Hardware),
                error = part_ended(parts) => return Err(error),
            }
        }
    }
}

/// A step's line; that a step is done shows in the bars, and in the next line.
fn worth_telling(step: &engine::Event) -> Option<String> {
    match step {
        engine::Event::Done { .. } => None,
        other => Some(other.to_string()),
    }
}

fn line_of(event: &Event) -> String {
    format!(
        "Event {} {}: {}",
        event.type_.as_deref().unwrap_or_default(),
        event.reason.as_deref().unwrap_or_default(),
        event.message.as_deref().unwrap_or_default()
    )
}

/// The labels worth showing: what was asked for, how far it is, and what the node has.
pub(crate) fn label_lines(state: &NodeState) -> Vec<String> {
    let shown = |key: &&String| {
        key.starts_with("nvidia.com/mig.config")
            || *key == "nvidia.com/gpu.product"
            || *key == "nvidia.com/gpu.count"
            || (key.starts_with("nvidia.com/mig-") && key.ends_with(".count"))
    };
    state
        .labels
        .keys()
        .filter(shown)
        .map(|key| format!("{key}={}", state.labels.get(key).map_or("", String::as_str)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::label_lines;
    use cluster::node::NodeState;

    #[test]
    fn only_labels_worth_showing_are_shown() {
        let labels = [
            ("kubernetes.io/hostname", "dgx"),
            ("nvidia.com/mig.config", "all-balanced"),
            ("nvidia.com/mig.config.state", "pending"),
            ("nvidia.com/mig-1g.10gb.count", "16"),
            ("nvidia.com/mig-1g.10gb.memory", "9984"),
        ];
        let state = NodeState {
            labels: labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..NodeState::default()
        };
        assert_eq!(
            label_lines(&state),
            [
                "nvidia.com/mig-1g.10gb.count=16",
                "nvidia.com/mig.config=all-balanced",
                "nvidia.com/mig.config.state=pending",
            ]
        );
    }
}
