//! Names of devices: `vendor.com/class=device`, and which characters each part may have.

use std::fmt;

/// A name that container runtimes refuse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part} {name:?} is no CDI name: {rule}")]
pub struct NameError {
    /// `vendor`, `class` or `device`.
    pub part: &'static str,
    /// The name.
    pub name: String,
    /// The rule that it breaks.
    pub rule: &'static str,
}

/// A vendor and a class of its devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    vendor: String,
    class: String,
}

impl Kind {
    /// The kind of these names, when they are ones: letters, digits, `_`, `-` and `.`, with a letter at the start and a letter or
    /// digit at the end.
    pub fn new(vendor: &str, class: &str) -> Result<Self, NameError> {
        check_part("vendor", vendor)?;
        check_part("class", class)?;
        Ok(Self {
            vendor: vendor.to_owned(),
            class: class.to_owned(),
        })
    }

    /// `vendor.com`.
    pub fn vendor(&self) -> &str {
        &self.vendor
    }

    /// `class`.
    pub fn class(&self) -> &str {
        &self.class
    }

    /// `vendor.com/class=device`: what the kubelet and pods call a device.
    pub fn device(&self, name: &str) -> String {
        format!("{self}={name}")
    }

    /// The file of the spec: `vendor.com-class.json`.
    pub fn file_name(&self) -> String {
        format!("{}-{}.json", self.vendor, self.class)
    }

    /// The file of a spec that lives as long as what `id` names, a claim for instance: `vendor.com-class_id.json`.
    pub fn transient_file_name(&self, id: &str) -> String {
        format!(
            "{}-{}_{}.json",
            self.vendor,
            self.class,
            id.replace('/', "_")
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.vendor, self.class)
    }
}

impl std::str::FromStr for Kind {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (vendor, class) = text.split_once('/').ok_or_else(|| NameError {
            part: "kind",
            name: text.to_owned(),
            rule: "it is written vendor/class",
        })?;
        Self::new(vendor, class)
    }
}

/// Whether runtimes take this as the name of a device: letters, digits, `_`, `-`, `.` and `:`, with a letter or digit at both ends.
pub fn check_device_name(name: &str) -> Result<(), NameError> {
    check("device", name, u8::is_ascii_alphanumeric, b"_-.:")
}

fn check_part(part: &'static str, name: &str) -> Result<(), NameError> {
    check(part, name, u8::is_ascii_alphabetic, b"_-.")
}

fn check(
    part: &'static str,
    name: &str,
    first: fn(&u8) -> bool,
    inside: &[u8],
) -> Result<(), NameError> {
    let refuse = |rule| {
        Err(NameError {
            part,
            name: name.to_owned(),
            rule,
        })
    };
    let bytes = name.as_bytes();
    let (Some(start), Some(end)) = (bytes.first(), bytes.last()) else {
        return refuse("it is empty");
    };
    if !first(start) {
        return refuse(if first(&b'0') {
            "it starts with a letter or digit"
        } else {
            "it starts with a letter"
        });
    }
    if !end.is_ascii_alphanumeric() {
        return refuse("it ends with a letter or digit");
    }
    if bytes
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || inside.contains(byte))
    {
        return Ok(());
    }
    refuse(if inside.contains(&b':') {
        "it has letters, digits, '_', '-', '.' and ':' only"
    } else {
        "it has letters, digits, '_', '-' and '.' only"
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c", true)]
    #[case("0", true)]
    #[case("0:1", true)]
    #[case("all", true)]
    #[case("a.b_c", true)]
    #[case("", false)]
    #[case("-a", false)]
    #[case("a-", false)]
    #[case("0:", false)]
    #[case("a/b", false)]
    #[case("a=b", false)]
    #[case("ä", false)]
    #[case("aä", false)]
    #[case("a b", false)]
    fn device_names(#[case] name: &str, #[case] taken: bool) {
        assert_eq!(check_device_name(name).is_ok(), taken, "{name:?}");
    }

    #[rstest]
    #[case("k8s.device-plugin.nvidia.com/gpu", true)]
    #[case("k8s.device-plugin.nvidia.com/imex-channel", true)]
    #[case("a/b", true)]
    #[case("a/b.c", true)]
    #[case("a", false)]
    #[case("/gpu", false)]
    #[case("a/", false)]
    #[case("8s.com/gpu", false)]
    #[case("a/0", false)]
    #[case("a./gpu", false)]
    #[case("a/g:u", false)]
    #[case("a/b/c", false)]
    fn kinds(#[case] text: &str, #[case] taken: bool) {
        let kind: Result<Kind, _> = text.parse();
        assert_eq!(kind.is_ok(), taken, "{text:?}: {kind:?}");
        if let Ok(kind) = kind {
            assert_eq!(kind.to_string(), text);
        }
    }

    #[test]
    fn what_is_made_of_a_kind() {
        let kind = Kind::new("k8s.device-plugin.nvidia.com", "gpu").unwrap();
        assert_eq!(kind.device("0:1"), "k8s.device-plugin.nvidia.com/gpu=0:1");
        assert_eq!(kind.file_name(), "k8s.device-plugin.nvidia.com-gpu.json");
        assert_eq!(
            kind.transient_file_name("claim/a"),
            "k8s.device-plugin.nvidia.com-gpu_claim_a.json"
        );
    }

    #[test]
    fn a_refusal_says_which_rule() {
        let error = Kind::new("k8s.nvidia.com", "0gpu").unwrap_err();
        assert_eq!(
            error.to_string(),
            "class \"0gpu\" is no CDI name: it starts with a letter"
        );
    }
}
