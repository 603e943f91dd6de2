//! What a client asks first: the version, the groups, their resources (in the old form and the aggregated one), and
//! the OpenAPI documents that tell kubectl which patches take `fieldValidation`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::resource::Resource;

/// Answers only creates.
struct Review {
    group: &'static str,
    plural: &'static str,
    kind: &'static str,
    namespaced: bool,
}

const REVIEWS: &[Review] = &[
    Review {
        group: "authentication.k8s.io",
        plural: "tokenreviews",
        kind: "TokenReview",
        namespaced: false,
    },
    Review {
        group: "authentication.k8s.io",
        plural: "selfsubjectreviews",
        kind: "SelfSubjectReview",
        namespaced: false,
    },
    Review {
        group: "authorization.k8s.io",
        plural: "subjectaccessreviews",
        kind: "SubjectAccessReview",
        namespaced: false,
    },
    Review {
        group: "authorization.k8s.io",
        plural: "selfsubjectaccessreviews",
        kind: "SelfSubjectAccessReview",
        namespaced: false,
    },
    Review {
        group: "authorization.k8s.io",
        plural: "localsubjectaccessreviews",
        kind: "LocalSubjectAccessReview",
        namespaced: true,
    },
];

/// The kind of a review served at `group` and `plural`.
pub(crate) fn review(group: &str, version: &str, plural: &str) -> Option<&'static str> {
    REVIEWS
        .iter()
        .find(|review| review.group == group && review.plural == plural && version == "v1")
        .map(|review| review.kind)
}

/// `/version`.
pub(crate) fn version(git_version: &str) -> Value {
    let mut numbers = git_version.trim_start_matches('v').split('.');
    json!({
        "major": numbers.next().unwrap_or(""), "minor": numbers.next().unwrap_or(""),
        "gitVersion": git_version, "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "none", "platform": "linux/amd64",
    })
}

const VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

/// Groups with their versions, in serving order; the core group is the empty name.
fn groups(resources: &[Arc<Resource>]) -> Vec<(String, Vec<String>)> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    let served = resources
        .iter()
        .map(|resource| (resource.group.as_str(), resource.version.as_str()));
    let reviews = REVIEWS.iter().map(|review| (review.group, "v1"));
    for (group, version) in served.chain(reviews) {
        match groups.iter_mut().find(|(name, _)| name == group) {
            Some((_, versions)) if versions.iter().any(|known| known == version) => {}
            Some((_, versions)) => versions.push(version.to_owned()),
            None => groups.push((group.to_owned(), vec![version.to_owned()])),
        }
    }
    groups
}

/// `/api`.
pub(crate) fn api_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

fn group_object(name: &str, versions: &[String]) -> Value {
    let version =
        |version: &String| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let all: Vec<Value> = versions.iter().map(version).collect();
    json!({"name": name, "versions": all, "preferredVersion": versions.first().map(version)})
}

/// `/apis`.
pub(crate) fn group_list(resources: &[Arc<Resource>]) -> Value {
    let groups: Vec<Value> = groups(resources)
        .iter()
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, versions)| group_object(name, versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
pub(crate) fn group(resources: &[Arc<Resource>], name: &str) -> Option<Value> {
    let all = groups(resources);
    let (name, versions) = all
        .iter()
        .find(|(found, _)| found == name && !name.is_empty())?;
    let mut object = group_object(name, versions);
    object["kind"] = json!("APIGroup");
    object["apiVersion"] = json!("v1");
    Some(object)
}

/// `/api/v1` and `/apis/GROUP/VERSION`.
pub(crate) fn resource_list(
    resources: &[Arc<Resource>],
    group: &str,
    version: &str,
) -> Option<Value> {
    let mut entries = Vec::new();
    for resource in resources
        .iter()
        .filter(|r| r.group == group && r.version == version)
    {
        entries.push(json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": VERBS, "shortNames": resource.short_names, "categories": resource.categories,
            "storageVersionHash": "",
        }));
        for (name, kind) in resource.subresources() {
            entries.push(json!({
                "name": format!("{}/{name}", resource.plural), "singularName": "",
                "namespaced": resource.namespaced, "kind": kind, "verbs": subresource_verbs(name),
                "group": subresource_group(name).0, "version": subresource_group(name).1,
            }));
        }
    }
    for review in REVIEWS
        .iter()
        .filter(|review| review.group == group && version == "v1")
    {
        entries.push(json!({
            "name": review.plural, "singularName": review.kind.to_lowercase(), "namespaced": review.namespaced,
            "kind": review.kind, "verbs": ["create"],
        }));
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    (!entries.is_empty()).then(|| {
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries})
    })
}

fn subresource_verbs(name: &str) -> &'static [&'static str] {
    if name == "status" {
        &["get", "patch", "update"]
    } else {
        &["create"]
    }
}

/// Group and version of the kind a subresource takes, where they differ from the resource's.
fn subresource_group(name: &str) -> (&'static str, &'static str) {
    if name == "eviction" {
        ("policy", "v1")
    } else {
        ("", "")
    }
}

/// `/api` or `/apis` in the aggregated form.
pub(crate) fn aggregated(resources: &[Arc<Resource>], core: bool) -> Value {
    let items: Vec<Value> = groups(resources)
        .iter()
        .filter(|(name, _)| name.is_empty() == core)
        .map(|(name, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    json!({"version": version, "freshness": "Current", "resources": aggregated_resources(resources, name, version)})
                })
                .collect();
            let metadata = if name.is_empty() { json!({}) } else { json!({ "name": name }) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn aggregated_resources(resources: &[Arc<Resource>], group: &str, version: &str) -> Vec<Value> {
    let scope = |namespaced: bool| if namespaced { "Namespaced" } else { "Cluster" };
    let stored = resources
        .iter()
        .filter(|resource| resource.group == group && resource.version == version)
        .map(|resource| {
            let subresources: Vec<Value> = resource
                .subresources()
                .into_iter()
                .map(|(name, kind)| {
                    let (kind_group, kind_version) = match subresource_group(name) {
                        ("", _) => (group, version),
                        other => other,
                    };
                    json!({
                        "subresource": name, "verbs": subresource_verbs(name),
                        "responseKind": {"group": kind_group, "version": kind_version, "kind": kind},
                    })
                })
                .collect();
            json!({
                "resource": resource.plural, "singularResource": resource.singular, "scope": scope(resource.namespaced),
                "responseKind": {"group": group, "version": version, "kind": resource.kind},
                "shortNames": resource.short_names, "categories": resource.categories,
                "verbs": VERBS, "subresources": subresources,
            })
        });
    let reviews = REVIEWS
        .iter()
        .filter(|review| review.group == group && version == "v1")
        .map(|review| {
            json!({
                "resource": review.plural, "singularResource": review.kind.to_lowercase(), "scope": scope(review.namespaced),
                "responseKind": {"group": group, "version": version, "kind": review.kind}, "verbs": ["create"],
            })
        });
    stored.chain(reviews).collect()
}

/// Path of a group version below `/`, such as `apis/apps/v1`.
fn api_path(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

/// `/openapi/v3`: where the document of each group version lies.
pub(crate) fn openapi_index(resources: &[Arc<Resource>]) -> Value {
    let mut paths = Map::new();
    for (group, versions) in groups(resources) {
        for version in versions {
            let path = api_path(&group, &version);
            let url = format!("/openapi/v3/{path}");
            paths.insert(path, json!({ "serverRelativeURL": url }));
        }
    }
    json!({ "paths": paths })
}

/// `/openapi/v3/PATH`: no schemas, but which operations check fields, so that kubectl leaves validation to the server.
pub(crate) fn openapi_document(
    resources: &[Arc<Resource>],
    path: &str,
    server_version: &str,
) -> Option<Value> {
    let mut paths = Map::new();
    for resource in resources {
        let base = api_path(&resource.group, &resource.version);
        if base != path {
            continue;
        }
        let scope = if resource.namespaced {
            "/namespaces/{namespace}"
        } else {
            ""
        };
        let operation = |action: &str| {
            let query =
                |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
            json!({
                "parameters": [query("dryRun"), query("fieldManager"), query("fieldValidation")],
                "responses": {"200": {"description": "OK"}},
                "x-kubernetes-action": action,
                "x-kubernetes-group-version-kind":
                    {"group": resource.group, "version": resource.version, "kind": resource.kind},
            })
        };
        let collection = format!("/{base}{scope}/{}", resource.plural);
        paths.insert(
            format!("{collection}/{{name}}"),
            json!({"patch": operation("patch"), "put": operation("put")}),
        );
        paths.insert(collection, json!({ "post": operation("post") }));
    }
    (!paths.is_empty()).then(|| {
        json!({
            "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": server_version},
            "paths": paths, "components": {"schemas": {}},
        })
    })
}
