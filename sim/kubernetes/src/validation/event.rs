//! Events. Those of the new shape, or with an `eventTime`, are held to more than the old ones
//! (`k8s.io/kubernetes/pkg/apis/core/validation/events.go`).

use serde_json::{Value, json};

use super::names::qualified_name_errors;
use crate::error::Cause;
use crate::json;
use crate::resource::Resource;

/// The longest action, reason or reporting instance, in bytes.
const WORD_LIMIT: usize = 128;
/// The longest note, in bytes.
const NOTE_LIMIT: usize = 1024;

/// Checks an Event in its served shape.
pub(super) fn event(
    resource: &Resource,
    event: &Value,
    old: Option<&Value>,
    causes: &mut Vec<Cause>,
) {
    let new_shape = !resource.group.is_empty();
    about(
        event,
        if new_shape {
            "regarding"
        } else {
            "involvedObject"
        },
        causes,
    );
    match old {
        Some(old) if new_shape => changed(event, old, causes),
        Some(_) => {}
        None => {
            let timed = json::at(event, &["eventTime"]).is_some();
            if timed {
                strict(event, new_shape, causes);
            } else if new_shape {
                causes.push(Cause::required("eventTime", ""));
            }
            if new_shape {
                kind(event, causes);
            }
            if new_shape {
                series(event, causes);
            }
        }
    }
}

/// An Event lies in the namespace of what it is about; those about cluster-scoped objects, such as Nodes, in "default".
fn about(event: &Value, field: &str, causes: &mut Vec<Cause>) {
    let about = json::text(event, &[field, "namespace"]);
    let expected = if about.is_empty() { "default" } else { about };
    if json::text(event, &["metadata", "namespace"]) != expected {
        causes.push(Cause::invalid(
            "involvedObject.namespace",
            &json!(about),
            "does not match event.namespace",
        ));
    }
}

fn strict(event: &Value, new_shape: bool, causes: &mut Vec<Cause>) {
    let (controller, note) = if new_shape {
        ("reportingController", "note")
    } else {
        ("reportingComponent", "message")
    };
    let name = json::text(event, &[controller]);
    if name.is_empty() {
        causes.push(Cause::required(controller, ""));
    }
    for error in qualified_name_errors(name) {
        causes.push(Cause::invalid(controller, &json!(name), &error));
    }
    for field in ["reportingInstance", "action", "reason"] {
        match json::text(event, &[field]).len() {
            0 => causes.push(Cause::required(field, "")),
            length if length > WORD_LIMIT => causes.push(too_long(field, WORD_LIMIT)),
            _ => {}
        }
    }
    if json::text(event, &[note]).len() > NOTE_LIMIT {
        causes.push(too_long("message", NOTE_LIMIT));
    }
}

fn kind(event: &Value, causes: &mut Vec<Cause>) {
    let kind = json::text(event, &["type"]);
    if !matches!(kind, "Normal" | "Warning") {
        let rule = format!("has invalid value: {kind}");
        causes.push(Cause::invalid("type", &json!(""), &rule));
    }
}

fn too_long(field: &str, limit: usize) -> Cause {
    let rule = format!("can have at most {limit} characters");
    Cause::invalid(field, &json!(""), &rule)
}

/// A series starts with the second occurrence.
fn series(event: &Value, causes: &mut Vec<Cause>) {
    let Some(series) = json::at(event, &["series"]) else {
        return;
    };
    if series["count"].as_i64().unwrap_or(0) < 2 {
        causes.push(Cause::invalid(
            "series.count",
            &json!(""),
            "should be at least 2",
        ));
    }
    if json::at(series, &["lastObservedTime"]).is_none() {
        causes.push(Cause::required("series.lastObservedTime", ""));
    }
}

/// Only the series and the metadata of an Event of the new shape may change.
fn changed(event: &Value, old: &Value, causes: &mut Vec<Cause>) {
    if event["series"] != old["series"] {
        series(event, causes);
    }
    for (field, shown) in [
        ("regarding", "involvedObject"),
        ("reason", "reason"),
        ("note", "message"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingController", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ] {
        if event[field] != old[field] {
            causes.push(Cause::invalid(shown, &event[field], "field is immutable"));
        }
    }
}
