//! JSON merge patch (RFC 7386).

use serde_json::Value;

use crate::json;

/// Merges `patch` into `target`.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    let Some(target) = json::object(target) else {
        return;
    };
    for (name, change) in changes {
        if change.is_null() {
            target.remove(name);
        } else {
            merge(target.entry(name.as_str()).or_insert(Value::Null), change);
        }
    }
}
