//! The lock that keeps two applies on one node from interleaving.
//!
//! `flock` on a file in the state folder: it goes away with its holder, however that ends.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

/// Held until dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "closing the file releases the lock")] File);

/// Why the lock was not obtained.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The lock file cannot be used.
    #[error("cannot lock {}, so nothing was touched: {source}; lock and journal need a folder that can be written (--state-dir)", .path.display())]
    File {
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process holds it.
    #[error("another change of this node is running (process {holder}); waited {} s for {}", .waited.as_secs(), .path.display())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// What the file says of its holder.
        holder: String,
        /// How long we waited.
        waited: Duration,
    },
}

impl Lock {
    /// Takes the lock, waiting at most `wait` for another holder.
    pub(crate) fn take(path: &Path, wait: Duration) -> Result<Self, LockError> {
        let failed = |source: io::Error| LockError::File {
            path: path.to_owned(),
            source,
        };
        let mut file = open(path).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                file =
                    wait_for(path, file, wait)
                        .map_err(failed)?
                        .ok_or_else(|| LockError::Held {
                            path: path.to_owned(),
                            holder: holder(path),
                            waited: wait,
                        })?;
            }
            Err(error) => return Err(failed(error.into())),
        }
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(failed)?;
        Ok(Self(file))
    }
}

/// Who holds the lock now, if anybody.
pub(crate) fn holder_of(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => Some(holder(path)),
        _ => None,
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
}

/// Blocks in the kernel on a thread of its own, since `flock` takes no deadline. When the thread gets the lock too late it
/// finds nobody listening and drops it again.
fn wait_for(path: &Path, file: File, wait: Duration) -> io::Result<Option<File>> {
    tracing::info!(
        holder = holder(path),
        "waiting for another change of this node to end"
    );
    let (send, locked) = mpsc::channel();
    thread::Builder::new()
        .name("lathe-lock".to_owned())
        .spawn(move || {
            let result = flock(&file, FlockOperation::LockExclusive);
            let _nobody_waits = send.send(result.map(|()| file));
        })?;
    match locked.recv_timeout(wait) {
        Ok(Ok(file)) => Ok(Some(file)),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Ok(None),
    }
}

fn holder(path: &Path) -> String {
    let mut text = String::new();
    let read = File::open(path).and_then(|f| f.take(32).read_to_string(&mut text));
    match (read, text.trim()) {
        (Ok(_), pid) if !pid.is_empty() => pid.to_owned(),
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Instant;

    use super::*;

    #[test]
    fn second_taker_is_told_who_holds_it_and_gets_it_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/lock");
        let held = Lock::take(&path, Duration::ZERO).unwrap();
        let error = Lock::take(&path, Duration::from_millis(20)).unwrap_err();
        assert!(
            error.to_string().contains(&std::process::id().to_string()),
            "{error}"
        );
        let own = std::process::id().to_string();
        assert_eq!(holder_of(&path).as_deref(), Some(&*own));
        drop(held);
        // Who gave up may get it for a moment, and a program that another test starts has this process' files at first.
        let start = Instant::now();
        while holder_of(&path).is_some() {
            assert!(start.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(1));
        }
        Lock::take(&path, Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn waiter_gets_it_when_the_holder_lets_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = Lock::take(&path, Duration::ZERO).unwrap();
        let other = {
            let path = path.clone();
            thread::spawn(move || Lock::take(&path, Duration::from_secs(60)).is_ok())
        };
        drop(held);
        assert!(other.join().unwrap());
    }

    #[test]
    fn unusable_folder() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Lock::take(&file.join("lock"), Duration::ZERO).unwrap_err();
        assert!(matches!(error, LockError::File { .. }));
    }
}
