//! What a request brings: its parts, its body as a value, its options. Knows media types; must not know paths.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use hyper::{Method, Request};
use serde_json::Value;

use crate::api::Api;
use crate::body;
use crate::error::ApiError;
use crate::protobuf;
use crate::query::{self, Query};
use crate::resource::Resource;
use crate::verbs::WriteOptions;
use crate::verbs::delete::{self, DeleteOptions};
use crate::verbs::patch::Format;

/// The most a body may hold, as in the real server.
const BODY_LIMIT: usize = 3 * 1024 * 1024;
/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The parts of a request, the body read.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) query: Query,
    pub(crate) accept: String,
    pub(crate) content_type: String,
    pub(crate) user_agent: String,
    pub(crate) bearer: String,
    pub(crate) body: Bytes,
}

/// Reads a request, within the limits of size and time.
pub(crate) async fn read_call(api: &Api, request: Request<Incoming>) -> Result<Call, ApiError> {
    let (parts, body) = request.into_parts();
    let header = |name| {
        parts
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("")
            .to_owned()
    };
    let bearer = header(AUTHORIZATION)
        .strip_prefix("Bearer ")
        .unwrap_or("")
        .to_owned();
    if api
        .options
        .token
        .as_ref()
        .is_some_and(|token| *token != bearer)
    {
        return Err(ApiError::unauthorized());
    }
    let body = Limited::new(body, BODY_LIMIT).collect();
    let body = match tokio::time::timeout(BODY_TIMEOUT, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            return Err(ApiError::too_large(BODY_LIMIT));
        }
        Ok(Err(error)) => return Err(ApiError::bad_request(error.to_string())),
        Err(_) => return Err(ApiError::bad_request("the body did not come in time")),
    };
    Ok(Call {
        method: parts.method.clone(),
        query: Query::parse(parts.uri.query().unwrap_or("")),
        accept: header(ACCEPT),
        content_type: header(CONTENT_TYPE),
        user_agent: header(USER_AGENT),
        bearer,
        body,
    })
}

/// The body as a value, whatever its media type.
pub(crate) fn body(call: &Call) -> Result<Value, ApiError> {
    let kind = call.content_type.split(';').next().unwrap_or("").trim();
    match kind {
        "" | "application/json" | "application/yaml" => {
            body::parse(&call.body).map_err(ApiError::bad_request)
        }
        "application/vnd.kubernetes.protobuf" => {
            protobuf::decode(&call.body).ok_or_else(unsupported_body)
        }
        _ => Err(unsupported_body()),
    }
}

fn unsupported_body() -> ApiError {
    ApiError::unsupported_media_type(
        "application/json, application/yaml, application/vnd.kubernetes.protobuf",
    )
}

/// A body that cannot be read is none of the kind wanted, as the messages say it.
pub(crate) fn unwrapped(
    resource: &Resource,
    body: Result<Value, ApiError>,
) -> Result<Value, ApiError> {
    body.map_err(|mut error| {
        if error.code == 400 {
            error.message = format!(
                "the object provided is unrecognized (must be of type {}): {}",
                resource.kind, error.message
            );
        }
        error
    })
}

/// The options of a write with a whole body, and which of its fields stand twice.
pub(crate) fn write_options(call: &Call, kind: &'static str) -> Result<WriteOptions, ApiError> {
    let mut options = call.query.write_options(&call.user_agent, kind, false)?;
    options.duplicates = body::duplicates(&call.body);
    Ok(options)
}

/// The options of a deletion: from the body, the query goes first.
pub(crate) fn delete_options(call: &Call) -> Result<DeleteOptions, ApiError> {
    let mut options = if call.body.is_empty() {
        DeleteOptions::default()
    } else {
        DeleteOptions::of(&body(call)?)?
    };
    if let Some(grace) = call.query.number("gracePeriodSeconds")? {
        options.grace = Some(grace);
    }
    options.dry_run |= query::dry_run(&[call.query.get("dryRun")])
        .map_err(|cause| delete::options_error(&cause))?;
    Ok(options)
}

/// The format of a patch, from its media type.
pub(crate) fn patch_format(resource: &Resource, content_type: &str) -> Result<Format, ApiError> {
    const CUSTOM: &str =
        "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
    match content_type.split(';').next().unwrap_or("").trim() {
        "application/json-patch+json" => Ok(Format::Json),
        "application/merge-patch+json" => Ok(Format::Merge),
        "application/apply-patch+yaml" => Ok(Format::Apply),
        // Custom resources have no Go types, and so no merge keys.
        "application/strategic-merge-patch+json" if !resource.custom => Ok(Format::Strategic),
        _ if resource.custom => Err(ApiError::unsupported_media_type(CUSTOM)),
        _ => Err(ApiError::unsupported_patch()),
    }
}
