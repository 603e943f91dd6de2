//! `lathe feature-discovery`: writes what it found as node labels.
//!
//! Flags and environment variables are those of NVIDIA's `gpu-feature-discovery`, so that its manifest keeps working. Those
//! that steer what this program does not do (yet) are accepted and named in the log.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::builder::{BoolishValueParser, StringValueParser, TypedValueParser as _};
use feature_discovery::Settings;
use feature_discovery::duration::Interval;
use gpu::labels::MigStrategy;
use tokio_util::sync::CancellationToken;

/// Write what can be found out about GPUs as node labels
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the node's file system is mounted
    #[arg(long, env = "LATHE_ROOT", value_name = "DIR", default_value = "/")]
    root: PathBuf,

    /// How MIG devices are offered: none, single or mixed [default: none]
    #[arg(long, env = "GFD_MIG_STRATEGY", value_name = "STRATEGY")]
    mig_strategy: Option<MigStrategy>,

    /// Whether a driver that is not there at the start is an error [default: true]
    #[arg(long, env = "GFD_FAIL_ON_INIT_ERROR", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    fail_on_init_error: Option<bool>,

    /// Label once and end
    #[arg(long, env = "GFD_ONESHOT", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    oneshot: Option<bool>,

    /// Leave the time of the start out of the labels
    #[arg(long, env = "GFD_NO_TIMESTAMP", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    no_timestamp: Option<bool>,

    /// Time between two looks when nothing happens, or `infinite` [default: 60s]
    #[arg(long, env = "GFD_SLEEP_INTERVAL", value_name = "DURATION")]
    sleep_interval: Option<Interval>,

    /// Where labels go, under the root; empty is standard output
    /// [default: /etc/kubernetes/node-feature-discovery/features.d/gfd]
    #[arg(
        long,
        short = 'o',
        visible_alias = "output",
        env = "GFD_OUTPUT_FILE",
        value_parser = StringValueParser::new().map(PathBuf::from),
        value_name = "FILE"
    )]
    output_file: Option<PathBuf>,

    /// Where the machine type is read, under the root [default: /sys/class/dmi/id/product_name]
    #[arg(long, env = "GFD_MACHINE_TYPE_FILE", value_name = "FILE")]
    machine_type_file: Option<PathBuf>,

    /// Configuration file of the device plugin (version: v1)
    #[arg(long, env = "GFD_CONFIG_FILE", value_name = "FILE")]
    config_file: Option<PathBuf>,

    /// Publish a NodeFeature object instead of a file [default: false]
    #[arg(long, env = "GFD_USE_NODE_FEATURE_API", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    use_node_feature_api: Option<bool>,

    /// Where the driver's files are mounted, when that is not the node's root
    #[arg(
        long,
        visible_alias = "container-driver-root",
        env = "DRIVER_ROOT_CTR_PATH",
        value_name = "DIR"
    )]
    driver_root_ctr_path: Option<PathBuf>,

    #[command(flatten)]
    without_effect: WithoutEffect,
}

/// What NVIDIA's program takes and this one has no use for, or not yet.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Accepted for compatibility, without effect")]
struct WithoutEffect {
    /// How devices are found: by NVML
    #[arg(long, env = "DEVICE_DISCOVERY_STRATEGY", value_name = "STRATEGY")]
    device_discovery_strategy: Option<String>,

    /// Kubeconfig file
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Requests per second to the API server
    #[arg(long, env = "KUBE_API_QPS", value_name = "N")]
    kube_api_qps: Option<f64>,

    /// Requests at once to the API server
    #[arg(long, env = "KUBE_API_BURST", value_name = "N")]
    kube_api_burst: Option<u32>,
}

impl WithoutEffect {
    /// The flags that were given a value which asks for something.
    fn given(&self) -> Vec<&'static str> {
        let strategy = self.device_discovery_strategy.as_deref();
        let flags = [
            (
                "--device-discovery-strategy",
                strategy.is_some_and(|name| !matches!(name, "auto" | "nvml")),
            ),
            ("--kube-api-qps", self.kube_api_qps.is_some()),
            ("--kube-api-burst", self.kube_api_burst.is_some()),
        ];
        flags
            .into_iter()
            .filter(|(_, given)| *given)
            .map(|(flag, _)| flag)
            .collect()
    }
}

impl Args {
    /// Flags and their environment; then the shorter names of environment variables that the device plugin shares.
    fn settings(&self) -> anyhow::Result<Settings> {
        let shared = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let truth = |name: &str| {
            shared(name).map(|value| {
                !matches!(
                    value.to_ascii_lowercase().as_str(),
                    "0" | "f" | "false" | "n" | "no" | "off"
                )
            })
        };
        let flags = Settings {
            strategy: self.mig_strategy,
            sharing: None,
            fail_on_init_error: self.fail_on_init_error,
            oneshot: self.oneshot,
            no_timestamp: self.no_timestamp,
            interval: self.sleep_interval,
            output: self.output_file.clone(),
            machine_type_file: self.machine_type_file.clone(),
            use_node_feature_api: self.use_node_feature_api,
        };
        let environment = Settings {
            strategy: shared("MIG_STRATEGY")
                .map(|name| name.parse())
                .transpose()
                .context("MIG_STRATEGY")?,
            fail_on_init_error: truth("FAIL_ON_INIT_ERROR"),
            use_node_feature_api: truth("USE_NODE_FEATURE_API"),
            ..Settings::default()
        };
        let file = match self
            .config_file
            .clone()
            .or_else(|| shared("CONFIG_FILE").map(PathBuf::from))
        {
            None => Settings::default(),
            Some(path) => {
                let text = configuration::document::read(&path)?;
                let file = path.display().to_string();
                let (settings, notices) = Settings::parse(&file, &text)?;
                for notice in notices {
                    tracing::warn!("{notice}");
                }
                settings
            }
        };
        Ok(flags.or(environment).or(file))
    }
}

/// Labels until `shutdown` is cancelled, or once.
///
/// # Errors
/// A configuration that cannot be used, no driver, or, with `--oneshot`, labels that cannot be written.
pub(crate) async fn run(args: Args, shutdown: CancellationToken) -> anyhow::Result<()> {
    let ignored = args.without_effect.given();
    if !ignored.is_empty() {
        tracing::warn!(flags = ignored.join(" "), "these flags have no effect here");
    }
    let settings = args.settings()?;
    if settings.use_node_feature_api == Some(true) {
        tracing::warn!(
            "NodeFeature objects are not written yet: the labels go to the feature file"
        );
    }
    let config = settings.finish();
    let driver_root = args.driver_root_ctr_path.as_ref().unwrap_or(&args.root);
    let session = Arc::new(nvml::Session::new(&nvml::Options::at(driver_root))?);
    if config.oneshot {
        // A thread that the end of the program does not wait for: it may be in a driver call that hangs.
        let (done, end) = tokio::sync::oneshot::channel();
        std::thread::Builder::new().spawn(move || {
            // Nobody listens after an interruption.
            let _ = done.send(feature_discovery::once(&args.root, &config, &session));
        })?;
        tokio::select! {
            written = end => written.context("the labelling thread died")??,
            () = shutdown.cancelled() => bail!("asked to end before the labels were written"),
        };
        return Ok(());
    }
    feature_discovery::run(args.root, config, session, shutdown).await?;
    Ok(())
}
