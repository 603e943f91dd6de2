//! Get and list.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Target, served};
use crate::error::{ApiError, Cause};
use crate::selector::{Fields, Labels};
use crate::store::{Forgotten, Key, State};

/// `ListOptions`, parsed.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListOptions {
    pub(crate) labels: Labels,
    pub(crate) fields: Fields,
    pub(crate) limit: usize,
    pub(crate) token: String,
    /// Empty when not given.
    pub(crate) version: String,
    /// Empty, `Exact` or `NotOlderThan`.
    pub(crate) version_match: String,
}

impl ListOptions {
    /// Whether an object in its served shape is asked for.
    pub(crate) fn selects(&self, object: &Value) -> bool {
        self.labels.matches(object) && self.fields.matches(object)
    }
}

/// One page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) items: Vec<Value>,
    pub(crate) metadata: Value,
}

/// GET of one object.
pub(crate) fn get(state: &State, target: &Target, version: &str) -> Result<Value, ApiError> {
    let wanted = parse_version(version)?;
    if wanted > state.version {
        return Err(ApiError::too_large_resource_version(wanted, state.version));
    }
    state
        .get(&target.resource.storage, &target.key())
        .map(|object| served(&target.resource, object))
        .ok_or_else(|| ApiError::not_found(&target.resource, &target.name))
}

/// A resource version; absent counts as zero.
pub(crate) fn parse_version(text: &str) -> Result<u64, ApiError> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| {
        ApiError::bad_request(format!(
            "invalid resource version: strconv.ParseUint: parsing \"{text}\": invalid syntax"
        ))
    })
}

/// GET of a collection.
pub(crate) fn list(
    state: &State,
    target: &Target,
    options: &ListOptions,
) -> Result<Page, ApiError> {
    check_match(options)?;
    let start = if options.token.is_empty() {
        None
    } else {
        Some(Token::parse(&options.token)?)
    };
    let (version, from) = match &start {
        Some(token) => (token.version.unwrap_or(state.version), Some(&token.after)),
        None => (first_version(state, options)?, None),
    };
    let snapshot = state
        .at(&target.resource.storage, version)
        .map_err(|_: Forgotten| too_old(start.as_ref()))?;
    let namespace = target.namespace.as_deref();
    let named = (!target.name.is_empty()).then_some(target.name.as_str());
    let mut items = Vec::new();
    let mut last: Option<Key> = None;
    let mut remaining = 0_u64;
    let candidates = snapshot
        .iter()
        .filter(|(key, _)| namespace.is_none_or(|wanted| wanted == key.0))
        .filter(|(key, _)| named.is_none_or(|wanted| wanted == key.1))
        .filter(|(key, _)| from.is_none_or(|after| *key > after));
    for (key, object) in candidates {
        if options.limit > 0 && items.len() >= options.limit && remaining > 0 {
            remaining += 1;
            continue;
        }
        let object = view(target, object);
        if !options.selects(&object) {
            continue;
        }
        if options.limit > 0 && items.len() >= options.limit {
            remaining += 1;
            continue;
        }
        items.push(object);
        last = Some(key.clone());
    }
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if remaining > 0
        && let Some(after) = last
    {
        let token = Token {
            version: Some(version),
            after,
        };
        metadata["continue"] = json!(token.encode());
        // With a selector the real server cannot count, and leaves the number out.
        if options.labels.is_empty() && options.fields.is_empty() {
            metadata["remainingItemCount"] = json!(remaining);
        }
    }
    Ok(Page { items, metadata })
}

fn view(target: &Target, object: &Arc<Value>) -> Value {
    served(&target.resource, object)
}

fn check_match(options: &ListOptions) -> Result<(), ApiError> {
    let forbid = |detail: &str| {
        let cause = Cause::forbidden("resourceVersionMatch", detail);
        Err(list_options(&[cause]))
    };
    match options.version_match.as_str() {
        "" => Ok(()),
        _ if !options.token.is_empty() => {
            forbid("resourceVersionMatch is forbidden when continue is provided")
        }
        _ if options.version.is_empty() => {
            forbid("resourceVersionMatch is forbidden unless resourceVersion is provided")
        }
        "Exact" if options.version == "0" => {
            forbid("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"")
        }
        "Exact" | "NotOlderThan" => Ok(()),
        other => {
            let cause = Cause::unsupported(
                "resourceVersionMatch",
                &json!(other),
                &["Exact", "NotOlderThan", ""],
            );
            Err(list_options(&[cause]))
        }
    }
}

/// 422 about the options of a list or watch.
pub(crate) fn list_options(causes: &[Cause]) -> ApiError {
    ApiError::invalid_kind("meta.k8s.io", "ListOptions", "", causes)
}

/// The version a list without continuation shows.
fn first_version(state: &State, options: &ListOptions) -> Result<u64, ApiError> {
    let wanted = parse_version(&options.version)?;
    if wanted > state.version {
        return Err(ApiError::too_large_resource_version(wanted, state.version));
    }
    let exact = options.version_match == "Exact"
        // Before resourceVersionMatch existed, a limit with a version meant exactly that version.
        || options.version_match.is_empty() && options.limit > 0 && wanted > 0;
    Ok(if exact { wanted } else { state.version })
}

fn too_old(token: Option<&Token>) -> ApiError {
    let Some(token) = token else {
        return ApiError::expired("The resourceVersion for the provided list is too old.");
    };
    let mut error = ApiError::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    let next = Token {
        version: None,
        after: token.after.clone(),
    };
    error.continue_token = Some(next.encode());
    error
}

/// Where a list goes on. Opaque to clients.
#[derive(Debug, Clone, PartialEq)]
struct Token {
    /// The version of the first page; `None` for whatever is current.
    version: Option<u64>,
    after: Key,
}

impl Token {
    fn encode(&self) -> String {
        let plain = json!({"v": "meta.k8s.io/v1", "rv": self.version, "namespace": self.after.0, "name": self.after.1});
        plain
            .to_string()
            .bytes()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    fn parse(text: &str) -> Result<Self, ApiError> {
        Self::decode(text).ok_or_else(|| {
            ApiError::bad_request(
                "invalid continue token: continue key is not valid: illegal token",
            )
        })
    }

    fn decode(text: &str) -> Option<Self> {
        let bytes: Option<Vec<u8>> = text
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        let plain: Value = serde_json::from_slice(&bytes?).ok()?;
        let field = |name: &str| plain[name].as_str().map(str::to_owned);
        Some(Self {
            version: plain["rv"].as_u64(),
            after: (field("namespace")?, field("name")?),
        })
    }
}
