//! The two shapes of an Event. Both API versions show the same objects; they are stored in the core/v1 shape.

use serde_json::Value;

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

/// Gives a stored object the shape, apiVersion and kind of `resource`.
pub(crate) fn to_served(resource: &Resource, object: &mut Value) {
    if resource.is("events.k8s.io", "events") {
        rename(object, NAMES.iter().copied());
    }
    json::set(object, &["apiVersion"], Value::from(resource.api_version()));
    json::set(object, &["kind"], Value::from(resource.kind.as_str()));
}

fn rename<'a>(object: &mut Value, names: impl Iterator<Item = (&'a str, &'a str)>) {
    for (from, to) in names {
        if let Some(value) = json::remove(object, &[from]) {
            json::set(object, &[to], value);
        }
    }
}
