//! What the user chose of how devices are given to containers, checked.

use std::path::{Path, PathBuf};

use configuration::plugin::{
    AllocationPolicy, DeviceIdStrategy, DeviceListStrategy, PluginFile, SharingKind,
};

use super::response::annotation_key;

/// What NVIDIA's plugin takes where nothing says otherwise; it is the only prefix that container runtimes know by themselves.
const ANNOTATION_PREFIX: &str = "cdi.k8s.io/";

/// How devices are given to containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `deviceListStrategy`: how the container runtime learns of devices.
    pub lists: DeviceLists,
    /// `deviceIDStrategy`: what devices are called towards the container runtime.
    pub ids: DeviceIdStrategy,
    /// `passDeviceSpecs`: whether the kubelet is told the device nodes as well.
    pub device_specs: bool,
    /// `gdrcopyEnabled`.
    pub gdrcopy: bool,
    /// `gdsEnabled`.
    pub gds: bool,
    /// `mofedEnabled`.
    pub mofed: bool,
    /// `cdiAnnotationPrefix`.
    pub annotation_prefix: String,
    /// `nvidiaDevRoot`: the folder on the host that has the `dev` of device nodes.
    pub dev_root: PathBuf,
    /// `mpsRoot` on the host, when devices are shared by MPS.
    pub mps_root: Option<PathBuf>,
    /// `imex`.
    pub imex: Imex,
    /// `sharedDevicesAllocationPolicy`.
    pub policy: AllocationPolicy,
    /// `failRequestsGreaterThanOne`: whether a container may have one share only.
    pub one_share: bool,
}

/// IMEX channels in containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Imex {
    /// None.
    #[default]
    No,
    /// Channel 0, where the node has it.
    IfPresent,
    /// Channel 0; without it, nothing can be served.
    Required,
}

/// How the container runtime learns of devices: one or several ways at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLists {
    /// `envvar`.
    pub envvar: bool,
    /// `volume-mounts`.
    pub volume_mounts: bool,
    /// `cdi-annotations`.
    pub cdi_annotations: bool,
    /// `cdi-cri`.
    pub cdi_cri: bool,
}

impl DeviceLists {
    /// What NVIDIA's plugin does where nothing says otherwise.
    const ENVVAR: Self = Self {
        envvar: true,
        volume_mounts: false,
        cdi_annotations: false,
        cdi_cri: false,
    };

    /// Whether containers get devices through CDI, so that CDI specs are needed.
    pub fn cdi(self) -> bool {
        self.cdi_annotations || self.cdi_cri
    }

    /// Whether CDI is the only way.
    pub fn only_cdi(self) -> bool {
        !self.envvar && !self.volume_mounts
    }
}

impl FromIterator<DeviceListStrategy> for DeviceLists {
    fn from_iter<I: IntoIterator<Item = DeviceListStrategy>>(strategies: I) -> Self {
        let mut lists = Self::default();
        for strategy in strategies {
            *match strategy {
                DeviceListStrategy::Envvar => &mut lists.envvar,
                DeviceListStrategy::VolumeMounts => &mut lists.volume_mounts,
                DeviceListStrategy::CdiAnnotations => &mut lists.cdi_annotations,
                DeviceListStrategy::CdiCri => &mut lists.cdi_cri,
            } = true;
        }
        lists
    }
}

/// The options exclude each other, or lack something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// Devices are shared by MPS, and nobody says where its daemon is.
    #[error(
        "sharing by MPS needs mpsRoot (--mps-root): the folder on the host that the MPS daemon uses, for example /run/nvidia/mps"
    )]
    NoMpsRoot,
    /// A folder that is not named from the root.
    #[error("{key} is {path:?}: use an absolute path")]
    Relative {
        /// The key in the file.
        key: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// A prefix that makes no annotation.
    #[error(
        "cdiAnnotationPrefix (--cdi-annotation-prefix) is {prefix:?}: use a DNS subdomain and '/', such as {ANNOTATION_PREFIX}"
    )]
    AnnotationPrefix {
        /// The prefix.
        prefix: String,
    },
    /// IMEX channels other than 0.
    #[error("imex.channelIDs (--imex-channel-ids) is {channels:?}: only [] and [0] are possible")]
    ImexChannels {
        /// The channels.
        channels: Vec<u32>,
    },
}

impl Options {
    /// The options of a file, after what wins over the file has been put into it.
    ///
    /// MPS and MIG strategy `mixed` together, which NVIDIA's plugin refuses, are fine: MIG devices are not shared then, and
    /// [`Warning::MpsOnMig`](crate::resources::Warning::MpsOnMig) says so.
    ///
    /// # Errors
    /// [`OptionsError`] says what to change.
    pub fn new(file: &PluginFile) -> Result<Self, OptionsError> {
        let flags = &file.flags;
        let plugin = &flags.plugin;
        let strategies = plugin.device_list_strategies.iter().flatten().copied();
        let lists = match strategies.collect() {
            lists if lists == DeviceLists::default() => DeviceLists::ENVVAR,
            lists => lists,
        };
        let driver_root = flags.driver_root.as_deref().unwrap_or(Path::new("/"));
        let driver_root = absolute("nvidiaDriverRoot", driver_root)?;
        let dev_root = match &flags.dev_root {
            Some(path) => absolute("nvidiaDevRoot", path)?,
            None => driver_root,
        };
        let mps = file
            .sharing
            .as_ref()
            .is_some_and(|sharing| sharing.kind == SharingKind::Mps);
        let mps_root = match flags.mps_root.as_deref() {
            _ if !mps => None,
            Some(path) if !path.as_os_str().is_empty() => Some(absolute("mpsRoot", path)?),
            _ => return Err(OptionsError::NoMpsRoot),
        };
        let prefix = plugin.cdi_annotation_prefix.as_deref();
        let prefix = prefix.unwrap_or(ANNOTATION_PREFIX);
        if !is_annotation(&annotation_key(prefix, "nvidia.com/gpu")) {
            let prefix = prefix.chars().take(80).collect();
            return Err(OptionsError::AnnotationPrefix { prefix });
        }
        Ok(Self {
            lists,
            ids: plugin.device_id_strategy.unwrap_or(DeviceIdStrategy::Uuid),
            device_specs: plugin.pass_device_specs.unwrap_or(false),
            gdrcopy: flags.gdrcopy.unwrap_or(false),
            gds: flags.gds.unwrap_or(false),
            mofed: flags.mofed.unwrap_or(false),
            annotation_prefix: prefix.to_owned(),
            dev_root: dev_root.to_owned(),
            mps_root: mps_root.map(Path::to_owned),
            imex: match (file.imex.channel0, file.imex.required) {
                (Some(true), Some(true)) => Imex::Required,
                (Some(true), _) => Imex::IfPresent,
                _ => Imex::No,
            },
            policy: plugin
                .allocation_policy
                .unwrap_or(AllocationPolicy::Distributed),
            one_share: file
                .sharing
                .as_ref()
                .is_some_and(|sharing| sharing.fail_requests_greater_than_one),
        })
    }

    /// What the user should know of these options on a node with so many resources.
    pub fn caution(&self, resources: usize) -> Option<&'static str> {
        (resources > 1 && self.lists == DeviceLists::ENVVAR).then_some(
            "a container that asks for two of this node's resources sees devices of one of them, because deviceListStrategy is envvar: use cdi-cri",
        )
    }
}

impl Imex {
    /// Checks a list of channels: whether it has channel 0, the only one that can be given.
    ///
    /// # Errors
    /// [`OptionsError::ImexChannels`] for any other list.
    pub fn channel0(channels: &[u32]) -> Result<bool, OptionsError> {
        match channels {
            [] => Ok(false),
            [0] => Ok(true),
            _ => Err(OptionsError::ImexChannels {
                channels: channels.to_owned(),
            }),
        }
    }
}

fn absolute<'a>(key: &'static str, path: &'a Path) -> Result<&'a Path, OptionsError> {
    if path.is_absolute() {
        return Ok(path);
    }
    let path = path.to_owned();
    Err(OptionsError::Relative { key, path })
}

/// Whether the API would take the key of an annotation: a DNS subdomain, `/`, and a name of at most 63 characters.
fn is_annotation(key: &str) -> bool {
    let Some((prefix, name)) = key.split_once('/') else {
        return false;
    };
    let ends = |text: &str, edge: fn(&u8) -> bool| {
        let bytes = text.as_bytes();
        bytes.first().is_some_and(edge) && bytes.last().is_some_and(edge)
    };
    let label = |label: &str| {
        ends(label, |c| c.is_ascii_lowercase() || c.is_ascii_digit())
            && label
                .bytes()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
    };
    prefix.len() <= 253
        && prefix.split('.').all(label)
        && name.len() <= 63
        && ends(name, u8::is_ascii_alphanumeric)
        && name
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c))
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
