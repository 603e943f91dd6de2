//! The node's state on disk: one file, shared by every process that uses the node.
//!
//! Reading costs one `stat` while nothing changed. Writing happens under a lock, into a temporary file that is then
//! renamed: a reader sees the old state or the new one, and a writer that is killed leaves the old one.
//! Knows nothing of what the state means, but for what every change must keep in step: dead clients, meters, the tree.

use std::{
    fs, io,
    io::Write,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Timespec, Timestamps};

use crate::{
    model::{Node, Workload},
    reset_files::ResetFiles,
    tree,
};

/// Name of the state file.
pub const STATE_FILE: &str = "state.json";
const LOCK_FILE: &str = "state.lock";
const TEMPORARY_FILE: &str = "state.json.new";

/// How long a writer waits for another before it gives up. A writer holds the lock for about a millisecond; only one that
/// is stopped in the middle can keep it longer.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// Meters are settled this far ahead, microseconds, and stand still until then. Readers go on with the old rates until the
/// new state is in place; this way none of them has seen more than what is settled, and no counter falls. A writer that is
/// held up for longer settles again, further ahead, up to the longest.
const SETTLE_AHEAD_US: u64 = 20_000;
const LONGEST_AHEAD_US: u64 = 20_000_000;

/// The version of the state file, as far as `stat` tells. Names are reused and clocks are coarse, so the time stamp is
/// set by the writer: its nanoseconds are the state's sequence number, and no two versions look alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    seconds: i64,
    nanoseconds: u64,
    size: i64,
}

impl Stamp {
    fn of(stat: &rustix::fs::Stat) -> Self {
        Stamp {
            inode: stat.st_ino,
            seconds: stat.st_mtime,
            nanoseconds: stat.st_mtime_nsec,
            size: stat.st_size,
        }
    }
}

#[derive(Clone)]
struct Cached {
    stamp: Stamp,
    node: Arc<Node>,
}

/// The store of one node.
pub struct Store {
    folder: PathBuf,
    directory: OwnedFd,
    cached: Mutex<Option<Cached>>,
    resets: ResetFiles,
    /// Writers of this process queue here, so that only one of them tries for the file lock.
    writer: Mutex<()>,
    /// Threads that find the state changed queue here, so that only one of them reads it.
    reader: Mutex<()>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the mutexes guard is replaced whole, never left half-changed, so a panic elsewhere does not spoil it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with_path(path: &Path, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Store {
    /// The store in `folder`, which holds the state file.
    pub fn open(folder: impl Into<PathBuf>) -> io::Result<Store> {
        let folder = folder.into();
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let directory = rustix::fs::open(&folder, flags, Mode::empty())
            .map_err(|error| with_path(&folder, error))?;
        Ok(Store {
            resets: ResetFiles::beside(&folder),
            folder,
            directory,
            cached: Mutex::new(None),
            writer: Mutex::new(()),
            reader: Mutex::new(()),
        })
    }

    /// The folder of the state file.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes the first state of a node and its tree, and opens its store.
    pub fn create(folder: impl Into<PathBuf>, node: Node) -> io::Result<Store> {
        let store = Store::open(folder)?;
        {
            let _writer = guard(&store.writer);
            let _lock = store.lock()?;
            tree::create(&node)?;
            store.put_in_place(store.prepare(node)?)?;
        }
        Ok(store)
    }

    /// The state as it is.
    pub fn load(&self) -> io::Result<Arc<Node>> {
        if let Some(node) = self.cached()? {
            return Ok(node);
        }
        let _reader = guard(&self.reader);
        match self.cached()? {
            // Somebody else has read it meanwhile.
            Some(node) => Ok(node),
            None => self.read(),
        }
    }

    /// The state as it was last read, if it is still that.
    fn cached(&self) -> io::Result<Option<Arc<Node>>> {
        let stamp = self.stamp()?;
        let cached = guard(&self.cached);
        let current = cached.as_ref().filter(|cached| cached.stamp == stamp);
        Ok(current.map(|cached| Arc::clone(&cached.node)))
    }

    /// The state without workloads of processes that ended: with a process go its memory and its load.
    pub fn load_living(&self) -> io::Result<Arc<Node>> {
        let node = self.load()?;
        let ended = |workload: &Workload| {
            let start = workload.start;
            start.is_some_and(|start| !is_alive(workload.pid, start))
        };
        if !node.workloads.iter().any(ended) {
            return Ok(node);
        }
        // The update forgets them itself. Who may not write still reads.
        let _ = self.update(|_| ());
        self.load()
    }

    /// The state as it is once resets that somebody asked for through sysfs are done.
    pub fn load_after_resets(&self) -> io::Result<Arc<Node>> {
        let node = self.load_living()?;
        if !self.resets.asked(&node) {
            return Ok(node);
        }
        // The update serves the requests itself.
        self.update(|_| ())?;
        self.load()
    }

    /// Changes the state under the lock and returns what `change` returns. Nothing is written when nothing changed.
    ///
    /// Before the change, clients of ended processes are forgotten and resets asked for through sysfs done; after it, meters are settled.
    pub fn update<T>(&self, change: impl FnOnce(&mut Node) -> T) -> io::Result<T> {
        let _writer = guard(&self.writer);
        let _lock = self.lock()?;
        let before = self.load()?;
        tree::mend(&self.folder, &before)?;
        let mut node = Node::clone(&before);
        node.reap(is_alive);
        self.resets.take(&before, |gpu| {
            // The kernel would say EBUSY to the writer; a file has no way to, so a refused reset leaves things as they are.
            let _ = node.reset(gpu, 0);
        })?;
        let result = change(&mut node);
        if node == *before {
            return Ok(result);
        }
        let shows = tree::announce(&self.folder, &before, &node)?;
        let written = in_time(
            |ahead| {
                let mut node = node.clone();
                let until = settled_at(&before, ahead);
                let counts = node.settle(&before, until);
                Ok((self.prepare(node)?, counts.then_some(until)))
            },
            || now_us(&before),
        )?;
        let after = self.put_in_place(written)?;
        if shows {
            tree::follow(&self.folder, &before, &after)?;
        }
        Ok(result)
    }

    fn stamp(&self) -> io::Result<Stamp> {
        let stat = rustix::fs::statat(&self.directory, STATE_FILE, AtFlags::empty())
            .map_err(|error| with_path(&self.folder.join(STATE_FILE), error))?;
        Ok(Stamp::of(&stat))
    }

    fn read(&self) -> io::Result<Arc<Node>> {
        let path = self.folder.join(STATE_FILE);
        let file = fs::File::open(&path).map_err(|error| with_path(&path, error))?;
        // The stamp of the very file that is read: the name may be renamed over meanwhile.
        let stamp = Stamp::of(&rustix::fs::fstat(&file)?);
        let bytes = io::read_to_string(file).map_err(|error| with_path(&path, error))?;
        let mut node: Node =
            serde_json::from_str(&bytes).map_err(|error| with_path(&path, error))?;
        node.link().map_err(|reason| {
            with_path(&path, io::Error::new(io::ErrorKind::InvalidData, reason))
        })?;
        let node = Arc::new(node);
        *guard(&self.cached) = Some(Cached {
            stamp,
            node: Arc::clone(&node),
        });
        Ok(node)
    }

    /// Writes the next state to where it is not in force yet.
    fn prepare(&self, mut node: Node) -> io::Result<Cached> {
        node.sequence += 1;
        node.link()
            .map_err(|reason| io::Error::new(io::ErrorKind::InvalidInput, reason))?;
        let bytes = serde_json::to_vec(&node)?;
        let temporary = self.folder.join(TEMPORARY_FILE);
        // What a killed writer left.
        remove_if_there(&temporary)?;
        let mut file =
            fs::File::create(&temporary).map_err(|error| with_path(&temporary, error))?;
        file.write_all(&bytes)
            .map_err(|error| with_path(&temporary, error))?;
        let seconds = i64::try_from(node.sequence / 1_000_000_000).unwrap_or(0);
        let modified = Timespec {
            tv_sec: seconds,
            tv_nsec: (node.sequence % 1_000_000_000) as _,
        };
        rustix::fs::futimens(
            &file,
            &Timestamps {
                last_access: modified,
                last_modification: modified,
            },
        )?;
        let stat = rustix::fs::fstat(&file)?;
        Ok(Cached {
            stamp: Stamp::of(&stat),
            node: Arc::new(node),
        })
    }

    /// Puts the new state in the place of the old one, in one step for readers.
    ///
    /// The two change places and the old one is removed: file systems with delayed allocation write a file out at once
    /// when it is renamed over another or when one is cut short and written again, and that takes milliseconds.
    fn put_in_place(&self, prepared: Cached) -> io::Result<Arc<Node>> {
        let exchange = rustix::fs::RenameFlags::EXCHANGE;
        let directory = &self.directory;
        let temporary = self.folder.join(TEMPORARY_FILE);
        match rustix::fs::renameat_with(directory, TEMPORARY_FILE, directory, STATE_FILE, exchange)
        {
            Ok(()) => remove_if_there(&temporary)?,
            // There is no state yet, or the file system cannot exchange.
            Err(_) => fs::rename(&temporary, self.folder.join(STATE_FILE))
                .map_err(|error| with_path(&temporary, error))?,
        }
        let node = Arc::clone(&prepared.node);
        *guard(&self.cached) = Some(prepared);
        Ok(node)
    }

    /// The lock of the state; released when dropped, and by the kernel when the process dies.
    fn lock(&self) -> io::Result<fs::File> {
        let path = self.folder.join(LOCK_FILE);
        let file = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path);
        let file = file.map_err(|error| with_path(&path, error))?;
        let start = Instant::now();
        let mut pause = Duration::from_micros(50);
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(with_path(&path, error)),
            }
            if start.elapsed() > LOCK_PATIENCE {
                let reason =
                    "another process has held the node's state for ten seconds; is one stopped?";
                return Err(with_path(
                    &path,
                    io::Error::new(io::ErrorKind::TimedOut, reason),
                ));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }
}

/// Makes the next state with `attempt`, which gets how far ahead meters are to be settled and says until when they are
/// (nothing when none were), again and further ahead as long as that moment has passed by the clock when it is ready.
fn in_time<T>(
    mut attempt: impl FnMut(u64) -> io::Result<(T, Option<u64>)>,
    now: impl Fn() -> u64,
) -> io::Result<T> {
    let mut ahead = SETTLE_AHEAD_US;
    loop {
        let (ready, until) = attempt(ahead)?;
        if until.is_none_or(|until| now() <= until) || ahead >= LONGEST_AHEAD_US {
            return Ok(ready);
        }
        ahead = (ahead * 4).min(LONGEST_AHEAD_US);
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(with_path(path, error)),
        _ => Ok(()),
    }
}

/// When meters of a changing node are settled. A clock that stands still cannot run on while the change is made.
fn settled_at(node: &Node, ahead: u64) -> u64 {
    let ahead = if node.clock_frozen_us.is_none() {
        ahead
    } else {
        0
    };
    now_us(node).saturating_add(ahead)
}

/// The node's clock: the host's real time, or the moment it was frozen at, plus the node's offset, microseconds.
pub fn now_us(node: &Node) -> u64 {
    if let Some(frozen) = node.clock_frozen_us {
        return frozen.saturating_add(node.clock_offset_us);
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let micros = u64::try_from(now.tv_nsec / 1000).unwrap_or(0);
    (seconds * 1_000_000 + micros).saturating_add(node.clock_offset_us)
}

/// Start time of a process of the host in clock ticks since boot; absent when there is no such process.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command in parentheses may hold anything, so count fields from the last parenthesis: state is field 3.
    let rest = &stat[stat.rfind(')')? + 1..];
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(22 - 4)?.parse().ok()
}

/// Whether the process of the host that began at this time still runs.
pub(crate) fn is_alive(pid: u32, start: u64) -> bool {
    start_time(pid) == Some(start)
}

#[cfg(test)]
mod tests;
