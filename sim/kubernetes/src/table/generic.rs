//! `kubectl get` of the simple kinds and of custom resources.

use serde_json::{Value, json};

use super::{Column, Layout, age, column};
use crate::json;
use crate::resource::Resource;

fn name(object: &Value) -> Value {
    json!(json::text(object, &["metadata", "name"]))
}

/// Name and creation time, as the real server shows kinds it has no printer for.
pub(super) fn plain() -> Layout {
    let columns = vec![column("Name", "string"), column("Created At", "date")];
    Layout::new(columns, |object| {
        vec![
            name(object),
            object["metadata"]["creationTimestamp"].clone(),
        ]
    })
}

pub(super) fn leases() -> Layout {
    let columns = vec![
        column("Name", "string"),
        column("Holder", "string"),
        column("Age", "string"),
    ];
    Layout::new(columns, |object| {
        vec![
            name(object),
            json!(json::text(object, &["spec", "holderIdentity"])),
            age::of(object),
        ]
    })
}

pub(super) fn namespaces() -> Layout {
    let columns = vec![
        column("Name", "string"),
        column("Status", "string"),
        column("Age", "string"),
    ];
    Layout::new(columns, |object| {
        vec![
            name(object),
            json!(json::text(object, &["status", "phase"])),
            age::of(object),
        ]
    })
}

fn entries(object: &Value, fields: &[&str]) -> Value {
    let count: usize = fields
        .iter()
        .filter_map(|field| object[*field].as_object())
        .map(serde_json::Map::len)
        .sum();
    json!(count)
}

pub(super) fn config_maps() -> Layout {
    let columns = vec![
        column("Name", "string"),
        column("Data", "integer"),
        column("Age", "string"),
    ];
    Layout::new(columns, |object| {
        vec![
            name(object),
            entries(object, &["data", "binaryData"]),
            age::of(object),
        ]
    })
}

pub(super) fn secrets() -> Layout {
    let columns = vec![
        column("Name", "string"),
        column("Type", "string"),
        column("Data", "integer"),
        column("Age", "string"),
    ];
    Layout::new(columns, |object| {
        vec![
            name(object),
            json!(json::text(object, &["type"])),
            entries(object, &["data"]),
            age::of(object),
        ]
    })
}

pub(super) fn service_accounts() -> Layout {
    let columns = vec![
        column("Name", "string"),
        column("Secrets", "integer"),
        column("Age", "string"),
    ];
    Layout::new(columns, |object| {
        vec![
            name(object),
            json!(json::list(object, &["secrets"]).len()),
            age::of(object),
        ]
    })
}

pub(super) fn resource_slices() -> Layout {
    let columns = vec![
        column("Name", "string"),
        column("Node", "string"),
        column("Driver", "string"),
        column("Pool", "string"),
        column("Age", "string"),
    ];
    Layout::new(columns, |object| {
        vec![
            name(object),
            json!(json::text(object, &["spec", "nodeName"])),
            json!(json::text(object, &["spec", "driver"])),
            json!(json::text(object, &["spec", "pool", "name"])),
            age::of(object),
        ]
    })
}

pub(super) fn resource_claims() -> Layout {
    let columns = vec![
        column("Name", "string"),
        column("State", "string"),
        column("Age", "string"),
    ];
    Layout::new(columns, |object| {
        let mut states = Vec::new();
        if json::at(object, &["metadata", "deletionTimestamp"]).is_some() {
            states.push("deleted");
        }
        if json::at(object, &["status", "allocation"]).is_none() {
            states.push("pending");
        } else {
            states.push("allocated");
            if !json::list(object, &["status", "reservedFor"]).is_empty() {
                states.push("reserved");
            }
        }
        vec![name(object), json!(states.join(",")), age::of(object)]
    })
}

/// The columns a definition asks for, with name first and, unless it has its own, age last.
pub(super) fn custom(resource: &Resource) -> Layout {
    let mut columns = vec![column("Name", "string")];
    let mut paths = Vec::new();
    for extra in &resource.columns {
        columns.push(Column {
            name: json::text(extra, &["name"]).to_owned(),
            kind: json::text(extra, &["type"]).to_owned(),
            format: json::text(extra, &["format"]).to_owned(),
            priority: extra["priority"].as_i64().unwrap_or(0),
        });
        paths.push((
            json::text(extra, &["jsonPath"]).to_owned(),
            json::text(extra, &["type"]) == "date",
        ));
    }
    if resource.columns.is_empty() {
        columns.push(column("Age", "date"));
        paths.push((".metadata.creationTimestamp".to_owned(), true));
    }
    Layout::new(columns, move |object| {
        let mut cells = vec![name(object)];
        for (path, date) in &paths {
            let steps: Vec<&str> = path.split('.').filter(|step| !step.is_empty()).collect();
            cells.push(if *date {
                json!(age::since(object, &steps))
            } else {
                json::at(object, &steps).cloned().unwrap_or(Value::Null)
            });
        }
        cells
    })
}
