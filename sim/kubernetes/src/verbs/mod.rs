//! The verbs: each works on the [`State`](crate::store::State) under its lock and answers with an object or an
//! error. They know kinds through [`Resource`]; they must not know HTTP.

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod patch;
pub(crate) mod pods;
pub(crate) mod read;
pub(crate) mod update;
pub(crate) mod watch;

use std::cell::RefCell;
use std::sync::Arc;

use serde_json::Value;

use crate::clock;
use crate::fields::managers::Writer;
use crate::resource::{Resource, Status};
use crate::store::Key;
use crate::versions;

/// What a request is about.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) resource: Arc<Resource>,
    /// `None` for cluster-scoped resources and for requests across namespaces.
    pub(crate) namespace: Option<String>,
    /// Empty for collections.
    pub(crate) name: String,
    /// Empty for the object itself.
    pub(crate) subresource: String,
}

impl Target {
    pub(crate) fn key(&self) -> Key {
        (
            self.namespace.clone().unwrap_or_default(),
            self.name.clone(),
        )
    }

    pub(crate) fn is_status(&self) -> bool {
        self.subresource == "status"
    }

    /// Who writes, for `managedFields`.
    pub(crate) fn writer(&self, options: &WriteOptions) -> Writer {
        const STATUS: &[&str] = &["status"];
        const SPEC: &[&str] = &["spec"];
        Writer {
            manager: options.manager.clone(),
            api_version: self.resource.api_version(),
            subresource: self.subresource.clone(),
            now: clock::now(),
            reset: match self.resource.status {
                Status::None => &[],
                _ if self.is_status() => SPEC,
                _ => STATUS,
            },
        }
    }
}

/// The query parameters of a write.
#[derive(Debug, Clone, Default)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) manager: String,
    pub(crate) force: bool,
    /// What is done about unknown and repeated fields.
    pub(crate) validation: FieldValidation,
    /// Fields that stand twice in the body, as sentences.
    pub(crate) duplicates: Vec<String>,
    /// What the client is told beside the answer.
    pub(crate) warnings: RefCell<Vec<String>>,
}

/// `fieldValidation` of a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    /// Drop the fields.
    Ignore,
    /// Drop the fields and say so in `Warning` headers.
    #[default]
    Warn,
    /// Refuse the body.
    Strict,
}

/// A stored object as `resource` shows it.
pub(crate) fn served(resource: &Resource, stored: &Value) -> Value {
    let mut object = stored.clone();
    versions::to_served(resource, &mut object);
    object
}
