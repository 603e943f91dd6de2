//! Bodies in Protobuf, for the kinds that kubectl creates through typed clients (`create namespace`, `create
//! configmap`, `auth can-i`, …). The field numbers are those of the `generated.proto` files of `k8s.io/api`.
//!
//! A body with anything that has no row here is refused whole: better a clear 415 than an object with holes.

use serde_json::{Map, Value};

use crate::base64;

/// What each body starts with, before a `runtime.Unknown` message.
const MAGIC: &[u8] = b"k8s\0";

/// How a field is written in JSON.
#[derive(Clone, Copy)]
enum Kind {
    /// Left out when empty.
    Text,
    Texts,
    /// Left out when zero: Go writes these whether set or not.
    Int,
    Bool,
    Message(&'static [Field]),
    Messages(&'static [Field]),
    /// `map<string, string>`.
    TextMap,
    /// `map<string, bytes>`, base64 in JSON.
    BytesMap,
    /// Written by the server alone; read over.
    Ignored,
}

/// Number, JSON name and kind of a field.
type Field = (u64, &'static str, Kind);

const OWNER: &[Field] = &[
    (1, "kind", Kind::Text),
    (3, "name", Kind::Text),
    (4, "uid", Kind::Text),
    (5, "apiVersion", Kind::Text),
    (6, "controller", Kind::Bool),
    (7, "blockOwnerDeletion", Kind::Bool),
];
const META: &[Field] = &[
    (1, "name", Kind::Text),
    (2, "generateName", Kind::Text),
    (3, "namespace", Kind::Text),
    (4, "selfLink", Kind::Ignored),
    (5, "uid", Kind::Text),
    (6, "resourceVersion", Kind::Text),
    (7, "generation", Kind::Ignored),
    (8, "creationTimestamp", Kind::Ignored),
    (9, "deletionTimestamp", Kind::Ignored),
    (10, "deletionGracePeriodSeconds", Kind::Ignored),
    (11, "labels", Kind::TextMap),
    (12, "annotations", Kind::TextMap),
    (13, "ownerReferences", Kind::Messages(OWNER)),
    (14, "finalizers", Kind::Texts),
    (17, "managedFields", Kind::Ignored),
];
const NAMESPACE: &[Field] = &[
    (1, "metadata", Kind::Message(META)),
    (2, "spec", Kind::Message(&[(1, "finalizers", Kind::Texts)])),
    (3, "status", Kind::Ignored),
];
const CONFIG_MAP: &[Field] = &[
    (1, "metadata", Kind::Message(META)),
    (2, "data", Kind::TextMap),
    (3, "binaryData", Kind::BytesMap),
    (4, "immutable", Kind::Bool),
];
const SECRET: &[Field] = &[
    (1, "metadata", Kind::Message(META)),
    (2, "data", Kind::BytesMap),
    (3, "type", Kind::Text),
    (4, "stringData", Kind::TextMap),
    (5, "immutable", Kind::Bool),
];
const SERVICE_ACCOUNT: &[Field] = &[
    (1, "metadata", Kind::Message(META)),
    (4, "automountServiceAccountToken", Kind::Bool),
];
const RESOURCE_ATTRIBUTES: &[Field] = &[
    (1, "namespace", Kind::Text),
    (2, "verb", Kind::Text),
    (3, "group", Kind::Text),
    (4, "version", Kind::Text),
    (5, "resource", Kind::Text),
    (6, "subresource", Kind::Text),
    (7, "name", Kind::Text),
];
const PATH_ATTRIBUTES: &[Field] = &[(1, "path", Kind::Text), (2, "verb", Kind::Text)];
const SELF_ACCESS: &[Field] = &[
    (1, "metadata", Kind::Message(META)),
    (
        2,
        "spec",
        Kind::Message(&[
            (1, "resourceAttributes", Kind::Message(RESOURCE_ATTRIBUTES)),
            (2, "nonResourceAttributes", Kind::Message(PATH_ATTRIBUTES)),
        ]),
    ),
    (3, "status", Kind::Ignored),
];
const ACCESS: &[Field] = &[
    (1, "metadata", Kind::Message(META)),
    (
        2,
        "spec",
        Kind::Message(&[
            (1, "resourceAttributes", Kind::Message(RESOURCE_ATTRIBUTES)),
            (2, "nonResourceAttributes", Kind::Message(PATH_ATTRIBUTES)),
            (3, "user", Kind::Text),
            (4, "groups", Kind::Texts),
            (6, "uid", Kind::Text),
        ]),
    ),
    (3, "status", Kind::Ignored),
];
const TOKEN: &[Field] = &[
    (1, "metadata", Kind::Message(META)),
    (
        2,
        "spec",
        Kind::Message(&[(1, "token", Kind::Text), (2, "audiences", Kind::Texts)]),
    ),
    (3, "status", Kind::Ignored),
];
const SELF_SUBJECT: &[Field] = &[
    (1, "metadata", Kind::Message(META)),
    (2, "status", Kind::Ignored),
];
const DELETE_OPTIONS: &[Field] = &[
    (1, "gracePeriodSeconds", Kind::Int),
    (
        2,
        "preconditions",
        Kind::Message(&[(1, "uid", Kind::Text), (2, "resourceVersion", Kind::Text)]),
    ),
    (3, "orphanDependents", Kind::Bool),
    (4, "propagationPolicy", Kind::Text),
    (5, "dryRun", Kind::Texts),
];

fn message(api_version: &str, kind: &str) -> Option<&'static [Field]> {
    Some(match (api_version, kind) {
        ("v1", "Namespace") => NAMESPACE,
        ("v1", "ConfigMap") => CONFIG_MAP,
        ("v1", "Secret") => SECRET,
        ("v1", "ServiceAccount") => SERVICE_ACCOUNT,
        (_, "DeleteOptions") => DELETE_OPTIONS,
        ("authorization.k8s.io/v1", "SelfSubjectAccessReview") => SELF_ACCESS,
        ("authorization.k8s.io/v1", "SubjectAccessReview" | "LocalSubjectAccessReview") => ACCESS,
        ("authentication.k8s.io/v1", "TokenReview") => TOKEN,
        ("authentication.k8s.io/v1", "SelfSubjectReview") => SELF_SUBJECT,
        _ => return None,
    })
}

/// Decodes a body; `None` when it is malformed, of another kind, or holds a field that is not known here.
pub(crate) fn decode(body: &[u8]) -> Option<Value> {
    let envelope = read(body.strip_prefix(MAGIC)?)?;
    let part = |number: u64| {
        envelope.iter().find_map(|(found, value)| match value {
            Wire::Bytes(bytes) if *found == number => Some(*bytes),
            _ => None,
        })
    };
    let types = object(
        part(1)?,
        &[(1, "apiVersion", Kind::Text), (2, "kind", Kind::Text)],
    )?;
    let of = message(types["apiVersion"].as_str()?, types["kind"].as_str()?)?;
    let Value::Object(mut decoded) = object(part(2).unwrap_or(&[]), of)? else {
        return None;
    };
    decoded.insert("apiVersion".to_owned(), types["apiVersion"].clone());
    decoded.insert("kind".to_owned(), types["kind"].clone());
    Some(Value::Object(decoded))
}

/// A value as it lies on the wire; fixed-width numbers do not occur in these kinds.
enum Wire<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for place in 0..10 {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(7 * place)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The fields of one message, in order.
fn read(mut bytes: &[u8]) -> Option<Vec<(u64, Wire<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let value = match tag & 7 {
            0 => Wire::Varint(varint(&mut bytes)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (content, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Wire::Bytes(content)
            }
            _ => return None,
        };
        fields.push((tag >> 3, value));
    }
    Some(fields)
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

fn object(bytes: &[u8], of: &[Field]) -> Option<Value> {
    let mut map = Map::new();
    for (number, value) in read(bytes)? {
        let &(_, name, kind) = of.iter().find(|(known, ..)| *known == number)?;
        match (kind, value) {
            (Kind::Ignored, _) => {}
            (Kind::Text, Wire::Bytes(bytes)) => {
                if !bytes.is_empty() {
                    map.insert(name.to_owned(), text(bytes)?.into());
                }
            }
            (Kind::Texts, Wire::Bytes(bytes)) => push(&mut map, name, text(bytes)?.into())?,
            (Kind::Int, Wire::Varint(number)) => {
                map.insert(name.to_owned(), number.into());
            }
            (Kind::Bool, Wire::Varint(number)) => {
                map.insert(name.to_owned(), (number != 0).into());
            }
            (Kind::Message(inner), Wire::Bytes(bytes)) => {
                map.insert(name.to_owned(), object(bytes, inner)?);
            }
            (Kind::Messages(inner), Wire::Bytes(bytes)) => {
                push(&mut map, name, object(bytes, inner)?)?;
            }
            (Kind::TextMap | Kind::BytesMap, Wire::Bytes(bytes)) => {
                let (key, value) = entry(bytes)?;
                let value = match kind {
                    Kind::TextMap => text(value)?,
                    _ => base64::encode(value),
                };
                let entries = map.entry(name).or_insert_with(|| Value::Object(Map::new()));
                entries.as_object_mut()?.insert(key, value.into());
            }
            _ => return None,
        }
    }
    Some(Value::Object(map))
}

fn push(map: &mut Map<String, Value>, name: &str, value: Value) -> Option<()> {
    let list = map
        .entry(name)
        .or_insert_with(|| Value::Array(Vec::new()))
        .as_array_mut()?;
    list.push(value);
    Some(())
}

/// Key and value of a map entry.
fn entry(bytes: &[u8]) -> Option<(String, &[u8])> {
    let mut key = String::new();
    let mut value: &[u8] = &[];
    for (number, part) in read(bytes)? {
        match (number, part) {
            (1, Wire::Bytes(bytes)) => key = text(bytes)?,
            (2, Wire::Bytes(bytes)) => value = bytes,
            _ => return None,
        }
    }
    Some((key, value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// A field with bytes in it.
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).unwrap_or(u8::MAX);
        [&[number << 3 | 2, length], content].concat()
    }

    fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let types = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [MAGIC, &field(1, &types), &field(2, raw)].concat()
    }

    #[test]
    fn a_secret_is_read() {
        let label = [field(1, b"k"), field(2, b"v")].concat();
        let meta = [
            field(1, b"s"),
            field(3, b""),
            field(11, &label),
            field(8, &[]),
        ]
        .concat();
        let data = [field(1, b"key"), field(2, b"ab")].concat();
        let raw = [field(1, &meta), field(2, &data), vec![5 << 3, 1]].concat();
        let expected = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "labels": {"k": "v"}},
            "data": {"key": "YWI="}, "immutable": true,
        });
        assert_eq!(decode(&body("v1", "Secret", &raw)), Some(expected));
    }

    #[test]
    fn what_is_not_known_is_refused_whole() {
        assert_eq!(decode(&body("v1", "Pod", &[])), None);
        assert_eq!(decode(&body("v1", "Secret", &field(15, b"x"))), None);
        assert_eq!(decode(b"{}"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(raw in proptest::collection::vec(any::<u8>(), 0..64)) {
            decode(&body("v1", "ConfigMap", &raw));
            decode(&[MAGIC, &raw].concat());
        }
    }
}
