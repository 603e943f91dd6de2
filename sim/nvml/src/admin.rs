//! What people and tests do to a simulated node: make it, look at it, break it, put load on it, reset it, reboot it.
//!
//! The one way in for `lathe sim` and for tests; everything goes through the store, so that every process that uses the
//! node sees it.

use std::{
    env, fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::{
    Code, Store, library,
    model::{
        DriverState, Fault, Load, Node, PciAddress, Workload,
        fabric::FabricState,
        health::{EccError, Throttle, XID_FALLEN},
        latency::{Class, Latency},
    },
    presets::{self, NodeSpec},
    store::{now_us, start_time},
    trace,
};

/// Where the driver library and the node's state lie, relative to the root.
pub const LIBRARY_FOLDER: &str = "usr/lib/x86_64-linux-gnu";

/// Simulated processes get ids from here on, above what Linux gives out by default.
const FIRST_SIMULATED_PID: u32 = 5_000_000;

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
    /// A workload on a partitioned GPU must name an instance.
    #[error("GPU {0} is partitioned: name the instance to run in")]
    Partitioned(usize),
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

/// What a workload is to be.
#[derive(Clone, Debug, Default)]
pub struct WorkloadSpec {
    /// Position of the GPU.
    pub gpu: usize,
    /// GPU instance and compute instance; absent for the whole GPU.
    pub instance: Option<(u32, u32)>,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// What it does.
    pub load: Load,
    /// Command; `workload` when empty.
    pub name: String,
    /// A real process: the workload ends with it. Absent for a process that exists only in the simulation.
    pub pid: Option<u32>,
    /// Whether it is a graphics client.
    pub graphics: bool,
    /// Whether it runs through MPS.
    pub mps: bool,
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
        Ok(self.store.load()?)
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

    /// Injects a fault into calls and returns its id.
    pub fn inject(&self, fault: Fault) -> Result<u64, Error> {
        if let Some(gpu) = fault.gpu {
            self.on_gpu(gpu, |node, _| node.inject(fault))
        } else {
            Ok(self.store.update(|node| node.inject(fault))?)
        }
    }

    /// Clears one fault of calls.
    pub fn clear(&self, id: u64) -> Result<(), Error> {
        if self.store.update(|node| node.clear_fault(id))? {
            Ok(())
        } else {
            Err(Error::NoFault(id))
        }
    }

    /// Clears all faults of calls, and of the hardware all but what only a reset or reboot mends.
    pub fn clear_all(&self) -> Result<(), Error> {
        Ok(self.store.update(|node| {
            node.faults.clear();
            if node.driver.state == DriverState::Mismatch {
                node.driver.state = DriverState::Loaded;
            }
            for gpu in &mut node.gpus {
                gpu.throttle = Throttle::default();
                gpu.health.reset_refused = false;
                gpu.health.inforom_corrupt = false;
                gpu.mig.stuck = false;
            }
        })?)
    }

    /// Raises an XID on a GPU or on one of its instances. XID 79 makes the GPU fall off the bus.
    pub fn xid(&self, gpu: usize, xid: u64, instance: Option<(u32, u32)>) -> Result<(), Error> {
        self.on_gpu(gpu, |node, now| {
            node.raise_xid(
                gpu,
                xid,
                instance.map(|(gi, _)| gi),
                instance.map(|(_, ci)| ci),
                now,
            )
        })
    }

    /// Raises memory errors on a GPU.
    pub fn ecc(&self, gpu: usize, error: EccError, count: u64) -> Result<(), Error> {
        self.on_gpu(gpu, |node, now| node.raise_ecc(gpu, error, count, now))
    }

    /// Makes rows of a GPU wait for a reset to be remapped.
    pub fn row_remap(&self, gpu: usize, rows: u32) -> Result<(), Error> {
        self.on_gpu(gpu, |node, now| node.raise_row_remap(gpu, rows, now))
    }

    /// Makes every call on a GPU answer GPU_IS_LOST until a reset.
    pub fn lose(&self, gpu: usize) -> Result<(), Error> {
        self.on_gpu(gpu, |node, _| node.gpus[gpu].health.lost = true)
    }

    /// Makes a GPU fall off the bus: lost to those who know it, absent to those who come later.
    pub fn fall_off(&self, gpu: usize) -> Result<(), Error> {
        self.xid(gpu, XID_FALLEN, None)
    }

    /// Holds a GPU's clocks down.
    pub fn throttle(&self, gpu: usize, throttle: Throttle) -> Result<(), Error> {
        self.on_gpu(gpu, |node, _| node.gpus[gpu].throttle = throttle)
    }

    /// Makes resets of a GPU fail, or work again.
    pub fn refuse_reset(&self, gpu: usize, refuse: bool) -> Result<(), Error> {
        self.on_gpu(gpu, |node, _| node.gpus[gpu].health.reset_refused = refuse)
    }

    /// Makes MIG mode changes of a GPU stay pending, or work again.
    pub fn stick_mig_mode(&self, gpu: usize, stuck: bool) -> Result<(), Error> {
        self.on_gpu(gpu, |node, _| node.gpus[gpu].mig.stuck = stuck)
    }

    /// Corrupts a GPU's InfoROM, or mends it.
    pub fn corrupt_inforom(&self, gpu: usize, corrupt: bool) -> Result<(), Error> {
        self.on_gpu(gpu, |node, _| {
            node.gpus[gpu].health.inforom_corrupt = corrupt
        })
    }

    /// Takes an NVLink of a GPU down or up. `errors` are added to its CRC and replay counters.
    pub fn nvlink(&self, gpu: usize, link: usize, up: bool, errors: u64) -> Result<(), Error> {
        self.on_gpu(gpu, |node, _| {
            let found = node.gpus[gpu]
                .links
                .get_mut(link)
                .ok_or(Error::NoLink { gpu, link })?;
            found.up = up;
            found.errors.crc_flit += errors;
            found.errors.replay += errors;
            Ok(())
        })?
    }

    /// Sets the state of a GPU's fabric registration and its health mask.
    pub fn fabric(&self, gpu: usize, state: FabricState, health: Option<u32>) -> Result<(), Error> {
        self.on_gpu(gpu, |node, _| {
            let fabric = &mut node.gpus[gpu].fabric;
            fabric.state = state;
            fabric.health = health.unwrap_or(fabric.health);
        })
    }

    /// Steps the node's clock forward.
    pub fn step(&self, by: Duration) -> Result<(), Error> {
        let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        Ok(self
            .store
            .update(|node| node.clock_offset_us = node.clock_offset_us.saturating_add(micros))?)
    }

    /// Runs a workload and returns its process id.
    pub fn run_workload(&self, spec: WorkloadSpec) -> Result<u32, Error> {
        let start = match spec.pid {
            Some(pid) => Some(start_time(pid).ok_or(Error::NoProcess(pid))?),
            None => None,
        };
        self.on_gpu(spec.gpu, |node, now| {
            let gpu = &node.gpus[spec.gpu];
            match spec.instance {
                Some((instance, compute)) => {
                    let found = gpu
                        .instance(instance)
                        .and_then(|found| found.compute_by_id(compute));
                    found.ok_or(Error::NoInstance {
                        gpu: spec.gpu,
                        instance,
                        compute,
                    })?;
                }
                None if gpu.mig.current => return Err(Error::Partitioned(spec.gpu)),
                None => {}
            }
            let taken = |pid: u32| node.workloads.iter().any(|workload| workload.pid == pid);
            let pid = match spec.pid {
                Some(pid) => pid,
                None => (FIRST_SIMULATED_PID..)
                    .find(|pid| !taken(*pid))
                    .unwrap_or(u32::MAX),
            };
            node.workloads.push(Workload {
                pid,
                start,
                name: if spec.name.is_empty() {
                    "workload".to_owned()
                } else {
                    spec.name
                },
                gpu: spec.gpu,
                instance: spec.instance.map(|(instance, _)| instance),
                compute: spec.instance.map(|(_, compute)| compute),
                memory_mib: spec.memory_mib,
                load: spec.load,
                graphics: spec.graphics,
                mps: spec.mps,
                since_us: now,
            });
            Ok(pid)
        })?
    }

    /// Stops the workloads of a process.
    pub fn stop_workload(&self, pid: u32) -> Result<(), Error> {
        let stopped = self.store.update(|node| {
            let before = node.workloads.len();
            node.workloads.retain(|workload| workload.pid != pid);
            node.workloads.len() != before
        })?;
        if stopped {
            Ok(())
        } else {
            Err(Error::NoProcess(pid))
        }
    }

    /// Registers a running process as one that holds the GPUs, like a monitoring daemon.
    pub fn hold(&self, pid: u32) -> Result<(), Error> {
        let start = start_time(pid).ok_or(Error::NoProcess(pid))?;
        Ok(self.store.update(|node| node.register(pid, start, true))?)
    }

    /// Ends the hold of a process.
    pub fn release(&self, pid: u32) -> Result<(), Error> {
        Ok(self.store.update(|node| node.unregister(pid))?)
    }

    /// Resets a GPU. Takes the time that the node's latency says.
    pub fn reset(&self, gpu: usize) -> Result<(), Error> {
        let node = self.state()?;
        std::thread::sleep(node.latency.of_class(Class::Reset));
        self.on_gpu(gpu, |node, _| node.reset(gpu, std::process::id()))?
            .map_err(refused("GPU reset"))
    }

    /// Unloads the driver.
    pub fn unload_driver(&self) -> Result<(), Error> {
        self.store
            .update(|node| node.unload_driver(std::process::id()))?
            .map_err(refused("driver unload"))
    }

    /// Loads the driver.
    pub fn load_driver(&self) -> Result<(), Error> {
        Ok(self.store.update(|node| node.load_driver(now_us(node)))?)
    }

    /// Unloads the driver and loads it again.
    pub fn reload_driver(&self) -> Result<(), Error> {
        self.unload_driver()?;
        self.load_driver()
    }

    /// Makes the kernel module's version differ from the library's, as after an upgrade without a reload.
    pub fn mismatch_driver(&self) -> Result<(), Error> {
        Ok(self
            .store
            .update(|node| node.driver.state = DriverState::Mismatch)?)
    }

    /// Reboots the node.
    pub fn reboot(&self) -> Result<(), Error> {
        Ok(self.store.update(|node| node.reboot(now_us(node)))?)
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

    /// Forgets the traced calls.
    pub fn clear_trace(&self) -> Result<(), Error> {
        Ok(trace::clear(self.store.folder())?)
    }
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
