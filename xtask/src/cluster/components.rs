//! Command lines of a cluster's components.

use super::Cluster;
use super::config::{
    API_PORT, NODE_ADDRESS, NODE_NAME, POD_RANGE, SERVICE_RANGE, device_plugins, kubelet_root, path,
};
use super::pki::Pki;
use super::process::Component;

fn component<const N: usize>(name: &'static str, args: [String; N]) -> Component {
    Component {
        name,
        args: args.into(),
        folder: None,
    }
}

fn pki(cluster: &Cluster) -> Pki {
    Pki::at(cluster.state.join("pki"))
}

/// Every component, for who looks one up by name.
pub(super) fn all(cluster: &Cluster) -> [Component; 7] {
    [
        etcd(cluster),
        api_server(cluster),
        containerd(cluster),
        controller_manager(cluster),
        scheduler(cluster),
        kubelet(cluster),
        proxy(cluster),
    ]
}

pub(super) fn etcd(cluster: &Cluster) -> Component {
    component(
        "etcd",
        [
            format!("--data-dir={}", path(cluster, "etcd")),
            "--listen-client-urls=http://127.0.0.1:2379".to_owned(),
            "--advertise-client-urls=http://127.0.0.1:2379".to_owned(),
            "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            // The state does not outlive the machine.
            "--unsafe-no-fsync".to_owned(),
        ],
    )
}

/// The one place that lists which API versions beyond the usual are served.
const API_VERSIONS: &str =
    "resource.k8s.io/v1=true,resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true";

pub(super) fn api_server(cluster: &Cluster) -> Component {
    let pki = pki(cluster);
    component(
        "kube-apiserver",
        [
            "--etcd-servers=http://127.0.0.1:2379".to_owned(),
            "--bind-address=0.0.0.0".to_owned(),
            format!("--secure-port={API_PORT}"),
            format!("--advertise-address={NODE_ADDRESS}"),
            format!("--client-ca-file={}", pki.certificate("ca")),
            format!("--tls-cert-file={}", pki.certificate("apiserver")),
            format!("--tls-private-key-file={}", pki.key("apiserver")),
            format!(
                "--service-account-key-file={}",
                pki.public_key("service-accounts")
            ),
            format!(
                "--service-account-signing-key-file={}",
                pki.key("service-accounts")
            ),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-cluster-ip-range={SERVICE_RANGE}"),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            format!("--kubelet-client-certificate={}", pki.certificate("admin")),
            format!("--kubelet-client-key={}", pki.key("admin")),
            // The node's name has no DNS entry.
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            // Without allowed names the server refuses an authority that also signs clients.
            format!("--requestheader-client-ca-file={}", pki.certificate("ca")),
            "--requestheader-allowed-names=front-proxy".to_owned(),
            format!("--proxy-client-cert-file={}", pki.certificate("admin")),
            format!("--proxy-client-key-file={}", pki.key("admin")),
            format!("--runtime-config={API_VERSIONS}"),
        ],
    )
}

pub(super) fn containerd(cluster: &Cluster) -> Component {
    component(
        "containerd",
        [format!("--config={}", path(cluster, "containerd.toml"))],
    )
}

pub(super) fn controller_manager(cluster: &Cluster) -> Component {
    let pki = pki(cluster);
    component(
        "kube-controller-manager",
        [
            format!(
                "--kubeconfig={}",
                path(cluster, "controller-manager.kubeconfig")
            ),
            format!(
                "--service-account-private-key-file={}",
                pki.key("service-accounts")
            ),
            format!("--root-ca-file={}", pki.certificate("ca")),
            "--use-service-account-credentials".to_owned(),
            "--leader-elect=false".to_owned(),
        ],
    )
}

pub(super) fn scheduler(cluster: &Cluster) -> Component {
    component(
        "kube-scheduler",
        [
            format!("--kubeconfig={}", path(cluster, "scheduler.kubeconfig")),
            "--leader-elect=false".to_owned(),
        ],
    )
}

pub(super) fn kubelet(cluster: &Cluster) -> Component {
    let kubelet = component(
        "kubelet",
        [
            format!("--config={}", path(cluster, "kubelet.yaml")),
            format!("--kubeconfig={}", path(cluster, "kubelet.kubeconfig")),
            format!("--root-dir={}", kubelet_root(cluster).display()),
            format!("--hostname-override={NODE_NAME}"),
            format!("--node-ip={NODE_ADDRESS}"),
        ],
    );
    Component {
        // Whatever its --root-dir, it takes device plugins' registrations there, and at its start deletes the sockets of
        // who else does: another cluster.
        folder: Some((device_plugins(cluster), "/var/lib/kubelet/device-plugins")),
        ..kubelet
    }
}

pub(super) fn proxy(cluster: &Cluster) -> Component {
    component(
        "kube-proxy",
        [
            format!("--kubeconfig={}", path(cluster, "proxy.kubeconfig")),
            format!("--cluster-cidr={POD_RANGE}"),
            format!("--hostname-override={NODE_NAME}"),
            "--proxy-mode=nftables".to_owned(),
            // These kernel settings cannot be written everywhere; zero leaves them alone.
            "--conntrack-max-per-core=0".to_owned(),
            "--conntrack-tcp-timeout-established=0s".to_owned(),
            "--conntrack-tcp-timeout-close-wait=0s".to_owned(),
        ],
    )
}
