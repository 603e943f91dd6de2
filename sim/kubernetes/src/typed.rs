//! The built-in kinds as types: a body is decoded and written back, so that wrong types are refused and fields that
//! the kind does not have are found and dropped, as decoding into Go types does. Custom resources pass unchanged.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Event, Namespace, Node, Pod, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::events::v1::Event as NewEvent;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::fields::schema::Type;
use crate::resource::Resource;

/// A decoded body.
#[derive(Debug, PartialEq)]
pub(crate) struct Decoded {
    /// The object with the fields that its kind has.
    pub(crate) object: Value,
    /// Paths of those that it has not, such as `spec.foo`.
    pub(crate) unknown: Vec<String>,
}

fn through<T: Serialize + DeserializeOwned>(object: Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<T>(object)?)
}

/// Decodes a body of `resource`. The error is the sentence of the decoder.
pub(crate) fn decode(resource: &Resource, mut object: Value) -> Result<Decoded, String> {
    if resource.custom {
        drop_empty(&mut object, &resource.schema, false);
        return Ok(Decoded {
            object,
            unknown: Vec::new(),
        });
    }
    quantities(&mut object);
    let sent = object.clone();
    let decoded = match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Node") => through::<Node>(object),
        ("", "Pod") => through::<Pod>(object),
        ("", "Event") => through::<Event>(object),
        ("", "Namespace") => through::<Namespace>(object),
        ("", "ConfigMap") => through::<ConfigMap>(object),
        ("", "Secret") => through::<Secret>(object),
        ("", "ServiceAccount") => through::<ServiceAccount>(object),
        ("", "Service") => through::<Service>(object),
        ("events.k8s.io", _) => through::<NewEvent>(object),
        ("coordination.k8s.io", _) => through::<Lease>(object),
        ("apps", "DaemonSet") => through::<DaemonSet>(object),
        ("apps", _) => through::<Deployment>(object),
        ("policy", _) => through::<PodDisruptionBudget>(object),
        ("resource.k8s.io", "ResourceSlice") => through::<ResourceSlice>(object),
        ("resource.k8s.io", "DeviceClass") => through::<DeviceClass>(object),
        ("resource.k8s.io", _) => through::<ResourceClaim>(object),
        ("apiextensions.k8s.io", _) => through::<CustomResourceDefinition>(object),
        _ => Ok(object),
    };
    let mut object = decoded.map_err(|error| error.to_string())?;
    let mut unknown = Vec::new();
    lost(&sent, &object, &mut String::new(), &mut unknown);
    drop_empty(&mut object, &resource.schema, true);
    Ok(Decoded { object, unknown })
}

/// Amounts may be written as numbers; the types here take strings only.
fn quantities(value: &mut Value) {
    const AMOUNTS: &[&str] = &["capacity", "allocatable", "limits", "requests", "overhead"];
    match value {
        Value::Object(map) => {
            for (name, field) in map.iter_mut() {
                match field {
                    Value::Object(amounts) if AMOUNTS.contains(&name.as_str()) => {
                        for amount in amounts.values_mut() {
                            if amount.is_number() {
                                *amount = Value::from(amount.to_string());
                            }
                        }
                    }
                    other => quantities(other),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(quantities),
        _ => {}
    }
}

/// Collects the paths that `sent` has and `kept` has not.
fn lost(sent: &Value, kept: &Value, path: &mut String, found: &mut Vec<String>) {
    let length = path.len();
    match (sent, kept) {
        (Value::Object(sent), Value::Object(kept)) => {
            for (name, field) in sent {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(name);
                match kept.get(name) {
                    Some(kept) => lost(field, kept, path, found),
                    None => found.push(path.clone()),
                }
                path.truncate(length);
            }
        }
        (Value::Array(sent), Value::Array(kept)) => {
            for (place, (item, kept)) in sent.iter().zip(kept).enumerate() {
                path.push_str(&format!("[{place}]"));
                lost(item, kept, path, found);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

/// Removes what Go leaves out when it is empty: maps of data and, in built-in kinds, lists.
fn drop_empty(value: &mut Value, of: &Type, lists: bool) {
    match value {
        Value::Object(map) => {
            map.retain(|name, field| {
                let field_type = of.field(name);
                drop_empty(field, field_type, lists);
                match field {
                    Value::Object(inner) => !(inner.is_empty() && *field_type == Type::Map),
                    Value::Array(items) => {
                        let in_metadata = matches!(field_type, Type::Set | Type::ListMap { .. });
                        // The containers of a pod are always written.
                        !(items.is_empty() && (lists || in_metadata) && name != "containers")
                            || name == "managedFields"
                    }
                    _ => true,
                }
            });
        }
        Value::Array(items) => {
            let item_type = match of {
                Type::ListMap { item, .. } => item.as_ref(),
                _ => &Type::Deduced,
            };
            for item in items {
                drop_empty(item, item_type, lists);
            }
        }
        _ => {}
    }
}
