//! What the service is told at its start.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cdi::{Root, Roots};
use cluster::named_config;
use configuration::document::DocumentError;
use configuration::plugin::{Flags, Imex};

use super::looks::LOOK_WAIT;
use super::prepare::{Places, device_root};
use super::settings::{Settings, SettingsError};
use crate::allocation::LIST_WAIT;
use crate::health::{Policy, Xids};

/// NVIDIA's program for CDI hooks, where its container toolkit is installed on the host.
const HOOK_PROGRAM: &str = "/usr/bin/nvidia-ctk";

/// How the service runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the node's file system is mounted: `/sys`, `/proc`, `/dev`.
    pub root: PathBuf,
    /// Where the driver's files are mounted.
    pub driver_root: PathBuf,
    /// What the command line and the environment say; it wins over every file.
    pub flags: Flags,
    /// The same of `imex`.
    pub imex: Imex,
    /// Where the rest of the configuration comes from.
    pub source: Source,
    /// What makes devices unhealthy; `None` for the built-in policy.
    pub health_policy: Option<PathBuf>,
    /// XIDs that matter or not, whatever the policy says.
    pub xids: Xids,
    /// The kubelet's folder for device plugins.
    pub device_plugins: PathBuf,
    /// Where the kubelet's other files are.
    pub kubelet: kubelet::Paths,
    /// How long a call of the kubelet waits for its list of what containers hold; without one nobody is refused.
    pub list_wait: Duration,
    /// How long a GPU may take to say how it is; then it is not waited for, and not offered until it does.
    pub look_wait: Duration,
    /// Where CDI specs are written.
    pub cdi_folder: PathBuf,
    /// CDI hooks that must not be used; `all` is all.
    pub disabled_hooks: Vec<String>,
    /// Where the folders of the MPS daemon are mounted.
    pub mps_root: PathBuf,
    /// Whether the node's condition is written.
    pub condition: bool,
    /// Where to serve metrics and probes.
    pub metrics_address: Option<String>,
}

impl Config {
    /// The usual configuration for a node whose file system is at `root`.
    pub fn new(root: &Path) -> Self {
        let kubelet = kubelet::Paths::below(root, Path::new(kubelet::Paths::DEFAULT));
        Self {
            root: root.to_owned(),
            driver_root: root.to_owned(),
            flags: Flags::default(),
            imex: Imex::default(),
            source: Source::None,
            health_policy: None,
            xids: Xids::default(),
            device_plugins: kubelet.device_plugins(),
            kubelet,
            list_wait: LIST_WAIT,
            look_wait: LOOK_WAIT,
            cdi_folder: root.join("var/run/cdi"),
            disabled_hooks: Vec::new(),
            mps_root: PathBuf::from(crate::mps::paths::CONTAINER_ROOT),
            condition: true,
            metrics_address: None,
        }
    }

    /// Where the node's files are, and how specs name them. What the container runtime sees as the driver's root is the host's
    /// business, so a configuration may change it; where it is mounted here cannot change.
    pub(super) fn places(&self, settings: &Settings) -> Places {
        let flags = &settings.file.flags;
        let on_host = flags.driver_root.clone().unwrap_or_else(|| "/".into());
        let devices = device_root(&self.driver_root, &self.root);
        let usual = || {
            let there = self
                .root
                .join(HOOK_PROGRAM.trim_start_matches('/'))
                .exists();
            there.then(|| PathBuf::from(HOOK_PROGRAM))
        };
        Places {
            roots: Roots {
                node: Root::new(&self.root, "/"),
                driver: Root::new(&self.driver_root, on_host),
                devices: Root::new(devices, &settings.options.dev_root),
            },
            specs: self.cdi_folder.clone(),
            // Whoever names a program hears that it is missing; nobody need have the usual one.
            hook_program: flags.plugin.cdi_hook_path.clone().or_else(usual),
            disabled_hooks: self.disabled_hooks.clone(),
        }
    }

    pub(super) fn policy(&self) -> Result<Policy, DocumentError> {
        let policy = match &self.health_policy {
            Some(path) => Policy::read(path)?,
            None => Policy::default(),
        };
        Ok(policy.under(self.xids.clone()))
    }
}

/// Where a configuration comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Nowhere: flags say everything.
    None,
    /// A file.
    File(PathBuf),
    /// One of several, which the node's label names. Needs a [`Cluster`].
    Named(named_config::Rules, named_config::Source),
}

/// The API server, and who we are there.
#[derive(Clone)]
pub struct Cluster {
    /// A client of it.
    pub client: kube::Client,
    /// The node this runs on.
    pub node: String,
    /// Who says what an Event says: the pod, or the node.
    pub instance: String,
}

/// Why the service ends other than by being asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The configuration cannot be used, and there is none to fall back to.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The health policy cannot be used.
    #[error(transparent)]
    Policy(#[from] DocumentError),
    /// A configuration by label, and no API server to ask.
    #[error("the node's label chooses the configuration, but no node is named: set NODE_NAME")]
    NoNode,
    /// There is no driver, and that was said to be an error.
    #[error("{0}; with --fail-on-init-error=false it is waited for")]
    NoDriver(nvml::Error),
    /// The kubelet's folder cannot be used.
    #[error(transparent)]
    Kubelet(#[from] kubelet::Error),
    /// Metrics and probes cannot be served.
    #[error(transparent)]
    Bind(#[from] cluster::serve::BindError),
    /// A metric is misnamed.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The system gives no thread.
    #[error(transparent)]
    Hardware(nvml::Error),
}
