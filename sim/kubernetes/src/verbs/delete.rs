//! Delete and delete-collection: preconditions, finalizers, the grace of pods, and what goes with a namespace or a
//! definition. There is no garbage collector: a propagation policy is accepted and owned objects stay.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Target, served};
use crate::clock;
use crate::error::{ApiError, Cause};
use crate::json;
use crate::query::dry_run;
use crate::resource::Resource;
use crate::store::{Key, State};

/// How a deletion ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    /// The object is gone; its last state.
    Gone(Value),
    /// The object waits for finalizers or for its grace, in seconds.
    Pending(Value, u64),
}

/// `DeleteOptions`, from the body or the query.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace: Option<u64>,
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) dry_run: bool,
}

impl DeleteOptions {
    /// Reads the body of a request.
    pub(crate) fn of(body: &Value) -> Result<Self, ApiError> {
        const POLICIES: &[&str] = &["Foreground", "Background", "Orphan", "nil"];
        let given = |path: &[&str]| {
            json::at(body, path)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        let policy = json::text(body, &["propagationPolicy"]);
        if !policy.is_empty() && !POLICIES.contains(&policy) {
            let cause = Cause::unsupported("propagationPolicy", &json!(policy), POLICIES);
            return Err(options_error(&cause));
        }
        let dry: Vec<&str> = json::list(body, &["dryRun"])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        Ok(Self {
            grace: json::at(body, &["gracePeriodSeconds"]).and_then(Value::as_u64),
            uid: given(&["preconditions", "uid"]),
            version: given(&["preconditions", "resourceVersion"]),
            dry_run: dry_run(&dry).map_err(|cause| options_error(&cause))?,
        })
    }
}

/// 422 about the options of a deletion.
pub(crate) fn options_error(cause: &Cause) -> ApiError {
    ApiError::invalid_kind(
        "meta.k8s.io",
        "DeleteOptions",
        "",
        std::slice::from_ref(cause),
    )
}

/// Deletes one object.
pub(crate) fn delete(
    state: &mut State,
    target: &Target,
    options: &DeleteOptions,
) -> Result<Outcome, ApiError> {
    let resource = &target.resource;
    let key = target.key();
    let old = state
        .get(&resource.storage, &key)
        .cloned()
        .ok_or_else(|| ApiError::not_found(resource, &target.name))?;
    preconditions(resource, &old, options)?;
    let grace = if resource.is("", "pods") {
        pod_grace(&old, options)
    } else {
        0
    };
    if resource.is("", "namespaces") {
        return end_namespace(state, target, &old, options);
    }
    let held = !json::list(&old, &["metadata", "finalizers"]).is_empty();
    let mut object = (*old).clone();
    if grace == 0 && !held {
        if options.dry_run {
            return Ok(Outcome::Gone(served(resource, &object)));
        }
        contents(state, resource, &object);
        let last = state.remove(&resource.storage, &key, object).unwrap_or(old);
        return Ok(Outcome::Gone(served(resource, &last)));
    }
    mark(&mut object, &old, grace);
    if object == *old || options.dry_run {
        return Ok(Outcome::Pending(served(resource, &object), grace));
    }
    let stored = state.put(&resource.storage, key, object);
    Ok(Outcome::Pending(served(resource, &stored), grace))
}

/// A namespace is marked as ending, and ends when nothing is left in it (see [`settle_namespaces`]).
fn end_namespace(
    state: &mut State,
    target: &Target,
    old: &Arc<Value>,
    options: &DeleteOptions,
) -> Result<Outcome, ApiError> {
    let resource = &target.resource;
    let mut object = (**old).clone();
    if json::at(old, &["metadata", "deletionTimestamp"]).is_none() {
        let now = json!(clock::now());
        json::set(&mut object, &["metadata", "deletionTimestamp"], now);
    }
    json::set(&mut object, &["status", "phase"], json!("Terminating"));
    if object == **old || options.dry_run {
        return Ok(Outcome::Pending(served(resource, &object), 0));
    }
    let stored = state.put(&resource.storage, target.key(), object);
    Ok(Outcome::Pending(served(resource, &stored), 0))
}

/// Empties the namespaces that are ending, and removes those that are empty, in place of the controller that is not
/// there. Objects with finalizers are marked and stay until those are gone.
pub(crate) fn settle_namespaces(state: &mut State) {
    const NAMESPACES: &str = "namespaces.";
    let ending: Vec<String> = state
        .shelf(NAMESPACES)
        .into_iter()
        .flat_map(|shelf| shelf.objects.iter())
        .filter(|(_, object)| json::text(object, &["status", "phase"]) == "Terminating")
        .map(|((_, name), _)| name.clone())
        .collect();
    for name in ending {
        let mut held = false;
        for (shelf, key) in state.in_namespace(&name) {
            let Some(found) = state.get(&shelf, &key).cloned() else {
                continue;
            };
            let mut object = (*found).clone();
            if json::list(&found, &["metadata", "finalizers"]).is_empty() {
                state.remove(&shelf, &key, object);
                continue;
            }
            held = true;
            mark(&mut object, &found, 0);
            if object != *found {
                state.put(&shelf, key, object);
            }
        }
        let key = (String::new(), name);
        if !held && let Some(last) = state.get(NAMESPACES, &key).map(|object| (**object).clone()) {
            state.remove(NAMESPACES, &key, last);
        }
    }
}

/// Marks an object as being deleted. A second deletion may shorten the grace, never lengthen it.
fn mark(object: &mut Value, old: &Arc<Value>, grace: u64) {
    let running = old["metadata"]["deletionGracePeriodSeconds"].as_u64();
    if running.is_some_and(|running| running <= grace) {
        return;
    }
    let span = SignedDuration::from_secs(i64::try_from(grace).unwrap_or(i64::MAX));
    let end = Timestamp::now().checked_add(span).unwrap_or(Timestamp::MAX);
    json::set(
        object,
        &["metadata", "deletionTimestamp"],
        json!(clock::seconds(end)),
    );
    json::set(
        object,
        &["metadata", "deletionGracePeriodSeconds"],
        json!(grace),
    );
    if let Some(generation) = old["metadata"]["generation"].as_i64() {
        json::set(object, &["metadata", "generation"], json!(generation + 1));
    }
}

/// Seconds that a pod is given; none when no kubelet runs it or it has ended.
fn pod_grace(pod: &Value, options: &DeleteOptions) -> u64 {
    let ended = matches!(
        json::text(pod, &["status", "phase"]),
        "Succeeded" | "Failed"
    );
    if ended || json::text(pod, &["spec", "nodeName"]).is_empty() {
        return 0;
    }
    options
        .grace
        .or_else(|| pod["spec"]["terminationGracePeriodSeconds"].as_u64())
        .unwrap_or(30)
}

fn preconditions(
    resource: &Resource,
    old: &Value,
    options: &DeleteOptions,
) -> Result<(), ApiError> {
    let name = json::text(old, &["metadata", "name"]);
    for (label, wanted, path, hint) in [
        ("UID", &options.uid, "uid", "deleted and then recreated"),
        (
            "ResourceVersion",
            &options.version,
            "resourceVersion",
            "modified",
        ),
    ] {
        let found = json::text(old, &["metadata", path]);
        if let Some(wanted) = wanted
            && wanted != found
        {
            let why = format!(
                "the {label} in the precondition ({wanted}) does not match the {label} in record ({found}). The object might have been {hint}"
            );
            return Err(ApiError::precondition(resource, name, &why));
        }
    }
    Ok(())
}

/// What lies inside a deleted definition: its instances. The real server's controllers remove them one after the other
/// before the definition itself goes.
fn contents(state: &mut State, resource: &Resource, object: &Value) {
    let name = json::text(object, &["metadata", "name"]);
    let doomed: Vec<(String, Key)> =
        if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
            // The name of a definition is `plural.group`, which is the name of the shelf.
            let keys = state.shelf(name).map(|shelf| shelf.objects.keys().cloned());
            keys.into_iter()
                .flatten()
                .map(|key| (name.to_owned(), key))
                .collect()
        } else {
            return;
        };
    for (shelf, key) in doomed {
        if let Some(last) = state.get(&shelf, &key).map(|object| (**object).clone()) {
            state.remove(&shelf, &key, last);
        }
    }
}

/// The answer to a deletion: the object where the real server returns it, a `Status` otherwise.
pub(crate) fn answer(resource: &Resource, outcome: &Outcome) -> Value {
    let returns_object = resource.group.is_empty()
        && matches!(
            resource.plural.as_str(),
            "pods" | "services" | "serviceaccounts"
        );
    match outcome {
        Outcome::Pending(object, _) => object.clone(),
        Outcome::Gone(object) if returns_object => object.clone(),
        Outcome::Gone(object) => {
            let mut details = json!({
                "name": json::text(object, &["metadata", "name"]),
                "kind": resource.plural,
                "uid": json::text(object, &["metadata", "uid"]),
            });
            if !resource.group.is_empty() {
                details["group"] = json!(resource.group);
            }
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
        }
    }
}
