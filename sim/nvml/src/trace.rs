//! The call trace: one JSON line per library call, appended beside the state.
//!
//! Calls that change something are always traced; queries only while the node asks for it. A line is written with one
//! `O_APPEND` write, so lines of several processes never mix. Must not know what the calls mean.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Name of the trace inside the state folder.
pub const FILE: &str = "trace.jsonl";

/// One traced call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When the call began: nanoseconds since the epoch, on the node's clock.
    pub time_ns: u64,
    /// The calling process.
    pub pid: u32,
    /// The exported function.
    pub symbol: String,
    /// Whether the call is one that changes the node.
    pub mutating: bool,
    /// Its input arguments by name, and what it reports beyond its result (`created`, `activationStatus`).
    pub args: Map<String, Value>,
    /// The code it returned.
    pub result: u32,
}

/// Appends one entry to the trace in `folder`.
///
/// # Errors
/// When the file cannot be opened or written.
pub fn append(folder: &Path, entry: &Entry) -> io::Result<()> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(folder.join(FILE))?
        .write_all(&line)
}

/// Reads the trace in `folder`, oldest call first; an absent file is an empty trace, and a last line that is still being
/// written is no call yet.
///
/// # Errors
/// When the file cannot be read or a line is not a trace entry.
pub fn read(folder: &Path) -> io::Result<Vec<Entry>> {
    let text = match fs::read_to_string(folder.join(FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
    whole
        .lines()
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}

/// Forgets all traced calls.
///
/// # Errors
/// When the file exists and cannot be emptied.
pub fn clear(folder: &Path) -> io::Result<()> {
    match OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(folder.join(FILE))
    {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn entries_come_back_in_order_and_can_be_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), []);
        let mut entry = Entry {
            time_ns: 1,
            pid: 2,
            symbol: "nvmlDeviceSetMigMode".into(),
            mutating: true,
            args: Map::from_iter([("mode".to_owned(), Value::from(1))]),
            result: 0,
        };
        append(folder.path(), &entry).unwrap();
        entry.result = 4;
        append(folder.path(), &entry).unwrap();
        let lines = read(folder.path()).unwrap();
        assert_eq!(
            lines.iter().map(|entry| entry.result).collect::<Vec<_>>(),
            [0, 4]
        );
        assert_eq!(lines[1], entry);
        let line = serde_json::to_string(&entry).unwrap();
        for written in [1, line.len() / 2, line.len()] {
            let path = folder.path().join(FILE);
            let former = fs::read(&path).unwrap();
            let mut file = OpenOptions::new().append(true).open(&path).unwrap();
            file.write_all(&line.as_bytes()[..written]).unwrap();
            assert_eq!(read(folder.path()).unwrap(), lines);
            fs::write(&path, former).unwrap();
        }
        clear(folder.path()).unwrap();
        assert_eq!(read(folder.path()).unwrap(), []);
    }
}
