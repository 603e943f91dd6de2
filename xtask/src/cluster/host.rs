//! What a cluster takes of the host: a network namespace and control groups.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use super::config::NODE_ADDRESS;

const CGROUPS: &str = "/sys/fs/cgroup";

/// The host's network namespaces and control groups.
pub(super) struct Host;

/// The file that keeps a named network namespace.
pub(super) fn namespace_file(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}

/// What a cluster needs of the distribution: programs on the PATH or at a path of their own, and Debian's packages.
const NEEDED: [(&str, &str); 9] = [
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("findmnt", "util-linux"),
    ("mount", "mount"),
    ("sysctl", "procps"),
    ("nft", "nftables"),
    ("runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
];

/// An error that names what is missing here; without it a cluster would come up and no pod would ever start.
pub(super) fn check() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("a cluster needs root: it makes namespaces, mounts and control groups");
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    // Joined to a folder, a path from the root stays what it is.
    let packages = missing(|program| folders.iter().any(|folder| folder.join(program).is_file()));
    if packages.is_empty() {
        return Ok(());
    }
    bail!(
        "programs are missing that a cluster needs: install {}",
        packages.join(", ")
    )
}

/// The packages of which a program is not there, each once.
fn missing(is_there: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let mut packages: Vec<&str> = NEEDED
        .iter()
        .filter(|(program, _)| !is_there(program))
        .map(|&(_, package)| package)
        .collect();
    packages.dedup();
    packages
}

/// Runs a command that must succeed.
fn must(program: &str, args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program)
        .args(args)
        .output()
        .with_context(|| format!("running {program}: is it installed?"))?;
    if !output.status.success() {
        bail!(
            "{program} {} failed: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

impl Host {
    /// Makes a network namespace in which the node has an address.
    pub(super) fn create_network(&self, name: &str) -> anyhow::Result<()> {
        let address = format!("{NODE_ADDRESS}/24");
        must("ip", &["netns", "add", name])?;
        let inside = |args: &[&str]| must("ip", &[&["-n", name], args].concat());
        inside(&["link", "set", "lo", "up"])?;
        // The kubelet complains about a loopback node address. A bridge, since not every kernel has dummy devices.
        inside(&["link", "add", "node0", "type", "bridge"])?;
        inside(&["addr", "add", &address, "dev", "node0"])?;
        inside(&["link", "set", "node0", "up"])?;
        // The API server and kube-proxy look for the address of the default route.
        inside(&["route", "add", "default", "dev", "node0"])?;
        let file = format!("--net={}", namespace_file(name).display());
        must(
            "nsenter",
            &[&file, "--", "sysctl", "-qw", "net.ipv4.ip_forward=1"],
        )
    }

    /// Removes a network namespace, when it is there.
    pub(super) fn delete_network(&self, name: &str) -> anyhow::Result<()> {
        if namespace_file(name).exists() {
            must("ip", &["netns", "delete", name])?;
        }
        Ok(())
    }

    /// The group's folder in each hierarchy of control groups: one for version 2, one per controller for version 1.
    fn cgroup_folders(&self, group: &str) -> Vec<PathBuf> {
        let root = Path::new(CGROUPS);
        if root.join("cgroup.controllers").exists() {
            return vec![root.join(group)];
        }
        let hierarchies = std::fs::read_dir(root).into_iter().flatten().flatten();
        hierarchies
            .map(|entry| entry.path())
            .filter(|path| path.join("cgroup.procs").exists())
            .map(|path| path.join(group))
            .collect()
    }

    /// Makes a folder a mount of its own that is shared with other mount namespaces: what the kubelet mounts below it in
    /// its own is then there for the container runtime.
    pub(super) fn share_mounts(&self, folder: &Path) -> anyhow::Result<()> {
        rustix::mount::mount_bind(folder, folder)
            .and_then(|()| {
                rustix::mount::mount_change(folder, rustix::mount::MountPropagationFlags::SHARED)
            })
            .with_context(|| format!("sharing the mounts below {}", folder.display()))
    }

    /// Makes the control group under which the kubelet makes its own; it does not make that one.
    pub(super) fn create_cgroups(&self, group: &str) -> anyhow::Result<()> {
        for folder in self.cgroup_folders(group) {
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("making {}", folder.display()))?;
            // Version 1: a new group of `cpuset` is empty, and nothing can run in it.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let parent = folder.parent().map(|parent| parent.join(file));
                if let Some(parent) = parent.filter(|parent| parent.exists())
                    && folder.join(file).exists()
                {
                    std::fs::write(folder.join(file), std::fs::read(&parent)?)
                        .with_context(|| format!("writing {}", folder.join(file).display()))?;
                }
            }
        }
        Ok(())
    }

    /// Processes in a control group and below.
    pub(super) fn cgroup_processes(&self, group: &str) -> Vec<u32> {
        let mut found: Vec<u32> = self
            .cgroup_folders(group)
            .iter()
            .flat_map(|folder| descend(folder))
            .filter_map(|folder| std::fs::read_to_string(folder.join("cgroup.procs")).ok())
            .flat_map(|text| {
                text.lines()
                    .filter_map(|line| line.parse().ok())
                    .collect::<Vec<u32>>()
            })
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Removes a control group and all below it; nothing may run in them any more.
    pub(super) fn delete_cgroups(&self, group: &str) -> anyhow::Result<()> {
        for folder in self.cgroup_folders(group) {
            let mut all = descend(&folder);
            all.reverse();
            for folder in all {
                std::fs::remove_dir(&folder)
                    .with_context(|| format!("removing {}", folder.display()))?;
            }
        }
        Ok(())
    }
}

/// A folder and all folders below it, parents first.
fn descend(folder: &Path) -> Vec<PathBuf> {
    if !folder.is_dir() {
        return Vec::new();
    }
    let mut found = vec![folder.to_owned()];
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(descend(&entry.path()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn what_is_missing_is_named_by_its_package() {
        assert_eq!(missing(|_| true), Vec::<&str>::new());
        assert_eq!(missing(|program| program != "nft"), ["nftables"]);
        assert_eq!(
            missing(|program| !["unshare", "findmnt", "/usr/lib/cni/bridge"].contains(&program)),
            ["util-linux", "containernetworking-plugins"]
        );
    }
}
