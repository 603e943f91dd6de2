//! `kubectl get` of DaemonSets, Deployments, Services and disruption budgets.

use serde_json::{Value, json};

use super::{Layout, age, column, wide};
use crate::json;

fn number(object: &Value, path: &[&str]) -> Value {
    json::at(object, path).cloned().unwrap_or(json!(0))
}

fn name(object: &Value) -> Value {
    json!(json::text(object, &["metadata", "name"]))
}

/// Labels or match labels as `a=b,c=d`.
fn selector(labels: Option<&Value>) -> String {
    let pairs: Vec<String> = labels
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")))
        .collect();
    if pairs.is_empty() {
        "<none>".to_owned()
    } else {
        pairs.join(",")
    }
}

/// Names and images of the containers of a pod template.
fn containers(object: &Value) -> (String, String) {
    let containers = json::list(object, &["spec", "template", "spec", "containers"]);
    let join = |field: &str| {
        let all: Vec<&str> = containers
            .iter()
            .map(|container| json::text(container, &[field]))
            .collect();
        all.join(",")
    };
    (join("name"), join("image"))
}

pub(super) fn daemon_sets() -> Layout {
    let columns = vec![
        column("Name", "string"),
        column("Desired", "integer"),
        column("Current", "integer"),
        column("Ready", "integer"),
        column("Up-to-date", "integer"),
        column("Available", "integer"),
        column("Node Selector", "string"),
        column("Age", "string"),
        wide("Containers", "string"),
        wide("Images", "string"),
        wide("Selector", "string"),
    ];
    Layout::new(columns, |object| {
        let (names, images) = containers(object);
        vec![
            name(object),
            number(object, &["status", "desiredNumberScheduled"]),
            number(object, &["status", "currentNumberScheduled"]),
            number(object, &["status", "numberReady"]),
            number(object, &["status", "updatedNumberScheduled"]),
            number(object, &["status", "numberAvailable"]),
            json!(selector(json::at(
                object,
                &["spec", "template", "spec", "nodeSelector"]
            ))),
            age::of(object),
            json!(names),
            json!(images),
            json!(selector(json::at(
                object,
                &["spec", "selector", "matchLabels"]
            ))),
        ]
    })
}

pub(super) fn deployments() -> Layout {
    let columns = vec![
        column("Name", "string"),
        column("Ready", "string"),
        column("Up-to-date", "integer"),
        column("Available", "integer"),
        column("Age", "string"),
        wide("Containers", "string"),
        wide("Images", "string"),
        wide("Selector", "string"),
    ];
    Layout::new(columns, |object| {
        let (names, images) = containers(object);
        let ready = number(object, &["status", "readyReplicas"]);
        let wanted = number(object, &["spec", "replicas"]);
        vec![
            name(object),
            json!(format!("{ready}/{wanted}")),
            number(object, &["status", "updatedReplicas"]),
            number(object, &["status", "availableReplicas"]),
            age::of(object),
            json!(names),
            json!(images),
            json!(selector(json::at(
                object,
                &["spec", "selector", "matchLabels"]
            ))),
        ]
    })
}

pub(super) fn services() -> Layout {
    let columns = vec![
        column("Name", "string"),
        column("Type", "string"),
        column("Cluster-IP", "string"),
        column("External-IP", "string"),
        column("Port(s)", "string"),
        column("Age", "string"),
        wide("Selector", "string"),
    ];
    Layout::new(columns, |object| {
        let ports: Vec<String> = json::list(object, &["spec", "ports"])
            .iter()
            .map(|port| {
                let protocol = match json::text(port, &["protocol"]) {
                    "" => "TCP",
                    given => given,
                };
                format!("{}/{protocol}", number(port, &["port"]))
            })
            .collect();
        let or = |path: &[&str], other: &str| match json::text(object, path) {
            "" => json!(other),
            text => json!(text),
        };
        vec![
            name(object),
            or(&["spec", "type"], "ClusterIP"),
            or(&["spec", "clusterIP"], "<none>"),
            json!("<none>"),
            json!(if ports.is_empty() {
                "<none>".to_owned()
            } else {
                ports.join(",")
            }),
            age::of(object),
            json!(selector(json::at(object, &["spec", "selector"]))),
        ]
    })
}

pub(super) fn disruption_budgets() -> Layout {
    let columns = vec![
        column("Name", "string"),
        column("Min Available", "string"),
        column("Max Unavailable", "string"),
        column("Allowed Disruptions", "integer"),
        column("Age", "string"),
    ];
    Layout::new(columns, |object| {
        let bound = |field: &str| match json::at(object, &["spec", field]) {
            Some(Value::String(text)) => json!(text),
            Some(other) => json!(other.to_string()),
            None => json!("N/A"),
        };
        vec![
            name(object),
            bound("minAvailable"),
            bound("maxUnavailable"),
            number(object, &["status", "disruptionsAllowed"]),
            age::of(object),
        ]
    })
}
