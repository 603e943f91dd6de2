//! The Node condition: one line about the health of all GPUs, for `kubectl describe node` and for programs that drain nodes.

use std::fmt::Write as _;

use super::cause::Cause;
use super::state::Health;

/// Type of the condition. As in node-problem-detector, `True` says that there is a problem.
pub const CONDITION: &str = "GPUProblem";
/// Reason while all GPUs are healthy.
pub const REASON_HEALTHY: &str = "GPUsAreHealthy";
/// Reason while something is unhealthy.
pub const REASON_PROBLEM: &str = "GPUsAreUnhealthy";
/// Reason before the driver was ever seen.
pub const REASON_UNKNOWN: &str = "NoGPUSeen";

/// The most bytes of the message. The API sets no limit; a Node is read by everybody.
const MAX_MESSAGE: usize = 1024;

/// Status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// There is a problem.
    True,
    /// There is none.
    False,
    /// Nothing is known yet.
    Unknown,
}

impl Status {
    /// As in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// What the Node condition should say. It changes only when health does: counts are not in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    /// Whether there is a problem.
    pub status: Status,
    /// Why, for programs.
    pub reason: &'static str,
    /// Why, for people.
    pub message: String,
}

impl Health {
    /// The Node condition as it should be now.
    pub fn condition(&self) -> NodeCondition {
        let problems = self.standing().into_iter();
        let problems: Vec<String> = problems
            // A wanted change is no problem.
            .filter(|fault| fault.cause != Cause::Reshaping)
            .map(|fault| format!("{}: {}", fault.subject, fault.cause))
            .collect();
        if problems.is_empty() {
            let (status, reason, message) = match self.gpus() {
                0 => (Status::Unknown, REASON_UNKNOWN, "no GPU has been seen yet"),
                _ => (Status::False, REASON_HEALTHY, "all GPUs are healthy"),
            };
            return NodeCondition {
                status,
                reason,
                message: message.to_owned(),
            };
        }
        NodeCondition {
            status: Status::True,
            reason: REASON_PROBLEM,
            message: listed(&problems),
        }
    }
}

/// As many as there is room for, and how many more there are.
fn listed(problems: &[String]) -> String {
    let mut message = String::new();
    for (place, problem) in problems.iter().enumerate() {
        // Room for the words about the rest.
        if message.len() + problem.len() + 40 > MAX_MESSAGE && place > 0 {
            let _ = write!(message, "; and {} more", problems.len() - place);
            break;
        }
        if place > 0 {
            message.push_str("; ");
        }
        message.push_str(problem);
    }
    message
}
