//! The checks on objects that clients meet in practice, with the real server's causes
//! (`k8s.io/apimachinery/pkg/api/validation`, `k8s.io/kubernetes/pkg/apis/core/validation`).

mod core;
mod event;
mod names;

use serde_json::{Value, json};

use self::names::{dns_label_errors, subdomain_errors};
pub(crate) use self::names::{label_value_errors, qualified_name_errors};
use crate::custom;
use crate::error::Cause;
use crate::json;
use crate::resource::Resource;

/// All annotations of one object together, in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// What is wrong with a whole object; the caller answers 422 when this is not empty.
pub(crate) fn object(resource: &Resource, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = metadata(resource, object);
    if let Some(old) = old {
        new_finalizers(object, old, &mut causes);
    }
    if resource.is("", "nodes") {
        core::taints(object, &mut causes);
    } else if resource.is("", "pods") {
        match old {
            None => core::new_pod(object, &mut causes),
            Some(old) => core::changed_pod(object, old, &mut causes),
        }
    } else if resource.is("", "configmaps") || resource.is("", "secrets") {
        core::data(object, old, &mut causes);
    } else if resource.is("policy", "poddisruptionbudgets") {
        core::budget(object, &mut causes);
    } else if resource.is_event() {
        event::event(resource, object, old, &mut causes);
    } else if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        definition(object, &mut causes);
    } else if resource.custom {
        custom::check(object, &resource.document, "", &mut causes);
    } else if resource.is("coordination.k8s.io", "leases") {
        lease(object, &mut causes);
    }
    causes
}

fn metadata(resource: &Resource, object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let name = json::text(object, &["metadata", "name"]);
    if name.is_empty() {
        causes.push(Cause::required(
            "metadata.name",
            "name or generateName is required",
        ));
    } else {
        let errors_of = if resource.is("", "namespaces") || resource.is("", "services") {
            dns_label_errors
        } else {
            subdomain_errors
        };
        let prefix = json::text(object, &["metadata", "generateName"]);
        // A prefix may end with a dash: something follows.
        let masked = match prefix.strip_suffix('-') {
            Some(rest) if !rest.is_empty() => format!("{rest}a"),
            _ => prefix.to_owned(),
        };
        if !prefix.is_empty() {
            causes.extend(
                errors_of(&masked)
                    .iter()
                    .map(|error| Cause::invalid("metadata.generateName", &json!(prefix), error)),
            );
        }
        let errors = errors_of(name);
        causes.extend(
            errors
                .iter()
                .map(|error| Cause::invalid("metadata.name", &json!(name), error)),
        );
    }
    for (key, value) in pairs(object, "labels") {
        let wrong_key = qualified_name_errors(key);
        let value_text = value.as_str().unwrap_or("");
        let wrong_value = label_value_errors(value_text);
        let field = "metadata.labels";
        causes.extend(
            wrong_key
                .iter()
                .map(|error| Cause::invalid(field, &json!(key), error)),
        );
        causes.extend(
            wrong_value
                .iter()
                .map(|error| Cause::invalid(field, value, error)),
        );
    }
    let mut size = 0;
    for (key, value) in pairs(object, "annotations") {
        size += key.len() + value.as_str().unwrap_or("").len();
        // Annotation keys are checked in lower case: the prefix may hold capitals.
        for error in qualified_name_errors(&key.to_lowercase()) {
            causes.push(Cause::invalid("metadata.annotations", &json!(key), &error));
        }
    }
    if size > ANNOTATIONS_LIMIT {
        causes.push(Cause {
            reason: "FieldValueTooLong",
            message: format!("Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"),
            field: "metadata.annotations".to_owned(),
        });
    }
    for (place, owner) in json::list(object, &["metadata", "ownerReferences"])
        .iter()
        .enumerate()
    {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if json::text(owner, &[field]).is_empty() {
                causes.push(Cause::required(
                    format!("metadata.ownerReferences[{place}].{field}"),
                    "must not be empty",
                ));
            }
        }
    }
    finalizers(object, &mut causes);
    causes
}

/// Finalizers are qualified names with a prefix, save for those of the system itself.
fn finalizers(object: &Value, causes: &mut Vec<Cause>) {
    const STANDARD: &[&str] = &["kubernetes", "orphan", "foregroundDeletion"];
    let names = json::list(object, &["metadata", "finalizers"]);
    for (place, finalizer) in names.iter().enumerate() {
        let name = finalizer.as_str().unwrap_or("");
        for error in qualified_name_errors(name) {
            causes.push(Cause::invalid("metadata.finalizers", finalizer, &error));
        }
        if !name.contains('/') && !STANDARD.contains(&name) {
            causes.push(Cause::invalid(
                format!("metadata.finalizers[{place}]"),
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            ));
        }
    }
}

/// Metadata that a client may leave out of an update, but not change.
pub(crate) fn fixed_metadata(old: &Value, new: &Value) -> Vec<Cause> {
    ["deletionTimestamp", "deletionGracePeriodSeconds"]
        .into_iter()
        .filter_map(|field| {
            let sent = json::at(new, &["metadata", field])?;
            (Some(sent) != json::at(old, &["metadata", field]))
                .then(|| Cause::invalid(format!("metadata.{field}"), sent, "field is immutable"))
        })
        .collect()
}

fn pairs<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    json::at(object, &["metadata", field])
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
}

fn new_finalizers(object: &Value, old: &Value, causes: &mut Vec<Cause>) {
    if json::at(old, &["metadata", "deletionTimestamp"]).is_none() {
        return;
    }
    let before = json::list(old, &["metadata", "finalizers"]);
    let fresh: Vec<String> = json::list(object, &["metadata", "finalizers"])
        .iter()
        .filter(|finalizer| !before.contains(finalizer))
        .map(Value::to_string)
        .collect();
    if !fresh.is_empty() {
        causes.push(Cause::forbidden(
            "metadata.finalizers",
            &format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                fresh.join(", ")
            ),
        ));
    }
}

fn lease(lease: &Value, causes: &mut Vec<Cause>) {
    for field in ["leaseDurationSeconds", "leaseTransitions"] {
        if let Some(number) = lease["spec"][field].as_i64() {
            let (wrong, rule) = match field {
                "leaseDurationSeconds" => (number <= 0, "must be greater than 0"),
                _ => (number < 0, "must be greater than or equal to 0"),
            };
            if wrong {
                causes.push(Cause::invalid(
                    format!("spec.{field}"),
                    &json!(number),
                    rule,
                ));
            }
        }
    }
}

fn definition(definition: &Value, causes: &mut Vec<Cause>) {
    let spec = |path: &[&str]| json::text(&definition["spec"], path);
    for (field, path) in [
        ("spec.group", &["group"][..]),
        ("spec.scope", &["scope"]),
        ("spec.names.plural", &["names", "plural"]),
        ("spec.names.kind", &["names", "kind"]),
    ] {
        if spec(path).is_empty() {
            causes.push(Cause::required(field, ""));
        }
    }
    let name = json::text(definition, &["metadata", "name"]);
    let wanted = format!("{}.{}", spec(&["names", "plural"]), spec(&["group"]));
    if name != wanted {
        causes.push(Cause::invalid(
            "metadata.name",
            &json!(name),
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    let stored = json::list(definition, &["spec", "versions"])
        .iter()
        .filter(|version| version["storage"].as_bool().unwrap_or(false))
        .count();
    if stored != 1 {
        causes.push(Cause::invalid(
            "spec.versions",
            &definition["spec"]["versions"],
            "must have exactly one version marked as storage version",
        ));
    }
}

/// Refuses metadata that cannot be decoded, with the sentence of Go's decoder: clients meet it when a label or an
/// annotation is a number or a truth value.
pub(crate) fn decodable(kind: &str, object: &Value) -> Result<(), String> {
    let of = |value: &Value| match value {
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        Value::String(_) => "string",
        Value::Null => "null",
    };
    if let Some(metadata) = json::at(object, &["metadata"])
        && !metadata.is_object()
    {
        return Err(format!(
            "json: cannot unmarshal {} into Go struct field {kind}.metadata of type v1.ObjectMeta",
            of(metadata)
        ));
    }
    let wrong = |field: &str, value: &Value| {
        format!(
            "json: cannot unmarshal {} into Go struct field ObjectMeta.metadata.{field} of type string",
            of(value)
        )
    };
    for field in ["labels", "annotations"] {
        if let Some(found) = json::at(object, &["metadata", field])
            && !found.is_object()
        {
            return Err(format!(
                "json: cannot unmarshal {} into Go struct field ObjectMeta.metadata.{field} of type map[string]string",
                of(found)
            ));
        }
        for (_, value) in pairs(object, field) {
            if !value.is_string() {
                return Err(wrong(field, value));
            }
        }
    }
    for field in ["name", "namespace", "resourceVersion", "uid"] {
        if let Some(value) = json::at(object, &["metadata", field])
            && !value.is_string()
        {
            return Err(wrong(field, value));
        }
    }
    Ok(())
}
