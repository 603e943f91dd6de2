//! Server-side apply: ownership, conflicts, removal, and what other writes do to ownership.

use rstest::rstest;
use serde_json::{Value, json};

use crate::http::{
    APPLY_PATCH, Answer, CONFIG_MAPS, Cluster, MERGE_PATCH, NODES, PODS, cluster, config_map, node,
};

async fn apply(cluster: &Cluster, path: &str, manager: &str, force: bool, body: &Value) -> Answer {
    let path = format!("{path}?fieldManager={manager}&force={force}");
    cluster.patch(&path, APPLY_PATCH, body).await
}

fn labels(labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": labels}})
}

/// Fields that a manager owns through an operation.
fn fields_of<'a>(object: &'a Value, manager: &str, operation: &str) -> &'a Value {
    object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|entry| entry["manager"] == manager && entry["operation"] == operation)
        .map_or(&Value::Null, |entry| &entry["fieldsV1"])
}

#[tokio::test]
async fn an_apply_creates_and_owns_what_it_names() {
    let cluster = cluster().await;
    let path = format!("{NODES}/n");
    let (code, made) = apply(
        &cluster,
        &path,
        "a",
        false,
        &labels(json!({"x": "1", "y": "2"})),
    )
    .await;
    assert_eq!(code, 201);
    let entries = made["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(entries.len(), 1);
    let entry = &entries[0];
    assert_eq!(
        (
            &entry["manager"],
            &entry["operation"],
            &entry["apiVersion"],
            &entry["fieldsType"]
        ),
        (
            &json!("a"),
            &json!("Apply"),
            &json!("v1"),
            &json!("FieldsV1")
        )
    );
    assert_eq!(
        entry["fieldsV1"],
        json!({"f:metadata": {"f:labels": {"f:x": {}, "f:y": {}}}})
    );
}

#[tokio::test]
async fn what_is_no_longer_applied_goes() {
    let cluster = cluster().await;
    let path = format!("{NODES}/n");
    apply(
        &cluster,
        &path,
        "a",
        false,
        &labels(json!({"x": "1", "y": "2"})),
    )
    .await;
    let (code, next) = apply(&cluster, &path, "a", false, &labels(json!({"y": "2"}))).await;
    assert_eq!(
        (code, &next["metadata"]["labels"]),
        (200, &json!({"y": "2"}))
    );
    let (_, last) = apply(&cluster, &path, "a", false, &node("n")).await;
    assert_eq!(
        last["metadata"].get("labels"),
        None,
        "the emptied map goes with its last field"
    );
    assert_eq!(
        last["metadata"].get("managedFields"),
        None,
        "who owns nothing is forgotten"
    );
}

#[tokio::test]
async fn what_somebody_else_also_owns_stays() {
    let cluster = cluster().await;
    let path = format!("{NODES}/n");
    apply(
        &cluster,
        &path,
        "a",
        false,
        &labels(json!({"x": "1", "y": "2"})),
    )
    .await;
    let (code, _) = apply(&cluster, &path, "b", false, &labels(json!({"x": "1"}))).await;
    assert_eq!(code, 200, "the same value is no conflict");
    let (_, next) = apply(&cluster, &path, "a", false, &labels(json!({"y": "2"}))).await;
    assert_eq!(next["metadata"]["labels"], json!({"x": "1", "y": "2"}));
    let owned = json!({"f:metadata": {"f:labels": {"f:x": {}}}});
    assert_eq!(fields_of(&next, "b", "Apply"), &owned);
}

#[tokio::test]
async fn another_value_conflicts_with_its_owner() {
    let cluster = cluster().await;
    let path = format!("{NODES}/n");
    apply(
        &cluster,
        &path,
        "a",
        false,
        &labels(json!({"nvidia.com/mig.config": "x"})),
    )
    .await;
    let (code, answer) = apply(
        &cluster,
        &path,
        "b",
        false,
        &labels(json!({"nvidia.com/mig.config": "y"})),
    )
    .await;
    assert_eq!((code, &answer["reason"]), (409, &json!("Conflict")));
    assert_eq!(
        answer["message"],
        "Apply failed with 1 conflict: conflict with \"a\": .metadata.labels.nvidia.com/mig.config"
    );
    assert_eq!(
        answer["details"]["causes"],
        json!([{"reason": "FieldManagerConflict", "message": "conflict with \"a\"", "field": ".metadata.labels.nvidia.com/mig.config"}])
    );
}

#[tokio::test]
async fn several_conflicts_are_listed_by_owner() {
    let cluster = cluster().await;
    let path = format!("{NODES}/n");
    apply(
        &cluster,
        &path,
        "a",
        false,
        &labels(json!({"x": "1", "y": "1"})),
    )
    .await;
    apply(&cluster, &path, "b", false, &labels(json!({"z": "1"}))).await;
    let (code, answer) = apply(
        &cluster,
        &path,
        "c",
        false,
        &labels(json!({"x": "2", "y": "2", "z": "2"})),
    )
    .await;
    assert_eq!(code, 409);
    assert_eq!(
        answer["message"],
        "Apply failed with 3 conflicts: conflicts with \"a\":\n- .metadata.labels.x\n- .metadata.labels.y\nconflicts with \"b\":\n- .metadata.labels.z"
    );
}

#[tokio::test]
async fn force_takes_the_field_over() {
    let cluster = cluster().await;
    let path = format!("{NODES}/n");
    apply(
        &cluster,
        &path,
        "a",
        false,
        &labels(json!({"x": "1", "y": "1"})),
    )
    .await;
    let (code, next) = apply(&cluster, &path, "b", true, &labels(json!({"x": "2"}))).await;
    assert_eq!(
        (code, &next["metadata"]["labels"]),
        (200, &json!({"x": "2", "y": "1"}))
    );
    assert_eq!(
        fields_of(&next, "a", "Apply"),
        &json!({"f:metadata": {"f:labels": {"f:y": {}}}})
    );
    assert_eq!(
        fields_of(&next, "b", "Apply"),
        &json!({"f:metadata": {"f:labels": {"f:x": {}}}})
    );
}

#[tokio::test]
async fn an_update_owns_what_it_changes() {
    let cluster = cluster().await;
    let path = format!("{NODES}/n");
    apply(
        &cluster,
        &path,
        "a",
        false,
        &labels(json!({"x": "1", "y": "1"})),
    )
    .await;
    let change = json!({"metadata": {"labels": {"x": "2"}}});
    let (_, next) = cluster
        .patch(
            &format!("{path}?fieldManager=kubectl-label"),
            MERGE_PATCH,
            &change,
        )
        .await;
    assert_eq!(
        fields_of(&next, "a", "Apply"),
        &json!({"f:metadata": {"f:labels": {"f:y": {}}}})
    );
    assert_eq!(
        fields_of(&next, "kubectl-label", "Update"),
        &json!({"f:metadata": {"f:labels": {"f:x": {}}}})
    );
    let (code, answer) = apply(
        &cluster,
        &path,
        "a",
        false,
        &labels(json!({"x": "1", "y": "1"})),
    )
    .await;
    assert_eq!(code, 409);
    assert_eq!(
        answer["message"],
        "Apply failed with 1 conflict: conflict with \"kubectl-label\" using v1: .metadata.labels.x"
    );
}

#[tokio::test]
async fn removing_a_field_takes_it_from_all_owners() {
    let cluster = cluster().await;
    let path = format!("{NODES}/n");
    apply(
        &cluster,
        &path,
        "a",
        false,
        &labels(json!({"x": "1", "y": "1"})),
    )
    .await;
    let (_, next) = cluster
        .patch(
            &path,
            MERGE_PATCH,
            &json!({"metadata": {"labels": {"x": null}}}),
        )
        .await;
    assert_eq!(
        fields_of(&next, "a", "Apply"),
        &json!({"f:metadata": {"f:labels": {"f:y": {}}}})
    );
}

#[tokio::test]
async fn a_create_is_owned_by_the_program_that_made_it() {
    let cluster = cluster().await;
    let headers = [
        ("content-type", "application/json"),
        ("user-agent", "lathe/1.2 (linux)"),
    ];
    let (_, made) = cluster
        .send("POST", CONFIG_MAPS, &headers, &config_map("one"))
        .await;
    assert_eq!(
        fields_of(&made, "lathe", "Update"),
        &json!({"f:data": {".": {}, "f:key": {}}}),
        "a new map is owned itself, beside its keys"
    );
}

#[tokio::test]
async fn a_status_is_owned_through_its_subresource() {
    let cluster = cluster().await;
    cluster.post(NODES, &node("n")).await;
    let path = format!("{NODES}/n/status");
    let body = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
        "status": {"capacity": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "GpuReady", "status": "True"}]},
    });
    let (code, next) = apply(&cluster, &path, "lathe", false, &body).await;
    assert_eq!(code, 200);
    let entries = next["metadata"]["managedFields"].as_array().unwrap();
    let entry = entries
        .iter()
        .find(|entry| entry["manager"] == "lathe")
        .unwrap();
    assert_eq!(entry["subresource"], "status");
    assert_eq!(
        entry["fieldsV1"],
        json!({"f:status": {
            "f:capacity": {"f:nvidia.com/gpu": {}},
            "f:conditions": {"k:{\"type\":\"GpuReady\"}": {".": {}, "f:status": {}, "f:type": {}}},
        }})
    );
    let other = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
        "status": {"conditions": [{"type": "GpuReady", "status": "False"}, {"type": "Other", "status": "True"}]},
    });
    let (code, answer) = apply(&cluster, &path, "other", false, &other).await;
    assert_eq!(code, 409);
    assert_eq!(
        answer["message"],
        "Apply failed with 1 conflict: conflict with \"lathe\" with subresource \"status\": .status.conditions[type=\"GpuReady\"].status"
    );
    let none = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let (_, last) = apply(&cluster, &path, "lathe", false, &none).await;
    assert_eq!(last["status"].get("conditions"), None);
    assert_eq!(last["status"].get("capacity"), None);
}

#[tokio::test]
async fn items_of_keyed_lists_have_owners_of_their_own() {
    let cluster = cluster().await;
    let path = format!("{PODS}/p");
    let body = |containers: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}});
    let main = json!({"name": "main", "image": "app:1", "ports": [{"containerPort": 80}]});
    let (code, made) = apply(&cluster, &path, "a", false, &body(json!([main]))).await;
    assert_eq!(code, 201, "{made}");
    let owned = fields_of(&made, "a", "Apply");
    assert_eq!(
        owned["f:spec"]["f:containers"],
        json!({"k:{\"name\":\"main\"}": {
            ".": {}, "f:image": {}, "f:name": {},
            "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
        }})
    );
    let (code, next) = apply(
        &cluster,
        &path,
        "b",
        false,
        &body(json!([{"name": "main", "image": "app:1"}])),
    )
    .await;
    assert_eq!(
        (code, next["spec"]["containers"].as_array().unwrap().len()),
        (200, 1)
    );
}

#[tokio::test]
async fn atomic_lists_have_one_owner() {
    let cluster = cluster().await;
    let path = format!("{NODES}/n");
    let taints = |key: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}});
    let (_, made) = apply(&cluster, &path, "a", false, &taints("one")).await;
    assert_eq!(
        fields_of(&made, "a", "Apply"),
        &json!({"f:spec": {"f:taints": {}}})
    );
    let (code, answer) = apply(&cluster, &path, "b", false, &taints("two")).await;
    assert_eq!(
        (code, &answer["details"]["causes"][0]["field"]),
        (409, &json!(".spec.taints"))
    );
    let (code, next) = apply(&cluster, &path, "b", true, &taints("two")).await;
    assert_eq!(
        (code, &next["spec"]["taints"]),
        (200, &json!([{"key": "two", "effect": "NoSchedule"}]))
    );
}

#[tokio::test]
async fn finalizers_and_owners_merge() {
    let cluster = cluster().await;
    let path = format!("{CONFIG_MAPS}/c");
    let body = |finalizers: Value, owner: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "finalizers": finalizers,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": owner, "uid": owner}]}})
    };
    apply(
        &cluster,
        &path,
        "a",
        false,
        &body(json!(["x/a", "x/both"]), "one"),
    )
    .await;
    let (_, next) = apply(
        &cluster,
        &path,
        "b",
        false,
        &body(json!(["x/both", "x/b"]), "two"),
    )
    .await;
    assert_eq!(
        next["metadata"]["finalizers"],
        json!(["x/a", "x/both", "x/b"])
    );
    assert_eq!(
        next["metadata"]["ownerReferences"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(
        fields_of(&next, "b", "Apply"),
        &json!({"f:metadata": {
            "f:finalizers": {"v:\"x/b\"": {}, "v:\"x/both\"": {}},
            "f:ownerReferences": {"k:{\"uid\":\"two\"}": {}},
        }})
    );
    let none = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}});
    let (_, last) = apply(&cluster, &path, "a", false, &none).await;
    assert_eq!(last["metadata"]["finalizers"], json!(["x/both", "x/b"]));
    assert_eq!(last["metadata"]["ownerReferences"][0]["uid"], "two");
}

#[tokio::test]
async fn the_same_apply_again_writes_nothing() {
    let cluster = cluster().await;
    let path = format!("{NODES}/n");
    let (_, first) = apply(&cluster, &path, "a", false, &labels(json!({"x": "1"}))).await;
    let before = cluster.server.resource_version();
    let (code, second) = apply(&cluster, &path, "a", true, &labels(json!({"x": "1"}))).await;
    assert_eq!((code, &second), (200, &first));
    assert_eq!(cluster.server.resource_version(), before);
}

#[tokio::test]
async fn an_object_nobody_applied_before_belongs_to_nobody_yet() {
    let cluster = cluster().await;
    cluster.post(NODES, &labels(json!({"x": "1"}))).await;
    let path = format!("{NODES}/n");
    // The documented way to forget all managers.
    let forget = json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]);
    let (_, bare) = cluster.patch(&path, crate::http::JSON_PATCH, &forget).await;
    assert_eq!(bare["metadata"].get("managedFields"), None);
    let (code, answer) = apply(&cluster, &path, "a", false, &labels(json!({"x": "2"}))).await;
    assert_eq!(code, 409);
    assert_eq!(
        answer["message"],
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .metadata.labels.x"
    );
}

#[rstest]
#[case::no_manager("force=true", labels(json!({})), 422, "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch")]
#[case::other_name("fieldManager=a", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "m"}}), 400, "the name of the object (m) does not match the name on the URL (n)")]
#[case::managed_fields("fieldManager=a", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "managedFields": []}}), 400, "metadata.managedFields must be nil")]
#[case::no_version(
    "fieldManager=a",
    json!({"kind": "Node", "metadata": {"name": "n"}}),
    400,
    "invalid object type: /, Kind=Node"
)]
#[case::no_kind(
    "fieldManager=a",
    json!({"apiVersion": "v1", "metadata": {"name": "n"}}),
    400,
    "invalid object type: /v1, Kind="
)]
#[case::unknown_field(
    "fieldManager=a",
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"taint": []}}),
    500,
    "failed to create typed patch object (/n; /v1, Kind=Node): .spec.taint: field not declared in schema"
)]
#[tokio::test]
async fn an_apply_says_who_and_what(
    #[case] query: &str,
    #[case] body: Value,
    #[case] code: u16,
    #[case] message: &str,
) {
    let cluster = cluster().await;
    let (found, answer) = cluster
        .patch(&format!("{NODES}/n?{query}"), APPLY_PATCH, &body)
        .await;
    assert_eq!(found, code);
    assert!(
        answer["message"].as_str().unwrap().contains(message),
        "{answer}"
    );
}

#[tokio::test]
async fn force_is_for_apply_only() {
    let cluster = cluster().await;
    cluster.post(NODES, &node("n")).await;
    let (code, answer) = cluster
        .patch(&format!("{NODES}/n?force=true"), MERGE_PATCH, &json!({}))
        .await;
    assert_eq!(code, 422);
    assert_eq!(
        answer["message"],
        "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch"
    );
}

#[tokio::test]
async fn custom_resources_merge_by_their_schema() {
    let cluster = cluster().await;
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "devices": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"],
            "items": {"type": "object", "properties": {"id": {"type": "string"}, "state": {"type": "string"}}},
        },
        "plain": {"type": "array", "items": {"type": "string"}},
    }}}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "gpus.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster", "names": {"plural": "gpus", "kind": "Gpu"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
    });
    let (code, made) = cluster
        .post(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &definition,
        )
        .await;
    assert_eq!(code, 201, "{made}");
    let path = "/apis/example.com/v1/gpus/g";
    let body = |id: &str, plain: Value| {
        json!({"apiVersion": "example.com/v1", "kind": "Gpu", "metadata": {"name": "g"},
            "spec": {"devices": [{"id": id, "state": "ok"}], "plain": plain}})
    };
    assert_eq!(
        apply(&cluster, path, "a", false, &body("one", json!(["x"])))
            .await
            .0,
        201
    );
    let (code, next) = apply(&cluster, path, "b", true, &body("two", json!(["y"]))).await;
    assert_eq!(
        (code, next["spec"]["devices"].as_array().unwrap().len()),
        (200, 2)
    );
    assert_eq!(next["spec"]["plain"], json!(["y"]));
    assert_eq!(next["metadata"]["generation"], 2);
}

#[tokio::test]
async fn a_status_applied_through_the_main_endpoint_is_ignored() {
    let cluster = cluster().await;
    let body = |phase: &str, label: &str| {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"x": label}},
            "status": {"capacity": {"cpu": phase}},
        })
    };
    cluster.post(NODES, &node("n")).await;
    let path = format!("{NODES}/n");
    apply(
        &cluster,
        &format!("{path}/status"),
        "kubelet",
        false,
        &body("8", "1"),
    )
    .await;
    let (code, next) = apply(&cluster, &path, "lathe", false, &body("4", "1")).await;
    assert_eq!(
        (code, &next["status"]["capacity"]["cpu"]),
        (200, &json!("8"))
    );
    assert_eq!(
        fields_of(&next, "lathe", "Apply"),
        &json!({"f:metadata": {"f:labels": {"f:x": {}}}})
    );
}
