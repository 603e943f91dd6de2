//! What each kind does to an object before it is stored: what a write may not touch, generation, a first status
//! (the `rest.*Strategy` of the real server).

use serde_json::{Value, json};

use crate::defaults;
use crate::json;
use crate::resource::{Resource, Status};

/// Removes nulls, as decoding into Go types does.
pub(crate) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, field| !field.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Prepares a new object. `keep_status` is for objects that are seeded as they are.
pub(crate) fn prepare_create(resource: &Resource, object: &mut Value, keep_status: bool) {
    if resource.status == Status::Dropped && !keep_status {
        json::remove(object, &["status"]);
    }
    if resource.generation {
        json::set(object, &["metadata", "generation"], json!(1));
    }
    defaults::set(resource, object);
    if resource.is("", "namespaces") {
        json::set(object, &["spec", "finalizers"], json!(["kubernetes"]));
        json::set(object, &["status", "phase"], json!("Active"));
    } else if resource.is("", "pods") {
        json::default(object, &["status", "phase"], json!("Pending"));
        let class = quality(object);
        json::default(object, &["status", "qosClass"], json!(class));
    } else if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        establish(object);
    }
}

/// A node that a client creates is not ready until its kubelet says so (admission plugin TaintNodesByCondition).
pub(crate) fn taint_new_node(node: &mut Value) {
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let mut taints = json::list(node, &["spec", "taints"]).to_vec();
    if !taints.contains(&taint) {
        taints.push(taint);
        json::set(node, &["spec", "taints"], Value::Array(taints));
    }
}

/// The quality-of-service class of a pod: from requests and limits of processor and memory.
fn quality(pod: &Value) -> &'static str {
    let containers = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|list| json::list(pod, &["spec", list]));
    let (mut any, mut all) = (false, true);
    for container in containers {
        for amount in ["cpu", "memory"] {
            let request = json::at(container, &["resources", "requests", amount]);
            let limit = json::at(container, &["resources", "limits", amount]);
            any |= request.or(limit).is_some();
            all &= limit.is_some() && request.is_none_or(|request| Some(request) == limit);
        }
    }
    match (any, all) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// A definition is accepted and established at once; there is no controller to wait for.
fn establish(object: &mut Value) {
    let stored: Vec<Value> = json::list(object, &["spec", "versions"])
        .iter()
        .filter(|version| version["storage"].as_bool().unwrap_or(false))
        .map(|version| version["name"].clone())
        .collect();
    let now = crate::clock::now();
    let condition = |of: &str, reason: &str, message: &str| json!({"type": of, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now});
    let names = object["spec"]["names"].clone();
    json::set(
        object,
        &["status"],
        json!({
            "acceptedNames": names,
            "conditions": [
                condition("NamesAccepted", "NoConflicts", "no conflicts found"),
                condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            ],
            "storedVersions": stored,
        }),
    );
}

/// Prepares an update: what this endpoint may not write comes from `old`, and the generation counts what changed.
pub(crate) fn prepare_update(resource: &Resource, status: bool, old: &Value, new: &mut Value) {
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
    ] {
        json::copy(new, old, &["metadata", field]);
    }
    if status {
        if resource.custom {
            // Custom resources: a status write changes the status and nothing else.
            let managers = json::at(new, &["metadata", "managedFields"]).cloned();
            let found = json::at(new, &["status"]).cloned();
            let version = json::at(new, &["metadata", "resourceVersion"]).cloned();
            *new = old.clone();
            for (path, value) in [
                (["metadata", "managedFields"].as_slice(), managers),
                (&["metadata", "resourceVersion"], version),
                (&["status"], found),
            ] {
                match value {
                    Some(value) => json::set(new, path, value),
                    None => {
                        json::remove(new, path);
                    }
                }
            }
        } else {
            json::copy(new, old, &["spec"]);
        }
    } else if resource.status != Status::None {
        json::copy(new, old, &["status"]);
    }
    if resource.is("", "namespaces") {
        json::copy(new, old, &["spec", "finalizers"]);
    }
    defaults::set(resource, new);
    if resource.generation && !status && content(old) != content(new) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
        json::set(new, &["metadata", "generation"], json!(generation + 1));
    }
}

/// What the generation counts: everything but metadata, status and the envelope.
fn content(object: &Value) -> Vec<(&String, &Value)> {
    object
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "status"))
        .collect()
}
