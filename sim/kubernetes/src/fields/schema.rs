//! How the fields of a kind merge: which lists are maps by key, which are sets, which values are taken whole.
//!
//! The source is the `x-kubernetes-list-type`, `-list-map-keys`, `-map-type` and `-patch-merge-key` extensions of the
//! OpenAPI document of Kubernetes 1.34; lists without a row here are atomic, objects are granular.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::json;

/// How one field merges.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Type {
    /// A scalar, or a list or object taken whole.
    Atomic,
    /// An object with named fields; one without a row is [`Type::Deduced`].
    Struct(BTreeMap<String, Type>),
    /// An object whose keys are data, such as labels.
    Map,
    /// A list of scalars without order and repetition.
    Set,
    /// A list of objects told apart by their `keys`.
    ListMap {
        /// Fields that together name an item in server-side apply.
        keys: Vec<String>,
        /// The field a strategic merge patch goes by.
        merge_key: String,
        /// Values that a key field has when it is absent.
        defaults: BTreeMap<String, Value>,
        /// The type of an item.
        item: Box<Type>,
    },
    /// Nothing is known: objects are granular with named fields, lists and scalars atomic.
    Deduced,
    /// As [`Type::Deduced`], for the content of custom resources, where no field is known by name.
    Unknown,
}

/// A field's type as the walkers see it, with values taken into account.
impl Type {
    /// The type of the field `name` of an object of this type.
    pub(crate) fn field(&self, name: &str) -> &Type {
        const ATOMIC: &Type = &Type::Atomic;
        const DEDUCED: &Type = &Type::Deduced;
        const UNKNOWN: &Type = &Type::Unknown;
        match self {
            Type::Struct(fields) => fields.get(name).unwrap_or(DEDUCED),
            Type::Unknown => UNKNOWN,
            Type::Map | Type::Atomic => ATOMIC,
            _ => DEDUCED,
        }
    }

    /// Whether `name` is a field of this object by name, rather than a key that is data.
    pub(crate) fn names(&self) -> bool {
        matches!(self, Type::Struct(_) | Type::Deduced)
    }

    /// Whether the value is an object that merges key by key.
    pub(crate) fn is_granular_object(&self, value: &Value) -> bool {
        value.is_object() && !matches!(self, Type::Atomic | Type::Set | Type::ListMap { .. })
    }
}

fn fields<const N: usize>(fields: [(&str, Type); N]) -> Type {
    Type::Struct(
        fields
            .into_iter()
            .map(|(name, field)| (name.to_owned(), field))
            .collect(),
    )
}

fn keyed(keys: &[&str], item: Type) -> Type {
    Type::ListMap {
        keys: keys.iter().map(|&key| key.to_owned()).collect(),
        merge_key: keys.first().map(|&key| key.to_owned()).unwrap_or_default(),
        defaults: BTreeMap::new(),
        item: Box::new(item),
    }
}

/// A list of ports: the protocol is part of the key, and TCP when absent.
fn ports(key: &str) -> Type {
    Type::ListMap {
        keys: vec![key.to_owned(), "protocol".to_owned()],
        merge_key: key.to_owned(),
        defaults: BTreeMap::from([("protocol".to_owned(), Value::from("TCP"))]),
        item: Box::new(Type::Deduced),
    }
}

fn metadata() -> Type {
    fields([
        ("labels", Type::Map),
        ("annotations", Type::Map),
        ("finalizers", Type::Set),
        ("ownerReferences", keyed(&["uid"], Type::Atomic)),
        ("managedFields", Type::Atomic),
    ])
}

fn conditions() -> Type {
    keyed(&["type"], Type::Deduced)
}

fn resources() -> Type {
    fields([
        ("limits", Type::Map),
        ("requests", Type::Map),
        ("claims", keyed(&["name"], Type::Deduced)),
    ])
}

fn containers() -> Type {
    let env = fields([(
        "valueFrom",
        fields([
            ("configMapKeyRef", Type::Atomic),
            ("secretKeyRef", Type::Atomic),
            ("fieldRef", Type::Atomic),
            ("resourceFieldRef", Type::Atomic),
            ("fileKeyRef", Type::Atomic),
        ]),
    )]);
    keyed(
        &["name"],
        fields([
            ("env", keyed(&["name"], env)),
            ("ports", ports("containerPort")),
            ("resources", resources()),
            ("volumeMounts", keyed(&["mountPath"], Type::Deduced)),
            ("volumeDevices", keyed(&["devicePath"], Type::Deduced)),
        ]),
    )
}

fn pod_spec() -> Type {
    fields([
        ("containers", containers()),
        ("initContainers", containers()),
        ("ephemeralContainers", containers()),
        ("volumes", keyed(&["name"], Type::Deduced)),
        ("imagePullSecrets", keyed(&["name"], Type::Atomic)),
        ("hostAliases", keyed(&["ip"], Type::Deduced)),
        ("nodeSelector", Type::Atomic),
        ("overhead", Type::Map),
        ("resourceClaims", keyed(&["name"], Type::Deduced)),
        ("resources", resources()),
        ("schedulingGates", keyed(&["name"], Type::Deduced)),
        (
            "topologySpreadConstraints",
            keyed(&["topologyKey", "whenUnsatisfiable"], Type::Deduced),
        ),
    ])
}

fn workload() -> Type {
    fields([
        ("metadata", metadata()),
        (
            "spec",
            fields([
                ("selector", Type::Atomic),
                (
                    "template",
                    fields([("metadata", metadata()), ("spec", pod_spec())]),
                ),
            ]),
        ),
        ("status", fields([("conditions", conditions())])),
    ])
}

/// The schema of a built-in kind.
pub(crate) fn built_in(group: &str, kind: &str) -> Type {
    let of = |spec: Type, status: Type| {
        fields([("metadata", metadata()), ("spec", spec), ("status", status)])
    };
    match (group, kind) {
        ("", "Node") => of(
            // `taints` is atomic, in strategic merge patches too: kubectl taint sends the whole list.
            fields([("podCIDRs", Type::Set)]),
            fields([
                ("addresses", keyed(&["type"], Type::Deduced)),
                ("allocatable", Type::Map),
                ("capacity", Type::Map),
                ("conditions", conditions()),
            ]),
        ),
        ("", "Pod") => of(
            pod_spec(),
            fields([
                ("conditions", conditions()),
                ("hostIPs", Type::Atomic),
                ("podIPs", keyed(&["ip"], Type::Deduced)),
                ("resourceClaimStatuses", keyed(&["name"], Type::Deduced)),
            ]),
        ),
        ("", "Namespace") => of(Type::Deduced, fields([("conditions", conditions())])),
        ("", "Service") => of(
            fields([("ports", ports("port")), ("selector", Type::Atomic)]),
            fields([("conditions", conditions())]),
        ),
        ("", "ConfigMap") => fields([
            ("metadata", metadata()),
            ("data", Type::Map),
            ("binaryData", Type::Map),
        ]),
        ("", "Secret") => fields([
            ("metadata", metadata()),
            ("data", Type::Map),
            ("stringData", Type::Map),
        ]),
        ("", "ServiceAccount") => fields([
            ("metadata", metadata()),
            ("secrets", keyed(&["name"], Type::Atomic)),
        ]),
        ("", "Event") => fields([
            ("metadata", metadata()),
            ("involvedObject", Type::Atomic),
            ("related", Type::Atomic),
        ]),
        ("events.k8s.io", "Event") => fields([
            ("metadata", metadata()),
            ("regarding", Type::Atomic),
            ("related", Type::Atomic),
        ]),
        ("apps", _) => workload(),
        ("policy", "PodDisruptionBudget") => of(
            fields([("selector", Type::Atomic)]),
            fields([("conditions", conditions()), ("disruptedPods", Type::Map)]),
        ),
        ("resource.k8s.io", "ResourceSlice") => {
            of(fields([("nodeSelector", Type::Atomic)]), Type::Deduced)
        }
        ("resource.k8s.io", "ResourceClaim") => of(
            Type::Deduced,
            fields([
                ("reservedFor", keyed(&["uid"], Type::Deduced)),
                (
                    "devices",
                    keyed(
                        &["driver", "device", "pool"],
                        fields([("conditions", conditions())]),
                    ),
                ),
            ]),
        ),
        ("apiextensions.k8s.io", _) => of(
            Type::Deduced,
            fields([
                ("conditions", conditions()),
                ("storedVersions", Type::Atomic),
            ]),
        ),
        _ => fields([("metadata", metadata())]),
    }
}

/// The schema of a custom resource, read from its structural OpenAPI schema.
pub(crate) fn of_open_api(document: &Value) -> Type {
    let mut root = match convert(document) {
        Type::Struct(fields) => fields,
        _ => BTreeMap::new(),
    };
    root.insert("metadata".to_owned(), metadata());
    for free in ["spec", "status"] {
        root.entry(free.to_owned()).or_insert(Type::Unknown);
    }
    Type::Struct(root)
}

fn convert(document: &Value) -> Type {
    match json::text(document, &["type"]) {
        "object" if json::text(document, &["x-kubernetes-map-type"]) == "atomic" => Type::Atomic,
        "object" => match document["properties"].as_object() {
            Some(properties) => Type::Struct(
                properties
                    .iter()
                    .map(|(name, property)| (name.clone(), convert(property)))
                    .collect(),
            ),
            None => match json::text(document, &["additionalProperties", "type"]) {
                "string" | "integer" | "number" | "boolean" => Type::Map,
                _ => Type::Unknown,
            },
        },
        "array" => match json::text(document, &["x-kubernetes-list-type"]) {
            "set" => Type::Set,
            "map" => {
                let keys: Vec<&str> = json::list(document, &["x-kubernetes-list-map-keys"])
                    .iter()
                    .filter_map(Value::as_str)
                    .collect();
                keyed(&keys, convert(&document["items"]))
            }
            _ => Type::Atomic,
        },
        "string" | "integer" | "number" | "boolean" => Type::Atomic,
        _ => Type::Unknown,
    }
}
