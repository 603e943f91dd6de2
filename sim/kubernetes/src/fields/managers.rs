//! `metadata.managedFields`: who owns which field, kept on every write as the real server keeps it
//! (`sigs.k8s.io/structured-merge-diff/merge` and `k8s.io/apimachinery/pkg/util/managedfields`).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::compare::{Comparison, compare};
use super::schema::Type;
use super::set::{FieldSet, Step, display};
use crate::error::ApiError;
use crate::json;
use crate::patch::apply;

/// Who writes, and through what.
#[derive(Debug, Clone)]
pub(crate) struct Writer {
    /// `fieldManager` of the request, or the program name of its user agent.
    pub(crate) manager: String,
    pub(crate) api_version: String,
    pub(crate) subresource: String,
    /// RFC 3339, in seconds.
    pub(crate) now: String,
    /// Fields that this endpoint does not write, so that nobody owns them through it.
    pub(crate) reset: &'static [&'static str],
}

/// What tells entries apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    applies: bool,
    manager: String,
    /// Empty for appliers, which keep their fields when they move to another version.
    api_version: String,
    subresource: String,
}

#[derive(Debug, Clone, PartialEq)]
struct Entry {
    api_version: String,
    time: String,
    fields: FieldSet,
}

/// The decoded `managedFields` of one object.
#[derive(Debug, Clone, Default, PartialEq)]
struct Managers(BTreeMap<Identity, Entry>);

/// Fields that nobody owns.
const UNOWNED: &[&[&str]] = &[
    &["apiVersion"],
    &["kind"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];

fn strip(set: FieldSet, reset: &[&str]) -> FieldSet {
    let as_path = |names: &[&str]| -> Vec<Step> {
        names
            .iter()
            .map(|&name| Step::Field(name.to_owned()))
            .collect()
    };
    let mut rest = UNOWNED
        .iter()
        .fold(set, |set, names| set.without_subtree(&as_path(names)));
    for name in reset {
        rest = rest.without_subtree(&as_path(&[name]));
    }
    if let Some(metadata) = rest.below.get_mut(&Step::Field("metadata".to_owned())) {
        metadata.member = false;
    }
    rest
}

impl Managers {
    /// Reads the entries; malformed ones are dropped, as the real server drops them all.
    fn decode(object: &Value) -> Self {
        let entries = json::list(object, &["metadata", "managedFields"])
            .iter()
            .filter_map(|entry| {
                let applies = match json::text(entry, &["operation"]) {
                    "Apply" => true,
                    "Update" => false,
                    _ => return None,
                };
                let api_version = json::text(entry, &["apiVersion"]).to_owned();
                let identity = Identity {
                    applies,
                    manager: json::text(entry, &["manager"]).to_owned(),
                    api_version: if applies {
                        String::new()
                    } else {
                        api_version.clone()
                    },
                    subresource: json::text(entry, &["subresource"]).to_owned(),
                };
                Some((
                    identity,
                    Entry {
                        api_version,
                        time: json::text(entry, &["time"]).to_owned(),
                        fields: FieldSet::decode(&entry["fieldsV1"])?,
                    },
                ))
            })
            .collect();
        Self(entries)
    }

    /// Writes the entries into `object`, appliers first, then by time.
    fn encode(&self, object: &mut Value) {
        let mut entries: Vec<(&Identity, &Entry)> = self.0.iter().collect();
        entries.sort_by_key(|(identity, entry)| (!identity.applies, entry.time.clone()));
        let entries: Vec<Value> = entries
            .into_iter()
            .map(|(identity, entry)| {
                let mut encoded = json!({
                    "manager": identity.manager,
                    "operation": if identity.applies { "Apply" } else { "Update" },
                    "apiVersion": entry.api_version,
                    "fieldsType": "FieldsV1",
                    "fieldsV1": entry.fields.encode(),
                });
                if !entry.time.is_empty() {
                    encoded["time"] = json!(entry.time);
                }
                if !identity.subresource.is_empty() {
                    encoded["subresource"] = json!(identity.subresource);
                }
                encoded
            })
            .collect();
        if entries.is_empty() {
            json::remove(object, &["metadata", "managedFields"]);
        } else {
            json::set(
                object,
                &["metadata", "managedFields"],
                Value::Array(entries),
            );
        }
    }

    fn drop_empty(&mut self) {
        self.0.retain(|_, entry| !entry.fields.is_empty());
    }

    fn all(&self) -> FieldSet {
        let mut all = FieldSet::default();
        for entry in self.0.values() {
            all.add(&entry.fields);
        }
        all
    }

    /// Takes `written` and `removed` from everybody but `writer`.
    fn take_from_others(&mut self, writer: &Identity, written: &FieldSet, removed: &FieldSet) {
        for (identity, entry) in &mut self.0 {
            if identity != writer {
                let rest = entry.fields.difference(written).difference(removed);
                entry.fields = rest;
            }
        }
    }
}

fn identity(writer: &Writer, applies: bool) -> Identity {
    Identity {
        applies,
        manager: writer.manager.clone(),
        api_version: if applies {
            String::new()
        } else {
            writer.api_version.clone()
        },
        subresource: writer.subresource.clone(),
    }
}

/// Records in `new` what a create, update or patch by `writer` changed against `old`.
///
/// `old` is `None` for a create. An object that has no managed fields stays without, as on the real server.
pub(crate) fn track_update(old: Option<&Value>, new: &mut Value, writer: &Writer, of: &Type) {
    let sent = new
        .get("metadata")
        .and_then(|meta| meta.get("managedFields"));
    // A list without entries, or with one empty entry, is the documented way to forget all managers.
    let forget = match (old, sent.and_then(Value::as_array).map(Vec::as_slice)) {
        (Some(_), Some([])) => true,
        (Some(_), Some([only])) => only.as_object().is_some_and(serde_json::Map::is_empty),
        _ => false,
    };
    if forget {
        json::remove(new, &["metadata", "managedFields"]);
        return;
    }
    let mut managers = match (sent, old) {
        (Some(Value::Array(_)), _) => Managers::decode(new),
        (_, Some(old)) => Managers::decode(old),
        (_, None) => Managers::default(),
    };
    if managers.0.is_empty() && old.is_some() {
        json::remove(new, &["metadata", "managedFields"]);
        return;
    }
    let empty = Value::Object(serde_json::Map::new());
    let difference = compare(old.unwrap_or(&empty), new, of);
    let me = identity(writer, false);
    let written = strip(difference.written(), writer.reset);
    managers.take_from_others(&me, &written, &difference.removed);
    let before = managers.0.get(&me).cloned();
    let fields = before
        .as_ref()
        .map(|entry| entry.fields.clone())
        .unwrap_or_default()
        .union(&written)
        .difference(&difference.removed);
    let time = match &before {
        Some(entry) if entry.fields == fields => entry.time.clone(),
        _ => writer.now.clone(),
    };
    managers.0.insert(
        me,
        Entry {
            api_version: writer.api_version.clone(),
            time,
            fields,
        },
    );
    managers.drop_empty();
    managers.encode(new);
}

/// Server-side apply: merges `config` into `live`, drops what this manager applied before and no longer does, and
/// moves ownership. The result carries its `managedFields`.
///
/// # Errors
/// A conflict, with one cause for each field that somebody else owns, unless `force` is given.
pub(crate) fn apply(
    live: &Value,
    config: &Value,
    writer: &Writer,
    force: bool,
    of: &Type,
) -> Result<Value, ApiError> {
    let mut managers = Managers::decode(live);
    let exists = json::at(live, &["metadata", "uid"]).is_some();
    if managers.0.is_empty() && exists {
        let first = Identity {
            applies: false,
            manager: "before-first-apply".to_owned(),
            api_version: writer.api_version.clone(),
            subresource: String::new(),
        };
        managers.0.insert(
            first,
            Entry {
                api_version: writer.api_version.clone(),
                time: writer.now.clone(),
                fields: strip(
                    compare(&Value::Object(serde_json::Map::new()), live, of).written(),
                    &[],
                ),
            },
        );
    }
    let me = identity(writer, true);
    let last = managers.0.get(&me).cloned();
    let mut applied = FieldSet::of(config, of);
    for name in writer.reset {
        applied = applied.without_subtree(&[Step::Field((*name).to_owned())]);
    }
    managers.0.insert(
        me.clone(),
        Entry {
            api_version: writer.api_version.clone(),
            time: writer.now.clone(),
            fields: applied.clone(),
        },
    );
    let mut merged = apply::merge(live, config, of);
    if let Some(last) = &last {
        let owned = apply::with_named(&managers.all(), of);
        let dropped = apply::with_named(&last.fields, of).difference(&owned);
        apply::remove(&mut merged, &dropped, of);
    }
    let difference = compare(live, &merged, of);
    // What this endpoint does not write is taken back later, and is nobody's conflict.
    let written = strip(difference.written(), writer.reset);
    if !force {
        refuse_conflicts(&managers, &me, &written)?;
    }
    managers.take_from_others(&me, &written, &difference.removed);
    let fields = strip(applied, writer.reset);
    // Who changes nothing in the object leaves no new time.
    let unchanged = exists && difference == Comparison::default();
    let time = match &last {
        Some(last) if unchanged || last.fields == fields => last.time.clone(),
        None if unchanged => String::new(),
        _ => writer.now.clone(),
    };
    managers.0.insert(
        me,
        Entry {
            api_version: writer.api_version.clone(),
            time,
            fields,
        },
    );
    managers.drop_empty();
    managers.encode(&mut merged);
    Ok(merged)
}

fn refuse_conflicts(
    managers: &Managers,
    me: &Identity,
    written: &FieldSet,
) -> Result<(), ApiError> {
    let mut found: Vec<(String, Vec<String>)> = managers
        .0
        .iter()
        .filter(|(identity, _)| *identity != me)
        .filter_map(|(identity, entry)| {
            let paths = entry.fields.intersection(written).paths();
            let paths: Vec<String> = paths.iter().map(|path| display(path)).collect();
            (!paths.is_empty()).then(|| (name_of(identity), paths))
        })
        .collect();
    found.sort();
    let causes: Vec<(String, String)> = found
        .iter()
        .flat_map(|(name, paths)| {
            paths
                .iter()
                .map(move |path| (format!("conflict with {name}"), path.clone()))
        })
        .collect();
    let message = match causes.as_slice() {
        [] => return Ok(()),
        [(conflict, path)] => format!("Apply failed with 1 conflict: {conflict}: {path}"),
        many => {
            let groups: Vec<String> = found
                .iter()
                .map(|(name, paths)| {
                    let lines: Vec<String> =
                        paths.iter().map(|path| format!("\n- {path}")).collect();
                    format!("conflicts with {name}:{}", lines.concat())
                })
                .collect();
            format!(
                "Apply failed with {} conflicts: {}",
                many.len(),
                groups.join("\n")
            )
        }
    };
    Err(ApiError::apply_conflict(message, causes))
}

fn name_of(identity: &Identity) -> String {
    let mut name = format!("\"{}\"", identity.manager);
    if !identity.subresource.is_empty() {
        name += &format!(" with subresource \"{}\"", identity.subresource);
    }
    if !identity.applies {
        name += &format!(" using {}", identity.api_version);
    }
    name
}
