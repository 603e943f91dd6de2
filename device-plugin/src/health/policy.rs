//! Which rule holds for which trouble.

use std::collections::BTreeMap;
use std::time::Duration;

use super::builtin;
use super::cause::Cause;
use super::rule::{Rule, Until};
use super::xids::Xids;

/// What each kind of trouble means: the built-in rules, a file over them, and `DP_DISABLE_HEALTHCHECKS` and
/// `DP_ENABLE_HEALTHCHECKS` over both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Time between looks at a GPU that is not well, and at all GPUs while heat matters: nothing reports that.
    pub interval: Duration,
    pub(super) rules: BTreeMap<Cause, Rule>,
    pub(super) other_xids: Rule,
    xids: Xids,
}

impl Default for Policy {
    /// The built-in rules.
    fn default() -> Self {
        Self {
            interval: builtin::INTERVAL,
            rules: builtin::rules().collect(),
            other_xids: builtin::OTHER_XIDS,
            xids: Xids::default(),
        }
    }
}

impl Policy {
    /// The same under the two environment variables.
    #[must_use]
    pub fn under(self, xids: Xids) -> Self {
        Self { xids, ..self }
    }

    /// What this kind of trouble means.
    pub fn rule(&self, cause: Cause) -> Rule {
        match cause {
            // Nothing to choose: the devices cannot be used.
            Cause::Driver | Cause::Reshaping => builtin::condition(cause),
            Cause::Xid(number) => self.xid_rule(number),
            // Not a check but a fact: a device that does not answer cannot be used.
            Cause::Lost => self.chosen(cause),
            _ if self.xids.disable_everything() => Rule::Never,
            _ => self.chosen(cause),
        }
    }

    fn chosen(&self, cause: Cause) -> Rule {
        self.rules.get(&cause).cloned().unwrap_or(Rule::Never)
    }

    fn xid_rule(&self, number: u64) -> Rule {
        let rules = [self.rules.get(&Cause::Xid(number)), Some(&self.other_xids)];
        let mut rules = rules.into_iter().flatten();
        match self.xids.choice(number) {
            None => rules.next().cloned().unwrap_or(Rule::Never),
            Some(false) => Rule::Never,
            // As NVIDIA's plugin, where an enabled XID is like any that is not ignored.
            Some(true) => rules
                .find(|rule| **rule != Rule::Never)
                .cloned()
                .unwrap_or(Rule::Unhealthy(Until::Reset)),
        }
    }

    /// Whether GPUs must be looked at again and again although nothing happened.
    pub(super) fn polls(&self) -> bool {
        self.rule(Cause::Thermal) != Rule::Never
    }
}
