//! Bodies of requests: JSON or YAML into values, and the fields that stand twice in them. Knows no kinds.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, error::Category};

/// Reads a JSON body, or a YAML one. The error is the sentence of the real server's decoder.
pub(crate) fn parse(body: &[u8]) -> Result<Value, String> {
    let json_error = match serde_json::from_slice(body) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    // Apply patches and manifests may be YAML; JSON that is merely broken must not be read as YAML.
    let text = String::from_utf8_lossy(body);
    if text.trim_start().starts_with(['{', '[']) || text.trim().is_empty() {
        let why = match json_error.classify() {
            Category::Eof => "unexpected end of JSON input".to_owned(),
            _ => json_error.to_string(),
        };
        return Err(format!(
            "couldn't get version/kind; json parse error: {why} ({text})"
        ));
    }
    serde_saphyr::from_str(&text).map_err(|error| format!("error decoding YAML: {error}"))
}

/// A sentence for each field that stands twice in a JSON body.
pub(crate) fn duplicates(body: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let walk = Walk {
        path: String::new(),
        found: &mut found,
    };
    // A body that cannot be read is refused elsewhere.
    let _ = walk.deserialize(&mut serde_json::Deserializer::from_slice(body));
    found
        .into_iter()
        .map(|path| format!("duplicate field \"{path}\""))
        .collect()
}

/// Walks a document without keeping it.
struct Walk<'a> {
    path: String,
    found: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen: Vec<String> = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            let path = if self.path.is_empty() {
                key.clone()
            } else {
                format!("{}.{key}", self.path)
            };
            if seen.contains(&key) {
                self.found.push(path.clone());
            }
            map.next_value_seed(Walk {
                path,
                found: &mut *self.found,
            })?;
            seen.push(key);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut place = 0;
        loop {
            let walk = Walk {
                path: format!("{}[{place}]", self.path),
                found: &mut *self.found,
            };
            if items.next_element_seed(walk)?.is_none() {
                return Ok(());
            }
            place += 1;
        }
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}
