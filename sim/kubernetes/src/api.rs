//! The API without HTTP: the store, the resources, and what follows from a write.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::error::ApiError;
use crate::faults::Faults;
use crate::fields::managers::{self, Writer};
use crate::json;
use crate::registry::Registry;
use crate::resource::Resource;
use crate::server::{Options, Record};
use crate::store::{State, Store};
use crate::strategy;
use crate::typed;
use crate::verbs::Target;
use crate::verbs::delete::{self, DeleteOptions, Outcome};
use crate::versions;

/// How many requests are remembered for [`Server::requests`](crate::Server::requests).
const RECORDS: usize = 10_000;

/// Who owns the fields of objects that were there from the start.
const SEED_MANAGER: &str = "seed";

/// Everything that the requests of one server share.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) store: Arc<Store>,
    pub(crate) registry: Registry,
    pub(crate) options: Options,
    pub(crate) faults: Faults,
    pub(crate) stop: CancellationToken,
    records: Mutex<std::collections::VecDeque<Record>>,
}

impl Api {
    pub(crate) fn new(options: Options) -> Self {
        let store = Arc::new(Store::new(options.history));
        Self {
            faults: Faults::new(Arc::clone(&store)),
            store,
            registry: Registry::new(),
            options,
            stop: CancellationToken::new(),
            records: Mutex::default(),
        }
    }

    /// Runs a write on `resource`, and what follows from it.
    pub(crate) fn write<T>(&self, resource: &Resource, write: impl FnOnce(&mut State) -> T) -> T {
        self.store.write(|state| {
            let before = state.version;
            let result = write(state);
            if state.version == before {
                return result;
            }
            if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
                self.registry.refresh(state);
                for resource in self.registry.all().iter().filter(|found| found.custom) {
                    state.open(&resource.storage);
                }
            }
            delete::settle_namespaces(state);
            result
        })
    }

    /// Ends a pod that was given some grace, in place of the kubelet that is not there.
    pub(crate) fn follow_deletion(self: &Arc<Self>, target: &Target, outcome: &Outcome) {
        let (Outcome::Pending(object, grace), Some(stop_time)) =
            (outcome, self.options.pod_stop_time)
        else {
            return;
        };
        if *grace == 0 || !target.resource.is("", "pods") {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let wait = stop_time.min(Duration::from_secs(*grace));
        let options = DeleteOptions {
            grace: Some(0),
            uid: Some(json::text(object, &["metadata", "uid"]).to_owned()),
            ..DeleteOptions::default()
        };
        let (api, target) = (Arc::clone(self), target.clone());
        runtime.spawn(async move {
            tokio::select! {
                () = api.stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            // Whoever deleted the pod in the meantime did the work: not found and another uid are as good.
            let done = api.write(&target.resource, |state| {
                delete::delete(state, &target, &options)
            });
            tracing::debug!(pod = %target.name, ok = done.is_ok(), "pod stopped");
        });
    }

    /// Stores objects as they are, status included, over what is there.
    pub(crate) fn seed(&self, objects: Vec<Value>) -> Result<(), ApiError> {
        for mut object in objects {
            let api_version = json::text(&object, &["apiVersion"]).to_owned();
            let kind = json::text(&object, &["kind"]).to_owned();
            let resource = self.registry.of_kind(&api_version, &kind).ok_or_else(|| {
                ApiError::bad_request(format!(
                    "no matches for kind \"{kind}\" in version \"{api_version}\""
                ))
            })?;
            let name = json::text(&object, &["metadata", "name"]).to_owned();
            let namespace = match json::text(&object, &["metadata", "namespace"]) {
                _ if !resource.namespaced => String::new(),
                "" => "default".to_owned(),
                given => given.to_owned(),
            };
            if resource.namespaced {
                json::set(&mut object, &["metadata", "namespace"], json!(namespace));
            }
            strategy::drop_nulls(&mut object);
            object = typed::decode(&resource, object)
                .map_err(|what| {
                    ApiError::bad_request(format!("{kind} \"{name}\" cannot be decoded: {what}"))
                })?
                .object;
            json::default(&mut object, &["metadata", "uid"], json!(clock::uid()));
            json::default(
                &mut object,
                &["metadata", "creationTimestamp"],
                json!(clock::now()),
            );
            strategy::prepare_create(&resource, &mut object, true);
            let causes = crate::validation::object(&resource, &object, None);
            if !causes.is_empty() {
                return Err(ApiError::invalid(&resource, &name, &causes));
            }
            if json::at(&object, &["metadata", "managedFields"]).is_none() {
                let writer = Writer {
                    manager: SEED_MANAGER.to_owned(),
                    api_version: resource.api_version(),
                    subresource: String::new(),
                    now: clock::now(),
                    reset: &[],
                };
                managers::track_update(None, &mut object, &writer, &resource.schema);
            }
            versions::to_stored(&resource, &mut object);
            self.write(&resource, |state| {
                let missing = (String::new(), namespace.clone());
                if resource.namespaced && state.get("namespaces.", &missing).is_none() {
                    state.put("namespaces.", missing, new_namespace(&namespace));
                }
                state.put(&resource.storage, (namespace.clone(), name), object);
            });
        }
        Ok(())
    }

    /// Notes a request.
    pub(crate) fn record(&self, record: Record) {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if records.len() == RECORDS {
            records.pop_front();
        }
        records.push_back(record);
    }

    /// The requests so far.
    pub(crate) fn records(&self) -> Vec<Record> {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.iter().cloned().collect()
    }
}

/// A namespace as the real server stores it.
pub(crate) fn new_namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": name, "uid": clock::uid(), "creationTimestamp": clock::now(),
            "labels": {"kubernetes.io/metadata.name": name},
        },
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    })
}
