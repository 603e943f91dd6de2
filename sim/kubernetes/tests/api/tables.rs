//! The tables that `kubectl get` prints.

use serde_json::{Value, json};

use crate::http::{Cluster, LEASES, MERGE_PATCH, NODES, PODS, cluster, node, pod};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

async fn table(cluster: &Cluster, path: &str) -> Value {
    let (code, table) = cluster
        .send("GET", path, &[("accept", TABLE)], &Value::Null)
        .await;
    assert_eq!(
        (code, &table["kind"], &table["apiVersion"]),
        (200, &json!("Table"), &json!("meta.k8s.io/v1"))
    );
    table
}

fn columns(table: &Value) -> Vec<&str> {
    table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| column["name"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn nodes() {
    let cluster = cluster().await;
    let mut body = node("gpu-0");
    body["metadata"]["labels"] =
        json!({"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/gpu": ""});
    body["spec"] = json!({"unschedulable": true});
    body["status"] = json!({
        "conditions": [{"type": "Ready", "status": "True"}],
        "addresses": [{"type": "Hostname", "address": "h"}, {"type": "InternalIP", "address": "10.0.0.7"}],
        "nodeInfo": {"kubeletVersion": "v1.34.0", "osImage": "Linux"},
    });
    cluster.post(NODES, &body).await;
    cluster.post(NODES, &node("bare")).await;
    let table = table(&cluster, NODES).await;
    assert_eq!(
        columns(&table),
        [
            "Name",
            "Status",
            "Roles",
            "Age",
            "Version",
            "Internal-IP",
            "External-IP",
            "OS-Image",
            "Kernel-Version",
            "Container-Runtime"
        ]
    );
    let cells = |row: usize| -> Vec<String> {
        let cells = table["rows"][row]["cells"].as_array().unwrap();
        cells
            .iter()
            .enumerate()
            .filter(|(place, _)| *place != 3)
            .map(|(_, cell)| cell.as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        cells(0),
        [
            "bare",
            "Unknown",
            "<none>",
            "",
            "<none>",
            "<none>",
            "<unknown>",
            "<unknown>",
            "<unknown>"
        ]
    );
    assert_eq!(
        cells(1),
        [
            "gpu-0",
            "Ready,SchedulingDisabled",
            "gpu,worker",
            "v1.34.0",
            "10.0.0.7",
            "<none>",
            "Linux",
            "<unknown>",
            "<unknown>"
        ]
    );
    assert_eq!(table["rows"][1]["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(table["rows"][1]["object"]["metadata"]["name"], "gpu-0");
}

#[tokio::test]
async fn pods() {
    let cluster = cluster().await;
    cluster.post(PODS, &pod("p", Some("n"))).await;
    let status = json!({"status": {"phase": "Running", "podIP": "10.1.0.2", "containerStatuses": [
        {"name": "main", "ready": false, "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
    ]}});
    cluster
        .patch(&format!("{PODS}/p/status"), MERGE_PATCH, &status)
        .await;
    let table = table(&cluster, PODS).await;
    assert_eq!(
        columns(&table)[..5],
        ["Name", "Ready", "Status", "Restarts", "Age"]
    );
    let cells = &table["rows"][0]["cells"];
    assert_eq!(
        (
            &cells[0], &cells[1], &cells[2], &cells[3], &cells[5], &cells[6]
        ),
        (
            &json!("p"),
            &json!("0/1"),
            &json!("CrashLoopBackOff"),
            &json!("3"),
            &json!("10.1.0.2"),
            &json!("n")
        )
    );
}

#[tokio::test]
async fn events_in_both_shapes() {
    let cluster = cluster().await;
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"kind": "Node", "name": "gpu-0"},
        "reason": "MigApplied", "message": "8 GPUs", "type": "Normal", "source": {"component": "lathe", "host": "gpu-0"},
        "count": 2, "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
    });
    cluster
        .post("/api/v1/namespaces/default/events", &event)
        .await;
    for path in ["/api/v1/events", "/apis/events.k8s.io/v1/events"] {
        let table = table(&cluster, path).await;
        assert_eq!(
            columns(&table),
            [
                "Last Seen",
                "Type",
                "Reason",
                "Object",
                "Subobject",
                "Source",
                "Message",
                "First Seen",
                "Count",
                "Name"
            ]
        );
        let cells = table["rows"][0]["cells"].as_array().unwrap();
        assert_eq!(
            cells[1..7],
            [
                json!("Normal"),
                json!("MigApplied"),
                json!("node/gpu-0"),
                json!(""),
                json!("lathe, gpu-0"),
                json!("8 GPUs")
            ]
        );
        assert_eq!(cells[8..], [json!(2), json!("e")]);
    }
}

#[tokio::test]
async fn leases_and_plain_kinds() {
    let cluster = cluster().await;
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    cluster.post(LEASES, &lease).await;
    let leases = table(&cluster, LEASES).await;
    assert_eq!(columns(&leases), ["Name", "Holder", "Age"]);
    assert_eq!(leases["rows"][0]["cells"][1], "me");
    let classes = table(&cluster, "/apis/resource.k8s.io/v1/deviceclasses").await;
    assert_eq!(
        (columns(&classes).first(), &classes["rows"]),
        (Some(&"Name"), &json!([]))
    );
}

#[tokio::test]
async fn one_object_is_a_table_of_one_row() {
    let cluster = cluster().await;
    cluster.post(NODES, &node("n")).await;
    let table = table(&cluster, &format!("{NODES}/n?includeObject=Object")).await;
    assert_eq!(table["rows"].as_array().unwrap().len(), 1);
    assert_eq!(table["rows"][0]["object"]["kind"], "Node");
}

#[tokio::test]
async fn a_watched_table_names_its_columns_once() {
    let cluster = cluster().await;
    cluster.post(NODES, &node("a")).await;
    cluster.post(NODES, &node("b")).await;
    let path = format!("{NODES}?watch=true&timeoutSeconds=1");
    let (_, text) = cluster
        .send("GET", &path, &[("accept", TABLE)], &Value::Null)
        .await;
    let events: Vec<Value> = text
        .as_str()
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(events.len(), 2);
    assert_eq!(events[0]["object"]["columnDefinitions"][0]["name"], "Name");
    assert_eq!(events[1]["object"]["columnDefinitions"], Value::Null);
    assert_eq!(events[1]["object"]["rows"][0]["cells"][0], "b");
}

#[tokio::test]
async fn custom_columns_come_from_the_definition() {
    let cluster = cluster().await;
    let mut definition = crate::discovery::node_feature();
    definition["spec"]["versions"][0]["additionalPrinterColumns"] = json!([
        {"name": "Vendor", "type": "string", "jsonPath": ".spec.vendor"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]);
    cluster
        .post(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &definition,
        )
        .await;
    let path = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/default/nodefeatures";
    let body = json!({"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature", "metadata": {"name": "n"}, "spec": {"vendor": "10de"}});
    cluster.post(path, &body).await;
    let table = table(&cluster, path).await;
    assert_eq!(columns(&table), ["Name", "Vendor", "Age"]);
    assert_eq!(table["rows"][0]["cells"][1], "10de");
}

#[tokio::test]
async fn metadata_alone() {
    let cluster = cluster().await;
    cluster.post(NODES, &node("n")).await;
    let one = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let (_, object) = cluster
        .send(
            "GET",
            &format!("{NODES}/n"),
            &[("accept", one)],
            &Value::Null,
        )
        .await;
    assert_eq!(
        (&object["kind"], object.get("spec")),
        (&json!("PartialObjectMetadata"), None)
    );
    let many = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let (_, list) = cluster
        .send("GET", NODES, &[("accept", many)], &Value::Null)
        .await;
    assert_eq!(
        (&list["kind"], &list["items"][0]["metadata"]["name"]),
        (&json!("PartialObjectMetadataList"), &json!("n"))
    );
}
