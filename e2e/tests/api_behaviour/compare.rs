//! Whether an answer is what was expected, and where not.
//!
//! Marks in expected strings: `<any>` alone is any value that is there, and within a text any part of it; `<absent>` is
//! no value; `<not>` before a text is any other string.

use serde_json::Value;

const ANY: &str = "<any>";
const ABSENT: &str = "<absent>";
const NOT: &str = "<not>";

/// Compares; `whole` refuses fields that were not expected. Adds what differs to `found`.
pub(crate) fn compare(
    expected: &Value,
    actual: Option<&Value>,
    whole: bool,
    path: &str,
    found: &mut Vec<String>,
) {
    let shown = || actual.map_or("nothing".to_owned(), Value::to_string);
    match (expected, actual) {
        (Value::String(mark), None) if mark == ABSENT => {}
        (Value::String(mark), Some(_)) if mark == ANY => {}
        (Value::String(text), Some(Value::String(actual)))
            if text != ABSENT && matches(text, actual) => {}
        (Value::Object(fields), Some(Value::Object(actual))) => {
            for (name, field) in fields {
                compare(
                    field,
                    actual.get(name),
                    whole,
                    &format!("{path}/{name}"),
                    found,
                );
            }
            if whole {
                let more = actual
                    .iter()
                    .filter(|(name, _)| !fields.contains_key(*name));
                found
                    .extend(more.map(|(name, field)| format!("{path}/{name}: unexpected {field}")));
            }
        }
        (Value::Array(items), Some(Value::Array(actual))) => {
            if items.len() != actual.len() {
                found.push(format!(
                    "{path}: expected {} items, got {}: {}",
                    items.len(),
                    actual.len(),
                    shown()
                ));
                return;
            }
            for (place, (item, actual)) in items.iter().zip(actual).enumerate() {
                compare(item, Some(actual), whole, &format!("{path}/{place}"), found);
            }
        }
        (expected, Some(actual)) if !expected.is_string() && expected == actual => {}
        _ => found.push(format!("{path}: expected {expected}, got {}", shown())),
    }
}

fn matches(expected: &str, actual: &str) -> bool {
    if let Some(other) = expected.strip_prefix(NOT) {
        return other != actual;
    }
    let Some((head, rest)) = expected.split_once(ANY) else {
        return expected == actual;
    };
    let Some(mut actual) = actual.strip_prefix(head) else {
        return false;
    };
    let parts: Vec<&str> = rest.split(ANY).collect();
    let Some((last, middle)) = parts.split_last() else {
        return true;
    };
    for part in middle {
        match actual.split_once(part) {
            Some((_, after)) => actual = after,
            None => return false,
        }
    }
    actual.ends_with(last)
}

#[test]
fn marks() {
    let differences = |expected: Value, actual: Value| {
        let mut found = Vec::new();
        compare(&expected, Some(&actual), false, "", &mut found);
        found.len()
    };
    use serde_json::json;
    for (expected, actual, count) in [
        (json!({"a": "<any>"}), json!({"a": 1, "b": 2}), 0),
        (json!({"a": "<any>"}), json!({"b": 2}), 1),
        (json!({"a": "<absent>"}), json!({"b": 2}), 0),
        (json!({"a": "<absent>"}), json!({"a": "<absent>"}), 1),
        (json!("from <any> to <any>."), json!("from 1 to 2."), 0),
        (json!("from <any> to <any>."), json!("from 1 to 2"), 1),
        (json!("<not>5"), json!("5"), 1),
        (json!("<not>5"), json!("6"), 0),
        (json!([{}]), json!([{"a": 1}]), 0),
        (json!([]), json!([1]), 1),
        (json!(1), json!(2), 1),
    ] {
        assert_eq!(
            differences(expected.clone(), actual.clone()),
            count,
            "{expected} {actual}"
        );
    }
}
