//! A document as a tree whose every node knows its place: for files whose unknown keys are reported, not refused.
//!
//! A [`Section`] hands out the keys it is asked for and reports the rest, so no key is dropped in silence.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use crate::document::{DocumentError, Position};

/// A value as written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Integer(i64),
    /// A number that is no `i64`; kept for the message only.
    Number(f64),
    Text(String),
    List(Vec<Spanned<Value>>),
    Map(Vec<(Spanned<String>, Spanned<Value>)>),
}

impl Value {
    /// What it is, for "expected …, found …".
    fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "true or false",
            Self::Integer(_) | Self::Number(_) => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }

            fn visit_none<E: de::Error>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
                Ok(Value::Bool(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
                Ok(Value::Integer(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
                // Lossy beyond 2^53, where it is out of every range asked for.
                Ok(i64::try_from(value).map_or(Value::Number(value as f64), Value::Integer))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
                Ok(Value::Number(value))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
                Ok(Value::Text(value.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = seq.next_element()? {
                    all.push(one);
                }
                Ok(Value::List(all))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = map.next_entry()? {
                    all.push(one);
                }
                Ok(Value::Map(all))
            }
        }
        deserializer.deserialize_any(V)
    }
}

/// Reads values out of one file and keeps what it should tell the user.
pub(crate) struct Reader<'a> {
    file: &'a str,
    notices: Vec<(Position, String)>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(file: &'a str) -> Self {
        Self {
            file,
            notices: Vec::new(),
        }
    }

    /// A fault at a value.
    pub(crate) fn wrong<T>(&self, at: &Spanned<T>, message: impl Into<String>) -> DocumentError {
        DocumentError::invalid(self.file, Position::of(at), message)
    }

    /// Something the user should know of a value that is taken all the same.
    pub(crate) fn notice<T>(&mut self, at: &Spanned<T>, message: impl Into<String>) {
        self.notices.push((Position::of(at), message.into()));
    }

    /// What there is to tell, in the order of the file.
    pub(crate) fn notices(mut self) -> Vec<(Position, String)> {
        self.notices
            .sort_by_key(|(place, _)| (place.line, place.column));
        self.notices
    }

    fn expected(&self, path: &str, what: &str, found: &Spanned<Value>) -> DocumentError {
        self.wrong(
            found,
            format!("{path}: expected {what}, found {}", found.value.kind()),
        )
    }

    pub(crate) fn section(
        &self,
        path: impl Into<String>,
        value: Spanned<Value>,
    ) -> Result<Section, DocumentError> {
        let path = path.into();
        match value.value {
            Value::Map(entries) => Ok(Section {
                path,
                known: Vec::new(),
                entries,
            }),
            Value::Null => Ok(Section {
                path,
                known: Vec::new(),
                entries: Vec::new(),
            }),
            _ => Err(self.expected(&path, "a map", &value)),
        }
    }

    pub(crate) fn text(&self, path: &str, value: &Spanned<Value>) -> Result<String, DocumentError> {
        match &value.value {
            Value::Text(text) => Ok(text.clone()),
            _ => Err(self.expected(path, "text", value)),
        }
    }

    pub(crate) fn bool(&self, path: &str, value: &Spanned<Value>) -> Result<bool, DocumentError> {
        match value.value {
            Value::Bool(flag) => Ok(flag),
            _ => Err(self.expected(path, "true or false", value)),
        }
    }

    pub(crate) fn integer(&self, path: &str, value: &Spanned<Value>) -> Result<i64, DocumentError> {
        match value.value {
            Value::Integer(number) => Ok(number),
            _ => Err(self.expected(path, "a whole number", value)),
        }
    }

    pub(crate) fn list(
        &self,
        path: &str,
        value: Spanned<Value>,
    ) -> Result<Vec<Spanned<Value>>, DocumentError> {
        match value.value {
            Value::List(all) => Ok(all),
            _ => Err(self.expected(path, "a list", &value)),
        }
    }
}

/// Where a value stands, for faults found after it is taken apart.
pub(crate) fn place_of<T>(value: &Spanned<T>) -> Spanned<()> {
    Spanned {
        value: (),
        referenced: value.referenced,
        defined: value.defined,
    }
}

/// A map being read. Every key is [taken](Section::take) or reported by [`Section::end`].
pub(crate) struct Section {
    path: String,
    /// Keys that were asked for: the ones there are.
    known: Vec<&'static str>,
    entries: Vec<(Spanned<String>, Spanned<Value>)>,
}

impl Section {
    /// The full name of a key.
    pub(crate) fn path(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// The value of a key; a null value is an absent one.
    pub(crate) fn take(&mut self, key: &'static str) -> Option<Spanned<Value>> {
        self.known.push(key);
        let place = self
            .entries
            .iter()
            .position(|(name, _)| name.value == key)?;
        let (_, value) = self.entries.remove(place);
        (value.value != Value::Null).then_some(value)
    }

    pub(crate) fn text(
        &mut self,
        reader: &Reader<'_>,
        key: &'static str,
    ) -> Result<Option<String>, DocumentError> {
        let path = self.path(key);
        self.take(key)
            .map(|value| reader.text(&path, &value))
            .transpose()
    }

    pub(crate) fn bool(
        &mut self,
        reader: &Reader<'_>,
        key: &'static str,
    ) -> Result<Option<bool>, DocumentError> {
        let path = self.path(key);
        self.take(key)
            .map(|value| reader.bool(&path, &value))
            .transpose()
    }

    /// A text that stands for something else.
    pub(crate) fn parsed<T>(
        &mut self,
        reader: &Reader<'_>,
        key: &'static str,
    ) -> Result<Option<T>, DocumentError>
    where
        T: std::str::FromStr<Err: fmt::Display>,
    {
        let path = self.path(key);
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let text = reader.text(&path, &value)?;
        text.parse()
            .map(Some)
            .map_err(|error| reader.wrong(&value, format!("{path}: {error}")))
    }

    pub(crate) fn list(
        &mut self,
        reader: &Reader<'_>,
        key: &'static str,
    ) -> Result<Vec<Spanned<Value>>, DocumentError> {
        let path = self.path(key);
        self.take(key)
            .map_or(Ok(Vec::new()), |value| reader.list(&path, value))
    }

    /// A map under a key; an absent one is empty.
    pub(crate) fn section(
        &mut self,
        reader: &Reader<'_>,
        key: &'static str,
    ) -> Result<Self, DocumentError> {
        let path = self.path(key);
        match self.take(key) {
            Some(value) => reader.section(path, value),
            None => Ok(Self {
                path,
                known: Vec::new(),
                entries: Vec::new(),
            }),
        }
    }

    /// Reports the keys nobody asked for.
    pub(crate) fn end(self, reader: &mut Reader<'_>) {
        for (name, _) in &self.entries {
            let path = self.path(&name.value);
            let alike = self
                .known
                .iter()
                .find(|key| key.eq_ignore_ascii_case(&name.value));
            let hint = match alike {
                Some(key) => format!("; did you mean {key}?"),
                None => String::new(),
            };
            reader.notice(name, format!("{path} is not known and has no effect{hint}"));
        }
    }
}
