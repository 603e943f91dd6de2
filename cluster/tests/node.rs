//! The node handle against the simulated API server: what it sees, and what it writes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::time::Duration;

use cluster::node::{Change, Condition, Node, Observed};
use common::{BOUND, NAME, asked, client, node, requests, server, until, watched};
use k8s_openapi::api::core::v1::Taint;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use rstest::rstest;
use serde_json::json;
use sim_kubernetes::{Action, Fault, Server};
use tokio::time::timeout;

type Nodes = Api<k8s_openapi::api::core::v1::Node>;

/// Somebody else's hand.
async fn nodes(server: &Server) -> Nodes {
    Api::all(client(server).await)
}

fn labelled(observed: &Observed, value: &str) -> bool {
    observed
        .state()
        .is_some_and(|state| state.labels.get("key").map(String::as_str) == Some(value))
}

async fn label(nodes: &Nodes, value: &str) {
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "key": value } } }));
    nodes
        .patch(NAME, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

fn taint(key: &str, value: &str, effect: &str) -> Taint {
    Taint {
        key: key.to_owned(),
        value: Some(value.to_owned()),
        effect: effect.to_owned(),
        time_added: None,
    }
}

#[tokio::test]
async fn changes_are_seen_and_heartbeats_are_not() {
    let server = server().await;
    let (_node, mut seen, state) = watched(&server).await;
    assert_eq!(state.name, NAME);
    assert_eq!(state.labels.get("key").map(String::as_str), Some("old"));
    let nodes = nodes(&server).await;
    seen.mark_unchanged();
    let status = Patch::Merge(json!({ "status": { "nodeInfo": { "kernelVersion": "6.1" } } }));
    nodes
        .patch_status(NAME, &PatchParams::default(), &status)
        .await
        .unwrap();
    label(&nodes, "new").await;
    // The heartbeat came first; that the next wake-up shows the label means it woke nobody.
    timeout(BOUND, seen.changed()).await.unwrap().unwrap();
    assert!(labelled(&seen.borrow_and_update(), "new"));
    // One list and one watch served all of it.
    assert_eq!(requests(&server, "GET", "/api/v1/nodes"), 2);
}

#[tokio::test]
async fn a_node_may_come_late_go_and_come_back() {
    let server = Server::start(sim_kubernetes::Options::default())
        .await
        .unwrap();
    let handle = Node::watch(client(&server).await, NAME);
    assert_eq!(handle.latest(), Observed::NotYet);
    let mut seen = handle.subscribe();
    until(&mut seen, |observed| *observed == Observed::Absent).await;
    let nodes = nodes(&server).await;
    let create = || async {
        let object = serde_json::from_value(node(json!({ "key": "old" }))).unwrap();
        nodes.create(&PostParams::default(), &object).await.unwrap()
    };
    let first = create().await;
    until(&mut seen, |observed| labelled(observed, "old")).await;
    nodes.delete(NAME, &DeleteParams::default()).await.unwrap();
    until(&mut seen, |observed| *observed == Observed::Absent).await;
    create().await;
    let again = until(&mut seen, |observed| labelled(observed, "old")).await;
    assert_ne!(
        Some(&again.state().unwrap().uid),
        first.metadata.uid.as_ref()
    );
}

/// A list that is answered is no sign that the watch after it will hold.
#[tokio::test]
async fn an_api_server_that_ends_every_watch_is_asked_ever_more_seldom() {
    let server = server().await;
    let (_node, _, _) = watched(&server).await;
    let end = std::time::Instant::now() + Duration::from_secs(5);
    while std::time::Instant::now() < end {
        server.faults().break_watches();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // A list and a watch each: at once, and after pauses of 0.2, 0.4, 0.8, 1.6 and 3.2 s at least.
    let requests = requests(&server, "GET", "/api/v1/nodes");
    assert!(requests <= 12, "{requests} requests");
}

/// As API servers end each after some minutes.
#[tokio::test]
async fn a_watch_that_has_held_is_taken_up_where_it_ended() {
    let server = server().await;
    let (_node, mut seen, _) = watched(&server).await;
    let nodes = nodes(&server).await;
    tokio::time::sleep(Duration::from_secs(15)).await;
    server.faults().break_watches();
    label(&nodes, "new").await;
    until(&mut seen, |observed| labelled(observed, "new")).await;
    // One list and two watches.
    assert_eq!(requests(&server, "GET", "/api/v1/nodes"), 3);
}

#[derive(Clone, Copy, Debug)]
enum Trouble {
    BrokenWatch,
    ExpiredHistory,
    Restart,
    Overload,
}

#[rstest]
#[case(Trouble::BrokenWatch)]
#[case(Trouble::ExpiredHistory)]
#[case(Trouble::Restart)]
#[case(Trouble::Overload)]
#[tokio::test]
async fn the_watch_survives(#[case] trouble: Trouble) {
    let server = server().await;
    let (_node, mut seen, _) = watched(&server).await;
    let nodes = nodes(&server).await;
    let faults = server.faults();
    match trouble {
        Trouble::BrokenWatch => faults.break_watches(),
        Trouble::ExpiredHistory => {
            // The version the watch would resume from is gone when it comes back.
            faults.add(Fault::new(Action::Answer(503, None)).method("GET").times(2));
            faults.break_watches();
            label(&nodes, "between").await;
            faults.expire_history();
        }
        Trouble::Restart => {
            faults.refuse_connections(Duration::from_millis(300));
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
        Trouble::Overload => {
            faults.add(
                Fault::new(Action::Answer(429, Some(1)))
                    .method("GET")
                    .times(3),
            );
            faults.break_watches();
        }
    }
    timeout(BOUND, async {
        // The server may still be on its way back.
        while nodes
            .patch(
                NAME,
                &PatchParams::default(),
                &Patch::Merge(json!({ "metadata": { "labels": { "key": "new" } } })),
            )
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .unwrap();
    until(&mut seen, |observed| labelled(observed, "new")).await;
}

#[tokio::test]
async fn the_last_state_stays_while_the_server_is_away() {
    let server = server().await;
    let (node, _seen, state) = watched(&server).await;
    server.faults().refuse_connections(Duration::from_secs(60));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(node.latest(), Observed::Present(state));
}

#[tokio::test]
async fn labels_are_written_only_when_they_differ() {
    let server = server().await;
    let (node, mut seen, _) = watched(&server).await;
    let set = [Change::set("key", "new"), Change::set("more", "1")];
    assert!(node.patch_labels(&set).await.unwrap());
    assert!(
        labelled(&node.latest(), "new"),
        "the answer counts, not only the watch"
    );
    let version = server.resource_version();
    assert!(!node.patch_labels(&set).await.unwrap());
    assert!(
        !node
            .patch_labels(&[Change::remove("never-there")])
            .await
            .unwrap()
    );
    assert!(!node.patch_labels(&[]).await.unwrap());
    assert_eq!(requests(&server, "PATCH", "/nodes/"), 1);
    assert_eq!(server.resource_version(), version);
    assert!(node.patch_labels(&[Change::remove("key")]).await.unwrap());
    let observed = until(&mut seen, |observed| {
        observed
            .state()
            .is_some_and(|state| !state.labels.contains_key("key"))
    })
    .await;
    assert_eq!(
        observed
            .state()
            .unwrap()
            .labels
            .get("more")
            .map(String::as_str),
        Some("1")
    );
}

#[tokio::test]
async fn annotations_are_written_only_when_they_differ() {
    let server = server().await;
    let (node, _seen, _) = watched(&server).await;
    assert!(
        node.patch_annotations(&[Change::set("note", "x")])
            .await
            .unwrap()
    );
    assert!(
        !node
            .patch_annotations(&[Change::set("note", "x")])
            .await
            .unwrap()
    );
    let annotations = &node.latest().state().unwrap().annotations.clone();
    assert_eq!(annotations.get("note").map(String::as_str), Some("x"));
    assert_eq!(requests(&server, "PATCH", "/nodes/"), 1);
}

#[tokio::test]
async fn a_write_is_decided_on_the_last_write_even_when_the_watch_lags() {
    let server = server().await;
    let (node, _seen, _) = watched(&server).await;
    let faults = server.faults();
    faults.add(Fault::new(Action::Answer(503, None)).method("GET"));
    faults.break_watches();
    assert!(
        node.patch_labels(&[Change::set("key", "new")])
            .await
            .unwrap()
    );
    // To what the watch saw last: it would be left out if only the watch were asked.
    assert!(
        node.patch_labels(&[Change::set("key", "old")])
            .await
            .unwrap()
    );
    let stored = server.object("v1", "Node", "", NAME).unwrap();
    assert_eq!(stored["metadata"]["labels"]["key"], "old");
}

#[rstest]
#[case::overloaded(Action::Answer(503, None))]
#[case::throttled(Action::Answer(429, Some(1)))]
#[case::answer_lost(Action::LoseAnswer)]
#[tokio::test]
async fn a_passing_failure_is_retried(#[case] action: Action) {
    let server = server().await;
    let (node, _seen, _) = watched(&server).await;
    server
        .faults()
        .add(Fault::new(action).method("PATCH").times(2));
    let written = timeout(BOUND, node.patch_labels(&[Change::set("key", "new")]))
        .await
        .unwrap();
    assert!(written.unwrap());
    assert_eq!(requests(&server, "PATCH", "/nodes/"), 3);
    let stored = server.object("v1", "Node", "", NAME).unwrap();
    assert_eq!(stored["metadata"]["labels"]["key"], "new");
}

#[tokio::test]
async fn a_lasting_failure_is_told_at_once() {
    let server = server().await;
    let (node, _seen, _) = watched(&server).await;
    server
        .faults()
        .add(Fault::new(Action::Answer(403, None)).method("PATCH"));
    let error = node
        .patch_labels(&[Change::set("key", "new")])
        .await
        .unwrap_err();
    assert_eq!(error.status(), Some(403));
    assert!(
        error.to_string().starts_with("patch node node-a: "),
        "{error}"
    );
    server.faults().clear();
    let error = node
        .patch_labels(&[Change::set("key", "not legal!")])
        .await
        .unwrap_err();
    assert_eq!(error.status(), Some(422));
    assert_eq!(requests(&server, "PATCH", "/nodes/"), 2);
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up_by_the_bound_on_a_try() {
    let server = server().await;
    let (node, _seen, _) = watched(&server).await;
    server.faults().add(
        Fault::new(Action::Delay(Duration::from_secs(3600)))
            .method("PATCH")
            .times(1),
    );
    let written = timeout(BOUND, node.patch_labels(&[Change::set("key", "new")]))
        .await
        .unwrap();
    assert!(written.unwrap());
}

#[tokio::test]
async fn taints_are_added_replaced_and_removed() {
    let server = server().await;
    let (node, _seen, _) = watched(&server).await;
    let stored = || server.object("v1", "Node", "", NAME).unwrap()["spec"]["taints"].clone();
    let other = taint("other", "1", "NoExecute");
    assert!(node.add_taint(&other).await.unwrap());
    assert!(
        node.add_taint(&taint("mig", "1", "NoSchedule"))
            .await
            .unwrap()
    );
    assert!(
        !node
            .add_taint(&taint("mig", "1", "NoSchedule"))
            .await
            .unwrap()
    );
    assert!(
        node.add_taint(&taint("mig", "2", "NoSchedule"))
            .await
            .unwrap()
    );
    assert_eq!(
        stored(),
        json!([
            { "key": "other", "value": "1", "effect": "NoExecute" },
            { "key": "mig", "value": "2", "effect": "NoSchedule" },
        ])
    );
    assert!(node.remove_taint("mig").await.unwrap());
    assert!(!node.remove_taint("mig").await.unwrap());
    assert_eq!(
        stored(),
        json!([{ "key": "other", "value": "1", "effect": "NoExecute" }])
    );
    assert_eq!(requests(&server, "PATCH", "/nodes/"), 4);
}

#[tokio::test]
async fn taints_of_others_are_not_lost() {
    let server = server().await;
    let (node, _seen, _) = watched(&server).await;
    let faults = server.faults();
    // The handle does not hear of what the other does.
    faults.add(
        Fault::new(Action::Answer(503, None))
            .method("GET")
            .path("/api/v1/nodes")
            .times(2),
    );
    faults.break_watches();
    let patch = Patch::Merge(json!({ "spec": { "taints": [taint("theirs", "1", "NoSchedule")] } }));
    nodes(&server)
        .await
        .patch(NAME, &PatchParams::default(), &patch)
        .await
        .unwrap();
    assert!(
        node.add_taint(&taint("ours", "1", "NoSchedule"))
            .await
            .unwrap()
    );
    let stored = server.object("v1", "Node", "", NAME).unwrap();
    let keys: Vec<_> = stored["spec"]["taints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|taint| &taint["key"])
        .collect();
    assert_eq!(keys, ["theirs", "ours"]);
}

#[tokio::test]
async fn a_node_is_cordoned_and_uncordoned_once() {
    let server = server().await;
    let (node, _seen, _) = watched(&server).await;
    let stored = || server.object("v1", "Node", "", NAME).unwrap()["spec"]["unschedulable"].clone();
    assert!(!node.set_unschedulable(false).await.unwrap());
    assert!(node.set_unschedulable(true).await.unwrap());
    assert!(!node.set_unschedulable(true).await.unwrap());
    assert_eq!(stored(), json!(true));
    assert!(node.set_unschedulable(false).await.unwrap());
    assert_eq!(stored(), json!(null));
    assert_eq!(requests(&server, "PATCH", "/nodes/"), 2);
}

#[tokio::test]
async fn a_condition_is_written_beside_those_of_others() {
    let server = server().await;
    let mut object = node(json!({}));
    object["status"] = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
    server.seed([object]).unwrap();
    let (node, ..) = watched(&server).await;
    let since = "2026-01-02T03:04:05Z".parse().unwrap();
    for holds in [None, Some(false), Some(true)] {
        let condition = Condition {
            kind: "Broken".to_owned(),
            holds,
            reason: "Because".to_owned(),
            message: "of this".to_owned(),
        };
        node.set_condition(&condition, since).await.unwrap();
    }
    let stored = server.object("v1", "Node", "", NAME).unwrap()["status"]["conditions"].clone();
    let find = |kind: &str| {
        let conditions = stored.as_array().unwrap().clone();
        assert_eq!(conditions.len(), 2, "{stored}");
        conditions
            .into_iter()
            .find(|condition| condition["type"] == kind)
            .unwrap()
    };
    assert_eq!(find("Ready")["status"], "True");
    let own = find("Broken");
    assert_eq!(
        (&own["status"], &own["reason"], &own["message"]),
        (&json!("True"), &json!("Because"), &json!("of this"))
    );
    assert_eq!(own["lastTransitionTime"], "2026-01-02T03:04:05Z");
    let found = node.condition("Broken").await.unwrap();
    assert_eq!(
        found.map(|(found, then)| (found.holds, found.message, then)),
        Some((Some(true), "of this".to_owned(), since))
    );
    assert_eq!(node.condition("Whole").await.unwrap(), None);
}

#[tokio::test]
async fn a_dropped_handle_stops_watching() {
    let server = server().await;
    let (node, seen, _) = watched(&server).await;
    let clone = node.clone();
    drop((node, seen));
    assert!(clone.latest().state().is_some());
    // The list and the watch.
    asked(&server, 2).await;
    drop(clone);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let before = requests(&server, "GET", "/api/v1/nodes");
    server.faults().break_watches();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(requests(&server, "GET", "/api/v1/nodes"), before);
}
