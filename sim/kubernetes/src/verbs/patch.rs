//! Patch, in its four formats.

use serde_json::{Map, Value, json};

use super::{Target, WriteOptions, create, served, update};
use crate::error::{ApiError, Cause};
use crate::fields::managers;
use crate::json;
use crate::patch::{json_patch, merge, strategic};
use crate::store::State;
use crate::strategy;
use crate::typed;

/// The format of a patch, from its content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Merge,
    Strategic,
    Apply,
}

/// Patches an object or its status. The flag says whether an apply created it.
pub(crate) fn patch(
    state: &mut State,
    target: &Target,
    format: Format,
    body: &Value,
    options: &WriteOptions,
) -> Result<(Value, bool), ApiError> {
    let resource = &target.resource;
    if format == Format::Apply {
        return apply(state, target, body, options);
    }
    let old = state
        .get(&resource.storage, &target.key())
        .cloned()
        .ok_or_else(|| ApiError::not_found(resource, &target.name))?;
    let mut object = served(resource, &old);
    match format {
        Format::Json => object = json_patch::apply(&object, body)?,
        Format::Merge if body.is_object() => merge::merge(&mut object, body),
        Format::Merge => {
            return Err(ApiError::bad_request(
                "error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}",
            ));
        }
        Format::Strategic | Format::Apply => {
            let plain = strategic::without_directives(body);
            if create::decodable(resource, &plain).is_err() {
                return Err(ApiError::patch_undecodable(
                    &strategic::shown(body),
                    "unrecognized type: string",
                ));
            }
            strategic::merge(&mut object, body, &resource.schema)?;
        }
    }
    create::decodable(resource, &object)
        .map_err(|why| ApiError::patch_undecodable(&object.to_string(), &why))?;
    let object = create::admit(target, object, options)?;
    update::check_name(target, &object)?;
    let uid = json::text(&object, &["metadata", "uid"]);
    if uid != json::text(&old, &["metadata", "uid"]) && !uid.is_empty() {
        let cause = Cause::invalid("metadata.uid", &json!(uid), "field is immutable");
        return Err(ApiError::invalid(resource, &target.name, &[cause]));
    }
    let stored = update::finish(state, target, &old, object, options, true)?;
    Ok((served(resource, &stored), false))
}

fn apply(
    state: &mut State,
    target: &Target,
    body: &Value,
    options: &WriteOptions,
) -> Result<(Value, bool), ApiError> {
    let resource = &target.resource;
    if options.manager.is_empty() {
        let cause = Cause::required("fieldManager", "is required for apply patch");
        return Err(patch_options(&cause));
    }
    let mut config = body.clone();
    strategy::drop_nulls(&mut config);
    if json::at(&config, &["metadata", "managedFields"]).is_some() {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    let config = typed_config(target, config)?;
    update::check_name(target, &config)?;
    let writer = target.writer(options);
    let old = state.get(&resource.storage, &target.key()).cloned();
    let live = match &old {
        Some(old) => served(resource, old),
        None if target.is_status() => return Err(ApiError::not_found(resource, &target.name)),
        None => Value::Object(Map::new()),
    };
    let merged = managers::apply(&live, &config, &writer, options.force, &resource.schema)?;
    match old {
        Some(old) => {
            let stored = update::finish(state, target, &old, merged, options, false)?;
            Ok((served(resource, &stored), false))
        }
        None => {
            let stored = create::insert(state, target, merged, options, false)?;
            Ok((served(resource, &stored), true))
        }
    }
}

/// Checks the configuration of an apply. Unlike other bodies it must say what it is and may hold no unknown fields.
fn typed_config(target: &Target, mut config: Value) -> Result<Value, ApiError> {
    let resource = &target.resource;
    let (found, expected) = (json::text(&config, &["apiVersion"]), resource.api_version());
    if found.is_empty() || json::text(&config, &["kind"]).is_empty() {
        return Err(ApiError::bad_request(format!(
            "invalid object type: {}, Kind={}",
            if found.contains('/') {
                found.to_owned()
            } else {
                format!("/{found}")
            },
            json::text(&config, &["kind"]),
        )));
    }
    if found != expected {
        return Err(ApiError::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {found}, expected: {expected}"
        )));
    }
    let kind = json::text(&config, &["kind"]).to_owned();
    let namespace = json::text(&config, &["metadata", "namespace"]).to_owned();
    let failed = |what: &str| {
        ApiError::unexpected(format!(
            "failed to create typed patch object ({}/{}; {}/{}, Kind={kind}): {what}",
            namespace, target.name, resource.group, resource.version,
        ))
    };
    if kind != resource.kind {
        return Err(failed(&format!(
            "no corresponding type for {}/{}, Kind={kind}",
            resource.group, resource.version
        )));
    }
    json::default(&mut config, &["metadata", "name"], json!(target.name));
    let decoded = typed::decode(resource, config.clone()).map_err(|what| failed(&what))?;
    if let Some(path) = decoded.unknown.first() {
        return Err(failed(&format!(".{path}: field not declared in schema")));
    }
    // What is applied are the fields as sent, not those that decoding fills in.
    if let Some(namespace) = &target.namespace {
        json::default(&mut config, &["metadata", "namespace"], json!(namespace));
    }
    Ok(config)
}

/// 422 about the options of a patch.
fn patch_options(cause: &Cause) -> ApiError {
    ApiError::invalid_kind(
        "meta.k8s.io",
        "PatchOptions",
        "",
        std::slice::from_ref(cause),
    )
}
