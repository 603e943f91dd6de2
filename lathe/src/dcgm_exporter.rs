//! `lathe dcgm-exporter`: GPU metrics for Prometheus.
//!
//! Flags and environment variables are those of NVIDIA's `dcgm-exporter`, so that its manifest keeps working. Those that
//! steer what this program does not do (yet) are accepted and named in the log.

mod without_effect;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum as _;
use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use dcgm_exporter::counters::Counters;
use dcgm_exporter::labels::LabelStyle;
use dcgm_exporter::selector::Selector;
use tokio_util::sync::CancellationToken;
use without_effect::WithoutEffect;

use crate::logging::LogFormat;

/// The variable of `--log-format` in NVIDIA's exporter. Here that flag is every subcommand's, with a variable of its own.
const LOG_FORMAT: &str = "DCGM_EXPORTER_LOG_FORMAT";

/// The files that NVIDIA's image has; when one is not there, the built-in set says the same.
const SHIPPED_COUNTERS: [&str; 2] = [
    "/etc/dcgm-exporter/default-counters.csv",
    "/etc/dcgm-exporter/dcp-metrics-included.csv",
];

/// Serve GPU metrics for Prometheus
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the node's file system is mounted
    #[arg(long, env = "LATHE_ROOT", value_name = "DIR", default_value = "/")]
    root: PathBuf,

    /// Where to listen: HOST:PORT, or :PORT for all addresses
    #[arg(
        long,
        short = 'a',
        env = "DCGM_EXPORTER_LISTEN",
        value_name = "ADDRESS",
        default_value = ":9400"
    )]
    address: String,

    /// Counter file (field, type, help); without it the usual 25 families
    #[arg(
        long,
        short = 'f',
        env = "DCGM_EXPORTER_COLLECTORS",
        value_name = "FILE"
    )]
    collectors: Option<PathBuf>,

    /// Milliseconds between two collections
    #[arg(long, short = 'c', env = "DCGM_EXPORTER_INTERVAL", value_name = "MS", default_value_t = 30_000,
          value_parser = clap::value_parser!(u64).range(100..=86_400_000))]
    collect_interval: u64,

    /// What to export: f, or g and i with numbers (g:0,2-4+i)
    #[arg(
        long,
        short = 'd',
        env = "DCGM_EXPORTER_DEVICES_STR",
        value_name = "SELECTOR",
        default_value = "f"
    )]
    devices: Selector,

    /// Leave the hostname label out
    #[arg(long, short = 'n', env = "DCGM_EXPORTER_NO_HOSTNAME", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_name = "BOOL")]
    no_hostname: bool,

    /// The hostname label; without it the machine's name
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,

    /// Names of dcgm-exporter 1.x: the label uuid, and old family names in counter files
    #[arg(long, short = 'o', env = "DCGM_EXPORTER_USE_OLD_NAMESPACE", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_name = "BOOL")]
    use_old_namespace: bool,

    /// Write dashes instead of blanks in model names
    #[arg(long, visible_alias = "rbmn", env = "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME",
          value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_name = "BOOL")]
    replace_blanks_in_model_name: bool,

    /// Log more
    #[arg(long, env = "DCGM_EXPORTER_DEBUG", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_name = "BOOL")]
    debug: bool,

    /// Answer /health with 503 while no GPU can be read
    #[arg(long, env = "DCGM_EXPORTER_HEALTH_REQUIRE_GPUS", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_name = "BOOL")]
    health_require_gpus: bool,

    /// Say which pod, namespace and container has the GPU or instance
    #[arg(long, short = 'k', env = "DCGM_EXPORTER_KUBERNETES", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_name = "BOOL")]
    kubernetes: bool,

    /// The kubelet's socket that tells which pod holds what
    #[arg(
        long,
        env = "DCGM_POD_RESOURCES_KUBELET_SOCKET",
        value_name = "FILE",
        default_value = "/var/lib/kubelet/pod-resources/kubelet.sock"
    )]
    pod_resources_kubelet_socket: PathBuf,

    /// Resources outside nvidia.com that stand for GPUs, separated by commas
    #[arg(
        long,
        env = "NVIDIA_RESOURCE_NAMES",
        value_name = "NAMES",
        value_delimiter = ','
    )]
    nvidia_resource_names: Vec<String>,

    #[command(flatten)]
    without_effect: WithoutEffect,
}

/// How log lines look where neither `--log-format` nor Lathe's own variable says: as the original's variable says.
///
/// # Errors
/// A usage error when that is no format.
pub(crate) fn default_log_format() -> Result<LogFormat, clap::Error> {
    let Some(value) = std::env::var_os(LOG_FORMAT).filter(|value| !value.is_empty()) else {
        return Ok(LogFormat::default());
    };
    let value = value.to_string_lossy();
    LogFormat::from_str(&value, false).map_err(|_| {
        let reason = format!("{LOG_FORMAT} is {value:?}, not text or json\n");
        clap::Error::raw(ErrorKind::InvalidValue, reason)
    })
}

impl Args {
    /// What to log when nothing else was asked for.
    pub(crate) fn default_log(&self) -> &'static str {
        if self.debug { "debug" } else { "info" }
    }

    fn counters(&self) -> anyhow::Result<Counters> {
        let Some(path) = &self.collectors else {
            return Ok(Counters::default());
        };
        let name = || format!("counter file {}", path.display());
        let is_shipped = SHIPPED_COUNTERS
            .iter()
            .any(|shipped| path == Path::new(shipped));
        match std::fs::read_to_string(path) {
            Ok(text) => Counters::parse(&text, self.use_old_namespace).with_context(name),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && is_shipped => {
                Ok(Counters::default())
            }
            Err(error) => Err(error).with_context(name),
        }
    }

    fn hostname(&self) -> Option<String> {
        if self.no_hostname {
            return None;
        }
        let given = self.node_name.clone().filter(|name| !name.is_empty());
        Some(given.unwrap_or_else(|| {
            rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned()
        }))
    }
}

/// Serves until `shutdown` is cancelled.
///
/// # Errors
/// A counter file that cannot be used, an address that cannot be listened on, or a device that does not exist.
pub(crate) async fn run(args: Args, shutdown: CancellationToken) -> anyhow::Result<()> {
    let ignored = args.without_effect.given();
    if !ignored.is_empty() {
        tracing::warn!(flags = ignored.join(" "), "these flags have no effect here");
    }
    let config = dcgm_exporter::Config {
        address: args.address.clone(),
        interval: Duration::from_millis(args.collect_interval),
        selector: args.devices.clone(),
        counters: args.counters()?,
        style: LabelStyle {
            old_namespace: args.use_old_namespace,
            replace_blanks_in_model: args.replace_blanks_in_model_name,
            hostname: args.hostname(),
        },
        health_requires_gpus: args.health_require_gpus,
        pods: args.kubernetes.then(|| dcgm_exporter::PodSource {
            socket: args.pod_resources_kubelet_socket.clone(),
            resources: args
                .nvidia_resource_names
                .iter()
                .map(|name| name.trim().to_owned())
                .collect(),
        }),
    };
    let session = Arc::new(nvml::Session::new(&nvml::Options::at(&args.root))?);
    dcgm_exporter::run(config, session, shutdown).await?;
    Ok(())
}
