//! What to label and how: from flags, the configuration file shared with the device plugin, and defaults, in that order.
//!
//! The file is `version: v1` of the NVIDIA device plugin. Of it this part reads the flags that concern it and `sharing`,
//! because replicas and the `-SHARED` suffix are labels; keys it does not know are left alone, as upstream does.

use std::collections::BTreeMap;
use std::path::PathBuf;

use gpu::labels::{MigStrategy, SharedResources, Sharing, UnknownStrategy};
use serde::Deserialize;

use crate::duration::{BadDuration, Interval};

/// Where the worker of node feature discovery looks.
pub const DEFAULT_OUTPUT: &str = "/etc/kubernetes/node-feature-discovery/features.d/gfd";
const DEFAULT_MACHINE_TYPE: &str = "/sys/class/dmi/id/product_name";
const DEFAULT_INTERVAL: Interval = Interval::Every(std::time::Duration::from_secs(60));

/// Resource names without a vendor get this one.
const VENDOR_PREFIX: &str = "nvidia.com/";

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

    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`ConfigError`], for the first fault.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        // An empty document is an empty file, not a null one.
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let file: File =
            serde_saphyr::from_str(text).map_err(|error| ConfigError::Yaml(error.to_string()))?;
        file.settings()
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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not YAML, or not of the file's shape; the text has line and column.
    #[error("{0}")]
    Yaml(String),
    /// A version this program does not know.
    #[error("version {0:?} is not known: use v1")]
    Version(String),
    /// A bad MIG strategy.
    #[error("flags.migStrategy: {0}")]
    Strategy(#[from] UnknownStrategy),
    /// A bad interval.
    #[error("flags.gfd.sleepInterval: {0}")]
    Interval(#[from] BadDuration),
    /// Sharing without resources.
    #[error("sharing.{0}.resources is empty: name a resource with replicas, or leave {0} out")]
    NoResources(&'static str),
    /// Fewer than two replicas.
    #[error("sharing: {resource} has {replicas} replicas: sharing needs at least 2")]
    Replicas {
        /// The resource.
        resource: String,
        /// What the file says.
        replicas: i64,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    version: String,
    flags: Flags,
    sharing: SharingSection,
}

impl Default for File {
    fn default() -> Self {
        Self {
            version: "v1".to_owned(),
            flags: Flags::default(),
            sharing: SharingSection::default(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Flags {
    mig_strategy: Option<String>,
    fail_on_init_error: Option<bool>,
    #[serde(rename = "useNodeFeatureAPI")]
    use_node_feature_api: Option<bool>,
    gfd: Option<GfdFlags>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GfdFlags {
    oneshot: Option<bool>,
    no_timestamp: Option<bool>,
    sleep_interval: Option<String>,
    output_file: Option<PathBuf>,
    machine_type_file: Option<PathBuf>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SharingSection {
    time_slicing: Option<Replicated>,
    mps: Option<Replicated>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Replicated {
    rename_by_default: bool,
    resources: Vec<ReplicatedResource>,
}

#[derive(Deserialize)]
struct ReplicatedResource {
    name: String,
    replicas: i64,
}

impl File {
    fn settings(self) -> Result<Settings, ConfigError> {
        if !matches!(self.version.as_str(), "" | "v1") {
            return Err(ConfigError::Version(self.version));
        }
        let gfd = self.flags.gfd.unwrap_or_default();
        // Both sections: MPS wins, as in the device plugin.
        let time_slicing = self
            .sharing
            .time_slicing
            .map(|section| section.resources("timeSlicing"))
            .transpose()?;
        let mps = self
            .sharing
            .mps
            .map(|section| section.resources("mps"))
            .transpose()?;
        Ok(Settings {
            strategy: self
                .flags
                .mig_strategy
                .as_deref()
                .map(str::parse)
                .transpose()?,
            sharing: mps
                .map(Sharing::Mps)
                .or(time_slicing.map(Sharing::TimeSlicing)),
            fail_on_init_error: self.flags.fail_on_init_error,
            oneshot: gfd.oneshot,
            no_timestamp: gfd.no_timestamp,
            interval: gfd.sleep_interval.as_deref().map(str::parse).transpose()?,
            output: gfd.output_file,
            machine_type_file: gfd.machine_type_file,
            use_node_feature_api: self.flags.use_node_feature_api,
        })
    }
}

impl Replicated {
    fn resources(self, section: &'static str) -> Result<SharedResources, ConfigError> {
        if self.resources.is_empty() {
            return Err(ConfigError::NoResources(section));
        }
        let mut replicas = BTreeMap::new();
        for resource in self.resources {
            let count = u32::try_from(resource.replicas).ok().filter(|&n| n >= 2);
            let Some(count) = count else {
                return Err(ConfigError::Replicas {
                    resource: resource.name,
                    replicas: resource.replicas,
                });
            };
            let name = match resource.name.strip_prefix(VENDOR_PREFIX) {
                Some(_) => resource.name,
                None => format!("{VENDOR_PREFIX}{}", resource.name),
            };
            replicas.insert(name, count);
        }
        Ok(SharedResources {
            rename_by_default: self.rename_by_default,
            replicas,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_device_plugin_file() {
        let settings = Settings::parse(
            "version: v1\n\
             flags:\n  migStrategy: mixed\n  failOnInitError: false\n  nvidiaDriverRoot: /run/nvidia/driver\n\
             \x20 plugin: {passDeviceSpecs: true}\n\
             \x20 gfd: {oneshot: true, noTimestamp: true, sleepInterval: 1m, outputFile: '', machineTypeFile: /m}\n\
             sharing:\n  timeSlicing:\n    renameByDefault: true\n    failRequestsGreaterThanOne: true\n    resources:\n\
             \x20   - {name: nvidia.com/gpu, replicas: 4, rename: x, devices: all}\n    - {name: mig-1g.5gb, replicas: 2}\n",
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
                    rename_by_default: true,
                    replicas
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
        let config = Settings::parse(text).unwrap().finish();
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
    #[case("version: v2", ConfigError::Version("v2".to_owned()))]
    #[case("flags: {migStrategy: both}", ConfigError::Strategy(UnknownStrategy("both".to_owned())))]
    #[case("flags: {gfd: {sleepInterval: often}}", ConfigError::Interval(BadDuration("often".to_owned())))]
    #[case("sharing: {mps: {resources: []}}", ConfigError::NoResources("mps"))]
    #[case("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}",
        ConfigError::Replicas { resource: "nvidia.com/gpu".to_owned(), replicas: 1 })]
    #[case("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: -4}]}}",
        ConfigError::Replicas { resource: "nvidia.com/gpu".to_owned(), replicas: -4 })]
    fn faults(#[case] text: &str, #[case] wanted: ConfigError) {
        assert_eq!(Settings::parse(text), Err(wanted));
    }

    #[rstest]
    fn what_is_no_file_is_an_error(
        #[values(
            "- a",
            "sharing: {timeSlicing: {resources: [{name: x}]}}",
            "flags: [",
            "\u{0}"
        )]
        text: &str,
    ) {
        assert!(
            matches!(Settings::parse(text), Err(ConfigError::Yaml(_))),
            "{text:?}"
        );
    }

    #[test]
    fn mps_wins_over_time_slicing() {
        let section = "{resources: [{name: gpu, replicas: 2}]}";
        let settings = Settings::parse(&format!(
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
        let file = Settings::parse("flags: {migStrategy: mixed, failOnInitError: false}").unwrap();
        let config = flags.or(file).finish();
        assert_eq!(
            (config.strategy, config.fail_on_init_error),
            (MigStrategy::Single, false)
        );
    }

    proptest! {
        #[test]
        fn any_text_gives_an_answer(text in "[a-z0-9:{}\\[\\], \n\\-\"'&*|>]{0,120}") {
            let _ = Settings::parse(&text);
        }
    }
}
