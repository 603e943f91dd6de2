//! Label and field selectors, parsed as the real server parses them.

use serde_json::Value;

use crate::error::ApiError;
use crate::json;
use crate::resource::Resource;

/// One condition on a label.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
    /// Numeric comparison, `true` for greater.
    Order(String, bool, i64),
}

/// A parsed label selector; the empty one selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Labels(Vec<Requirement>);

fn unparsable(text: &str, why: &str) -> ApiError {
    ApiError::bad_request(format!("unable to parse requirement: {why} in \"{text}\""))
}

/// Splits at commas that are outside parentheses.
fn clauses(text: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    text.split(move |letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|clause| !clause.is_empty())
    .collect()
}

fn requirement(clause: &str) -> Result<Requirement, ApiError> {
    let key = |text: &str| -> Result<String, ApiError> {
        let key = text.trim();
        if key.is_empty() || key.contains(char::is_whitespace) || key.contains(['(', ')', '!']) {
            return Err(unparsable(clause, "a label key is expected"));
        }
        Ok(key.to_owned())
    };
    if let Some((name, value)) = clause.split_once("!=") {
        return Ok(Requirement::NotIn(
            key(name)?,
            vec![value.trim().to_owned()],
        ));
    }
    if let Some((name, value)) = clause.split_once('=') {
        let value = value.strip_prefix('=').unwrap_or(value);
        return Ok(Requirement::In(key(name)?, vec![value.trim().to_owned()]));
    }
    for (sign, greater) in [('>', true), ('<', false)] {
        if let Some((name, value)) = clause.split_once(sign) {
            let value = value
                .trim()
                .parse()
                .map_err(|_| unparsable(clause, "an integer is expected"))?;
            return Ok(Requirement::Order(key(name)?, greater, value));
        }
    }
    if let Some(rest) = clause.strip_suffix(')') {
        let (head, values) = rest
            .split_once('(')
            .ok_or_else(|| unparsable(clause, "'(' is expected"))?;
        let values = values
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        let mut words = head.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(name), Some("in"), None) => Ok(Requirement::In(key(name)?, values)),
            (Some(name), Some("notin"), None) => Ok(Requirement::NotIn(key(name)?, values)),
            _ => Err(unparsable(clause, "'in' or 'notin' is expected")),
        };
    }
    match clause.strip_prefix('!') {
        Some(name) => Ok(Requirement::Missing(key(name)?)),
        None => Ok(Requirement::Exists(key(clause)?)),
    }
}

impl Labels {
    pub(crate) fn parse(text: &str) -> Result<Self, ApiError> {
        clauses(text)
            .into_iter()
            .map(requirement)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The `matchLabels`/`matchExpressions` form, as in a PodDisruptionBudget.
    pub(crate) fn of_object(selector: &Value) -> Self {
        let mut all = Vec::new();
        if let Some(labels) = selector["matchLabels"].as_object() {
            for (key, value) in labels {
                let value = value.as_str().unwrap_or("").to_owned();
                all.push(Requirement::In(key.clone(), vec![value]));
            }
        }
        for expression in json::list(selector, &["matchExpressions"]) {
            let key = json::text(expression, &["key"]).to_owned();
            let values = json::list(expression, &["values"])
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect();
            match json::text(expression, &["operator"]) {
                "In" => all.push(Requirement::In(key, values)),
                "NotIn" => all.push(Requirement::NotIn(key, values)),
                "Exists" => all.push(Requirement::Exists(key)),
                "DoesNotExist" => all.push(Requirement::Missing(key)),
                _ => {}
            }
        }
        Self(all)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let label =
            |key: &str| json::at(object, &["metadata", "labels", key]).and_then(Value::as_str);
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => {
                label(key).is_some_and(|found| values.iter().any(|value| value == found))
            }
            // An absent label satisfies `!=` and `notin`.
            Requirement::NotIn(key, values) => {
                label(key).is_none_or(|found| values.iter().all(|value| value != found))
            }
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::Missing(key) => label(key).is_none(),
            Requirement::Order(key, greater, bound) => label(key)
                .and_then(|found| found.parse::<i64>().ok())
                .is_some_and(|found| {
                    if *greater {
                        found > *bound
                    } else {
                        found < *bound
                    }
                }),
        })
    }
}

/// A parsed field selector: (path, wanted, equal or not).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Fields(Vec<(Vec<String>, String, bool)>);

/// Fields that may be selected on, beside name and namespace, as registered by each kind's conversion functions.
fn selectable(resource: &Resource) -> &'static [&'static str] {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "namespaces") => &["status.phase"],
        ("", "secrets") => &["type"],
        ("", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("events.k8s.io", "events") => &[
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reason",
            "reportingController",
            "type",
        ],
        ("resource.k8s.io", "resourceslices") => &["spec.nodeName", "spec.driver"],
        _ => &[],
    }
}

impl Fields {
    pub(crate) fn parse(text: &str, resource: &Resource) -> Result<Self, ApiError> {
        text.split(',')
            .map(str::trim)
            .filter(|clause| !clause.is_empty())
            .map(|clause| {
                let (field, value, equal) = if let Some((field, value)) = clause.split_once("!=") {
                    (field, value, false)
                } else if let Some((field, value)) = clause.split_once("==") {
                    (field, value, true)
                } else if let Some((field, value)) = clause.split_once('=') {
                    (field, value, true)
                } else {
                    return Err(ApiError::bad_request(format!(
                        "invalid selector: '{text}'; can't understand '{clause}'"
                    )));
                };
                let known = matches!(field, "metadata.name" | "metadata.namespace")
                    || selectable(resource).contains(&field);
                if !known {
                    return Err(ApiError::bad_request(format!(
                        "field label not supported: {field}"
                    )));
                }
                let path: Vec<String> = match field {
                    // The core shape's `source` selects on the component.
                    "source" => vec!["source".to_owned(), "component".to_owned()],
                    field => field.split('.').map(str::to_owned).collect(),
                };
                Ok((path, value.to_owned(), equal))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|(path, wanted, equal)| {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let found = match json::at(object, &path) {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                // Booleans that are absent read as false in Go.
                None if matches!(path.last(), Some(&("unschedulable" | "hostNetwork"))) => {
                    "false".to_owned()
                }
                None => String::new(),
            };
            (found == *wanted) == *equal
        })
    }
}
