//! Label and field selectors, parsed as the real server parses them.

use serde_json::Value;

use crate::error::ApiError;
use crate::json;
use crate::resource::Resource;
use crate::validation::{label_value_errors, qualified_name_errors};

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

fn unparsable(why: &str) -> ApiError {
    ApiError::bad_request(format!("unable to parse requirement: {why}"))
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

/// A key as a selector may name it.
fn label_key(text: &str) -> Result<String, ApiError> {
    match qualified_name_errors(text.trim()).first() {
        None => Ok(text.trim().to_owned()),
        Some(why) => Err(unparsable(&format!(
            "<nil>: Invalid value: \"{}\": {why}",
            text.trim()
        ))),
    }
}

/// A value as a label may have it.
fn label_value(key: &str, place: usize, text: &str) -> Result<String, ApiError> {
    match label_value_errors(text.trim()).first() {
        None => Ok(text.trim().to_owned()),
        Some(why) => Err(unparsable(&format!(
            "values[{place}][{key}]: Invalid value: \"{}\": {why}",
            text.trim()
        ))),
    }
}

fn requirement(clause: &str) -> Result<Requirement, ApiError> {
    if clause.starts_with('=') {
        return Err(ApiError::bad_request(
            "found '=', expected: !, identifier, or 'end of string'",
        ));
    }
    let value = |key: &str, text: &str| {
        let text = text.trim();
        if let Some(sign @ ('(' | ')')) = text.chars().next() {
            return Err(unparsable(&format!("found '{sign}', expected: identifier")));
        }
        match text.split_whitespace().nth(1) {
            Some(next) => Err(ApiError::bad_request(format!(
                "found '{next}', expected: ',' or 'end of string'"
            ))),
            None => label_value(key, 0, text),
        }
    };
    if let Some((name, wanted)) = clause.split_once("!=") {
        let name = label_key(name)?;
        let wanted = value(&name, wanted)?;
        return Ok(Requirement::NotIn(name, vec![wanted]));
    }
    if let Some((name, wanted)) = clause.split_once('=') {
        let name = label_key(name)?;
        let wanted = value(&name, wanted.strip_prefix('=').unwrap_or(wanted))?;
        return Ok(Requirement::In(name, vec![wanted]));
    }
    for (sign, greater) in [('>', true), ('<', false)] {
        if let Some((name, bound)) = clause.split_once(sign) {
            let bound = bound.trim();
            let number = bound.parse().map_err(|_| {
                unparsable(&format!(
                    "values[0]: Invalid value: \"{bound}\": for 'Gt', 'Lt' operators, the value must be an integer"
                ))
            })?;
            return Ok(Requirement::Order(label_key(name)?, greater, number));
        }
    }
    let words: Vec<&str> = clause.split_whitespace().collect();
    if let [_, "in" | "notin", values, ..] = words.as_slice()
        && !values.starts_with('(')
    {
        return Err(unparsable(&format!("found '{values}' expected: '('")));
    }
    if let Some((head, values)) = clause
        .strip_suffix(')')
        .and_then(|rest| rest.split_once('('))
    {
        let (name, is) = match head.split_whitespace().collect::<Vec<_>>().as_slice() {
            [name, is @ ("in" | "notin")] => (label_key(name)?, *is == "in"),
            _ => {
                return Err(unparsable(
                    "found '(', expected: in, notin, =, ==, !=, gt, lt",
                ));
            }
        };
        let values = values
            .split(',')
            .enumerate()
            .map(|(place, text)| label_value(&name, place, text))
            .collect::<Result<_, _>>()?;
        return Ok(if is {
            Requirement::In(name, values)
        } else {
            Requirement::NotIn(name, values)
        });
    }
    match clause.strip_prefix('!') {
        Some(name) => Ok(Requirement::Missing(label_key(name)?)),
        None => Ok(Requirement::Exists(label_key(clause)?)),
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
                if !known && selectable(resource).is_empty() {
                    return Err(ApiError::bad_request(format!(
                        "\"{field}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                    )));
                }
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
