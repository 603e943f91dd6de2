//! The flags of `lathe device-plugin`, their environment variables and their help.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use configuration::plugin::{
    AllocationPolicy, DeviceIdStrategy, DeviceListStrategy, DiscoveryStrategy,
};
use gpu::labels::MigStrategy;

use crate::config_source::ConfigSource;

/// Offer the node's GPUs, MIG devices and shares of them to the kubelet
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the node's file system is mounted
    #[arg(long, env = "LATHE_ROOT", value_name = "DIR", default_value = "/")]
    pub(super) root: PathBuf,

    /// How MIG devices are offered: none, single or mixed [default: none]
    #[arg(long, env = "MIG_STRATEGY", value_name = "STRATEGY")]
    pub(super) mig_strategy: Option<MigStrategy>,

    /// Whether a driver that is not there at the start is an error; otherwise it is waited for [default: false]
    #[arg(long, env = "FAIL_ON_INIT_ERROR", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(super) fail_on_init_error: Option<bool>,

    #[command(flatten)]
    pub(super) source: ConfigSource,

    /// How the container runtime learns of devices: envvar, volume-mounts, cdi-annotations, cdi-cri [default: envvar]
    #[arg(
        long,
        env = "DEVICE_LIST_STRATEGY",
        value_name = "STRATEGY",
        value_delimiter = ','
    )]
    pub(super) device_list_strategy: Vec<DeviceListStrategy>,

    /// What devices are called towards the container runtime: uuid or index [default: uuid]
    #[arg(long, env = "DEVICE_ID_STRATEGY", value_name = "STRATEGY")]
    pub(super) device_id_strategy: Option<DeviceIdStrategy>,

    /// Name the device nodes to the kubelet as well [default: false]
    #[arg(long, env = "PASS_DEVICE_SPECS", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(super) pass_device_specs: Option<bool>,

    /// Which shares a container gets: distributed, packed or distinct [default: distributed]
    #[arg(long, env = "SHARED_DEVICES_ALLOCATION_POLICY", value_name = "POLICY")]
    pub(super) shared_devices_allocation_policy: Option<AllocationPolicy>,

    /// Where the driver is on the host [default: /]
    #[arg(
        long,
        visible_alias = "nvidia-driver-root",
        env = "NVIDIA_DRIVER_ROOT",
        value_name = "DIR"
    )]
    pub(super) driver_root: Option<PathBuf>,

    /// Where the device nodes are on the host [default: where the driver is]
    #[arg(
        long,
        visible_alias = "nvidia-dev-root",
        env = "NVIDIA_DEV_ROOT",
        value_name = "DIR"
    )]
    pub(super) dev_root: Option<PathBuf>,

    /// Where the driver's files are mounted here [default: /driver-root if it is there, or else the root]
    #[arg(
        long,
        visible_alias = "container-driver-root",
        env = "DRIVER_ROOT_CTR_PATH",
        value_name = "DIR"
    )]
    pub(super) driver_root_ctr_path: Option<PathBuf>,

    /// Give containers GPUDirect RDMA copies (gdrdrv) [default: false]
    #[arg(long, env = "GDRCOPY_ENABLED", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(super) gdrcopy_enabled: Option<bool>,

    /// Give containers GPUDirect Storage (nvidia-fs) [default: false]
    #[arg(long, env = "GDS_ENABLED", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(super) gds_enabled: Option<bool>,

    /// Give containers the InfiniBand devices [default: false]
    #[arg(long, env = "MOFED_ENABLED", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(super) mofed_enabled: Option<bool>,

    /// IMEX channels for every container: 0 or none
    #[arg(
        long,
        env = "IMEX_CHANNEL_IDS",
        value_name = "N",
        value_delimiter = ','
    )]
    pub(super) imex_channel_ids: Vec<u32>,

    /// Whether a node without the IMEX channel cannot serve [default: false]
    #[arg(long, env = "IMEX_REQUIRED", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub(super) imex_required: Option<bool>,

    /// Prefix of annotations with CDI names [default: cdi.k8s.io/]
    #[arg(long, env = "CDI_ANNOTATION_PREFIX", value_name = "PREFIX")]
    pub(super) cdi_annotation_prefix: Option<String>,

    /// Program on the host that CDI hooks run, if it is there [default: /usr/bin/nvidia-ctk]
    #[arg(
        long,
        visible_alias = "nvidia-ctk-path",
        env = "NVIDIA_CDI_HOOK_PATH",
        value_name = "FILE"
    )]
    pub(super) nvidia_cdi_hook_path: Option<PathBuf>,

    /// CDI hooks to leave out, or all
    #[arg(
        long,
        env = "CDI_DISABLE_HOOKS",
        value_name = "HOOK",
        value_delimiter = ','
    )]
    pub(super) cdi_disable_hooks: Vec<String>,

    /// Where CDI specs are written [default: /var/run/cdi below the root]
    #[arg(long, env = "LATHE_CDI_DIR", value_name = "DIR")]
    pub(super) cdi_dir: Option<PathBuf>,

    /// Where the MPS daemon's folders are on the host
    #[arg(long, env = "MPS_ROOT", value_name = "DIR")]
    pub(super) mps_root: Option<PathBuf>,

    /// How devices are found: auto or nvml [default: auto]
    #[arg(long, env = "DEVICE_DISCOVERY_STRATEGY", value_name = "STRATEGY")]
    pub(super) device_discovery_strategy: Option<DiscoveryStrategy>,

    /// The kubelet's socket for device plugins [default: /var/lib/kubelet/device-plugins/kubelet.sock below the root]
    #[arg(long, env = "KUBELET_SOCKET", value_name = "FILE")]
    pub(super) kubelet_socket: Option<PathBuf>,

    /// The kubelet's socket that tells who has what [default: /var/lib/kubelet/pod-resources/kubelet.sock below the root]
    #[arg(long, env = "LATHE_POD_RESOURCES_SOCKET", value_name = "FILE")]
    pub(super) pod_resources_socket: Option<PathBuf>,

    /// What makes a device unhealthy and what heals it; without it a built-in policy
    #[arg(long, env = "LATHE_HEALTH_POLICY", value_name = "FILE")]
    pub(super) health_policy: Option<PathBuf>,

    /// XIDs that do not make devices unhealthy, or all
    #[arg(
        long,
        env = "DP_DISABLE_HEALTHCHECKS",
        value_name = "LIST",
        default_value = "",
        hide_default_value = true
    )]
    pub(super) disable_healthchecks: String,

    /// XIDs that make devices unhealthy whatever else says, or all
    #[arg(
        long,
        env = "DP_ENABLE_HEALTHCHECKS",
        value_name = "LIST",
        default_value = "",
        hide_default_value = true
    )]
    pub(super) enable_healthchecks: String,

    /// The node this runs on; without it the cluster's API is not used: no label, no Events, no condition
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub(super) node_name: Option<String>,

    /// This pod, named in Events as the one who reports; without it the node is
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub(super) pod_name: Option<String>,

    /// Kubeconfig file; without it those in KUBECONFIG, or else the pod's service account
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,

    /// Show unhealthy GPUs as a condition of the node
    #[arg(long, env = "LATHE_NODE_CONDITION", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", value_name = "BOOL")]
    pub(super) node_condition: bool,

    /// Where to serve /metrics, /healthz and /readyz: HOST:PORT, or :PORT for all addresses; without it nowhere
    #[arg(long, env = "LATHE_METRICS_ADDRESS", value_name = "ADDRESS")]
    pub(super) metrics_address: Option<String>,

    #[command(flatten)]
    pub(super) without_effect: WithoutEffect,
}

/// What NVIDIA's plugin takes and this one has no use for.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Accepted for compatibility, without effect")]
pub(super) struct WithoutEffect {
    /// Features of NVIDIA's CDI library
    #[arg(
        long,
        env = "CDI_FEATURE_FLAGS",
        value_name = "FLAG",
        value_delimiter = ','
    )]
    pub(super) cdi_feature_flags: Vec<String>,
}
