//! Create.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{FieldValidation, Target, WriteOptions, served};
use crate::clock;
use crate::error::ApiError;
use crate::fields::managers;
use crate::json;
use crate::resource::{self, Resource};
use crate::store::State;
use crate::strategy;
use crate::typed;
use crate::validation;
use crate::versions;

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
    validation::decodable(&resource.kind, &body).map_err(|what| refuse(&what))?;
    let decoded = typed::decode(resource, body).map_err(|what| refuse(&what))?;
    let unknown = decoded
        .unknown
        .iter()
        .map(|path| format!("unknown field \"{path}\""));
    let odd: Vec<String> = options.duplicates.iter().cloned().chain(unknown).collect();
    match options.validation {
        FieldValidation::Strict if !odd.is_empty() => {
            return Err(refuse(&format!(
                "strict decoding error: {}",
                odd.join(", ")
            )));
        }
        FieldValidation::Warn => options.warnings.borrow_mut().extend(odd),
        FieldValidation::Strict | FieldValidation::Ignore => {}
    }
    let mut body = decoded.object;
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

/// Whether a body is an object of the kind: the decoder's sentence when it is none.
pub(crate) fn decodable(resource: &Resource, body: &Value) -> Result<(), String> {
    let mut body = body.clone();
    let kind = json::text(&body, &["kind"]).to_owned();
    if !kind.is_empty() && kind != resource.kind {
        return Err(conversion(resource, &kind));
    }
    strategy::drop_nulls(&mut body);
    validation::decodable(&resource.kind, &body)?;
    typed::decode(resource, body).map(drop)
}

/// Why an object of another kind of the same version is none of this one.
fn conversion(resource: &Resource, kind: &str) -> String {
    let package = match resource.group.split('.').next() {
        None | Some("") => "core",
        Some(group) => group,
    };
    format!(
        "converting ({version}.{kind}) to ({package}.{expected}): unknown conversion",
        version = resource.version,
        expected = resource.kind,
    )
}

/// Decodes JSON that was not even an object, for the message.
fn unrecognized(resource: &Resource, body: &Value) -> ApiError {
    let of = match body {
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
        Value::Null | Value::Object(_) => "null",
    };
    let shown: String = body
        .to_string()
        .bytes()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    ApiError::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse error: json: cannot unmarshal {of} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }} ({shown})",
        resource.kind,
    ))
}

/// `apiVersion` and `kind` say what the path says, or nothing.
fn envelope(resource: &Resource, body: &mut Value) -> Result<(), ApiError> {
    if !body.is_object() {
        return Err(unrecognized(resource, body));
    }
    let expected = resource.api_version();
    json::default(body, &["apiVersion"], json!(expected));
    json::default(body, &["kind"], json!(resource.kind));
    let found = json::text(body, &["apiVersion"]);
    let kind = json::text(body, &["kind"]);
    let handled = |version: &str, why: &str| {
        ApiError::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {}: {why}",
            resource.kind
        ))
    };
    if resource::is_built_in(found, kind) || resource.custom {
        if found != expected {
            return Err(ApiError::bad_request(format!(
                "the API version in the data ({found}) does not match the expected API version ({expected})"
            )));
        }
        if kind != resource.kind {
            return Err(handled(&resource.version, &conversion(resource, kind)));
        }
        return Ok(());
    }
    if found == expected && kind == resource.kind {
        return Ok(());
    }
    let version = found.rsplit('/').next().unwrap_or(found);
    // The place in the real server's source that its messages name.
    let scheme = "pkg/runtime/scheme.go:111";
    Err(handled(
        version,
        &format!("no kind \"{kind}\" is registered for version \"{found}\" in scheme \"{scheme}\""),
    ))
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
        namespace_takes(state, resource, &name, namespace)?;
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
    if resource.is("", "nodes") {
        strategy::taint_new_node(&mut object);
    }
    let causes = validation::object(resource, &object, None);
    if !causes.is_empty() {
        return Err(ApiError::invalid(resource, &name, &causes));
    }
    if track {
        json::remove(&mut object, &["metadata", "managedFields"]);
        managers::track_update(None, &mut object, &target.writer(options), &resource.schema);
    }
    let key = (target.namespace.clone().unwrap_or_default(), name);
    if let Some(found) = state.get(&resource.storage, &key) {
        let leaving = json::at(found, &["metadata", "deletionTimestamp"]).is_some();
        return Err(ApiError::already_exists(resource, &key.1, leaving));
    }
    versions::to_stored(resource, &mut object);
    if options.dry_run {
        return Ok(Arc::new(object));
    }
    Ok(state.put(&resource.storage, key, object))
}

/// Objects are created in namespaces that exist and are not ending.
fn namespace_takes(
    state: &State,
    resource: &Resource,
    name: &str,
    namespace: &str,
) -> Result<(), ApiError> {
    match state.get("namespaces.", &(String::new(), namespace.to_owned())) {
        Some(found) if json::text(found, &["status", "phase"]) == "Terminating" => {
            Err(ApiError::namespace_terminating(resource, name, namespace))
        }
        Some(_) => Ok(()),
        None => {
            let mut error = ApiError::no_such_path();
            error.message = format!("namespaces \"{namespace}\" not found");
            error.details = json!({"name": namespace, "kind": "namespaces"});
            Err(error)
        }
    }
}
