//! The named configurations that suit a node's GPUs: `all-1g.10gb`, `all-balanced`, `all-enabled`, `all-disabled`.
//!
//! Names and counts are those of mig-parted's own generator, so that a node label written for it keeps its meaning. File
//! formats are somebody else's business.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Board, PciId, Profile, place};

/// One entry of a named configuration: what to make of some of the node's GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSpec {
    /// The GPUs it is for; empty means all. A subsystem of 0 stands for any.
    pub filter: Vec<PciId>,
    /// MIG mode.
    pub mig_enabled: bool,
    /// Devices; empty when MIG is off.
    pub devices: BTreeMap<Profile, u32>,
}

/// The named configurations for these MIG-capable GPUs.
///
/// Each profile that takes a whole GPU instance gets `all-<profile>` with as many as one GPU holds. `all-balanced` has two 1g,
/// one 2g and, on boards with seven slices, one 3g. Where GPUs of more than one kind are present, each entry names its kinds.
#[must_use]
pub fn named_configs(boards: &[(PciId, Board)]) -> BTreeMap<String, Vec<NamedSpec>> {
    let kinds = kinds(boards);
    let mut configs = BTreeMap::<String, Vec<NamedSpec>>::new();
    for (id, named) in &kinds {
        for (name, devices) in named {
            let specs = configs.entry(name.clone()).or_default();
            match specs.iter_mut().find(|spec| spec.devices == *devices) {
                Some(spec) => spec.filter.push(*id),
                None => specs.push(NamedSpec {
                    filter: vec![*id],
                    mig_enabled: true,
                    devices: devices.clone(),
                }),
            }
        }
    }
    if kinds.len() == 1 {
        let specs = configs.values_mut().flatten();
        specs.for_each(|spec| spec.filter.clear());
    }
    for (name, mig_enabled) in [("all-disabled", false), ("all-enabled", true)] {
        let spec = NamedSpec {
            filter: Vec::new(),
            mig_enabled,
            devices: BTreeMap::new(),
        };
        configs.insert(name.to_owned(), vec![spec]);
    }
    configs
}

type Named = BTreeMap<String, BTreeMap<Profile, u32>>;

/// The kinds of GPU with their configurations. Subsystems count only where they make a difference: cards of one PCI device id
/// with different memory do.
fn kinds(boards: &[(PciId, Board)]) -> BTreeMap<PciId, Named> {
    let mut by_device = BTreeMap::<u32, BTreeMap<u32, Named>>::new();
    for (id, board) in boards {
        let subsystems = by_device.entry(id.device).or_default();
        subsystems
            .entry(id.subsystem)
            .or_insert_with(|| of_board(board));
    }
    let mut kinds = BTreeMap::new();
    for (device, subsystems) in by_device {
        let differ = subsystems.values().collect::<BTreeSet<_>>().len() > 1;
        for (subsystem, named) in subsystems {
            let subsystem = if differ { subsystem } else { 0 };
            kinds.insert(PciId { device, subsystem }, named);
        }
    }
    kinds
}

fn of_board(board: &Board) -> Named {
    let mut named = Named::new();
    for profile in &board.profiles {
        let count = capacity(board, profile.id);
        if count > 0 {
            let name = board.name(profile);
            let config = format!("all-{}", name.label_name());
            named
                .entry(config)
                .or_insert_with(|| BTreeMap::from([(name, count)]));
        }
    }
    if let Some(devices) = balanced(board) {
        named.insert("all-balanced".to_owned(), devices);
    }
    named
}

/// How many instances of a profile an empty GPU holds: what the driver says, unless geometry allows fewer.
fn capacity(board: &Board, id: u32) -> u32 {
    let Some(profile) = board.profile(id) else {
        return 0;
    };
    let places = u32::try_from(profile.placements.len()).unwrap_or(u32::MAX);
    let most = profile.max_instances.min(places);
    let fits = |count: &u32| place(board, &[], &BTreeMap::from([(id, *count)])).is_ok();
    (1..=most).rev().find(fits).unwrap_or(0)
}

fn balanced(board: &Board) -> Option<BTreeMap<Profile, u32>> {
    let mix: &[(u32, u32)] = match board.compute_slices() {
        7 => &[(1, 2), (2, 1), (3, 1)],
        4 => &[(1, 2), (2, 1)],
        _ => return None,
    };
    let mut devices = BTreeMap::new();
    let mut ids = BTreeMap::new();
    for (slices, count) in mix {
        let plain = board.profiles.iter().filter(|profile| {
            profile.slices == *slices
                && *board.name(profile).attributes() == crate::Attributes::None
        });
        // Of two plain 1g profiles the one without extra memory, of which more fit.
        let base = plain
            .min_by_key(|profile| (std::cmp::Reverse(profile.max_instances), profile.index))?;
        devices.insert(board.name(base), *count);
        ids.insert(base.id, *count);
    }
    place(board, &[], &ids).is_ok().then_some(devices)
}
