//! JSON patch (RFC 6902). An operation that does not apply leaves nothing done.

use serde_json::Value;

use crate::error::ApiError;

/// The most operations the real server takes in one patch.
const MAX_OPERATIONS: usize = 10_000;

/// Applies the operations of `patch` to a copy of `target`.
pub(crate) fn apply(target: &Value, patch: &Value) -> Result<Value, ApiError> {
    let operations = patch.as_array().ok_or_else(|| {
        ApiError::bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
        )
    })?;
    if operations.len() > MAX_OPERATIONS {
        return Err(ApiError::bad_request(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let mut result = target.clone();
    for operation in operations {
        step(&mut result, operation).ok_or_else(ApiError::patch_rejected)?;
    }
    Ok(result)
}

fn step(target: &mut Value, operation: &Value) -> Option<()> {
    let pointer = |name: &str| operation.get(name)?.as_str().map(str::to_owned);
    let path = pointer("path")?;
    match operation.get("op")?.as_str()? {
        "add" => add(target, &path, operation.get("value")?.clone()),
        "remove" => remove(target, &path).map(drop),
        "replace" => replace(target, &path, operation.get("value")?.clone()),
        "move" => {
            let value = remove(target, &pointer("from")?)?;
            add(target, &path, value)
        }
        "copy" => {
            let value = target.pointer(&pointer("from")?)?.clone();
            add(target, &path, value)
        }
        "test" => {
            let wanted = operation.get("value").unwrap_or(&Value::Null);
            let found = target.pointer(&path).unwrap_or(&Value::Null);
            (wanted == found).then_some(())
        }
        _ => None,
    }
}

/// Splits a pointer into its parent and the unescaped last token.
fn split(pointer: &str) -> Option<(&str, String)> {
    let (parent, last) = pointer.rsplit_once('/')?;
    Some((parent, last.replace("~1", "/").replace("~0", "~")))
}

fn add(target: &mut Value, path: &str, value: Value) -> Option<()> {
    if path.is_empty() {
        *target = value;
        return Some(());
    }
    let (parent, last) = split(path)?;
    match target.pointer_mut(parent)? {
        Value::Object(map) => {
            map.insert(last, value);
            Some(())
        }
        Value::Array(items) => {
            let index = if last == "-" {
                items.len()
            } else {
                last.parse().ok()?
            };
            (index <= items.len()).then(|| items.insert(index, value))
        }
        _ => None,
    }
}

/// Replaces a value. A field of an object need not be there: so it is with the library that the real server uses,
/// against the standard.
fn replace(target: &mut Value, path: &str, value: Value) -> Option<()> {
    if let Some(found) = target.pointer_mut(path) {
        *found = value;
        return Some(());
    }
    let (parent, last) = split(path)?;
    let parent = target.pointer_mut(parent)?.as_object_mut()?;
    parent.insert(last, value);
    Some(())
}

fn remove(target: &mut Value, path: &str) -> Option<Value> {
    let (parent, last) = split(path)?;
    match target.pointer_mut(parent)? {
        Value::Object(map) => map.remove(&last),
        Value::Array(items) => {
            let index: usize = last.parse().ok()?;
            (index < items.len()).then(|| items.remove(index))
        }
        _ => None,
    }
}
