//! Who uses a GPU.

use std::collections::BTreeMap;
use std::path::Path;

use nvml_wrapper_sys::bindings as sys;
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::error::{Error, Optional};
use crate::library::symbol;

/// How a process uses the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ProcessKind {
    /// It has a compute context.
    Compute,
    /// It has a graphics context.
    Graphics,
    /// It computes through the MPS server.
    Mps,
}

/// A process that uses a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id, as the node's own pid namespace counts.
    pub pid: u32,
    /// Its command line, or as much as can be found out.
    pub command: Option<String>,
    /// How it uses the GPU.
    pub kind: ProcessKind,
    /// GPU instance it runs in, in MIG mode.
    pub gpu_instance: Option<u32>,
    /// Compute instance it runs in, in MIG mode.
    pub compute_instance: Option<u32>,
    /// GPU memory it uses in bytes, where the driver knows.
    pub memory: Option<u64>,
}

/// "No instance" in the driver's process lists and events.
const NONE: u32 = 0xFFFF_FFFF;

/// "Unknown" as an amount of memory (`NVML_VALUE_NOT_AVAILABLE`).
const UNKNOWN_MEMORY: u64 = u64::MAX;

/// Longest command line kept, in bytes.
const MAX_COMMAND: usize = 256;

pub(crate) fn instance(id: u32) -> Option<u32> {
    (id != NONE).then_some(id)
}

impl Device<'_> {
    /// The processes on the GPU or MIG device, by pid. A process that computes and draws is listed once, as computing.
    ///
    /// # Errors
    /// The calls'. With MIG on, the GPU's own list is for privileged processes; others get that of its MIG devices.
    pub fn processes(&self) -> Result<Vec<Process>, Error> {
        let lists = match self.process_lists() {
            Err(error) if error.code() == Some(crate::Code::NO_PERMISSION) => {
                let mut all = Vec::new();
                for (_, device) in self.mig_devices()? {
                    all.extend(device.process_lists()?);
                }
                all
            }
            other => other?,
        };
        let mut found: BTreeMap<(u32, u32, u32), Process> = BTreeMap::new();
        for (kind, info) in lists {
            let key = (info.pid, info.gpuInstanceId, info.computeInstanceId);
            if found.contains_key(&key) {
                continue;
            }
            let process = Process {
                pid: info.pid,
                command: self.command(info.pid)?,
                kind,
                gpu_instance: instance(info.gpuInstanceId),
                compute_instance: instance(info.computeInstanceId),
                memory: (info.usedGpuMemory != UNKNOWN_MEMORY).then_some(info.usedGpuMemory),
            };
            found.insert(key, process);
        }
        Ok(found.into_values().collect())
    }

    /// What the driver lists, kind by kind. A driver that has no list of computing processes does not know who uses the
    /// GPU; graphics and MPS are extras.
    fn process_lists(&self) -> Result<Vec<(ProcessKind, sys::nvmlProcessInfo_t)>, Error> {
        let library = self.context.library;
        let list = |symbol| self.context.list(symbol, self.handle);
        let newest = symbol!(library, nvmlDeviceGetComputeRunningProcesses_v3);
        let compute = match list(newest).optional()? {
            Some(listed) => listed,
            None => list(library.compute_processes_v2)?,
        };
        let mps = symbol!(library, nvmlDeviceGetMPSComputeRunningProcesses_v3);
        let newest = symbol!(library, nvmlDeviceGetGraphicsRunningProcesses_v3);
        let graphics = match list(newest).optional()? {
            Some(listed) => Some(listed),
            None => list(library.graphics_processes_v2).optional()?,
        };
        let lists = [
            (ProcessKind::Compute, Some(compute)),
            (ProcessKind::Mps, list(mps).optional()?),
            (ProcessKind::Graphics, graphics),
        ];
        Ok(lists
            .into_iter()
            .flat_map(|(kind, listed)| {
                let listed = listed.unwrap_or_default();
                listed.into_iter().map(move |info| (kind, info))
            })
            .collect())
    }

    /// The command line under the node's `/proc`, else the name that the driver knows.
    fn command(&self, pid: u32) -> Result<Option<String>, Error> {
        let limit = self.context.limits.read;
        let folder = self.context.root.join("proc").join(pid.to_string());
        // Reading the command line of a process that hangs in the kernel may itself hang.
        let read = self
            .context
            .bounded(limit, "reading /proc/PID/cmdline", || command_line(&folder))?;
        if read.is_some() {
            return Ok(read);
        }
        let library = self.context.library;
        let name = self
            .context
            .text_of::<MAX_COMMAND, u32>(symbol!(library, nvmlSystemGetProcessName), pid);
        // The process may have ended meanwhile: then it has no name, and that is no error of the GPU's.
        Ok(name.ok().filter(|name| !name.is_empty()))
    }
}

fn command_line(folder: &Path) -> Option<String> {
    use std::io::Read;
    let read = |file: &str| {
        let mut bytes = Vec::new();
        let opened = std::fs::File::open(folder.join(file)).ok()?;
        opened
            .take(MAX_COMMAND as u64)
            .read_to_end(&mut bytes)
            .ok()?;
        let words: Vec<_> = bytes
            .split(|&b| b == 0 || b == b'\n')
            .filter(|word| !word.is_empty())
            .map(String::from_utf8_lossy)
            .collect();
        (!words.is_empty()).then(|| words.join(" "))
    };
    // Kernel threads have no command line, but a name.
    read("cmdline").or_else(|| read("comm"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_command_line_is_its_words() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(
            folder.path().join("cmdline"),
            b"python\0train.py\0--lr\x000.1\0",
        )
        .unwrap();
        assert_eq!(
            command_line(folder.path()).as_deref(),
            Some("python train.py --lr 0.1")
        );
    }

    #[test]
    fn a_process_without_command_line_gives_its_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cmdline"), b"").unwrap();
        std::fs::write(folder.path().join("comm"), b"nv_queue\n").unwrap();
        assert_eq!(command_line(folder.path()).as_deref(), Some("nv_queue"));
    }

    #[test]
    fn a_long_command_line_is_cut_and_odd_bytes_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cmdline"), vec![0xFF; 10_000]).unwrap();
        let text = command_line(folder.path()).unwrap();
        assert_eq!(text.chars().count(), MAX_COMMAND);
        assert!(text.chars().all(|c| c == '\u{FFFD}'));
    }

    #[test]
    fn a_process_that_ended_gives_nothing() {
        assert_eq!(command_line(Path::new("/nonexistent/proc/1")), None);
    }
}
