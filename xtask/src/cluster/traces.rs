//! Files that the container runtime keeps outside the cluster's folder, at paths that no setting of it moves.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Cluster;

/// Where the CNI library remembers each network it attached.
const NETWORK_RESULTS: &str = "/var/lib/cni/results";
/// Where shims listen.
const SHIM_SOCKETS: &str = "/run/containerd/s";

/// Removes what containers that were killed left there; to be called while the cluster's folder still says which they were.
pub(super) fn remove(cluster: &Cluster) {
    let sockets = files(
        &cluster
            .state
            .join("run/containerd/io.containerd.runtime.v2.task/k8s.io"),
    )
    .into_iter()
    .filter_map(|bundle| shim_socket(&read(&bundle.join("bootstrap.json"))?));
    let results = files(Path::new(NETWORK_RESULTS))
        .into_iter()
        .filter(|file| read(file).is_some_and(|result| is_of(&result, &cluster.state)));
    for file in sockets.chain(results) {
        // The runtime may have removed it itself.
        let _ = std::fs::remove_file(file);
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn read(file: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// The socket in what a shim said at its start.
fn shim_socket(bootstrap: &Value) -> Option<PathBuf> {
    let socket = Path::new(bootstrap["address"].as_str()?.strip_prefix("unix://")?);
    (socket.parent() == Some(Path::new(SHIM_SOCKETS))).then(|| socket.to_owned())
}

/// Whether a remembered network is that of a pod whose network namespace lies in `state`.
fn is_of(result: &Value, state: &Path) -> bool {
    result["netns"]
        .as_str()
        .is_some_and(|netns| Path::new(netns).starts_with(state))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use serde_json::json;

    use super::{is_of, shim_socket};

    #[test]
    fn only_sockets_of_shims_are_removed() {
        let said = |address: &str| shim_socket(&json!({"version": 3, "address": address}));
        assert_eq!(
            said("unix:///run/containerd/s/5231"),
            Some(PathBuf::from("/run/containerd/s/5231"))
        );
        assert_eq!(said("unix:///etc/passwd"), None);
        assert_eq!(said("unix:///run/containerd/s/../x"), None);
        assert_eq!(said("vsock://1:2"), None);
    }

    #[test]
    fn networks_of_other_clusters_stay() {
        let result = json!({"kind": "cniCacheV1", "netns": "/c/clusters/a/run/netns/cni-1"});
        assert!(is_of(&result, Path::new("/c/clusters/a")));
        assert!(!is_of(&result, Path::new("/c/clusters/aa")));
        assert!(!is_of(&json!({}), Path::new("/c/clusters/a")));
    }
}
