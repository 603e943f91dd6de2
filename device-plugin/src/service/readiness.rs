//! Whether the plugin does its work, for probes.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What probes are answered: why the plugin is not ready, if it is not.
#[derive(Debug)]
pub(super) struct Readiness(Mutex<Option<String>>);

impl Default for Readiness {
    fn default() -> Self {
        Self(Mutex::new(Some(
            "nothing has been looked at yet".to_owned(),
        )))
    }
}

impl Readiness {
    pub(super) fn reason(&self) -> Option<String> {
        self.lock().clone()
    }

    pub(super) fn set(&self, reason: Option<String>) {
        *self.lock() = reason;
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
