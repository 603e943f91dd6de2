//! Discovery in both forms, and definitions that add to it.

use serde_json::{Value, json};

use crate::http::{MERGE_PATCH, cluster};

fn by_name<'a>(list: &'a Value, field: &str, name: &str) -> &'a Value {
    list.as_array()
        .unwrap()
        .iter()
        .find(|entry| entry[field] == name)
        .unwrap_or_else(|| panic!("{name} in {list}"))
}

pub(crate) fn node_feature() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "nodefeatures.nfd.k8s-sigs.io"},
        "spec": {
            "group": "nfd.k8s-sigs.io", "scope": "Namespaced",
            "names": {"plural": "nodefeatures", "kind": "NodeFeature", "shortNames": ["nf"]},
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

#[tokio::test]
async fn health_and_version() {
    let cluster = cluster().await;
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(cluster.get(path).await, (200, json!("ok")));
    }
    let (_, version) = cluster.get("/version").await;
    assert_eq!(
        (&version["major"], &version["minor"], &version["gitVersion"]),
        (&json!("1"), &json!("34"), &json!("v1.34.0"))
    );
}

#[tokio::test]
async fn groups_and_resources_in_the_old_form() {
    let cluster = cluster().await;
    assert_eq!(cluster.get("/api").await.1["versions"], json!(["v1"]));
    let (_, groups) = cluster.get("/apis").await;
    let apps = by_name(&groups["groups"], "name", "apps");
    assert_eq!(
        apps["preferredVersion"],
        json!({"groupVersion": "apps/v1", "version": "v1"})
    );
    assert_eq!(cluster.get("/apis/apps").await.1["kind"], "APIGroup");
    let (_, core) = cluster.get("/api/v1").await;
    let nodes = by_name(&core["resources"], "name", "nodes");
    assert_eq!(
        (
            &nodes["kind"],
            &nodes["namespaced"],
            &nodes["singularName"],
            &nodes["shortNames"]
        ),
        (
            &json!("Node"),
            &json!(false),
            &json!("node"),
            &json!(["no"])
        )
    );
    assert_eq!(
        by_name(&core["resources"], "name", "nodes/status")["verbs"],
        json!(["get", "patch", "update"])
    );
    let eviction = by_name(&core["resources"], "name", "pods/eviction");
    assert_eq!(
        (&eviction["kind"], &eviction["group"], &eviction["version"]),
        (&json!("Eviction"), &json!("policy"), &json!("v1"))
    );
    assert_eq!(cluster.get("/apis/none.example.com/v1").await.0, 404);
}

#[tokio::test]
async fn groups_and_resources_in_the_aggregated_form() {
    let cluster = cluster().await;
    let accept =
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    for (path, group, resource, kind) in [
        ("/api", "", "pods", "Pod"),
        ("/apis", "coordination.k8s.io", "leases", "Lease"),
    ] {
        let (_, list) = cluster
            .send("GET", path, &[("accept", accept)], &Value::Null)
            .await;
        assert_eq!(
            (&list["kind"], &list["apiVersion"]),
            (
                &json!("APIGroupDiscoveryList"),
                &json!("apidiscovery.k8s.io/v2")
            )
        );
        let entry = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .find(|item| item["metadata"]["name"].as_str().unwrap_or("") == group)
            .unwrap();
        let found = by_name(&entry["versions"][0]["resources"], "resource", resource);
        assert_eq!(found["responseKind"]["kind"], kind);
        assert_eq!(found["scope"], "Namespaced");
    }
}

#[tokio::test]
async fn a_definition_is_served_once_made() {
    let cluster = cluster().await;
    let path = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/default/nodefeatures";
    let feature = json!({
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature", "metadata": {"name": "n"},
        "spec": {"labels": {"a": "1"}}, "status": {"x": 1},
    });
    assert_eq!(cluster.post(path, &feature).await.0, 404);
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, made) = cluster.post(definitions, &node_feature()).await;
    assert_eq!(code, 201);
    let established = by_name(&made["status"]["conditions"], "type", "Established");
    assert_eq!(established["status"], "True");
    let (code, object) = cluster.post(path, &feature).await;
    assert_eq!(
        (
            code,
            object.get("status"),
            &object["metadata"]["generation"]
        ),
        (201, None, &json!(1))
    );
    let both = json!({"metadata": {"labels": {"l": "1"}}, "spec": {"labels": {"a": "2"}}, "status": {"x": 2}});
    let (_, status) = cluster
        .patch(&format!("{path}/n/status"), MERGE_PATCH, &both)
        .await;
    assert_eq!(
        (&status["status"]["x"], &status["spec"]["labels"]["a"]),
        (&json!(2), &json!("1"))
    );
    assert_eq!(
        status["metadata"].get("labels"),
        None,
        "a status write changes nothing else"
    );
    let (_, main) = cluster
        .patch(
            &format!("{path}/n"),
            MERGE_PATCH,
            &json!({"spec": {"labels": {"a": "3"}}, "status": {"x": 3}}),
        )
        .await;
    assert_eq!(
        (&main["status"]["x"], &main["metadata"]["generation"]),
        (&json!(2), &json!(2))
    );
    let (code, _) = cluster
        .patch(
            &format!("{path}/n"),
            crate::http::STRATEGIC_PATCH,
            &json!({}),
        )
        .await;
    assert_eq!(code, 415, "custom resources have no merge keys");
    let (code, answer) = cluster.put(&format!("{path}/n"), &feature).await;
    assert_eq!(
        (code, &answer["details"]["causes"][0]["field"]),
        (422, &json!("metadata.resourceVersion"))
    );
    let (_, groups) = cluster.get("/apis").await;
    by_name(&groups["groups"], "name", "nfd.k8s-sigs.io");
    assert_eq!(
        cluster
            .delete(&format!("{definitions}/nodefeatures.nfd.k8s-sigs.io"))
            .await
            .0,
        200
    );
    assert_eq!(cluster.get(path).await.0, 404);
    cluster.post(definitions, &node_feature()).await;
    assert_eq!(
        cluster.get(path).await.1["items"],
        json!([]),
        "the instances went with the definition"
    );
}

#[tokio::test]
async fn a_definition_that_contradicts_itself_is_refused() {
    let cluster = cluster().await;
    let mut definition = node_feature();
    definition["metadata"]["name"] = json!("other.nfd.k8s-sigs.io");
    definition["spec"]["versions"][0]["storage"] = json!(false);
    let (code, answer) = cluster
        .post(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &definition,
        )
        .await;
    let fields: Vec<&Value> = answer["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| &cause["field"])
        .collect();
    assert_eq!(
        (code, fields),
        (422, vec![&json!("metadata.name"), &json!("spec.versions")])
    );
}

#[tokio::test]
async fn openapi_tells_kubectl_to_leave_validation_to_the_server() {
    let cluster = cluster().await;
    let (_, index) = cluster.get("/openapi/v3").await;
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"]
        .as_str()
        .unwrap();
    let (code, document) = cluster.get(url).await;
    assert_eq!(code, 200);
    let patch =
        &document["paths"]["/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"]["patch"];
    assert_eq!(
        patch["x-kubernetes-group-version-kind"],
        json!({"group": "apps", "version": "v1", "kind": "DaemonSet"})
    );
    by_name(&patch["parameters"], "name", "fieldValidation");
    assert_eq!(cluster.get("/openapi/v2").await.0, 404);
}
