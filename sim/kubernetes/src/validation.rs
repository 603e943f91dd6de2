//! The checks on objects that clients meet in practice, with the real server's causes
//! (`k8s.io/apimachinery/pkg/api/validation`, `k8s.io/kubernetes/pkg/apis/core/validation`).

use serde_json::{Value, json};

use crate::error::Cause;
use crate::json;
use crate::resource::Resource;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const DNS_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED_NAME: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
/// All annotations of one object together, in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !text.is_empty()
        && text.bytes().all(|byte| inner(byte) || byte == b'-')
        && text.bytes().next().is_some_and(inner)
        && text.bytes().next_back().is_some_and(inner)
}

fn subdomain_errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 253 {
        errors.push("must be no more than 253 bytes".to_owned());
    }
    if !text.split('.').all(is_dns_label) {
        errors.push(SUBDOMAIN.to_owned());
    }
    errors
}

fn dns_label_errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 63 {
        errors.push("must be no more than 63 bytes".to_owned());
    }
    if !is_dns_label(text) {
        errors.push(DNS_LABEL.to_owned());
    }
    errors
}

fn is_name_part(text: &str) -> bool {
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        && ends(text.bytes().next())
        && ends(text.bytes().next_back())
}

/// What is wrong with a label key, taint key or annotation key.
fn qualified_name_errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                errors.extend(
                    subdomain_errors(prefix)
                        .into_iter()
                        .map(|error| format!("prefix part {error}")),
                );
            }
            *name
        }
        _ => {
            return vec![format!(
                "a qualified name {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                QUALIFIED_NAME.trim_start_matches("name part ")
            )];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push("name part must be no more than 63 bytes".to_owned());
    }
    if !is_name_part(name) {
        errors.push(QUALIFIED_NAME.to_owned());
    }
    errors
}

fn label_value_errors(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 63 {
        errors.push("must be no more than 63 bytes".to_owned());
    }
    if !text.is_empty() && !is_name_part(text) {
        errors.push(LABEL_VALUE.to_owned());
    }
    errors
}

/// What is wrong with a whole object; the caller answers 422 when this is not empty.
pub(crate) fn object(resource: &Resource, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = metadata(resource, object);
    if let Some(old) = old {
        new_finalizers(object, old, &mut causes);
    }
    if resource.is("", "nodes") {
        taints(object, &mut causes);
    } else if resource.is("", "pods") {
        match old {
            None => new_pod(object, &mut causes),
            Some(old) => changed_pod(object, old, &mut causes),
        }
    } else if resource.is_event() {
        event(resource, object, old.is_some(), &mut causes);
    } else if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
        definition(object, &mut causes);
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
        let errors = if resource.is("", "namespaces") || resource.is("", "services") {
            dns_label_errors(name)
        } else {
            subdomain_errors(name)
        };
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
                causes.push(Cause::invalid(
                    format!("metadata.ownerReferences[{place}].{field}"),
                    &json!(""),
                    "must not be empty",
                ));
            }
        }
    }
    causes
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

fn taints(node: &Value, causes: &mut Vec<Cause>) {
    const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let taints = json::list(node, &["spec", "taints"]);
    for (place, taint) in taints.iter().enumerate() {
        let field = |name: &str| format!("spec.taints[{place}].{name}");
        let key = json::text(taint, &["key"]);
        for error in qualified_name_errors(key) {
            causes.push(Cause::invalid(field("key"), &json!(key), &error));
        }
        let value = json::text(taint, &["value"]);
        for error in label_value_errors(value) {
            causes.push(Cause::invalid(field("value"), &json!(value), &error));
        }
        let effect = json::text(taint, &["effect"]);
        if effect.is_empty() {
            causes.push(Cause::required(field("effect"), ""));
        } else if !EFFECTS.contains(&effect) {
            causes.push(Cause::unsupported(field("effect"), &json!(effect), EFFECTS));
        }
        let same = |other: &Value| {
            json::text(other, &["key"]) == key && json::text(other, &["effect"]) == effect
        };
        if taints.iter().take(place).any(same) {
            let mut duplicate = Cause::duplicate(format!("spec.taints[{place}]"), taint);
            duplicate.message += ": taints must be unique by key and effect pair";
            causes.push(duplicate);
        }
    }
}

fn new_pod(pod: &Value, causes: &mut Vec<Cause>) {
    let containers = json::list(pod, &["spec", "containers"]);
    if containers.is_empty() {
        causes.push(Cause::required("spec.containers", ""));
    }
    for (place, container) in containers.iter().enumerate() {
        let field = |name: &str| format!("spec.containers[{place}].{name}");
        let name = json::text(container, &["name"]);
        if name.is_empty() {
            causes.push(Cause::required(field("name"), ""));
        } else {
            for error in dns_label_errors(name) {
                causes.push(Cause::invalid(field("name"), &json!(name), &error));
            }
            if containers
                .iter()
                .take(place)
                .any(|other| json::text(other, &["name"]) == name)
            {
                causes.push(Cause::duplicate(field("name"), &json!(name)));
            }
        }
        if json::text(container, &["image"]).is_empty() {
            causes.push(Cause::required(field("image"), ""));
        }
    }
}

/// Most of a pod's spec is fixed once it exists.
fn changed_pod(pod: &Value, old: &Value, causes: &mut Vec<Cause>) {
    let fixed = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        for field in [
            "activeDeadlineSeconds",
            "tolerations",
            "terminationGracePeriodSeconds",
            "schedulingGates",
            "ephemeralContainers",
            "nodeName",
        ] {
            json::remove(&mut spec, &[field]);
        }
        for list in ["containers", "initContainers"] {
            for container in spec
                .get_mut(list)
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                json::remove(container, &["image"]);
            }
        }
        spec
    };
    let moved = json::text(pod, &["spec", "nodeName"]) != json::text(old, &["spec", "nodeName"]);
    if moved || fixed(pod) != fixed(old) {
        causes.push(Cause::forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        ));
    }
}

/// Checks an Event in its served shape. The new API is strict where the old one takes nearly everything.
fn event(resource: &Resource, event: &Value, update: bool, causes: &mut Vec<Cause>) {
    let regarding = if resource.group.is_empty() {
        "involvedObject"
    } else {
        "regarding"
    };
    let namespace = json::text(event, &["metadata", "namespace"]);
    let about = json::text(event, &[regarding, "namespace"]);
    // Events about cluster-scoped objects, such as Nodes, live in "default".
    let expected = if about.is_empty() { "default" } else { about };
    if namespace != expected {
        causes.push(Cause::invalid(
            "involvedObject.namespace",
            &json!(about),
            "does not match event.namespace",
        ));
    }
    if resource.group.is_empty() || update {
        return;
    }
    if json::at(event, &["eventTime"]).is_none() {
        causes.push(Cause::required("eventTime", ""));
    }
    for field in [
        "reportingController",
        "reportingInstance",
        "action",
        "reason",
    ] {
        if json::text(event, &[field]).is_empty() {
            causes.push(Cause::required(field, ""));
        }
    }
    for (field, limit) in [
        ("reportingInstance", 128),
        ("action", 128),
        ("reason", 128),
        ("note", 1024),
    ] {
        if json::text(event, &[field]).len() > limit {
            causes.push(Cause::invalid(
                if field == "note" { "message" } else { field },
                &json!(""),
                &format!("can have at most {limit} characters"),
            ));
        }
    }
    let kind = json::text(event, &["type"]);
    if !matches!(kind, "Normal" | "Warning") {
        causes.push(Cause::invalid(
            "type",
            &json!(""),
            &format!("has invalid value: {kind}"),
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
pub(crate) fn decodable(object: &Value) -> Result<(), String> {
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
            "json: cannot unmarshal {} into Go struct field .metadata of type v1.ObjectMeta",
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
