//! Watches: where they start, what they show, how they end.

use std::time::Duration;

use serde_json::{Value, json};
use sim_kubernetes::Options;

use crate::http::{
    CONFIG_MAPS, MERGE_PATCH, NODES, PODS, cluster, cluster_with, config_map, node, pod, version_of,
};

fn event(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

#[tokio::test]
async fn a_watch_from_a_version_shows_what_came_after() {
    let cluster = cluster().await;
    let (_, first) = cluster.post(NODES, &node("a")).await;
    cluster.post(NODES, &node("b")).await;
    let mut events = cluster
        .watch(&format!(
            "{NODES}?watch=true&resourceVersion={}",
            version_of(&first)
        ))
        .await;
    assert_eq!(events.brief().await, event("ADDED", "b"));
    cluster
        .patch(
            &format!("{NODES}/a"),
            MERGE_PATCH,
            &json!({"metadata": {"labels": {"x": "1"}}}),
        )
        .await;
    assert_eq!(events.brief().await, event("MODIFIED", "a"));
    let before = cluster.server.resource_version();
    cluster.delete(&format!("{NODES}/a")).await;
    let deleted = events.next().await.unwrap();
    assert_eq!(
        (&deleted["type"], version_of(&deleted["object"])),
        (&json!("DELETED"), before + 1)
    );
    assert_eq!(deleted["object"]["kind"], "Node");
}

#[tokio::test]
async fn a_watch_without_a_version_starts_with_what_is_there() {
    let cluster = cluster().await;
    cluster.post(NODES, &node("b")).await;
    cluster.post(NODES, &node("a")).await;
    for query in ["watch=true", "watch=1&resourceVersion=0"] {
        let mut events = cluster.watch(&format!("{NODES}?{query}")).await;
        assert_eq!(events.brief().await, event("ADDED", "a"));
        assert_eq!(events.brief().await, event("ADDED", "b"));
    }
}

#[tokio::test]
async fn objects_enter_and_leave_a_selection() {
    let cluster = cluster().await;
    let start = cluster.server.resource_version();
    let mut events = cluster
        .watch(&format!(
            "{NODES}?watch=true&resourceVersion={start}&labelSelector=gpu%3Dyes"
        ))
        .await;
    let label = async |value: Value| {
        cluster
            .patch(
                &format!("{NODES}/n"),
                MERGE_PATCH,
                &json!({"metadata": {"labels": {"gpu": value}}}),
            )
            .await
            .1
    };
    cluster.post(NODES, &node("n")).await;
    label(json!("yes")).await;
    assert_eq!(events.brief().await, event("ADDED", "n"));
    let left = label(json!("no")).await;
    let gone = events.next().await.unwrap();
    assert_eq!(gone["type"], "DELETED");
    assert_eq!(
        gone["object"]["metadata"]["labels"]["gpu"], "yes",
        "the last state that was selected"
    );
    assert_eq!(version_of(&gone["object"]), version_of(&left));
    label(json!(null)).await;
    label(json!("yes")).await;
    assert_eq!(events.brief().await, event("ADDED", "n"));
    cluster.delete(&format!("{NODES}/n")).await;
    assert_eq!(events.brief().await, event("DELETED", "n"));
}

#[tokio::test]
async fn a_watch_is_about_one_namespace_name_or_field() {
    let cluster = cluster().await;
    let start = cluster.server.resource_version();
    let one = format!("resourceVersion={start}");
    let mut space = cluster
        .watch(&format!(
            "/api/v1/namespaces/kube-system/configmaps?watch=true&{one}"
        ))
        .await;
    let mut name = cluster
        .watch(&format!(
            "{CONFIG_MAPS}?watch=true&{one}&fieldSelector=metadata.name%3Db"
        ))
        .await;
    let mut all = cluster
        .watch(&format!("/api/v1/configmaps?watch=true&{one}"))
        .await;
    let mut pods = cluster
        .watch(&format!(
            "/api/v1/pods?watch=true&{one}&fieldSelector=spec.nodeName%3Dn1"
        ))
        .await;
    cluster.post(CONFIG_MAPS, &config_map("a")).await;
    cluster.post(CONFIG_MAPS, &config_map("b")).await;
    cluster
        .post(
            "/api/v1/namespaces/kube-system/configmaps",
            &config_map("c"),
        )
        .await;
    cluster.post(PODS, &pod("p2", Some("n2"))).await;
    cluster.post(PODS, &pod("p1", Some("n1"))).await;
    assert_eq!(space.brief().await, event("ADDED", "c"));
    assert_eq!(name.brief().await, event("ADDED", "b"));
    for expected in ["a", "b", "c"] {
        assert_eq!(all.brief().await, event("ADDED", expected));
    }
    assert_eq!(pods.brief().await, event("ADDED", "p1"));
}

#[tokio::test]
async fn lost_history_is_an_error_event() {
    let cluster = cluster().await;
    let (_, first) = cluster.post(NODES, &node("a")).await;
    let mut running = cluster
        .watch(&format!(
            "{NODES}?watch=true&resourceVersion={}",
            version_of(&first)
        ))
        .await;
    let (_, second) = cluster.post(NODES, &node("b")).await;
    assert_eq!(running.brief().await, event("ADDED", "b"));
    cluster.server.faults().expire_history();
    let events = cluster
        .watch(&format!(
            "{NODES}?watch=true&resourceVersion={}",
            version_of(&first)
        ))
        .await;
    let all = events.rest().await;
    assert_eq!(all.len(), 1, "the stream ends after the error");
    let status = &all[0]["object"];
    assert_eq!(
        (&all[0]["type"], &status["code"], &status["reason"]),
        (&json!("ERROR"), &json!(410), &json!("Expired"))
    );
    let message = format!(
        "too old resource version: {} ({})",
        version_of(&first),
        version_of(&second)
    );
    assert_eq!(status["message"], message);
    cluster.post(NODES, &node("c")).await;
    assert_eq!(
        running.brief().await,
        event("ADDED", "c"),
        "a running watch goes on"
    );
}

#[tokio::test]
async fn the_history_is_a_window() {
    let cluster = cluster_with(Options {
        history: 3,
        ..Options::default()
    })
    .await;
    let start = cluster.server.resource_version();
    for name in ["a", "b", "c", "d"] {
        cluster.post(CONFIG_MAPS, &config_map(name)).await;
    }
    let mut events = cluster
        .watch(&format!(
            "{CONFIG_MAPS}?watch=true&resourceVersion={}",
            start + 1
        ))
        .await;
    assert_eq!(
        events.brief().await,
        event("ADDED", "b"),
        "three changes are remembered"
    );
    let mut events = cluster
        .watch(&format!("{CONFIG_MAPS}?watch=true&resourceVersion={start}"))
        .await;
    assert_eq!(events.next().await.unwrap()["type"], "ERROR");
}

#[tokio::test]
async fn bookmarks_come_to_those_who_asked() {
    let cluster = cluster_with(Options {
        bookmark_interval: Duration::from_millis(30),
        ..Options::default()
    })
    .await;
    cluster.post(NODES, &node("n")).await;
    let start = cluster.server.resource_version();
    let query = format!("watch=true&resourceVersion={start}");
    let silent = cluster.watch(&format!("{NODES}?{query}")).await;
    let mut marked = cluster
        .watch(&format!("{NODES}?{query}&allowWatchBookmarks=true"))
        .await;
    let (_, made) = cluster.post(CONFIG_MAPS, &config_map("a")).await;
    let mut last = 0;
    let mut count = 0;
    while last < version_of(&made) || count < 2 {
        let bookmark = marked.next().await.unwrap();
        assert_eq!(
            (&bookmark["type"], &bookmark["object"]["kind"]),
            (&json!("BOOKMARK"), &json!("Node"))
        );
        assert_eq!(bookmark["object"]["metadata"].get("name"), None);
        last = version_of(&bookmark["object"]);
        count += 1;
    }
    assert_eq!(
        last,
        version_of(&made),
        "a bookmark follows writes of other kinds"
    );
    cluster.server.shutdown().await;
    assert_eq!(silent.rest().await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_streaming_list_ends_with_a_bookmark() {
    let cluster = cluster().await;
    cluster.post(NODES, &node("a")).await;
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut events = cluster.watch(&format!("{NODES}?{query}")).await;
    assert_eq!(events.brief().await, event("ADDED", "a"));
    let bookmark = events.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(
        bookmark["object"]["metadata"]["annotations"],
        json!({"k8s.io/initial-events-end": "true"})
    );
    assert_eq!(
        version_of(&bookmark["object"]),
        cluster.server.resource_version()
    );
    cluster.post(NODES, &node("b")).await;
    assert_eq!(events.brief().await, event("ADDED", "b"));
    let (code, answer) = cluster
        .get(&format!("{NODES}?watch=true&sendInitialEvents=true"))
        .await;
    assert_eq!(code, 422);
    assert!(
        answer["message"]
            .as_str()
            .unwrap()
            .contains("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
    );
}

#[tokio::test]
async fn a_watch_ends_at_its_timeout_and_with_the_server() {
    let cluster = cluster().await;
    let short = cluster
        .watch(&format!("{NODES}?watch=true&timeoutSeconds=1"))
        .await;
    assert_eq!(short.rest().await, Vec::<Value>::new());
    let long = cluster.watch(&format!("{NODES}?watch=true")).await;
    cluster.server.shutdown().await;
    assert_eq!(
        long.rest().await,
        Vec::<Value>::new(),
        "the stream ends, it does not break"
    );
}

#[tokio::test]
async fn a_word_is_no_version() {
    let cluster = cluster().await;
    let (code, answer) = cluster
        .get(&format!("{NODES}?watch=true&resourceVersion=soon"))
        .await;
    assert_eq!((code, answer.get("reason")), (500, None));
}
