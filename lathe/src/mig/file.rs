//! Writes a result to a file so that a reader sees the old content or the new, never a part.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use crate::output;

/// Writes `text` to `path`; `-` is standard output. A device such as `/dev/stdout` is written to as it is.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    if path == Path::new("-") {
        return output::say(text);
    }
    if fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return fs::write(path, text);
    }
    // A link keeps pointing where it did.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut draft = OsString::from(&path);
    draft.push(format!(".{}.new", std::process::id()));
    let result = write_through(Path::new(&draft), text).and_then(|()| fs::rename(&draft, &path));
    if result.is_err() {
        // The draft may not exist; the error that counts is the one above.
        let _gone = fs::remove_file(&draft);
    }
    result
}

/// On the disk before it gets its name: a checkpoint is for the time after a reboot, which may not be an orderly one.
fn write_through(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn replaces_whole_and_leaves_no_draft() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint.json");
        write(&path, "one").unwrap();
        write(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        write(Path::new("/dev/null"), "x").unwrap();
        assert!(write(&dir.path().join("missing/file"), "x").is_err());
    }
}
