//! The driver library, loaded: its functions, and the promise that it is shut down before it is unloaded.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nvml_wrapper_sys::bindings as sys;

use crate::error::Error;
use crate::gpm::SamplePool;
use crate::locate;

/// `nvmlRemappedRowsInfo_v2_t` (header 13.3): the bindings are generated from 13.0, which lacks it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RemappedRowsInfoV2 {
    pub(crate) correctable_active: u32,
    pub(crate) correctable_inactive: u32,
    pub(crate) uncorrectable_active: u32,
    pub(crate) uncorrectable_inactive: u32,
    pub(crate) pending: u32,
    pub(crate) failure: u32,
}

/// `nvmlDeviceGetRemappedRows_v2` (header 13.3).
pub(crate) type GetRemappedRowsV2 =
    unsafe extern "C" fn(sys::nvmlDevice_t, *mut RemappedRowsInfoV2) -> sys::nvmlReturn_t;

/// `nvmlDevice…RunningProcesses_v2`: the older names, with the arguments and the layout of today's `_v3`.
pub(crate) type GetProcesses = unsafe extern "C" fn(
    sys::nvmlDevice_t,
    *mut std::ffi::c_uint,
    *mut sys::nvmlProcessInfo_t,
) -> sys::nvmlReturn_t;

/// A function of the library by name; absent when the library does not export it.
#[derive(Clone, Copy)]
pub(crate) struct Symbol<F> {
    pub(crate) name: &'static str,
    pub(crate) function: Option<F>,
}

impl<F: Copy> Symbol<F> {
    pub(crate) fn new<E>(name: &'static str, lookup: &Result<F, E>) -> Self {
        Self {
            name,
            function: lookup.as_ref().ok().copied(),
        }
    }
}

/// Names a function of the bindings: `symbol!(library, nvmlDeviceGetName)`.
macro_rules! symbol {
    ($library:expr, $name:ident) => {
        $crate::library::Symbol::new(stringify!($name), &$library.functions.$name)
    };
}
pub(crate) use symbol;

/// The loaded library. NVML counts initialisations: once [`Library::initialised`] was called, dropping shuts NVML down.
pub(crate) struct Library {
    /// Every function is looked up once at load; one that is missing stays an error until somebody calls it.
    pub(crate) functions: sys::NvmlLib,
    pub(crate) remapped_rows_v2: Symbol<GetRemappedRowsV2>,
    pub(crate) compute_processes_v2: Symbol<GetProcesses>,
    pub(crate) graphics_processes_v2: Symbol<GetProcesses>,
    pub(crate) path: PathBuf,
    pub(crate) samples: std::sync::Arc<SamplePool>,
    initialised: AtomicBool,
    gone: AtomicBool,
}

impl Library {
    /// Loads the driver library: `explicit` when given, else the one under `root`.
    ///
    /// With `/` as root the dynamic loader searches first, so `LD_LIBRARY_PATH` and `ld.so.conf` keep their meaning.
    pub(crate) fn load(root: &Path, explicit: Option<&Path>) -> Result<Self, Error> {
        if let Some(path) = explicit {
            return Self::open(path);
        }
        let by_name = if root == Path::new("/") {
            Self::open(Path::new(locate::SONAME)).ok()
        } else {
            None
        };
        match (by_name, locate::library(root)) {
            (Some(library), _) => Ok(library),
            (None, Ok(path)) => Self::open(&path),
            (None, Err(searched)) => Err(Error::LibraryNotFound {
                root: root.to_path_buf(),
                searched,
            }),
        }
    }

    fn open(path: &Path) -> Result<Self, Error> {
        // SAFETY: loading runs the library's initialisers. The path is the driver library that the node's administrator
        // installed, which every NVML client of the node loads; its functions have the bindings' signatures.
        let loaded = unsafe { sys::NvmlLib::new::<&OsStr>(path.as_os_str()) };
        let functions = loaded.map_err(|error| Error::Load {
            path: path.to_path_buf(),
            reason: reason(&error, path),
        })?;
        // SAFETY: each name's type is the header's declaration of that function.
        let (remapped_rows_v2, compute_processes_v2, graphics_processes_v2) = unsafe {
            (
                by_hand(&functions, "nvmlDeviceGetRemappedRows_v2"),
                by_hand(&functions, "nvmlDeviceGetComputeRunningProcesses_v2"),
                by_hand(&functions, "nvmlDeviceGetGraphicsRunningProcesses_v2"),
            )
        };
        Ok(Self {
            remapped_rows_v2,
            compute_processes_v2,
            graphics_processes_v2,
            functions,
            path: path.to_path_buf(),
            samples: std::sync::Arc::default(),
            initialised: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        })
    }

    /// Notes that `nvmlInit_v2` succeeded, so that dropping shuts down.
    pub(crate) fn initialised(&self) {
        self.initialised.store(true, Ordering::Relaxed);
    }

    /// Notes that a call found the driver gone; only opening again helps.
    pub(crate) fn note_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if !*self.initialised.get_mut() {
            return;
        }
        if let Ok(free) = self.functions.nvmlGpmSampleFree {
            for sample in self.samples.drain() {
                // SAFETY: the pool yields each sample that this library allocated once, and nothing uses it after: uses
                // go through the library, of which this is the end.
                unsafe { free(sample) };
            }
        }
        if let Ok(shutdown) = self.functions.nvmlShutdown {
            // SAFETY: takes no arguments; balances the one successful initialisation.
            unsafe { shutdown() };
        }
    }
}

/// Looks up a function that the bindings do not have.
///
/// # Safety
/// `F` must be the function's type in NVML's header.
unsafe fn by_hand<F: Copy>(functions: &sys::NvmlLib, name: &'static str) -> Symbol<F> {
    // SAFETY: the caller vouches for the type.
    let found = unsafe { functions.__library.get::<F>(name.as_bytes()) };
    Symbol::new(name, &found.map(|symbol| *symbol))
}

/// The loader's own words where it has any: libloading's `Display` hides them behind its `source`.
/// They begin with the path, which the error already names.
fn reason(error: &dyn std::error::Error, path: &Path) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    let prefix = format!("{}: ", path.display());
    text.strip_prefix(&prefix)
        .map_or(text.clone(), str::to_owned)
}
