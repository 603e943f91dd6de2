//! From the text of a policy file to a [`Policy`], or to the place that is wrong.
//!
//! A file says what differs from the built-in rules. `docs/device-plugin-health.md` shows every key.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use configuration::document::{self, DocumentError, Entries, Position};
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::cause::Cause;
use super::policy::Policy;
use super::rule::{Check, Rule, Until};

/// Quicker looks would be polling.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// The longest period that a file may ask for.
const MAX_PERIOD: Duration = Duration::from_secs(7 * 24 * 3600);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: Spanned<String>,
    interval: Option<Spanned<String>>,
    #[serde(default)]
    xids: Vec<XidRule>,
    #[serde(default)]
    conditions: Entries<Spanned<ConditionRule>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct XidRule {
    xids: Spanned<Numbers>,
    unhealthy: Spanned<String>,
    quiet: Option<Spanned<String>>,
    checks: Option<Vec<Spanned<String>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionRule {
    unhealthy: Spanned<String>,
    quiet: Option<Spanned<String>>,
    checks: Option<Vec<Spanned<String>>>,
}

/// A word, of which only `others` is known, or numbers with their places.
enum Numbers {
    Word(String),
    These(Vec<Spanned<u64>>),
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Numbers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of XIDs, or others")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Numbers, E> {
                Ok(Numbers::Word(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Numbers, A::Error> {
                let mut numbers = Vec::new();
                while let Some(number) = list.next_element()? {
                    numbers.push(number);
                }
                Ok(Numbers::These(numbers))
            }
        }
        deserializer.deserialize_any(V)
    }
}

impl Policy {
    /// Reads a file over the built-in rules.
    ///
    /// # Errors
    /// [`DocumentError`] with file, line and column.
    pub fn read(path: &Path) -> Result<Self, DocumentError> {
        let bytes = document::read(path)?;
        Self::parse(&path.display().to_string(), &bytes)
    }

    /// The same of a document (YAML, or JSON as its subset). `file` is what errors name.
    ///
    /// # Errors
    /// [`DocumentError`] with file, line and column.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, DocumentError> {
        let document: Document = document::parse(file, bytes)?;
        let reader = Reader(file);
        if document.version.value != "v1" {
            let given = &document.version.value;
            let message = format!("version {given:?} is not known: use v1");
            return Err(reader.wrong(&document.version, message));
        }
        let mut policy = Self::default();
        if let Some(interval) = &document.interval {
            policy.interval = reader.period(interval)?;
            if policy.interval < MIN_INTERVAL {
                return Err(reader.wrong(interval, "interval is shorter than 1s"));
            }
        }
        let mut named = BTreeSet::new();
        for rule in &document.xids {
            let rule_of = |cause| {
                let checks = rule.checks.as_deref();
                reader.rule(cause, &rule.unhealthy, rule.quiet.as_ref(), checks)
            };
            match &rule.xids.value {
                Numbers::Word(word) => {
                    if word != "others" {
                        let message = format!("{word:?} is neither a list of XIDs nor others");
                        return Err(reader.wrong(&rule.xids, message));
                    }
                    if !named.insert(None) {
                        return Err(reader.wrong(&rule.xids, "a second rule for the others"));
                    }
                    // The number is of no account for what a rule says.
                    policy.other_xids = rule_of(Cause::Xid(0))?;
                }
                Numbers::These(numbers) => {
                    for number in numbers {
                        if !named.insert(Some(number.value)) {
                            let message = format!("a second rule for XID {}", number.value);
                            return Err(reader.wrong(number, message));
                        }
                        let cause = Cause::Xid(number.value);
                        policy.rules.insert(cause, rule_of(cause)?);
                    }
                }
            }
        }
        for (key, rule) in &document.conditions.0 {
            let cause = Cause::CONDITIONS.into_iter();
            let Some(cause) = cause.clone().find(|cause| cause.key() == key.value) else {
                let known: Vec<_> = cause.map(Cause::key).collect();
                let message = format!(
                    "unknown condition {:?}: use {}",
                    key.value,
                    known.join(", ")
                );
                return Err(reader.wrong(key, message));
            };
            let rule = &rule.value;
            let checks = rule.checks.as_deref();
            let rule = reader.rule(cause, &rule.unhealthy, rule.quiet.as_ref(), checks)?;
            policy.rules.insert(cause, rule);
        }
        Ok(policy)
    }
}

/// Reads values; knows the file for errors.
struct Reader<'a>(&'a str);

impl Reader<'_> {
    fn wrong<T>(&self, at: &Spanned<T>, message: impl Into<String>) -> DocumentError {
        DocumentError::invalid(self.0, Position::of(at), message)
    }

    fn rule(
        &self,
        cause: Cause,
        unhealthy: &Spanned<String>,
        quiet: Option<&Spanned<String>>,
        checks: Option<&[Spanned<String>]>,
    ) -> Result<Rule, DocumentError> {
        let until = match unhealthy.value.as_str() {
            "never" => None,
            "untilReset" => Some(Until::Reset),
            "untilReplaced" => Some(Until::Replaced),
            "untilRecheck" => return self.recheck(cause, quiet, checks),
            other => {
                let message = format!(
                    "unhealthy: {other:?} is not known: use never, untilRecheck, untilReset or untilReplaced"
                );
                return Err(self.wrong(unhealthy, message));
            }
        };
        if let Some(quiet) = quiet {
            return Err(self.wrong(quiet, "quiet has a meaning with untilRecheck only"));
        }
        if let Some(check) = checks.and_then(<[_]>::first) {
            return Err(self.wrong(check, "checks have a meaning with untilRecheck only"));
        }
        Ok(until.map_or(Rule::Never, Rule::Unhealthy))
    }

    fn recheck(
        &self,
        cause: Cause,
        quiet: Option<&Spanned<String>>,
        checks: Option<&[Spanned<String>]>,
    ) -> Result<Rule, DocumentError> {
        let quiet = quiet.map(|quiet| self.period(quiet)).transpose()?;
        let until = Until::recheck(cause, quiet.unwrap_or_else(|| super::builtin::quiet(cause)));
        let until = match (until, checks) {
            (Until::Recheck { quiet, .. }, Some(checks)) => Until::Recheck {
                quiet,
                checks: checks
                    .iter()
                    .map(|check| self.check(check))
                    .collect::<Result<_, _>>()?,
            },
            (until, _) => until,
        };
        Ok(Rule::Unhealthy(until))
    }

    fn check(&self, text: &Spanned<String>) -> Result<Check, DocumentError> {
        let known = Check::ALL.into_iter();
        known
            .clone()
            .find(|check| check.key() == text.value)
            .ok_or_else(|| {
                let known: Vec<_> = known.map(Check::key).collect();
                let message = format!("unknown check {:?}: use {}", text.value, known.join(", "));
                self.wrong(text, message)
            })
    }

    /// `90s`, `1m30s`, `500ms`, `2h`.
    fn period(&self, text: &Spanned<String>) -> Result<Duration, DocumentError> {
        period(&text.value)
            .filter(|period| *period <= MAX_PERIOD)
            .ok_or_else(|| {
                let message = format!(
                    "{:?} is no period: write it like 500ms, 90s, 5m or 1h30m, up to 168h",
                    text.value
                );
                self.wrong(text, message)
            })
    }
}

fn period(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut sum = Duration::ZERO;
    loop {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, tail) = rest.split_at(digits);
        let number: u64 = number.parse().ok()?;
        let letters = tail.len()
            - tail
                .trim_start_matches(|c: char| c.is_ascii_lowercase())
                .len();
        let (unit, tail) = tail.split_at(letters);
        let part = match unit {
            "ms" => Duration::from_millis(number),
            "s" => Duration::from_secs(number),
            "m" => Duration::from_secs(number.checked_mul(60)?),
            "h" => Duration::from_secs(number.checked_mul(3600)?),
            _ => return None,
        };
        sum = sum.checked_add(part)?;
        if tail.is_empty() {
            return Some(sum);
        }
        rest = tail;
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
