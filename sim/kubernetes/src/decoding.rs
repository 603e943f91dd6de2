//! Why a body is no object of its kind, in the words of Go's decoder, which clients see in the messages of the real
//! server. Names of Go types that cannot be told from the field are guessed from its name.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use crate::fields::schema::Type;
use crate::json;

/// Decodes into `T` and writes it back.
pub(crate) fn through<T: Serialize + DeserializeOwned>(
    kind: &str,
    of: &Type,
    object: Value,
) -> Result<Value, String> {
    let decoded: T = serde_path_to_error::deserialize(object)
        .map_err(|error| sentence(kind, of, error.path(), &error.inner().to_string()))?;
    serde_json::to_value(decoded).map_err(|error| error.to_string())
}

fn sentence(kind: &str, of: &Type, path: &Path, why: &str) -> String {
    if let Some(offset) = why
        .strip_prefix("Invalid symbol ")
        .and_then(|rest| rest.split_once("offset "))
    {
        let offset = offset.1.trim_end_matches('.');
        return format!("illegal base64 data at input byte {offset}");
    }
    let Some((found, expected)) = why
        .strip_prefix("invalid type: ")
        .and_then(|rest| rest.rsplit_once(", expected "))
    else {
        return why.to_owned();
    };
    let names = names(of, path);
    let last = names.last().map_or("", String::as_str);
    let found = match found.split(' ').next().unwrap_or("") {
        "integer" | "floating" => "number",
        "boolean" => "bool",
        "sequence" => "array",
        "map" => "object",
        other => other,
    };
    let expected = match expected {
        "a string" => "string".to_owned(),
        "a boolean" => "bool".to_owned(),
        "i32" => "int32".to_owned(),
        "i64" => "int64".to_owned(),
        "a sequence" => format!("[]v1.{}", singular(last)),
        "a map" => "map[string]string".to_owned(),
        other => format!("v1.{}", other.trim_start_matches("struct ")),
    };
    format!(
        "json: cannot unmarshal {found} into Go struct field {}.{} of type {expected}",
        owner(kind, &names),
        names.join("."),
    )
}

/// The names on a path, without places in lists and keys of maps.
fn names(of: &Type, path: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let mut here = of;
    for segment in path {
        match segment {
            Segment::Map { .. } if *here == Type::Map => return names,
            Segment::Map { key } => {
                here = here.field(key);
                names.push(key.clone());
            }
            Segment::Seq { .. } => {
                if let Type::ListMap { item, .. } = here {
                    here = item;
                }
            }
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    names
}

/// The Go struct that has the last field.
fn owner(kind: &str, names: &[String]) -> String {
    match names {
        [] | [_] => kind.to_owned(),
        [part, _] if part == "metadata" => "ObjectMeta".to_owned(),
        [part, _] if part == "spec" || part == "status" => format!("{kind}{}", capital(part)),
        [.., parent, _] => match parent.as_str() {
            "involvedObject" | "regarding" | "related" => "ObjectReference".to_owned(),
            "conditions" => format!("{kind}Condition"),
            parent => singular(parent),
        },
    }
}

fn capital(name: &str) -> String {
    let mut letters = name.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}

fn singular(name: &str) -> String {
    capital(name.strip_suffix('s').unwrap_or(name))
}

/// Times to the microsecond are read in one exact form, unlike others.
pub(crate) fn micro_times(object: &Value) -> Result<(), String> {
    for path in [
        &["spec", "renewTime"][..],
        &["spec", "acquireTime"],
        &["eventTime"],
        &["series", "lastObservedTime"],
    ] {
        let text = json::text(object, path);
        let fraction = text.get(19..).unwrap_or("");
        let exact = fraction.starts_with('.')
            && fraction
                .get(1..7)
                .is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
            && !fraction[7..].starts_with(|next: char| next.is_ascii_digit());
        let (rest, wanted) = if text.is_empty() || exact {
            continue;
        } else if text
            .get(..4)
            .is_none_or(|year| !year.bytes().all(|b| b.is_ascii_digit()))
        {
            (text, "2006")
        } else {
            (fraction, ".000000")
        };
        return Err(format!(
            "parsing time \"{text}\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse \"{rest}\" as \"{wanted}\""
        ));
    }
    Ok(())
}
