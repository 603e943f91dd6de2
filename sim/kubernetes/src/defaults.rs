//! Defaults that every write of a kind gets, as the real server sets them when it decodes a body: without them a
//! client that writes its own manifest again would change what it did not mention.

use serde_json::{Value, json};

use crate::base64;
use crate::custom;
use crate::json;
use crate::resource::Resource;

const NODE_INFO: &[&str] = &[
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
];

/// Sets what is absent.
pub(crate) fn set(resource: &Resource, object: &mut Value) {
    if resource.custom {
        custom::default(object, &resource.document);
        return;
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => pod(object),
        ("", "namespaces") => {
            let name = json::text(object, &["metadata", "name"]).to_owned();
            json::set(
                object,
                &["metadata", "labels", "kubernetes.io/metadata.name"],
                json!(name),
            );
        }
        ("", "nodes") => {
            json::default(object, &["spec"], json!({}));
            // What the status of a node always holds.
            json::default(
                object,
                &["status", "daemonEndpoints", "kubeletEndpoint", "Port"],
                json!(0),
            );
            for field in NODE_INFO {
                json::default(object, &["status", "nodeInfo", field], json!(""));
            }
            if json::at(object, &["status", "allocatable"]).is_none()
                && let Some(capacity) = json::at(object, &["status", "capacity"]).cloned()
            {
                json::set(object, &["status", "allocatable"], capacity);
            }
        }
        ("", "secrets") => {
            json::default(object, &["type"], json!("Opaque"));
            encode_string_data(object);
        }
        ("resource.k8s.io", "resourceclaims") => requests(object, resource.version == "v1beta1"),
        ("apps", kind) => workload(object, kind == "deployments"),
        ("apiextensions.k8s.io", _) => definition(object),
        _ => {}
    }
}

/// A request asks for exactly one device when it does not say.
fn requests(claim: &mut Value, flat: bool) {
    let requests = claim
        .get_mut("spec")
        .and_then(|spec| spec.get_mut("devices"))
        .and_then(|devices| devices.get_mut("requests"))
        .and_then(Value::as_array_mut);
    for request in requests.into_iter().flatten() {
        let wanted = if flat {
            (!json::text(request, &["deviceClassName"]).is_empty()).then_some(request)
        } else {
            request.get_mut("exactly")
        };
        let Some(wanted) = wanted else { continue };
        json::default(wanted, &["allocationMode"], json!("ExactCount"));
        if wanted["allocationMode"] == "ExactCount" {
            json::default(wanted, &["count"], json!(1));
        }
    }
}

/// The defaults of a pod, or of the template of one.
fn pod(object: &mut Value) {
    for (field, value) in [
        ("restartPolicy", json!("Always")),
        ("dnsPolicy", json!("ClusterFirst")),
        ("schedulerName", json!("default-scheduler")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("enableServiceLinks", json!(true)),
        ("securityContext", json!({})),
    ] {
        json::default(object, &["spec", field], value);
    }
    for list in ["containers", "initContainers"] {
        let containers = object
            .get_mut("spec")
            .and_then(|spec| spec.get_mut(list))
            .and_then(Value::as_array_mut);
        containers.into_iter().flatten().for_each(container);
    }
}

fn container(container: &mut Value) {
    let latest = {
        let image = json::text(container, &["image"]);
        let tag = image.rsplit_once('/').map_or(image, |(_, rest)| rest);
        !tag.contains([':', '@']) || tag.ends_with(":latest")
    };
    let policy = if latest { "Always" } else { "IfNotPresent" };
    for (field, value) in [
        ("imagePullPolicy", json!(policy)),
        ("resources", json!({})),
        ("terminationMessagePath", json!("/dev/termination-log")),
        ("terminationMessagePolicy", json!("File")),
    ] {
        json::default(container, &[field], value);
    }
    // A limit without a request is the request.
    if let Some(limits) = json::at(container, &["resources", "limits"]).cloned() {
        for (name, amount) in limits.as_object().into_iter().flatten() {
            json::default(container, &["resources", "requests", name], amount.clone());
        }
    }
    let ports = container.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten() {
        json::default(port, &["protocol"], json!("TCP"));
    }
}

fn workload(object: &mut Value, deployment: bool) {
    if let Some(template) = object
        .get_mut("spec")
        .and_then(|spec| spec.get_mut("template"))
    {
        pod(template);
    }
    json::default(object, &["spec", "revisionHistoryLimit"], json!(10));
    if deployment {
        json::default(object, &["spec", "replicas"], json!(1));
        json::default(object, &["spec", "progressDeadlineSeconds"], json!(600));
        let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}});
        json::default(object, &["spec", "strategy"], rolling);
    } else {
        let rolling =
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}});
        json::default(object, &["spec", "updateStrategy"], rolling);
    }
}

fn definition(object: &mut Value) {
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
}

/// `stringData` is write-only: it goes into `data` as base64.
fn encode_string_data(object: &mut Value) {
    let Some(Value::Object(plain)) = json::remove(object, &["stringData"]) else {
        return;
    };
    for (name, value) in plain {
        let encoded = base64::encode(value.as_str().unwrap_or("").as_bytes());
        json::set(object, &["data", &name], json!(encoded));
    }
}
