//! The folder of specs that container runtimes watch.
//!
//! A runtime reads a file the moment it appears, and drops all its devices when it cannot parse it. So a file here is complete when
//! it gets its name: it is written under another name that runtimes do not read, brought to disk, and renamed.
//!
//! Such a temporary file is locked as long as its writer lives. What a killed writer left is unlocked, and the next to open the
//! folder removes it; two processes that write at once, as during an update of a DaemonSet, do not disturb each other.

use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::generate::classes;
use crate::spec::Spec;
use crate::{Error, Kind};

/// Runtimes that run without privilege read the files as well.
const MODE: u32 = 0o644;

/// How temporary files end. Runtimes read `.json` and `.yaml` only.
const TEMPORARY: &str = ".lathe-new";

/// Names that are tried for a temporary file. Each is taken only by a process that writes the same spec at this moment.
const TRIES: u32 = 16;

/// A folder of specs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecFolder {
    path: PathBuf,
}

/// What a call changed: names of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Written, new or with other content.
    pub written: Vec<String>,
    /// Removed.
    pub removed: Vec<String>,
}

impl Changes {
    /// Whether the folder is as it was.
    pub fn is_empty(&self) -> bool {
        self.written.is_empty() && self.removed.is_empty()
    }
}

impl SpecFolder {
    /// The folder at this path. It is made when it is not there: `/var/run` is empty after every boot. What killed writers left in it
    /// is removed.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let folder = Self { path: path.into() };
        folder.ensure()?;
        folder.remove_leftovers()?;
        Ok(folder)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the specs of a vendor those of a node: writes what differs, removes the files of classes that have no spec any more. Files of
    /// other vendors and classes are left alone.
    pub fn replace(&self, vendor: &str, specs: &[Spec]) -> Result<Changes, Error> {
        let mut changes = Changes::default();
        for spec in specs {
            let name = spec.kind().file_name();
            if self.put(&name, spec)? {
                changes.written.push(name);
            }
        }
        for class in classes::ALL {
            let kind = Kind::new(vendor, class)?;
            let gone = specs.iter().all(|spec| *spec.kind() != kind);
            if gone && self.remove(&kind.file_name())? {
                changes.removed.push(kind.file_name());
            }
        }
        Ok(changes)
    }

    /// Writes a spec under a name of [`Kind`], unless the file has this content already. Tells whether it wrote.
    pub fn put(&self, name: &str, spec: &Spec) -> Result<bool, Error> {
        let path = self.path.join(name);
        let content = spec.to_json();
        if holds(&path, &content) {
            return Ok(false);
        }
        self.ensure()?;
        let (temporary, mut file) = self.temporary(name)?;
        let written = fill(&mut file, &content).and_then(|()| fs::rename(&temporary, &path));
        if let Err(source) = written {
            // Best effort: the next to open the folder removes what is left.
            let _ = fs::remove_file(&temporary);
            return Err(Error::Write {
                path,
                action: "write the file",
                source,
            });
        }
        self.sync()?;
        Ok(true)
    }

    /// Removes a file. Tells whether it was there.
    pub fn remove(&self, name: &str) -> Result<bool, Error> {
        let path = self.path.join(name);
        match fs::remove_file(&path) {
            Ok(()) => self.sync().map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(Error::Write {
                path,
                action: "remove the file",
                source,
            }),
        }
    }

    fn ensure(&self) -> Result<(), Error> {
        fs::create_dir_all(&self.path).map_err(|source| self.failed("make the folder", source))
    }

    fn failed(&self, action: &'static str, source: io::Error) -> Error {
        Error::Write {
            path: self.path.clone(),
            action,
            source,
        }
    }

    /// A new file beside the others, locked.
    fn temporary(&self, name: &str) -> Result<(PathBuf, File), Error> {
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for number in 0..TRIES {
            let path = self.path.join(format!(".{name}.{number}{TEMPORARY}"));
            match locked(&path) {
                Ok(Some(file)) => return Ok((path, file)),
                Ok(None) => {}
                Err(error) => {
                    last = error;
                    break;
                }
            }
        }
        Err(self.failed("make a file in it", last))
    }

    fn remove_leftovers(&self) -> Result<(), Error> {
        let listing =
            fs::read_dir(&self.path).map_err(|source| self.failed("read the folder", source))?;
        for entry in listing {
            let name = entry
                .map_err(|source| self.failed("read the folder", source))?
                .file_name();
            let name = name.to_string_lossy();
            if !(name.starts_with('.') && name.ends_with(TEMPORARY)) {
                continue;
            }
            let path = self.path.join(&*name);
            // A folder that cannot be written is told of when something is to be written.
            if let Ok(file) = File::open(&path)
                && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
                && let Err(error) = fs::remove_file(&path)
            {
                tracing::debug!(path = %path.display(), %error, "a killed writer's file stays");
            }
        }
        Ok(())
    }

    /// Brings names to disk: a power cut must not bring a removed spec back.
    fn sync(&self) -> Result<(), Error> {
        File::open(&self.path)
            .and_then(|folder| folder.sync_all())
            .map_err(|source| self.failed("bring the folder to disk", source))
    }
}

/// Whether a file has this content and can be read by all.
fn holds(path: &Path, content: &[u8]) -> bool {
    let read = || -> io::Result<bool> {
        let mut file = File::open(path)?;
        let data = file.metadata()?;
        if data.len() != content.len() as u64 || data.mode() & 0o777 != MODE {
            return Ok(false);
        }
        let mut found = Vec::with_capacity(content.len());
        file.read_to_end(&mut found)?;
        Ok(found == content)
    };
    // What cannot be read is written anew.
    read().unwrap_or(false)
}

/// A new file with a lock on it; `None` when another process has the name.
fn locked(path: &Path) -> io::Result<Option<File>> {
    let file = match File::options()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(path)
    {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        Err(error) => return Err(error),
    };
    // Between its making and its lock, another process may take it for a leftover.
    let ours = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        && file.metadata()?.nlink() > 0;
    Ok(ours.then_some(file))
}

fn fill(file: &mut File, content: &[u8]) -> io::Result<()> {
    file.write_all(content)?;
    // The process's mask has taken bits away.
    file.set_permissions(Permissions::from_mode(MODE))?;
    file.sync_all()
}

#[cfg(test)]
mod tests;
