//! Replace, and the second half of every patch: from the wanted object to the stored one.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Target, WriteOptions, create, served};
use crate::error::{ApiError, Cause};
use crate::events;
use crate::fields::managers;
use crate::json;
use crate::store::State;
use crate::strategy;
use crate::validation;

/// PUT of an object or of its status. The flag says whether this created it.
pub(crate) fn replace(
    state: &mut State,
    target: &Target,
    body: Value,
    options: &WriteOptions,
) -> Result<(Value, bool), ApiError> {
    let resource = &target.resource;
    let mut object = create::admit(target, body, options)?;
    check_name(target, &object)?;
    let Some(old) = state.get(&resource.storage, &target.key()).cloned() else {
        if !resource.create_on_update || target.is_status() {
            return Err(ApiError::not_found(resource, &target.name));
        }
        json::remove(&mut object, &["metadata", "uid"]);
        let stored = create::insert(state, target, object, options, true)?;
        return Ok((served(resource, &stored), true));
    };
    let version = json::text(&object, &["metadata", "resourceVersion"]);
    if (version.is_empty() || version == "0") && !resource.unconditional {
        let cause = Cause {
            reason: "FieldValueInvalid",
            message: "Invalid value: 0x0: must be specified for an update".to_owned(),
            field: "metadata.resourceVersion".to_owned(),
        };
        return Err(ApiError::invalid(resource, &target.name, &[cause]));
    }
    let stored = finish(state, target, &old, object, options, true)?;
    Ok((served(resource, &stored), false))
}

/// The name in the body is the one in the path.
pub(crate) fn check_name(target: &Target, object: &Value) -> Result<(), ApiError> {
    let name = json::text(object, &["metadata", "name"]);
    if name == target.name {
        return Ok(());
    }
    Err(ApiError::bad_request(if name.is_empty() {
        format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            target.name
        )
    } else {
        format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name
        )
    }))
}

/// Brings `new` (in its served shape) over `old` (as stored). Writes nothing when nothing changed.
/// `track` says whether managed fields still have to be worked out.
pub(crate) fn finish(
    state: &mut State,
    target: &Target,
    old: &Arc<Value>,
    mut new: Value,
    options: &WriteOptions,
    track: bool,
) -> Result<Arc<Value>, ApiError> {
    let resource = &target.resource;
    let before = served(resource, old);
    strategy::drop_nulls(&mut new);
    preconditions(target, &before, &new)?;
    strategy::prepare_update(resource, target.is_status(), &before, &mut new);
    json::copy(&mut new, &before, &["metadata", "resourceVersion"]);
    let causes = validation::object(resource, &new, Some(&before));
    if !causes.is_empty() {
        return Err(ApiError::invalid(resource, &target.name, &causes));
    }
    if track {
        let writer = target.writer(options);
        managers::track_update(Some(&before), &mut new, &writer, &resource.schema);
    }
    events::to_stored(resource, &mut new);
    // Two versions of one resource share a shelf: their envelopes are no difference.
    json::copy(&mut new, old, &["apiVersion"]);
    if new == **old {
        return Ok(Arc::clone(old));
    }
    let key = target.key();
    if options.dry_run {
        return Ok(Arc::new(new));
    }
    if is_released(&new) {
        let last = state.remove(&resource.storage, &key, new);
        return Ok(last.unwrap_or_else(|| Arc::clone(old)));
    }
    Ok(state.put(&resource.storage, key, new))
}

/// Whether a deletion only waited for finalizers, and the last one went.
fn is_released(object: &Value) -> bool {
    json::at(object, &["metadata", "deletionTimestamp"]).is_some()
        && json::list(object, &["metadata", "finalizers"]).is_empty()
        && object["metadata"]["deletionGracePeriodSeconds"] == json!(0)
}

fn preconditions(target: &Target, old: &Value, new: &Value) -> Result<(), ApiError> {
    let resource = &target.resource;
    let uid = json::text(new, &["metadata", "uid"]);
    let known = json::text(old, &["metadata", "uid"]);
    if !uid.is_empty() && uid != known {
        let why =
            format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {known}");
        return Err(ApiError::conflict(resource, &target.name, &why));
    }
    let version = json::text(new, &["metadata", "resourceVersion"]);
    let current = json::text(old, &["metadata", "resourceVersion"]);
    if !version.is_empty() && version != "0" && version != current {
        return Err(ApiError::modified(resource, &target.name));
    }
    Ok(())
}
