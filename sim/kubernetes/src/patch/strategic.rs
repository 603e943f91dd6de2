//! Strategic merge patch: a merge patch that knows which lists of the built-in kinds are keyed, and the directives
//! `$patch`, `$retainKeys`, `$deleteFromPrimitiveList` and `$setElementOrder` that kubectl sends.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::schema::Type;
use crate::json;

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// Merges `patch` into `target`.
pub(crate) fn merge(target: &mut Value, patch: &Value, of: &Type) -> Result<(), ApiError> {
    let Value::Object(changes) = patch else {
        return Err(ApiError::bad_request("the patch must be a JSON object"));
    };
    match changes.get(PATCH).and_then(Value::as_str) {
        None | Some("merge") => {}
        Some("replace") => {
            *target = without_directives(patch);
            return Ok(());
        }
        Some("delete") => {
            *target = Value::Object(Map::new());
            return Ok(());
        }
        Some(other) => {
            return Err(ApiError::bad_request(format!(
                "Unknown patch type: {other}"
            )));
        }
    }
    let Some(target) = json::object(target) else {
        return Ok(());
    };
    if let Some(kept) = changes.get(RETAIN_KEYS).and_then(Value::as_array) {
        target.retain(|name, _| kept.iter().any(|key| key == name));
    }
    for (name, change) in changes {
        if let Some(list) = name.strip_prefix(DELETE_PRIMITIVES) {
            delete_primitives(target, list, change);
        } else if !name.starts_with('$') {
            merge_field(target, name, change, of.field(name))?;
        }
    }
    // Ordering comes last: it speaks of the lists as they are after the merge.
    for (name, order) in changes {
        if let Some(list) = name.strip_prefix(ORDER)
            && let (Some(items), Some(order)) = (
                target.get_mut(list).and_then(Value::as_array_mut),
                order.as_array(),
            )
        {
            reorder(items, order, of.field(list));
        }
    }
    Ok(())
}

fn merge_field(
    target: &mut Map<String, Value>,
    name: &str,
    change: &Value,
    of: &Type,
) -> Result<(), ApiError> {
    match (change, of) {
        (Value::Null, _) => {
            target.remove(name);
        }
        (Value::Object(map), _) => {
            if map.get(PATCH).and_then(Value::as_str) == Some("delete") {
                target.remove(name);
                return Ok(());
            }
            // Objects that are atomic in server-side apply still merge here.
            merge(
                target.entry(name).or_insert(Value::Object(Map::new())),
                change,
                of,
            )?;
        }
        (
            Value::Array(items),
            Type::ListMap {
                merge_key, item, ..
            },
        ) => {
            let list = target.entry(name).or_insert(Value::Array(Vec::new()));
            if let Some(list) = list.as_array_mut() {
                merge_keyed(list, items, name, merge_key, item)?;
            }
        }
        (Value::Array(items), Type::Set) => {
            let list = target.entry(name).or_insert(Value::Array(Vec::new()));
            if let Some(list) = list.as_array_mut() {
                for item in items {
                    if !list.contains(item) {
                        list.push(item.clone());
                    }
                }
            }
        }
        _ => {
            target.insert(name.to_owned(), change.clone());
        }
    }
    Ok(())
}

fn merge_keyed(
    list: &mut Vec<Value>,
    items: &[Value],
    name: &str,
    key: &str,
    item_type: &Type,
) -> Result<(), ApiError> {
    if items.iter().any(|item| {
        item.get(PATCH).and_then(Value::as_str) == Some("replace") && item.get(key).is_none()
    }) {
        *list = items
            .iter()
            .filter(|item| item.get(PATCH).is_none())
            .cloned()
            .collect();
        return Ok(());
    }
    for item in items {
        let Some(id) = item.get(key) else {
            return Err(ApiError::bad_request(format!(
                "map: {item} does not contain declared merge key: {key} (field {name})"
            )));
        };
        let position = list.iter().position(|known| known.get(key) == Some(id));
        let directive = item.get(PATCH).and_then(Value::as_str);
        match (position, directive) {
            (Some(position), Some("delete")) => {
                list.remove(position);
            }
            (None, Some("delete")) => {}
            (Some(position), _) => {
                if let Some(known) = list.get_mut(position) {
                    merge(known, item, item_type)?;
                }
            }
            (None, _) => list.push(without_directives(item)),
        }
    }
    Ok(())
}

fn delete_primitives(target: &mut Map<String, Value>, list: &str, doomed: &Value) {
    let (Some(items), Some(doomed)) = (
        target.get_mut(list).and_then(Value::as_array_mut),
        doomed.as_array(),
    ) else {
        return;
    };
    items.retain(|item| !doomed.contains(item));
    if items.is_empty() {
        target.remove(list);
    }
}

/// Puts `items` into the given order; those it does not name keep their place relative to what precedes them.
fn reorder(items: &mut Vec<Value>, order: &[Value], of: &Type) {
    let rank = |item: &Value| {
        order.iter().position(|wanted| match of {
            Type::ListMap { merge_key, .. } => {
                wanted.get(merge_key).is_some() && wanted.get(merge_key) == item.get(merge_key)
            }
            _ => wanted == item,
        })
    };
    let mut last = 0;
    let mut ranked: Vec<(usize, Value)> = Vec::with_capacity(items.len());
    for item in items.drain(..) {
        last = rank(&item).unwrap_or(last);
        ranked.push((last, item));
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    items.extend(ranked.into_iter().map(|(_, item)| item));
}

/// A value that is new to the object: directives have nothing to act on and must not be stored.
fn without_directives(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(name, field)| !name.starts_with('$') && !field.is_null())
            .map(|(name, field)| (name.clone(), without_directives(field)))
            .collect::<Map<String, Value>>()
            .into(),
        Value::Array(items) => items.iter().map(without_directives).collect(),
        other => other.clone(),
    }
}
