//! `kubectl get nodes`.

use serde_json::{Value, json};

use super::{Layout, age, column, wide};
use crate::json;

const ROLE: &str = "node-role.kubernetes.io/";

pub(super) fn layout() -> Layout {
    let columns = vec![
        column("Name", "string"),
        column("Status", "string"),
        column("Roles", "string"),
        column("Age", "string"),
        column("Version", "string"),
        wide("Internal-IP", "string"),
        wide("External-IP", "string"),
        wide("OS-Image", "string"),
        wide("Kernel-Version", "string"),
        wide("Container-Runtime", "string"),
    ];
    Layout::new(columns, cells)
}

/// The kernel with the architecture behind it, where that is known.
fn kernel(node: &Value) -> Value {
    let info = |field: &str| json::text(node, &["status", "nodeInfo", field]);
    match (info("kernelVersion"), info("architecture")) {
        ("", _) => json!("<unknown>"),
        (version, "") => json!(version),
        (version, architecture) => json!(format!("{version} ({architecture})")),
    }
}

fn cells(node: &Value) -> Vec<Value> {
    let info = |field: &str| json::text(node, &["status", "nodeInfo", field]).to_owned();
    let or_unknown = |text: String| {
        json!(if text.is_empty() {
            "<unknown>".to_owned()
        } else {
            text
        })
    };
    vec![
        json!(json::text(node, &["metadata", "name"])),
        json!(status(node)),
        json!(roles(node)),
        age::of(node),
        json!(info("kubeletVersion")),
        json!(address(node, "InternalIP")),
        json!(address(node, "ExternalIP")),
        or_unknown(info("osImage")),
        kernel(node),
        or_unknown(info("containerRuntimeVersion")),
    ]
}

fn status(node: &Value) -> String {
    let ready = json::list(node, &["status", "conditions"])
        .iter()
        .find(|condition| json::text(condition, &["type"]) == "Ready");
    let mut status = match ready.map(|condition| json::text(condition, &["status"])) {
        Some("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if node["spec"]["unschedulable"].as_bool() == Some(true) {
        status += ",SchedulingDisabled";
    }
    status
}

fn roles(node: &Value) -> String {
    let mut roles: Vec<&str> = json::at(node, &["metadata", "labels"])
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix(ROLE) {
            Some(role) if !role.is_empty() => Some(role),
            _ if key == "kubernetes.io/role" => value.as_str().filter(|role| !role.is_empty()),
            _ => None,
        })
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() {
        "<none>".to_owned()
    } else {
        roles.join(",")
    }
}

fn address(node: &Value, kind: &str) -> String {
    json::list(node, &["status", "addresses"])
        .iter()
        .find(|address| json::text(address, &["type"]) == kind)
        .map_or("<none>", |address| json::text(address, &["address"]))
        .to_owned()
}
