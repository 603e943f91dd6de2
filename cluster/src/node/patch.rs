//! What a part may change about its Node: labels, annotations, taints, schedulability.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};

use super::Node;
use super::state::{NodeState, Observed, merge};
use crate::{Error, request};

/// How often a change of taints is tried when others change the node at the same time.
const CONFLICT_TRIES: u32 = 5;

/// A label or annotation as it shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    key: String,
    value: Option<String>,
}

impl Change {
    /// `key` shall have `value`.
    pub fn set(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            value: Some(value.into()),
        }
    }

    /// `key` shall not be there.
    pub fn remove(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            value: None,
        }
    }

    fn differs(&self, from: &BTreeMap<String, String>) -> bool {
        from.get(&self.key) != self.value.as_ref()
    }
}

impl Node {
    /// Sets and removes labels. No request is made when the node already has them so.
    ///
    /// Answers whether a request was made. Transient failures are retried for up to a minute.
    ///
    /// # Errors
    /// [`Error::Request`] (404 when the node is gone, 403 without the right to patch it, 422 for an illegal value) or
    /// [`Error::TimedOut`].
    pub async fn patch_labels(&self, changes: &[Change]) -> Result<bool, Error> {
        self.patch_metadata("labels", changes, |state| &state.labels)
            .await
    }

    /// Sets and removes annotations, like [`Node::patch_labels`].
    ///
    /// # Errors
    /// As [`Node::patch_labels`].
    pub async fn patch_annotations(&self, changes: &[Change]) -> Result<bool, Error> {
        self.patch_metadata("annotations", changes, |state| &state.annotations)
            .await
    }

    async fn patch_metadata(
        &self,
        map: &str,
        changes: &[Change],
        of: impl Fn(&NodeState) -> &BTreeMap<String, String>,
    ) -> Result<bool, Error> {
        let seen = self.latest();
        let needed: Map<String, Value> = changes
            .iter()
            .filter(|change| seen.state().is_none_or(|state| change.differs(of(state))))
            .map(|change| (change.key.clone(), change.value.clone().into()))
            .collect();
        if needed.is_empty() {
            return Ok(false);
        }
        self.patch(&json!({ "metadata": { map: needed } })).await?;
        Ok(true)
    }

    /// Marks the node unschedulable or schedulable again; answers whether that was a change.
    ///
    /// # Errors
    /// As [`Node::patch_labels`].
    pub async fn set_unschedulable(&self, unschedulable: bool) -> Result<bool, Error> {
        if self
            .latest()
            .state()
            .is_some_and(|state| state.unschedulable == unschedulable)
        {
            return Ok(false);
        }
        // `null` removes the field, as `kubectl uncordon` does.
        let value = if unschedulable {
            Value::Bool(true)
        } else {
            Value::Null
        };
        self.patch(&json!({ "spec": { "unschedulable": value } }))
            .await?;
        Ok(true)
    }

    /// Puts `taint` on the node, in place of one with the same key and effect; answers whether that was a change.
    ///
    /// # Errors
    /// As [`Node::patch_labels`], and a 409 when the node was changed by others on every try.
    pub async fn add_taint(&self, taint: &Taint) -> Result<bool, Error> {
        self.edit_taints(|taints| {
            if taints.contains(taint) {
                return false;
            }
            taints.retain(|other| other.key != taint.key || other.effect != taint.effect);
            taints.push(taint.clone());
            true
        })
        .await
    }

    /// Removes the taints with `key`, whatever their effect; answers whether there were any.
    ///
    /// # Errors
    /// As [`Node::add_taint`].
    pub async fn remove_taint(&self, key: &str) -> Result<bool, Error> {
        self.edit_taints(|taints| {
            let before = taints.len();
            taints.retain(|taint| taint.key != key);
            taints.len() != before
        })
        .await
    }

    /// Taints are one atomic list to the API server: a change replaces it whole, so it carries the version it was decided
    /// on, and is decided anew when that version is no longer the last.
    async fn edit_taints(&self, edit: impl Fn(&mut Vec<Taint>) -> bool) -> Result<bool, Error> {
        let mut tries = 1;
        loop {
            let state = match self.latest() {
                Observed::Present(state) if tries == 1 => state,
                _ => self.read().await?,
            };
            let mut taints = state.taints.clone();
            if !edit(&mut taints) {
                return Ok(false);
            }
            let body = json!({
                "metadata": { "resourceVersion": state.resource_version },
                "spec": { "taints": taints },
            });
            match self.patch(&body).await {
                Ok(()) => return Ok(true),
                Err(error) if error.is_conflict() && tries < CONFLICT_TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    async fn read(&self) -> Result<NodeState, Error> {
        let (api, name) = (&self.shared.api, self.name());
        let node = request::retried(&format!("get node {name}"), || api.get(name)).await?;
        let state = NodeState::from(node);
        self.take_in(state.clone());
        Ok(state)
    }

    async fn patch(&self, body: &Value) -> Result<(), Error> {
        let (api, name) = (&self.shared.api, self.name());
        let what = format!("patch node {name}");
        let params = PatchParams::default();
        let patch = Patch::Merge(body);
        let node = request::retried(&what, || api.patch(name, &params, &patch)).await?;
        self.take_in(node.into());
        Ok(())
    }

    fn take_in(&self, state: NodeState) {
        self.shared
            .seen
            .send_if_modified(|seen| merge(seen, Observed::Present(state)));
    }
}
