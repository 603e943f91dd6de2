//! The state of a simulated node, and the pure changes to it.
//!
//! Nothing in here reads a file, a clock or another process: time and liveness come in as arguments. `store` keeps the
//! state, `abi` shows it as NVML, `tree` as files.

pub mod board;
pub mod clients;
pub mod counters;
pub mod events;
pub mod fabric;
pub mod faults;
pub mod gpu;
pub mod health;
pub mod latency;
pub mod lifecycle;
pub mod load;
pub mod mig;
pub mod nvlink;
pub mod pci;
pub mod topology;
pub mod uuid;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use serde::{Deserialize, Serialize};

pub use board::Board;
pub use clients::{Client, Workload};
pub use events::Event;
pub use faults::{Action, Effect, Fault};
pub use gpu::{ComputeInstance, ComputeMode, Gpu, GpuInstance, Placement};
pub use load::Load;
pub use pci::PciAddress;

/// Whether the driver answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverState {
    /// It does.
    #[default]
    Loaded,
    /// The kernel module is not loaded: DRIVER_NOT_LOADED (9).
    Unloaded,
    /// The kernel module has another version than the library: LIB_RM_VERSION_MISMATCH (18).
    Mismatch,
}

/// The driver of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// Version, for example `580.105.08`.
    pub version: String,
    /// Branch, for example `r580_00`.
    pub branch: String,
    /// CUDA version as NVML encodes it: 1000 × major + 10 × minor.
    pub cuda: u32,
    /// NVML version, for example `13.580.105.08`.
    pub nvml: String,
    /// Whether it answers.
    pub state: DriverState,
    /// When it was loaded, microseconds of the node's clock.
    pub loaded_us: u64,
}

impl Driver {
    /// The branch number, for example 580; 0 when the version does not begin with a number.
    pub fn major(&self) -> u32 {
        self.version
            .split('.')
            .next()
            .and_then(|major| major.parse().ok())
            .unwrap_or(0)
    }
}

/// Numbering of the field ids 251 and up, which drivers of CUDA 13 update 1 changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldScheme {
    /// CUDA 12's: 251 to 255 first, then 256 to 273.
    Twelve,
    /// From driver 580.82: the former 256 to 273 are 251 to 268, the former 251 to 255 are 269 to 273.
    Thirteen,
}

/// How this driver behaves where drivers differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Personality {
    /// Half-GPU instances are numbered from the top, as drivers before R510 did.
    pub mirrored_ids: bool,
    /// MIG device indices close up after a destroy; otherwise a hole stays.
    pub repack_indices: bool,
    /// Any process with the library initialised counts as a user of the GPUs.
    pub clients_hold: bool,
    /// The GPUs are passed through to a VM: the driver cannot reset them, mode changes on Ampere answer RESET_REQUIRED.
    pub passthrough: bool,
    /// Only root may see aggregates of a partitioned GPU or change anything.
    pub enforce_permissions: bool,
}

impl Default for Personality {
    fn default() -> Self {
        Personality {
            mirrored_ids: false,
            repack_indices: true,
            clients_hold: false,
            passthrough: false,
            enforce_permissions: false,
        }
    }
}

/// A device that the driver was told to leave out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excluded {
    /// UUID.
    pub uuid: String,
    /// PCI address.
    pub pci: PciAddress,
    /// Key of its board.
    pub board_name: String,
    /// Device minor.
    #[serde(default)]
    pub minor: u32,
}

/// One NUMA node of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// CPUs in the kernel's list form, for example `0-55,112-167`.
    pub cpus: String,
    /// Socket it belongs to.
    pub socket: u32,
}

/// The machine around the GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Machine {
    /// DMI product name.
    pub product: String,
    /// DMI vendor.
    pub vendor: String,
    /// NUMA nodes.
    pub numa: Vec<NumaNode>,
    /// NVSwitches.
    pub switches: Vec<PciAddress>,
    /// Kernel release.
    pub kernel: String,
}

/// The state of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Name.
    pub name: String,
    /// Folder that stands for the node's root; absolute.
    pub root: PathBuf,
    /// Seed of identities and noise.
    pub seed: u64,
    /// Bumped by the store at every write.
    pub sequence: u64,
    /// Bumped by a driver reload and a reboot: handles of all GPUs are stale.
    pub generation: u32,
    /// Boots so far.
    pub boots: u32,
    /// Machine.
    pub machine: Machine,
    /// Driver.
    pub driver: Driver,
    /// How far the node's clock is ahead of the host's, microseconds.
    pub clock_offset_us: u64,
    /// The moment at which the clock stands still, microseconds, so that only steps move it; absent while it runs.
    pub clock_frozen_us: Option<u64>,
    /// How long calls take.
    pub latency: latency::Latency,
    /// Where drivers differ.
    pub personality: Personality,
    /// Whether reads are traced; changes always are.
    pub trace: bool,
    /// Boards in use, by name.
    pub boards: BTreeMap<String, Arc<Board>>,
    /// GPUs by position; the position never changes, whatever happens to a GPU.
    pub gpus: Vec<Gpu>,
    /// Devices the driver leaves out.
    pub excluded: Vec<Excluded>,
    /// Processes that initialised the library.
    pub clients: Vec<Client>,
    /// Processes that compute.
    pub workloads: Vec<Workload>,
    /// Faults of calls.
    pub faults: Vec<Fault>,
    /// Events.
    pub events: events::Events,
    /// Absolute path of the program behind the node's `nvidia-smi`; absent when there was none to name.
    pub command: Option<PathBuf>,
}

impl Node {
    /// Gives every GPU its board after loading; an unknown name is an error for the caller to report.
    pub fn link(&mut self) -> Result<(), String> {
        for gpu in &mut self.gpus {
            let board = self.boards.get(&gpu.board_name);
            gpu.board = board
                .cloned()
                .ok_or_else(|| format!("board `{}` is not in the state", gpu.board_name))?;
        }
        Ok(())
    }

    /// Positions of the GPUs that a client which initialised at sequence `since` sees, in index order.
    pub fn visible(&self, since: u64) -> impl Iterator<Item = usize> {
        self.gpus
            .iter()
            .enumerate()
            .filter(move |(_, gpu)| gpu.visible_since(since))
            .map(|(position, _)| position)
    }

    /// Numbering of field ids that this driver uses.
    pub fn field_scheme(&self) -> FieldScheme {
        let mut parts = self
            .driver
            .version
            .split('.')
            .map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        if version >= (580, 82) {
            FieldScheme::Thirteen
        } else {
            FieldScheme::Twelve
        }
    }
}
