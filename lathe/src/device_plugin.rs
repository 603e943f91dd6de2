//! `lathe device-plugin`: offers the node's GPUs to the kubelet.
//!
//! Flags and environment variables are those of NVIDIA's `nvidia-device-plugin`, so that its manifest keeps working. A flag
//! wins over its environment variable, that over the configuration file, and that over the default.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use clap::builder::BoolishValueParser;
use configuration::plugin::{
    AllocationPolicy, DeviceIdStrategy, DeviceListStrategy, DiscoveryStrategy, Flags, Imex,
    PluginFile, PluginFlags,
};
use device_plugin::health::Xids;
use device_plugin::service::{Cluster, Config, Service, Source};
use gpu::labels::MigStrategy;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::config_source::ConfigSource;

/// The kubelet's socket below the node's root, where nothing says otherwise.
const KUBELET_SOCKET: &str = "var/lib/kubelet/device-plugins/kubelet.sock";

/// Where NVIDIA's manifests mount the driver's files.
const DRIVER_ROOT: &str = "driver-root";

/// Offer the node's GPUs, MIG devices and shares of them to the kubelet
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the node's file system is mounted
    #[arg(long, env = "LATHE_ROOT", value_name = "DIR", default_value = "/")]
    root: PathBuf,

    /// How MIG devices are offered: none, single or mixed [default: none]
    #[arg(long, env = "MIG_STRATEGY", value_name = "STRATEGY")]
    mig_strategy: Option<MigStrategy>,

    /// Whether a driver that is not there at the start is an error; otherwise it is waited for [default: false]
    #[arg(long, env = "FAIL_ON_INIT_ERROR", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    fail_on_init_error: Option<bool>,

    #[command(flatten)]
    source: ConfigSource,

    /// How the container runtime learns of devices: envvar, volume-mounts, cdi-annotations, cdi-cri [default: envvar]
    #[arg(
        long,
        env = "DEVICE_LIST_STRATEGY",
        value_name = "STRATEGY",
        value_delimiter = ','
    )]
    device_list_strategy: Vec<DeviceListStrategy>,

    /// What devices are called towards the container runtime: uuid or index [default: uuid]
    #[arg(long, env = "DEVICE_ID_STRATEGY", value_name = "STRATEGY")]
    device_id_strategy: Option<DeviceIdStrategy>,

    /// Name the device nodes to the kubelet as well [default: false]
    #[arg(long, env = "PASS_DEVICE_SPECS", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pass_device_specs: Option<bool>,

    /// Which shares a container gets: distributed, packed or distinct [default: distributed]
    #[arg(long, env = "SHARED_DEVICES_ALLOCATION_POLICY", value_name = "POLICY")]
    shared_devices_allocation_policy: Option<AllocationPolicy>,

    /// Where the driver is on the host [default: /]
    #[arg(
        long,
        visible_alias = "nvidia-driver-root",
        env = "NVIDIA_DRIVER_ROOT",
        value_name = "DIR"
    )]
    driver_root: Option<PathBuf>,

    /// Where the device nodes are on the host [default: where the driver is]
    #[arg(
        long,
        visible_alias = "nvidia-dev-root",
        env = "NVIDIA_DEV_ROOT",
        value_name = "DIR"
    )]
    dev_root: Option<PathBuf>,

    /// Where the driver's files are mounted here [default: /driver-root if it is there, or else the root]
    #[arg(
        long,
        visible_alias = "container-driver-root",
        env = "DRIVER_ROOT_CTR_PATH",
        value_name = "DIR"
    )]
    driver_root_ctr_path: Option<PathBuf>,

    /// Give containers GPUDirect RDMA copies (gdrdrv) [default: false]
    #[arg(long, env = "GDRCOPY_ENABLED", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    gdrcopy_enabled: Option<bool>,

    /// Give containers GPUDirect Storage (nvidia-fs) [default: false]
    #[arg(long, env = "GDS_ENABLED", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    gds_enabled: Option<bool>,

    /// Give containers the InfiniBand devices [default: false]
    #[arg(long, env = "MOFED_ENABLED", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    mofed_enabled: Option<bool>,

    /// IMEX channels for every container: 0 or none
    #[arg(
        long,
        env = "IMEX_CHANNEL_IDS",
        value_name = "N",
        value_delimiter = ','
    )]
    imex_channel_ids: Vec<u32>,

    /// Whether a node without the IMEX channel cannot serve [default: false]
    #[arg(long, env = "IMEX_REQUIRED", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    imex_required: Option<bool>,

    /// Prefix of annotations with CDI names [default: cdi.k8s.io/]
    #[arg(long, env = "CDI_ANNOTATION_PREFIX", value_name = "PREFIX")]
    cdi_annotation_prefix: Option<String>,

    /// Program on the host that CDI hooks run, if it is there [default: /usr/bin/nvidia-ctk]
    #[arg(
        long,
        visible_alias = "nvidia-ctk-path",
        env = "NVIDIA_CDI_HOOK_PATH",
        value_name = "FILE"
    )]
    nvidia_cdi_hook_path: Option<PathBuf>,

    /// CDI hooks to leave out, or all
    #[arg(
        long,
        env = "CDI_DISABLE_HOOKS",
        value_name = "HOOK",
        value_delimiter = ','
    )]
    cdi_disable_hooks: Vec<String>,

    /// Where CDI specs are written [default: /var/run/cdi below the root]
    #[arg(long, env = "LATHE_CDI_DIR", value_name = "DIR")]
    cdi_dir: Option<PathBuf>,

    /// Where the MPS daemon's folders are on the host
    #[arg(long, env = "MPS_ROOT", value_name = "DIR")]
    mps_root: Option<PathBuf>,

    /// How devices are found: auto or nvml [default: auto]
    #[arg(long, env = "DEVICE_DISCOVERY_STRATEGY", value_name = "STRATEGY")]
    device_discovery_strategy: Option<DiscoveryStrategy>,

    /// The kubelet's socket for device plugins [default: /var/lib/kubelet/device-plugins/kubelet.sock below the root]
    #[arg(long, env = "KUBELET_SOCKET", value_name = "FILE")]
    kubelet_socket: Option<PathBuf>,

    /// The kubelet's socket that tells who has what [default: /var/lib/kubelet/pod-resources/kubelet.sock below the root]
    #[arg(long, env = "LATHE_POD_RESOURCES_SOCKET", value_name = "FILE")]
    pod_resources_socket: Option<PathBuf>,

    /// What makes a device unhealthy and what heals it; without it a built-in policy
    #[arg(long, env = "LATHE_HEALTH_POLICY", value_name = "FILE")]
    health_policy: Option<PathBuf>,

    /// XIDs that do not make devices unhealthy, or all
    #[arg(
        long,
        env = "DP_DISABLE_HEALTHCHECKS",
        value_name = "LIST",
        default_value = "",
        hide_default_value = true
    )]
    disable_healthchecks: String,

    /// XIDs that make devices unhealthy whatever else says, or all
    #[arg(
        long,
        env = "DP_ENABLE_HEALTHCHECKS",
        value_name = "LIST",
        default_value = "",
        hide_default_value = true
    )]
    enable_healthchecks: String,

    /// The node this runs on; without it the cluster's API is not used: no label, no Events, no condition
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,

    /// This pod, named in Events as the one who reports; without it the node is
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pod_name: Option<String>,

    /// Kubeconfig file; without it those in KUBECONFIG, or else the pod's service account
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Show unhealthy GPUs as a condition of the node
    #[arg(long, env = "LATHE_NODE_CONDITION", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", value_name = "BOOL")]
    node_condition: bool,

    /// Where to serve /metrics, /healthz and /readyz: HOST:PORT, or :PORT for all addresses; without it nowhere
    #[arg(long, env = "LATHE_METRICS_ADDRESS", value_name = "ADDRESS")]
    metrics_address: Option<String>,

    #[command(flatten)]
    without_effect: WithoutEffect,
}

/// What NVIDIA's plugin takes and this one has no use for.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Accepted for compatibility, without effect")]
struct WithoutEffect {
    /// Features of NVIDIA's CDI library
    #[arg(
        long,
        env = "CDI_FEATURE_FLAGS",
        value_name = "FLAG",
        value_delimiter = ','
    )]
    cdi_feature_flags: Vec<String>,
}

/// A variable that has a second name.
fn second(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

impl Args {
    fn flags(&self) -> Flags {
        let strategies = &self.device_list_strategy;
        Flags {
            mig_strategy: self.mig_strategy,
            fail_on_init_error: self.fail_on_init_error,
            mps_root: self.mps_root.clone(),
            driver_root: self.driver_root.clone(),
            dev_root: self.dev_root.clone(),
            gdrcopy: self.gdrcopy_enabled,
            gds: self.gds_enabled,
            mofed: self.mofed_enabled,
            discovery_strategy: self.device_discovery_strategy,
            plugin: PluginFlags {
                pass_device_specs: self.pass_device_specs,
                device_list_strategies: (!strategies.is_empty()).then(|| strategies.clone()),
                device_id_strategy: self.device_id_strategy,
                cdi_annotation_prefix: self.cdi_annotation_prefix.clone(),
                cdi_hook_path: self
                    .nvidia_cdi_hook_path
                    .clone()
                    .or_else(|| second("NVIDIA_CTK_PATH")),
                container_driver_root: self
                    .driver_root_ctr_path
                    .clone()
                    .or_else(|| second("CONTAINER_DRIVER_ROOT")),
                allocation_policy: self.shared_devices_allocation_policy,
            },
            ..Flags::default()
        }
    }

    fn imex(&self) -> anyhow::Result<Imex> {
        let channel0 = match self.imex_channel_ids.as_slice() {
            [] => None,
            [0] => Some(true),
            other => bail!("--imex-channel-ids {other:?}: only channel 0 can be given, use 0"),
        };
        Ok(Imex {
            channel0,
            required: self.imex_required,
        })
    }
}

/// Serves until `shutdown` is cancelled.
///
/// # Errors
/// Flags or a configuration that cannot be used. An absent driver, kubelet or API server is waited for.
pub(crate) async fn run(args: Args, shutdown: CancellationToken) -> anyhow::Result<()> {
    if !args.without_effect.cdi_feature_flags.is_empty() {
        tracing::warn!("--cdi-feature-flags has no effect here");
    }
    // Before anything else: by default the signal would end the program.
    let mut hangup = signal(SignalKind::hangup())?;
    let config = args.config()?;
    let cluster = args.cluster().await?;
    let session = nvml::Session::new(&nvml::Options::at(&config.driver_root))?;
    let service = Service::open(config, Arc::new(session), cluster).await?;
    let reload = Arc::new(Notify::new());
    let asked = reload.clone();
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            asked.notify_one();
        }
    });
    service.run(&reload, shutdown).await?;
    Ok(())
}

impl Args {
    fn config(&self) -> anyhow::Result<Config> {
        let (xids, unread) = Xids::new(&self.disable_healthchecks, &self.enable_healthchecks);
        if !unread.is_empty() {
            tracing::warn!(
                words = unread.join(" "),
                "these words of DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS are no XIDs and have no effect"
            );
        }
        let mut config = Config::new(&self.root);
        config.flags = self.flags();
        config.imex = self.imex()?;
        config.source = self.source.source()?;
        config.driver_root = self.mounted_driver_root()?;
        config.health_policy = self.health_policy.clone();
        config.xids = xids;
        config.device_plugins = self.device_plugins()?;
        if let Some(socket) = &self.pod_resources_socket {
            config.kubelet = config.kubelet.with_pod_resources(socket);
        }
        if let Some(folder) = &self.cdi_dir {
            config.cdi_folder.clone_from(folder);
        }
        config.disabled_hooks.clone_from(&self.cdi_disable_hooks);
        config.condition = self.node_condition;
        config.metrics_address = self.metrics_address.clone().filter(|text| !text.is_empty());
        Ok(config)
    }

    /// Where the driver's files are mounted. The session with the driver is bound to it, so of a configuration that may
    /// change, this is not taken.
    fn mounted_driver_root(&self) -> anyhow::Result<PathBuf> {
        if let Some(given) = self.flags().plugin.container_driver_root {
            return Ok(given);
        }
        if let Some(file) = self.source.file() {
            let (file, _) = PluginFile::read(file)?;
            if let Some(given) = file.flags.plugin.container_driver_root {
                return Ok(given);
            }
        }
        let usual = self.root.join(DRIVER_ROOT);
        Ok(if usual.is_dir() {
            usual
        } else {
            self.root.clone()
        })
    }

    /// The folder of the kubelet's socket; plugins serve beside it.
    fn device_plugins(&self) -> anyhow::Result<PathBuf> {
        let socket = match &self.kubelet_socket {
            Some(socket) => socket.clone(),
            None => self.root.join(KUBELET_SOCKET),
        };
        match (socket.parent(), socket.file_name()) {
            // A name alone is in the folder that this runs in.
            (Some(folder), Some(name)) if name == "kubelet.sock" => Ok(Path::new(".").join(folder)),
            _ => bail!(
                "--kubelet-socket {}: the kubelet's socket is called kubelet.sock",
                socket.display()
            ),
        }
    }

    async fn cluster(&self) -> anyhow::Result<Option<Cluster>> {
        let Some(node) = self.node_name.clone().filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let kubeconfig = self
            .kubeconfig
            .as_deref()
            .filter(|path| !path.as_os_str().is_empty());
        let client = match cluster::client("device-plugin", kubeconfig).await {
            Ok(client) => client,
            // NVIDIA's manifest names the node in a pod that has no account.
            Err(error) if !matches!(self.source.source()?, Source::Named(..)) => {
                tracing::warn!(%error, "without the cluster's API: no Events, no condition");
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let instance = self.pod_name.clone().filter(|name| !name.is_empty());
        Ok(Some(Cluster {
            client,
            instance: instance.unwrap_or_else(|| node.clone()),
            node,
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use clap::Parser;
    use cluster::named_config;
    use rstest::rstest;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parse(args: &[&str]) -> Args {
        let args = [&["lathe"], args].concat();
        Cli::try_parse_from(args).unwrap().args
    }

    #[test]
    fn nothing_said_is_nothing_set() {
        let config = parse(&[]).config().unwrap();
        assert_eq!(config.flags, Flags::default());
        assert_eq!(config.imex, Imex::default());
        assert!(matches!(config.source, Source::None));
        assert_eq!(config.driver_root, Path::new("/"));
        assert_eq!(
            config.device_plugins,
            Path::new("/var/lib/kubelet/device-plugins")
        );
        assert_eq!(config.cdi_folder, Path::new("/var/run/cdi"));
    }

    /// Facts §2.1: every flag of NVIDIA's plugin, by its names.
    #[test]
    fn upstreams_command_line_is_taken_as_it_is() {
        let config = parse(&[
            "--mig-strategy=mixed",
            "--fail-on-init-error=false",
            "--nvidia-driver-root=/run/nvidia/driver",
            "--nvidia-dev-root=/",
            "--pass-device-specs",
            "--device-list-strategy=cdi-annotations,cdi-cri",
            "--device-list-strategy=envvar",
            "--device-id-strategy=index",
            "--gdrcopy-enabled=true",
            "--gds-enabled",
            "--mofed-enabled=false",
            "--cdi-annotation-prefix=cdi.k8s.io/",
            "--nvidia-ctk-path=/ctk",
            "--container-driver-root=/driver",
            "--mps-root=/run/nvidia/mps",
            "--shared-devices-allocation-policy=packed",
            "--device-discovery-strategy=auto",
            "--imex-channel-ids=0",
            "--imex-required",
            "--kubelet-socket=/k/kubelet.sock",
            "--cdi-feature-flags=a,b",
            "--cdi-disable-hooks=all",
        ])
        .config()
        .unwrap();
        let flags = config.flags;
        assert_eq!(flags.mig_strategy, Some(MigStrategy::Mixed));
        assert_eq!(flags.fail_on_init_error, Some(false));
        assert_eq!(flags.driver_root, Some("/run/nvidia/driver".into()));
        assert_eq!(flags.dev_root, Some("/".into()));
        assert_eq!(
            (flags.gdrcopy, flags.gds, flags.mofed),
            (Some(true), Some(true), Some(false))
        );
        assert_eq!(flags.mps_root, Some("/run/nvidia/mps".into()));
        assert_eq!(flags.discovery_strategy, Some(DiscoveryStrategy::Auto));
        let plugin = flags.plugin;
        assert_eq!(
            plugin,
            PluginFlags {
                pass_device_specs: Some(true),
                device_list_strategies: Some(vec![
                    DeviceListStrategy::CdiAnnotations,
                    DeviceListStrategy::CdiCri,
                    DeviceListStrategy::Envvar
                ]),
                device_id_strategy: Some(DeviceIdStrategy::Index),
                cdi_annotation_prefix: Some("cdi.k8s.io/".to_owned()),
                cdi_hook_path: Some("/ctk".into()),
                container_driver_root: Some("/driver".into()),
                allocation_policy: Some(AllocationPolicy::Packed),
            }
        );
        assert_eq!(config.driver_root, Path::new("/driver"));
        assert_eq!(
            (config.imex.channel0, config.imex.required),
            (Some(true), Some(true))
        );
        assert_eq!(config.device_plugins, Path::new("/k"));
        assert_eq!(config.disabled_hooks, ["all"]);
    }

    #[rstest]
    #[case(&["--imex-channel-ids=1"], "--imex-channel-ids")]
    #[case(&["--config-map=configs"], "NAMESPACE/NAME")]
    #[case(&["--kubelet-socket=/k/other.sock"], "kubelet.sock")]
    fn what_cannot_be_is_refused(#[case] args: &[&str], #[case] about: &str) {
        let error = format!("{:#}", parse(args).config().unwrap_err());
        assert!(error.contains(about), "{error}");
    }

    #[rstest]
    #[case("kubelet.sock", "./")]
    #[case("k/kubelet.sock", "./k")]
    #[case("/k/kubelet.sock", "/k")]
    fn plugins_serve_beside_the_kubelets_socket(#[case] socket: &str, #[case] folder: &str) {
        let config = parse(&["--kubelet-socket", socket]).config().unwrap();
        // As text: `Path` takes "" and "." for much the same, and only one of them is a folder.
        assert_eq!(config.device_plugins.to_str(), Some(folder));
    }

    #[test]
    fn a_label_chooses_from_a_folder() {
        let args = parse(&[
            "--config-file-srcdir=/available-configs",
            "--default-config=a",
            "--fallback-strategies=named,single",
        ]);
        let Source::Named(rules, source) = args.config().unwrap().source else {
            panic!("the label chooses");
        };
        assert_eq!(
            source,
            named_config::Source::Folder("/available-configs".into())
        );
        assert_eq!(rules.label, named_config::DEFAULT_LABEL);
        assert_eq!(rules.default.as_deref(), Some("a"));
        assert_eq!(rules.fallbacks.len(), 2);
    }
}
