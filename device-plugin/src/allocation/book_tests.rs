//! The book against kubelets that list pods, have been restarted, do not answer, or are not there.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpu::ledger::{Knowledge, Ledger, Owner};
use kubelet::Paths;
use sim_kubelet::{PodResources, Pods, bounded};
use tokio_util::sync::CancellationToken;

use super::super::fixtures::{gpus, ids, resource};
use super::{Book, LIST_WAIT, wanted};
use crate::DeviceId;
use crate::resources::Device;

struct Node {
    _root: tempfile::TempDir,
    paths: Paths,
    pods: Pods,
    ledger: Arc<Mutex<Ledger>>,
    book: Book,
}

/// A node with two GPUs of two MIG devices each.
fn node() -> Node {
    node_that_waits(Duration::from_secs(60))
}

/// The same, with a bound on the wait for the kubelet's lists.
fn node_that_waits(wait: Duration) -> Node {
    let root = tempfile::tempdir().unwrap();
    let paths = Paths::below(root.path(), Path::new(Paths::DEFAULT));
    let ledger = Arc::default();
    let book = Book::new(&paths, Arc::clone(&ledger))
        .unwrap()
        .with_wait(wait);
    book.know(&gpus("0 0:0 0:1 1 1:0 1:1"));
    Node {
        _root: root,
        paths,
        pods: Pods::default(),
        ledger,
        book,
    }
}

impl Node {
    fn kubelet(&self) -> PodResources {
        PodResources::start(&self.paths.pod_resources(), self.pods.clone())
    }

    /// What a container gets of the resource `name`, which has `devices`.
    async fn grant(&self, name: &str, devices: &str, asked: &str) -> Result<(), String> {
        let resource = resource(name, devices);
        let asked = ids(asked);
        let mut found: Vec<(&Device, Option<u32>)> = Vec::new();
        for id in asked.iter().filter_map(|id| DeviceId::parse(id)) {
            let mut devices = resource.devices.iter();
            let device = devices.find(|device| device.uuid == id.uuid);
            found.push((device.unwrap(), id.share));
        }
        let answer = bounded(self.book.grant(&resource.name, &found)).await;
        answer.map_err(|conflict| conflict.to_string())
    }
}

#[tokio::test]
async fn a_device_under_another_name_is_refused() {
    let node = node();
    let _kubelet = node.kubelet();
    node.pods.insert("train", "nvidia.com/gpu", &["GPU-0"]);
    let refusal = node.grant("a100", "0 1", "GPU-0").await.unwrap_err();
    assert_eq!(
        refusal,
        "GPU-0 cannot be given: container main of pod default/train has GPU-0 as nvidia.com/gpu; end that pod first"
    );
    assert_eq!(node.grant("a100", "0 1", "GPU-1").await, Ok(()));
    // The kubelet's own accounts are its own: it gives an id again once the pod has ended, whatever a list says.
    assert_eq!(node.grant("gpu", "0 1", "GPU-0").await, Ok(()));
}

/// What the ledger remembers is checked before anybody is refused: the pod may have ended since.
#[tokio::test]
async fn a_pod_that_has_ended_stands_in_nobodys_way() {
    let node = node();
    let _kubelet = node.kubelet();
    node.pods
        .insert("train", "nvidia.com/mig-1g.10gb", &["MIG-0-0"]);
    assert!(node.grant("gpu", "0 1", "GPU-0").await.is_err());
    node.pods.remove("train");
    assert_eq!(node.grant("gpu", "0 1", "GPU-0").await, Ok(()));
}

/// A kubelet that was restarted has admitted pods that this process has not heard of.
#[tokio::test]
async fn another_kubelet_is_asked_anew() {
    let node = node();
    let kubelet = node.kubelet();
    assert_eq!(node.grant("gpu", "0 1", "GPU-1").await, Ok(()));
    node.pods
        .insert("train", "nvidia.com/mig-1g.10gb", &["MIG-0-0"]);
    drop(kubelet);
    // Kept, so that the next one's file is another however soon it is made.
    let socket = node.paths.pod_resources();
    std::fs::rename(&socket, socket.with_extension("former")).unwrap();
    let _kubelet = node.kubelet();
    assert!(node.grant("gpu", "0 1", "GPU-0").await.is_err());
}

#[tokio::test]
async fn without_a_kubelet_nobody_is_refused() {
    let node = node();
    let kubelet = node.kubelet();
    node.pods.insert("train", "nvidia.com/gpu", &["GPU-0"]);
    assert!(node.grant("a100", "0", "GPU-0").await.is_err());
    drop(kubelet);
    std::fs::remove_file(node.paths.pod_resources()).unwrap();
    assert_eq!(node.grant("a100", "0", "GPU-0").await, Ok(()));
}

#[tokio::test]
async fn a_kubelet_that_does_not_answer_is_waited_for_once() {
    let node = node_that_waits(LIST_WAIT);
    let socket = node.paths.pod_resources();
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let _silent = tokio::net::UnixListener::bind(&socket).unwrap();
    assert_eq!(node.grant("gpu", "0 1", "GPU-0").await, Ok(()));
    let since = Instant::now();
    for _ in 0..100 {
        assert_eq!(node.grant("gpu", "0 1", "GPU-1").await, Ok(()));
    }
    // Each alone would be as long as 500 ms.
    assert!(since.elapsed() < Duration::from_secs(40));
}

/// A claim that was granted in this process is certain, with a list and without one.
#[tokio::test]
async fn claims_of_this_process_count() {
    let node = node();
    let claim = Owner::Claim {
        namespace: "ml".to_owned(),
        name: "one".to_owned(),
    };
    let device = resource("gpu", "0").devices.remove(0);
    let wanted = [wanted(&device, None)];
    let now = Instant::now();
    node.ledger
        .lock()
        .unwrap()
        .grant(&claim, &wanted, Knowledge::Current, now)
        .unwrap();
    let text = "GPU-0 cannot be given: a pod that is starting has GPU-0 through claim ml/one; end that pod first";
    assert_eq!(node.grant("gpu", "0", "GPU-0").await.unwrap_err(), text);
    let _kubelet = node.kubelet();
    assert_eq!(node.grant("gpu", "0", "GPU-0").await.unwrap_err(), text);
    node.ledger.lock().unwrap().release(&claim);
    assert_eq!(node.grant("gpu", "0", "GPU-0").await, Ok(()));
}

/// With a DRA driver beside it, each grant is preceded by a list; without one, the last list is good enough.
#[tokio::test]
async fn a_dra_driver_in_another_process_is_reckoned_with() {
    let node = node();
    let _kubelet = node.kubelet();
    assert_eq!(node.grant("gpu", "0 1", "GPU-1").await, Ok(()));
    node.pods
        .insert("other", "nvidia.com/elsewhere", &["GPU-0"]);
    assert_eq!(node.grant("gpu", "0 1", "GPU-1").await, Ok(()));
    let holders = || node.ledger.lock().unwrap().holders().count();
    assert_eq!(holders(), 1);
    std::fs::create_dir_all(node.paths.plugin("gpu.nvidia.com")).unwrap();
    assert!(node.grant("gpu", "0 1", "GPU-0").await.is_err());
    assert_eq!(holders(), 2);
}

/// Its folder may not be mounted; then claims in a list give it away.
#[tokio::test]
async fn claims_give_a_dra_driver_away() {
    use kubelet::pod_resources::{
        ClaimResource, ContainerResources, DynamicResource, PodResources,
    };
    let node = node();
    assert!(!node.book.has_dra_driver());
    let claim = ClaimResource {
        driver_name: "gpu.nvidia.com".to_owned(),
        device_name: "gpu-1".to_owned(),
        ..ClaimResource::default()
    };
    let container = ContainerResources {
        dynamic_resources: vec![DynamicResource {
            claim_resources: vec![claim],
            ..DynamicResource::default()
        }],
        ..ContainerResources::default()
    };
    let pod = PodResources {
        containers: vec![container],
        ..PodResources::default()
    };
    node.book.take(kubelet::holdings::List {
        asked: Instant::now(),
        pods: vec![pod],
    });
    assert!(node.book.has_dra_driver());
}

#[tokio::test]
async fn lists_are_followed_and_gpus_may_come_later() {
    let node = node();
    node.book.know(&[]);
    node.pods
        .insert("train", "nvidia.com/mig-1g.10gb", &["MIG-0-0"]);
    let _kubelet = node.kubelet();
    let (end, mig) = (CancellationToken::new(), resource("mig-2g.20gb", "0:1 1:0"));
    let follow = node.book.run(end.clone());
    let look = async {
        assert_eq!(node.grant("gpu", "1", "GPU-1").await, Ok(()));
        assert_eq!(node.book.elsewhere(&mig).len(), 1, "GPU-1");
        node.book.know(&gpus("0 0:0 1"));
        let in_use = node.book.elsewhere(&mig);
        let uuids: Vec<_> = in_use.iter().map(|one| one.uuid.as_str()).collect();
        assert_eq!(uuids, ["GPU-1", "MIG-0-0"]);
        // Its own are not elsewhere.
        assert_eq!(
            node.book.elsewhere(&resource("mig-1g.10gb", "0:0")).len(),
            0
        );
        // Ids that it had before it was shared are.
        assert_eq!(
            node.book.elsewhere(&resource("mig-1g.10gb", "0:0*2")).len(),
            1
        );
        // The grant is confirmed, or dropped, by the list that follows it.
        node.pods.insert("late", "nvidia.com/gpu", &["GPU-1"]);
        let confirmed = || {
            let ledger = node.ledger.lock().unwrap();
            ledger.holders().all(|holder| holder.container.is_some())
        };
        while !confirmed() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        end.cancel();
    };
    bounded(async { tokio::join!(follow, look) }).await;
}
