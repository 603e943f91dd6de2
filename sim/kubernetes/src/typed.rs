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
use k8s_openapi::api::resource::v1beta1;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

use crate::custom;
use crate::decoding;
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

/// Decodes a body of `resource`. The error is the sentence of the decoder.
pub(crate) fn decode(resource: &Resource, mut object: Value) -> Result<Decoded, String> {
    if resource.custom {
        drop_empty(&mut object, &resource.schema, false);
        let mut unknown = Vec::new();
        custom::prune(&mut object, &resource.document, "", &mut unknown);
        return Ok(Decoded { object, unknown });
    }
    quantities(&mut object);
    if resource.is_event() || resource.group == "coordination.k8s.io" {
        decoding::micro_times(&object)?;
    }
    let sent = object.clone();
    let (kind, of) = (resource.kind.as_str(), resource.schema.as_ref());
    let decoded = match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Node") => decoding::through::<Node>(kind, of, object),
        ("", "Pod") => decoding::through::<Pod>(kind, of, object),
        ("", "Event") => decoding::through::<Event>(kind, of, object),
        ("", "Namespace") => decoding::through::<Namespace>(kind, of, object),
        ("", "ConfigMap") => decoding::through::<ConfigMap>(kind, of, object),
        ("", "Secret") => decoding::through::<Secret>(kind, of, object),
        ("", "ServiceAccount") => decoding::through::<ServiceAccount>(kind, of, object),
        ("", "Service") => decoding::through::<Service>(kind, of, object),
        ("events.k8s.io", _) => decoding::through::<NewEvent>(kind, of, object),
        ("coordination.k8s.io", _) => decoding::through::<Lease>(kind, of, object),
        ("apps", "DaemonSet") => decoding::through::<DaemonSet>(kind, of, object),
        ("apps", _) => decoding::through::<Deployment>(kind, of, object),
        ("policy", _) => decoding::through::<PodDisruptionBudget>(kind, of, object),
        ("resource.k8s.io", kind) if resource.version == "v1beta1" => match kind {
            "ResourceSlice" => decoding::through::<v1beta1::ResourceSlice>(kind, of, object),
            "DeviceClass" => decoding::through::<v1beta1::DeviceClass>(kind, of, object),
            _ => decoding::through::<v1beta1::ResourceClaim>(kind, of, object),
        },
        ("resource.k8s.io", "ResourceSlice") => {
            decoding::through::<ResourceSlice>(kind, of, object)
        }
        ("resource.k8s.io", "DeviceClass") => decoding::through::<DeviceClass>(kind, of, object),
        ("resource.k8s.io", _) => decoding::through::<ResourceClaim>(kind, of, object),
        ("apiextensions.k8s.io", _) => {
            decoding::through::<CustomResourceDefinition>(kind, of, object)
        }
        _ => Ok(object),
    };
    let mut object = decoded?;
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

/// Flags of built-in kinds that are plain `bool`s with `omitempty` in Go, so that false reads as absent.
const PLAIN_FLAGS: &[&str] = &[
    "unschedulable",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "readOnly",
    "stdin",
    "stdinOnce",
    "tty",
];

/// Removes what Go leaves out when it is empty: maps of data and, in built-in kinds, lists and flags.
fn drop_empty(value: &mut Value, of: &Type, built_in: bool) {
    match value {
        Value::Object(map) => {
            map.retain(|name, field| {
                let field_type = of.field(name);
                drop_empty(field, field_type, built_in);
                match field {
                    Value::Object(inner) => !(inner.is_empty() && *field_type == Type::Map),
                    Value::Array(items) => {
                        let in_metadata = matches!(field_type, Type::Set | Type::ListMap { .. });
                        // The containers of a pod are always written.
                        !(items.is_empty() && (built_in || in_metadata) && name != "containers")
                            || name == "managedFields"
                    }
                    Value::Bool(false) => !(built_in && PLAIN_FLAGS.contains(&name.as_str())),
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
                drop_empty(item, item_type, built_in);
            }
        }
        _ => {}
    }
}
