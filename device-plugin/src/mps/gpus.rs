//! The GPUs of a daemon in exclusive mode, and back.
//!
//! In exclusive mode one process computes on a GPU: the MPS server. It keeps programs that bypass MPS away from a GPU whose
//! memory and threads are divided. The mode outlives this process, so a file says which GPUs a daemon had: those go back into
//! the default mode, whoever set theirs before, and no others.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use nvml::{Code, ComputeMode, Session};

use super::status::remove;

/// Puts GPUs into exclusive mode; says which are in it now, and why others are not.
pub(super) fn claim(
    session: &Session,
    gpus: &BTreeSet<String>,
) -> (BTreeSet<String>, Option<String>) {
    let mut usable = BTreeSet::new();
    let mut trouble = None;
    for gpu in gpus {
        match set(session, gpu, ComputeMode::ExclusiveProcess) {
            Ok(()) => {
                usable.insert(gpu.clone());
            }
            Err(error) => trouble = Some(error.to_string()),
        }
    }
    (usable, trouble)
}

/// Puts GPUs back into the default mode; says which are.
pub(super) fn release(session: &Session, gpus: &BTreeSet<String>) -> BTreeSet<String> {
    let mut released = BTreeSet::new();
    for gpu in gpus {
        match set(session, gpu, ComputeMode::Default) {
            Ok(()) => {}
            // In MIG mode a GPU has no compute mode of its own: it lost ours.
            Err(error) if error.code() == Some(Code::NOT_SUPPORTED) => {}
            Err(error) => {
                tracing::warn!(gpu, %error, "cannot put the GPU back into the default compute mode");
                continue;
            }
        }
        released.insert(gpu.clone());
    }
    released
}

fn set(session: &Session, uuid: &str, mode: ComputeMode) -> Result<(), nvml::Error> {
    let gpu = session.driver()?.find(uuid)?;
    gpu.run(move |device| {
        // Reading may be refused where writing is not, and the other way round.
        if device.compute_mode().is_ok_and(|now| now == mode) {
            return Ok(());
        }
        device.set_compute_mode(mode)
    })
}

/// The file that says which GPUs have exclusive mode from us.
#[derive(Clone, Debug)]
pub(super) struct Record(PathBuf);

impl Record {
    pub(super) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// The GPUs. A file that cannot be read names none: the worst that follows is a GPU that stays in exclusive mode.
    pub(super) fn read(&self) -> BTreeSet<String> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Replaces the GPUs, in one step.
    pub(super) fn write(&self, gpus: &BTreeSet<String>) -> io::Result<()> {
        if gpus.is_empty() {
            return remove(&self.0);
        }
        let hidden: &Path = &self.0.with_extension("new");
        let lines: String = gpus.iter().map(|gpu| format!("{gpu}\n")).collect();
        std::fs::write(hidden, lines)?;
        std::fs::rename(hidden, &self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_record_comes_back_until_it_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let record = Record::at(folder.path().join(".exclusive"));
        assert_eq!(record.read(), BTreeSet::new());
        let gpus: BTreeSet<String> = ["GPU-a", "GPU-b"].map(str::to_owned).into();
        record.write(&gpus).unwrap();
        assert_eq!(record.read(), gpus);
        record.write(&BTreeSet::new()).unwrap();
        record.write(&BTreeSet::new()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
