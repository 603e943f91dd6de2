//! What the API answers when it does not do what was asked: the `Status` objects of the real server, with its
//! reasons, codes and messages (`k8s.io/apimachinery/pkg/api/errors`).

use serde_json::{Value, json};

use crate::resource::Resource;

/// An answer other than success, as the real server words it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason, such as `NotFound`; empty where the real server gives none.
    pub reason: &'static str,
    /// The sentence for people.
    pub message: String,
    /// `details` of the `Status`: name, group, kind, causes.
    pub details: Value,
    /// Seconds to wait before the next try; sent as the `Retry-After` header too.
    pub retry_after: Option<u32>,
    /// Token in the list metadata of the answer to an expired `continue`.
    pub continue_token: Option<String>,
}

/// One wrong field of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cause {
    /// Such as `FieldValueInvalid`.
    pub(crate) reason: &'static str,
    /// The sentence, without the field.
    pub(crate) message: String,
    /// Path of the field, such as `metadata.labels`.
    pub(crate) field: String,
}

impl Cause {
    /// A value that breaks a rule. `value` is printed as Go's `%#v` prints it, which for strings and numbers is JSON.
    pub(crate) fn invalid(field: impl Into<String>, value: &Value, rule: &str) -> Self {
        Self {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {value}: {rule}"),
            field: field.into(),
        }
    }

    /// A field that must be there and is not.
    pub(crate) fn required(field: impl Into<String>, detail: &str) -> Self {
        let message = if detail.is_empty() {
            "Required value".to_owned()
        } else {
            format!("Required value: {detail}")
        };
        Self {
            reason: "FieldValueRequired",
            message,
            field: field.into(),
        }
    }

    /// A value outside a closed set.
    pub(crate) fn unsupported(field: impl Into<String>, value: &Value, supported: &[&str]) -> Self {
        let names: Vec<String> = supported.iter().map(|name| format!("\"{name}\"")).collect();
        Self {
            reason: "FieldValueNotSupported",
            message: format!(
                "Unsupported value: {value}: supported values: {}",
                names.join(", ")
            ),
            field: field.into(),
        }
    }

    /// A second element with the same key.
    pub(crate) fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self {
            reason: "FieldValueDuplicate",
            message: format!("Duplicate value: {value}"),
            field: field.into(),
        }
    }

    /// A field that may not be set or changed.
    pub(crate) fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self {
            reason: "FieldValueForbidden",
            message: format!("Forbidden: {detail}"),
            field: field.into(),
        }
    }
}

impl ApiError {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: Value::Null,
            retry_after: None,
            continue_token: None,
        }
    }

    fn about(mut self, resource: &Resource, name: &str) -> Self {
        self.details = json!({});
        if !name.is_empty() {
            self.details["name"] = json!(name);
        }
        if !resource.group.is_empty() {
            self.details["group"] = json!(resource.group);
        }
        self.details["kind"] = json!(resource.plural);
        self
    }

    /// 400.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 401, when a token is required and the request lacks it.
    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 404 for an object.
    pub(crate) fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", resource.qualified());
        Self::new(404, "NotFound", message).about(resource, name)
    }

    /// 404 for a path nothing is served at.
    pub(crate) fn no_such_path() -> Self {
        let mut error = Self::new(
            404,
            "NotFound",
            "the server could not find the requested resource",
        );
        error.details = json!({});
        error
    }

    /// 405.
    pub(crate) fn method_not_allowed() -> Self {
        let mut error = Self::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        );
        error.details = json!({});
        error
    }

    /// 409 on create. `leaving` says whether the object that is in the way is being deleted.
    pub(crate) fn already_exists(resource: &Resource, name: &str, leaving: bool) -> Self {
        let prefix = if leaving {
            "object is being deleted: "
        } else {
            ""
        };
        let message = format!("{prefix}{} \"{name}\" already exists", resource.qualified());
        Self::new(409, "AlreadyExists", message).about(resource, name)
    }

    /// 409 on update, patch or delete.
    pub(crate) fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": {why}",
            resource.qualified()
        );
        Self::new(409, "Conflict", message).about(resource, name)
    }

    /// 409: the object is not the one, or not in the version, that a deletion asked for.
    pub(crate) fn precondition(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": {why}",
            resource.kind
        );
        let mut error = Self::new(409, "Conflict", message);
        error.details = json!({"name": name, "kind": resource.kind});
        error
    }

    /// 409: a pod that has a node already.
    pub(crate) fn already_bound(pod: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on pods/binding \"{pod}\": {why}");
        let mut error = Self::new(409, "Conflict", message);
        error.details = json!({"name": pod, "kind": "pods/binding"});
        error
    }

    /// 409: somebody wrote between this client's read and its write.
    pub(crate) fn modified(resource: &Resource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 409: fields that other managers own.
    pub(crate) fn apply_conflict(message: String, causes: Vec<(String, String)>) -> Self {
        let mut error = Self::new(409, "Conflict", message);
        let causes: Vec<Value> = causes
            .into_iter()
            .map(|(message, field)| {
                json!({"reason": "FieldManagerConflict", "message": message, "field": field})
            })
            .collect();
        error.details = json!({ "causes": causes });
        error
    }

    /// 422 with the wrong fields.
    pub(crate) fn invalid(resource: &Resource, name: &str, causes: &[Cause]) -> Self {
        // Events are checked in their core form, whatever the form they come in.
        let group = if resource.is_event() {
            ""
        } else {
            &resource.group
        };
        Self::invalid_kind(group, &resource.kind, name, causes)
    }

    /// 422 for something that is no stored kind, such as the options of a request.
    pub(crate) fn invalid_kind(group: &str, kind: &str, name: &str, causes: &[Cause]) -> Self {
        let qualified = if group.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind}.{group}")
        };
        let sentences: Vec<String> = causes
            .iter()
            .map(|cause| format!("{}: {}", cause.field, cause.message))
            .collect();
        let what = match sentences.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let mut error = Self::new(
            422,
            "Invalid",
            format!("{qualified} \"{name}\" is invalid: {what}"),
        );
        let causes: Vec<Value> = causes
            .iter()
            .map(|cause| json!({"reason": cause.reason, "message": cause.message, "field": cause.field}))
            .collect();
        error.details = json!({"kind": kind, "causes": causes});
        if !group.is_empty() {
            error.details["group"] = json!(group);
        }
        if !name.is_empty() {
            error.details["name"] = json!(name);
        }
        error
    }

    /// 422 for a JSON patch that does not apply. The real server drops the reason on this path, so we do.
    pub(crate) fn patch_rejected() -> Self {
        let mut error = Self::new(
            422,
            "Invalid",
            "the server rejected our request due to an error in our request",
        );
        error.details = json!({});
        error
    }

    /// 422 for a patch whose result is no object of the kind.
    pub(crate) fn patch_undecodable(shown: &str, why: &str) -> Self {
        let cause = Cause::invalid("patch", &json!(shown), why);
        let mut error = Self::invalid_kind("", "", "", std::slice::from_ref(&cause));
        error.details = json!({ "causes": error.details["causes"] });
        error
    }

    /// 415 for a patch of a format that the built-in kinds do not take.
    pub(crate) fn unsupported_patch() -> Self {
        let mut error = Self::new(415, "UnsupportedMediaType", "415: Unsupported Media Type");
        error.details = json!({});
        error
    }

    /// 403: new objects in a namespace that is ending.
    pub(crate) fn namespace_terminating(resource: &Resource, name: &str, namespace: &str) -> Self {
        let message = format!(
            "{} \"{name}\" is forbidden: unable to create new content in namespace {namespace} because it is being terminated",
            resource.qualified()
        );
        let mut error = Self::new(403, "Forbidden", message).about(resource, name);
        error.details["causes"] = json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
        error
    }

    /// 413.
    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// 415.
    pub(crate) fn unsupported_media_type(accepted: &str) -> Self {
        Self::new(
            415,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {accepted}"
            ),
        )
    }

    /// 410: the history needed for this was dropped.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 504: the client saw a version this server has not reached.
    pub(crate) fn too_large_resource_version(wanted: u64, current: u64) -> Self {
        let mut error = Self::new(
            504,
            "Timeout",
            format!("Timeout: Too large resource version: {wanted}, current: {current}"),
        );
        error.details = json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        });
        error.retry_after = Some(1);
        error
    }

    /// 429: an eviction that a disruption budget forbids for now.
    pub(crate) fn eviction_refused(cause: &str) -> Self {
        let mut error = Self::new(
            429,
            "TooManyRequests",
            "Cannot evict pod as it would violate the pod's disruption budget.",
        );
        error.details = json!({"causes": [{"reason": "DisruptionBudget", "message": cause}]});
        error
    }

    /// 500 without a reason: an error that the real server lets through as it is.
    pub(crate) fn unexpected(message: impl Into<String>) -> Self {
        Self::new(500, "", message)
    }

    /// An answer that a fault asked for.
    pub(crate) fn injected(code: u16, retry_after: Option<u32>) -> Self {
        let (reason, message) = match code {
            429 => (
                "TooManyRequests",
                "the server has received too many requests and has asked us to try again later",
            ),
            500 => ("InternalError", "Internal error occurred: injected fault"),
            503 => (
                "ServiceUnavailable",
                "the server is currently unable to handle the request",
            ),
            504 => (
                "Timeout",
                "the server was unable to return a response in the time allotted",
            ),
            401 => ("Unauthorized", "Unauthorized"),
            403 => ("Forbidden", "forbidden: injected fault"),
            _ => ("", "injected fault"),
        };
        let mut error = Self::new(code, reason, message);
        error.retry_after = retry_after;
        if let Some(seconds) = retry_after {
            error.details = json!({ "retryAfterSeconds": seconds });
        }
        error
    }

    /// The `Status` object.
    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        if let Some(token) = &self.continue_token {
            status["metadata"]["continue"] = json!(token);
        }
        status
    }
}
