//! The structural half of server-side apply: merging a configuration into an object and taking fields out of it.
//! Ownership is decided in `fields::managers`.

use serde_json::{Map, Value};

use crate::fields::schema::Type;
use crate::fields::set::{FieldSet, Step, step_of_item};
use crate::json;

/// `live` with everything that `config` sets. Applying the same once more changes nothing, even where a list has items
/// that the real server refuses: two with one key, or one without.
pub(crate) fn merge(live: &Value, config: &Value, of: &Type) -> Value {
    match (config, of) {
        (Value::Object(new), _) if of.is_granular_object(config) => {
            let mut merged = live.as_object().cloned().unwrap_or_default();
            for (name, field) in new {
                let before = merged.get(name).unwrap_or(&Value::Null);
                merged.insert(name.clone(), merge(before, field, of.field(name)));
            }
            Value::Object(merged)
        }
        (Value::Array(new), Type::ListMap { item, .. }) => {
            merge_keyed(json::list(live, &[]), new, of, item)
        }
        (Value::Array(new), Type::Set) => {
            let old = json::list(live, &[]);
            let fresh = new.iter().filter(|value| !old.contains(value));
            old.iter().chain(fresh).cloned().collect()
        }
        _ => config.clone(),
    }
}

fn merge_keyed(old: &[Value], new: &[Value], of: &Type, item: &Type) -> Value {
    let mut merged = old.to_vec();
    for value in new {
        let step = step_of_item(of, value);
        let known = merged.iter_mut().find(|known| match &step {
            Some(_) => step_of_item(of, known) == step,
            None => *known == value,
        });
        match known {
            Some(known) => *known = merge(known, value, item),
            None => merged.push(merge(&Value::Null, value, item)),
        }
    }
    Value::Array(merged)
}

/// `set` with every named field that holds something in it made a member, so that an object whose last owned field
/// goes is removed itself (`EnsureNamedFieldsAreMembers`).
pub(crate) fn with_named(set: &FieldSet, of: &Type) -> FieldSet {
    let below = set
        .below
        .iter()
        .map(|(step, next)| {
            let (next_type, named) = match (step, of) {
                (Step::Field(name), _) => (of.field(name), of.names()),
                (_, Type::ListMap { item, .. }) => (item.as_ref(), false),
                _ => (&Type::Atomic, false),
            };
            let mut inner = with_named(next, next_type);
            inner.member |= named && !inner.below.is_empty();
            (step.clone(), inner)
        })
        .collect();
    FieldSet {
        member: set.member,
        below,
    }
}

/// Removes the members of `dropped` from `value`, each with what lies below it.
pub(crate) fn remove(value: &mut Value, dropped: &FieldSet, of: &Type) {
    match value {
        Value::Object(map) => remove_fields(map, dropped, of),
        Value::Array(items) => {
            let item_type = match of {
                Type::ListMap { item, .. } => item.as_ref(),
                _ => &Type::Atomic,
            };
            items.retain_mut(|item| {
                let found = step_of_item(of, item).and_then(|step| dropped.below.get(&step));
                match found {
                    Some(inner) if inner.member => false,
                    Some(inner) => {
                        remove(item, inner, item_type);
                        true
                    }
                    None => true,
                }
            });
        }
        _ => {}
    }
}

fn remove_fields(map: &mut Map<String, Value>, dropped: &FieldSet, of: &Type) {
    for (step, inner) in &dropped.below {
        let Step::Field(name) = step else { continue };
        if inner.member {
            map.remove(name);
        } else if let Some(field) = map.get_mut(name) {
            remove(field, inner, of.field(name));
        }
    }
}
