//! What hardware trouble means for devices: which are unhealthy, why, and what makes them healthy again.
//!
//! [`Policy`] says what each kind of trouble means (a file over a built-in table); [`Health`] holds what is wrong now, a pure
//! function of what was observed: the caller watches the driver, reads [`Readings`] when [`Health::due`] says so, and shows
//! the [`Notice`]s. How devices reach the kubelet is not known here.

mod builtin;
mod cause;
mod condition;
mod early;
mod fault;
mod file;
mod notice;
mod one;
mod place;
mod policy;
mod readings;
mod relapse;
mod rule;
mod schedule;
mod state;
mod unknown;
mod xids;

pub use cause::Cause;
pub use condition::{
    CONDITION, NodeCondition, REASON_HEALTHY, REASON_PROBLEM, REASON_UNKNOWN, Status,
};
pub use notice::{EVENT_ACTION, EVENT_HEALTHY, EVENT_UNHEALTHY, Notice, Subject};
pub use policy::Policy;
pub use readings::{Readings, RecoveryAction};
pub use rule::{Check, Rule, Until};
pub use state::{Health, Observation, Reason, Standing, Verdict};
pub use xids::Xids;

#[cfg(test)]
mod tests;
