//! This process's use of the library: which node it talks to, and whether it is initialised.
//!
//! The node is the one whose state lies beside the library file that was loaded, so each copy of the library is a node of
//! its own. `nvmlInit` and `nvmlShutdown` are counted; the first registers this process as a client of the node, the last
//! takes it off and lets the node's state go: statics are not dropped when a library is unloaded. After a fork the child is
//! another client. Must not know any NVML function.

use std::{
    ffi::{CStr, OsStr, c_char, c_int, c_void},
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    Code,
    store::{Store, start_time},
};

/// The node's state while the library is initialised.
static STORE: RwLock<Option<Arc<Store>>> = RwLock::new(None);

/// Process id (upper half) and how often it is initialised (lower half). One word, so that a fork, which copies it, and
/// concurrent calls see both together.
static CLIENT: AtomicU64 = AtomicU64::new(0);

/// The half of `CLIENT` that counts.
const COUNT: u64 = 0xFFFF_FFFF;

/// Sequence number of the node's state at the first `nvmlInit`.
static SINCE: AtomicU64 = AtomicU64::new(0);

/// Held while the client registers or unregisters, so that the counter and the node agree.
static CHANGE: Mutex<()> = Mutex::new(());

/// What `dladdr` answers.
#[repr(C)]
struct Location {
    file: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

unsafe extern "C" {
    /// POSIX: which loaded file holds an address.
    fn dladdr(address: *const c_void, location: *mut Location) -> c_int;
}

/// The folder of the library file that holds this code, with symlinks resolved.
fn folder() -> Option<PathBuf> {
    let mut location = Location {
        file: std::ptr::null(),
        base: std::ptr::null_mut(),
        symbol: std::ptr::null(),
        address: std::ptr::null_mut(),
    };
    // SAFETY: the address is that of a static of this library, and `location` is a valid place for the answer.
    let found = unsafe { dladdr((&raw const CLIENT).cast(), &raw mut location) };
    if found == 0 || location.file.is_null() {
        return None;
    }
    // SAFETY: on success `dladdr` leaves a zero-terminated path that lives as long as the library stays loaded.
    let file = unsafe { CStr::from_ptr(location.file) };
    let file = Path::new(OsStr::from_bytes(file.to_bytes()));
    Some(std::fs::canonicalize(file).ok()?.parent()?.to_owned())
}

/// The node's state while the library is initialised.
fn current_store() -> Option<Arc<Store>> {
    STORE
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .as_ref()
        .map(Arc::clone)
}

fn set_store(store: Option<Arc<Store>>) {
    *STORE.write().unwrap_or_else(PoisonError::into_inner) = store;
}

/// The node's state, opened when no client has it open. A library without a state beside it is like a host without the
/// kernel module.
fn store() -> Result<Arc<Store>, Code> {
    if let Some(store) = current_store() {
        return Ok(store);
    }
    let folder = folder().ok_or(Code::DRIVER_NOT_LOADED)?;
    let store = Store::open(&folder).map_err(|_| Code::DRIVER_NOT_LOADED)?;
    Ok(Arc::new(store))
}

fn own_pid() -> u64 {
    u64::from(std::process::id())
}

/// This process as a client of the node.
#[derive(Clone)]
pub(super) struct Client {
    store: Arc<Store>,
    since: u64,
}

impl Client {
    /// The node's state.
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Sequence number that the node's state had at this process's first `nvmlInit`: it decides which GPUs are seen.
    pub(super) fn since(&self) -> u64 {
        self.since
    }
}

/// This process as a client, if the library is initialised in it.
pub(super) fn current() -> Result<Client, Code> {
    let word = CLIENT.load(Ordering::Acquire);
    if word & COUNT == 0 {
        return Err(Code::UNINITIALIZED);
    }
    // The last client may be leaving at this moment.
    let store = current_store().ok_or(Code::UNINITIALIZED)?;
    if word >> 32 != own_pid() {
        // This is the child of a fork: it inherits the count, but the node does not know it yet.
        let adopted = own_pid() << 32 | word & COUNT;
        if CLIENT
            .compare_exchange(word, adopted, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            register(&store)?;
        }
    }
    Ok(Client {
        store,
        since: SINCE.load(Ordering::Acquire),
    })
}

/// `nvmlInit`: the first call of a process makes it a client, if `hurdles` lets it pass.
pub(super) fn init(hurdles: impl FnOnce(&Store) -> Result<(), Code>) -> Result<(), Code> {
    let store = store()?;
    hurdles(&store)?;
    let _change = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    let word = CLIENT.load(Ordering::Acquire);
    let count = if word >> 32 == own_pid() {
        word & COUNT
    } else {
        0
    };
    if count == 0 {
        register(&store)?;
        set_store(Some(store));
    }
    CLIENT.store(own_pid() << 32 | (count + 1), Ordering::Release);
    Ok(())
}

/// `nvmlShutdown`: the last call of a process takes it off the node. Whether this was the last.
pub(super) fn shutdown() -> Result<bool, Code> {
    let _change = CHANGE.lock().unwrap_or_else(PoisonError::into_inner);
    let word = CLIENT.load(Ordering::Acquire);
    let count = word & COUNT;
    if count == 0 {
        return Err(Code::UNINITIALIZED);
    }
    if count == 1 {
        store()?
            .update(|node| node.unregister(own_pid() as u32))
            .map_err(|_| Code::UNKNOWN)?;
    }
    CLIENT.store(own_pid() << 32 | (count - 1), Ordering::Release);
    if count == 1 {
        set_store(None);
    }
    Ok(count == 1)
}

fn register(store: &Store) -> Result<(), Code> {
    let sequence = store.update(|node| {
        let pid = own_pid() as u32;
        node.register(pid, start_time(pid).unwrap_or(0), false);
        node.sequence
    });
    // What the header names for a library that may not talk to the driver: here, who may not write the node's state.
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Code::NO_PERMISSION,
        _ => Code::UNKNOWN,
    };
    SINCE.store(sequence.map_err(refused)?, Ordering::Release);
    Ok(())
}
