//! The cluster's own processes: started in their own session, remembered by pid and start time, so that no process that
//! merely got the same pid later is ever ended.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::Cluster;

/// A program to start.
pub(super) struct Component {
    pub(super) name: &'static str,
    pub(super) args: Vec<String>,
    /// A folder of the cluster's that the program finds at a path it insists on.
    pub(super) folder: Option<(PathBuf, &'static str)>,
}

/// Runs a program with the folder `$1` in the place of `$2`, in a mount namespace of its own, so that nobody else sees
/// that. Only the mount that holds `$2` becomes private: what the program mounts on a shared mount is seen outside.
const WITH_FOLDER: &str = r#"set -e
mkdir -p "$2"
mount --make-private "$(findmnt --noheadings --output TARGET --target "$2")"
mount --bind "$1" "$2"
shift 2
exec "$@"
"#;

/// The program of a component, in the cluster's network.
fn command(cluster: &Cluster, component: &Component) -> Command {
    let program = cluster.tools.join(component.name);
    let mut command = match &component.folder {
        None => cluster.inside(&program.to_string_lossy()),
        Some((folder, place)) => {
            let mut command = cluster.inside("unshare");
            command
                .args(["--mount", "--propagation=unchanged"])
                .args(["sh", "-c", WITH_FOLDER, "sh"])
                .arg(folder)
                .arg(place)
                .arg(program);
            command
        }
    };
    command.args(&component.args);
    command
}

/// A process that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) name: String,
    pub(super) pid: u32,
    /// Clock ticks after boot at which it started (`/proc/PID/stat`, field 22).
    start: u64,
}

impl Process {
    /// The process that has this pid now.
    pub(super) fn of_pid(name: impl Into<String>, pid: u32) -> Option<Self> {
        let start = start_time(pid)?;
        Some(Self {
            name: name.into(),
            pid,
            start,
        })
    }

    pub(super) fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.start)
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
            && self.is_alive()
        {
            // It may end just now.
            let _ = kill_process(pid, signal);
        }
    }
}

/// When a process started; `None` for one that is gone or only waits to be collected.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets and may hold anything, brackets and blanks too.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if matches!(fields.first(), Some(&"Z" | &"X")) {
        return None;
    }
    fields.get(19)?.parse().ok()
}

fn pid_folder(cluster: &Cluster) -> PathBuf {
    cluster.state.join("pid")
}

fn log_file(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.state.join("log").join(format!("{name}.log"))
}

/// Starts a component and remembers it.
pub(super) fn start(cluster: &Cluster, component: Component) -> anyhow::Result<()> {
    let name = component.name;
    std::fs::create_dir_all(pid_folder(cluster))?;
    std::fs::create_dir_all(cluster.state.join("log"))?;
    // A component that is started again goes on in its log.
    let log = File::options()
        .create(true)
        .append(true)
        .open(log_file(cluster, name))
        .context("making a log file")?;
    let mut command = command(cluster, &component);
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // A group of its own: an interrupt of the terminal is not meant for it.
        .process_group(0);
    start_remembered(cluster, name, &mut command)
}

fn start_remembered(cluster: &Cluster, name: &str, command: &mut Command) -> anyhow::Result<()> {
    let child = command
        .spawn()
        .with_context(|| format!("starting {name}"))?;
    let process = Process::of_pid(name, child.id()).with_context(|| {
        format!(
            "{name} ended at once; see {}",
            log_file(cluster, name).display()
        )
    })?;
    let file = pid_folder(cluster).join(name);
    std::fs::write(&file, format!("{} {}\n", process.pid, process.start))
        .with_context(|| format!("writing {}", file.display()))
}

/// The processes of a cluster, running or not.
pub(super) fn all(cluster: &Cluster) -> anyhow::Result<Vec<Process>> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(pid_folder(cluster)) else {
        return Ok(found);
    };
    for entry in entries {
        let entry = entry?;
        let text = std::fs::read_to_string(entry.path())?;
        if let Some(process) = parse(&entry.file_name().to_string_lossy(), &text) {
            found.push(process);
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn parse(name: &str, text: &str) -> Option<Process> {
    let (pid, start) = text.trim().split_once(' ')?;
    Some(Process {
        name: name.to_owned(),
        pid: pid.parse().ok()?,
        start: start.parse().ok()?,
    })
}

/// An error with the end of its log when one of the cluster's processes ended.
pub(super) fn check(cluster: &Cluster) -> anyhow::Result<()> {
    for process in all(cluster)? {
        if !process.is_alive() {
            let log = std::fs::read_to_string(log_file(cluster, &process.name)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines.iter().skip(lines.len().saturating_sub(5)).copied();
            bail!(
                "{} ended; its last words:\n{}",
                process.name,
                tail.collect::<Vec<_>>().join("\n")
            );
        }
    }
    Ok(())
}

/// Ends processes: asks them, waits up to `patience`, then kills.
pub(super) fn end(processes: &[Process], patience: Duration) -> anyhow::Result<()> {
    for process in processes {
        process.signal(Signal::TERM);
    }
    if !all_end(processes, patience) {
        for process in processes {
            process.signal(Signal::KILL);
        }
    }
    if !all_end(processes, Duration::from_secs(10)) {
        let left: Vec<String> = processes
            .iter()
            .filter(|process| process.is_alive())
            .map(|process| format!("{} ({})", process.name, process.pid))
            .collect();
        bail!("these processes do not end: {}", left.join(", "));
    }
    Ok(())
}

fn all_end(processes: &[Process], patience: Duration) -> bool {
    let began = Instant::now();
    loop {
        if processes.iter().all(|process| !process.is_alive()) {
            return true;
        }
        if began.elapsed() > patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::{Process, end, parse};
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn a_remembered_process_is_known_by_its_start_too() {
        let own = Process::of_pid("self", std::process::id()).expect("this process runs");
        assert!(own.is_alive());
        let reused = Process {
            start: own.start + 1,
            ..own
        };
        assert!(!reused.is_alive(), "another process with the same pid");
        assert_eq!(parse("x", "garbage"), None);
    }

    #[test]
    fn a_process_that_ignores_the_request_is_killed() {
        let mut child = Command::new("sh")
            .args(["-c", "trap '' TERM; while :; do sleep 1; done"])
            .spawn()
            .expect("there is a shell");
        let process = Process::of_pid("stubborn", child.id()).expect("it runs");
        end(std::slice::from_ref(&process), Duration::from_millis(100)).expect("it can be killed");
        assert!(!process.is_alive());
        child.wait().expect("it is ours");
    }
}
