//! Builds the programs of a cluster from Go modules whose versions and sums are pinned in `e2e/cluster`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

/// A Go module of ours that pins tools, and the packages to build from it.
struct Module {
    folder: &'static str,
    /// Package and the name of the program.
    packages: &'static [(&'static str, &'static str)],
    /// Flags for the linker, besides those that leave debug symbols out.
    version: &'static str,
    /// Whether it needs C code. The container runtime does for its snapshotters; the others are better static.
    cgo: bool,
}

/// Kubernetes takes its version from the linker; without it, clients see v0.0.0.
const KUBERNETES_VERSION: &str = "-X k8s.io/component-base/version.gitVersion=v1.37.2 \
    -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37";

const MODULES: [Module; 3] = [
    Module {
        folder: "kubernetes",
        packages: &[
            ("k8s.io/kubernetes/cmd/kube-apiserver", "kube-apiserver"),
            (
                "k8s.io/kubernetes/cmd/kube-controller-manager",
                "kube-controller-manager",
            ),
            ("k8s.io/kubernetes/cmd/kube-scheduler", "kube-scheduler"),
            ("k8s.io/kubernetes/cmd/kube-proxy", "kube-proxy"),
            ("k8s.io/kubernetes/cmd/kubelet", "kubelet"),
            ("k8s.io/kubernetes/cmd/kubectl", "kubectl"),
            ("go.etcd.io/etcd/server/v3", "etcd"),
        ],
        version: KUBERNETES_VERSION,
        cgo: false,
    },
    Module {
        folder: "containerd",
        packages: &[
            (
                "github.com/containerd/containerd/v2/cmd/containerd",
                "containerd",
            ),
            (
                "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
                "containerd-shim-runc-v2",
            ),
            ("github.com/containerd/containerd/v2/cmd/ctr", "ctr"),
        ],
        version: "",
        cgo: true,
    },
    Module {
        folder: "helm",
        packages: &[("helm.sh/helm/v4/cmd/helm", "helm")],
        version: "",
        cgo: false,
    },
];

/// Where built programs lie: `LATHE_CACHE`, or `.cache` of the repository. Made when it is not there; its real path also tells
/// clusters of one name in several clones apart.
pub(super) fn cache(root: &Path) -> anyhow::Result<PathBuf> {
    let cache = std::env::var_os("LATHE_CACHE").map_or_else(|| root.join(".cache"), PathBuf::from);
    std::fs::create_dir_all(&cache)
        .and_then(|()| cache.canonicalize())
        .with_context(|| format!("making {}", cache.display()))
}

/// Builds what is missing or was built from other pins.
pub(super) fn build(root: &Path, tools: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(tools).with_context(|| format!("making {}", tools.display()))?;
    for module in &MODULES {
        let folder = root.join("e2e/cluster").join(module.folder);
        let sums = std::fs::read(folder.join("go.sum"))
            .with_context(|| format!("reading {}", folder.join("go.sum").display()))?;
        let stamp = tools.join(format!("{}.sum", module.folder));
        let built = std::fs::read(&stamp).is_ok_and(|built| built == sums)
            && module
                .packages
                .iter()
                .all(|(_, name)| tools.join(name).is_file());
        if built {
            continue;
        }
        for (package, name) in module.packages {
            eprintln!("building {name}");
            build_one(&folder, module, package, &tools.join(name))?;
        }
        std::fs::write(&stamp, sums).with_context(|| format!("writing {}", stamp.display()))?;
    }
    Ok(())
}

fn build_one(folder: &Path, module: &Module, package: &str, output: &Path) -> anyhow::Result<()> {
    let status = Command::new("go")
        .current_dir(folder)
        .env("CGO_ENABLED", if module.cgo { "1" } else { "0" })
        .args(["build", "-trimpath", "-mod=readonly", "-ldflags"])
        .arg(format!("-s -w {}", module.version))
        .arg("-o")
        .arg(output)
        .arg(package)
        .status()
        .context("running go: is it installed?")?;
    if !status.success() {
        bail!("go build {package} failed");
    }
    Ok(())
}
