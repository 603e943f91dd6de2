//! Resources that several API versions show: one shape is stored, each version serves its own.
//!
//! Events are stored as core/v1 shows them, the devices of resource.k8s.io as v1 shows them.

use serde_json::{Map, Value};

use crate::events;
use crate::json;
use crate::resource::Resource;

const DEVICES: &str = "resource.k8s.io";
const FIRST: &str = "v1beta1";

/// Brings an object from the shape of `resource` into the stored one.
pub(crate) fn to_stored(resource: &Resource, object: &mut Value) {
    if resource.is_event() {
        events::to_stored(resource, object);
    } else if resource.group == DEVICES && resource.version == FIRST {
        match resource.plural.as_str() {
            "resourceclaims" => each(object, &["spec", "devices", "requests"], nest_request),
            "resourceslices" => each(object, &["spec", "devices"], flatten_device),
            _ => {}
        }
    }
}

/// Gives a stored object the shape, apiVersion and kind of `resource`.
pub(crate) fn to_served(resource: &Resource, object: &mut Value) {
    if resource.is_event() {
        events::to_served(resource, object);
    } else if resource.group == DEVICES && resource.version == FIRST {
        match resource.plural.as_str() {
            "resourceclaims" => each(object, &["spec", "devices", "requests"], flatten_request),
            "resourceslices" => each(object, &["spec", "devices"], nest_device),
            _ => {}
        }
    }
    json::set(object, &["apiVersion"], Value::from(resource.api_version()));
    json::set(object, &["kind"], Value::from(resource.kind.as_str()));
}

fn each(object: &mut Value, path: &[&str], change: fn(&mut Map<String, Value>)) {
    let mut here = Some(object);
    for name in path {
        here = here.and_then(|value| value.get_mut(*name));
    }
    let items = here.and_then(Value::as_array_mut);
    items
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
        .for_each(change);
}

/// `v1beta1` has what is asked for beside the name; later versions have it under `exactly`.
fn nest_request(request: &mut Map<String, Value>) {
    if request.contains_key("firstAvailable") {
        return;
    }
    let (outer, inner): (Map<String, Value>, Map<String, Value>) = std::mem::take(request)
        .into_iter()
        .partition(|(name, _)| name == "name");
    *request = outer;
    if !inner.is_empty() {
        request.insert("exactly".to_owned(), Value::Object(inner));
    }
}

fn flatten_request(request: &mut Map<String, Value>) {
    if let Some(Value::Object(inner)) = request.remove("exactly") {
        request.extend(inner);
    }
}

/// `v1beta1` has what a device is under `basic`; later versions have it beside the name.
fn flatten_device(device: &mut Map<String, Value>) {
    if let Some(Value::Object(inner)) = device.remove("basic") {
        device.extend(inner);
    }
}

fn nest_device(device: &mut Map<String, Value>) {
    let (outer, inner): (Map<String, Value>, Map<String, Value>) = std::mem::take(device)
        .into_iter()
        .partition(|(name, _)| name == "name");
    *device = outer;
    device.insert("basic".to_owned(), Value::Object(inner));
}
