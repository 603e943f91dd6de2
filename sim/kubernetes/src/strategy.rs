//! What each kind does to an object before it is stored: defaults, what a write may not touch, generation
//! (the `rest.*Strategy` of the real server).

use serde_json::{Value, json};

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
    } else {
        json::remove(object, &["metadata", "generation"]);
    }
    defaults(resource, object);
}

/// Sets the defaults that clients rely on reading back.
fn defaults(resource: &Resource, object: &mut Value) {
    if resource.is("", "pods") {
        pod_defaults(object);
    } else if resource.is("", "namespaces") {
        let name = json::text(object, &["metadata", "name"]).to_owned();
        json::set(
            object,
            &["metadata", "labels", "kubernetes.io/metadata.name"],
            json!(name),
        );
        json::set(object, &["spec", "finalizers"], json!(["kubernetes"]));
        json::set(object, &["status", "phase"], json!("Active"));
    } else if resource.is("", "secrets") {
        json::default(object, &["type"], json!("Opaque"));
        encode_string_data(object);
    } else if resource.is("", "nodes") {
        json::default(object, &["spec"], json!({}));
        if json::at(object, &["status", "allocatable"]).is_none()
            && let Some(capacity) = json::at(object, &["status", "capacity"]).cloned()
        {
            json::set(object, &["status", "allocatable"], capacity);
        }
    } else if resource.is("apps", "daemonsets") || resource.is("apps", "deployments") {
        let mut pod = json!({ "spec": json::at(object, &["spec", "template", "spec"]) });
        pod_spec_defaults(&mut pod);
        json::copy(
            object,
            &json!({"spec": {"template": pod}}),
            &["spec", "template", "spec"],
        );
        json::default(object, &["spec", "revisionHistoryLimit"], json!(10));
        if resource.plural == "deployments" {
            json::default(object, &["spec", "replicas"], json!(1));
            json::default(object, &["spec", "progressDeadlineSeconds"], json!(600));
        }
    } else if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        crd_defaults(object);
    }
}

fn pod_defaults(object: &mut Value) {
    pod_spec_defaults(object);
    json::default(object, &["status", "phase"], json!("Pending"));
    json::default(object, &["status", "qosClass"], json!("BestEffort"));
}

fn pod_spec_defaults(object: &mut Value) {
    for (field, value) in [
        ("restartPolicy", json!("Always")),
        ("dnsPolicy", json!("ClusterFirst")),
        ("schedulerName", json!("default-scheduler")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("securityContext", json!({})),
        ("enableServiceLinks", json!(true)),
    ] {
        json::default(object, &["spec", field], value);
    }
    let containers = object
        .get_mut("spec")
        .and_then(|spec| spec.get_mut("containers"))
        .and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten() {
        let latest = {
            let image = json::text(container, &["image"]);
            let tag = image.rsplit_once('/').map_or(image, |(_, rest)| rest);
            !tag.contains(':') && !tag.contains('@') || tag.ends_with(":latest")
        };
        let policy = if latest { "Always" } else { "IfNotPresent" };
        json::default(container, &["imagePullPolicy"], json!(policy));
        json::default(container, &["resources"], json!({}));
        json::default(
            container,
            &["terminationMessagePath"],
            json!("/dev/termination-log"),
        );
        json::default(container, &["terminationMessagePolicy"], json!("File"));
    }
}

/// `stringData` is write-only: it goes into `data` as base64.
pub(crate) fn encode_string_data(object: &mut Value) {
    let Some(Value::Object(plain)) = json::remove(object, &["stringData"]) else {
        return;
    };
    for (name, value) in plain {
        let encoded = base64(value.as_str().unwrap_or("").as_bytes());
        json::set(object, &["data", &name], json!(encoded));
    }
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .chain([0, 0].iter())
            .take(3)
            .fold(0_usize, |group, &byte| group << 8 | usize::from(byte));
        for place in 0..4 {
            if place <= chunk.len() {
                text.push(char::from(ALPHABET[group >> (18 - 6 * place) & 63]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// A definition is accepted and established at once; there is no controller to wait for.
fn crd_defaults(object: &mut Value) {
    let kind = json::text(object, &["spec", "names", "kind"]).to_owned();
    json::default(
        object,
        &["spec", "names", "listKind"],
        json!(format!("{kind}List")),
    );
    json::default(
        object,
        &["spec", "names", "singular"],
        json!(kind.to_lowercase()),
    );
    json::default(object, &["spec", "conversion"], json!({"strategy": "None"}));
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
    if resource.is("", "secrets") {
        encode_string_data(new);
    }
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
