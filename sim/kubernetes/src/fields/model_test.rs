//! Ownership against a model: each label has a value and a set of owners, and every write is a line or two on them.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::managers::{Writer, apply, track_update};
use super::schema;

type Labels = BTreeMap<String, String>;

#[derive(Debug, Clone)]
enum Write {
    /// Server-side apply: manager, labels, force.
    Apply(String, Labels, bool),
    /// A merge patch: manager, label, value or removal.
    Patch(String, String, Option<String>),
}

#[derive(Debug, Default)]
struct Model {
    values: Labels,
    /// Owner names; appliers are written with a star.
    owners: BTreeMap<String, BTreeSet<String>>,
    last: BTreeMap<String, BTreeSet<String>>,
}

impl Model {
    /// Applies and returns the labels in conflict.
    fn apply(&mut self, manager: &str, labels: &Labels, force: bool) -> BTreeSet<String> {
        let me = format!("{manager}*");
        let differs = |label: &String, value: &String| self.values.get(label) != Some(value);
        let conflicts: BTreeSet<String> = labels
            .iter()
            .filter(|(label, value)| differs(label, value))
            .filter(|(label, _)| {
                self.owners
                    .get(*label)
                    .is_some_and(|owners| owners.iter().any(|owner| *owner != me))
            })
            .map(|(label, _)| label.clone())
            .collect();
        if !force && !conflicts.is_empty() {
            return conflicts;
        }
        let wanted: BTreeSet<String> = labels.keys().cloned().collect();
        for gone in self
            .last
            .insert(me.clone(), wanted.clone())
            .unwrap_or_default()
            .difference(&wanted)
        {
            // Somebody may have taken it over in the meantime; then it was no longer ours to drop.
            let owners = self.owners.entry(gone.clone()).or_default();
            if owners.remove(&me) && owners.is_empty() {
                self.values.remove(gone);
            }
        }
        for (label, value) in labels {
            let owners = self.owners.entry(label.clone()).or_default();
            if self.values.insert(label.clone(), value.clone()).as_ref() != Some(value) {
                owners.clear();
            }
            owners.insert(me.clone());
        }
        BTreeSet::new()
    }

    fn patch(&mut self, manager: &str, label: &str, value: Option<&String>) {
        let owners = self.owners.entry(label.to_owned()).or_default();
        match value {
            None => {
                self.values.remove(label);
                owners.clear();
            }
            Some(value) if self.values.get(label) == Some(value) => {}
            Some(value) => {
                self.values.insert(label.to_owned(), value.clone());
                *owners = BTreeSet::from([manager.to_owned()]);
            }
        }
    }

    fn owners(&self) -> BTreeMap<String, BTreeSet<String>> {
        let owned = self.owners.iter().filter(|(_, owners)| !owners.is_empty());
        owned
            .map(|(label, owners)| (label.clone(), owners.clone()))
            .collect()
    }
}

fn writer(manager: &str) -> Writer {
    Writer {
        manager: manager.to_owned(),
        api_version: "v1".to_owned(),
        subresource: String::new(),
        now: "2026-01-01T00:00:00Z".to_owned(),
        reset: &[],
    }
}

fn node(labels: &Labels) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": labels}})
}

/// Label, to the names of its owners, read from `managedFields`.
fn owners(object: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let entries = object["metadata"]["managedFields"].as_array();
    for entry in entries.into_iter().flatten() {
        let star = if entry["operation"] == "Apply" {
            "*"
        } else {
            ""
        };
        let name = format!("{}{star}", entry["manager"].as_str().unwrap());
        let labels = entry["fieldsV1"]["f:metadata"]["f:labels"].as_object();
        for field in labels.into_iter().flatten() {
            if let Some(label) = field.0.strip_prefix("f:") {
                found
                    .entry(label.to_owned())
                    .or_default()
                    .insert(name.clone());
            }
        }
    }
    found
}

fn labels_of(object: &Value) -> Labels {
    let labels = object["metadata"]["labels"].as_object();
    labels
        .into_iter()
        .flatten()
        .map(|(label, value)| (label.clone(), value.as_str().unwrap().to_owned()))
        .collect()
}

fn write() -> impl Strategy<Value = Write> {
    let labels = btree_map("[a-d]", "[0-2]", 0..4);
    prop_oneof![
        ("[m-n]", labels, any::<bool>())
            .prop_map(|(manager, labels, force)| Write::Apply(manager, labels, force)),
        ("[m-n]", "[a-d]", proptest::option::of("[0-2]"))
            .prop_map(|(manager, label, value)| Write::Patch(manager, label, value)),
    ]
}

proptest! {
    #[test]
    fn labels_and_owners_are_those_of_the_model(writes in vec(write(), 1..16)) {
        let schema = schema::built_in("", "Node");
        let mut model = Model::default();
        // An applier that owns something for good keeps the managed fields from running empty.
        let mut object = node(&Labels::new());
        object["metadata"]["annotations"] = json!({"kept": "1"});
        track_update(None, &mut object, &writer("kept"), &schema);
        object["metadata"]["uid"] = json!("u");
        for write in writes {
            match write {
                Write::Apply(manager, labels, force) => {
                    let conflicts = model.apply(&manager, &labels, force);
                    match apply(&object, &node(&labels), &writer(&manager), force, &schema) {
                        Ok(next) => {
                            prop_assert!(conflicts.is_empty(), "{conflicts:?} went unnoticed");
                            object = next;
                        }
                        Err(error) => {
                            let fields: BTreeSet<String> = error.details["causes"]
                                .as_array()
                                .into_iter()
                                .flatten()
                                .map(|cause| cause["field"].as_str().unwrap().replace(".metadata.labels.", ""))
                                .collect();
                            prop_assert_eq!(fields, conflicts);
                        }
                    }
                }
                Write::Patch(manager, label, value) => {
                    model.patch(&manager, &label, value.as_ref());
                    let mut next = object.clone();
                    crate::patch::merge::merge(&mut next, &json!({"metadata": {"labels": {label: value}}}));
                    track_update(Some(&object), &mut next, &writer(&manager), &schema);
                    object = next;
                }
            }
            prop_assert_eq!(labels_of(&object), model.values.clone());
            prop_assert_eq!(owners(&object), model.owners());
        }
    }
}
