//! Processes of a daemon that outlived it: a server that holds a GPU in exclusive mode keeps the next one out.
//!
//! They are known by their name and by a variable in their environment, which clients do not have. Numbers of processes are
//! used again, so what is looked at and what is ended is the same process by its file descriptor.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::program::MARK;
use super::watch::readable;

/// The kernel keeps 15 bytes of a program's name: that of the daemon and that of its servers.
const NAME: &[u8] = b"nvidia-cuda-mps";

/// How long ended processes may take to go. One that hangs in the driver may never.
const GOING: Duration = Duration::from_secs(5);

/// Ends all of a daemon's processes; says how many did not go.
pub(super) async fn end(pipe: &Path) -> usize {
    let mut going = Vec::new();
    for process in found(pipe) {
        if pidfd_send_signal(&process, Signal::KILL).is_ok() {
            going.push(process);
        }
    }
    let deadline = tokio::time::Instant::now() + GOING;
    let mut stay = 0;
    for process in going {
        let gone = async {
            // Readable once it has ended.
            readable(process)?.readable().await.map(drop)
        };
        if !matches!(tokio::time::timeout_at(deadline, gone).await, Ok(Ok(()))) {
            stay += 1;
        }
    }
    stay
}

fn found(pipe: &Path) -> Vec<OwnedFd> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let numbers = entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(|number| ours(number, pipe)).collect()
}

fn ours(number: i32, pipe: &Path) -> Option<OwnedFd> {
    let process = Path::new("/proc").join(number.to_string());
    let read = |file: &str| std::fs::read(process.join(file)).ok();
    // Cheap, and false for nearly all: it comes first.
    if !read("comm")?.starts_with(NAME) {
        return None;
    }
    let descriptor = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
    let mark = [MARK.as_bytes(), b"=", pipe.as_os_str().as_encoded_bytes()].concat();
    let environment = read("environ")?;
    let is_marked = environment.split(|&byte| byte == 0).any(|one| one == mark);
    is_marked.then_some(descriptor)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use std::process::{Child, Command};

    use super::*;

    /// A process with the name of an MPS server.
    fn server(folder: &Path, pipe: &Path) -> Child {
        let program: PathBuf = folder.join("nvidia-cuda-mps-server");
        std::fs::write(&program, "#!/bin/sh\nread line\n").unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let mut command = Command::new(program);
        command.env(MARK, pipe).stdin(std::process::Stdio::piped());
        // A program that another test starts has this file open, for a moment.
        loop {
            match command.spawn() {
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {}
                result => return result.unwrap(),
            }
        }
    }

    /// Until the program is loaded, a process has the name and environment of its parent.
    fn eventually_found(pipe: &Path, count: usize) {
        let start = std::time::Instant::now();
        while found(pipe).len() != count {
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[tokio::test]
    async fn what_is_ours_ends_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, others) = (folder.path().join("ours"), folder.path().join("others"));
        let mut mine = server(folder.path(), &ours);
        let mut theirs = server(folder.path(), &others);
        eventually_found(&ours, 1);
        eventually_found(&others, 1);
        assert_eq!(end(&ours).await, 0);
        assert!(!mine.wait().unwrap().success());
        eventually_found(&ours, 0);
        assert_eq!(theirs.try_wait().unwrap(), None);
        theirs.kill().unwrap();
        theirs.wait().unwrap();
    }
}
