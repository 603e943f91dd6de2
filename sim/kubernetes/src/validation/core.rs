//! Nodes and pods.

use serde_json::{Value, json};

use super::names::{dns_label_errors, label_value_errors, qualified_name_errors};
use crate::error::Cause;
use crate::json;

/// The taints of a node.
pub(super) fn taints(node: &Value, causes: &mut Vec<Cause>) {
    const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let taints = json::list(node, &["spec", "taints"]);
    for (place, taint) in taints.iter().enumerate() {
        // So the real server has it: taints are checked as part of the metadata.
        let field = |name: &str| format!("metadata.taints[{place}].{name}");
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
            let shown = format!(
                "{{\"Key\":{},\"Value\":{},\"Effect\":{},\"TimeAdded\":{}}}",
                json!(key),
                json!(value),
                json!(effect),
                taint.get("timeAdded").unwrap_or(&Value::Null),
            );
            let mut duplicate = Cause::duplicate(format!("metadata.taints[{place}]"), &Value::Null);
            duplicate.message = format!("Duplicate value: {shown}");
            duplicate.message += ": taints must be unique by key and effect pair";
            causes.push(duplicate);
        }
    }
}

/// What a pod must have.
pub(super) fn new_pod(pod: &Value, causes: &mut Vec<Cause>) {
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
pub(super) fn changed_pod(pod: &Value, old: &Value, causes: &mut Vec<Cause>) {
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

/// The data of config maps and secrets: keys are file names, and what is marked as immutable stays.
pub(super) fn data(object: &Value, old: Option<&Value>, causes: &mut Vec<Cause>) {
    const RULE: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
    for field in ["data", "binaryData"] {
        for key in object[field]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, _)| key)
        {
            let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            if key.is_empty() || !key.bytes().all(legal) {
                causes.push(Cause::invalid(format!("{field}[{key}]"), &json!(key), RULE));
            }
        }
    }
    let Some(old) = old else { return };
    if old["immutable"] != json!(true) {
        return;
    }
    let rule = "field is immutable when `immutable` is set";
    if object["immutable"] != json!(true) {
        causes.push(Cause::forbidden("immutable", rule));
    }
    for field in ["data", "binaryData"] {
        if object.get(field) != old.get(field) {
            causes.push(Cause::forbidden(field, rule));
        }
    }
}

/// A disruption budget has one bound.
pub(super) fn budget(budget: &Value, causes: &mut Vec<Cause>) {
    let spec = &budget["spec"];
    if json::at(spec, &["minAvailable"]).is_some() && json::at(spec, &["maxUnavailable"]).is_some()
    {
        causes.push(Cause::invalid(
            "spec",
            spec,
            "minAvailable and maxUnavailable cannot be both set",
        ));
    }
}
