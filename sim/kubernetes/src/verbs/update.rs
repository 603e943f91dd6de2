//! Replace, and the second half of every patch: from the wanted object to the stored one.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Target, WriteOptions, create, served};
use crate::error::{ApiError, Cause};
use crate::fields::managers;
use crate::json;
use crate::store::State;
use crate::strategy;
use crate::validation;
use crate::versions;

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
        let rule = "must be specified for an update";
        let cause = Cause::invalid("metadata.resourceVersion", &json!(0), rule);
        // Here the real server names the resource, not the kind.
        return Err(ApiError::invalid_kind(
            &resource.group,
            &resource.plural,
            &target.name,
            &[cause],
        ));
    }
    let (uid, known) = (
        json::text(&object, &["metadata", "uid"]),
        json::text(&old, &["metadata", "uid"]),
    );
    if !uid.is_empty() && uid != known {
        // The sentence of the storage layer, with the key that the real server keeps the object under.
        let prefix = if resource.group.is_empty() {
            String::new()
        } else {
            format!("{}/", resource.group)
        };
        let place = target
            .namespace
            .iter()
            .map(|namespace| format!("{namespace}/"));
        let place: String = place.collect();
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{prefix}{}/{place}{}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {known}",
            resource.plural, target.name,
        );
        return Err(ApiError::conflict(resource, &target.name, &why));
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
    let fixed = validation::fixed_metadata(&before, &new);
    if !fixed.is_empty() {
        return Err(ApiError::invalid(resource, &target.name, &fixed));
    }
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
    versions::to_stored(resource, &mut new);
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
    let version = json::text(new, &["metadata", "resourceVersion"]);
    let current = json::text(old, &["metadata", "resourceVersion"]);
    if let Err(error) = version.parse::<u64>()
        && !version.is_empty()
    {
        let go_error = if matches!(error.kind(), std::num::IntErrorKind::PosOverflow) {
            "value out of range"
        } else {
            "invalid syntax"
        };
        return Err(ApiError::unexpected(format!(
            "strconv.ParseUint: parsing \"{version}\": {go_error}"
        )));
    }
    if !version.is_empty() && version != "0" && version != current {
        return Err(ApiError::modified(resource, &target.name));
    }
    Ok(())
}
