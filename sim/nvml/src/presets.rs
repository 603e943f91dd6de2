//! What a node is made of before it exists: a node file, one of the presets that come with the simulator, or a number
//! of equal boards.
//!
//! Turns that description into the first state. Files and folders are `admin`'s business.

use std::{collections::BTreeMap, sync::Arc};

use serde::Deserialize;

use crate::{
    boards,
    model::{
        Board, Driver, Gpu, Machine, Node, PciAddress, Personality,
        board::Architecture,
        counters::Meters,
        fabric::{Fabric, FabricState, Platform, health_mask},
        gpu::{Mig, Modes},
        health::{Ecc, Health, RowRemap, Throttle},
        latency::Latency,
        nvlink::{Link, LinkErrors, Remote},
        uuid,
    },
};

/// A description that makes no node.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A board it names cannot be had.
    #[error(transparent)]
    Board(#[from] boards::Error),
    /// No preset of this name.
    #[error("there is no preset `{0}`; there are {list}", list = names().collect::<Vec<_>>().join(", "))]
    UnknownPreset(String),
    /// The text is no node file.
    #[error("node file: {0}")]
    Malformed(String),
    /// A number of GPUs that no node has.
    #[error("a node has 1 to 16 GPUs, not {0}")]
    Count(usize),
    /// Two GPUs with the same address or minor.
    #[error("two GPUs have the {what} {value}")]
    Duplicate {
        /// What must be unique.
        what: &'static str,
        /// The value that is there twice.
        value: String,
    },
    /// A GPU on a NUMA node that the machine lacks.
    #[error("GPU {pci} is on NUMA node {numa}, but the machine has {count}")]
    Numa {
        /// The GPU.
        pci: PciAddress,
        /// The node it names.
        numa: u32,
        /// NUMA nodes of the machine.
        count: usize,
    },
}

/// A node file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Name; the preset's or board's when absent.
    #[serde(default)]
    pub name: String,
    /// Seed of identities and noise; derived from the name when absent.
    #[serde(default)]
    pub seed: Option<u64>,
    /// Driver.
    pub driver: DriverSpec,
    /// Machine.
    #[serde(default)]
    pub machine: Machine,
    /// NVLink fabric of all GPUs that have NVLink.
    #[serde(default)]
    pub fabric: Option<FabricSpec>,
    /// What NVLinks lead to.
    #[serde(default)]
    pub links: Links,
    /// GPUs, in the order of their addresses.
    pub gpus: Vec<GpuSpec>,
    /// Boards of the file's own, before those that come with the simulator.
    #[serde(default)]
    pub boards: BTreeMap<String, Board>,
    /// Devices the driver leaves out.
    #[serde(default)]
    pub excluded: Vec<GpuSpec>,
    /// Where drivers differ; follows from the driver's version when absent.
    #[serde(default)]
    pub personality: Option<Personality>,
    /// How long calls take.
    #[serde(default)]
    pub latency: Latency,
}

/// Driver of a node file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverSpec {
    /// Version, for example `580.105.08`.
    pub version: String,
    /// CUDA version: 1000 × major + 10 × minor.
    pub cuda: u32,
}

/// Fabric of a node file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FabricSpec {
    /// State.
    pub state: FabricState,
    /// Clique.
    #[serde(default)]
    pub clique: u32,
    /// Cluster UUID; absent for the zeros of a single node.
    #[serde(default)]
    pub cluster: Option<String>,
}

/// What the NVLinks of a node lead to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Links {
    /// NVSwitches, those of the machine in turn; outside the machine when it has none.
    #[default]
    Switched,
    /// The other GPUs with NVLink, in turn.
    Direct,
}

/// GPU of a node file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuSpec {
    /// Board.
    pub board: String,
    /// PCI address.
    pub pci: PciAddress,
    /// Module id.
    #[serde(default)]
    pub module: u32,
    /// NUMA node.
    #[serde(default)]
    pub numa: Option<u32>,
    /// PCIe switch.
    #[serde(default)]
    pub switch: Option<u32>,
    /// Device minor; the position when absent.
    #[serde(default)]
    pub minor: Option<u32>,
    /// Place in the rack.
    #[serde(default)]
    pub platform: Option<Platform>,
}

macro_rules! presets {
    ($($name:literal),+ $(,)?) => {
        const PRESETS: &[(&str, &str)] = &[$(($name, include_str!(concat!("../presets/", $name, ".yaml")))),+];
    };
}

presets![
    "dgx-a100",
    "dgx-h100",
    "hgx-h200",
    "dgx-b200",
    "gb200-tray",
    "a30x4",
    "mixed",
    "dgx-station-a100"
];

/// Names of the presets.
pub fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|(name, _)| *name)
}

/// Most GPUs a node has.
const MAX_GPUS: usize = 16;
/// The driver of nodes made of a number of boards.
const DEFAULT_DRIVER: (&str, u32) = ("580.105.08", 13000);

impl NodeSpec {
    /// The preset of a name.
    pub fn preset(name: &str) -> Result<NodeSpec, Error> {
        let found = PRESETS.iter().find(|(known, _)| *known == name);
        let (_, text) = found.ok_or_else(|| Error::UnknownPreset(name.to_owned()))?;
        Ok(NodeSpec {
            name: name.to_owned(),
            ..NodeSpec::parse(text)?
        })
    }

    /// A node file's text.
    pub fn parse(text: &str) -> Result<NodeSpec, Error> {
        serde_saphyr::from_str(text).map_err(|error| Error::Malformed(error.to_string()))
    }

    /// A two-socket machine with a number of equal boards.
    pub fn uniform(board: &str, gpus: usize) -> Result<NodeSpec, Error> {
        if gpus == 0 || gpus > MAX_GPUS {
            return Err(Error::Count(gpus));
        }
        let spec = boards::load(board)?;
        let fabric = spec.nvlink.is_some() && spec.architecture >= Architecture::Hopper && gpus > 1;
        let numa = |cpus: &str, socket| crate::model::NumaNode {
            cpus: cpus.to_owned(),
            socket,
        };
        let gpu = |position: usize| GpuSpec {
            board: board.to_owned(),
            // 14 buses apart, so that sixteen fit below 0x100.
            pci: PciAddress {
                domain: 0,
                bus: (0x11 + 0x0E * position) as u8,
                device: 0,
            },
            module: position as u32 + 1,
            numa: Some((position * 2 / gpus) as u32),
            switch: None,
            minor: None,
            platform: None,
        };
        Ok(NodeSpec {
            name: board.to_owned(),
            seed: None,
            driver: DriverSpec {
                version: DEFAULT_DRIVER.0.to_owned(),
                cuda: DEFAULT_DRIVER.1,
            },
            machine: Machine {
                product: "Simulated Server".into(),
                vendor: "Lathe".into(),
                numa: vec![numa("0-63", 0), numa("64-127", 1)],
                switches: Vec::new(),
                kernel: "6.8.0-60-generic".into(),
            },
            fabric: fabric.then_some(FabricSpec {
                state: FabricState::Completed,
                clique: 0,
                cluster: None,
            }),
            links: Links::Switched,
            gpus: (0..gpus).map(gpu).collect(),
            boards: BTreeMap::new(),
            excluded: Vec::new(),
            personality: None,
            latency: Latency::zero(),
        })
    }

    /// The first state of the node.
    pub fn build(&self, now_us: u64) -> Result<Node, Error> {
        if self.gpus.is_empty() || self.gpus.len() > MAX_GPUS {
            return Err(Error::Count(self.gpus.len()));
        }
        let seed = self.seed.unwrap_or_else(|| uuid::hash(0, &self.name));
        let mut boards = BTreeMap::new();
        for gpu in self.gpus.iter().chain(&self.excluded) {
            if !boards.contains_key(&gpu.board) {
                let board = match self.boards.get(&gpu.board) {
                    Some(board) => board.clone(),
                    None => boards::load(&gpu.board)?,
                };
                boards.insert(gpu.board.clone(), Arc::new(board));
            }
        }
        let driver = Driver {
            branch: format!(
                "r{}_00",
                self.driver.version.split('.').next().unwrap_or_default()
            ),
            cuda: self.driver.cuda,
            nvml: format!("{}.{}", self.driver.cuda / 1000, self.driver.version),
            version: self.driver.version.clone(),
            state: crate::model::DriverState::Loaded,
            loaded_us: now_us,
        };
        // Drivers before R510 number halves from the top.
        let personality = self.personality.clone().unwrap_or_else(|| Personality {
            mirrored_ids: (1..510).contains(&driver.major()),
            ..Personality::default()
        });
        let excluded = self.excluded.iter().map(|gpu| crate::model::Excluded {
            uuid: gpu_uuid(seed, gpu.pci),
            pci: gpu.pci,
            board_name: gpu.board.clone(),
        });
        let mut node = Node {
            name: self.name.clone(),
            seed,
            machine: self.machine.clone(),
            driver,
            latency: self.latency.clone(),
            personality,
            excluded: excluded.collect(),
            ..Node::default()
        };
        for (position, spec) in self.gpus.iter().enumerate() {
            let board = &boards[&spec.board];
            node.gpus
                .push(self.gpu(position, spec, board, seed, now_us)?);
        }
        node.boards = boards;
        unique("address", node.gpus.iter().map(|gpu| gpu.pci.to_string()))?;
        unique("minor", node.gpus.iter().map(|gpu| gpu.minor.to_string()))?;
        Ok(node)
    }

    fn gpu(
        &self,
        position: usize,
        spec: &GpuSpec,
        board: &Arc<Board>,
        seed: u64,
        now_us: u64,
    ) -> Result<Gpu, Error> {
        let count = self.machine.numa.len();
        if let Some(numa) = spec.numa.filter(|numa| *numa as usize >= count) {
            return Err(Error::Numa {
                pci: spec.pci,
                numa,
                count,
            });
        }
        let links = self.links_of(position, board);
        let on_fabric = self.fabric.as_ref().filter(|_| board.nvlink.is_some());
        let fabric = on_fabric.map_or_else(Fabric::default, |fabric| Fabric {
            state: fabric.state,
            status: 0,
            cluster: fabric.cluster.as_deref().map(bytes_of).unwrap_or_default(),
            clique: fabric.clique,
            health: health_mask::HEALTHY,
        });
        Ok(Gpu {
            board_name: spec.board.clone(),
            board: Arc::clone(board),
            uuid: gpu_uuid(seed, spec.pci),
            serial: format!(
                "1{:012}",
                uuid::hash(seed, &format!("serial {}", spec.pci)) % 1_000_000_000_000
            ),
            minor: spec.minor.unwrap_or(position as u32),
            module_id: spec.module,
            pci: spec.pci,
            numa: spec.numa,
            pcie_switch: spec.switch,
            generation: 1,
            removed: false,
            mig: Mig::default(),
            modes: Modes {
                persistence: true,
                compute: crate::model::ComputeMode::Default,
                mig_compute: BTreeMap::new(),
                locked_graphics: None,
                locked_memory: None,
                power_limit_mw: board.power.default_mw,
                accounting: false,
                gpm_streaming: false,
                drain: false,
            },
            ecc: Ecc {
                current: board.ecc,
                pending: board.ecc,
                ..Ecc::default()
            },
            remap: RowRemap::default(),
            health: Health::default(),
            throttle: Throttle::default(),
            links,
            fabric,
            platform: spec.platform.clone(),
            meters: Meters {
                at_us: now_us,
                temperature: f64::from(board.thermal.idle),
                ..Meters::default()
            },
        })
    }

    fn links_of(&self, position: usize, board: &Board) -> Vec<Link> {
        let count = board.nvlink.map_or(0, |nvlink| nvlink.links as usize);
        let peers: Vec<usize> = (0..self.gpus.len())
            .filter(|other| {
                *other != position && self.gpus[*other].board == self.gpus[position].board
            })
            .collect();
        let switches = &self.machine.switches;
        let remote = |link: usize| match self.links {
            Links::Direct if !peers.is_empty() => Remote::Gpu(peers[link % peers.len()]),
            Links::Switched if !switches.is_empty() => {
                Remote::Switch(switches[link % switches.len()])
            }
            // The rack's switches, which are no devices of this host.
            Links::Switched if self.fabric.is_some() => Remote::Switch(PciAddress::default()),
            _ => Remote::None,
        };
        (0..count)
            .map(|link| {
                let remote = remote(link);
                Link {
                    up: remote != Remote::None,
                    remote,
                    errors: LinkErrors::default(),
                }
            })
            .collect()
    }
}

fn gpu_uuid(seed: u64, pci: PciAddress) -> String {
    format!("GPU-{}", uuid::derived("gpu", &format!("{seed}/{pci}")))
}

/// The bytes of a UUID; digits that are missing count as zero.
fn bytes_of(uuid: &str) -> [u8; 16] {
    let digits: Vec<u8> = uuid
        .chars()
        .filter_map(|char| char.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = pair.iter().fold(0, |value, digit| value << 4 | digit);
    }
    bytes
}

fn unique(what: &'static str, values: impl Iterator<Item = String>) -> Result<(), Error> {
    let mut seen = std::collections::BTreeSet::new();
    for value in values {
        if !seen.insert(value.clone()) {
            return Err(Error::Duplicate { what, value });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
