//! Flags of NVIDIA's exporter that steer what this program does not do (yet).

use std::path::PathBuf;

use clap::builder::BoolishValueParser;

/// What NVIDIA's exporter takes and this one has no use for, or not yet.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Accepted for compatibility, without effect")]
pub(super) struct WithoutEffect {
    /// Pod labels as labels
    #[arg(long, env = "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    kubernetes_enable_pod_labels: Option<bool>,

    /// Pod UIDs as labels
    #[arg(long, env = "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    kubernetes_enable_pod_uid: Option<bool>,

    /// How pods name GPUs
    #[arg(
        long,
        env = "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE",
        value_name = "TYPE"
    )]
    kubernetes_gpu_id_type: Option<String>,

    /// Which pod labels become labels
    #[arg(
        long,
        env = "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX",
        value_name = "REGEX"
    )]
    kubernetes_pod_label_allowlist_regex: Option<String>,

    /// A series per pod that shares a GPU
    #[arg(long, env = "KUBERNETES_VIRTUAL_GPUS", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    kubernetes_virtual_gpus: Option<bool>,

    /// Label samples with resource claims
    #[arg(long, env = "KUBERNETES_ENABLE_DRA", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    kubernetes_enable_dra: Option<bool>,

    /// CPUs to export
    #[arg(
        long,
        short = 'p',
        env = "DCGM_EXPORTER_CPU_DEVICES_STR",
        value_name = "SELECTOR"
    )]
    cpu_devices: Option<String>,

    /// Switches to export
    #[arg(
        long,
        short = 's',
        env = "DCGM_EXPORTER_OTHER_DEVICES_STR",
        value_name = "SELECTOR"
    )]
    switch_devices: Option<String>,

    /// A ConfigMap with counters
    #[arg(
        long,
        short = 'm',
        env = "DCGM_EXPORTER_CONFIGMAP_DATA",
        value_name = "NAMESPACE:NAME"
    )]
    configmap_data: Option<String>,

    /// A host engine: this program reads NVML itself
    #[arg(
        long,
        short = 'r',
        env = "DCGM_REMOTE_HOSTENGINE_INFO",
        value_name = "ADDRESS"
    )]
    remote_hostengine_info: Option<String>,

    /// Take injected entities
    #[arg(long, env = "DCGM_EXPORTER_USE_FAKE_GPUS", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    fake_gpus: Option<bool>,

    /// TLS and authentication
    #[arg(long, env = "DCGM_EXPORTER_WEB_CONFIG_FILE", value_name = "FILE")]
    web_config_file: Option<PathBuf>,

    /// A socket from systemd
    #[arg(long, env = "DCGM_EXPORTER_SYSTEMD_SOCKET", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    web_systemd_socket: Option<bool>,

    /// Window of the XID counter, in milliseconds
    #[arg(
        long,
        short = 'x',
        env = "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE",
        value_name = "MS"
    )]
    xid_count_window_size: Option<u64>,

    /// Window of the clock event counter, in milliseconds
    #[arg(
        long,
        env = "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE",
        value_name = "MS"
    )]
    clock_events_count_window_size: Option<u64>,

    /// DCGM's own log
    #[arg(long, env = "DCGM_EXPORTER_ENABLE_DCGM_LOG", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    enable_dcgm_log: Option<bool>,

    /// Level of DCGM's own log
    #[arg(long, env = "DCGM_EXPORTER_DCGM_LOG_LEVEL", value_name = "LEVEL")]
    dcgm_log_level: Option<String>,

    /// Folder with job names
    #[arg(long, env = "DCGM_HPC_JOB_MAPPING_DIR", value_name = "DIR")]
    hpc_job_mapping_dir: Option<PathBuf>,

    /// Write each scrape to disk
    #[arg(long, env = "DCGM_EXPORTER_DUMP_ENABLED", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    dump_enabled: Option<bool>,

    /// Where to write scrapes
    #[arg(long, env = "DCGM_EXPORTER_DUMP_DIRECTORY", value_name = "DIR")]
    dump_directory: Option<PathBuf>,

    /// Hours to keep them
    #[arg(long, env = "DCGM_EXPORTER_DUMP_RETENTION", value_name = "HOURS")]
    dump_retention: Option<u64>,

    /// Whether to compress them
    #[arg(long, env = "DCGM_EXPORTER_DUMP_COMPRESSION", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    dump_compression: Option<bool>,

    /// Start without looking for DCGM: this program does not need it
    #[arg(long, env = "DISABLE_STARTUP_VALIDATE", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    disable_startup_validate: Option<bool>,

    /// Watch GPUs come and go: that is always done
    #[arg(long, env = "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    enable_gpu_bind_unbind_watch: Option<bool>,

    /// How often to look for them
    #[arg(
        long,
        env = "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL",
        value_name = "DURATION"
    )]
    gpu_bind_unbind_poll_interval: Option<String>,

    /// Configuration file of dcgm-exporter 4.8.3 and later
    #[arg(long, env = "DCGM_EXPORTER_CONFIG_FILE", value_name = "FILE")]
    config_file: Option<PathBuf>,

    /// How long a client may take to send a request
    #[arg(long, env = "DCGM_EXPORTER_WEB_READ_TIMEOUT", value_name = "DURATION")]
    web_read_timeout: Option<String>,

    /// How long a client may take to read an answer
    #[arg(long, env = "DCGM_EXPORTER_WEB_WRITE_TIMEOUT", value_name = "DURATION")]
    web_write_timeout: Option<String>,

    /// Scrapes at once
    #[arg(long, env = "DCGM_EXPORTER_MAX_CONCURRENT_SCRAPES", value_name = "N")]
    max_concurrent_scrapes: Option<u32>,

    /// Metrics of the exporter's own Go process
    #[arg(long, env = "DCGM_EXPORTER_ENABLE_EXPORTER_METRICS", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    enable_exporter_metrics: Option<bool>,

    /// How long DCGM keeps samples
    #[arg(
        long,
        env = "DCGM_EXPORTER_WATCH_MAX_KEEP_AGE",
        value_name = "DURATION"
    )]
    watch_max_keep_age: Option<String>,

    /// How many samples DCGM keeps
    #[arg(long, env = "DCGM_EXPORTER_WATCH_MAX_KEEP_SAMPLES", value_name = "N")]
    watch_max_keep_samples: Option<u32>,

    /// Label samples with containers outside Kubernetes
    #[arg(long, env = "DCGM_EXPORTER_CONTAINER_LABELS", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    container_labels: Option<bool>,

    /// The container runtime's socket
    #[arg(long, env = "DCGM_CONTAINER_RUNTIME_SOCKET", value_name = "FILE")]
    container_runtime_socket: Option<PathBuf>,

    /// Go profiles
    #[arg(long, env = "DCGM_EXPORTER_ENABLE_PPROF", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    enable_pprof: Option<bool>,
}

impl WithoutEffect {
    /// The flags that were given a value which asks for something.
    pub(super) fn given(&self) -> Vec<&'static str> {
        let flags = [
            (
                "--kubernetes-enable-pod-labels",
                self.kubernetes_enable_pod_labels == Some(true),
            ),
            (
                "--kubernetes-enable-pod-uid",
                self.kubernetes_enable_pod_uid == Some(true),
            ),
            (
                "--kubernetes-gpu-id-type",
                self.kubernetes_gpu_id_type.is_some(),
            ),
            (
                "--kubernetes-pod-label-allowlist-regex",
                self.kubernetes_pod_label_allowlist_regex.is_some(),
            ),
            (
                "--kubernetes-virtual-gpus",
                self.kubernetes_virtual_gpus == Some(true),
            ),
            (
                "--kubernetes-enable-dra",
                self.kubernetes_enable_dra == Some(true),
            ),
            (
                "--cpu-devices",
                self.cpu_devices
                    .as_deref()
                    .is_some_and(|devices| devices != "f"),
            ),
            (
                "--switch-devices",
                self.switch_devices
                    .as_deref()
                    .is_some_and(|devices| devices != "f"),
            ),
            (
                "--configmap-data",
                self.configmap_data
                    .as_deref()
                    .is_some_and(|name| name != "none"),
            ),
            (
                "--remote-hostengine-info",
                self.remote_hostengine_info.is_some(),
            ),
            ("--fake-gpus", self.fake_gpus == Some(true)),
            (
                "--web-config-file",
                self.web_config_file
                    .as_ref()
                    .is_some_and(|file| !file.as_os_str().is_empty()),
            ),
            (
                "--web-systemd-socket",
                self.web_systemd_socket == Some(true),
            ),
            (
                "--xid-count-window-size",
                self.xid_count_window_size.is_some(),
            ),
            (
                "--clock-events-count-window-size",
                self.clock_events_count_window_size.is_some(),
            ),
            ("--enable-dcgm-log", self.enable_dcgm_log == Some(true)),
            ("--dcgm-log-level", self.dcgm_log_level.is_some()),
            (
                "--hpc-job-mapping-dir",
                self.hpc_job_mapping_dir
                    .as_ref()
                    .is_some_and(|dir| !dir.as_os_str().is_empty()),
            ),
            ("--dump-enabled", self.dump_enabled == Some(true)),
            ("--dump-directory", self.dump_directory.is_some()),
            ("--dump-retention", self.dump_retention.is_some()),
            ("--dump-compression", self.dump_compression == Some(true)),
            (
                "--disable-startup-validate",
                self.disable_startup_validate == Some(true),
            ),
            (
                "--enable-gpu-bind-unbind-watch",
                self.enable_gpu_bind_unbind_watch == Some(true),
            ),
            (
                "--gpu-bind-unbind-poll-interval",
                self.gpu_bind_unbind_poll_interval.is_some(),
            ),
            (
                "--config-file",
                self.config_file
                    .as_ref()
                    .is_some_and(|file| !file.as_os_str().is_empty()),
            ),
            ("--web-read-timeout", self.web_read_timeout.is_some()),
            ("--web-write-timeout", self.web_write_timeout.is_some()),
            (
                "--max-concurrent-scrapes",
                self.max_concurrent_scrapes.is_some(),
            ),
            (
                "--enable-exporter-metrics",
                self.enable_exporter_metrics == Some(true),
            ),
            ("--watch-max-keep-age", self.watch_max_keep_age.is_some()),
            (
                "--watch-max-keep-samples",
                self.watch_max_keep_samples.is_some(),
            ),
            ("--container-labels", self.container_labels == Some(true)),
            (
                "--container-runtime-socket",
                self.container_runtime_socket.is_some(),
            ),
            ("--enable-pprof", self.enable_pprof == Some(true)),
        ];
        flags
            .into_iter()
            .filter(|(_, given)| *given)
            .map(|(flag, _)| flag)
            .collect()
    }
}
