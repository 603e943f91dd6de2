//! What people are told of what happens: reason, action and words of each Event, and of the Node's condition.

use cluster::events::Severity;
use cluster::node::Condition;
use configuration::document::DocumentError;

use super::choice::Choice;
use super::report::Reporter;
use super::server::Failed;
use crate::health::{CONDITION, EVENT_ACTION, NodeCondition, Notice, Status};

impl Reporter {
    /// The health of a GPU or MIG device changed.
    pub(super) fn health(&mut self, notice: Notice) {
        if !notice.is_trouble() {
            return tracing::info!("{notice}");
        }
        let severity = if notice.is_warning() {
            Severity::Warning
        } else {
            Severity::Normal
        };
        self.say(severity, notice.reason(), EVENT_ACTION, notice.text);
    }

    /// The health of all GPUs is so.
    pub(super) fn gpus(&self, condition: NodeCondition) {
        self.condition(Condition {
            kind: CONDITION.to_owned(),
            holds: match condition.status {
                Status::True => Some(true),
                Status::False => Some(false),
                Status::Unknown => None,
            },
            reason: condition.reason.to_owned(),
            message: condition.message,
        });
    }

    /// The health policy cannot be used.
    pub(super) fn policy_refused(&mut self, error: &DocumentError) {
        let note = format!("{error}; the former health policy stays in force");
        let (reason, action) = ("InvalidHealthPolicy", "ReadHealthPolicy");
        self.say(Severity::Warning, reason, action, note);
    }

    /// Whether the configuration that is chosen is in force.
    pub(super) fn configuration(&mut self, choice: &Choice) {
        let trouble = choice.trouble().filter(|_| !choice.is_waiting());
        let then = if choice.in_force().is_some() {
            "the former configuration stays in force"
        } else {
            "nothing is offered until there is a good one"
        };
        let note = trouble.map(|trouble| format!("{trouble}; {then}"));
        self.lasting("InvalidConfig", "ReadConfig", note);
    }

    /// The socket of a resource failed.
    pub(super) fn not_served(&mut self, Failed { resource, reason }: Failed) {
        let note = format!("{resource} is not served for the moment: {reason}");
        let (reason, action) = ("ResourceNotServed", "ServeResource");
        self.say(Severity::Warning, reason, action, note);
    }

    /// What keeps devices from being offered as they should.
    pub(super) fn offer(&mut self, complaints: Complaints) {
        let action = "OfferDevices";
        self.lasting("NotOfferedAsConfigured", action, complaints.rules);
        self.lasting("OneResourcePerContainer", action, complaints.caution);
        self.lasting("MPSNotReady", action, complaints.mps);
        self.lasting("NotPrepared", "PrepareDevices", complaints.preparing);
    }
}

/// What there is to say about an offer.
pub(super) struct Complaints {
    /// What the rules for resources cannot do.
    pub(super) rules: Vec<String>,
    /// What a container must not ask for.
    pub(super) caution: Option<String>,
    /// Daemons that are not there.
    pub(super) mps: Vec<String>,
    /// What does not lie ready on the node.
    pub(super) preparing: Vec<String>,
}
