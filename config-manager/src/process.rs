//! Processes by name, and a signal to each of them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// A path's length at most: what a name is compared with is never longer.
const MAX_NAME: u64 = 4096;

/// Sends `signal` to every process called `name` but this one. The answer is how many there were: none is no error, for a
/// process that starts later finds everything as it is.
///
/// # Errors
/// `/proc` cannot be read, or a process may not be told. The others are told all the same.
pub(crate) fn tell(name: &str, signal: Signal) -> io::Result<usize> {
    let mut told = 0;
    let mut refused = None;
    for pid in pids()? {
        match tell_one(pid, name, signal) {
            Ok(true) => told += 1,
            // It has another name, or just ended.
            Ok(false) | Err(Errno::SRCH) => {}
            Err(errno) => refused = Some(errno),
        }
    }
    refused.map_or(Ok(told), |errno| Err(errno.into()))
}

fn pids() -> io::Result<Vec<Pid>> {
    let own = getpid();
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let number = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        pids.extend(number.and_then(Pid::from_raw).filter(|pid| *pid != own));
    }
    Ok(pids)
}

/// Whether the process has that name and was told.
fn tell_one(pid: Pid, name: &str, signal: Signal) -> Result<bool, Errno> {
    if !is_called(pid, name) {
        return Ok(false);
    }
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    // Looked at again: the first to have that number may be gone, and this one may be another.
    if !is_called(pid, name) {
        return Ok(false);
    }
    pidfd_send_signal(process, signal)?;
    Ok(true)
}

fn is_called(pid: Pid, name: &str) -> bool {
    let mut line = Vec::new();
    let read = File::open(format!("/proc/{}/cmdline", pid.as_raw_pid()))
        .and_then(|file| file.take(MAX_NAME).read_to_end(&mut line));
    let argv0 = line.split(|byte| *byte == 0).next().unwrap_or_default();
    read.is_ok() && matches(argv0, name)
}

/// Exactly the name, or a path that ends in it.
fn matches(argv0: &[u8], name: &str) -> bool {
    if name.is_empty() {
        // Kernel threads and processes that just end have none.
        return false;
    }
    argv0 == name.as_bytes()
        || Path::new(OsStr::from_bytes(argv0)).file_name() == Some(OsStr::new(name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::process::{Child, Command};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use rstest::rstest;

    use super::*;

    /// Known by its name: the kernel gives a process that a little after it has let its parent go on.
    fn sleeper(name: &str) -> Child {
        let child = Command::new("sleep").arg0(name).arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        let start = Instant::now();
        while !is_called(pid, name) {
            assert!(start.elapsed() < Duration::from_secs(30));
            sleep(Duration::from_millis(1));
        }
        child
    }

    #[rstest]
    #[case::exact("nvidia-device-plugin", true)]
    #[case::path("/usr/bin/nvidia-device-plugin", true)]
    #[case::longer("nvidia-device-plugin2", false)]
    #[case::shorter("nvidia-device", false)]
    #[case::below("/nvidia-device-plugin/x", false)]
    #[case::none("", false)]
    fn a_process_is_known_by_what_it_was_started_as(#[case] argv0: &str, #[case] is: bool) {
        assert_eq!(matches(argv0.as_bytes(), "nvidia-device-plugin"), is);
        assert!(!matches(argv0.as_bytes(), ""));
    }

    #[test]
    fn all_of_that_name_are_told_and_no_others() {
        let name = format!("told-{}", std::process::id());
        let mut told = [sleeper(&name), sleeper(&format!("/usr/bin/{name}"))];
        let mut other = sleeper(&format!("{name}-other"));
        assert_eq!(tell(&name, Signal::TERM).unwrap(), 2);
        for child in &mut told {
            assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
        }
        assert!(other.try_wait().unwrap().is_none());
        // Those that ended are not counted, waited for or not.
        assert_eq!(tell(&name, Signal::TERM).unwrap(), 0);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn nobody_is_told_of_what_nobody_is_called() {
        assert_eq!(tell("no process is called so", Signal::KILL).unwrap(), 0);
        assert_eq!(tell("", Signal::KILL).unwrap(), 0);
    }
}
