//! Where the kubelet's sockets lie.

use std::path::{Path, PathBuf};

/// The kubelet's folder, seen from here and seen from the kubelet.
///
/// The two differ when a part looks at the node through a mount: it opens `/host/var/lib/kubelet/…` and has to tell the
/// kubelet `/var/lib/kubelet/…`. The kubelet's own folder is a setting of its own (`--root-dir`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    root: PathBuf,
    here: PathBuf,
    kubelet: PathBuf,
    pod_resources: PathBuf,
}

/// The kubelet takes device plugins' registrations here whatever its own folder is (`DevicePluginPath`).
const DEVICE_PLUGINS: &str = "var/lib/kubelet/device-plugins";

impl Paths {
    /// The kubelet's folder where nothing says otherwise.
    pub const DEFAULT: &'static str = "/var/lib/kubelet";

    /// The kubelet's folder `kubelet` on the node whose file system is mounted at `root`.
    pub fn below(root: &Path, kubelet: &Path) -> Self {
        let relative = kubelet.strip_prefix("/").unwrap_or(kubelet);
        let here = root.join(relative);
        Self {
            root: root.to_owned(),
            pod_resources: here.join("pod-resources/kubelet.sock"),
            here,
            kubelet: kubelet.to_owned(),
        }
    }

    /// The same with the socket of the pod resources API elsewhere: a pod may have a mount of its folder alone.
    #[must_use]
    pub fn with_pod_resources(self, socket: &Path) -> Self {
        Self {
            pod_resources: socket.to_owned(),
            ..self
        }
    }

    /// Where device plugins serve and the kubelet takes their registrations.
    pub fn device_plugins(&self) -> PathBuf {
        self.root.join(DEVICE_PLUGINS)
    }

    /// Where the kubelet looks for plugins that register by being there.
    pub fn plugins_registry(&self) -> PathBuf {
        self.here.join("plugins_registry")
    }

    /// The folder of one plugin, for its socket and its state.
    pub fn plugin(&self, name: &str) -> PathBuf {
        self.here.join("plugins").join(name)
    }

    /// The socket of the pod resources API.
    pub fn pod_resources(&self) -> PathBuf {
        self.pod_resources.clone()
    }

    /// The path by which the kubelet knows `path`; `path` itself when it does not lie below the kubelet's folder.
    pub fn seen_by_kubelet(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.here)
            .map_or_else(|_| path.to_owned(), |relative| self.kubelet.join(relative))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_plugins_do_not_move_with_the_kubelets_folder() {
        let paths = Paths::below(Path::new("/host"), Path::new("/data/kubelet"));
        assert_eq!(
            paths.device_plugins(),
            Path::new("/host/var/lib/kubelet/device-plugins")
        );
        assert_eq!(
            paths.plugins_registry(),
            Path::new("/host/data/kubelet/plugins_registry")
        );
    }

    #[test]
    fn the_socket_of_pod_resources_may_be_elsewhere() {
        let paths = Paths::below(Path::new("/"), Path::new(Paths::DEFAULT));
        let paths = paths.with_pod_resources(Path::new("/pods/kubelet.sock"));
        assert_eq!(paths.pod_resources(), Path::new("/pods/kubelet.sock"));
        assert_eq!(paths.plugin("x"), Path::new("/var/lib/kubelet/plugins/x"));
    }

    #[test]
    fn a_mounted_node_has_two_names_for_one_socket() {
        let paths = Paths::below(Path::new("/host"), Path::new("/var/lib/kubelet"));
        assert_eq!(
            paths.device_plugins(),
            Path::new("/host/var/lib/kubelet/device-plugins")
        );
        assert_eq!(
            paths.plugins_registry(),
            Path::new("/host/var/lib/kubelet/plugins_registry")
        );
        assert_eq!(
            paths.pod_resources(),
            Path::new("/host/var/lib/kubelet/pod-resources/kubelet.sock")
        );
        let socket = paths.plugin("gpu.nvidia.com").join("dra.sock");
        assert_eq!(
            paths.seen_by_kubelet(&socket),
            Path::new("/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock")
        );
        assert_eq!(
            paths.seen_by_kubelet(Path::new("/run/x.sock")),
            Path::new("/run/x.sock")
        );
    }
}
