//! The first state of a node from its description.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Error, GpuSpec, Links, MAX_GPUS, NodeSpec};
use crate::{
    boards,
    model::{
        Board, ComputeMode, Driver, DriverState, Excluded, Gpu, Node, PciAddress, Personality,
        counters::Meters,
        fabric::{Fabric, health_mask},
        gpu::{Mig, Modes},
        health::{Ecc, Health, RowRemap, Throttle},
        nvlink::{Link, LinkErrors, Remote},
        uuid,
    },
};

impl NodeSpec {
    /// The first state of the node.
    pub fn build(&self, now_us: u64) -> Result<Node, Error> {
        if self.gpus.is_empty() || self.gpus.len() > MAX_GPUS {
            return Err(Error::Count(self.gpus.len()));
        }
        let version = &self.driver.version;
        let numbers = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        // NVML's buffer for it holds 80 bytes.
        if version.len() >= 80 || !version.split('.').all(numbers) {
            return Err(Error::DriverVersion(version.clone()));
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
            state: DriverState::Loaded,
            loaded_us: now_us,
        };
        // Drivers before R510 number halves from the top.
        let personality = self.personality.clone().unwrap_or_else(|| Personality {
            mirrored_ids: (1..510).contains(&driver.major()),
            ..Personality::default()
        });
        let after = (self.gpus.len() as u32..).zip(&self.excluded);
        let excluded = after.map(|(minor, gpu)| Excluded {
            uuid: gpu_uuid(seed, gpu.pci),
            pci: gpu.pci,
            board_name: gpu.board.clone(),
            minor: gpu.minor.unwrap_or(minor),
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
        let excluded = node.excluded.iter().map(|gpu| (gpu.pci, gpu.minor));
        let all = node.gpus.iter().map(|gpu| (gpu.pci, gpu.minor));
        let (addresses, minors): (Vec<_>, Vec<_>) = all.chain(excluded).unzip();
        unique("address", addresses.iter().map(PciAddress::to_string))?;
        unique("minor", minors.iter().map(u32::to_string))?;
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
                compute: ComputeMode::Default,
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
            fabric_made: None,
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
    let mut seen = BTreeSet::new();
    for value in values {
        if !seen.insert(value.clone()) {
            return Err(Error::Duplicate { what, value });
        }
    }
    Ok(())
}
