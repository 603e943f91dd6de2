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
    /// Resources that are served or are to be, and whether the kubelet knows each.
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

    /// Whether the kubelet knows a resource.
    pub(super) fn registered(&self, resource: &ResourceName, is: bool) {
        lock(&self.registered).insert(resource.clone(), is);
        self.metrics.registered(resource.as_str(), is);
    }

    /// These resources are served or are to be, and no others. One that is new is not known to the kubelet.
    pub(super) fn serving<'a>(&self, resources: impl Iterator<Item = &'a ResourceName>) {
        let mut registered = lock(&self.registered);
        let mut former = std::mem::take(&mut *registered);
        for name in resources {
            let known = former.remove(name);
            if known.is_none() {
                self.metrics.registered(name.as_str(), false);
            }
            registered.insert(name.clone(), known.unwrap_or(false));
        }
        for name in former.keys() {
            self.metrics.forget(name.as_str());
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
