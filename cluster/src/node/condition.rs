//! Conditions of the part's Node: lasting states for people and for controllers that drain or repair nodes.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::Node;
use crate::{Error, request};

/// A condition as it shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What it is about, in PascalCase. A part has types of its own: two writers of one type would take turns.
    pub kind: String,
    /// Whether it holds; `None` when that is not known.
    pub holds: Option<bool>,
    /// Why, in PascalCase, for programs.
    pub reason: String,
    /// The same for people.
    pub message: String,
}

impl Node {
    /// The Node's condition of a type as the API server has it now, and since when `holds` has its value. `None` when it has none.
    /// Transient failures are retried for up to a minute.
    ///
    /// # Errors
    /// [`Error::Request`] (404 when the node is gone, 403 without the right to get it) or [`Error::TimedOut`].
    pub async fn condition(&self, kind: &str) -> Result<Option<(Condition, Timestamp)>, Error> {
        let (api, name) = (&self.shared.api, self.name());
        let node = request::retried(&format!("get node {name}"), || api.get(name)).await?;
        let conditions = node.status.and_then(|status| status.conditions);
        let mut conditions = conditions.into_iter().flatten();
        let found = conditions.find(|condition| condition.type_ == kind);
        Ok(found.map(|found| {
            let condition = Condition {
                kind: found.type_,
                holds: match found.status.as_str() {
                    "True" => Some(true),
                    "False" => Some(false),
                    _ => None,
                },
                reason: found.reason.unwrap_or_default(),
                message: found.message.unwrap_or_default(),
            };
            let since = found.last_transition_time.map(|Time(since)| since);
            (condition, since.unwrap_or_else(Timestamp::now))
        }))
    }

    /// Writes a condition, by one patch of the Node's status that touches no other condition. `since` is when `holds` took its
    /// value. Transient failures are retried for up to a minute.
    ///
    /// Needs the verb `patch` on `nodes/status`. The caller keeps what it wrote, and writes nothing when nothing changed.
    ///
    /// # Errors
    /// [`Error::Request`] (404 when the node is gone, 403 without the right) or [`Error::TimedOut`].
    pub async fn set_condition(
        &self,
        condition: &Condition,
        since: Timestamp,
    ) -> Result<(), Error> {
        let (api, name) = (&self.shared.api, self.name());
        let body = json!({ "status": { "conditions": [{
            "type": condition.kind,
            "status": match condition.holds {
                Some(true) => "True",
                Some(false) => "False",
                None => "Unknown",
            },
            "reason": condition.reason,
            "message": condition.message,
            "lastHeartbeatTime": Time(Timestamp::now()),
            "lastTransitionTime": Time(since),
        }] } });
        let params = PatchParams::default();
        // Conditions are a list keyed by their type, which only this kind of patch knows.
        let patch = Patch::Strategic(&body);
        let what = format!("patch the status of node {name}");
        request::retried(&what, || api.patch_status(name, &params, &patch)).await?;
        Ok(())
    }
}
