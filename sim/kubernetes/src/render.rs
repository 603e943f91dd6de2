//! The forms an object or a list is answered in: whole, as a table for people, or its metadata alone.

use serde_json::{Value, json};

use crate::events;
use crate::resource::Resource;
use crate::table;
use crate::verbs::read::Page;

/// How much of each object a table row carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Include {
    Nothing,
    Metadata,
    Object,
}

/// What the client asked for in `Accept`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Whole,
    Table(Include),
    Metadata,
}

/// Renders answers in one form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Render {
    form: Form,
    /// Whether a watch has sent the columns already; later tables leave them out.
    columns_sent: bool,
}

const META: &str = "meta.k8s.io/v1";

/// `PartialObjectMetadata` of an object.
fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": META, "metadata": object["metadata"]})
}

impl Render {
    pub(crate) fn new(form: Form) -> Self {
        Self {
            form,
            columns_sent: false,
        }
    }

    fn table(
        resource: &Resource,
        objects: &[Value],
        include: Include,
        metadata: &Value,
        columns: bool,
    ) -> Value {
        let layout = table::layout(resource);
        let rows: Vec<Value> = objects
            .iter()
            .map(|object| {
                let mut row = json!({ "cells": layout.cells(object) });
                match include {
                    Include::Nothing => row["object"] = Value::Null,
                    Include::Metadata => row["object"] = partial(object),
                    Include::Object => row["object"] = object.clone(),
                }
                row
            })
            .collect();
        let definitions = if columns {
            layout.definitions()
        } else {
            Value::Null
        };
        json!({
            "kind": "Table", "apiVersion": META, "metadata": metadata,
            "columnDefinitions": definitions, "rows": rows,
        })
    }

    /// One object.
    pub(crate) fn object(&self, resource: &Resource, mut object: Value) -> Value {
        if resource.is_event() && self.form == Form::Whole {
            events::complete(&mut object);
        }
        match self.form {
            Form::Whole => object,
            Form::Metadata => partial(&object),
            Form::Table(include) => {
                let metadata = json!({ "resourceVersion": object["metadata"]["resourceVersion"] });
                Self::table(resource, &[object], include, &metadata, true)
            }
        }
    }

    /// A list.
    pub(crate) fn list(&self, resource: &Resource, page: Page) -> Value {
        match self.form {
            Form::Whole => {
                // Items of a typed list carry no apiVersion and kind of their own; those of custom resources do.
                let items: Vec<Value> = page
                    .items
                    .into_iter()
                    .map(|mut item| {
                        if resource.is_event() {
                            events::complete(&mut item);
                        }
                        if !resource.custom
                            && let Some(fields) = item.as_object_mut()
                        {
                            fields.remove("apiVersion");
                            fields.remove("kind");
                        }
                        item
                    })
                    .collect();
                json!({
                    "kind": format!("{}List", resource.kind), "apiVersion": resource.api_version(),
                    "metadata": page.metadata, "items": items,
                })
            }
            Form::Metadata => {
                let items: Vec<Value> = page.items.iter().map(partial).collect();
                json!({"kind": "PartialObjectMetadataList", "apiVersion": META, "metadata": page.metadata, "items": items})
            }
            Form::Table(include) => {
                Self::table(resource, &page.items, include, &page.metadata, true)
            }
        }
    }

    /// The object of a watch event.
    pub(crate) fn event(&mut self, resource: &Resource, object: &Value) -> Value {
        match self.form {
            Form::Whole => {
                let mut object = object.clone();
                if resource.is_event() {
                    events::complete(&mut object);
                }
                object
            }
            Form::Metadata => partial(object),
            Form::Table(include) => {
                let metadata = json!({ "resourceVersion": object["metadata"]["resourceVersion"] });
                let columns = !std::mem::replace(&mut self.columns_sent, true);
                Self::table(
                    resource,
                    std::slice::from_ref(object),
                    include,
                    &metadata,
                    columns,
                )
            }
        }
    }

    /// The object of a bookmark.
    pub(crate) fn bookmark(&self, object: &Value) -> Value {
        match self.form {
            Form::Whole => object.clone(),
            Form::Metadata => partial(object),
            Form::Table(_) => json!({
                "kind": "Table", "apiVersion": META, "columnDefinitions": null, "rows": [],
                "metadata": {"resourceVersion": object["metadata"]["resourceVersion"]},
            }),
        }
    }
}
