//! The kernel's table of capability minors: which `/dev/nvidia-caps/nvidia-cap<N>` opens which GPU or compute instance.

use std::collections::BTreeMap;

use crate::{Error, Root};

const TABLE: &str = "/proc/driver/nvidia-caps/mig-minors";

/// `gpu<minor>/gi<id>[/ci<id>]/access` → N. The table covers all ids that the driver can give, so it changes only with the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    minors: BTreeMap<Box<str>, u32>,
}

impl Capabilities {
    pub(super) fn read(node: &Root) -> Result<Self, Error> {
        let table = node.read(TABLE)?;
        Ok(Self::parse(table.as_deref().unwrap_or_default()))
    }

    /// Lines of `<capability> <minor>`. What is no such line cannot be asked for either, so it is passed over: a driver that adds
    /// lines of another form must not cost the node its MIG devices.
    fn parse(table: &str) -> Self {
        let entry = |line: &str| {
            let (capability, minor) = line.trim().split_once(' ')?;
            Some((capability.into(), minor.trim().parse().ok()?))
        };
        Self {
            minors: table.lines().filter_map(entry).collect(),
        }
    }

    /// The minor of a capability.
    pub(super) fn minor(&self, capability: &str) -> Option<u32> {
        self.minors.get(capability).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("gpu0/gi0/access", Some(3))]
    #[case("gpu0/gi0/ci0/access", Some(4))]
    #[case("gpu1/gi2/ci0/access", Some(157))]
    #[case("gpu1/gi2/access", None)]
    #[case("gpu2/gi0/access", None)]
    #[case("gpu3/gi0/access", None)]
    #[case("gpu4/gi0/access", None)]
    #[case("gpu5/gi0/access", Some(678))]
    fn entries_are_found_by_name(#[case] capability: &str, #[case] minor: Option<u32>) {
        let table = "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n\ngpu1/gi2/ci0/access 157\n\
                     gpu2/gi0/access\ngpu3/gi0/access x\ngpu4/gi0/access -3\n  gpu5/gi0/access   678  \n";
        assert_eq!(Capabilities::parse(table).minor(capability), minor);
    }

    proptest! {
        #[test]
        fn no_table_breaks_it(table in "([a-z0-9/]{0,9}[ \t]?[0-9a-f-]{0,12}\n?){0,9}") {
            let capabilities = Capabilities::parse(&table);
            prop_assert!(capabilities.minors.len() <= table.lines().count());
        }
    }
}
