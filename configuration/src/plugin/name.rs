//! Names of extended resources: `nvidia.com/` and a DNS subdomain.

use std::fmt;
use std::str::FromStr;

/// Names without it get it, as in NVIDIA's plugin.
const VENDOR: &str = "nvidia.com/";

/// The longest name a resource may have there, vendor included.
const MAX_NAME: usize = 63;

/// What a resource is called on the node: `nvidia.com/gpu`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceName(String);

/// The text is no resource name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// Too long.
    #[error("{0:?} with its vendor {VENDOR} has {1} characters; {MAX_NAME} are allowed")]
    Long(String, usize),
    /// Not a subdomain.
    #[error(
        "{0:?} is no resource name: after {VENDOR} use lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit"
    )]
    Characters(String),
}

impl ResourceName {
    /// The name with its vendor.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What follows `nvidia.com/`.
    pub fn base(&self) -> &str {
        self.0.strip_prefix(VENDOR).unwrap_or(&self.0)
    }

    /// `<name>.shared`, the name of a shared resource under `renameByDefault`.
    ///
    /// # Errors
    /// [`BadName::Long`].
    pub fn shared(&self) -> Result<Self, BadName> {
        format!("{}.shared", self.0).parse()
    }
}

impl FromStr for ResourceName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let base = text.strip_prefix(VENDOR).unwrap_or(text);
        let length = VENDOR.len() + base.len();
        if length > MAX_NAME {
            return Err(BadName::Long(base.chars().take(MAX_NAME).collect(), length));
        }
        let edge = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let label = |label: &str| {
            let bytes = label.as_bytes();
            bytes.first().is_some_and(|&c| edge(c))
                && bytes.last().is_some_and(|&c| edge(c))
                && bytes.iter().all(|&c| edge(c) || c == b'-')
        };
        if !base.split('.').all(label) {
            return Err(BadName::Characters(text.to_owned()));
        }
        Ok(Self(format!("{VENDOR}{base}")))
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::{BadName, ResourceName};

    #[rstest]
    #[case("gpu", "nvidia.com/gpu")]
    #[case("nvidia.com/gpu", "nvidia.com/gpu")]
    #[case("mig-1g.10gb.me.all", "nvidia.com/mig-1g.10gb.me.all")]
    // 11 + 52 = 63.
    #[case(
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "nvidia.com/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    )]
    fn good(#[case] text: &str, #[case] wanted: &str) {
        let name: ResourceName = text.parse().unwrap();
        assert_eq!(name.as_str(), wanted);
        assert_eq!(format!("nvidia.com/{}", name.base()), wanted);
    }

    #[rstest]
    fn bad(
        #[values(
            "",
            "nvidia.com/",
            "amd.com/gpu",
            "nvidia.com/x/y",
            "GPU",
            "a_b",
            "-a",
            "a-",
            "a..b",
            "a."
        )]
        text: &str,
    ) {
        assert_eq!(
            text.parse::<ResourceName>(),
            Err(BadName::Characters(text.to_owned()))
        );
    }

    #[test]
    fn long() {
        let name: ResourceName = "a".repeat(52).parse().unwrap();
        assert_eq!(
            name.shared(),
            Err(BadName::Long(format!("{}.shared", "a".repeat(52)), 70))
        );
        assert_eq!(
            "a".repeat(53).parse::<ResourceName>(),
            Err(BadName::Long("a".repeat(53), 64))
        );
    }

    #[test]
    fn shared() {
        let name: ResourceName = "gpu".parse().unwrap();
        assert_eq!(name.shared().unwrap().as_str(), "nvidia.com/gpu.shared");
    }
}
