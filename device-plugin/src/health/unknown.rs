//! GPUs that the driver lists and that have never described themselves, since they were lost before anybody asked: nothing can
//! be offered of them, so there is nothing to withdraw, but people have to hear of them.

use std::collections::BTreeMap;
use std::time::Instant;

use super::cause::Cause;
use super::fault::Fault;
use super::notice::{Notice, Subject};
use super::policy::Policy;
use super::rule::Rule;
use crate::hardware::Inventory;

/// Their faults, by place in the driver's list.
#[derive(Clone, Debug, Default)]
pub(super) struct Unknown(BTreeMap<u32, Fault>);

impl Unknown {
    /// The node's GPUs are so now.
    pub(super) fn observe(
        &mut self,
        inventory: &Inventory,
        policy: &Policy,
        now: Instant,
        notices: &mut Vec<Notice>,
    ) {
        let now_known = |index: &u32| inventory.unknown().all(|(unknown, _)| unknown != *index);
        for (index, fault) in self.0.extract_if(.., |index, _| now_known(index)) {
            notices.push(Notice::over(Subject::Unknown { index }, &fault, "over"));
        }
        let Rule::Unhealthy(until) = policy.rule(Cause::Lost) else {
            return;
        };
        for (index, trouble) in inventory.unknown() {
            self.0.entry(index).or_insert_with(|| {
                let mut fault = Fault::new(Cause::Lost, None, until.clone(), now);
                fault.detail = Some(trouble.text.clone());
                notices.push(Notice::begun(Subject::Unknown { index }, &fault));
                fault
            });
        }
    }

    /// Another policy holds.
    pub(super) fn policy_changed(&mut self, policy: &Policy, notices: &mut Vec<Notice>) {
        match policy.rule(Cause::Lost) {
            Rule::Unhealthy(until) => {
                for fault in self.0.values_mut() {
                    fault.until = until.clone();
                }
            }
            Rule::Never => {
                for (index, fault) in std::mem::take(&mut self.0) {
                    let subject = Subject::Unknown { index };
                    notices.push(Notice::over(subject, &fault, "of no meaning any more"));
                }
            }
        }
    }

    pub(super) fn faults(&self) -> impl Iterator<Item = (Subject, &Fault)> {
        let faults = self.0.iter();
        faults.map(|(index, fault)| (Subject::Unknown { index: *index }, fault))
    }
}
