//! What the service works by: a configuration file, and the flags that win over it.

use std::sync::Arc;

use configuration::document::DocumentError;
use configuration::plugin::{DiscoveryStrategy, Flags, Imex, Notice, PluginFile, SharingKind};

use crate::allocation::{Options, OptionsError};
use crate::resources::Rules;

/// A configuration that can come into force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The file under the flags.
    pub(super) file: PluginFile,
    pub(crate) rules: Rules,
    pub(super) options: Arc<Options>,
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A fault at a place of the file.
    #[error(transparent)]
    File(#[from] DocumentError),
    /// Settings that exclude each other, or lack something.
    #[error("{name}: {source}")]
    Options {
        /// File or configuration, as the user named it.
        name: String,
        /// What is wrong.
        source: OptionsError,
    },
    /// Hardware that is found in ways that are not known here.
    #[error(
        "{name}: deviceDiscoveryStrategy (--device-discovery-strategy) {strategy} is not supported: devices are found through the driver library, use auto or nvml"
    )]
    Discovery {
        /// File or configuration, as the user named it.
        name: String,
        /// The strategy.
        strategy: &'static str,
    },
}

impl Settings {
    /// From the text of a configuration, empty when there is none. `name` is what errors and notices call it.
    pub(super) fn new(
        name: &str,
        text: &[u8],
        flags: &Flags,
        imex: &Imex,
    ) -> Result<(Self, Vec<Notice>), SettingsError> {
        let (file, notices) = PluginFile::parse(name, text)?;
        let file = file.under(flags.clone(), imex.clone());
        let name = || name.to_owned();
        match file.flags.discovery_strategy {
            None | Some(DiscoveryStrategy::Auto | DiscoveryStrategy::Nvml) => {}
            Some(other) => {
                return Err(SettingsError::Discovery {
                    name: name(),
                    strategy: other.word(),
                });
            }
        }
        let options = Options::new(&file).map_err(|source| SettingsError::Options {
            name: name(),
            source,
        })?;
        let settings = Self {
            rules: Rules::new(None, file.clone()),
            options: Arc::new(options),
            file,
        };
        Ok((settings, notices))
    }

    /// Whether devices are shared by MPS.
    pub(super) fn uses_mps(&self) -> bool {
        let sharing = self.file.sharing.as_ref();
        sharing.is_some_and(|sharing| sharing.kind == SharingKind::Mps)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use gpu::labels::MigStrategy;
    use rstest::rstest;

    use super::*;

    #[test]
    fn flags_win_over_the_file() {
        let flags = Flags {
            mig_strategy: Some(MigStrategy::Single),
            ..Flags::default()
        };
        let text = b"flags: {migStrategy: mixed, plugin: {passDeviceSpecs: true}}\nextra: 1";
        let (settings, notices) = Settings::new("f", text, &flags, &Imex::default()).unwrap();
        assert_eq!(settings.rules.strategy, MigStrategy::Single);
        assert!(settings.options.device_specs);
        assert_eq!(notices.len(), 1);
    }

    #[rstest]
    #[case("version: v2", "f:1:10: version \"v2\" is not known: use v1")]
    #[case(
        "flags: {deviceDiscoveryStrategy: tegra}",
        "f: deviceDiscoveryStrategy (--device-discovery-strategy) tegra is not supported: devices are found through the driver library, use auto or nvml"
    )]
    #[case(
        "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}",
        "f: sharing by MPS needs mpsRoot (--mps-root): the folder on the host that the MPS daemon uses, for example /run/nvidia/mps"
    )]
    fn faults(#[case] text: &str, #[case] wanted: &str) {
        let error = Settings::new("f", text.as_bytes(), &Flags::default(), &Imex::default());
        assert_eq!(error.unwrap_err().to_string(), wanted);
    }
}
