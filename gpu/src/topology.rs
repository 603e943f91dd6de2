//! How near the GPUs of a node are to each other.
//!
//! A pair scores by its PCIe relation and its NVLinks, with the numbers of NVIDIA's go-gpuallocator, so that sets come out as
//! they do with NVIDIA's plugin. Two differences: links through an NVSwitch count, and what is not known (a GPU that is lost,
//! a query that is not supported, a link that only one end reports) makes a pair score less, nothing else.

use std::collections::BTreeMap;

/// Score of one NVLink. More than any PCIe relation, so that one link outweighs them all.
const NVLINK: u32 = 100;

/// More NVLinks than any GPU has (18 since Hopper); a larger number is a misreading.
const MAX_NVLINKS: u32 = 64;

/// What a path between two GPUs crosses, from near to far (`nvmlGpuTopologyLevel_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PcieRelation {
    /// Nothing: both are on one board.
    SameBoard,
    /// One PCIe switch.
    SingleSwitch,
    /// Several PCIe switches, no host bridge.
    MultipleSwitches,
    /// A host bridge.
    HostBridge,
    /// Host bridges of one CPU.
    SameCpu,
    /// CPUs.
    CrossCpu,
}

impl PcieRelation {
    fn score(self) -> u32 {
        match self {
            Self::SameBoard => 60,
            Self::SingleSwitch => 50,
            Self::MultipleSwitches => 40,
            Self::HostBridge => 30,
            Self::SameCpu => 20,
            Self::CrossCpu => 10,
        }
    }
}

/// What a GPU says of its way to another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// PCIe relation; `None` when it is not known.
    pub pcie: Option<PcieRelation>,
    /// NVLinks that end at the other GPU.
    pub nvlinks: u32,
}

/// The GPUs of a node and the scores of their pairs. Empty, it knows nothing: every pair scores 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// By the UUIDs of a pair, the smaller first.
    scores: BTreeMap<(String, String), u32>,
}

impl Topology {
    /// From what each GPU says: `paths` by (own UUID, other UUID), and `switched`, the NVLinks of each GPU that end at an
    /// NVSwitch. Where the two ends of a pair disagree, the lesser counts.
    pub fn new(paths: &BTreeMap<(String, String), Path>, switched: &BTreeMap<String, u32>) -> Self {
        let through_switch = |a: &String, b: &String| {
            let links = |uuid| switched.get(uuid).copied().unwrap_or_default();
            links(a).min(links(b))
        };
        let mut scores = BTreeMap::new();
        for ((from, to), path) in paths {
            if from == to {
                continue;
            }
            let back = paths.get(&(to.clone(), from.clone())).unwrap_or(path);
            // A larger relation is farther away. `None` is less than any, so both have to be there to compare.
            let pcie = match (path.pcie, back.pcie) {
                (Some(there), Some(back)) => Some(there.max(back)),
                (one, other) => one.or(other),
            };
            let links = path.nvlinks.min(back.nvlinks).max(through_switch(from, to));
            let score = pcie.map_or(0, PcieRelation::score) + NVLINK * links.min(MAX_NVLINKS);
            let pair = if from < to { (from, to) } else { (to, from) };
            scores.insert((pair.0.clone(), pair.1.clone()), score);
        }
        Self { scores }
    }

    /// How near two GPUs are; 0 when that is not known.
    pub fn score(&self, a: &str, b: &str) -> u32 {
        let (a, b) = if a < b { (a, b) } else { (b, a) };
        let pair = (a.to_owned(), b.to_owned());
        self.scores.get(&pair).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;

    use super::{Path, PcieRelation, Topology};

    fn path(pcie: Option<PcieRelation>, nvlinks: u32) -> Path {
        Path { pcie, nvlinks }
    }

    // Numbers of facts §2.5.
    #[rstest]
    #[case(path(Some(PcieRelation::CrossCpu), 0), None, 10)]
    #[case(path(Some(PcieRelation::SameCpu), 0), None, 20)]
    #[case(path(Some(PcieRelation::HostBridge), 0), None, 30)]
    #[case(path(Some(PcieRelation::MultipleSwitches), 0), None, 40)]
    #[case(path(Some(PcieRelation::SingleSwitch), 0), None, 50)]
    #[case(path(Some(PcieRelation::SameBoard), 0), None, 60)]
    #[case(path(Some(PcieRelation::CrossCpu), 18), None, 1810)]
    // Ends that disagree.
    #[case(
        path(Some(PcieRelation::SingleSwitch), 2),
        Some(path(Some(PcieRelation::SameCpu), 1)),
        120
    )]
    #[case(path(None, 1), Some(path(Some(PcieRelation::SameCpu), 1)), 120)]
    #[case(path(None, 0), Some(path(None, 3)), 0)]
    // A misreading does not overflow.
    #[case(path(None, u32::MAX), None, 6400)]
    fn pairs(#[case] there: Path, #[case] back: Option<Path>, #[case] wanted: u32) {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let mut paths = BTreeMap::from([(pair("b", "a"), there)]);
        paths.extend(back.map(|back| (pair("a", "b"), back)));
        let topology = Topology::new(&paths, &BTreeMap::new());
        assert_eq!(
            (topology.score("a", "b"), topology.score("b", "a")),
            (wanted, wanted)
        );
        assert_eq!(topology.score("a", "c"), 0);
    }

    #[test]
    fn links_through_a_switch() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let here = path(Some(PcieRelation::SameCpu), 0);
        let paths = [("a", "b"), ("a", "c"), ("b", "c")].map(|(a, b)| (pair(a, b), here));
        let switched = [("a", 12), ("b", 10)].map(|(uuid, links)| (uuid.to_owned(), links));
        let topology = Topology::new(&paths.into(), &switched.into());
        assert_eq!(topology.score("a", "b"), 1020);
        assert_eq!(topology.score("a", "c"), 20);
    }
}
