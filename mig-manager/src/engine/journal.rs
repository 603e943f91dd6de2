//! The journal of one apply: what every GPU was, what it is to become, and each step before it is taken.
//!
//! One file per node, there only while an apply runs or after one that was killed. Its head is written whole or not at all;
//! steps are appended and synced. What became of a step is never read from here but from the hardware: a kill can fall
//! between the deed and its record.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use gpu::{Goal, Layout};
use serde::{Deserialize, Serialize};

/// The head: everything that finishing or undoing needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// Format of the file.
    pub(crate) version: u32,
    /// Process that wrote it.
    pub(crate) pid: u32,
    /// Name of the layout that was applied.
    pub(crate) name: String,
    /// The GPUs that take part.
    pub(crate) gpus: Vec<Entry>,
}

/// One GPU's before and after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// UUID: an index may mean another GPU after a restart.
    pub(crate) uuid: String,
    /// The layout to go back to.
    pub(crate) before: Layout,
    /// What it is to become.
    pub(crate) goal: Goal,
}

/// A step that is about to be taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StepRecord {
    uuid: String,
    step: String,
}

/// What a killed apply left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) head: Head,
    /// The last step announced for each GPU, as text for people.
    pub(crate) last_steps: Vec<(String, String)>,
}

const VERSION: u32 = 1;
const FILE: &str = "journal";

/// The journal cannot be kept. Nothing may be changed then.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", .path.display())]
pub struct JournalError {
    path: PathBuf,
    source: io::Error,
}

/// An open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: Mutex<File>,
}

impl Journal {
    /// Starts a journal, replacing one that was left.
    pub(crate) fn begin(folder: &Path, name: &str, gpus: Vec<Entry>) -> Result<Self, JournalError> {
        let head = Head {
            version: VERSION,
            pid: std::process::id(),
            name: name.to_owned(),
            gpus,
        };
        let path = folder.join(FILE);
        let file = write_whole(folder, &path, &head).map_err(|source| JournalError {
            path: path.clone(),
            source,
        })?;
        Ok(Self {
            path,
            file: Mutex::new(file),
        })
    }

    /// Goes on with the journal that an earlier apply left.
    pub(crate) fn resume(folder: &Path) -> Result<Self, JournalError> {
        let path = folder.join(FILE);
        match OpenOptions::new().append(true).open(&path) {
            Ok(file) => Ok(Self {
                path,
                file: Mutex::new(file),
            }),
            Err(source) => Err(JournalError { path, source }),
        }
    }

    /// Records that `step` of a GPU is about to be taken.
    pub(crate) fn step(&self, uuid: &str, step: &str) -> Result<(), JournalError> {
        let record = StepRecord {
            uuid: uuid.to_owned(),
            step: step.to_owned(),
        };
        let append = || {
            let mut line = serde_json::to_vec(&record)?;
            line.push(b'\n');
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.write_all(&line)?;
            file.sync_data()
        };
        append().map_err(|source| self.error(source))
    }

    fn error(&self, source: io::Error) -> JournalError {
        JournalError {
            path: self.path.clone(),
            source,
        }
    }
}

fn write_whole(folder: &Path, path: &Path, head: &Head) -> io::Result<File> {
    fs::create_dir_all(folder)?;
    let draft = path.with_extension("new");
    let mut line = serde_json::to_vec(head)?;
    line.push(b'\n');
    fs::write(&draft, line)?;
    File::open(&draft)?.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(folder)?.sync_all()?;
    OpenOptions::new().append(true).open(path)
}

fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// What an earlier apply left in this folder, if anything.
pub(crate) fn left(folder: &Path) -> Result<Option<Left>, JournalError> {
    let path = folder.join(FILE);
    let error = |source| JournalError {
        path: path.clone(),
        source,
    };
    let text = match fs::read(&path) {
        // What is no text is no JSON either, and says so below.
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(error(e)),
    };
    parse(&text).map(Some).map_err(|e| {
        let message = format!("no journal of this program ({e}); remove it to go on");
        error(io::Error::new(io::ErrorKind::InvalidData, message))
    })
}

/// Removes the journal, if there is one: nothing is left to finish or undo.
pub(crate) fn forget(folder: &Path) -> Result<(), JournalError> {
    let path = folder.join(FILE);
    match remove(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(JournalError { path, source: e }),
        _ => Ok(()),
    }
}

fn parse(text: &str) -> io::Result<Left> {
    let mut lines = text.lines();
    let head: Head = serde_json::from_str(lines.next().unwrap_or_default())?;
    if head.version != VERSION {
        let message = format!(
            "journal version {} of another program version",
            head.version
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let mut last_steps: Vec<(String, String)> = Vec::new();
    // A kill may tear the last line; whatever it announced has not happened then.
    for record in lines.filter_map(|l| serde_json::from_str::<StepRecord>(l).ok()) {
        last_steps.retain(|(uuid, _)| *uuid != record.uuid);
        last_steps.push((record.uuid, record.step));
    }
    Ok(Left { head, last_steps })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn entry(uuid: &str) -> Entry {
        Entry {
            uuid: uuid.to_owned(),
            before: Layout::default(),
            goal: Goal::Mode(false),
        }
    }

    #[test]
    fn round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("mig");
        assert_eq!(left(&folder).unwrap(), None);
        let journal = Journal::begin(
            &folder,
            "all-disabled",
            vec![entry("GPU-a"), entry("GPU-b")],
        )
        .unwrap();
        journal.step("GPU-a", "one").unwrap();
        journal.step("GPU-b", "two").unwrap();
        journal.step("GPU-a", "three").unwrap();
        let found = left(&folder).unwrap().unwrap();
        assert_eq!(found.head.gpus, [entry("GPU-a"), entry("GPU-b")]);
        assert_eq!(found.head.pid, std::process::id());
        let step = |u: &str, s: &str| (u.to_owned(), s.to_owned());
        assert_eq!(
            found.last_steps,
            [step("GPU-b", "two"), step("GPU-a", "three")]
        );
        forget(&folder).unwrap();
        assert_eq!(left(&folder).unwrap(), None);
        forget(&folder).unwrap();
    }

    #[test]
    fn torn_anywhere_after_the_head_is_still_readable() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::begin(dir.path(), "x", vec![entry("GPU-a")]).unwrap();
        let head = fs::read_to_string(dir.path().join(FILE)).unwrap().len();
        journal.step("GPU-a", "one").unwrap();
        journal.step("GPU-a", "two").unwrap();
        let whole = fs::read_to_string(dir.path().join(FILE)).unwrap();
        for cut in head..=whole.len() {
            let found = parse(whole.get(..cut).unwrap()).unwrap();
            assert_eq!(found.head.gpus, [entry("GPU-a")], "cut at {cut}");
        }
    }

    #[test]
    fn a_journal_nobody_can_read_is_an_error_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        for content in [
            &b"{\"version\":9"[..],
            b"",
            b"{}",
            b"\xff\0\xfe",
            &[0; 100_000],
        ] {
            fs::write(dir.path().join(FILE), content).unwrap();
            let error = left(dir.path()).unwrap_err();
            assert!(
                error.to_string().ends_with("; remove it to go on"),
                "{error}"
            );
            assert!(dir.path().join(FILE).exists());
        }
    }

    #[test]
    fn an_interrupted_start_leaves_the_old_journal() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::begin(dir.path(), "first", vec![entry("GPU-a")]).unwrap();
        fs::write(dir.path().join("journal.new"), "{\"vers").unwrap();
        drop(journal);
        assert_eq!(left(dir.path()).unwrap().unwrap().head.name, "first");
        Journal::begin(dir.path(), "second", Vec::new()).unwrap();
        assert_eq!(left(dir.path()).unwrap().unwrap().head.name, "second");
    }
}
