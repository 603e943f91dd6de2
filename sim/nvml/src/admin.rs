//! What people and tests do to a simulated node: make it, look at it, and, in the modules below, break it, put load on it,
//! reset it, reboot it.
//!
//! The one way in for `lathe sim` and for tests; everything goes through the store, so that every process that uses the
//! node sees it.

mod driver;
mod faults;
mod workloads;

use std::{
    collections::BTreeSet,
    env, fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::{
    Code, Store, library,
    model::{ComputeMode, Node, PciAddress, latency::Latency},
    presets::{self, NodeSpec},
    store::now_us,
    trace,
};

pub use workloads::WorkloadSpec;

/// Where the driver library and the node's state lie, relative to the root.
pub const LIBRARY_FOLDER: &str = "usr/lib/x86_64-linux-gnu";

/// How far a node's clock may be ahead, microseconds: a hundred years, so that no counter overflows.
const FARTHEST_STEP_US: u64 = 100 * 365 * 86_400 * 1_000_000;

/// An action on a node that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The description makes no node.
    #[error(transparent)]
    Spec(#[from] presets::Error),
    /// The driver library is nowhere.
    #[error(transparent)]
    Library(#[from] library::NotFound),
    /// There is a node already.
    #[error("there is a simulated node at {0} already: choose another folder or remove that one")]
    Exists(PathBuf),
    /// There is no node.
    #[error("there is no simulated node at {0}: make one with `lathe sim create --root {0}`")]
    Missing(PathBuf),
    /// No such GPU.
    #[error("no GPU `{wanted}`: give a position from 0 to {last}, a UUID or a PCI address", last = .count.saturating_sub(1))]
    NoGpu {
        /// What was asked for.
        wanted: String,
        /// GPUs of the node.
        count: usize,
    },
    /// No such GPU or compute instance.
    #[error("GPU {gpu} has no instance {instance}/{compute}")]
    NoInstance {
        /// Position of the GPU.
        gpu: usize,
        /// GPU instance.
        instance: u32,
        /// Compute instance.
        compute: u32,
    },
    /// Nothing can begin to use the GPU.
    #[error("GPU {gpu} takes no workload: {reason}")]
    Unreachable {
        /// Position of the GPU.
        gpu: usize,
        /// Why.
        reason: &'static str,
    },
    /// The clock of a node does not go that far.
    #[error("a node's clock can be stepped by a hundred years in all")]
    Clock,
    /// A whole system is no place for a node.
    #[error(
        "{0} is the root of a whole system: a node there would replace its driver; choose another folder"
    )]
    System(PathBuf),
    /// A workload on a partitioned GPU must name an instance.
    #[error("GPU {0} is partitioned: name the instance to run in")]
    Partitioned(usize),
    /// The compute mode lets no further process in.
    #[error("GPU {gpu} is in compute mode {mode:?}: no further process may use it")]
    ComputeMode {
        /// Position of the GPU.
        gpu: usize,
        /// Its mode, or that of the instance.
        mode: ComputeMode,
    },
    /// More memory than is free.
    #[error("GPU {gpu} has {free_mib} MiB free there, not {wanted_mib}")]
    Memory {
        /// Position of the GPU.
        gpu: usize,
        /// What the workload wants.
        wanted_mib: u64,
        /// What is left.
        free_mib: u64,
    },
    /// No such process.
    #[error("no process {0} runs on the node")]
    NoProcess(u32),
    /// No such fault.
    #[error("no fault {0} is injected")]
    NoFault(u64),
    /// No such NVLink.
    #[error("GPU {gpu} has no NVLink {link}")]
    NoLink {
        /// Position of the GPU.
        gpu: usize,
        /// Link.
        link: usize,
    },
    /// The driver refused.
    #[error("{call}: {code}{hint}")]
    Refused {
        /// What was tried.
        call: &'static str,
        /// Its answer.
        code: Code,
        /// What to do about it, or nothing.
        hint: &'static str,
    },
    /// The file system failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn refused(call: &'static str) -> impl Fn(Code) -> Error {
    move |code| {
        let hint = match code {
            Code::IN_USE => ": stop what uses the GPU first",
            Code::GPU_IS_LOST => ": only a reboot brings it back",
            _ => "",
        };
        Error::Refused { call, code, hint }
    }
}

/// A simulated node on disk.
#[derive(Debug)]
pub struct SimulatedNode {
    root: PathBuf,
    store: Store,
}

impl SimulatedNode {
    /// Makes a node at `root` with the driver library that `library::locate` finds.
    pub fn create(root: &Path, spec: &NodeSpec) -> Result<SimulatedNode, Error> {
        SimulatedNode::create_with(root, spec, &library::locate()?)
    }

    /// Makes a node at `root` with a copy of this driver library.
    pub fn create_with(
        root: &Path,
        spec: &NodeSpec,
        driver_library: &Path,
    ) -> Result<SimulatedNode, Error> {
        // Whatever can be wrong with the description or the library shows before anything is written.
        let mut node = spec.build(now_us(&Node::default()))?;
        let mut library = fs::File::open(driver_library).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("{}: {error}", driver_library.display()),
            )
        })?;
        fs::create_dir_all(root)?;
        let root = fs::canonicalize(root)?;
        if is_system(&root) {
            return Err(Error::System(root));
        }
        let folder = root.join(LIBRARY_FOLDER);
        if folder.join(crate::store::STATE_FILE).try_exists()? {
            return Err(Error::Exists(root));
        }
        node.root = root.clone();
        node.command = own_command(driver_library);
        fs::create_dir_all(&folder)?;
        let file = format!("libnvidia-ml.so.{}", node.driver.version);
        // A copy and not a link: the dynamic loader takes one file under two names for one library.
        io::copy(&mut library, &mut fs::File::create(folder.join(&file))?)?;
        for (link, target) in [
            ("libnvidia-ml.so.1", file.as_str()),
            ("libnvidia-ml.so", "libnvidia-ml.so.1"),
        ] {
            // An attempt that was broken off may have left it.
            match fs::remove_file(folder.join(link)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => symlink(target, folder.join(link))?,
            }
        }
        let store = Store::create(folder, node)?;
        Ok(SimulatedNode { root, store })
    }

    /// The node at `root`.
    pub fn open(root: &Path) -> Result<SimulatedNode, Error> {
        let missing = || Error::Missing(root.to_owned());
        let absolute = fs::canonicalize(root).map_err(|_| missing())?;
        let folder = absolute.join(LIBRARY_FOLDER);
        if !folder.join(crate::store::STATE_FILE).try_exists()? {
            return Err(missing());
        }
        Ok(SimulatedNode {
            root: absolute,
            store: Store::open(folder)?,
        })
    }

    /// The folder that stands for the node's root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of the driver library, for `LD_LIBRARY_PATH`.
    pub fn library_folder(&self) -> &Path {
        self.store.folder()
    }

    /// The node's store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The node's state.
    pub fn state(&self) -> Result<Arc<Node>, Error> {
        Ok(self.store.load_living()?)
    }

    /// The position of a GPU by position, UUID or PCI address.
    pub fn find_gpu(&self, text: &str) -> Result<usize, Error> {
        let node = self.state()?;
        let address: Option<PciAddress> = text.parse().ok();
        let by_name = || {
            node.gpus
                .iter()
                .position(|gpu| gpu.uuid == text || Some(gpu.pci) == address)
        };
        text.parse()
            .ok()
            .filter(|position| *position < node.gpus.len())
            .or_else(by_name)
            .ok_or_else(|| Error::NoGpu {
                wanted: text.to_owned(),
                count: node.gpus.len(),
            })
    }

    fn on_gpu<T>(&self, gpu: usize, change: impl FnOnce(&mut Node, u64) -> T) -> Result<T, Error> {
        let change = |node: &mut Node| {
            if gpu >= node.gpus.len() {
                return Err(Error::NoGpu {
                    wanted: gpu.to_string(),
                    count: node.gpus.len(),
                });
            }
            let now = now_us(node);
            Ok(change(node, now))
        };
        self.store.update(change)?
    }

    /// Steps the node's clock forward.
    pub fn step(&self, by: Duration) -> Result<(), Error> {
        let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.store.update(|node| {
            let offset = node.clock_offset_us.saturating_add(micros);
            if offset > FARTHEST_STEP_US {
                return Err(Error::Clock);
            }
            node.clock_offset_us = offset;
            Ok(())
        })?
    }

    /// Sets how long calls take.
    pub fn set_latency(&self, latency: Latency) -> Result<(), Error> {
        Ok(self.store.update(|node| node.latency = latency)?)
    }

    /// Traces reads as well as changes, or only changes.
    pub fn set_trace(&self, on: bool) -> Result<(), Error> {
        Ok(self.store.update(|node| node.trace = on)?)
    }

    /// The calls traced so far.
    pub fn trace(&self) -> Result<Vec<trace::Entry>, Error> {
        Ok(trace::read(self.store.folder())?)
    }

    /// How many event sets were waited on, with an event or without, among the traced calls: an event that comes before anybody
    /// listens is heard by nobody. Waits are queries, traced only while [`set_trace`](Self::set_trace) asks for them.
    pub fn sets_waited_on(&self) -> Result<usize, Error> {
        let waited = [Code::SUCCESS, Code::TIMEOUT].map(|code| code.0);
        let calls = self.trace()?.into_iter();
        let waits = calls.filter(|call| {
            call.symbol.starts_with("nvmlEventSetWait") && waited.contains(&call.result)
        });
        let sets: BTreeSet<String> = waits
            .filter_map(|call| Some(call.args.get("set")?.to_string()))
            .collect();
        Ok(sets.len())
    }

    /// Forgets the traced calls.
    pub fn clear_trace(&self) -> Result<(), Error> {
        Ok(trace::clear(self.store.folder())?)
    }
}

/// Whether a resolved path is where a whole system lies: this one, or a host's that is mounted here.
fn is_system(root: &Path) -> bool {
    let release = |file: &str| root.join(file).symlink_metadata().is_ok();
    root.parent().is_none() || release("etc/os-release") || release("usr/lib/os-release")
}

/// The program behind the node's `nvidia-smi`: this one when it is `lathe`, or the `lathe` beside the library.
fn own_command(driver_library: &Path) -> Option<PathBuf> {
    let is_lathe = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("lathe"))
    };
    let own = env::current_exe()
        .ok()
        .filter(|path| is_lathe(path) && !path.parent().is_some_and(|p| p.ends_with("deps")));
    own.or_else(|| {
        let folder = driver_library.parent()?;
        [
            folder.join("lathe"),
            folder.join("../lathe"),
            folder.join("../../bin/lathe"),
        ]
        .into_iter()
        .find(|path| path.is_file())
    })
}

#[cfg(test)]
pub(crate) mod tests;
