//! The resources that are served right now: the built-in ones and those of the definitions stored.

use std::sync::{Arc, PoisonError, RwLock};

use crate::resource::{self, Resource};
use crate::store::State;

/// Shelf of the definitions.
const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// The resources, readable while a definition is added.
#[derive(Debug)]
pub(crate) struct Registry {
    built_in: Vec<Arc<Resource>>,
    custom: RwLock<Vec<Arc<Resource>>>,
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self {
            built_in: resource::built_in(),
            custom: RwLock::default(),
        }
    }

    /// Reads the definitions again.
    pub(crate) fn refresh(&self, state: &State) {
        let found = state
            .shelf(DEFINITIONS)
            .into_iter()
            .flat_map(|shelf| shelf.objects.values())
            .flat_map(|definition| resource::of_definition(definition))
            .collect();
        *self.custom.write().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// Everything served, built-in first.
    pub(crate) fn all(&self) -> Vec<Arc<Resource>> {
        let custom = self.custom.read().unwrap_or_else(PoisonError::into_inner);
        self.built_in.iter().chain(custom.iter()).cloned().collect()
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.all().into_iter().find(|resource| {
            resource.group == group && resource.version == version && resource.plural == plural
        })
    }

    /// The resource that an object with this `apiVersion` and `kind` belongs to.
    pub(crate) fn of_kind(&self, api_version: &str, kind: &str) -> Option<Arc<Resource>> {
        self.all()
            .into_iter()
            .find(|resource| resource.kind == kind && resource.api_version() == api_version)
    }
}
