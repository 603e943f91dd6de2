//! What a node is made of before it exists: a node file, one of the presets that come with the simulator, or a number
//! of equal boards.
//!
//! `build` turns that description into the first state. Files and folders are `admin`'s business.

mod build;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{
    boards,
    model::{
        Board, Machine, NumaNode, PciAddress, Personality,
        board::Architecture,
        fabric::{FabricState, Platform},
        latency::Latency,
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
    /// A driver version that no driver has; it is part of a file's name.
    #[error("`{0}` is no driver version: write numbers with dots, such as 580.105.08")]
    DriverVersion(String),
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
        let numa = |cpus: &str, socket| NumaNode {
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
}

#[cfg(test)]
mod tests;
