//! What a definition's schema does to its objects: fields it does not have are dropped, defaults are set, values are
//! checked. Of the checks it knows types, required fields, enumerations and bounds of numbers; not patterns, lengths, or
//! rules in CEL.

use serde_json::{Value, json};

use crate::error::Cause;
use crate::json;

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";

fn child(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// Whether a field of the whole object is none of the schema's business.
fn is_envelope(path: &str, name: &str) -> bool {
    path.is_empty() && matches!(name, "apiVersion" | "kind" | "metadata")
}

/// The schema of the field `name` of an object: of its own, or that of all fields whose names are data.
fn field_schema<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    json::at(schema, &["properties", name]).or_else(|| {
        schema
            .get("additionalProperties")
            .filter(|all| all.is_object())
    })
}

/// Drops the fields that the schema does not have; their paths go to `found`.
pub(crate) fn prune(value: &mut Value, schema: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            let free =
                schema[PRESERVE] == json!(true) || schema["additionalProperties"] == json!(true);
            map.retain(|name, field| {
                if is_envelope(path, name) {
                    return true;
                }
                match field_schema(schema, name) {
                    Some(of) => prune(field, of, &child(path, name), found),
                    None if free => {}
                    None => {
                        found.push(child(path, name));
                        return false;
                    }
                }
                true
            });
        }
        Value::Array(items) => {
            for (place, item) in items.iter_mut().enumerate() {
                prune(item, &schema["items"], &format!("{path}[{place}]"), found);
            }
        }
        _ => {}
    }
}

/// Sets the defaults of what is absent.
pub(crate) fn default(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => {
            for (name, of) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(given) = of.get("default")
                    && map.get(name).is_none_or(Value::is_null)
                {
                    map.insert(name.clone(), given.clone());
                }
            }
            for (name, field) in map.iter_mut() {
                if let Some(of) = field_schema(schema, name) {
                    default(field, of);
                }
            }
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| default(item, &schema["items"])),
        _ => {}
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// What is wrong with a value.
pub(crate) fn check(value: &Value, schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    let (wanted, found) = (json::text(schema, &["type"]), type_of(value));
    let fits = wanted.is_empty()
        || wanted == found
        || (wanted == "number" && found == "integer")
        || (found == "null" && schema["nullable"] == json!(true))
        || schema["x-kubernetes-int-or-string"] == json!(true);
    if !fits {
        let rule = format!("{path} in body must be of type {wanted}: \"{found}\"");
        causes.push(Cause {
            reason: "FieldValueTypeInvalid",
            ..Cause::invalid(path, &json!(found), &rule)
        });
    }
    if let Some(values) = schema["enum"].as_array()
        && !values.contains(value)
    {
        let names: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        causes.push(Cause::unsupported(path, value, &names));
    }
    if !fits {
        return;
    }
    bounds(value, schema, path, causes);
    match value {
        Value::Object(map) => {
            for name in json::list(schema, &["required"])
                .iter()
                .filter_map(Value::as_str)
            {
                if !map.contains_key(name) {
                    causes.push(Cause::required(child(path, name), ""));
                }
            }
            for (name, field) in map {
                if let Some(of) = field_schema(schema, name)
                    && !is_envelope(path, name)
                {
                    check(field, of, &child(path, name), causes);
                }
            }
        }
        Value::Array(items) => {
            for (place, item) in items.iter().enumerate() {
                check(item, &schema["items"], &format!("{path}[{place}]"), causes);
            }
        }
        _ => {}
    }
}

fn bounds(value: &Value, schema: &Value, path: &str, causes: &mut Vec<Cause>) {
    let Some(number) = value.as_f64() else { return };
    for (bound, below, rule) in [
        ("minimum", true, "greater than or equal to"),
        ("maximum", false, "less than or equal to"),
    ] {
        let Some(limit) = schema[bound].as_f64() else {
            continue;
        };
        if (below && number < limit) || (!below && number > limit) {
            // Whole numbers may have come as 1.0 through their Go type.
            let rule = format!("{path} in body should be {rule} {limit}");
            causes.push(Cause::invalid(path, value, &rule));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "size": {"type": "integer", "maximum": 3, "default": 2},
                "names": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
                "free": {"type": "object", "additionalProperties": {"type": "string"}},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            }},
        }})
    }

    #[test]
    fn unknown_fields_go_wherever_they_are() {
        let mut object = json!({"metadata": {"x": 1}, "top": 1, "spec": {
            "more": 1, "names": [{"a": "b", "c": 1}], "free": {"any": "x"}, "open": {"any": {"x": 1}},
        }});
        let mut found = Vec::new();
        prune(&mut object, &schema(), "", &mut found);
        found.sort();
        assert_eq!(found, ["spec.more", "spec.names[0].c", "top"]);
        let kept = json!({"metadata": {"x": 1}, "spec": {
            "names": [{"a": "b"}], "free": {"any": "x"}, "open": {"any": {"x": 1}},
        }});
        assert_eq!(object, kept);
    }

    #[test]
    fn defaults_fill_objects_that_are_there() {
        let mut object = json!({"spec": {}});
        default(&mut object, &schema());
        assert_eq!(object, json!({"spec": {"size": 2}}));
        let mut without = json!({});
        default(&mut without, &schema());
        assert_eq!(without, json!({}));
    }

    #[test]
    fn values_are_held_to_types_and_bounds() {
        let wrong = |object: Value| {
            let mut causes = Vec::new();
            check(&object, &schema(), "", &mut causes);
            causes
                .into_iter()
                .map(|cause| cause.field)
                .collect::<Vec<_>>()
        };
        assert!(wrong(json!({"spec": {"size": 3, "free": {"a": "b"}}})).is_empty());
        assert_eq!(wrong(json!({"spec": {"size": 4}})), ["spec.size"]);
        assert_eq!(wrong(json!({"spec": {"free": {"a": 1}}})), ["spec.free.a"]);
        assert_eq!(
            wrong(json!({"spec": {"names": [{"a": 1}]}})),
            ["spec.names[0].a"]
        );
    }
}
