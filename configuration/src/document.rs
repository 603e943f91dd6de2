//! Strict reading of small YAML or JSON documents: bounded in size, depth and effort, errors with file, line and column.
//!
//! Shared by every configuration file. It must not know what any of them means.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Budget, Location, MessageFormatter, Options, Spanned, UserMessageFormatter};

/// The largest document accepted. The default config of all known boards is about 15 KiB.
pub const MAX_BYTES: usize = 1 << 20;

/// The deepest nesting accepted. A partition config needs six levels.
const MAX_DEPTH: usize = 16;

/// The most nodes accepted: far more than a config for a thousand named layouts has.
const MAX_NODES: usize = 100_000;

/// A position in a document, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Line, from 1.
    pub line: u64,
    /// Column in characters, from 1.
    pub column: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

impl Position {
    /// Where a value stands; where an alias stands, for an aliased one.
    pub fn of<T>(value: &Spanned<T>) -> Self {
        Self::at(value.referenced)
    }

    fn at(location: Location) -> Self {
        Self {
            line: location.line().max(1),
            column: location.column().max(1),
        }
    }

    /// The position of byte `offset` of `bytes`.
    fn of_byte(bytes: &[u8], offset: usize) -> Self {
        let before = bytes.get(..offset).unwrap_or(bytes);
        let line_start = before
            .iter()
            .rposition(|b| *b == b'\n')
            .map_or(0, |i| i + 1);
        let newlines = before.iter().filter(|b| **b == b'\n').count();
        let tail = before.get(line_start..).unwrap_or_default();
        Self {
            line: newlines as u64 + 1,
            column: String::from_utf8_lossy(tail).chars().count() as u64 + 1,
        }
    }
}

/// Why a document could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The file could not be read.
    #[error("{file}: {source}")]
    Read {
        /// File as the user named it.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The document is not what it should be at this place.
    #[error("{file}:{position}: {message}")]
    Invalid {
        /// File as the user named it.
        file: String,
        /// Where.
        position: Position,
        /// What is wrong there and what was expected.
        message: String,
    },
}

impl DocumentError {
    /// A fault at `position` of `file`.
    pub fn invalid(file: &str, position: Position, message: impl Into<String>) -> Self {
        Self::Invalid {
            file: file.to_owned(),
            position,
            message: message.into(),
        }
    }
}

/// Reads at most [`MAX_BYTES`] + 1 bytes of a file; `-` is standard input.
///
/// # Errors
/// [`DocumentError::Read`] with the system's reason.
pub fn read(path: &Path) -> Result<Vec<u8>, DocumentError> {
    let file = path.display().to_string();
    let read = |source: &mut dyn Read| {
        let mut bytes = Vec::new();
        source.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let result = if path == Path::new("-") {
        read(&mut io::stdin().lock())
    } else {
        File::open(path).and_then(|mut f| read(&mut f))
    };
    result.map_err(|source| DocumentError::Read { file, source })
}

/// Parses a document that [`read`] returned. `file` is what errors name.
///
/// # Errors
/// [`DocumentError::Invalid`] with the place.
pub fn parse<T: DeserializeOwned>(file: &str, bytes: &[u8]) -> Result<T, DocumentError> {
    if bytes.len() > MAX_BYTES {
        return Err(DocumentError::invalid(
            file,
            Position::of_byte(bytes, MAX_BYTES),
            format!("larger than {MAX_BYTES} bytes"),
        ));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| {
        DocumentError::invalid(
            file,
            Position::of_byte(bytes, e.valid_up_to()),
            "not text in UTF-8",
        )
    })?;
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| {
        let error = error.without_snippet();
        DocumentError::invalid(
            file,
            error
                .location()
                .map_or(Position { line: 1, column: 1 }, Position::at),
            // A message may quote the document: keep it to one printable line.
            message(error)
                .chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .take(300)
                .collect::<String>(),
        )
    })
}

/// What is wrong, for people. The parser's own words for its limits name its counters.
fn message(error: &serde_saphyr::Error) -> String {
    match error {
        serde_saphyr::Error::Budget { breach, .. } => match breach {
            BudgetBreach::Documents { .. } => {
                "a second document begins here: a file has one".to_owned()
            }
            BudgetBreach::Depth { .. } => format!("nested deeper than {MAX_DEPTH} levels"),
            _ => "too many values, anchors or aliases".to_owned(),
        },
        other => UserMessageFormatter.format_message(other).into_owned(),
    }
}

fn options() -> Options {
    let mut budget = Budget::default();
    budget.max_depth = MAX_DEPTH;
    budget.flow_nesting_limit = MAX_DEPTH;
    budget.max_nodes = MAX_NODES;
    budget.max_events = 4 * MAX_NODES;
    budget.max_aliases = 1_000;
    budget.max_documents = 1;
    let mut options = Options::default();
    options.budget = Some(budget);
    options
}

/// A map as written: every key with its place, in the order of the file. Duplicate keys are refused by the parser.
#[derive(Clone, Debug)]
pub struct Entries<V>(pub Vec<(Spanned<String>, V)>);

impl<V> Default for Entries<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Entries<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor<V>(std::marker::PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
            type Value = Entries<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(EntriesVisitor(std::marker::PhantomData))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde::de::IgnoredAny;

    use super::*;

    #[rstest]
    #[case::documents("a: 1\n---\nb: 2\n".to_owned(), "f:2:1: a second document begins here: a file has one")]
    #[case::depth((0..40).map(|n| format!("{}a:\n", " ".repeat(n))).collect(), "nested deeper than 16 levels")]
    #[case::values("- 1\n".repeat(MAX_NODES + 1), "too many values, anchors or aliases")]
    fn limits_are_told_in_plain_words(#[case] text: String, #[case] says: &str) {
        let error = parse::<IgnoredAny>("f", text.as_bytes()).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}
