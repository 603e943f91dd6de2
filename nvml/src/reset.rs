//! Resetting GPUs.
//!
//! NVML 13.3 has no call for it: `nvidia-smi --gpu-reset` uses an interface of its own. So this is the one place that runs
//! a program; where there is none, the kernel's reset file of the PCI device is written. Both fail while somebody holds the
//! GPU, this process included, so NVML is shut down meanwhile.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::driver::Driver;
use crate::error::{Error, GpuRef};
use crate::handle::Gpu;
use crate::identity::Pci;
use crate::locate;
use crate::pci_bus::PciDevice;

/// How much of the program's output is kept for the error, in bytes.
const MAX_OUTPUT: u64 = 2048;

impl Driver {
    /// Resets GPUs, one after the other, with NVML shut down meanwhile; uses from other threads wait. The rest of the
    /// node's GPUs are left alone.
    ///
    /// Each GPU has its own answer, in the order given. A GPU that is lost can be reset if it was seen before.
    ///
    /// # Errors
    /// NVML could not be shut down (a call hangs), or not be opened again; then the driver is gone for everybody, and
    /// the GPUs that were to be reset may have been.
    pub fn reset(&self, gpus: &[Gpu]) -> Result<Vec<Result<(), Error>>, Error> {
        let targets: Vec<Result<(GpuRef, Pci), Error>> = gpus
            .iter()
            .map(|gpu| {
                let asked = gpu.run(|device| Ok((device.gpu_ref(), device.pci()?)));
                // A lost GPU answers nothing, and is what resets are for.
                match asked {
                    Err(error) if error.is_gpu_lost() => gpu.last_seen().ok_or(error),
                    other => other,
                }
            })
            .collect();
        if targets.iter().all(Result::is_err) {
            return Ok(targets
                .into_iter()
                .map(|target| target.map(|_| ()))
                .collect());
        }
        let options = self.options();
        let alone = self.alone(options.write_timeout.max(options.call_timeout))?;
        self.shut(&alone)?;
        let results = targets
            .into_iter()
            .map(|target| {
                let (gpu, pci) = target?;
                reset_one(&options.root, &pci, options.reset_timeout)
                    .map_err(|reason| Error::Reset { gpu, reason })
            })
            .collect();
        self.start(&alone)?;
        Ok(results)
    }
}

impl Gpu {
    /// Resets this GPU; see [`Driver::reset`].
    ///
    /// # Errors
    /// [`Error::Reset`] with what the driver's program or the kernel said, or as [`Driver::reset`].
    pub fn reset(&self) -> Result<(), Error> {
        let results = self.driver().reset(std::slice::from_ref(self))?;
        results.into_iter().collect()
    }
}

fn reset_one(root: &Path, pci: &Pci, limit: Duration) -> Result<(), String> {
    match locate::program(root, "nvidia-smi") {
        Some(program) => match by_program(root, &program, &pci.bus_id, limit)? {
            Outcome::Done => Ok(()),
            Outcome::Failed(reason) => Err(reason),
            Outcome::CannotRun(reason) => by_kernel(root, pci, limit)
                .map_err(|kernel| format!("{} cannot run ({reason}); {kernel}", program.display())),
        },
        None => by_kernel(root, pci, limit),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Failed(String),
    CannotRun(String),
}

/// Runs `nvidia-smi --gpu-reset -i <bus id>`.
fn by_program(
    root: &Path,
    program: &Path,
    bus_id: &str,
    limit: Duration,
) -> Result<Outcome, String> {
    let (mut output, writer) = std::io::pipe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command
        .args(["--gpu-reset", "-i", bus_id])
        .stdin(Stdio::null())
        .stdout(writer.try_clone().map_err(|error| error.to_string())?)
        .stderr(writer);
    if let Some(folders) = library_path(root) {
        command.env("LD_LIBRARY_PATH", folders);
    }
    // Its own group, so that what it starts ends with it.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(Outcome::CannotRun(error.to_string())),
    };
    // The command holds the pipe's writing ends; with them open, reading would never end.
    drop(command);
    let group = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    let (sender, finished) = channel();
    let waiter = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = (&mut output).take(MAX_OUTPUT).read_to_end(&mut text);
        let _ = std::io::copy(&mut output, &mut std::io::sink());
        let _ = sender.send((child.wait(), text));
    });
    let (status, text) = match finished.recv_timeout(limit) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => {
            if let Some(group) = group {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            // Killed, so its output ends and the waiter can reap it, unless it hangs in the kernel: not waited for.
            return Err(format!(
                "{} did not end within {:.0} s",
                program.display(),
                limit.as_secs_f64()
            ));
        }
        Err(RecvTimeoutError::Disconnected) => {
            return Err(format!("{} could not be waited for", program.display()));
        }
    };
    let _ = waiter.join();
    let status = status.map_err(|error| error.to_string())?;
    let said = one_line(&String::from_utf8_lossy(&text));
    Ok(match status.code() {
        Some(0) => Outcome::Done,
        // The shell's words for "found, but cannot be executed" and "not found".
        Some(126 | 127) => Outcome::CannotRun(said),
        _ if said.is_empty() => Outcome::Failed(format!("nvidia-smi ended with {status}")),
        _ => Outcome::Failed(said),
    })
}

/// The program must find the library of its own root, not the one of ours.
fn library_path(root: &Path) -> Option<std::ffi::OsString> {
    if root == Path::new("/") {
        return None;
    }
    let library = locate::library(root).ok()?;
    let mut folders: Vec<PathBuf> = vec![library.parent()?.to_path_buf()];
    if let Some(present) = std::env::var_os("LD_LIBRARY_PATH") {
        folders.extend(std::env::split_paths(&present));
    }
    std::env::join_paths(folders).ok()
}

/// Writes the reset file of the PCI device, as the kernel offers it for devices that can be reset alone.
fn by_kernel(root: &Path, pci: &Pci, limit: Duration) -> Result<(), String> {
    let file = PciDevice::named(root, &pci.sysfs_name()).file("reset");
    let (sender, finished) = channel();
    let path = file.clone();
    // The write returns when the reset is over, and may hang with the device.
    std::thread::spawn(move || {
        let mut open = std::fs::OpenOptions::new();
        let written = open
            .write(true)
            .open(&path)
            .and_then(|mut file| std::io::Write::write_all(&mut file, b"1"));
        let _ = sender.send(written);
    });
    match finished.recv_timeout(limit) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("{}: {error}", file.display())),
        Err(_) => Err(format!(
            "{}: the kernel did not finish within {:.0} s",
            file.display(),
            limit.as_secs_f64()
        )),
    }
}

/// Output as one line for an error.
fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn pci() -> Pci {
        Pci {
            bus_id: "00000000:53:00.0".into(),
            domain: 0,
            bus: 0x53,
            device: 0,
            id: gpu::PciId {
                device: 0x2330_10DE,
                subsystem: 0,
            },
            numa_node: None,
        }
    }

    /// A node with an `nvidia-smi` of these lines, and the kernel's reset file.
    fn node(script: Option<&str>, reset_file: bool) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        if let Some(script) = script {
            let folder = root.path().join("usr/bin");
            std::fs::create_dir_all(&folder).unwrap();
            let draft = folder.join("draft");
            std::fs::write(&draft, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&draft, PermissionsExt::from_mode(0o755)).unwrap();
            // Copied by another process: a file that this one has open for writing while another test forks cannot be
            // executed ("text file busy").
            let copied = Command::new("cp")
                .arg("-p")
                .arg(&draft)
                .arg(folder.join("nvidia-smi"))
                .status();
            assert!(copied.unwrap().success());
        }
        let device = root.path().join("sys/bus/pci/devices/0000:53:00.0");
        std::fs::create_dir_all(&device).unwrap();
        if reset_file {
            std::fs::write(device.join("reset"), "").unwrap();
        }
        root
    }

    fn kernel_file(root: &Path) -> String {
        std::fs::read_to_string(root.join("sys/bus/pci/devices/0000:53:00.0/reset")).unwrap()
    }

    #[test]
    fn the_program_is_given_the_bus_id() {
        let root = node(Some("echo \"$@\" > \"$(dirname \"$0\")/args\""), true);
        reset_one(root.path(), &pci(), LONG).unwrap();
        let args = std::fs::read_to_string(root.path().join("usr/bin/args")).unwrap();
        assert_eq!(args.trim(), "--gpu-reset -i 00000000:53:00.0");
        assert_eq!(kernel_file(root.path()), "");
    }

    #[test]
    fn what_the_program_says_is_the_reason() {
        let root = node(
            Some("echo 'GPU is in use'; echo; echo 'by pid 7' >&2; exit 255"),
            true,
        );
        assert_eq!(
            reset_one(root.path(), &pci(), LONG),
            Err("GPU is in use; by pid 7".into())
        );
        assert_eq!(kernel_file(root.path()), "", "a refusal is not overruled");
    }

    #[test]
    fn a_program_that_floods_or_says_nothing_is_handled() {
        let root = node(Some("yes | head -c 300000; exit 3"), true);
        let reason = reset_one(root.path(), &pci(), LONG).unwrap_err();
        assert!(reason.len() < 5000);
        let root = node(Some("exit 3"), true);
        let reason = reset_one(root.path(), &pci(), LONG).unwrap_err();
        assert!(reason.contains('3'), "{reason}");
    }

    #[test]
    fn a_program_that_hangs_is_ended() {
        let root = node(Some("sleep 1000"), true);
        let reason = reset_one(root.path(), &pci(), Duration::from_millis(100)).unwrap_err();
        assert!(reason.contains("did not end"), "{reason}");
    }

    #[test]
    fn without_a_program_the_kernel_resets() {
        for script in [None, Some("exec /nonexistent/lathe"), Some("exit 127")] {
            let root = node(script, true);
            reset_one(root.path(), &pci(), LONG).unwrap();
            assert_eq!(kernel_file(root.path()), "1", "{script:?}");
        }
    }

    #[test]
    fn a_device_that_cannot_be_reset_says_so() {
        let root = node(None, false);
        let reason = reset_one(root.path(), &pci(), LONG).unwrap_err();
        assert!(reason.contains("0000:53:00.0/reset"), "{reason}");
    }
}
