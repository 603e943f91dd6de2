//! Deletion: preconditions, finalizers, the grace of pods, eviction, namespaces, collections.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use sim_kubernetes::Options;

use crate::http::{
    CONFIG_MAPS, Cluster, MERGE_PATCH, NODES, PODS, cluster, cluster_with, config_map, node, pod,
    version_of,
};

#[tokio::test]
async fn a_deletion_says_what_went() {
    let cluster = cluster().await;
    let (_, made) = cluster.post(NODES, &node("n")).await;
    let (code, answer) = cluster.delete(&format!("{NODES}/n")).await;
    assert_eq!(
        (code, &answer["kind"], &answer["status"]),
        (200, &json!("Status"), &json!("Success"))
    );
    assert_eq!(
        answer["details"],
        json!({"name": "n", "kind": "nodes", "uid": made["metadata"]["uid"]})
    );
    assert_eq!(cluster.delete(&format!("{NODES}/n")).await.0, 404);
}

#[tokio::test]
async fn preconditions_protect_the_successor() {
    let cluster = cluster().await;
    let (_, made) = cluster.post(NODES, &node("n")).await;
    let delete = async |preconditions: Value| {
        let body =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions});
        cluster
            .send(
                "DELETE",
                &format!("{NODES}/n"),
                &[("content-type", "application/json")],
                &body,
            )
            .await
    };
    let (code, answer) = delete(json!({"uid": "other"})).await;
    let message = format!(
        "Operation cannot be fulfilled on Node \"n\": the UID in the precondition (other) does not match the UID in record ({}). The object might have been deleted and then recreated",
        made["metadata"]["uid"].as_str().unwrap()
    );
    assert_eq!((code, &answer["message"]), (409, &json!(message)));
    assert_eq!(delete(json!({"resourceVersion": "1"})).await.0, 409);
    let right = json!({"uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"]});
    assert_eq!(delete(right).await.0, 200);
}

#[tokio::test]
async fn finalizers_hold_an_object() {
    let cluster = cluster().await;
    let path = format!("{CONFIG_MAPS}/c");
    let mut body = config_map("c");
    body["metadata"]["finalizers"] = json!(["x/one"]);
    cluster.post(CONFIG_MAPS, &body).await;
    let (code, held) = cluster.delete(&path).await;
    assert_eq!(
        (code, &held["metadata"]["deletionGracePeriodSeconds"]),
        (200, &json!(0))
    );
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    let (_, again) = cluster.delete(&path).await;
    assert_eq!(
        version_of(&again),
        version_of(&held),
        "a second deletion changes nothing"
    );
    let (code, answer) = cluster
        .patch(
            &path,
            MERGE_PATCH,
            &json!({"metadata": {"finalizers": ["x/one", "x/two"]}}),
        )
        .await;
    assert_eq!(code, 422);
    assert!(answer["message"].as_str().unwrap().contains("no new finalizers can be added if the object is being deleted, found new finalizers []string{\"x/two\"}"));
    let mut events = cluster
        .watch(&format!(
            "{CONFIG_MAPS}?watch=true&resourceVersion={}",
            version_of(&held)
        ))
        .await;
    assert_eq!(
        cluster
            .patch(
                &path,
                MERGE_PATCH,
                &json!({"metadata": {"finalizers": null}})
            )
            .await
            .0,
        200
    );
    assert_eq!(events.brief().await, ("DELETED".to_owned(), "c".to_owned()));
    assert_eq!(cluster.get(&path).await.0, 404);
}

#[tokio::test]
async fn a_running_pod_gets_its_grace() {
    let cluster = cluster_with(Options {
        pod_stop_time: None,
        ..Options::default()
    })
    .await;
    cluster.post(PODS, &pod("p", Some("n"))).await;
    let path = format!("{PODS}/p");
    let (code, leaving) = cluster.delete(&path).await;
    assert_eq!(
        (code, &leaving["metadata"]["deletionGracePeriodSeconds"]),
        (200, &json!(30))
    );
    assert_eq!(leaving["metadata"]["generation"], 2);
    let (_, shorter) = cluster
        .delete(&format!("{path}?gracePeriodSeconds=5"))
        .await;
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    let (_, longer) = cluster
        .delete(&format!("{path}?gracePeriodSeconds=60"))
        .await;
    assert_eq!(longer["metadata"]["deletionGracePeriodSeconds"], 5);
    assert_eq!(
        cluster
            .delete(&format!("{path}?gracePeriodSeconds=0"))
            .await
            .0,
        200
    );
    assert_eq!(cluster.get(&path).await.0, 404);
}

#[tokio::test]
async fn a_deleted_pod_ends_by_itself() {
    let cluster = cluster_with(Options {
        pod_stop_time: Some(Duration::from_millis(20)),
        ..Options::default()
    })
    .await;
    let (_, made) = cluster.post(PODS, &pod("p", Some("n"))).await;
    let mut events = cluster
        .watch(&format!(
            "{PODS}?watch=true&resourceVersion={}",
            version_of(&made)
        ))
        .await;
    cluster.delete(&format!("{PODS}/p")).await;
    let marked = events.next().await.unwrap();
    assert_eq!(marked["type"], "MODIFIED");
    assert!(marked["object"]["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(events.brief().await, ("DELETED".to_owned(), "p".to_owned()));
}

#[rstest]
#[case::on_no_node(None, "Pending")]
#[case::ended(Some("n"), "Succeeded")]
#[tokio::test]
async fn a_pod_that_does_not_run_goes_at_once(#[case] node: Option<&str>, #[case] phase: &str) {
    let cluster = cluster_with(Options {
        pod_stop_time: None,
        ..Options::default()
    })
    .await;
    cluster.post(PODS, &pod("p", node)).await;
    let path = format!("{PODS}/p");
    cluster
        .patch(
            &format!("{path}/status"),
            MERGE_PATCH,
            &json!({"status": {"phase": phase}}),
        )
        .await;
    assert_eq!(cluster.delete(&path).await.0, 200);
    assert_eq!(cluster.get(&path).await.0, 404);
}

async fn evict(cluster: &Cluster, name: &str) -> (u16, Value) {
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}});
    cluster
        .post(&format!("{PODS}/{name}/eviction"), &body)
        .await
}

async fn running_pods(names: &[&str]) -> Cluster {
    let cluster = cluster_with(Options {
        pod_stop_time: None,
        ..Options::default()
    })
    .await;
    for name in names {
        cluster.post(PODS, &pod(name, Some("n"))).await;
        cluster
            .patch(
                &format!("{PODS}/{name}/status"),
                MERGE_PATCH,
                &json!({"status": {"phase": "Running"}}),
            )
            .await;
    }
    cluster
}

fn budget(spec: Value) -> Value {
    let mut spec = spec;
    spec["selector"] = json!({"matchLabels": {"app": "web"}});
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": spec})
}

const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

#[rstest]
#[case::min_available(json!({"minAvailable": 1}), 1)]
#[case::max_unavailable(json!({"maxUnavailable": 1}), 1)]
#[case::half_rounded_up(json!({"minAvailable": "50%"}), 1)]
#[tokio::test]
async fn a_budget_bounds_evictions(#[case] spec: Value, #[case] needed: u32) {
    let cluster = running_pods(&["p1", "p2"]).await;
    assert_eq!(cluster.post(BUDGETS, &budget(spec)).await.0, 201);
    assert_eq!(evict(&cluster, "p1").await.0, 201);
    let (code, answer) = evict(&cluster, "p2").await;
    assert_eq!((code, &answer["reason"]), (429, &json!("TooManyRequests")));
    assert_eq!(
        answer["message"],
        "Cannot evict pod as it would violate the pod's disruption budget."
    );
    assert_eq!(
        answer["details"]["causes"],
        json!([{"reason": "DisruptionBudget", "message": format!("The disruption budget b needs {needed} healthy pods and has 1 currently")}])
    );
    assert_eq!(
        evict(&cluster, "p1").await.0,
        201,
        "a pod that is leaving anyway is no disruption"
    );
}

#[tokio::test]
async fn the_status_of_a_budget_decides_where_there_is_one() {
    let cluster = running_pods(&["p1", "p2"]).await;
    cluster
        .post(BUDGETS, &budget(json!({"minAvailable": 0})))
        .await;
    let status = json!({"status": {"disruptionsAllowed": 1, "desiredHealthy": 0, "currentHealthy": 2, "expectedPods": 2, "observedGeneration": 1}});
    cluster
        .patch(&format!("{BUDGETS}/b/status"), MERGE_PATCH, &status)
        .await;
    assert_eq!(evict(&cluster, "p1").await.0, 201);
    let (_, spent) = cluster.get(&format!("{BUDGETS}/b")).await;
    assert_eq!(spent["status"]["disruptionsAllowed"], 0);
    assert!(spent["status"]["disruptedPods"]["p1"].is_string());
    assert_eq!(evict(&cluster, "p2").await.0, 429);
}

#[tokio::test]
async fn a_pod_is_bound_once() {
    let cluster = cluster().await;
    cluster.post(PODS, &pod("p", None)).await;
    let body = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    let path = format!("{PODS}/p/binding");
    assert_eq!(cluster.post(&path, &body).await.0, 201);
    assert_eq!(
        cluster.get(&format!("{PODS}/p")).await.1["spec"]["nodeName"],
        "n1"
    );
    assert_eq!(cluster.post(&path, &body).await.0, 409);
}

#[tokio::test]
async fn a_namespace_takes_its_objects_with_it() {
    let cluster = cluster().await;
    let (code, made) = cluster
        .post(
            "/api/v1/namespaces",
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu"}}),
        )
        .await;
    assert_eq!((code, &made["status"]["phase"]), (201, &json!("Active")));
    assert_eq!(
        made["metadata"]["labels"]["kubernetes.io/metadata.name"],
        "gpu"
    );
    cluster
        .post("/api/v1/namespaces/gpu/configmaps", &config_map("c"))
        .await;
    assert_eq!(cluster.delete("/api/v1/namespaces/gpu").await.0, 200);
    assert_eq!(
        cluster.get("/api/v1/namespaces/gpu/configmaps/c").await.0,
        404
    );
    assert_eq!(cluster.get("/api/v1/namespaces/gpu").await.0, 404);
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector() {
    let cluster = cluster().await;
    for (name, app) in [("a", "x"), ("b", "y"), ("c", "x")] {
        let mut body = config_map(name);
        body["metadata"]["labels"] = json!({"app": app});
        cluster.post(CONFIG_MAPS, &body).await;
    }
    let (code, deleted) = cluster
        .delete(&format!("{CONFIG_MAPS}?labelSelector=app%3Dx"))
        .await;
    assert_eq!((code, deleted["items"].as_array().unwrap().len()), (200, 2));
    let (_, left) = cluster.get(CONFIG_MAPS).await;
    assert_eq!(left["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_budget_that_was_not_looked_at_yet_is_waited_for() {
    let cluster = running_pods(&["p1"]).await;
    cluster
        .post(BUDGETS, &budget(json!({"minAvailable": 0})))
        .await;
    let status = json!({"status": {"disruptionsAllowed": 1, "desiredHealthy": 0, "currentHealthy": 1, "expectedPods": 1, "observedGeneration": 0}});
    cluster
        .patch(&format!("{BUDGETS}/b/status"), MERGE_PATCH, &status)
        .await;
    let (code, answer) = evict(&cluster, "p1").await;
    assert_eq!(
        (code, &answer["details"]["retryAfterSeconds"]),
        (429, &json!(10))
    );
    assert_eq!(
        answer["details"]["causes"][0]["message"],
        "The disruption budget b is still being processed by the server."
    );
}

#[tokio::test]
async fn a_dry_eviction_spends_nothing() {
    let cluster = running_pods(&["p1"]).await;
    let before = cluster.server.resource_version();
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p1"}});
    let path = format!("{PODS}/p1/eviction?dryRun=All");
    assert_eq!(cluster.post(&path, &body).await.0, 201);
    assert_eq!(cluster.server.resource_version(), before);
}
