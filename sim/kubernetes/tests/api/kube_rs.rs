//! Typed clients and watchers of kube-rs, as Lathe's parts use them.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use serde_json::json;
use sim_kubernetes::Options;

use crate::http::{Cluster, LIMIT, cluster, cluster_with, pod};

#[tokio::test]
async fn typed_objects_go_both_ways() {
    let cluster = cluster().await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": "n", "labels": {"a": "1"}},
        "status": {"capacity": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .unwrap();
    let made = nodes.create(&PostParams::default(), &node).await.unwrap();
    let mut read = nodes.get("n").await.unwrap();
    assert_eq!(read, made);
    read.metadata
        .labels
        .get_or_insert_default()
        .insert("b".to_owned(), "2".to_owned());
    let replaced = nodes
        .replace("n", &PostParams::default(), &read)
        .await
        .unwrap();
    assert_eq!(replaced.metadata.labels.unwrap().len(), 2);
    let stale = nodes
        .replace("n", &PostParams::default(), &read)
        .await
        .unwrap_err();
    assert!(
        matches!(stale, kube::Error::Api(ref status) if status.code == 409 && status.reason == "Conflict"),
        "{stale}"
    );
    let apply = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"c": "3"}}});
    let applied = nodes
        .patch(
            "n",
            &PatchParams::apply("lathe").force(),
            &Patch::Apply(&apply),
        )
        .await
        .unwrap();
    assert_eq!(applied.metadata.labels.unwrap().len(), 3);
    let status = json!({"status": {"capacity": {"nvidia.com/mig-1g.10gb": "56"}}});
    let patched = nodes
        .patch_status("n", &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
    assert_eq!(patched.status.unwrap().capacity.unwrap().len(), 2);
    assert!(
        nodes
            .delete("n", &DeleteParams::default())
            .await
            .unwrap()
            .is_right(),
        "a status answers"
    );
    assert!(nodes.get_opt("n").await.unwrap().is_none());
}

#[tokio::test]
async fn pods_are_listed_by_node_and_evicted() {
    let cluster = cluster().await;
    cluster
        .server
        .seed([pod("p1", Some("n")), pod("p2", None)])
        .unwrap();
    let pods: Api<Pod> = Api::all(cluster.client.clone());
    let on_node = pods
        .list(&ListParams::default().fields("spec.nodeName=n"))
        .await
        .unwrap();
    assert_eq!(on_node.items.len(), 1);
    let meta: kube::core::ObjectList<PartialObjectMeta<Pod>> =
        pods.list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(meta.items.len(), 2);
    let here: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let answer = here
        .evict("p2", &kube::api::EvictParams::default())
        .await
        .unwrap();
    assert!(answer.is_success());
    assert!(here.get_opt("p2").await.unwrap().is_none());
}

#[tokio::test]
async fn micro_times_survive() {
    let cluster = cluster().await;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "default");
    let lease: Lease = serde_json::from_value(json!({
        "metadata": {"name": "l"}, "spec": {"holderIdentity": "me", "renewTime": "2026-01-02T03:04:05.123456Z"},
    }))
    .unwrap();
    let made = leases.create(&PostParams::default(), &lease).await.unwrap();
    assert_eq!(made.spec, lease.spec);
}

type Stream =
    std::pin::Pin<Box<dyn futures::Stream<Item = watcher::Result<Event<ConfigMap>>> + Send>>;

fn config_maps(cluster: &Cluster, config: watch::Config) -> (Api<ConfigMap>, Stream) {
    let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "default");
    let stream = watcher::watcher(api.clone(), config).default_backoff();
    (api, Box::pin(stream))
}

/// The name in the next event that has one, skipping errors, which the watcher recovers from.
async fn next_name(stream: &mut Stream) -> String {
    tokio::time::timeout(LIMIT, async {
        loop {
            match stream.next().await.expect("a watcher never ends") {
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    return object.metadata.name.unwrap();
                }
                Ok(Event::Delete(object)) => return format!("-{}", object.metadata.name.unwrap()),
                Ok(Event::Init | Event::InitDone) | Err(_) => {}
            }
        }
    })
    .await
    .expect("an event in time")
}

async fn follow(config: watch::Config) {
    let cluster = cluster_with(Options {
        bookmark_interval: Duration::from_millis(50),
        ..Options::default()
    })
    .await;
    let (api, mut stream) = config_maps(&cluster, config);
    let make = async |name: &str| {
        let object = ConfigMap {
            metadata: kube::core::ObjectMeta {
                name: Some(name.to_owned()),
                ..Default::default()
            },
            ..Default::default()
        };
        api.create(&PostParams::default(), &object).await.unwrap();
    };
    make("a").await;
    assert_eq!(next_name(&mut stream).await, "a");
    make("b").await;
    assert_eq!(next_name(&mut stream).await, "b");
    // A broken stream is resumed where it was.
    cluster.server.faults().break_watches();
    make("c").await;
    assert_eq!(next_name(&mut stream).await, "c");
    // Lost history makes it start over: everything comes again.
    cluster.server.faults().expire_history();
    cluster.server.faults().break_watches();
    make("d").await;
    cluster.server.faults().expire_history();
    let mut seen = Vec::new();
    while !seen.contains(&"d".to_owned()) {
        seen.push(next_name(&mut stream).await);
    }
    api.delete("a", &DeleteParams::default()).await.unwrap();
    let mut last = String::new();
    while last != "-a" {
        last = next_name(&mut stream).await;
    }
}

#[tokio::test]
async fn a_watcher_follows_through_breaks_and_lost_history() {
    follow(watch::Config::default()).await;
}

#[tokio::test]
async fn a_streaming_watcher_does_too() {
    follow(watch::Config::default().streaming_lists()).await;
}

#[tokio::test]
async fn a_paging_watcher_does_too() {
    follow(watch::Config::default().page_size(1)).await;
}
