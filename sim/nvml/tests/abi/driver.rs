//! A loaded driver library, and calls that read like the header.

use std::{
    ffi::{CStr, c_char},
    path::Path,
    time::{Duration, Instant},
};

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t};
use sim_nvml::{Code, admin::SimulatedNode, presets::NodeSpec};

/// A simulated node with its driver library loaded and initialised in this process.
pub(crate) struct Driver {
    /// The node.
    pub(crate) node: SimulatedNode,
    /// The library.
    pub(crate) lib: NvmlLib,
    _root: tempfile::TempDir,
}

/// Calls a function and gives its code.
macro_rules! code {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the arguments are those of the header, and pointers among them are valid for the call.
        #[allow(unused_unsafe)]
        sim_nvml::Code(unsafe { $driver.lib.$name($($argument),*) })
    }};
}

/// Calls a function whose last argument is where the answer goes, and gives the answer or the code.
macro_rules! get {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: every type that NVML answers with is valid when zeroed; the other arguments are those of the header.
        #[allow(unused_unsafe)]
        unsafe {
            let mut answer = std::mem::zeroed();
            match sim_nvml::Code($driver.lib.$name($($argument,)* &raw mut answer)) {
                sim_nvml::Code::SUCCESS => Ok(answer),
                code => Err(code),
            }
        }
    }};
}

/// Calls a function that fills a text buffer, and gives the text or the code.
macro_rules! text {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {
        $crate::driver::read_text(|buffer, length| code!($driver, $name($($argument,)* buffer, length)))
    };
}

pub(crate) use {code, get, text};

/// The text that a call writes into a buffer.
pub(crate) fn read_text(call: impl FnOnce(*mut c_char, u32) -> Code) -> Result<String, Code> {
    let mut buffer = [0 as c_char; 128];
    match call(buffer.as_mut_ptr(), buffer.len() as u32) {
        Code::SUCCESS => Ok(string(&buffer)),
        code => Err(code),
    }
}

/// The text in a fixed field.
pub(crate) fn string(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|c| *c as u8).collect();
    CStr::from_bytes_until_nul(&bytes)
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned()
}

/// Version word of a struct.
pub(crate) const fn version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}

/// Loads the library of a node.
pub(crate) fn load(folder: &Path) -> NvmlLib {
    // SAFETY: the library runs no code when it is loaded.
    unsafe { NvmlLib::new(folder.join("libnvidia-ml.so.1")) }.unwrap()
}

/// Waits for a condition that another thread brings about; half a minute is for machines that are busy.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "waited too long for {what}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Driver {
    /// A node with equal boards, initialised.
    pub(crate) fn with(board: &str, gpus: usize) -> Driver {
        Driver::of(&NodeSpec::uniform(board, gpus).unwrap())
    }

    /// A node made from a preset, initialised.
    pub(crate) fn preset(name: &str) -> Driver {
        Driver::of(&NodeSpec::preset(name).unwrap())
    }

    /// A node, initialised.
    pub(crate) fn of(spec: &NodeSpec) -> Driver {
        let driver = Driver::cold(spec);
        assert_eq!(code!(driver, nvmlInit_v2()), Code::SUCCESS);
        driver
    }

    /// A node whose library is loaded and not initialised.
    pub(crate) fn cold(spec: &NodeSpec) -> Driver {
        let root = tempfile::tempdir().unwrap();
        let node = SimulatedNode::create(root.path(), spec).unwrap();
        let lib = load(node.library_folder());
        Driver {
            node,
            lib,
            _root: root,
        }
    }

    /// A GPU by index.
    pub(crate) fn gpu(&self, index: u32) -> nvmlDevice_t {
        get!(self, nvmlDeviceGetHandleByIndex_v2(index)).unwrap()
    }

    /// Turns MIG on for the GPU with this index and gives the handle it has then.
    pub(crate) fn partitioned(&self, index: u32) -> nvmlDevice_t {
        assert_eq!(get!(self, nvmlDeviceSetMigMode(self.gpu(index), 1)), Ok(0));
        self.gpu(index)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        code!(self, nvmlShutdown());
    }
}
