//! Lists of what containers hold, against kubelets that start, end and do not answer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kubelet::holdings::{Holdings, List, Pace};
use kubelet::pod_resources::Limits;
use sim_kubelet::{PodResources, Pods};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::bounded;

/// Nothing happens without a reason, and what has one happens soon.
const PACE: Pace = Pace {
    slow: Duration::from_secs(3600),
    quiet: Duration::from_millis(50),
    settled: Duration::ZERO,
};

struct Node {
    scratch: tempfile::TempDir,
    pods: Pods,
}

impl Node {
    fn new() -> Self {
        let node = Self {
            scratch: tempfile::tempdir().unwrap(),
            pods: Pods::default(),
        };
        node.pods.insert("train", "nvidia.com/gpu", &["GPU-0"]);
        node
    }

    fn socket(&self) -> PathBuf {
        self.scratch.path().join("kubelet.sock")
    }

    fn kubelet(&self) -> PodResources {
        PodResources::start(&self.socket(), self.pods.clone())
    }

    /// Waits until what is made now has another time than the socket: no kubelet starts within one tick of the last.
    fn time_passes(&self) {
        let time = |path: &Path| std::fs::metadata(path).unwrap().modified().unwrap();
        let probe = self.scratch.path().join("probe");
        std::fs::write(&probe, "").unwrap();
        while time(&probe) <= time(&self.socket()) {
            std::thread::sleep(Duration::from_millis(1));
            std::fs::write(&probe, "").unwrap();
        }
    }

    fn holdings(&self, pace: Pace) -> Arc<Holdings> {
        Arc::new(Holdings::new(&self.socket(), Limits::default(), pace).unwrap())
    }
}

/// Lists as they come, until dropped.
struct Followed {
    lists: mpsc::UnboundedReceiver<List>,
    end: CancellationToken,
}

impl Followed {
    fn start(holdings: &Arc<Holdings>) -> Self {
        let (sender, lists) = mpsc::unbounded_channel();
        let (holdings, end) = (holdings.clone(), CancellationToken::new());
        let shutdown = end.clone();
        tokio::spawn(async move {
            let take = |list| sender.send(list).unwrap_or_default();
            holdings.follow(take, shutdown).await;
        });
        Self { lists, end }
    }

    async fn pods(&mut self) -> Vec<String> {
        let list = bounded(self.lists.recv()).await.unwrap();
        list.pods.into_iter().map(|pod| pod.name).collect()
    }

    async fn is_quiet(&mut self) -> bool {
        let quiet = Duration::from_millis(200);
        tokio::time::timeout(quiet, self.lists.recv())
            .await
            .is_err()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

#[tokio::test]
async fn a_list_is_that_of_one_kubelet() {
    let node = Node::new();
    let holdings = node.holdings(PACE);
    assert!(!holdings.is_current(), "nobody was asked");
    assert!(bounded(holdings.list()).await.is_err(), "there is nobody");
    assert!(!holdings.is_current());

    let kubelet = node.kubelet();
    assert!(!holdings.is_current());
    let before = Instant::now();
    let list = bounded(holdings.list()).await.unwrap();
    assert!(list.asked >= before && list.pods.len() == 1);
    assert!(holdings.is_current());

    drop(kubelet);
    node.time_passes();
    let _next = node.kubelet();
    assert!(
        !holdings.is_current(),
        "another kubelet has to be asked anew"
    );
    bounded(holdings.list()).await.unwrap();
    assert!(holdings.is_current());
}

#[tokio::test]
async fn lists_come_at_the_start_and_after_what_was_given_out() {
    let node = Node::new();
    let _kubelet = node.kubelet();
    let holdings = node.holdings(PACE);
    let mut followed = Followed::start(&holdings);
    assert_eq!(followed.pods().await, ["train"]);
    assert!(followed.is_quiet().await);

    node.pods.insert("serve", "nvidia.com/gpu", &["GPU-1"]);
    for _ in 0..100 {
        holdings.nudge();
    }
    assert_eq!(followed.pods().await, ["serve", "train"]);
    assert!(followed.is_quiet().await, "a burst is one list");
}

#[tokio::test]
async fn lists_come_without_reason_too() {
    let node = Node::new();
    let _kubelet = node.kubelet();
    let slow = Duration::from_millis(20);
    let mut followed = Followed::start(&node.holdings(Pace { slow, ..PACE }));
    assert_eq!(followed.pods().await, ["train"]);
    node.pods.remove("train");
    while !followed.pods().await.is_empty() {}
}

#[tokio::test]
async fn a_kubelet_that_comes_late_is_found() {
    let node = Node::new();
    let holdings = node.holdings(PACE);
    let mut followed = Followed::start(&holdings);
    holdings.nudge();
    assert!(followed.is_quiet().await);
    let _kubelet = node.kubelet();
    assert_eq!(followed.pods().await, ["train"]);
}

#[tokio::test]
async fn a_young_kubelet_is_not_asked_without_reason() {
    let node = Node::new();
    let _kubelet = node.kubelet();
    let settled = Duration::from_secs(3600);
    let holdings = node.holdings(Pace { settled, ..PACE });
    let mut followed = Followed::start(&holdings);
    assert!(followed.is_quiet().await);
    holdings.nudge();
    assert_eq!(followed.pods().await, ["train"]);
}

#[tokio::test]
async fn following_ends_when_told() {
    let node = Node::new();
    let _silent = tokio::net::UnixListener::bind(node.socket()).unwrap();
    let holdings = node.holdings(PACE);
    let end = CancellationToken::new();
    let follow = holdings.follow(|_| (), end.clone());
    let cancel = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        end.cancel();
    };
    bounded(async { tokio::join!(follow, cancel) }).await;
}
