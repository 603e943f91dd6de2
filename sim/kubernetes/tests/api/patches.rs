//! JSON patch, merge patch and strategic merge patch.

use rstest::rstest;
use serde_json::{Value, json};

use crate::http::{JSON_PATCH, MERGE_PATCH, NODES, PODS, STRATEGIC_PATCH, cluster, node, pod};

/// A node with something of everything that merges.
fn rich_node() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": "n", "labels": {"a": "1", "b": "2"}, "finalizers": ["x/one", "x/two"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u1"}],
        },
        "spec": {"taints": [{"key": "t1", "effect": "NoSchedule"}, {"key": "t2", "effect": "NoExecute"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "reason": "Up"}, {"type": "Pressure", "status": "False"}],
            "addresses": [{"type": "Hostname", "address": "n"}],
        },
    })
}

#[rstest]
#[case::label_set_and_removed(
    json!({"metadata": {"labels": {"a": null, "c": "3"}}}),
    "/metadata/labels", json!({"b": "2", "c": "3"})
)]
#[case::taints_are_replaced_whole(
    json!({"spec": {"taints": [{"key": "t3", "effect": "NoSchedule"}]}}),
    "/spec/taints", json!([{"key": "t3", "effect": "NoSchedule"}])
)]
#[case::finalizers_are_added(
    json!({"metadata": {"finalizers": ["x/three", "x/one"]}}),
    "/metadata/finalizers", json!(["x/three", "x/one", "x/two"])
)]
#[case::finalizers_are_deleted(
    json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x/one"]}}),
    "/metadata/finalizers", json!(["x/two"])
)]
#[case::finalizers_are_ordered(
    json!({"metadata": {"$setElementOrder/finalizers": ["x/two", "x/one"]}}),
    "/metadata/finalizers", json!(["x/two", "x/one"])
)]
#[case::owners_go_by_uid(
    json!({"metadata": {"ownerReferences": [{"uid": "u1", "$patch": "delete"}, {"apiVersion": "v1", "kind": "ConfigMap", "name": "p", "uid": "u2"}]}}),
    "/metadata/ownerReferences", json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "p", "uid": "u2"}])
)]
#[case::an_object_is_replaced(
    json!({"metadata": {"labels": {"$patch": "replace", "z": "9"}}}),
    "/metadata/labels", json!({"z": "9"})
)]
#[case::an_object_is_deleted(json!({"metadata": {"labels": {"$patch": "delete"}}}), "/metadata/labels", Value::Null)]
#[case::keys_are_retained(
    json!({"metadata": {"labels": {"$retainKeys": ["b", "d"], "d": "4"}}}),
    "/metadata/labels", json!({"b": "2", "d": "4"})
)]
#[tokio::test]
async fn strategic_merge_of_a_node(
    #[case] patch: Value,
    #[case] pointer: &str,
    #[case] expected: Value,
) {
    let cluster = cluster().await;
    cluster.post(NODES, &rich_node()).await;
    let (code, patched) = cluster
        .patch(&format!("{NODES}/n"), STRATEGIC_PATCH, &patch)
        .await;
    assert_eq!(code, 200, "{patched}");
    assert_eq!(patched.pointer(pointer).unwrap_or(&Value::Null), &expected);
}

#[rstest]
#[case::one_condition_changes(
    json!({"conditions": [{"type": "Ready", "status": "False"}]}),
    json!([{"type": "Ready", "status": "False", "reason": "Up"}, {"type": "Pressure", "status": "False"}])
)]
#[case::one_condition_comes_first(
    json!({"$setElementOrder/conditions": [{"type": "Gpu"}, {"type": "Ready"}, {"type": "Pressure"}], "conditions": [{"type": "Gpu", "status": "True"}]}),
    json!([{"type": "Gpu", "status": "True"}, {"type": "Ready", "status": "True", "reason": "Up"}, {"type": "Pressure", "status": "False"}])
)]
#[case::the_list_is_replaced(
    json!({"conditions": [{"type": "Gpu", "status": "True"}, {"$patch": "replace"}]}),
    json!([{"type": "Gpu", "status": "True"}])
)]
#[tokio::test]
async fn strategic_merge_of_conditions(#[case] status: Value, #[case] expected: Value) {
    let cluster = cluster().await;
    cluster.post(NODES, &rich_node()).await;
    let (code, patched) = cluster
        .patch(
            &format!("{NODES}/n/status"),
            STRATEGIC_PATCH,
            &json!({ "status": status }),
        )
        .await;
    assert_eq!(code, 200, "{patched}");
    assert_eq!(patched["status"]["conditions"], expected);
}

#[rstest]
#[case::no_merge_key(json!({"status": {"conditions": [{"status": "True"}]}}), 500, "does not contain declared merge key: type")]
#[case::unknown_directive(json!({"status": {"$patch": "dance"}}), 500, "unknown patch type: dance in map: map[$patch:dance]")]
#[tokio::test]
async fn a_strategic_patch_that_cannot_merge_changes_nothing(
    #[case] patch: Value,
    #[case] expected: u16,
    #[case] message: &str,
) {
    let cluster = cluster().await;
    let (_, made) = cluster.post(NODES, &rich_node()).await;
    let (code, answer) = cluster
        .patch(&format!("{NODES}/n/status"), STRATEGIC_PATCH, &patch)
        .await;
    assert_eq!(code, expected);
    assert!(
        answer["message"].as_str().unwrap().contains(message),
        "{answer}"
    );
    assert_eq!(cluster.get(&format!("{NODES}/n")).await.1, made);
}

#[tokio::test]
async fn strategic_merge_goes_into_containers() {
    let cluster = cluster().await;
    let template =
        |containers: Value| json!({"spec": {"template": {"spec": {"containers": containers}}}});
    let mut body = template(json!([
        {"name": "a", "image": "a:1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
        {"name": "b", "image": "b:1"},
    ]));
    body["apiVersion"] = json!("apps/v1");
    body["kind"] = json!("DaemonSet");
    body["metadata"] = json!({"name": "d"});
    let path = "/apis/apps/v1/namespaces/default/daemonsets";
    assert_eq!(cluster.post(path, &body).await.0, 201);
    let patch = template(
        json!([{"name": "b", "$patch": "delete"}, {"name": "a", "env": [{"name": "X", "value": "9"}, {"name": "Z", "value": "3"}]}]),
    );
    let (code, patched) = cluster
        .patch(&format!("{path}/d"), STRATEGIC_PATCH, &patch)
        .await;
    assert_eq!(code, 200);
    let containers = &patched["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers.as_array().unwrap().len(), 1);
    assert_eq!(containers[0]["image"], "a:1");
    assert_eq!(
        containers[0]["env"],
        json!([{"name": "X", "value": "9"}, {"name": "Z", "value": "3"}, {"name": "Y", "value": "2"}])
    );
    assert_eq!(patched["metadata"]["generation"], 2);
}

#[tokio::test]
async fn a_merge_patch_replaces_lists() {
    let cluster = cluster().await;
    cluster.post(NODES, &rich_node()).await;
    let patch = json!({"metadata": {"finalizers": ["x/three"], "labels": {"a": null}}});
    let (code, patched) = cluster
        .patch(&format!("{NODES}/n"), MERGE_PATCH, &patch)
        .await;
    assert_eq!(code, 200);
    assert_eq!(patched["metadata"]["finalizers"], json!(["x/three"]));
    assert_eq!(patched["metadata"]["labels"], json!({"b": "2"}));
}

#[rstest]
#[case::add(json!([{"op": "add", "path": "/metadata/labels/x~1y", "value": "v"}]), "/metadata/labels", json!({"a": "1", "b": "2", "x/y": "v"}))]
#[case::append(json!([{"op": "add", "path": "/metadata/finalizers/-", "value": "x/3"}]), "/metadata/finalizers", json!(["x/one", "x/two", "x/3"]))]
#[case::insert(json!([{"op": "add", "path": "/metadata/finalizers/1", "value": "x/3"}]), "/metadata/finalizers", json!(["x/one", "x/3", "x/two"]))]
#[case::remove(json!([{"op": "remove", "path": "/metadata/labels/a"}]), "/metadata/labels", json!({"b": "2"}))]
#[case::replace(json!([{"op": "replace", "path": "/metadata/labels", "value": {"q": "1"}}]), "/metadata/labels", json!({"q": "1"}))]
#[case::moved(json!([{"op": "move", "from": "/metadata/labels/a", "path": "/metadata/labels/c"}]), "/metadata/labels", json!({"b": "2", "c": "1"}))]
#[case::copied(json!([{"op": "copy", "from": "/metadata/labels/a", "path": "/metadata/labels/c"}]), "/metadata/labels", json!({"a": "1", "b": "2", "c": "1"}))]
#[tokio::test]
async fn json_patch_operations(
    #[case] patch: Value,
    #[case] pointer: &str,
    #[case] expected: Value,
) {
    let cluster = cluster().await;
    cluster.post(NODES, &rich_node()).await;
    let (code, patched) = cluster
        .patch(&format!("{NODES}/n"), JSON_PATCH, &patch)
        .await;
    assert_eq!(code, 200, "{patched}");
    assert_eq!(patched.pointer(pointer), Some(&expected));
}

#[rstest]
#[case::failed_test(json!([{"op": "remove", "path": "/metadata/labels/a"}, {"op": "test", "path": "/metadata/labels/b", "value": "0"}]), 422)]
#[case::missing_target(json!([{"op": "remove", "path": "/metadata/labels/none"}]), 422)]
#[case::missing_parent(json!([{"op": "add", "path": "/spec/none/x", "value": 1}]), 422)]
#[case::beyond_the_end(json!([{"op": "add", "path": "/metadata/finalizers/9", "value": "x/9"}]), 422)]
#[case::unknown(json!([{"op": "dance", "path": "/metadata"}]), 422)]
#[case::no_list(json!({"op": "add"}), 400)]
#[tokio::test]
async fn a_json_patch_applies_whole_or_not_at_all(#[case] patch: Value, #[case] code: u16) {
    let cluster = cluster().await;
    let (_, made) = cluster.post(NODES, &rich_node()).await;
    let answer = cluster
        .patch(&format!("{NODES}/n"), JSON_PATCH, &patch)
        .await;
    assert_eq!(answer.0, code);
    assert_eq!(cluster.get(&format!("{NODES}/n")).await.1, made);
}

#[tokio::test]
async fn a_patch_with_a_resource_version_is_conditional() {
    let cluster = cluster().await;
    let (_, made) = cluster.post(NODES, &node("n")).await;
    let path = format!("{NODES}/n");
    let patch = |value: &str| json!({"metadata": {"labels": {"a": value}, "resourceVersion": made["metadata"]["resourceVersion"]}});
    assert_eq!(cluster.patch(&path, MERGE_PATCH, &patch("1")).await.0, 200);
    assert_eq!(cluster.patch(&path, MERGE_PATCH, &patch("2")).await.0, 409);
}

#[tokio::test]
async fn what_identifies_an_object_cannot_be_patched() {
    let cluster = cluster().await;
    let (_, made) = cluster.post(PODS, &pod("p", None)).await;
    let path = format!("{PODS}/p");
    assert_eq!(
        cluster
            .patch(&path, MERGE_PATCH, &json!({"metadata": {"name": "q"}}))
            .await
            .0,
        400
    );
    let kept = json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z", "generation": 77, "labels": {"x": "1"}}});
    let (code, patched) = cluster.patch(&path, MERGE_PATCH, &kept).await;
    assert_eq!(code, 200);
    assert_eq!(
        patched["metadata"]["creationTimestamp"],
        made["metadata"]["creationTimestamp"]
    );
    assert_eq!(patched["metadata"]["generation"], 1);
}
