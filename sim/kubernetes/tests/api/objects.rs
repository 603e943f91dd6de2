//! Create, get, replace, status and generation, and the errors of each.

use rstest::rstest;
use serde_json::{Value, json};

use crate::http::{CONFIG_MAPS, LEASES, NODES, PODS, cluster, config_map, node, pod, version_of};

/// Everything that a refusal says: code, reason, message, details.
fn refusal(answer: &(u16, Value)) -> (u16, &str, &str, &Value) {
    let (code, body) = answer;
    assert_eq!(body["kind"], "Status");
    assert_eq!(body["status"], "Failure");
    assert_eq!(body["code"], *code);
    (
        *code,
        body["reason"].as_str().unwrap_or(""),
        body["message"].as_str().unwrap(),
        &body["details"],
    )
}

#[tokio::test]
async fn a_create_settles_the_metadata() {
    let cluster = cluster().await;
    let (code, made) = cluster.post(CONFIG_MAPS, &config_map("one")).await;
    assert_eq!(code, 201);
    assert_eq!(made["metadata"]["namespace"], "default");
    assert_eq!(made["metadata"]["uid"].as_str().unwrap().len(), 36);
    assert!(
        made["metadata"]["creationTimestamp"]
            .as_str()
            .unwrap()
            .ends_with('Z')
    );
    assert_eq!(
        made["metadata"].get("generation"),
        None,
        "config maps have no generation"
    );
    let (code, read) = cluster.get(&format!("{CONFIG_MAPS}/one")).await;
    assert_eq!((code, &read), (200, &made));
}

#[tokio::test]
async fn one_resource_version_counts_all_writes() {
    let cluster = cluster().await;
    let (_, first) = cluster.post(CONFIG_MAPS, &config_map("one")).await;
    let (_, second) = cluster.post(NODES, &node("n")).await;
    assert_eq!(version_of(&second), version_of(&first) + 1);
}

#[tokio::test]
async fn a_generated_name_has_five_more_characters() {
    let cluster = cluster().await;
    let body =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "made-"}});
    let (code, made) = cluster.post(CONFIG_MAPS, &body).await;
    let name = made["metadata"]["name"].as_str().unwrap();
    assert_eq!(code, 201);
    assert!(name.starts_with("made-") && name.len() == 10, "{name}");
}

#[tokio::test]
async fn names_are_taken_once() {
    let cluster = cluster().await;
    cluster.post(LEASES, &lease(10)).await;
    let answer = cluster.post(LEASES, &lease(10)).await;
    let details = json!({"name": "lock", "group": "coordination.k8s.io", "kind": "leases"});
    let message = "leases.coordination.k8s.io \"lock\" already exists";
    assert_eq!(refusal(&answer), (409, "AlreadyExists", message, &details));
}

fn lease(seconds: i64) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "lock"},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": seconds},
    })
}

#[tokio::test]
async fn an_absent_object_is_not_found() {
    let cluster = cluster().await;
    let answer = cluster.get(&format!("{NODES}/nope")).await;
    let details = json!({"name": "nope", "kind": "nodes"});
    assert_eq!(
        refusal(&answer),
        (404, "NotFound", "nodes \"nope\" not found", &details)
    );
    let answer = cluster.put(&format!("{NODES}/nope"), &node("nope")).await;
    assert_eq!(answer.0, 404, "a node is not made by an update");
    let answer = cluster.put(&format!("{LEASES}/lock"), &lease(10)).await;
    assert_eq!(answer.0, 201, "a lease is");
}

#[tokio::test]
async fn an_absent_namespace_takes_no_objects() {
    let cluster = cluster().await;
    let answer = cluster
        .post("/api/v1/namespaces/nope/configmaps", &config_map("one"))
        .await;
    let details = json!({"name": "nope", "kind": "namespaces"});
    assert_eq!(
        refusal(&answer),
        (404, "NotFound", "namespaces \"nope\" not found", &details)
    );
}

#[rstest]
#[case::other_version(
    json!({"apiVersion": "v2", "kind": "Node", "metadata": {"name": "a"}}),
    "Node in version \"v2\" cannot be handled as a Node: no kind \"Node\" is registered for version \"v2\" in scheme \"pkg/runtime/scheme.go:111\""
)]
#[case::other_kind(
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}),
    "Pod in version \"v1\" cannot be handled as a Node: converting (v1.Pod) to (core.Node): unknown conversion"
)]
#[case::a_number_as_label(
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {"x": 1}}}),
    "Node in version \"v1\" cannot be handled as a Node: json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string"
)]
#[tokio::test]
async fn a_body_that_is_no_such_object_is_a_bad_request(
    #[case] body: Value,
    #[case] message: &str,
) {
    let cluster = cluster().await;
    let answer = cluster.post(NODES, &body).await;
    let (code, reason, found, _) = refusal(&answer);
    assert_eq!((code, reason), (400, "BadRequest"));
    assert!(found.contains(message), "{found}");
}

const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

#[rstest]
#[case::name(json!({"name": "Bad_Name"}), json!({}), "metadata.name", "FieldValueInvalid", "Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain must consist of")]
#[case::label_value(
    json!({"name": "a", "labels": {"nvidia.com/mig.config": "all-1g.10gb+me"}}), json!({}),
    "metadata.labels", "FieldValueInvalid", &format!("Invalid value: \"all-1g.10gb+me\": {LABEL_VALUE}")
)]
#[case::label_too_long(
    json!({"name": "a", "labels": {"x": "a".repeat(64)}}), json!({}),
    "metadata.labels", "FieldValueInvalid", "must be no more than 63 bytes"
)]
#[case::label_key(json!({"name": "a", "labels": {"bad key": ""}}), json!({}), "metadata.labels", "FieldValueInvalid", "name part must consist of")]
#[case::label_prefix(json!({"name": "a", "labels": {"UP/x": ""}}), json!({}), "metadata.labels", "FieldValueInvalid", "prefix part a lowercase RFC 1123 subdomain")]
#[case::taint_effect(
    json!({"name": "a"}), json!({"taints": [{"key": "k", "effect": "Never"}]}),
    "metadata.taints[0].effect", "FieldValueNotSupported",
    "Unsupported value: \"Never\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\""
)]
#[case::taint_twice(
    json!({"name": "a"}),
    json!({"taints": [{"key": "k", "effect": "NoSchedule"}, {"key": "k", "effect": "NoSchedule", "value": "x"}]}),
    "metadata.taints[1]", "FieldValueDuplicate", "taints must be unique by key and effect pair"
)]
#[tokio::test]
async fn a_wrong_field_is_named(
    #[case] metadata: Value,
    #[case] spec: Value,
    #[case] field: &str,
    #[case] reason: &str,
    #[case] message: &str,
) {
    let cluster = cluster().await;
    let name = metadata["name"].clone();
    let answer = cluster
        .post(
            NODES,
            &json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}),
        )
        .await;
    let (code, status_reason, whole, details) = refusal(&answer);
    assert_eq!((code, status_reason), (422, "Invalid"));
    assert_eq!(
        (&details["kind"], &details["name"]),
        (&json!("Node"), &name)
    );
    assert_eq!(details["causes"].as_array().unwrap().len(), 1);
    let cause = &details["causes"][0];
    assert_eq!(
        (&cause["field"], &cause["reason"]),
        (&json!(field), &json!(reason))
    );
    let found = cause["message"].as_str().unwrap();
    assert!(found.contains(message), "{found}");
    assert_eq!(whole, format!("Node {name} is invalid: {field}: {found}"));
}

#[tokio::test]
async fn an_update_from_an_old_version_conflicts() {
    let cluster = cluster().await;
    let path = format!("{NODES}/n");
    let (_, first) = cluster.post(NODES, &node("n")).await;
    let mut second = first.clone();
    second["metadata"]["labels"] = json!({"a": "1"});
    assert_eq!(cluster.put(&path, &second).await.0, 200);
    let answer = cluster.put(&path, &second).await;
    let message = "Operation cannot be fulfilled on nodes \"n\": the object has been modified; please apply your changes to the latest version and try again";
    assert_eq!(
        refusal(&answer),
        (
            409,
            "Conflict",
            message,
            &json!({"name": "n", "kind": "nodes"})
        )
    );
    second["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    second["metadata"]["labels"] = json!({"a": "2"});
    assert_eq!(
        cluster.put(&path, &second).await.0,
        200,
        "a node may be replaced whatever its version"
    );
}

#[tokio::test]
async fn a_lease_is_never_replaced_blindly() {
    let cluster = cluster().await;
    cluster.post(LEASES, &lease(10)).await;
    let answer = cluster.put(&format!("{LEASES}/lock"), &lease(20)).await;
    let (code, reason, message, _) = refusal(&answer);
    assert_eq!((code, reason), (422, "Invalid"));
    assert!(
        message.contains(
            "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
        )
    );
    let answer = cluster.post(LEASES, &json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "zero"}, "spec": {"leaseDurationSeconds": 0},
    })).await;
    assert_eq!(answer.0, 422);
}

#[tokio::test]
async fn another_object_of_the_same_name_is_not_updated() {
    let cluster = cluster().await;
    let (_, mut made) = cluster.post(NODES, &node("n")).await;
    made["metadata"]["uid"] = json!("other");
    let answer = cluster.put(&format!("{NODES}/n"), &made).await;
    let (code, reason, message, _) = refusal(&answer);
    assert_eq!((code, reason), (409, "Conflict"));
    assert!(
        message.contains("Precondition failed: UID in precondition: other, UID in object meta: ")
    );
}

#[tokio::test]
async fn a_name_in_the_body_is_the_one_in_the_path() {
    let cluster = cluster().await;
    cluster.post(NODES, &node("n")).await;
    let answer = cluster.put(&format!("{NODES}/n"), &node("m")).await;
    let message = "the name of the object (m) does not match the name on the URL (n)";
    assert_eq!(refusal(&answer), (400, "BadRequest", message, &Value::Null));
}

#[tokio::test]
async fn a_write_that_changes_nothing_writes_nothing() {
    let cluster = cluster().await;
    let (_, made) = cluster.post(CONFIG_MAPS, &config_map("one")).await;
    let before = cluster.server.resource_version();
    let path = format!("{CONFIG_MAPS}/one");
    for (method, kind, body) in [
        ("PUT", "application/json", made.clone()),
        (
            "PATCH",
            crate::http::MERGE_PATCH,
            json!({"data": {"key": "value"}}),
        ),
        (
            "PATCH",
            crate::http::STRATEGIC_PATCH,
            json!({"data": {"key": "value"}}),
        ),
        (
            "PATCH",
            crate::http::JSON_PATCH,
            json!([{"op": "test", "path": "/data/key", "value": "value"}]),
        ),
    ] {
        let (code, same) = cluster
            .send(method, &path, &[("content-type", kind)], &body)
            .await;
        assert_eq!((code, &same), (200, &made), "{method} {kind}");
    }
    assert_eq!(cluster.server.resource_version(), before);
}

#[tokio::test]
async fn a_dry_run_answers_and_stores_nothing() {
    let cluster = cluster().await;
    let before = cluster.server.resource_version();
    let (code, made) = cluster
        .post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("one"))
        .await;
    assert_eq!((code, &made["data"]["key"]), (201, &json!("value")));
    assert_eq!(cluster.get(&format!("{CONFIG_MAPS}/one")).await.0, 404);
    cluster.post(NODES, &node("n")).await;
    let patch = json!({"metadata": {"labels": {"a": "1"}}});
    let (code, changed) = cluster
        .patch(
            &format!("{NODES}/n?dryRun=All"),
            crate::http::MERGE_PATCH,
            &patch,
        )
        .await;
    assert_eq!(
        (code, &changed["metadata"]["labels"]["a"]),
        (200, &json!("1"))
    );
    assert_eq!(
        cluster.delete(&format!("{NODES}/n?dryRun=All")).await.0,
        200
    );
    assert_eq!(
        cluster.server.resource_version(),
        before + 1,
        "only the node was stored"
    );
}

#[tokio::test]
async fn each_endpoint_writes_its_half() {
    let cluster = cluster().await;
    let mut body = pod("p", None);
    body["status"] = json!({"phase": "Running"});
    let (_, made) = cluster.post(PODS, &body).await;
    assert_eq!(
        made["status"]["phase"], "Pending",
        "a create sets no status of a pod"
    );
    let path = format!("{PODS}/p");
    let both = json!({"metadata": {"labels": {"x": "1"}}, "spec": {"activeDeadlineSeconds": 5}, "status": {"phase": "Running"}});
    let (_, main) = cluster.patch(&path, crate::http::MERGE_PATCH, &both).await;
    assert_eq!(
        (
            &main["status"]["phase"],
            &main["spec"]["activeDeadlineSeconds"]
        ),
        (&json!("Pending"), &json!(5))
    );
    let other = json!({"spec": {"activeDeadlineSeconds": 9}, "status": {"phase": "Running"}});
    let (_, status) = cluster
        .patch(&format!("{path}/status"), crate::http::MERGE_PATCH, &other)
        .await;
    assert_eq!(
        (
            &status["status"]["phase"],
            &status["spec"]["activeDeadlineSeconds"]
        ),
        (&json!("Running"), &json!(5))
    );
    let mut registered = node("n");
    registered["status"] = json!({"capacity": {"cpu": "8"}});
    let (_, made) = cluster.post(NODES, &registered).await;
    assert_eq!(
        made["status"]["allocatable"],
        json!({"cpu": "8"}),
        "kubelet creates its Node with a status"
    );
}

#[tokio::test]
async fn the_generation_counts_changes_of_the_spec() {
    let cluster = cluster().await;
    let path = format!("{PODS}/p");
    let (_, made) = cluster.post(PODS, &pod("p", None)).await;
    assert_eq!(made["metadata"]["generation"], 1);
    let (_, labelled) = cluster
        .patch(
            &path,
            crate::http::MERGE_PATCH,
            &json!({"metadata": {"labels": {"x": "1"}}}),
        )
        .await;
    assert_eq!(labelled["metadata"]["generation"], 1);
    let (_, status) = cluster
        .patch(
            &format!("{path}/status"),
            crate::http::MERGE_PATCH,
            &json!({"status": {"phase": "Running"}}),
        )
        .await;
    assert_eq!(status["metadata"]["generation"], 1);
    let (_, changed) = cluster
        .patch(
            &path,
            crate::http::MERGE_PATCH,
            &json!({"spec": {"activeDeadlineSeconds": 5}}),
        )
        .await;
    assert_eq!(changed["metadata"]["generation"], 2);
}

#[tokio::test]
async fn the_spec_of_a_pod_is_mostly_fixed() {
    let cluster = cluster().await;
    cluster.post(PODS, &pod("p", None)).await;
    let path = format!("{PODS}/p");
    let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "app:2"}]);
    assert_eq!(
        cluster
            .patch(&path, crate::http::JSON_PATCH, &image)
            .await
            .0,
        200
    );
    let answer = cluster
        .patch(
            &path,
            crate::http::MERGE_PATCH,
            &json!({"spec": {"hostNetwork": true}}),
        )
        .await;
    let (code, _, message, details) = refusal(&answer);
    assert_eq!(
        (code, &details["causes"][0]["reason"]),
        (422, &json!("FieldValueForbidden"))
    );
    assert!(message.contains("pod updates may not change fields other than"));
}

#[tokio::test]
async fn a_create_with_a_resource_version_is_refused() {
    let cluster = cluster().await;
    let mut body = node("n");
    body["metadata"]["resourceVersion"] = json!("5");
    let answer = cluster.post(NODES, &body).await;
    let message = "resourceVersion should not be set on objects to be created";
    assert_eq!(refusal(&answer), (500, "", message, &Value::Null));
}

#[tokio::test]
async fn string_data_of_a_secret_becomes_base64() {
    let cluster = cluster().await;
    let body = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
        "stringData": {"one": "a", "two": "ab", "three": "abc", "none": ""},
    });
    let (_, made) = cluster
        .post("/api/v1/namespaces/default/secrets", &body)
        .await;
    assert_eq!(
        made["data"],
        json!({"one": "YQ==", "two": "YWI=", "three": "YWJj", "none": ""})
    );
    assert_eq!(made["type"], "Opaque");
    assert_eq!(made.get("stringData"), None);
}

#[rstest]
#[case("GET", "/api/v1/bogus", 404)]
#[case("GET", "/apis/none.example.com/v1/things", 404)]
#[case("GET", "/nothing", 404)]
#[case("POST", "/api/v1/pods", 405)]
#[case("PUT", "/api/v1/nodes", 405)]
#[case("POST", "/api/v1/nodes/n", 405)]
#[case("DELETE", "/api/v1/nodes/n/status", 405)]
#[tokio::test]
async fn what_is_not_served_is_refused(
    #[case] method: &str,
    #[case] path: &str,
    #[case] code: u16,
) {
    let cluster = cluster().await;
    let answer = cluster
        .send(
            method,
            path,
            &[("content-type", "application/json")],
            &json!({}),
        )
        .await;
    assert_eq!(answer.0, code);
}

#[tokio::test]
async fn bodies_of_other_kinds_are_refused() {
    let cluster = cluster().await;
    let (code, answer) = cluster
        .send(
            "POST",
            NODES,
            &[("content-type", "application/vnd.kubernetes.protobuf")],
            &node("n"),
        )
        .await;
    assert_eq!(
        (code, &answer["reason"]),
        (415, &json!("UnsupportedMediaType"))
    );
    let (code, answer) = cluster
        .send(
            "POST",
            CONFIG_MAPS,
            &[("content-type", "application/json")],
            &json!({"data": {"x": "a".repeat(3 << 20)}}),
        )
        .await;
    assert_eq!(
        (code, &answer["reason"]),
        (413, &json!("RequestEntityTooLarge"))
    );
}

#[tokio::test]
async fn a_body_may_leave_out_what_the_path_says() {
    let cluster = cluster().await;
    let (code, made) = cluster
        .post(NODES, &json!({"metadata": {"name": "n"}}))
        .await;
    assert_eq!((code, &made["kind"]), (201, &json!("Node")));
    let answer = cluster.put(&format!("{NODES}/n"), &json!({})).await;
    let message =
        "the name of the object (n based on URL) was undeterminable: name must be provided";
    assert_eq!(refusal(&answer), (400, "BadRequest", message, &Value::Null));
}

#[tokio::test]
async fn unknown_fields_are_dropped_or_refused() {
    let cluster = cluster().await;
    let mut body = pod("p", None);
    body["spec"]["nodname"] = json!("n");
    body["spec"]["containers"][0]["imag"] = json!("x");
    let (code, answer) = cluster
        .post(&format!("{PODS}?fieldValidation=Strict"), &body)
        .await;
    assert_eq!(
        (code, &answer["message"]),
        (
            400,
            &json!(
                "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.containers[0].imag\", unknown field \"spec.nodname\""
            )
        )
    );
    let (code, made) = cluster.post(PODS, &body).await;
    assert_eq!((code, made["spec"].get("nodname")), (201, None));
}

#[tokio::test]
async fn amounts_may_be_numbers_and_other_types_are_refused() {
    let cluster = cluster().await;
    let mut body = node("n");
    body["status"] = json!({"capacity": {"cpu": 8, "memory": "16Gi"}});
    let (_, made) = cluster.post(NODES, &body).await;
    assert_eq!(
        made["status"]["capacity"],
        json!({"cpu": "8", "memory": "16Gi"})
    );
    let patch = json!({"spec": {"unschedulable": "yes"}});
    let (code, answer) = cluster
        .patch(&format!("{NODES}/n"), crate::http::MERGE_PATCH, &patch)
        .await;
    assert_eq!((code, &answer["reason"]), (422, &json!("Invalid")));
}

#[tokio::test]
async fn emptied_maps_and_lists_are_left_out() {
    let cluster = cluster().await;
    let mut body = node("n");
    body["metadata"]["labels"] = json!({"a": "1"});
    body["spec"] = json!({"taints": [{"key": "k", "effect": "NoSchedule"}]});
    cluster.post(NODES, &body).await;
    let patch = json!({"metadata": {"labels": {"a": null}}, "spec": {"taints": []}});
    let (_, patched) = cluster
        .patch(&format!("{NODES}/n"), crate::http::MERGE_PATCH, &patch)
        .await;
    assert_eq!(patched["metadata"].get("labels"), None);
    assert_eq!(patched["spec"], json!({}));
}

#[tokio::test]
async fn the_same_manifest_again_changes_nothing() {
    let cluster = cluster().await;
    let daemon_set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "registry:5000/c", "ports": [{"containerPort": 80}]}]},
        }},
    });
    let daemon_sets = "/apis/apps/v1/namespaces/default/daemonsets";
    for (collection, body) in [(PODS, pod("p", Some("n"))), (daemon_sets, daemon_set)] {
        let (code, made) = cluster.post(collection, &body).await;
        assert_eq!(code, 201);
        let path = format!(
            "{collection}/{}",
            body["metadata"]["name"].as_str().unwrap()
        );
        let (code, same) = cluster.put(&path, &body).await;
        assert_eq!(
            (code, &same),
            (200, &made),
            "defaults are set on every write"
        );
    }
    let (_, made) = cluster.get(&format!("{daemon_sets}/d")).await;
    let container = &made["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        container["imagePullPolicy"], "Always",
        "a registry's port is no tag"
    );
    assert_eq!(container["ports"][0]["protocol"], "TCP");
    assert_eq!(made["spec"]["updateStrategy"]["type"], "RollingUpdate");
}
