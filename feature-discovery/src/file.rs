//! The feature file: written whole or not at all, and only when it says something new.
//!
//! The node feature discovery worker reads every file of the folder whose name does not begin with a dot.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A feature file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("feature file {}: cannot {step}: {source}{}", .path.display(), hint(.source))]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// What failed.
    pub step: &'static str,
    /// Why.
    pub source: io::Error,
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; make the folder, or mount the host's",
        io::ErrorKind::PermissionDenied => "; run as a user who may write there",
        _ => "",
    }
}

/// What became of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It says so already; nothing was written.
    Unchanged,
    /// It was replaced.
    Replaced,
}

/// Makes `path` say `text`, readable by everybody. A reader sees the old text or the new one, never part of one.
///
/// # Errors
/// [`WriteError`]; the file is as it was.
pub fn write(path: &Path, text: &str) -> Result<Written, WriteError> {
    if says(path, text) {
        return Ok(Written::Unchanged);
    }
    let fail = |step| {
        move |source| WriteError {
            path: path.to_owned(),
            step,
            source,
        }
    };
    let name = path.file_name().ok_or_else(|| {
        fail("use a path without a file name")(io::ErrorKind::InvalidInput.into())
    })?;
    // In the same folder, because only there a rename is atomic; with a dot, so that no reader takes it for a feature file.
    let temporary = path.with_file_name(format!(".{}.{}", name.display(), std::process::id()));
    let result = fill(&temporary, text)
        .map_err(fail("write a new one beside it"))
        .and_then(|()| fs::rename(&temporary, path).map_err(fail("replace it")));
    if result.is_err() {
        // It may not exist; the first error is the one to tell.
        let _ = fs::remove_file(&temporary);
    }
    result.map(|()| Written::Replaced)
}

/// Whether `path` is a file that says `text`. Anything else there is not opened: a pipe would be waited for.
fn says(path: &Path, text: &str) -> bool {
    fs::metadata(path).is_ok_and(|old| old.is_file() && old.len() == text.len() as u64)
        && fs::read(path).is_ok_and(|old| old == text.as_bytes())
}

fn fill(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    // Whatever the umask: the worker runs as another user.
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn writes_only_what_is_new() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gfd");
        assert_eq!(write(&path, "a=1\n").unwrap(), Written::Replaced);
        let first = fs::metadata(&path).unwrap();
        assert_eq!(first.mode() & 0o777, 0o644);
        assert_eq!(write(&path, "a=1\n").unwrap(), Written::Unchanged);
        assert_eq!(fs::metadata(&path).unwrap().ino(), first.ino());
        assert_eq!(write(&path, "a=2\n").unwrap(), Written::Replaced);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a=2\n");
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing else is left"
        );
    }

    #[test]
    fn a_pipe_in_its_place_is_replaced_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gfd");
        let pipe = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, pipe, 0o600.into(), 0).unwrap();
        assert_eq!(write(&path, "a=1\n").unwrap(), Written::Replaced);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a=1\n");
    }

    #[test]
    fn a_missing_folder_is_said_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("features.d/gfd");
        let message = write(&path, "a=1\n").unwrap_err().to_string();
        assert!(
            message.contains("features.d/gfd") && message.contains("make the folder"),
            "{message}"
        );
    }

    #[test]
    fn a_failed_replacement_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gfd");
        // A folder with something in it cannot be replaced by a file.
        fs::create_dir_all(path.join("inside")).unwrap();
        assert_eq!(write(&path, "a=1\n").unwrap_err().step, "replace it");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
