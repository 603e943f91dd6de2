//! The resources served: the built-in ones as a table, those of CustomResourceDefinitions read from the definition.
//! Says what is special about each (scope, subresources, generation); must not know how they are stored.

use std::sync::Arc;

use serde_json::Value;

use crate::fields::schema::{self, Type};
use crate::json;

/// How writes of a resource treat its `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// No status subresource: what is written is stored.
    None,
    /// A status subresource; a create drops the status (`PrepareForCreate` of most kinds).
    Dropped,
    /// A status subresource; a create keeps the status, as kubelet relies on when it registers its Node.
    Kept,
}

/// One resource of one API version.
#[derive(Debug, Clone)]
pub(crate) struct Resource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) kind: String,
    pub(crate) namespaced: bool,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) status: Status,
    /// Whether `metadata.generation` counts changes outside metadata and status.
    pub(crate) generation: bool,
    /// Whether an update without resourceVersion is allowed.
    pub(crate) unconditional: bool,
    /// Whether a PUT to a name that does not exist creates it.
    pub(crate) create_on_update: bool,
    /// What a client is warned of when this version is on its way out, such as `deprecated in v1.35+`; else empty.
    pub(crate) deprecated: &'static str,
    /// Whether this comes from a CustomResourceDefinition.
    pub(crate) custom: bool,
    /// Name of the shelf the objects lie on; two versions of one resource share it.
    pub(crate) storage: String,
    /// How its fields merge.
    pub(crate) schema: Arc<Type>,
    /// The OpenAPI document of a custom resource; null for built-in ones.
    pub(crate) document: Arc<Value>,
    /// Extra columns of a CustomResourceDefinition, as in its `additionalPrinterColumns`.
    pub(crate) columns: Vec<Value>,
}

impl Resource {
    /// `group/version`, or `v1` for the core group.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `plural.group`, as messages name a resource.
    pub(crate) fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// Whether this is `plural` of `group`.
    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }

    /// Whether this serves Events, in either of their two shapes.
    pub(crate) fn is_event(&self) -> bool {
        self.storage == EVENTS
    }

    /// Subresources, with the kind each takes.
    pub(crate) fn subresources(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        if self.status != Status::None {
            found.push(("status", self.kind.clone()));
        }
        if self.is("", "pods") {
            found.push(("binding", "Binding".to_owned()));
            found.push(("eviction", "Eviction".to_owned()));
        }
        found
    }
}

/// Shelf of core/v1 and events.k8s.io/v1 Events; both versions show the same objects.
const EVENTS: &str = "events";

struct Row {
    api: &'static str,
    plural: &'static str,
    kind: &'static str,
    namespaced: bool,
    short: &'static [&'static str],
    status: Status,
    generation: bool,
    unconditional: bool,
    create_on_update: bool,
    deprecated: &'static str,
}

const fn row(api: &'static str, plural: &'static str, kind: &'static str, namespaced: bool) -> Row {
    Row {
        api,
        plural,
        kind,
        namespaced,
        short: &[],
        status: Status::None,
        generation: false,
        unconditional: true,
        create_on_update: false,
        deprecated: "",
    }
}

impl Row {
    const fn deprecated(mut self, since: &'static str) -> Self {
        self.deprecated = since;
        self
    }
    const fn short(mut self, names: &'static [&'static str]) -> Self {
        self.short = names;
        self
    }
    const fn status(mut self, status: Status) -> Self {
        self.status = status;
        self
    }
    const fn generation(mut self) -> Self {
        self.generation = true;
        self
    }
    /// `AllowUnconditionalUpdate() == false` in the kind's strategy.
    const fn conditional(mut self) -> Self {
        self.unconditional = false;
        self
    }
    const fn create_on_update(mut self) -> Self {
        self.create_on_update = true;
        self
    }
}

/// The flags are those of each kind's strategy in `k8s.io/kubernetes/pkg/registry`, version 1.34.
const BUILT_IN: &[Row] = &[
    row("v1", "nodes", "Node", false)
        .short(&["no"])
        .status(Status::Kept),
    row("v1", "pods", "Pod", true)
        .short(&["po"])
        .status(Status::Dropped)
        .generation(),
    row("v1", "events", "Event", true)
        .short(&["ev"])
        .create_on_update(),
    row("v1", "namespaces", "Namespace", false)
        .short(&["ns"])
        .status(Status::Dropped),
    row("v1", "configmaps", "ConfigMap", true).short(&["cm"]),
    row("v1", "secrets", "Secret", true),
    row("v1", "serviceaccounts", "ServiceAccount", true).short(&["sa"]),
    row("v1", "services", "Service", true)
        .short(&["svc"])
        .status(Status::Dropped),
    row("events.k8s.io/v1", "events", "Event", true)
        .short(&["ev"])
        .create_on_update(),
    row("coordination.k8s.io/v1", "leases", "Lease", true)
        .conditional()
        .create_on_update(),
    row("apps/v1", "daemonsets", "DaemonSet", true)
        .short(&["ds"])
        .status(Status::Dropped)
        .generation(),
    row("apps/v1", "deployments", "Deployment", true)
        .short(&["deploy"])
        .status(Status::Dropped)
        .generation(),
    row(
        "policy/v1",
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        true,
    )
    .short(&["pdb"])
    .status(Status::Dropped)
    .generation()
    .conditional(),
    row(
        "resource.k8s.io/v1",
        "resourceslices",
        "ResourceSlice",
        false,
    )
    .generation(),
    row("resource.k8s.io/v1", "deviceclasses", "DeviceClass", false).generation(),
    row(
        "resource.k8s.io/v1",
        "resourceclaims",
        "ResourceClaim",
        true,
    )
    .status(Status::Dropped),
    row(
        "resource.k8s.io/v1beta2",
        "resourceslices",
        "ResourceSlice",
        false,
    )
    .generation()
    .deprecated("deprecated in v1.36+, unavailable in v1.39+"),
    row(
        "resource.k8s.io/v1beta2",
        "deviceclasses",
        "DeviceClass",
        false,
    )
    .generation()
    .deprecated("deprecated in v1.36+, unavailable in v1.39+"),
    row(
        "resource.k8s.io/v1beta2",
        "resourceclaims",
        "ResourceClaim",
        true,
    )
    .status(Status::Dropped)
    .deprecated("deprecated in v1.36+, unavailable in v1.39+"),
    row(
        "resource.k8s.io/v1beta1",
        "resourceslices",
        "ResourceSlice",
        false,
    )
    .generation()
    .deprecated("deprecated in v1.35+, unavailable in v1.38+"),
    row(
        "resource.k8s.io/v1beta1",
        "deviceclasses",
        "DeviceClass",
        false,
    )
    .generation()
    .deprecated("deprecated in v1.35+, unavailable in v1.38+"),
    row(
        "resource.k8s.io/v1beta1",
        "resourceclaims",
        "ResourceClaim",
        true,
    )
    .status(Status::Dropped)
    .deprecated("deprecated in v1.35+, unavailable in v1.38+"),
    row(
        "apiextensions.k8s.io/v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        false,
    )
    .short(&["crd", "crds"])
    .status(Status::Dropped)
    .generation()
    .conditional(),
];

/// Whether there is such a kind of such a version among the built-in ones.
pub(crate) fn is_built_in(api_version: &str, kind: &str) -> bool {
    BUILT_IN
        .iter()
        .any(|row| row.api == api_version && row.kind == kind)
}

/// The built-in resources.
pub(crate) fn built_in() -> Vec<Arc<Resource>> {
    BUILT_IN
        .iter()
        .map(|row| {
            let (group, version) = row.api.split_once('/').unwrap_or(("", row.api));
            let storage = if row.plural == "events" {
                EVENTS.to_owned()
            } else {
                format!("{}.{group}", row.plural)
            };
            Arc::new(Resource {
                group: group.to_owned(),
                version: version.to_owned(),
                plural: row.plural.to_owned(),
                singular: row.kind.to_lowercase(),
                kind: row.kind.to_owned(),
                namespaced: row.namespaced,
                short_names: row.short.iter().map(|&name| name.to_owned()).collect(),
                categories: if matches!(
                    row.plural,
                    "pods" | "services" | "daemonsets" | "deployments"
                ) {
                    vec!["all".to_owned()]
                } else {
                    Vec::new()
                },
                status: row.status,
                generation: row.generation,
                unconditional: row.unconditional,
                create_on_update: row.create_on_update,
                deprecated: row.deprecated,
                custom: false,
                storage,
                schema: Arc::new(schema::built_in(group, row.kind)),
                document: Arc::default(),
                columns: Vec::new(),
            })
        })
        .collect()
}

/// The resources a CustomResourceDefinition defines: one for each version served.
pub(crate) fn of_definition(definition: &Value) -> Vec<Arc<Resource>> {
    let spec = &definition["spec"];
    let names = &spec["names"];
    let strings = |path: &str| -> Vec<String> {
        json::list(names, &[path])
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let group = json::text(spec, &["group"]);
    let plural = json::text(names, &["plural"]);
    let kind = json::text(names, &["kind"]);
    json::list(spec, &["versions"])
        .iter()
        .filter(|version| version["served"].as_bool().unwrap_or(false))
        .map(|version| {
            let has_status = json::at(version, &["subresources", "status"]).is_some();
            Arc::new(Resource {
                group: group.to_owned(),
                version: json::text(version, &["name"]).to_owned(),
                plural: plural.to_owned(),
                singular: match json::text(names, &["singular"]) {
                    "" => kind.to_lowercase(),
                    given => given.to_owned(),
                },
                kind: kind.to_owned(),
                namespaced: json::text(spec, &["scope"]) == "Namespaced",
                short_names: strings("shortNames"),
                categories: strings("categories"),
                status: if has_status {
                    Status::Dropped
                } else {
                    Status::None
                },
                generation: true,
                unconditional: false,
                create_on_update: false,
                deprecated: "",
                custom: true,
                storage: format!("{plural}.{group}"),
                schema: Arc::new(schema::of_open_api(&version["schema"]["openAPIV3Schema"])),
                document: Arc::new(version["schema"]["openAPIV3Schema"].clone()),
                columns: json::list(version, &["additionalPrinterColumns"]).to_vec(),
            })
        })
        .collect()
}
