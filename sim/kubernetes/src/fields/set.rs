//! Sets of field paths, and their `FieldsV1` form (`sigs.k8s.io/structured-merge-diff/fieldpath`).

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use super::schema::Type;

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// A field of an object: `f:name`.
    Field(String),
    /// An item of a keyed list: `k:{"name":"x"}`. Holds the fields as canonical JSON.
    Key(BTreeMap<String, String>),
    /// A member of a set: `v:"x"`. Holds the value as JSON.
    Value(String),
    /// An item of a list by position: `i:0`. Read, never written.
    Index(u64),
}

impl Step {
    fn encode(&self) -> String {
        match self {
            Step::Field(name) => format!("f:{name}"),
            Step::Key(fields) => {
                let fields: Vec<String> = fields
                    .iter()
                    .map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())))
                    .collect();
                format!("k:{{{}}}", fields.join(","))
            }
            Step::Value(value) => format!("v:{value}"),
            Step::Index(index) => format!("i:{index}"),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        match kind {
            "f" => Some(Step::Field(rest.to_owned())),
            "k" => match serde_json::from_str(rest).ok()? {
                Value::Object(fields) => Some(Step::Key(
                    fields
                        .into_iter()
                        .map(|(name, value)| (name, value.to_string()))
                        .collect(),
                )),
                _ => None,
            },
            "v" => {
                let value: Value = serde_json::from_str(rest).ok()?;
                Some(Step::Value(value.to_string()))
            }
            "i" => rest.parse().ok().map(Step::Index),
            _ => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Field(name) => write!(out, ".{name}"),
            Step::Key(fields) => {
                let fields: Vec<String> = fields
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                write!(out, "[{}]", fields.join(","))
            }
            Step::Value(value) => write!(out, "[={value}]"),
            Step::Index(index) => write!(out, "[{index}]"),
        }
    }
}

/// The step that leads to `item` of a list of type `list`.
pub(crate) fn step_of_item(list: &Type, item: &Value) -> Option<Step> {
    match list {
        Type::Set => Some(Step::Value(item.to_string())),
        Type::ListMap { keys, defaults, .. } => {
            let fields: BTreeMap<String, String> = keys
                .iter()
                .filter_map(|key| {
                    let value = item
                        .get(key)
                        .filter(|value| !value.is_null())
                        .or_else(|| defaults.get(key))?;
                    Some((key.clone(), value.to_string()))
                })
                .collect();
            (!fields.is_empty()).then_some(Step::Key(fields))
        }
        _ => None,
    }
}

/// A set of paths, as a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    /// Whether the path that leads here is in the set itself.
    pub(crate) member: bool,
    /// What lies below.
    pub(crate) below: BTreeMap<Step, FieldSet>,
}

impl FieldSet {
    pub(crate) fn is_empty(&self) -> bool {
        !self.member && self.below.values().all(FieldSet::is_empty)
    }

    /// Adds one path.
    pub(crate) fn insert(&mut self, path: &[Step]) {
        match path.split_first() {
            None => self.member = true,
            Some((first, rest)) => self.below.entry(first.clone()).or_default().insert(rest),
        }
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.add(other);
        all
    }

    /// Adds all paths of `other`.
    pub(crate) fn add(&mut self, other: &Self) {
        self.member |= other.member;
        for (step, theirs) in &other.below {
            self.below.entry(step.clone()).or_default().add(theirs);
        }
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let below = self
            .below
            .iter()
            .filter_map(|(step, mine)| {
                let both = mine.intersection(other.below.get(step)?);
                (!both.is_empty()).then(|| (step.clone(), both))
            })
            .collect();
        Self {
            member: self.member && other.member,
            below,
        }
    }

    pub(crate) fn difference(&self, other: &Self) -> Self {
        let below = self
            .below
            .iter()
            .filter_map(|(step, mine)| {
                let rest = match other.below.get(step) {
                    Some(theirs) => mine.difference(theirs),
                    None => mine.clone(),
                };
                (!rest.is_empty()).then(|| (step.clone(), rest))
            })
            .collect();
        Self {
            member: self.member && !other.member,
            below,
        }
    }

    /// Takes away everything at and below `path`.
    pub(crate) fn without_subtree(mut self, path: &[Step]) -> Self {
        self.cut(path);
        self
    }

    fn cut(&mut self, path: &[Step]) {
        match path.split_first() {
            None => *self = Self::default(),
            Some((first, rest)) => {
                if let Some(next) = self.below.get_mut(first) {
                    next.cut(rest);
                    if next.is_empty() {
                        self.below.remove(first);
                    }
                }
            }
        }
    }

    /// Every path in the set, in order.
    pub(crate) fn paths(&self) -> Vec<Vec<Step>> {
        let mut found = Vec::new();
        self.collect(&mut Vec::new(), &mut found);
        found
    }

    fn collect(&self, here: &mut Vec<Step>, found: &mut Vec<Vec<Step>>) {
        if self.member {
            found.push(here.clone());
        }
        for (step, next) in &self.below {
            here.push(step.clone());
            next.collect(here, found);
            here.pop();
        }
    }

    /// The `FieldsV1` form.
    pub(crate) fn encode(&self) -> Value {
        let mut fields = Map::new();
        if self.member && !self.below.is_empty() {
            fields.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (step, next) in &self.below {
            fields.insert(step.encode(), next.encode());
        }
        Value::Object(fields)
    }

    /// Reads the `FieldsV1` form; `None` when it is malformed.
    pub(crate) fn decode(fields: &Value) -> Option<Self> {
        let mut set = Self::default();
        for (name, next) in fields.as_object()? {
            if name == "." {
                set.member = true;
                continue;
            }
            let mut inner = Self::decode(next)?;
            // An empty object is a leaf, which is a member.
            if inner.below.is_empty() {
                inner.member = true;
            }
            set.below.insert(Step::decode(name)?, inner);
        }
        Some(set)
    }

    /// The fields that `value` sets (`toFieldSet`).
    pub(crate) fn of(value: &Value, of: &Type) -> Self {
        let mut set = Self::default();
        match value {
            Value::Object(map) if of.is_granular_object(value) => {
                for (name, field) in map {
                    let mut inner = Self::of(field, of.field(name));
                    let empty = field.is_null() || field.as_object().is_some_and(Map::is_empty);
                    inner.member |= empty || !of.names();
                    set.below.insert(Step::Field(name.clone()), inner);
                }
            }
            Value::Array(items) if matches!(of, Type::Set | Type::ListMap { .. }) => {
                let item_type = match of {
                    Type::ListMap { item, .. } => item.as_ref(),
                    _ => &Type::Atomic,
                };
                for item in items {
                    let Some(step) = step_of_item(of, item) else {
                        continue;
                    };
                    let mut inner = Self::of(item, item_type);
                    inner.member = true;
                    set.below.insert(step, inner);
                }
            }
            _ => set.member = true,
        }
        set
    }
}

/// A path as people read it, such as `.spec.containers[name="main"].image`.
pub(crate) fn display(path: &[Step]) -> String {
    path.iter().map(Step::to_string).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::fields::schema;

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            "[a-c]".prop_map(Step::Field),
            "[a-c]".prop_map(|name| {
                Step::Key(BTreeMap::from([(
                    "name".to_owned(),
                    Value::from(name).to_string(),
                )]))
            }),
            "[a-c]".prop_map(|value| Step::Value(Value::from(value).to_string())),
        ]
    }

    fn set() -> impl Strategy<Value = FieldSet> {
        vec(vec(step(), 1..4), 0..8).prop_map(|paths| {
            let mut set = FieldSet::default();
            for path in paths {
                set.insert(&path);
            }
            set
        })
    }

    /// The same as a plain list of paths, which is what the operations are checked against.
    fn paths(set: &FieldSet) -> Vec<Vec<Step>> {
        set.paths()
    }

    proptest! {
        #[test]
        fn a_set_survives_its_written_form(set in set()) {
            prop_assert_eq!(FieldSet::decode(&set.encode()), Some(set));
        }

        #[test]
        fn operations_are_those_of_sets(a in set(), b in set()) {
            let (in_a, in_b) = (paths(&a), paths(&b));
            let both: Vec<_> = in_a.iter().filter(|path| in_b.contains(path)).cloned().collect();
            let only: Vec<_> = in_a.iter().filter(|path| !in_b.contains(path)).cloned().collect();
            prop_assert_eq!(paths(&a.intersection(&b)), both);
            prop_assert_eq!(paths(&a.difference(&b)), only.clone());
            let mut either: Vec<_> = only.into_iter().chain(in_b).collect();
            either.sort();
            let mut union = paths(&a.union(&b));
            union.sort();
            prop_assert_eq!(union, either);
            prop_assert!(a.difference(&a).is_empty());
        }
    }

    #[test]
    fn a_port_without_protocol_is_tcp() {
        let pod = schema::built_in("", "Pod");
        let object = json!({"spec": {"containers": [
            {"name": "c", "ports": [{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}]},
        ]}});
        let ports = FieldSet::of(&object, &pod).encode();
        let container = &ports["f:spec"]["f:containers"]["k:{\"name\":\"c\"}"]["f:ports"];
        let keys: Vec<&String> = container.as_object().unwrap().keys().collect();
        assert_eq!(
            keys,
            [
                "k:{\"containerPort\":53,\"protocol\":\"TCP\"}",
                "k:{\"containerPort\":53,\"protocol\":\"UDP\"}"
            ]
        );
    }

    #[test]
    fn paths_read_as_in_conflicts() {
        let path = [
            Step::Field("status".to_owned()),
            Step::Field("conditions".to_owned()),
            Step::Key(BTreeMap::from([(
                "type".to_owned(),
                "\"Ready\"".to_owned(),
            )])),
            Step::Field("status".to_owned()),
        ];
        assert_eq!(display(&path), ".status.conditions[type=\"Ready\"].status");
        assert_eq!(display(&[Step::Value("\"x/a\"".to_owned())]), "[=\"x/a\"]");
    }

    #[test]
    fn malformed_fields_are_no_set() {
        for wrong in [
            json!([]),
            json!({"name": {}}),
            json!({"x:a": {}}),
            json!({"k:1": {}}),
            json!({"f:a": 1}),
        ] {
            assert_eq!(FieldSet::decode(&wrong), None, "{wrong}");
        }
    }
}
