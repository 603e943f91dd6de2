//! What to label and how: from flags, the configuration file shared with the device plugin, and defaults, in that order.
//!
//! The file is `version: v1` of the NVIDIA device plugin. Of it this part reads the flags that concern it and `sharing`,
//! because replicas and the `-SHARED` suffix are labels.

use std::path::PathBuf;

use configuration::document::DocumentError;
use configuration::plugin::{self, Notice, PluginFile, SharingKind};
use gpu::labels::{MigStrategy, SharedResources, Sharing};

use crate::duration::{BadDuration, Interval};

/// Where the worker of node feature discovery looks.
pub const DEFAULT_OUTPUT: &str = "/etc/kubernetes/node-feature-discovery/features.d/gfd";
const DEFAULT_MACHINE_TYPE: &str = "/sys/class/dmi/id/product_name";
const DEFAULT_INTERVAL: Interval = Interval::Every(std::time::Duration::from_secs(60));

/// What feature discovery does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How MIG devices are offered.
    pub strategy: MigStrategy,
    /// How GPUs are shared.
    pub sharing: Sharing,
    /// Whether a driver that is not there at the start is an error.
    pub fail_on_init_error: bool,
    /// Label once and end.
    pub oneshot: bool,
    /// Whether the time of the start is a label.
    pub timestamp: bool,
    /// How long to wait between two looks when nothing happens.
    pub interval: Interval,
    /// Where labels go; `None` is standard output.
    pub output: Option<PathBuf>,
    /// Where the machine type is read, under the node root.
    pub machine_type_file: PathBuf,
}

/// What one source says; what it does not say is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// See [`Config::strategy`].
    pub strategy: Option<MigStrategy>,
    /// See [`Config::sharing`]; only a file says it.
    pub sharing: Option<Sharing>,
    /// See [`Config::fail_on_init_error`].
    pub fail_on_init_error: Option<bool>,
    /// See [`Config::oneshot`].
    pub oneshot: Option<bool>,
    /// Leave the timestamp out.
    pub no_timestamp: Option<bool>,
    /// See [`Config::interval`].
    pub interval: Option<Interval>,
    /// See [`Config::output`]; empty is standard output.
    pub output: Option<PathBuf>,
    /// See [`Config::machine_type_file`].
    pub machine_type_file: Option<PathBuf>,
    /// Publish a NodeFeature object instead of a file.
    pub use_node_feature_api: Option<bool>,
}

impl Settings {
    /// What `self` does not say is taken from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            strategy: self.strategy.or(other.strategy),
            sharing: self.sharing.or(other.sharing),
            fail_on_init_error: self.fail_on_init_error.or(other.fail_on_init_error),
            oneshot: self.oneshot.or(other.oneshot),
            no_timestamp: self.no_timestamp.or(other.no_timestamp),
            interval: self.interval.or(other.interval),
            output: self.output.or(other.output),
            machine_type_file: self.machine_type_file.or(other.machine_type_file),
            use_node_feature_api: self.use_node_feature_api.or(other.use_node_feature_api),
        }
    }

    /// Reads a configuration file; `file` is what errors and notices name.
    ///
    /// # Errors
    /// [`ConfigError`], for the first fault.
    pub fn parse(file: &str, text: &[u8]) -> Result<(Self, Vec<Notice>), ConfigError> {
        let (said, notices) = PluginFile::parse(file, text)?;
        let gfd = said.flags.gfd;
        let interval = gfd.sleep_interval.as_deref().map(str::parse).transpose();
        let interval = interval.map_err(|source| ConfigError::Interval {
            file: file.to_owned(),
            source,
        })?;
        let settings = Self {
            strategy: said.flags.mig_strategy,
            sharing: said.sharing.as_ref().map(labelled),
            fail_on_init_error: said.flags.fail_on_init_error,
            oneshot: gfd.oneshot,
            no_timestamp: gfd.no_timestamp,
            interval,
            output: gfd.output_file,
            machine_type_file: gfd.machine_type_file,
            use_node_feature_api: said.flags.use_node_feature_api,
        };
        Ok((settings, notices))
    }

    /// Fills what is not said with defaults.
    pub fn finish(self) -> Config {
        let output = self.output.unwrap_or_else(|| PathBuf::from(DEFAULT_OUTPUT));
        Config {
            strategy: self.strategy.unwrap_or_default(),
            sharing: self.sharing.unwrap_or_default(),
            fail_on_init_error: self.fail_on_init_error.unwrap_or(true),
            oneshot: self.oneshot.unwrap_or(false),
            timestamp: !self.no_timestamp.unwrap_or(false),
            interval: self.interval.unwrap_or(DEFAULT_INTERVAL),
            output: (!output.as_os_str().is_empty()).then_some(output),
            machine_type_file: self
                .machine_type_file
                .unwrap_or_else(|| PathBuf::from(DEFAULT_MACHINE_TYPE)),
        }
    }
}

/// A configuration file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A fault at a place of the file.
    #[error(transparent)]
    File(#[from] DocumentError),
    /// A bad interval.
    #[error("{file}: flags.gfd.sleepInterval: {source}")]
    Interval {
        /// File as the user named it.
        file: String,
        /// What is wrong.
        source: BadDuration,
    },
}

/// What labels can say of sharing: one number per resource, that of its first entry.
fn labelled(sharing: &plugin::Sharing) -> Sharing {
    let mut shared = SharedResources::default();
    for entry in &sharing.resources {
        let name = entry.name.to_string();
        if shared.replicas.contains_key(&name) {
            continue;
        }
        if sharing.shared_name(entry) != entry.name {
            shared.renamed.insert(name.clone());
        }
        shared.replicas.insert(name, entry.replicas);
    }
    match sharing.kind {
        SharingKind::TimeSlicing => Sharing::TimeSlicing(shared),
        SharingKind::Mps => Sharing::Mps(shared),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use rstest::rstest;

    use super::*;

    fn parse(text: &str) -> Result<Settings, ConfigError> {
        Settings::parse("config.yaml", text.as_bytes()).map(|(settings, _)| settings)
    }

    #[test]
    fn a_device_plugin_file() {
        let settings = parse(
            "version: v1\n\
             flags:\n  migStrategy: mixed\n  failOnInitError: false\n  nvidiaDriverRoot: /run/nvidia/driver\n\
             \x20 plugin: {passDeviceSpecs: true}\n\
             \x20 gfd: {oneshot: true, noTimestamp: true, sleepInterval: 1m, outputFile: '', machineTypeFile: /m}\n\
             sharing:\n  timeSlicing:\n    renameByDefault: true\n    failRequestsGreaterThanOne: true\n    resources:\n\
             \x20   - {name: nvidia.com/gpu, replicas: 4, rename: x, devices: all}\n    - {name: mig-1g.5gb, replicas: 2}\n\
             \x20   - {name: gpu, replicas: 8}\n",
        )
        .unwrap();
        let config = settings.finish();
        let replicas = [
            ("nvidia.com/gpu".to_owned(), 4),
            ("nvidia.com/mig-1g.5gb".to_owned(), 2),
        ]
        .into();
        assert_eq!(
            config,
            Config {
                strategy: MigStrategy::Mixed,
                sharing: Sharing::TimeSlicing(SharedResources {
                    renamed: ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"]
                        .map(str::to_owned)
                        .into(),
                    replicas,
                }),
                fail_on_init_error: false,
                oneshot: true,
                timestamp: false,
                interval: Interval::Every(Duration::from_secs(60)),
                output: None,
                machine_type_file: PathBuf::from("/m"),
            }
        );
    }

    #[rstest]
    fn files_that_say_nothing(
        #[values("", "version: v1\n", "flags: {}\n", "# only a comment\nversion: ''\n")] text: &str,
    ) {
        let config = parse(text).unwrap().finish();
        assert_eq!(
            (config.strategy, config.sharing),
            (MigStrategy::None, Sharing::None)
        );
        assert_eq!(
            config.output.as_deref(),
            Some(std::path::Path::new(DEFAULT_OUTPUT))
        );
        assert!(config.fail_on_init_error && config.timestamp && !config.oneshot);
    }

    #[rstest]
    #[case("version: v2", "config.yaml:1:10: version \"v2\" is not known: use v1")]
    #[case(
        "flags: {gfd: {sleepInterval: often}}",
        "config.yaml: flags.gfd.sleepInterval: \"often\" is not a duration: write it like 60s, 1m30s, 500ms or infinite"
    )]
    fn faults(#[case] text: &str, #[case] wanted: &str) {
        assert_eq!(parse(text).unwrap_err().to_string(), wanted);
    }

    #[test]
    fn only_renamed_resources_lose_the_suffix() {
        let settings = parse(
            "sharing: {mps: {resources: [{name: gpu, replicas: 2}, {name: a, rename: b, replicas: 2}]}}",
        )
        .unwrap();
        let Some(Sharing::Mps(shared)) = settings.sharing else {
            unreachable!("MPS is what the file says")
        };
        assert_eq!(shared.renamed, ["nvidia.com/a".to_owned()].into());
    }

    #[test]
    fn mps_wins_over_time_slicing() {
        let section = "{resources: [{name: gpu, replicas: 2}]}";
        let settings = parse(&format!(
            "sharing: {{timeSlicing: {section}, mps: {section}}}"
        ))
        .unwrap();
        assert!(matches!(settings.sharing, Some(Sharing::Mps(_))));
    }

    #[test]
    fn flags_win_over_the_file() {
        let flags = Settings {
            strategy: Some(MigStrategy::Single),
            ..Settings::default()
        };
        let file = parse("flags: {migStrategy: mixed, failOnInitError: false}").unwrap();
        let config = flags.or(file).finish();
        assert_eq!(
            (config.strategy, config.fail_on_init_error),
            (MigStrategy::Single, false)
        );
    }
}
