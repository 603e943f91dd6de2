//! Ends a cluster and removes all that it left on the host, in an order that also works after a crash in the middle.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use super::Cluster;
use super::host::Host;
use super::process::{self, Process};

/// What a process gets between being asked to end and being killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often mounts below the state folder are looked for: a mount may hide another.
const UNMOUNT_ROUNDS: usize = 10;

pub(super) fn down(cluster: &Cluster, host: &Host) -> anyhow::Result<()> {
    let mut own = process::all(cluster)?;
    own.extend(unremembered(cluster));
    let (runtime, others): (Vec<Process>, Vec<Process>) = own
        .into_iter()
        .partition(|process| process.name == "containerd");
    // First who would start containers again, then the containers, then the runtime and its shims.
    process::end(&others, PATIENCE)?;
    process::end(
        &named("container", host.cgroup_processes(cluster.cgroup())),
        Duration::ZERO,
    )?;
    process::end(&runtime, PATIENCE)?;
    process::end(&shims(cluster), Duration::ZERO)?;
    super::traces::remove(cluster);
    unmount_below(&cluster.state)?;
    host.delete_network(cluster.namespace())?;
    host.delete_cgroups(cluster.cgroup())?;
    if cluster.state.exists() {
        std::fs::remove_dir_all(&cluster.state)
            .with_context(|| format!("removing {}", cluster.state.display()))?;
    }
    Ok(())
}

fn named(name: &str, pids: Vec<u32>) -> Vec<Process> {
    pids.into_iter()
        .filter_map(|pid| Process::of_pid(name, pid))
        .collect()
}

/// All processes with their command lines: the program and its arguments.
fn command_lines() -> impl Iterator<Item = (u32, Vec<String>)> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| {
            let text = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let text = String::from_utf8_lossy(&text);
            let words = text.trim_end_matches('\0').split('\0');
            Some((pid, words.map(str::to_owned).collect()))
        })
}

/// Whether a command line ends in this program with these arguments. Before it may stand what starts the program in the
/// cluster's network: it has that command line until it becomes the program.
fn runs(line: &[String], program: &str, arguments: &[String]) -> bool {
    line.strip_suffix(arguments)
        .and_then(<[String]>::last)
        .is_some_and(|last| last == program)
}

/// Components that were started by someone who was killed before it could write their pids down. Their arguments name
/// this cluster's files.
fn unremembered(cluster: &Cluster) -> Vec<Process> {
    let components = super::components::all(cluster);
    command_lines()
        .filter_map(|(pid, line)| {
            let component = components.iter().find(|component| {
                let program = cluster.tools.join(component.name);
                runs(&line, &program.to_string_lossy(), &component.args)
            })?;
            Process::of_pid(component.name, pid)
        })
        .collect()
}

/// Shims of this cluster's containers: they outlive the runtime by design, and name its socket in their arguments.
fn shims(cluster: &Cluster) -> Vec<Process> {
    let socket = super::config::containerd_socket(cluster);
    let socket = socket.to_string_lossy();
    let pids = command_lines().filter_map(|(pid, line)| {
        let (program, arguments) = line.split_first()?;
        let is_ours = program.ends_with("containerd-shim-runc-v2")
            && arguments.iter().any(|argument| *argument == socket);
        is_ours.then_some(pid)
    });
    named("shim", pids.collect())
}

/// Mount points below `folder`, innermost first.
fn mounts_below(folder: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found: Vec<PathBuf> = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|path| PathBuf::from(unescape(path)))
        .filter(|path| path.starts_with(folder))
        .collect();
    found.reverse();
    found
}

/// Mount points are written with blanks and backslashes as octal numbers (proc(5)).
fn unescape(path: &str) -> String {
    path.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

fn unmount_below(folder: &Path) -> anyhow::Result<()> {
    for _ in 0..UNMOUNT_ROUNDS {
        let mounts = mounts_below(folder);
        if mounts.is_empty() {
            return Ok(());
        }
        for mount in mounts {
            rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH)
                .with_context(|| format!("unmounting {}", mount.display()))?;
        }
    }
    anyhow::bail!("mounts below {} keep coming back", folder.display())
}

#[cfg(test)]
mod tests {
    use super::{runs, unescape};

    #[test]
    fn a_component_is_known_by_its_whole_command_line() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let arguments = words("--data-dir=/s/etcd --x");
        for line in [
            "/t/etcd --data-dir=/s/etcd --x",
            "nsenter --net=/n -- /t/etcd --data-dir=/s/etcd --x",
        ] {
            assert!(runs(&words(line), "/t/etcd", &arguments), "{line}");
        }
        for line in [
            "/t/etcd --data-dir=/other/etcd --x",
            "/t/etcd --data-dir=/s/etcd",
            "/usr/bin/etcd --data-dir=/s/etcd --x",
            "--data-dir=/s/etcd --x",
            "",
        ] {
            assert!(!runs(&words(line), "/t/etcd", &arguments), "{line}");
        }
    }

    #[test]
    fn mount_points_are_unescaped() {
        assert_eq!(unescape("/a\\040b\\134c"), "/a b\\c");
    }
}
