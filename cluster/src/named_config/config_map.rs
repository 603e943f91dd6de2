//! Configurations as the keys of a ConfigMap, watched at the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap as Object;
use kube::{Api, Client};
use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::task::AbortHandle;

use super::Trouble;
use super::folder::text;
use crate::follow::{Seen, follow};

#[derive(Debug)]
pub(super) struct ConfigMap {
    place: String,
    seen: Receiver<Content>,
    watcher: AbortHandle,
}

impl Drop for ConfigMap {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

/// What is known of it.
#[derive(Clone, Debug, PartialEq)]
enum Content {
    Unknown { why: Option<String> },
    Absent,
    Present(BTreeMap<String, Result<Arc<str>, Trouble>>),
}

impl ConfigMap {
    pub(super) fn watch(client: Client, namespace: &str, name: &str, place: String) -> Self {
        let (sender, seen) = channel(Content::Unknown { why: None });
        let api = Api::namespaced(client, namespace);
        let watcher = tokio::spawn(keep(api, name.to_owned(), place.clone(), sender));
        Self {
            place,
            seen,
            watcher: watcher.abort_handle(),
        }
    }

    /// Returns when something is different.
    pub(super) async fn changed(&mut self) {
        if self.seen.changed().await.is_err() {
            // Only at the end of the runtime: the sender lives as long as the watch does.
            std::future::pending().await
        }
    }

    pub(super) fn names(&self) -> Result<BTreeSet<String>, Trouble> {
        let place = self.place.clone();
        match &*self.seen.borrow() {
            Content::Unknown { why } => Err(Trouble::SourceUnknown {
                place,
                why: why.clone(),
            }),
            Content::Absent => Err(Trouble::SourceUnreadable {
                place,
                why: "it does not exist".to_owned(),
            }),
            Content::Present(configs) => Ok(configs.keys().cloned().collect()),
        }
    }

    /// What is under the key `name`, one of [`ConfigMap::names`].
    pub(super) fn content(&self, name: &str) -> Result<Arc<str>, Trouble> {
        let found = match &*self.seen.borrow() {
            Content::Present(configs) => configs.get(name).cloned(),
            Content::Unknown { .. } | Content::Absent => None,
        };
        found.unwrap_or_else(|| {
            Err(Trouble::Unreadable {
                name: name.to_owned(),
                place: self.place.clone(),
                why: "it was just removed".to_owned(),
            })
        })
    }
}

async fn keep(api: Api<Object>, name: String, place: String, seen: Sender<Content>) {
    let take_in = |content: Content| {
        seen.send_if_modified(|seen| {
            let is_new = *seen != content;
            *seen = content;
            is_new
        });
    };
    follow(api, "ConfigMap", name, |heard| match heard {
        Seen::Listing => {}
        Seen::Listed(Some(object)) | Seen::Applied(object) => take_in(configs(object, &place)),
        Seen::Listed(None) | Seen::Deleted => take_in(Content::Absent),
        // What was known stays known.
        Seen::Lost(why) => {
            if matches!(*seen.borrow(), Content::Unknown { .. }) {
                take_in(Content::Unknown { why: Some(why) });
            }
        }
    })
    .await;
}

/// The keys as the kubelet would mount them: those that begin with a dot are left out, as in a folder.
fn configs(object: Object, place: &str) -> Content {
    let texts = object.data.unwrap_or_default();
    let texts = texts
        .into_iter()
        .map(|(key, text)| (key, text.into_bytes()));
    let bytes = object.binary_data.unwrap_or_default();
    let bytes = bytes.into_iter().map(|(key, bytes)| (key, bytes.0));
    let configs = texts
        .chain(bytes)
        .filter(|(key, _)| !key.starts_with('.'))
        .map(|(key, bytes)| {
            let content = text(bytes, &key, place);
            (key, content)
        });
    Content::Present(configs.collect())
}
