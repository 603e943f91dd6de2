//! Takes what MPS writes into its log files over into ours.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The daemon's log and that of its servers.
const FILES: [&str; 2] = ["control.log", "server.log"];

/// MPS never shortens its logs, and they usually lie in memory: one that is longer begins anew with the daemon.
const MAX_LOG: u64 = 16 << 20;

/// How often the logs are looked at. An event per written line would cost more than a look now and then.
const LOOK: Duration = Duration::from_secs(2);

/// The most that is taken over at one look; the rest follows.
const MAX_LOOK: u64 = 64 << 10;

/// Makes logs short before a daemon starts.
pub(super) fn shorten(folder: &Path) {
    for name in FILES {
        let path = folder.join(name);
        if std::fs::metadata(&path).is_ok_and(|log| log.len() > MAX_LOG) {
            // Where it cannot be shortened it stays long.
            let _ = File::create(path);
        }
    }
}

/// Takes logs over until it is dropped, from their ends as they are now.
pub(super) async fn follow(folder: PathBuf, resource: String) {
    let mut tails = FILES.map(|name| Tail::at_end(folder.join(name)));
    loop {
        tokio::time::sleep(LOOK).await;
        for (tail, name) in tails.iter_mut().zip(FILES) {
            for line in tail.lines() {
                tracing::info!(resource, log = name, "{line}");
            }
        }
    }
}

struct Tail {
    path: PathBuf,
    position: u64,
    /// A line that has no end yet.
    rest: Vec<u8>,
}

impl Tail {
    fn at_end(path: PathBuf) -> Self {
        let position = std::fs::metadata(&path).map_or(0, |log| log.len());
        Self {
            path,
            position,
            rest: Vec::new(),
        }
    }

    /// Whole lines that are new.
    fn lines(&mut self) -> Vec<String> {
        let mut new = Vec::new();
        let mut read = || {
            let mut file = File::open(&self.path)?;
            let length = file.metadata()?.len();
            // Shorter than before: it began anew.
            let position = if length < self.position {
                0
            } else {
                self.position
            };
            file.seek(SeekFrom::Start(position))?;
            let count = file.take(MAX_LOOK).read_to_end(&mut new)?;
            Ok::<_, std::io::Error>(position + count as u64)
        };
        // A log that is not there has no lines.
        if let Ok(position) = read() {
            self.position = position;
        }
        self.rest.append(&mut new);
        let whole = self.rest.iter().rposition(|&byte| byte == b'\n');
        let end = match whole {
            Some(end) => end + 1,
            None if self.rest.len() as u64 >= MAX_LOOK => self.rest.len(),
            None => 0,
        };
        let whole: Vec<u8> = self.rest.drain(..end).collect();
        let text = String::from_utf8_lossy(&whole);
        text.lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write as _;

    use super::*;

    #[test]
    fn whole_lines_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.log");
        std::fs::write(&path, "before\n").unwrap();
        let mut tail = Tail::at_end(path.clone());
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"one\ntw").unwrap();
        assert_eq!(tail.lines(), ["one"]);
        file.write_all(b"o\nthree\n").unwrap();
        assert_eq!(tail.lines(), ["two", "three"]);
        assert!(tail.lines().is_empty());
    }

    #[test]
    fn a_log_that_begins_anew_is_read_from_its_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.log");
        std::fs::write(&path, "a long line that was there\n").unwrap();
        let mut tail = Tail::at_end(path.clone());
        std::fs::write(&path, "new\n").unwrap();
        assert_eq!(tail.lines(), ["new"]);
        std::fs::remove_file(&path).unwrap();
        assert!(tail.lines().is_empty());
    }

    #[test]
    fn only_a_long_log_is_shortened() {
        let folder = tempfile::tempdir().unwrap();
        let (control, server) = (folder.path().join(FILES[0]), folder.path().join(FILES[1]));
        std::fs::write(&control, "short\n").unwrap();
        File::create(&server).unwrap().set_len(MAX_LOG + 1).unwrap();
        shorten(folder.path());
        assert_eq!(std::fs::read(&control).unwrap(), b"short\n");
        assert_eq!(std::fs::metadata(&server).unwrap().len(), 0);
    }
}
