//! What differs between two versions of an object, as sets of fields.

use serde_json::Value;

use super::schema::Type;
use super::set::{FieldSet, Step, step_of_item};

/// The difference from one version to the next.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Comparison {
    pub(crate) added: FieldSet,
    pub(crate) modified: FieldSet,
    pub(crate) removed: FieldSet,
}

impl Comparison {
    /// Fields that the change set to something.
    pub(crate) fn written(&self) -> FieldSet {
        self.added.union(&self.modified)
    }
}

/// Compares `old` with `new`.
pub(crate) fn compare(old: &Value, new: &Value, of: &Type) -> Comparison {
    let mut found = Comparison::default();
    walk(Some(old), Some(new), of, &mut Vec::new(), &mut found);
    found
}

fn walk(
    old: Option<&Value>,
    new: Option<&Value>,
    of: &Type,
    path: &mut Vec<Step>,
    found: &mut Comparison,
) {
    let present = |value: Option<&Value>| value.is_some_and(|value| !value.is_null());
    let (has_old, has_new) = (present(old), present(new));
    if !has_old && !has_new {
        return;
    }
    // An object or list that came or went counts itself, except the envelope that every object has.
    if !has_old && !always_there(path) {
        found.added.insert(path);
    }
    if !has_new && !always_there(path) {
        found.removed.insert(path);
    }
    if let Some(steps) = children(old, new, of) {
        for (step, old, new) in steps {
            let next = match (&step, of) {
                (Step::Field(name), _) => of.field(name),
                (_, Type::ListMap { item, .. }) => item.as_ref(),
                _ => &Type::Atomic,
            };
            path.push(step);
            walk(old, new, next, path, found);
            path.pop();
        }
    } else if has_old && has_new && old != new {
        found.modified.insert(path);
    }
}

type Child<'a> = (Step, Option<&'a Value>, Option<&'a Value>);

/// The parts that two versions of a value have, paired; `None` when the value is taken whole.
fn children<'a>(
    old: Option<&'a Value>,
    new: Option<&'a Value>,
    of: &Type,
) -> Option<Vec<Child<'a>>> {
    let fits = |value: Option<&Value>| match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(_)) => matches!(of, Type::Set | Type::ListMap { .. }),
        Some(value) => of.is_granular_object(value),
    };
    if !fits(old) || !fits(new) {
        return None;
    }
    let steps = |value: Option<&'a Value>| -> Vec<(Step, &'a Value)> {
        match value {
            Some(Value::Object(map)) => map
                .iter()
                .map(|(name, field)| (Step::Field(name.clone()), field))
                .collect(),
            Some(Value::Array(items)) => items
                .iter()
                .filter_map(|item| Some((step_of_item(of, item)?, item)))
                .collect(),
            _ => Vec::new(),
        }
    };
    let mut paired: Vec<Child<'a>> = steps(old)
        .into_iter()
        .map(|(step, value)| (step, Some(value), None))
        .collect();
    for (step, value) in steps(new) {
        match paired.iter_mut().find(|(known, ..)| *known == step) {
            Some(pair) => pair.2 = Some(value),
            None => paired.push((step, None, Some(value))),
        }
    }
    Some(paired)
}

/// The parts of an object that Go always writes, so that they never come or go.
fn always_there(path: &[Step]) -> bool {
    match path {
        [] => true,
        [Step::Field(name)] => matches!(name.as_str(), "metadata" | "spec" | "status"),
        _ => false,
    }
}
