//! The part's own Node: what it says now ([`Node::subscribe`]), and the few things a part may change about it.
//!
//! One [`Node`] holds one watch, however many tasks look at it, and merges what the watch delivers with what its own
//! writes were answered with, so that a write is never decided on a state older than the previous write.

mod condition;
mod patch;
mod state;
mod watch;

use std::sync::Arc;

use kube::{Api, Client};
use tokio::sync::watch::{Receiver, Sender};
use tokio::task::AbortHandle;

pub use condition::Condition;
pub use patch::Change;
pub use state::{NodeState, Observed};

/// A handle on one Node object: watched from [`Node::watch`] on, until the last clone is dropped.
#[derive(Clone)]
pub struct Node {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    api: Api<k8s_openapi::api::core::v1::Node>,
    seen: Sender<Observed>,
    watcher: AbortHandle,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

impl Node {
    /// Starts watching the node `name`. Must be called inside a tokio runtime.
    ///
    /// The watch survives restarts of the API server and an expired history (410): it comes back with pauses that grow to
    /// half a minute, and meanwhile the last state stays what [`Node::latest`] answers.
    pub fn watch(client: Client, name: impl Into<String>) -> Self {
        let name = name.into();
        let api = Api::all(client);
        let (seen, _) = tokio::sync::watch::channel(Observed::NotYet);
        let watcher =
            tokio::spawn(watch::keep(api.clone(), name.clone(), seen.clone())).abort_handle();
        Self {
            shared: Arc::new(Shared {
                name,
                api,
                seen,
                watcher,
            }),
        }
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The client it is watched with.
    pub(crate) fn client(&self) -> Client {
        self.shared.api.clone().into_client()
    }

    /// What is known now.
    pub fn latest(&self) -> Observed {
        self.shared.seen.borrow().clone()
    }

    /// A receiver that wakes when labels, annotations, taints or schedulability change. Heartbeats and other status
    /// updates of the kubelet wake nobody. Several changes at once may show as the last of them.
    pub fn subscribe(&self) -> Receiver<Observed> {
        self.shared.seen.subscribe()
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("name", &self.shared.name)
            .field("latest", &*self.shared.seen.borrow())
            .finish_non_exhaustive()
    }
}
