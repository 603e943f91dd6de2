//! Create.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Target, WriteOptions, served};
use crate::clock;
use crate::error::ApiError;
use crate::events;
use crate::fields::managers;
use crate::json;
use crate::resource::Resource;
use crate::store::State;
use crate::strategy;
use crate::validation;

/// Creates `body` in the collection of `target`.
pub(crate) fn create(
    state: &mut State,
    target: &Target,
    body: Value,
    options: &WriteOptions,
) -> Result<Value, ApiError> {
    let resource = &target.resource;
    let object = admit(target, body)?;
    if !json::text(&object, &["metadata", "resourceVersion"]).is_empty() {
        // The real server lets this storage error through as it is, without a reason.
        let mut error = ApiError::internal("");
        error.reason = "";
        error.message = "resourceVersion should not be set on objects to be created".to_owned();
        error.details = Value::Null;
        return Err(error);
    }
    insert(state, target, object, options, true).map(|stored| served(resource, &stored))
}

/// Checks the envelope of a body against the request and settles name and namespace.
pub(crate) fn admit(target: &Target, mut body: Value) -> Result<Value, ApiError> {
    let resource = &target.resource;
    envelope(resource, &body)?;
    validation::decodable(resource, &body)?;
    strategy::drop_nulls(&mut body);
    let namespace = json::text(&body, &["metadata", "namespace"]).to_owned();
    match &target.namespace {
        Some(wanted) if namespace.is_empty() => {
            json::set(&mut body, &["metadata", "namespace"], json!(wanted));
        }
        Some(wanted) if *wanted != namespace => {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        None if !namespace.is_empty() => {
            json::remove(&mut body, &["metadata", "namespace"]);
        }
        _ => {}
    }
    Ok(body)
}

/// `apiVersion` and `kind` must say what the path says.
fn envelope(resource: &Resource, body: &Value) -> Result<(), ApiError> {
    if !body.is_object() {
        return Err(ApiError::bad_request(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {body} into Go value of type struct"
        )));
    }
    let kind = json::text(body, &["kind"]);
    if kind.is_empty() {
        return Err(ApiError::bad_request(format!(
            "Object 'Kind' is missing in '{body}'"
        )));
    }
    let version = json::text(body, &["apiVersion"]);
    if version.is_empty() {
        return Err(ApiError::bad_request(format!(
            "Object 'apiVersion' is missing in '{body}'"
        )));
    }
    let expected = resource.api_version();
    if version != expected {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({expected})"
        )));
    }
    if kind != resource.kind {
        return Err(ApiError::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {}: converting ({kind}) to ({}): unknown conversion",
            resource.version, resource.kind, resource.kind
        )));
    }
    Ok(())
}

/// Stores an admitted object. `track` says whether its managed fields still have to be worked out.
pub(crate) fn insert(
    state: &mut State,
    target: &Target,
    mut object: Value,
    options: &WriteOptions,
    track: bool,
) -> Result<Arc<Value>, ApiError> {
    let resource = &target.resource;
    let prefix = json::text(&object, &["metadata", "generateName"]).to_owned();
    if json::text(&object, &["metadata", "name"]).is_empty() && !prefix.is_empty() {
        // The real server cuts the prefix so that name and suffix fit a label value.
        let kept: String = prefix.chars().take(58).collect();
        let name = format!("{kept}{}", clock::name_suffix());
        json::set(&mut object, &["metadata", "name"], json!(name));
    }
    let name = json::text(&object, &["metadata", "name"]).to_owned();
    if let Some(namespace) = &target.namespace {
        namespace_exists(state, namespace)?;
    }
    for field in [
        "resourceVersion",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        json::remove(&mut object, &["metadata", field]);
    }
    json::set(&mut object, &["metadata", "uid"], json!(clock::uid()));
    json::set(
        &mut object,
        &["metadata", "creationTimestamp"],
        json!(clock::now()),
    );
    strategy::prepare_create(resource, &mut object, false);
    let causes = validation::object(resource, &object, None);
    if !causes.is_empty() {
        return Err(ApiError::invalid(resource, &name, &causes));
    }
    if track {
        json::remove(&mut object, &["metadata", "managedFields"]);
        managers::track_update(None, &mut object, &target.writer(options), &resource.schema);
    }
    let key = (target.namespace.clone().unwrap_or_default(), name);
    if state.get(&resource.storage, &key).is_some() {
        return Err(ApiError::already_exists(resource, &key.1));
    }
    events::to_stored(resource, &mut object);
    if options.dry_run {
        return Ok(Arc::new(object));
    }
    Ok(state.put(&resource.storage, key, object))
}

/// Objects are created in namespaces that exist.
fn namespace_exists(state: &State, namespace: &str) -> Result<(), ApiError> {
    let found = state.get("namespaces.", &(String::new(), namespace.to_owned()));
    if found.is_some() {
        return Ok(());
    }
    let mut error = ApiError::no_such_path();
    error.message = format!("namespaces \"{namespace}\" not found");
    error.details = json!({"name": namespace, "kind": "namespaces"});
    Err(error)
}
