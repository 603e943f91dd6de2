//! Which XIDs are switched on or off by `DP_DISABLE_HEALTHCHECKS` and `DP_ENABLE_HEALTHCHECKS`.
//!
//! Lists as in NVIDIA's plugin: separated by commas, `all` or `xids` for every XID. Two differences: to disable all and enable
//! some leaves those some, as that plugin documents it (its code then checks nothing); and `all` disables the checks that are
//! no XIDs too, which that plugin does not have.

use std::collections::BTreeSet;

/// Every XID, or some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct List {
    /// The word `all` is in it.
    everything: bool,
    /// It means every XID.
    all: bool,
    some: BTreeSet<u64>,
}

impl List {
    /// Reads a list; what is no XID goes to `unread`.
    fn parse(text: &str, unread: &mut Vec<String>) -> Self {
        let mut list = Self::default();
        for word in text.split(',').map(|word| word.trim().to_lowercase()) {
            match (word.as_str(), word.parse()) {
                ("", _) => {}
                ("all", _) => (list.everything, list.all) = (true, true),
                ("xids", _) => list.all = true,
                (_, Ok(xid)) => {
                    list.some.insert(xid);
                }
                (_, Err(_)) => unread.push(word),
            }
        }
        list
    }

    fn has(&self, xid: u64) -> bool {
        self.all || self.some.contains(&xid)
    }
}

/// What the two variables say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Xids {
    disabled: List,
    enabled: List,
}

impl Xids {
    /// From the values of the two variables, empty where they are not set; and the words that are no XIDs, which have no
    /// effect.
    pub fn new(disable: &str, enable: &str) -> (Self, Vec<String>) {
        let mut unread = Vec::new();
        let xids = Self {
            disabled: List::parse(disable, &mut unread),
            enabled: List::parse(enable, &mut unread),
        };
        (xids, unread)
    }

    /// Whether an XID is switched on or off; `None` where the policy decides. What is enabled wins over what is disabled.
    pub fn choice(&self, xid: u64) -> Option<bool> {
        if self.enabled.has(xid) {
            Some(true)
        } else {
            self.disabled.has(xid).then_some(false)
        }
    }

    /// Whether the checks that are no XIDs are disabled too.
    pub fn disable_everything(&self) -> bool {
        self.disabled.everything && !self.enabled.everything
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::Xids;

    /// Of 13, 48, 79, and 0, which is no marker of anything: those that are switched on, and those that are switched off.
    #[rstest]
    #[case("", "", &[], &[])]
    #[case("48", "", &[], &[48])]
    #[case(" 48 ,79,", "", &[], &[48, 79])]
    #[case("all", "", &[], &[0, 13, 48, 79])]
    #[case("XIDs", "", &[], &[0, 13, 48, 79])]
    #[case("", "13", &[13], &[])]
    #[case("", "all", &[0, 13, 48, 79], &[])]
    #[case("all", "xids", &[0, 13, 48, 79], &[])]
    #[case("48,79", "79", &[79], &[48])]
    #[case("all", "79,13", &[13, 79], &[0, 48])]
    #[case("0", "", &[], &[0])]
    fn choices(
        #[case] disable: &str,
        #[case] enable: &str,
        #[case] on: &[u64],
        #[case] off: &[u64],
    ) {
        let (xids, unread) = Xids::new(disable, enable);
        let chosen = |wanted| {
            let chosen = [0, 13, 48, 79].into_iter();
            chosen
                .filter(|&xid| xids.choice(xid) == Some(wanted))
                .collect::<Vec<_>>()
        };
        assert_eq!(chosen(true), on);
        assert_eq!(chosen(false), off);
        assert_eq!(unread, Vec::<String>::new());
    }

    #[rstest]
    #[case("", "", false)]
    #[case("xids", "", false)]
    #[case("all", "", true)]
    #[case("all", "79", true)]
    #[case("all", "all", false)]
    fn everything(#[case] disable: &str, #[case] enable: &str, #[case] disabled: bool) {
        let (xids, _) = Xids::new(disable, enable);
        assert_eq!(xids.disable_everything(), disabled);
    }

    #[test]
    fn words_that_are_no_xids() {
        let (xids, unread) = Xids::new("48, seventy,-1", "1.5");
        assert_eq!(unread, ["seventy", "-1", "1.5"]);
        assert_eq!(xids.choice(48), Some(false));
        assert_eq!(xids.choice(79), None);
    }
}
