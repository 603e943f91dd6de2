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
            return Err(ApiError::unexpected(format!(
                "unknown patch type: {other} in map: {}",
                go_map(changes)
            )));
        }
    }
    let Some(target) = json::object(target) else {
        return Ok(());
    };
    if let Some(kept) = changes.get(RETAIN_KEYS).and_then(Value::as_array) {
        target.retain(|name, _| kept.iter().any(|key| key == name));
    }
    let before = target.clone();
    for (name, change) in changes {
        if let Some(list) = name.strip_prefix(DELETE_PRIMITIVES) {
            delete_primitives(target, list, change);
        } else if !name.starts_with('$') {
            merge_field(target, name, change, of.field(name))?;
        }
    }
    // An order that is given speaks of the lists as they are after the merge.
    for (name, order) in changes {
        if let Some(list) = name.strip_prefix(ORDER)
            && let (Some(items), Some(order)) = (
                target.get_mut(list).and_then(Value::as_array_mut),
                order.as_array(),
            )
        {
            let none = Vec::new();
            let before = before.get(list).and_then(Value::as_array).unwrap_or(&none);
            reorder(items, order, before, of.field(list));
        }
    }
    Ok(())
}

/// A map as Go's `%v` prints it.
fn go_map(map: &Map<String, Value>) -> String {
    let fields: Vec<String> = map
        .iter()
        .map(|(name, field)| format!("{name}:{}", go_value(field)))
        .collect();
    format!("map[{}]", fields.join(" "))
}

fn go_value(value: &Value) -> String {
    match value {
        Value::Object(map) => go_map(map),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_value).collect();
            format!("[{}]", items.join(" "))
        }
        Value::String(text) => text.clone(),
        Value::Null => "<nil>".to_owned(),
        other => other.to_string(),
    }
}

/// A whole patch as the real server shows it in its messages.
pub(crate) fn shown(patch: &Value) -> String {
    go_value(patch)
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
                let before = list.clone();
                merge_keyed(list, items, merge_key, item)?;
                reorder(list, items, &before, of);
            }
        }
        (Value::Array(items), Type::Set) => {
            let list = target.entry(name).or_insert(Value::Array(Vec::new()));
            if let Some(list) = list.as_array_mut() {
                let before = list.clone();
                for item in items {
                    if !list.contains(item) {
                        list.push(item.clone());
                    }
                }
                reorder(list, items, &before, of);
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
            return Err(ApiError::unexpected(format!(
                "map: {} does not contain declared merge key: {key}",
                shown(item)
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

/// Orders a merged list: the items named in `order` as they stand there, the others as they stood `before`. Where
/// nothing says which of two comes first, the named one does, so that items a patch adds lead
/// (`normalizeElementOrder` of `k8s.io/apimachinery/pkg/util/strategicpatch`).
fn reorder(items: &mut Vec<Value>, order: &[Value], before: &[Value], of: &Type) {
    let same = |a: &Value, b: &Value| match of {
        Type::ListMap { merge_key, .. } => {
            a.get(merge_key).is_some() && a.get(merge_key) == b.get(merge_key)
        }
        _ => a == b,
    };
    let place = |list: &[Value], item: &Value| list.iter().position(|known| same(known, item));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) = items
        .drain(..)
        .partition(|item| place(order, item).is_some());
    named.sort_by_key(|item| place(order, item));
    others.sort_by_key(|item| place(before, item));
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let other_first = match (named.peek(), others.peek()) {
            (None, None) => return,
            (None, Some(_)) => true,
            (Some(_), None) => false,
            (Some(named), Some(other)) => {
                matches!((place(before, other), place(before, named)), (Some(a), Some(b)) if a < b)
            }
        };
        let next = if other_first {
            others.next()
        } else {
            named.next()
        };
        items.extend(next);
    }
}

/// A value that is new to the object: directives have nothing to act on and must not be stored.
pub(crate) fn without_directives(value: &Value) -> Value {
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
