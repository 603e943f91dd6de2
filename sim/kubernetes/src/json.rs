//! Small readers and writers over [`serde_json::Value`]. Knows nothing of Kubernetes kinds.

use serde_json::{Map, Value};

/// The string at `path`, or `""` when it is absent or no string.
pub(crate) fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or("")
}

/// The value at `path`; `null` counts as absent.
pub(crate) fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    let mut here = value;
    for key in path {
        here = here.get(key)?;
    }
    (!here.is_null()).then_some(here)
}

/// The list at `path`, empty when absent.
pub(crate) fn list<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// The object at `value`, made when there is none. Never `None`: that is how the standard accessor puts it.
pub(crate) fn object(value: &mut Value) -> Option<&mut Map<String, Value>> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut()
}

/// Sets `path` to `new`, making objects on the way.
pub(crate) fn set(value: &mut Value, path: &[&str], new: Value) {
    let mut here = value;
    for key in path {
        let Some(map) = object(here) else { return };
        here = map.entry(*key).or_insert(Value::Null);
    }
    *here = new;
}

/// Sets `path` unless something is there.
pub(crate) fn default(value: &mut Value, path: &[&str], new: Value) {
    if at(value, path).is_none() {
        set(value, path, new);
    }
}

/// Removes and returns what is at `path`.
pub(crate) fn remove(value: &mut Value, path: &[&str]) -> Option<Value> {
    let (last, parents) = path.split_last()?;
    let mut here = value;
    for key in parents {
        here = here.get_mut(key)?;
    }
    here.as_object_mut()?.remove(*last)
}

/// Makes `path` of `value` what it is in `source`: the same value, or absent.
pub(crate) fn copy(value: &mut Value, source: &Value, path: &[&str]) {
    match at(source, path) {
        Some(found) => set(value, path, found.clone()),
        None => {
            remove(value, path);
        }
    }
}
