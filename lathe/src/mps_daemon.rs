//! `lathe mps-daemon`: runs and looks after the MPS daemons of GPUs that containers share.
//!
//! Flags and environment variables are those of NVIDIA's `mps-control-daemon`, so that its manifest keeps working.

use std::path::PathBuf;
use std::sync::Arc;

use cluster::node::Node;
use configuration::plugin::Flags;
use device_plugin::mps::service::{Config, LONGEST_PAUSE, Service};
use device_plugin::mps::{Pace, Place, Root, shm};
use device_plugin::service::Config as PluginConfig;
use gpu::labels::MigStrategy;
use tokio_util::sync::CancellationToken;

use crate::config_source::ConfigSource;
use crate::reload;

/// Run the MPS daemons of GPUs that containers share
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the node's file system is mounted: the driver and its programs are looked up there
    #[arg(long, env = "LATHE_ROOT", value_name = "DIR", default_value = "/")]
    root: PathBuf,

    /// Where the MPS root of the host is mounted; the device plugin mounts the same one into containers
    #[arg(
        long,
        global = true,
        env = "LATHE_MPS_DIR",
        value_name = "DIR",
        default_value = "/mps"
    )]
    mps_dir: PathBuf,

    /// How MIG devices are offered: none, single or mixed [default: none]
    #[arg(long, env = "MIG_STRATEGY", value_name = "STRATEGY")]
    mig_strategy: Option<MigStrategy>,

    #[command(flatten)]
    source: ConfigSource,

    /// The node this runs on
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,

    /// Kubeconfig file; without it those in KUBECONFIG, or else the pod's service account
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Where to serve metrics and probes: HOST:PORT, or :PORT for all addresses
    #[arg(long, env = "LATHE_METRICS_ADDRESS", value_name = "ADDRESS")]
    metrics_address: Option<String>,

    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Clone, Copy, Debug, clap::Subcommand)]
enum Action {
    /// Mount the memory that MPS daemons and their clients share, and end
    MountShm,
}

impl Args {
    fn config(&self) -> anyhow::Result<Config> {
        let mut plugin = PluginConfig::new(&self.root);
        plugin.source = self.source.source()?;
        plugin.flags = Flags {
            mig_strategy: self.mig_strategy,
            ..Flags::default()
        };
        Ok(Config {
            place: Place {
                node_root: self.root.clone(),
                root: Root::new(&self.mps_dir),
                pace: Pace::default(),
            },
            plugin,
            shm: "/dev/shm".into(),
            longest_pause: LONGEST_PAUSE,
            metrics_address: self.metrics_address.clone().filter(|text| !text.is_empty()),
        })
    }

    /// The own Node: its label may choose the configuration, and it says when the MIG manager is at work.
    async fn node(&self) -> anyhow::Result<Option<Node>> {
        let Some(name) = self.node_name.as_deref().filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let without = "GPUs in use are not let go for the MIG manager";
        let kubeconfig = self.kubeconfig.as_deref();
        let client = self.source.client("mps-daemon", kubeconfig, without);
        Ok(client.await?.map(|client| Node::watch(client, name)))
    }
}

/// Serves until `shutdown` is cancelled, or mounts and ends.
///
/// # Errors
/// Flags, a configuration or an MPS root that cannot be used. An absent driver or API server is waited for.
pub(crate) async fn run(args: Args, shutdown: CancellationToken) -> anyhow::Result<()> {
    if let Some(Action::MountShm) = args.action {
        let root = Root::new(&args.mps_dir);
        let path = root.shm();
        if shm::mount_shm(&root)? {
            tracing::info!(path = %path.display(), "mounted");
        } else {
            tracing::info!(path = %path.display(), "was mounted already");
        }
        return Ok(());
    }
    let reload = reload::on_hangup()?;
    let config = args.config()?;
    let node = args.node().await?;
    let session = nvml::Session::new(&nvml::Options::at(&args.root))?;
    let service = Service::open(config, Arc::new(session), node).await?;
    service.run(&reload, shutdown).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use device_plugin::service::Source;
    use rstest::rstest;

    use super::*;
    use crate::parsed::parsed;

    fn parse(args: &[&str]) -> Args {
        parsed(args)
    }

    #[test]
    fn defaults_are_those_of_nvidias_manifest() {
        let config = parse(&[]).config().unwrap();
        assert_eq!(config.place.root.path(), Path::new("/mps"));
        assert_eq!(config.place.node_root, Path::new("/"));
        assert_eq!(config.shm, Path::new("/dev/shm"));
        assert!(matches!(config.plugin.source, Source::None));
    }

    #[test]
    fn upstreams_flags_are_taken() {
        let args = parse(&["--config-file=/config/config.yaml", "--mig-strategy=mixed"]);
        let config = args.config().unwrap();
        assert!(
            matches!(config.plugin.source, Source::File(file) if file == Path::new("/config/config.yaml"))
        );
        assert_eq!(config.plugin.flags.mig_strategy, Some(MigStrategy::Mixed));
    }

    #[rstest]
    #[case(&["mount-shm"], "/mps")]
    #[case(&["mount-shm", "--mps-dir=/run/nvidia/mps"], "/run/nvidia/mps")]
    fn memory_is_mounted_on_its_own(#[case] args: &[&str], #[case] root: &str) {
        let args = parse(args);
        assert!(matches!(args.action, Some(Action::MountShm)));
        assert_eq!(args.mps_dir, Path::new(root));
    }
}
