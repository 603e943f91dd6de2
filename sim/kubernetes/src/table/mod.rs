//! Tables for people: the columns and cells that `kubectl get` prints (`k8s.io/kubernetes/pkg/printers`).

mod age;
mod event;
mod generic;
mod node;
mod pod;
mod workload;

use serde_json::{Value, json};

use crate::resource::Resource;

/// One column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// `string`, `integer`, `date`, …
    pub(crate) kind: String,
    /// `name` for the column that names the object, else empty.
    pub(crate) format: String,
    /// Columns above 0 show with `-o wide` only.
    pub(crate) priority: i64,
}

/// The cells of an object, in the order of the columns.
type Fill = Box<dyn Fn(&Value) -> Vec<Value> + Send + Sync>;

/// The columns of a resource and how to fill them.
pub(crate) struct Layout {
    columns: Vec<Column>,
    fill: Fill,
}

impl Layout {
    fn new(
        columns: Vec<Column>,
        fill: impl Fn(&Value) -> Vec<Value> + Send + Sync + 'static,
    ) -> Self {
        Self {
            columns,
            fill: Box::new(fill),
        }
    }

    pub(crate) fn cells(&self, object: &Value) -> Vec<Value> {
        (self.fill)(object)
    }

    pub(crate) fn definitions(&self) -> Value {
        self.columns
            .iter()
            .map(|column| {
                json!({
                    "name": column.name, "type": column.kind, "format": column.format,
                    "description": "", "priority": column.priority,
                })
            })
            .collect()
    }
}

/// A column that always shows.
fn column(name: &str, kind: &str) -> Column {
    Column {
        name: name.to_owned(),
        kind: kind.to_owned(),
        format: if name == "Name" {
            "name".to_owned()
        } else {
            String::new()
        },
        priority: 0,
    }
}

/// A column of `-o wide`.
fn wide(name: &str, kind: &str) -> Column {
    Column {
        priority: 1,
        ..column(name, kind)
    }
}

/// The layout of a resource.
pub(crate) fn layout(resource: &Resource) -> Layout {
    if resource.custom {
        return generic::custom(resource);
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "nodes") => node::layout(),
        ("", "pods") => pod::layout(),
        (_, "events") => event::layout(),
        ("apps", "daemonsets") => workload::daemon_sets(),
        ("apps", "deployments") => workload::deployments(),
        ("policy", "poddisruptionbudgets") => workload::disruption_budgets(),
        ("coordination.k8s.io", "leases") => generic::leases(),
        ("", "namespaces") => generic::namespaces(),
        ("", "configmaps") => generic::config_maps(),
        ("", "secrets") => generic::secrets(),
        ("", "services") => workload::services(),
        ("", "serviceaccounts") => generic::service_accounts(),
        ("resource.k8s.io", "resourceslices") => generic::resource_slices(),
        ("resource.k8s.io", "resourceclaims") => generic::resource_claims(),
        _ => generic::plain(),
    }
}
