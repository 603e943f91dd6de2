//! The cluster under test, and when there is one.

use std::any::Any;
use std::io::Write as _;
use std::sync::{Arc, Once};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use kube::{Client, Config};
use tokio::sync::RwLock;

/// Nothing a test waits for takes longer, unless it hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// Held shared by tests that need the cluster as it is, and alone by those that restart a part of it.
static CALM: RwLock<()> = RwLock::const_new(());

/// The cluster that `KUBECONFIG` names.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    _calm: Arc<dyn Any + Send + Sync>,
}

/// `None`, after a line that says so, when no cluster was given; a failed test when one is required.
///
/// `KUBECONFIG` alone is not enough: who develops on this machine may have it point at a cluster that these tests must
/// not touch.
pub(crate) async fn cluster() -> Option<Cluster> {
    let client = client().await?;
    let calm = Arc::new(CALM.read().await);
    Some(Cluster {
        client,
        _calm: calm,
    })
}

/// The same, once no other test uses it and until this one lets it go.
pub(crate) async fn cluster_alone() -> Option<Cluster> {
    let client = client().await?;
    let calm = Arc::new(CALM.write().await);
    Some(Cluster {
        client,
        _calm: calm,
    })
}

async fn client() -> Option<Client> {
    let wanted = variable("LATHE_E2E");
    let Some(wanted) = wanted else {
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            skipped("tests on a real cluster need LATHE_E2E=required and KUBECONFIG")
        });
        return None;
    };
    assert!(
        variable("KUBECONFIG").is_some(),
        "LATHE_E2E={wanted} but KUBECONFIG names no cluster: cargo xtask cluster up, then cargo xtask cluster exec"
    );
    let mut config = Config::infer().await.expect("KUBECONFIG is readable");
    // Some tests look at answers that the client would retry by itself.
    config.default_retry = false;
    Some(Client::try_from(config).expect("KUBECONFIG is usable"))
}

/// Says why something was not tested; past the test harness, which keeps what passing tests print.
pub(crate) fn skipped(why: &str) {
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}

/// An environment variable that says something.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Cluster {
    /// The node that the tests use: `LATHE_E2E_NODE`, or the first one.
    pub(crate) async fn node_name(&self) -> String {
        if let Some(name) = variable("LATHE_E2E_NODE") {
            return name;
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        let list = nodes.list(&ListParams::default()).await.unwrap();
        let mut names: Vec<String> = list
            .items
            .into_iter()
            .filter(is_ready)
            .filter_map(|node| node.metadata.name)
            .collect();
        names.sort();
        names
            .into_iter()
            .next()
            .expect("the cluster has a ready node")
    }
}

fn is_ready(node: &Node) -> bool {
    node.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
