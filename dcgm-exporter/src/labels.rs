//! The labels that say what a sample belongs to, in dcgm-exporter's order.

use std::fmt::{self, Write as _};

use crate::pods::Holder;

/// What an entity is.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// GPU index.
    pub gpu: u32,
    /// UUID of the GPU, on instances too.
    pub uuid: &'a str,
    /// `00000000:18:00.0`.
    pub pci_bus_id: &'a str,
    /// The N of `/dev/nvidiaN`.
    pub minor: Option<u32>,
    /// Product name.
    pub model: &'a str,
    /// Profile and id of the GPU instance, when it is one.
    pub instance: Option<(&'a str, u32)>,
}

/// How labels are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelStyle {
    /// `uuid` instead of `UUID`, as dcgm-exporter 1.x had it.
    pub old_namespace: bool,
    /// The model's blanks become dashes.
    pub replace_blanks_in_model: bool,
    /// The node's name; `None` leaves the label out.
    pub hostname: Option<String>,
}

impl LabelStyle {
    /// The labels of an entity, without braces. `texts` are the label rows of the counter file, sorted by name.
    pub fn render(&self, identity: &Identity<'_>, texts: &[(&str, String)]) -> String {
        let mut out = Labels(String::with_capacity(256));
        out.push("gpu", format_args!("{}", identity.gpu));
        out.push(
            if self.old_namespace { "uuid" } else { "UUID" },
            identity.uuid,
        );
        out.push("pci_bus_id", identity.pci_bus_id);
        if let Some(minor) = identity.minor {
            out.push("device", format_args!("nvidia{minor}"));
        }
        if self.replace_blanks_in_model {
            out.push(
                "modelName",
                identity
                    .model
                    .split_whitespace()
                    .collect::<Vec<_>>()
                    .join("-"),
            );
        } else {
            out.push("modelName", identity.model);
        }
        if let Some((profile, id)) = identity.instance {
            out.push("GPU_I_PROFILE", profile);
            out.push("GPU_I_ID", format_args!("{id}"));
        }
        if let Some(hostname) = &self.hostname {
            out.push("hostname", hostname);
        }
        for (name, text) in texts {
            out.push(name, text);
        }
        out.0
    }

    /// Appends the labels of the container that has the entity.
    pub(crate) fn push_holder(&self, labels: &mut String, holder: &Holder) {
        let (container, namespace, pod) = if self.old_namespace {
            ("container_name", "pod_namespace", "pod_name")
        } else {
            ("container", "namespace", "pod")
        };
        let mut pairs = [
            (container, &holder.container),
            (namespace, &holder.namespace),
            (pod, &holder.pod),
        ];
        pairs.sort_unstable();
        let mut out = Labels(std::mem::take(labels));
        for (name, value) in pairs {
            out.push(name, value);
        }
        *labels = out.0;
    }
}

struct Labels(String);

impl Labels {
    fn push(&mut self, name: &str, value: impl fmt::Display) {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        push_label(&mut self.0, name, value);
    }
}

/// Appends `name="value"`, escaped.
pub(crate) fn push_label(out: &mut String, name: &str, value: impl fmt::Display) {
    out.push_str(name);
    out.push_str("=\"");
    // Writing to a String cannot fail.
    let _ = write!(Escaped { out, quotes: true }, "{value}");
    out.push('"');
}

/// Appends a help text, escaped.
pub(crate) fn push_help(out: &mut String, text: &str) {
    let _ = Escaped { out, quotes: false }.write_str(text);
}

/// Escapes for the text format: backslash and newline everywhere, quotes in label values.
struct Escaped<'a> {
    out: &'a mut String,
    quotes: bool,
}

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '"' if self.quotes => self.out.push_str("\\\""),
                c => self.out.push(c),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: Identity<'_> = Identity {
        gpu: 1,
        uuid: "GPU-2222",
        pci_bus_id: "00000000:2A:00.0",
        minor: Some(3),
        model: "NVIDIA H200",
        instance: None,
    };

    fn texts() -> Vec<(&'static str, String)> {
        vec![("DCGM_FI_DRIVER_VERSION", "580.95.05".to_owned())]
    }

    #[test]
    fn a_gpu() {
        let style = LabelStyle {
            hostname: Some("n1".to_owned()),
            ..LabelStyle::default()
        };
        assert_eq!(
            style.render(&GPU, &texts()),
            r#"gpu="1",UUID="GPU-2222",pci_bus_id="00000000:2A:00.0",device="nvidia3",modelName="NVIDIA H200",hostname="n1",DCGM_FI_DRIVER_VERSION="580.95.05""#
        );
    }

    #[test]
    fn an_instance_in_the_old_namespace_without_hostname() {
        let style = LabelStyle {
            old_namespace: true,
            replace_blanks_in_model: true,
            hostname: None,
        };
        let instance = Identity {
            instance: Some(("1g.18gb", 7)),
            ..GPU
        };
        assert_eq!(
            style.render(&instance, &texts()),
            r#"gpu="1",uuid="GPU-2222",pci_bus_id="00000000:2A:00.0",device="nvidia3",modelName="NVIDIA-H200",GPU_I_PROFILE="1g.18gb",GPU_I_ID="7",DCGM_FI_DRIVER_VERSION="580.95.05""#
        );
    }

    // Sorted by name, as dcgm-exporter's attributes are (facts: its sample output).
    #[rstest::rstest]
    #[case(false, r#"gpu="1",container="main",namespace="ml",pod="t-0""#)]
    #[case(
        true,
        r#"gpu="1",container_name="main",pod_name="t-0",pod_namespace="ml""#
    )]
    fn a_container(#[case] old_namespace: bool, #[case] wanted: &str) {
        let style = LabelStyle {
            old_namespace,
            ..LabelStyle::default()
        };
        let holder = Holder {
            namespace: "ml".to_owned(),
            pod: "t-0".to_owned(),
            container: "main".to_owned(),
        };
        let mut labels = "gpu=\"1\"".to_owned();
        style.push_holder(&mut labels, &holder);
        assert_eq!(labels, wanted);
    }

    #[test]
    fn values_are_escaped() {
        let style = LabelStyle::default();
        let odd = Identity {
            model: "A\"B\\C\nD",
            minor: None,
            ..GPU
        };
        assert_eq!(
            style.render(&odd, &[]),
            r#"gpu="1",UUID="GPU-2222",pci_bus_id="00000000:2A:00.0",modelName="A\"B\\C\nD""#
        );
    }
}
