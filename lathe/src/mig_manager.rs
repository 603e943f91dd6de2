//! `lathe mig-manager`: keeps this node's GPUs cut as the node's label says.
//!
//! Flags and environment variables are those of NVIDIA's `nvidia-mig-manager`, so that its manifest keeps working. Those
//! that steer what this program does not do (yet) are accepted and named in the log.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use mig_manager::controller::{self, Config, Source};
use tokio_util::sync::CancellationToken;

use crate::mig::FailurePolicy;

/// Keep the GPUs of a node cut as the node's label `nvidia.com/mig.config` says
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the node's file system is mounted
    #[arg(long, env = "LATHE_ROOT", value_name = "DIR", default_value = "/")]
    root: PathBuf,

    /// Kubeconfig file; without it those in KUBECONFIG, or else the pod's service account
    #[arg(long, value_name = "FILE", value_parser = path)]
    kubeconfig: Option<PathBuf>,

    /// The node this runs on
    #[arg(long, short = 'n', env = "NODE_NAME", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    node_name: String,

    /// MIG configurations to choose from; without it they are made from what the hardware offers
    #[arg(long, short = 'f', env = "CONFIG_FILE", value_name = "FILE", value_parser = path)]
    config_file: Option<PathBuf>,

    /// What happens to the other GPUs when one fails
    #[arg(
        long,
        env = "LATHE_ON_FAILURE",
        value_name = "POLICY",
        value_enum,
        default_value = "rollback"
    )]
    on_failure: FailurePolicy,

    /// Where the lock and the record of a running change are kept [default: var/lib/lathe/mig below the root]
    #[arg(long, env = "LATHE_STATE_DIR", value_name = "DIR", value_parser = path)]
    state_dir: Option<PathBuf>,

    /// Where the driver's files are mounted, when that is not the node's root
    #[arg(long, short = 'a', env = "DRIVER_ROOT_CTR_PATH", value_name = "DIR", value_parser = path)]
    driver_root_ctr_path: Option<PathBuf>,

    /// This pod, named in Events as the one who reports; without it the node is
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pod_name: Option<String>,

    #[command(flatten)]
    without_effect: WithoutEffect,
}

/// An empty value, as manifests give it for what is not set, stays empty; [`given`] takes it for none.
fn path(text: &str) -> Result<PathBuf, Infallible> {
    Ok(PathBuf::from(text))
}

fn given(path: &Option<PathBuf>) -> Option<&PathBuf> {
    path.as_ref().filter(|path| !path.as_os_str().is_empty())
}

/// What NVIDIA's manager takes and this one has no use for.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Accepted for compatibility, without effect")]
struct WithoutEffect {
    /// Configurations for drivers that list no profiles: these are part of the program
    #[arg(long, env = "DEFAULT_CONFIG_FILE", value_name = "FILE", value_parser = path)]
    default_config_file: Option<PathBuf>,

    /// A script; NVIDIA's manager ignores it too since v0.13
    #[arg(long, short = 's', env = "RECONFIGURE_SCRIPT", value_name = "FILE", value_parser = path)]
    reconfigure_script: Option<PathBuf>,

    /// Where the host's file system is mounted: see --root
    #[arg(long, short = 'm', env = "HOST_ROOT_MOUNT", value_name = "DIR", value_parser = path)]
    host_root_mount: Option<PathBuf>,

    /// Where to put a program on the host: none is needed there
    #[arg(long, short = 'i', env = "HOST_NVIDIA_DIR", value_name = "DIR", value_parser = path)]
    host_nvidia_dir: Option<PathBuf>,

    /// The state file of a systemd unit on the host
    #[arg(long, short = 'o', env = "HOST_MIG_MANAGER_STATE_FILE", value_name = "FILE", value_parser = path)]
    host_mig_manager_state_file: Option<PathBuf>,

    /// The kubelet's unit: it is never stopped
    #[arg(
        long,
        short = 'k',
        env = "HOST_KUBELET_SYSTEMD_SERVICE",
        value_name = "UNIT"
    )]
    host_kubelet_systemd_service: Option<String>,

    /// Units on the host that hold GPUs
    #[arg(long, short = 'g', env = "GPU_CLIENTS_FILE", value_name = "FILE", value_parser = path)]
    gpu_clients_file: Option<PathBuf>,

    /// Reboot the node when a mode change needs it
    #[arg(long, short = 'r', env = "WITH_REBOOT", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    with_reboot: Option<bool>,

    /// Stop the host's units that hold GPUs
    #[arg(long, short = 'd', env = "WITH_SHUTDOWN_HOST_GPU_CLIENTS", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    with_shutdown_host_gpu_clients: Option<bool>,

    /// The namespace of the pods that hold GPUs
    #[arg(
        long,
        short = 'p',
        env = "DEFAULT_GPU_CLIENTS_NAMESPACE",
        value_name = "NAMESPACE"
    )]
    default_gpu_clients_namespace: Option<String>,

    /// Where the driver is on the host
    #[arg(long, short = 't', env = "NVIDIA_DRIVER_ROOT", value_name = "DIR", value_parser = path)]
    nvidia_driver_root: Option<PathBuf>,

    /// Where the device nodes are on the host
    #[arg(long, short = 'b', env = "NVIDIA_DEV_ROOT", value_name = "DIR", value_parser = path)]
    dev_root: Option<PathBuf>,

    /// Where the device nodes are mounted
    #[arg(long, short = 'j', env = "DEV_ROOT_CTR_PATH", value_name = "DIR", value_parser = path)]
    dev_root_ctr_path: Option<PathBuf>,

    /// Write CDI files after a change
    #[arg(long, env = "CDI_ENABLED", value_parser = BoolishValueParser::new(),
          num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    cdi_enabled: Option<bool>,

    /// The hook that CDI files name
    #[arg(long, env = "NVIDIA_CDI_HOOK_PATH", value_name = "FILE", value_parser = path)]
    nvidia_cdi_hook_path: Option<PathBuf>,
}

impl WithoutEffect {
    /// The flags that were given a value which asks for something.
    fn flags(&self) -> Vec<&'static str> {
        let flags = [
            (
                "--default-config-file",
                given(&self.default_config_file).is_some(),
            ),
            (
                "--reconfigure-script",
                given(&self.reconfigure_script).is_some(),
            ),
            ("--host-root-mount", given(&self.host_root_mount).is_some()),
            ("--host-nvidia-dir", given(&self.host_nvidia_dir).is_some()),
            (
                "--host-mig-manager-state-file",
                given(&self.host_mig_manager_state_file).is_some(),
            ),
            (
                "--host-kubelet-systemd-service",
                self.host_kubelet_systemd_service.is_some(),
            ),
            (
                "--gpu-clients-file",
                given(&self.gpu_clients_file).is_some(),
            ),
            ("--with-reboot", self.with_reboot == Some(true)),
            (
                "--with-shutdown-host-gpu-clients",
                self.with_shutdown_host_gpu_clients == Some(true),
            ),
            (
                "--default-gpu-clients-namespace",
                self.default_gpu_clients_namespace.is_some(),
            ),
            (
                "--nvidia-driver-root",
                given(&self.nvidia_driver_root).is_some(),
            ),
            ("--dev-root", given(&self.dev_root).is_some()),
            (
                "--dev-root-ctr-path",
                given(&self.dev_root_ctr_path).is_some(),
            ),
            ("--cdi-enabled", self.cdi_enabled == Some(true)),
            (
                "--nvidia-cdi-hook-path",
                given(&self.nvidia_cdi_hook_path).is_some(),
            ),
        ];
        flags
            .into_iter()
            .filter(|(_, given)| *given)
            .map(|(flag, _)| flag)
            .collect()
    }
}

/// Runs until `shutdown` is cancelled.
///
/// # Errors
/// No way to reach a cluster is configured, or the system gives no thread. An absent driver, node or API server is waited
/// for.
pub(crate) async fn run(args: Args, shutdown: CancellationToken) -> anyhow::Result<()> {
    let ignored = args.without_effect.flags();
    if !ignored.is_empty() {
        tracing::warn!(flags = ignored.join(" "), "these flags have no effect here");
    }
    let client =
        cluster::client("mig-manager", given(&args.kubeconfig).map(PathBuf::as_path)).await?;
    let driver_root = given(&args.driver_root_ctr_path).unwrap_or(&args.root);
    let session = nvml::Session::new(&nvml::Options::at(driver_root))?;
    controller::run(args.config(), Arc::new(session), client, shutdown).await;
    Ok(())
}

impl Args {
    fn config(&self) -> Config {
        let mut config = Config::new(&self.node_name, &self.root);
        if let Some(pod) = self.pod_name.as_ref().filter(|pod| !pod.is_empty()) {
            config.instance.clone_from(pod);
        }
        if let Some(file) = given(&self.config_file) {
            config.source = Source::File(file.clone());
        }
        config.engine.on_failure = self.on_failure.into();
        if let Some(folder) = given(&self.state_dir) {
            config.engine.state_dir.clone_from(folder);
        }
        config
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::path::Path;

    use mig_manager::engine::OnFailure;

    use super::*;
    use crate::parsed::parsed;

    fn parse(arguments: &[&str]) -> Args {
        parsed(arguments)
    }

    #[test]
    fn a_node_name_is_all_it_needs() {
        let args = parse(&["--node-name", "a"]);
        let config = args.config();
        assert_eq!(config.node_name, "a");
        assert_eq!(config.instance, "a");
        assert_eq!(config.source, Source::Hardware);
        assert_eq!(config.engine.state_dir, Path::new("/var/lib/lathe/mig"));
        assert_eq!(config.engine.on_failure, OnFailure::Rollback);
        assert_eq!(args.without_effect.flags(), Vec::<&str>::new());
    }

    #[test]
    fn upstreams_command_line_is_taken_as_it_is() {
        let args = parse(&[
            "-n",
            "a",
            "-f",
            "/mig-parted-config/config.yaml",
            "-m",
            "/host",
            "-i",
            "/usr/local/nvidia",
            "-o",
            "/etc/override.conf",
            "-k",
            "kubelet.service",
            "-g",
            "/gpu-clients/clients.yaml",
            "-r",
            "-d",
            "-p",
            "gpu-operator",
            "-t",
            "/run/nvidia/driver",
            "-a",
            "/driver-root",
            "-b",
            "/",
            "-j",
            "/",
            "-s",
            "/script",
            "--cdi-enabled=true",
            "--nvidia-cdi-hook-path",
            "/hook",
        ]);
        assert_eq!(
            args.config().source,
            Source::File("/mig-parted-config/config.yaml".into())
        );
        assert_eq!(
            given(&args.driver_root_ctr_path),
            Some(&PathBuf::from("/driver-root"))
        );
        let flags = args.without_effect.flags();
        assert_eq!(flags.len(), 14, "{flags:?}");
    }

    #[test]
    fn what_is_set_to_nothing_is_not_set() {
        let args = parse(&[
            "-n",
            "a",
            "-f",
            "",
            "-a",
            "",
            "-g",
            "",
            "--with-reboot=false",
            "--cdi-enabled=0",
        ]);
        assert_eq!(args.config().source, Source::Hardware);
        assert_eq!(given(&args.driver_root_ctr_path), None);
        assert_eq!(args.without_effect.flags(), Vec::<&str>::new());
    }
}
