//! Delete and delete-collection: preconditions, finalizers, the grace of pods, and what goes with a namespace or a
//! definition. There is no garbage collector: a propagation policy is accepted and owned objects stay.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Target, served};
use crate::clock;
use crate::error::ApiError;
use crate::json;
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
    pub(crate) fn of(body: &Value) -> Self {
        let given = |path: &[&str]| {
            json::at(body, path)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        Self {
            grace: json::at(body, &["gracePeriodSeconds"]).and_then(Value::as_u64),
            uid: given(&["preconditions", "uid"]),
            version: given(&["preconditions", "resourceVersion"]),
            dry_run: !json::list(body, &["dryRun"]).is_empty(),
        }
    }
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
    for (label, wanted, path) in [
        ("UID", &options.uid, "uid"),
        ("ResourceVersion", &options.version, "resourceVersion"),
    ] {
        let found = json::text(old, &["metadata", path]);
        if let Some(wanted) = wanted
            && wanted != found
        {
            let why = format!(
                "Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {found}"
            );
            return Err(ApiError::conflict(resource, name, &why));
        }
    }
    Ok(())
}

/// What lies inside a deleted object: the objects of a namespace, the instances of a definition. The real server's
/// controllers remove them one after the other before the object itself goes.
fn contents(state: &mut State, resource: &Resource, object: &Value) {
    let name = json::text(object, &["metadata", "name"]);
    let doomed: Vec<(String, Key)> = if resource.is("", "namespaces") {
        state.in_namespace(name)
    } else if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
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
