//! Which XIDs make a device unhealthy, from `DP_DISABLE_HEALTHCHECKS` and `DP_ENABLE_HEALTHCHECKS`.
//!
//! Lists as in NVIDIA's plugin: separated by commas, `all` or `xids` for every XID. One difference: to disable all and enable
//! some leaves those some, as that plugin documents it; its code then checks nothing.

use std::collections::BTreeSet;

/// XIDs that come from the program on the GPU and say nothing of the GPU: 13 graphics engine exception, 31 page fault, 43 and
/// 45 channel ended, 68 video processor exception, 109 context switch timeout.
pub const IGNORED: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// Every XID, or some.
#[derive(Clone, Debug, PartialEq, Eq)]
enum List {
    All,
    Some(BTreeSet<u64>),
}

impl List {
    /// Reads a list; what is no XID goes to `unread`.
    fn parse(text: &str, unread: &mut Vec<String>) -> Self {
        let mut some = BTreeSet::new();
        let mut all = false;
        for word in text.split(',').map(|word| word.trim().to_lowercase()) {
            match (word.as_str(), word.parse()) {
                ("", _) => {}
                ("all" | "xids", _) => all = true,
                (_, Ok(xid)) => {
                    some.insert(xid);
                }
                (_, Err(_)) => unread.push(word),
            }
        }
        if all { Self::All } else { Self::Some(some) }
    }

    fn has(&self, xid: u64) -> bool {
        match self {
            Self::All => true,
            Self::Some(some) => some.contains(&xid),
        }
    }
}

/// Which XIDs matter.
#[derive(Clone, Debug, PartialEq, Eq)]
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

    /// Whether a device with this XID is unhealthy. What is enabled wins over what is disabled, and both over [`IGNORED`].
    pub fn matters(&self, xid: u64) -> bool {
        self.enabled.has(xid) || !(self.disabled.has(xid) || IGNORED.contains(&xid))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::Xids;

    /// Of 13 and 31 (ignored), 48, 79 (not), and 0, which is no marker of anything: those that matter.
    #[rstest]
    #[case("", "", &[0, 48, 79])]
    #[case("48", "", &[0, 79])]
    #[case(" 48 ,79,", "", &[0])]
    #[case("all", "", &[])]
    #[case("XIDs", "", &[])]
    #[case("", "13", &[0, 13, 48, 79])]
    #[case("", "all", &[0, 13, 31, 48, 79])]
    #[case("all", "all", &[0, 13, 31, 48, 79])]
    #[case("48,79", "79", &[0, 79])]
    #[case("all", "79,31", &[31, 79])]
    #[case("0", "", &[48, 79])]
    fn what_matters(#[case] disable: &str, #[case] enable: &str, #[case] wanted: &[u64]) {
        let (xids, unread) = Xids::new(disable, enable);
        let matter = [0, 13, 31, 48, 79]
            .into_iter()
            .filter(|&xid| xids.matters(xid));
        assert_eq!(matter.collect::<Vec<_>>(), wanted);
        assert_eq!(unread, Vec::<String>::new());
    }

    #[test]
    fn words_that_are_no_xids() {
        let (xids, unread) = Xids::new("48, seventy,-1", "1.5");
        assert_eq!(unread, ["seventy", "-1", "1.5"]);
        assert!(!xids.matters(48) && xids.matters(79));
    }
}
