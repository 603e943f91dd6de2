//! `kubectl get events`, for both shapes.

use serde_json::{Value, json};

use super::{Layout, age, column, wide};
use crate::json;

pub(super) fn layout() -> Layout {
    let columns = vec![
        column("Last Seen", "string"),
        column("Type", "string"),
        column("Reason", "string"),
        column("Object", "string"),
        wide("Subobject", "string"),
        wide("Source", "string"),
        column("Message", "string"),
        wide("First Seen", "string"),
        wide("Count", "string"),
        super::Column {
            format: "name".to_owned(),
            ..wide("Name", "string")
        },
    ];
    Layout::new(columns, cells)
}

/// The value under the first of `names` that is there: core/v1 first, events.k8s.io/v1 second.
fn either<'a>(event: &'a Value, names: [&'a str; 2]) -> &'a str {
    if json::at(event, &[names[0]]).is_some() {
        names[0]
    } else {
        names[1]
    }
}

fn cells(event: &Value) -> Vec<Value> {
    let about = either(event, ["involvedObject", "regarding"]);
    let first_field = either(event, ["firstTimestamp", "deprecatedFirstTimestamp"]);
    let last_field = either(event, ["lastTimestamp", "deprecatedLastTimestamp"]);
    let first = if json::at(event, &[first_field]).is_some() {
        first_field
    } else {
        "eventTime"
    };
    let last: &[&str] = if json::at(event, &["series", "lastObservedTime"]).is_some() {
        &["series", "lastObservedTime"]
    } else if json::at(event, &[last_field]).is_some() {
        &[last_field]
    } else {
        &[first]
    };
    let kind = json::text(event, &[about, "kind"]).to_lowercase();
    let object = format!("{kind}/{}", json::text(event, &[about, "name"]));
    let count = event["series"]["count"]
        .as_i64()
        .or_else(|| event[either(event, ["count", "deprecatedCount"])].as_i64())
        .unwrap_or(1)
        .max(1);
    let source = either(event, ["source", "deprecatedSource"]);
    let component = match json::text(event, &[source, "component"]) {
        "" => json::text(
            event,
            &[either(event, ["reportingComponent", "reportingController"])],
        ),
        given => given,
    };
    let host = match json::text(event, &[source, "host"]) {
        "" => json::text(event, &["reportingInstance"]),
        given => given,
    };
    let source = if host.is_empty() {
        component.to_owned()
    } else {
        format!("{component}, {host}")
    };
    let message = either(event, ["message", "note"]);
    vec![
        json!(age::since(event, last)),
        json!(json::text(event, &["type"])),
        json!(json::text(event, &["reason"])),
        json!(object),
        json!(json::text(event, &[about, "fieldPath"])),
        json!(source),
        json!(json::text(event, &[message]).trim()),
        json!(age::since(event, &[first])),
        json!(count),
        json!(json::text(event, &["metadata", "name"])),
    ]
}
