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
use crate::typed;
use crate::validation;

/// Creates `body` in the collection of `target`.
pub(crate) fn create(
    state: &mut State,
    target: &Target,
    body: Value,
    options: &WriteOptions,
) -> Result<Value, ApiError> {
    let resource = &target.resource;
    let object = admit(target, body, options)?;
    if !json::text(&object, &["metadata", "resourceVersion"]).is_empty() {
        return Err(ApiError::unexpected(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    insert(state, target, object, options, true).map(|stored| served(resource, &stored))
}

/// Decodes a body, checks it against the request and settles name and namespace.
pub(crate) fn admit(
    target: &Target,
    mut body: Value,
    options: &WriteOptions,
) -> Result<Value, ApiError> {
    let resource = &target.resource;
    envelope(resource, &mut body)?;
    strategy::drop_nulls(&mut body);
    let refuse = |what: &str| {
        ApiError::bad_request(format!(
            "{} in version \"{}\" cannot be handled as a {}: {what}",
            resource.kind, resource.version, resource.kind
        ))
    };
    validation::decodable(&body).map_err(|what| refuse(&what))?;
    let decoded = typed::decode(resource, body).map_err(|what| refuse(&what))?;
    if options.strict && !decoded.unknown.is_empty() {
        let fields: Vec<String> = decoded
            .unknown
            .iter()
            .map(|path| format!("unknown field \"{path}\""))
            .collect();
        return Err(refuse(&format!(
            "strict decoding error: {}",
            fields.join(", ")
        )));
    }
    let mut body = decoded.object;
    let namespace = json::text(&body, &["metadata", "namespace"]).to_owned();
    match &target.namespace {
        Some(wanted) if namespace.is_empty() => {
            json::set(&mut body, &["metadata", "namespace"], json!(wanted));
        }
        Some(wanted) if *wanted != namespace && target.name.is_empty() => {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        Some(wanted) if *wanted != namespace => {
            return Err(ApiError::bad_request(format!(
                "the namespace of the object ({namespace}) does not match the namespace on the URL ({wanted})"
            )));
        }
        None if !namespace.is_empty() => {
            json::remove(&mut body, &["metadata", "namespace"]);
        }
        _ => {}
    }
    Ok(body)
}

/// `apiVersion` and `kind` say what the path says, or nothing.
fn envelope(resource: &Resource, body: &mut Value) -> Result<(), ApiError> {
    if !body.is_object() {
        return Err(ApiError::bad_request(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {body} into Go value of type struct"
        )));
    }
    let expected = resource.api_version();
    json::default(body, &["apiVersion"], json!(expected));
    json::default(body, &["kind"], json!(resource.kind));
    let version = json::text(body, &["apiVersion"]);
    if version != expected {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({expected})"
        )));
    }
    let kind = json::text(body, &["kind"]);
    if kind != resource.kind {
        let package = match resource.group.split('.').next() {
            None | Some("") => "core",
            Some(group) => group,
        };
        return Err(ApiError::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {expected}: converting ({version}.{kind}) to ({package}.{expected}): unknown conversion",
            version = resource.version,
            expected = resource.kind,
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
