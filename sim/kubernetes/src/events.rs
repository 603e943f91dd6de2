//! The two shapes of an Event. Both API versions show the same objects; they are stored in the core/v1 shape.

use serde_json::{Map, Value};

use crate::json;
use crate::resource::Resource;

/// Field names that differ: core/v1, events.k8s.io/v1.
const NAMES: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// Brings an object from the shape of `resource` into the stored one.
pub(crate) fn to_stored(resource: &Resource, object: &mut Value) {
    if resource.is("events.k8s.io", "events") {
        rename(object, NAMES.iter().map(|&(core, new)| (new, core)));
    }
}

/// Gives a stored object the shape of `resource`.
pub(crate) fn to_served(resource: &Resource, object: &mut Value) {
    if resource.is("events.k8s.io", "events") {
        rename(object, NAMES.iter().copied());
    }
}

/// Adds the fields that the real server writes even when they are empty.
pub(crate) fn complete(object: &mut Value) {
    let core = object
        .get("apiVersion")
        .is_some_and(|version| version == "v1");
    let fields: &[(&str, Value)] = if core {
        &[
            ("source", Value::Object(Map::new())),
            ("firstTimestamp", Value::Null),
            ("lastTimestamp", Value::Null),
            ("eventTime", Value::Null),
            ("reportingComponent", Value::String(String::new())),
            ("reportingInstance", Value::String(String::new())),
        ]
    } else {
        &[
            ("eventTime", Value::Null),
            ("deprecatedSource", Value::Object(Map::new())),
            ("deprecatedFirstTimestamp", Value::Null),
            ("deprecatedLastTimestamp", Value::Null),
        ]
    };
    let Some(object) = object.as_object_mut() else {
        return;
    };
    for (name, empty) in fields {
        object.entry(*name).or_insert_with(|| empty.clone());
    }
}

fn rename<'a>(object: &mut Value, names: impl Iterator<Item = (&'a str, &'a str)>) {
    for (from, to) in names {
        if let Some(value) = json::remove(object, &[from]) {
            json::set(object, &[to], value);
        }
    }
}
