//! `kubectl get pods`.

use serde_json::{Value, json};

use super::{Layout, age, column, wide};
use crate::json;

pub(super) fn layout() -> Layout {
    let columns = vec![
        column("Name", "string"),
        column("Ready", "string"),
        column("Status", "string"),
        column("Restarts", "string"),
        column("Age", "string"),
        wide("IP", "string"),
        wide("Node", "string"),
        wide("Nominated Node", "string"),
        wide("Readiness Gates", "string"),
    ];
    Layout::new(columns, cells)
}

fn cells(pod: &Value) -> Vec<Value> {
    let statuses = json::list(pod, &["status", "containerStatuses"]);
    let total = json::list(pod, &["spec", "containers"]).len();
    let ready = statuses
        .iter()
        .filter(|status| status["ready"].as_bool() == Some(true))
        .count();
    let restarts: i64 = statuses
        .iter()
        .map(|status| status["restartCount"].as_i64().unwrap_or(0))
        .sum();
    let or_none = |path: &[&str]| match json::text(pod, path) {
        "" => json!("<none>"),
        text => json!(text),
    };
    vec![
        json!(json::text(pod, &["metadata", "name"])),
        json!(format!("{ready}/{total}")),
        json!(reason(pod, statuses)),
        json!(restarts.to_string()),
        age::of(pod),
        or_none(&["status", "podIP"]),
        or_none(&["spec", "nodeName"]),
        or_none(&["status", "nominatedNodeName"]),
        json!("<none>"),
    ]
}

/// The word in the status column: the phase, unless a container or a deletion says more.
fn reason(pod: &Value, statuses: &[Value]) -> String {
    let mut reason = match json::text(pod, &["status", "reason"]) {
        "" => json::text(pod, &["status", "phase"]).to_owned(),
        given => given.to_owned(),
    };
    for status in statuses.iter().rev() {
        let waiting = json::text(status, &["state", "waiting", "reason"]);
        let ended = json::text(status, &["state", "terminated", "reason"]);
        if !waiting.is_empty() {
            waiting.clone_into(&mut reason);
        } else if !ended.is_empty() {
            ended.clone_into(&mut reason);
        } else if let Some(code) = status["state"]["terminated"]["exitCode"].as_i64() {
            reason = format!("ExitCode:{code}");
        }
    }
    let deleted = json::at(pod, &["metadata", "deletionTimestamp"]).is_some();
    let ended = matches!(
        json::text(pod, &["status", "phase"]),
        "Succeeded" | "Failed"
    );
    if deleted && !ended {
        "Terminating".clone_into(&mut reason);
    }
    reason
}
