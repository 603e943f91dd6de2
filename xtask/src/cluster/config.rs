//! Configuration files of a cluster's components.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;

use super::Cluster;
use super::pki::Pki;
use crate::image::PAUSE_IMAGE;

/// Addresses inside the cluster's own network namespace; clusters do not see each other's.
pub(super) const NODE_ADDRESS: &str = "10.111.0.1";
pub(super) const POD_RANGE: &str = "10.112.0.0/24";
pub(super) const SERVICE_RANGE: &str = "10.96.0.0/16";
/// The first address of the service range: the API server as pods see it.
pub(super) const SERVICE_ADDRESS: &str = "10.96.0.1";
pub(super) const NODE_NAME: &str = "node-0";
pub(super) const API_PORT: u16 = 6443;

/// Where Debian puts the plugins.
const CNI_PLUGINS: &str = "/usr/lib/cni";

pub(super) fn containerd_socket(cluster: &Cluster) -> PathBuf {
    cluster.state.join("run/containerd.sock")
}

/// The kubelet's folder: where its plugin sockets are.
pub(super) fn kubelet_root(cluster: &Cluster) -> PathBuf {
    cluster.state.join("kubelet")
}

/// What the kubelet takes for `/var/lib/kubelet/device-plugins`.
pub(super) fn device_plugins(cluster: &Cluster) -> PathBuf {
    kubelet_root(cluster).join("device-plugins")
}

/// Where the container runtime looks for CDI specs.
pub(super) fn cdi(cluster: &Cluster) -> PathBuf {
    cluster.state.join("cdi")
}

pub(super) fn path(cluster: &Cluster, name: &str) -> String {
    cluster.state.join(name).display().to_string()
}

/// Writes every file.
pub(super) fn write(cluster: &Cluster, pki: &Pki) -> anyhow::Result<()> {
    for folder in [
        "run",
        "cni",
        "cdi",
        "etcd",
        "kubelet/device-plugins",
        "containerd",
    ] {
        fs::create_dir_all(cluster.state.join(folder))?;
    }
    let put = |name: &str, text: String| {
        let path = cluster.state.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    };
    for user in [
        "admin",
        "kubelet",
        "controller-manager",
        "scheduler",
        "proxy",
    ] {
        put(&format!("{user}.kubeconfig"), kubeconfig(pki, user))?;
    }
    put("containerd.toml", containerd(cluster))?;
    put("cni/10-pods.conflist", network(cluster))?;
    put("kubelet.yaml", kubelet(cluster, pki))
}

fn kubeconfig(pki: &Pki, user: &str) -> String {
    format!(
        "apiVersion: v1
kind: Config
current-context: cluster
clusters:
- name: cluster
  cluster: {{server: \"https://127.0.0.1:{API_PORT}\", certificate-authority: \"{ca}\"}}
contexts:
- name: cluster
  context: {{cluster: cluster, user: user}}
users:
- name: user
  user: {{client-certificate: \"{certificate}\", client-key: \"{key}\"}}
",
        ca = pki.certificate("ca"),
        certificate = pki.certificate(user),
        key = pki.key(user),
    )
}

/// - `restrict_oom_score_adj`: without CAP_SYS_RESOURCE runc may not lower the score and dies.
/// - `netns_mounts_under_state_dir`: so that what is left of pods' networks lies below the state folder.
/// - `opt`, `Root`: else it keeps files in `/opt/containerd` and `/run/containerd`.
/// - CDI folders of its own: two clusters must not see each other's devices.
fn containerd(cluster: &Cluster) -> String {
    let at = |name: &str| path(cluster, name);
    format!(
        r#"version = 3
root = "{root}"
state = "{state}"

[grpc]
address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
path = "{opt}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true
netns_mounts_under_state_dir = true
enable_cdi = true
cdi_spec_dirs = ["{cdi}"]

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{CNI_PLUGINS}"]
conf_dir = "{cni}"

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
Root = "{runc}"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"
"#,
        root = at("containerd"),
        state = at("run/containerd"),
        socket = containerd_socket(cluster).display(),
        cdi = cdi(cluster).display(),
        cni = at("cni"),
        runc = at("run/runc"),
        opt = at("containerd-opt"),
    )
}

fn network(cluster: &Cluster) -> String {
    format!(
        r#"{{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {{
      "type": "bridge",
      "bridge": "pods0",
      "isGateway": true,
      "ipMasq": false,
      "ipam": {{
        "type": "host-local",
        "dataDir": "{addresses}",
        "ranges": [[{{"subnet": "{POD_RANGE}"}}]],
        "routes": [{{"dst": "0.0.0.0/0"}}]
      }}
    }},
    {{"type": "portmap", "capabilities": {{"portMappings": true}}}}
  ]
}}
"#,
        addresses = path(cluster, "cni-addresses"),
    )
}

/// - `failCgroupV1`: the kubelet refuses version 1 by default since 1.35.
/// - `cgroupRoot`: a group of its own, or the kubelet of a second cluster would remove the pods of the first as orphans.
/// - `failSwapOn`, `imageGC…`: small machines with little disk. The images are loaded once, and nowhere else to be had.
/// - `evictionHard`: 0% turns a signal off. What a disk has left is a share of its whole size, most of which other programs than
///   these pods may use; a node under disk pressure takes no pods, and the tests would wait for them.
fn kubelet(cluster: &Cluster, pki: &Pki) -> String {
    format!(
        r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupRoot: "/{cgroup}"
authentication:
  x509: {{clientCAFile: "{ca}"}}
  anonymous: {{enabled: false}}
  webhook: {{enabled: true}}
authorization: {{mode: Webhook}}
tlsCertFile: "{certificate}"
tlsPrivateKeyFile: "{key}"
containerRuntimeEndpoint: "unix://{socket}"
podLogsDir: "{logs}"
evictionHard:
  memory.available: 50Mi
  nodefs.available: "0%"
  nodefs.inodesFree: "0%"
  imagefs.available: "0%"
  imagefs.inodesFree: "0%"
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 2s
syncFrequency: 5s
"#,
        cgroup = cluster.cgroup(),
        ca = pki.certificate("ca"),
        certificate = pki.certificate("kubelet"),
        key = pki.key("kubelet"),
        socket = containerd_socket(cluster).display(),
        logs = path(cluster, "pod-logs"),
    )
}
