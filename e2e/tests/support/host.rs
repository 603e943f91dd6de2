//! Where the kubelet and the container runtime are, seen from here: for tests that are plugins, or install one.

use std::path::{Path, PathBuf};

use kubelet::Paths;

use super::cluster::{skipped, variable};

/// Folders of the node, which is this machine.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) kubelet: Paths,
    /// The kubelet's `--root-dir`.
    pub(crate) kubelet_root: PathBuf,
    /// For the kubelet `/var/lib/kubelet/device-plugins`.
    pub(crate) device_plugins: PathBuf,
    pub(crate) cdi: PathBuf,
}

/// `None`, after a line that says so, when the folders are not given.
pub(crate) fn host() -> Option<Host> {
    let (Some(root), Some(cdi)) = (variable("LATHE_E2E_KUBELET"), variable("LATHE_E2E_CDI")) else {
        skipped("LATHE_E2E_KUBELET and LATHE_E2E_CDI name no folders");
        return None;
    };
    let kubelet = Paths::below(Path::new("/"), Path::new(&root));
    Some(Host {
        device_plugins: variable("LATHE_E2E_DEVICE_PLUGINS")
            .map_or_else(|| kubelet.device_plugins(), PathBuf::from),
        kubelet,
        kubelet_root: root.into(),
        cdi: cdi.into(),
    })
}
