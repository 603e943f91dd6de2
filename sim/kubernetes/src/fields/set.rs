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
