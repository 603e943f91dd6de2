//! What the calls of the kubelet are answered from. The service replaces it as a whole; a call never waits for hardware.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use configuration::plugin::ResourceName;
use gpu::Topology;

use super::metrics::Metrics;
use super::view::Shown;
use crate::allocation::{Book, Options, Ready};

/// The node as the last look at it left it. The default has no resources.
#[derive(Clone, Debug, Default)]
pub(super) struct Current {
    /// `None` before there is a configuration.
    pub(super) options: Option<Arc<Options>>,
    pub(super) ready: Arc<Ready>,
    pub(super) resources: Arc<BTreeMap<ResourceName, Shown>>,
    pub(super) topology: Arc<Topology>,
}

/// What resources share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) metrics: Metrics,
    pub(super) book: Book,
    current: Mutex<Current>,
    /// Resources that are served, and whether the kubelet knows each.
    registered: Mutex<BTreeMap<ResourceName, bool>>,
}

impl Shared {
    pub(super) fn new(metrics: Metrics, book: Book) -> Self {
        Self {
            metrics,
            book,
            current: Mutex::default(),
            registered: Mutex::default(),
        }
    }

    pub(super) fn current(&self) -> Current {
        lock(&self.current).clone()
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut Current)) {
        change(&mut lock(&self.current));
    }

    /// Whether the kubelet knows a resource; `None` when it is served no more.
    pub(super) fn registered(&self, resource: &ResourceName, is: Option<bool>) {
        let mut registered = lock(&self.registered);
        match is {
            Some(is) => {
                registered.insert(resource.clone(), is);
                self.metrics.registered(resource.as_str(), is);
            }
            None => {
                registered.remove(resource);
                self.metrics.forget(resource.as_str());
            }
        }
    }

    /// The first resource that the kubelet does not know.
    pub(super) fn unregistered(&self) -> Option<ResourceName> {
        let registered = lock(&self.registered);
        let first = registered.iter().find(|(_, is)| !**is);
        first.map(|(name, _)| name.clone())
    }
}

/// Nothing that is done under these locks leaves them half-done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
