//! The two actions on pods that are no plain writes: binding to a node, and eviction within disruption budgets.

use serde_json::{Value, json};

use super::delete::{DeleteOptions, Outcome, delete};
use super::{Target, WriteOptions};
use crate::clock;
use crate::error::ApiError;
use crate::json;
use crate::selector::Labels;
use crate::store::State;

const BUDGETS: &str = "poddisruptionbudgets.policy";

/// POST to `pods/NAME/binding`: gives the pod its node.
pub(crate) fn bind(
    state: &mut State,
    target: &Target,
    body: &Value,
    options: &WriteOptions,
) -> Result<(), ApiError> {
    let resource = &target.resource;
    let key = target.key();
    let mut pod = match state.get(&resource.storage, &key) {
        Some(pod) => (**pod).clone(),
        None => return Err(ApiError::not_found(resource, &target.name)),
    };
    let node = json::text(body, &["target", "name"]);
    let bound = json::text(&pod, &["spec", "nodeName"]);
    if !bound.is_empty() {
        let why = format!(
            "pod {} is already assigned to node \"{bound}\"",
            target.name
        );
        return Err(ApiError::already_bound(&target.name, &why));
    }
    json::set(&mut pod, &["spec", "nodeName"], json!(node));
    let scheduled =
        json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": clock::now()});
    json::set(&mut pod, &["status", "conditions"], json!([scheduled]));
    if !options.dry_run {
        state.put(&resource.storage, key, pod);
    }
    Ok(())
}

/// POST to `pods/NAME/eviction`: deletes the pod unless a budget forbids it.
pub(crate) fn evict(
    state: &mut State,
    target: &Target,
    body: &Value,
    dry_run: bool,
) -> Result<Outcome, ApiError> {
    let resource = &target.resource;
    let pod = state
        .get(&resource.storage, &target.key())
        .cloned()
        .ok_or_else(|| ApiError::not_found(resource, &target.name))?;
    if json::text(body, &["metadata", "name"]) != target.name {
        return Err(ApiError::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    let mut options = DeleteOptions::of(&body["deleteOptions"])?;
    options.dry_run |= dry_run;
    let pending = json::text(&pod, &["status", "phase"]) == "Pending";
    let ended = matches!(
        json::text(&pod, &["status", "phase"]),
        "Succeeded" | "Failed"
    );
    let leaving = json::at(&pod, &["metadata", "deletionTimestamp"]).is_some();
    if !pending && !ended && !leaving {
        spend_budget(state, target, &pod, options.dry_run)?;
    }
    delete(state, target, &options)
}

/// Checks the pod's budget and takes one disruption from it.
fn spend_budget(
    state: &mut State,
    target: &Target,
    pod: &Value,
    dry_run: bool,
) -> Result<(), ApiError> {
    let namespace = target.namespace.as_deref().unwrap_or("");
    let budgets: Vec<Value> = state
        .shelf(BUDGETS)
        .into_iter()
        .flat_map(|shelf| shelf.objects_in(Some(namespace)))
        .map(|(_, budget)| (**budget).clone())
        .filter(|budget| Labels::of_object(&budget["spec"]["selector"]).matches(pod))
        .collect();
    let budget = match budgets.as_slice() {
        [] => return Ok(()),
        [budget] => budget,
        _ => {
            return Err(ApiError::unexpected(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            ));
        }
    };
    let name = json::text(budget, &["metadata", "name"]);
    let computed = json::at(budget, &["status", "disruptionsAllowed"]).is_none();
    let status = if computed {
        disruptions(state, namespace, &budget["spec"])
    } else {
        budget["status"].clone()
    };
    let number = |field: &str| status[field].as_i64().unwrap_or(0);
    if !computed
        && number("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0)
    {
        let mut error = ApiError::eviction_refused(&format!(
            "The disruption budget {name} is still being processed by the server."
        ));
        error.details["retryAfterSeconds"] = json!(10);
        error.retry_after = Some(10);
        return Err(error);
    }
    if number("disruptionsAllowed") <= 0 {
        return Err(ApiError::eviction_refused(&format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            number("desiredHealthy"),
            number("currentHealthy")
        )));
    }
    // Without a status nobody keeps the count, and the pods themselves are the truth the next time.
    if !computed && !dry_run {
        let mut budget = budget.clone();
        let left = number("disruptionsAllowed") - 1;
        json::set(&mut budget, &["status", "disruptionsAllowed"], json!(left));
        json::set(
            &mut budget,
            &["status", "disruptedPods", &target.name],
            json!(clock::now()),
        );
        let key = (namespace.to_owned(), name.to_owned());
        state.put(BUDGETS, key, budget);
    }
    Ok(())
}

/// What the disruption controller would have put in the status: there is none here, so it is worked out when asked.
fn disruptions(state: &State, namespace: &str, spec: &Value) -> Value {
    let selector = Labels::of_object(&spec["selector"]);
    let pods: Vec<&Value> = state
        .shelf("pods.")
        .into_iter()
        .flat_map(|shelf| shelf.objects_in(Some(namespace)))
        .map(|(_, pod)| &**pod)
        .filter(|pod| selector.matches(pod))
        .collect();
    let expected = i64::try_from(pods.len()).unwrap_or(i64::MAX);
    let healthy = pods.iter().filter(|pod| is_healthy(pod)).count();
    let healthy = i64::try_from(healthy).unwrap_or(i64::MAX);
    let desired = match (
        json::at(spec, &["minAvailable"]),
        json::at(spec, &["maxUnavailable"]),
    ) {
        (Some(least), _) => scaled(least, expected),
        (None, Some(most)) => expected.saturating_sub(scaled(most, expected)).max(0),
        (None, None) => 0,
    };
    json!({
        "expectedPods": expected,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "disruptionsAllowed": healthy.saturating_sub(desired).max(0),
    })
}

/// A number, or a percentage of `total` rounded up.
fn scaled(value: &Value, total: i64) -> i64 {
    match value {
        Value::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            percent.saturating_mul(total).saturating_add(99) / 100
        }
        other => other.as_i64().unwrap_or(0),
    }
}

/// Running and, where the pod says so, ready. Pods made by hand in tests often lack conditions.
fn is_healthy(pod: &Value) -> bool {
    let ready = json::list(pod, &["status", "conditions"])
        .iter()
        .find(|condition| json::text(condition, &["type"]) == "Ready");
    json::text(pod, &["status", "phase"]) == "Running"
        && json::at(pod, &["metadata", "deletionTimestamp"]).is_none()
        && ready.is_none_or(|condition| json::text(condition, &["status"]) == "True")
}
