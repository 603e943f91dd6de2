//! A simulated API server with one node in it, and a client made the way the parts make theirs.

use std::time::Duration;

use cluster::node::{Node, NodeState, Observed};
use serde_json::{Value, json};
use sim_kubernetes::{Options, Server};
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

/// Longer than anything here takes, so that a test that would wait for ever fails.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

pub(crate) const NAME: &str = "node-a";

pub(crate) async fn server() -> Server {
    let server = Server::start(Options::default()).await.unwrap();
    server.seed([node(json!({ "key": "old" }))]).unwrap();
    server
}

pub(crate) fn node(labels: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NAME, "labels": labels } })
}

pub(crate) async fn client(server: &Server) -> kube::Client {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, server.kubeconfig()).unwrap();
    cluster::client("test", Some(&path)).await.unwrap()
}

/// Waits until what is seen is as `wanted` says.
pub(crate) async fn until<T: Clone + std::fmt::Debug>(
    seen: &mut Receiver<T>,
    wanted: impl Fn(&T) -> bool,
) -> T {
    let found = timeout(BOUND, seen.wait_for(wanted))
        .await
        .map(|seen| seen.unwrap().clone());
    found.unwrap_or_else(|_| panic!("stays {:?}", *seen.borrow()))
}

/// A watched node that was seen already.
pub(crate) async fn watched(server: &Server) -> (Node, Receiver<Observed>, NodeState) {
    let node = Node::watch(client(server).await, NAME);
    let mut seen = node.subscribe();
    let observed = until(&mut seen, |observed| observed.state().is_some()).await;
    let state = observed.state().unwrap().clone();
    (node, seen, state)
}

/// Waits until the server was asked so many times: what a task sent before it ended may arrive after.
#[allow(dead_code, reason = "not for events")]
pub(crate) async fn asked(server: &Server, times: usize) {
    let all = async {
        while server.requests().len() < times {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let reached = timeout(BOUND, all).await;
    assert!(reached.is_ok(), "{:?}", server.requests());
}

/// Requests with this method whose path contains `path`.
pub(crate) fn requests(server: &Server, method: &str, path: &str) -> usize {
    server
        .requests()
        .iter()
        .filter(|request| request.method == method && request.path.contains(path))
        .count()
}
