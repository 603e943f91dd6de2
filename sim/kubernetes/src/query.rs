//! Query parameters and `Accept` headers.

use std::time::Duration;

use crate::error::{ApiError, Cause};
use crate::render::{Form, Include};
use crate::resource::Resource;
use crate::selector::{Fields, Labels};
use crate::verbs::read::ListOptions;
use crate::verbs::watch::WatchOptions;
use crate::verbs::{FieldValidation, WriteOptions};

/// How long a watch runs when the client does not say; the real server takes 30 to 60 minutes.
const WATCH_TIMEOUT: Duration = Duration::from_secs(1800);

/// No client waits longer, and a later end could not be told in the clock's numbers.
const LONGEST_WATCH: Duration = Duration::from_secs(24 * 3600);

/// Decoded query parameters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(String, String)>);

/// Decodes `%XX` and `+`.
pub(crate) fn percent_decode(text: &str, plus: bool) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        let hex = match (first, after) {
            (b'%', [high, low, ..]) => std::str::from_utf8(&[*high, *low])
                .ok()
                .and_then(|pair| u8::from_str_radix(pair, 16).ok()),
            _ => None,
        };
        match hex {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or(&[]);
            }
            None if *first == b'+' && plus => bytes.push(b' '),
            None => bytes.push(*first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                (percent_decode(name, true), percent_decode(value, true))
            })
            .collect();
        Self(pairs)
    }

    /// The first value of a parameter, `""` when absent.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.0
            .iter()
            .find(|(found, _)| found == name)
            .map_or("", |(_, value)| value)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.optional_flag(name).unwrap_or(false)
    }

    fn optional_flag(&self, name: &str) -> Option<bool> {
        self.0
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| !matches!(value.as_str(), "false" | "0"))
    }

    /// A whole number; `None` when absent.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        match self.get(name) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                ApiError::bad_request(format!(
                    "strconv.ParseInt: parsing \"{text}\": invalid syntax"
                ))
            }),
        }
    }

    pub(crate) fn list_options(&self, resource: &Resource) -> Result<ListOptions, ApiError> {
        Ok(ListOptions {
            labels: Labels::parse(self.get("labelSelector"))?,
            fields: Fields::parse(self.get("fieldSelector"), resource)?,
            limit: usize::try_from(self.number("limit")?.unwrap_or(0)).unwrap_or(usize::MAX),
            token: self.get("continue").to_owned(),
            version: self.get("resourceVersion").to_owned(),
            version_match: self.get("resourceVersionMatch").to_owned(),
        })
    }

    pub(crate) fn watch_options(
        &self,
        resource: &Resource,
        bookmark_interval: Duration,
    ) -> Result<WatchOptions, ApiError> {
        let timeout = self
            .number("timeoutSeconds")?
            .filter(|&seconds| seconds > 0);
        Ok(WatchOptions {
            list: self.list_options(resource)?,
            bookmarks: self.flag("allowWatchBookmarks"),
            initial: self.optional_flag("sendInitialEvents"),
            timeout: timeout
                .map_or(WATCH_TIMEOUT, Duration::from_secs)
                .min(LONGEST_WATCH),
            bookmark_interval,
        })
    }

    /// The options of a write. The manager defaults to the program name in the user agent, except for apply.
    pub(crate) fn write_options(
        &self,
        user_agent: &str,
        kind: &'static str,
        apply: bool,
    ) -> Result<WriteOptions, ApiError> {
        let wrong = |cause: &Cause| {
            ApiError::invalid_kind("meta.k8s.io", kind, "", std::slice::from_ref(cause))
        };
        let dry_run = dry_run(&[self.get("dryRun")]).map_err(|cause| wrong(&cause))?;
        let validation = match self.get("fieldValidation") {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                let known = ["", "Ignore", "Strict", "Warn"];
                return Err(wrong(&Cause::unsupported(
                    "fieldValidation",
                    &other.into(),
                    &known,
                )));
            }
        };
        let force = self.flag("force");
        if !apply && !self.get("force").is_empty() {
            let cause = Cause::forbidden("force", "may not be specified for non-apply patch");
            return Err(wrong(&cause));
        }
        let manager = match self.get("fieldManager") {
            "" if apply => "",
            "" => match user_agent.split('/').next() {
                None | Some("") => "unknown",
                Some(program) => program,
            },
            given => given,
        };
        let limit = 128;
        if manager.len() > limit && !self.get("fieldManager").is_empty() {
            let cause = Cause {
                reason: "FieldValueTooLong",
                message: format!("Too long: may not be more than {limit} bytes"),
                field: "fieldManager".to_owned(),
            };
            return Err(wrong(&cause));
        }
        Ok(WriteOptions {
            dry_run,
            manager: manager.chars().take(limit).collect(),
            force,
            validation,
            ..WriteOptions::default()
        })
    }
}

/// Whether a write is only tried, from the `dryRun` values given; empty ones do not count.
pub(crate) fn dry_run(values: &[&str]) -> Result<bool, Cause> {
    let given: Vec<&str> = values
        .iter()
        .copied()
        .filter(|value| !value.is_empty())
        .collect();
    if given.iter().any(|value| *value != "All") {
        return Err(Cause::unsupported("dryRun", &given.into(), &["All"]));
    }
    Ok(!given.is_empty())
}

/// One media type of an `Accept` header, with its parameters.
fn media_types(accept: &str) -> impl Iterator<Item = (&str, Vec<(&str, &str)>)> {
    accept.split(',').map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or("");
        let parameters = parts.filter_map(|part| part.split_once('=')).collect();
        (kind, parameters)
    })
}

/// The form asked for: the first media type that this server has. JSON is all it speaks, and it says so to clients
/// that would rather have Protobuf.
pub(crate) fn form(accept: &str, query: &Query) -> Form {
    for (_, parameters) in media_types(accept) {
        let find = |name: &str| {
            parameters
                .iter()
                .find(|(found, _)| *found == name)
                .map(|(_, value)| *value)
        };
        if find("g").is_some_and(|group| group != "meta.k8s.io") {
            continue;
        }
        match (find("as"), find("v")) {
            (None, _) => return Form::Whole,
            (Some("Table"), Some("v1" | "v1beta1") | None) => {
                return Form::Table(match query.get("includeObject") {
                    "None" => Include::Nothing,
                    "Object" => Include::Object,
                    _ => Include::Metadata,
                });
            }
            (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), _) => {
                return Form::Metadata;
            }
            _ => {}
        }
    }
    Form::Whole
}

/// Whether aggregated discovery in its `v2` form is asked for.
pub(crate) fn wants_aggregated(accept: &str) -> bool {
    media_types(accept).any(|(_, parameters)| {
        parameters.contains(&("g", "apidiscovery.k8s.io"))
            && parameters.contains(&("v", "v2"))
            && parameters.contains(&("as", "APIGroupDiscoveryList"))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("a%20b+c", "a b c")]
    #[case("%E2%82%AC", "€")]
    #[case("100%", "100%")]
    #[case("%zz%4", "%zz%4")]
    #[case("%€", "%€")]
    fn escapes(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(percent_decode(text, true), expected);
        assert_eq!(percent_decode("a+b", false), "a+b", "paths keep their plus");
    }

    #[rstest]
    #[case("application/json", Form::Whole)]
    #[case("", Form::Whole)]
    #[case("application/vnd.kubernetes.protobuf, application/json", Form::Whole)]
    #[case(
        "application/json;as=Table;v=v1;g=meta.k8s.io, application/json",
        Form::Table(Include::Metadata)
    )]
    #[case(
        "application/json; as=Table; v=v1beta1; g=meta.k8s.io",
        Form::Table(Include::Metadata)
    )]
    #[case(
        "application/json;as=Table;v=v9;g=meta.k8s.io,application/json",
        Form::Whole
    )]
    #[case(
        "application/json;as=Other;g=example.com,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        Form::Metadata
    )]
    fn forms(#[case] accept: &str, #[case] expected: Form) {
        assert_eq!(form(accept, &Query::default()), expected);
    }

    #[test]
    fn watches_take_the_timeout_they_ask_for() {
        let resources = crate::resource::built_in();
        let options = |query: &str| {
            let interval = Duration::from_secs(1);
            resources
                .first()
                .map(|node| Query::parse(query).watch_options(node, interval))
        };
        let timeout = |query: &str| {
            options(query)
                .and_then(Result::ok)
                .map(|options| options.timeout)
        };
        assert_eq!(timeout("timeoutSeconds=7"), Some(Duration::from_secs(7)));
        assert_eq!(timeout("timeoutSeconds=0"), Some(WATCH_TIMEOUT));
        let endless = timeout("timeoutSeconds=18446744073709551615");
        assert_eq!(endless, Some(LONGEST_WATCH));
        assert_eq!(timeout(""), Some(WATCH_TIMEOUT));
        assert!(options("timeoutSeconds=x").is_some_and(|options| options.is_err()));
    }
}
