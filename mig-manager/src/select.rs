//! Which GPUs the specs of a named layout mean.
//!
//! Pure: it sees indices, PCI ids and whether a GPU can do MIG, never the driver.

use std::collections::{BTreeMap, BTreeSet};

use gpu::PciId;

use crate::config::{Devices, Spec};
use crate::listing;

/// What selection needs to know of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// NVML index, which is the order of PCI addresses.
    pub index: u32,
    /// PCI ids; `None` when the GPU does not answer.
    pub id: Option<PciId>,
    /// Whether it can do MIG. A GPU that does not answer counts as capable: nobody knows better.
    pub mig_capable: bool,
}

/// Why the specs cannot be met by the GPUs there are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// Indices beyond the GPUs of the node.
    #[error("the config names {}, but this node has {}", listing::gpus(.indices.iter().copied()), gpus(*.count))]
    NoSuchGpu {
        /// The indices, ascending.
        indices: Vec<u32>,
        /// How many GPUs there are.
        count: usize,
    },
    /// An index whose GPU the spec's own filter keeps out.
    #[error(
        "the config names GPU {index}, whose id {id} its device-filter {filter} does not match"
    )]
    Filtered {
        /// The index.
        index: u32,
        /// The GPU's id as filters write it.
        id: String,
        /// The spec's filter.
        filter: String,
    },
    /// MIG asked of a GPU, by index, that has none.
    #[error("the config enables MIG on GPU {index}, which does not support it")]
    NotCapable {
        /// The index.
        index: u32,
    },
    /// No spec's filter matches any GPU.
    #[error("no GPU of this node ({present}) matches a device-filter of the config ({filters})")]
    NothingMatches {
        /// Ids of the node's GPUs.
        present: String,
        /// The filters.
        filters: String,
    },
    /// There is nothing to select from.
    #[error("this node has no GPU")]
    NoGpus,
}

fn gpus(count: usize) -> String {
    match count {
        0 => "no GPU".to_owned(),
        1 => "one GPU, number 0".to_owned(),
        n => format!("{n} GPUs, 0 to {}", n - 1),
    }
}

/// The spec that counts for each selected GPU, by index. A later spec wins over an earlier one.
///
/// A spec whose filter matches no GPU at all is for other hardware and passed over, as long as some other spec is for this
/// node: default configs list one spec per board. Under `devices: all` a GPU without MIG is passed over too.
///
/// # Errors
/// Everything in the config that this node cannot satisfy.
pub fn select<'s>(
    specs: &'s [Spec],
    gpus: &[Candidate],
) -> Result<BTreeMap<u32, &'s Spec>, Vec<SelectError>> {
    if gpus.is_empty() {
        return Err(vec![SelectError::NoGpus]);
    }
    let mut chosen = BTreeMap::new();
    let mut errors = Vec::new();
    let mut for_this_node = false;
    let mut beyond = BTreeSet::new();
    for spec in specs {
        let passing: Vec<&Candidate> = gpus.iter().filter(|g| passes(spec, g)).collect();
        if passing.is_empty() {
            continue;
        }
        for_this_node = true;
        match &spec.devices {
            Devices::All => {
                let capable = passing.iter().filter(|g| g.mig_capable);
                chosen.extend(capable.map(|g| (g.index, spec)));
            }
            Devices::Indices(indices) => {
                for index in indices {
                    let Some(gpu) = gpus.iter().find(|g| g.index == *index) else {
                        beyond.insert(*index);
                        continue;
                    };
                    match explicit(spec, gpu) {
                        Ok(true) => drop(chosen.insert(*index, spec)),
                        Ok(false) => {}
                        Err(error) => errors.push(error),
                    }
                }
            }
        }
    }
    if !for_this_node {
        errors.push(nothing_matches(specs, gpus));
    }
    if !beyond.is_empty() {
        errors.push(SelectError::NoSuchGpu {
            indices: beyond.into_iter().collect(),
            count: gpus.len(),
        });
    }
    if errors.is_empty() {
        Ok(chosen)
    } else {
        Err(errors)
    }
}

/// A silent GPU passes only where everything does: with a filter it may well be another board.
fn passes(spec: &Spec, gpu: &Candidate) -> bool {
    gpu.id.map_or(spec.filter.is_empty(), |id| spec.passes(id))
}

/// Whether a GPU named by index takes part; one without MIG does not where MIG is to be off anyway.
fn explicit(spec: &Spec, gpu: &Candidate) -> Result<bool, SelectError> {
    let index = gpu.index;
    match gpu.id {
        Some(id) if !spec.passes(id) => Err(SelectError::Filtered {
            index,
            id: shown(id),
            filter: joined(spec.filter.iter().map(ToString::to_string)),
        }),
        _ if gpu.mig_capable => Ok(true),
        _ if spec.mig_enabled => Err(SelectError::NotCapable { index }),
        _ => Ok(false),
    }
}

fn nothing_matches(specs: &[Spec], gpus: &[Candidate]) -> SelectError {
    SelectError::NothingMatches {
        present: joined(gpus.iter().filter_map(|g| g.id).map(shown)),
        filters: joined(
            specs
                .iter()
                .flat_map(|s| &s.filter)
                .map(ToString::to_string),
        ),
    }
}

fn shown(id: PciId) -> String {
    if id.subsystem == 0 {
        format!("0x{:08X}", id.device)
    } else {
        format!("0x{:08X}:0x{:08X}", id.device, id.subsystem)
    }
}

fn joined(items: impl Iterator<Item = String>) -> String {
    let mut unique: Vec<String> = Vec::new();
    for item in items {
        if !unique.contains(&item) {
            unique.push(item);
        }
    }
    unique.join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;
    use crate::config::Config;

    const A100: u32 = 0x20B0_10DE;
    const T4: u32 = 0x1EB8_10DE;

    fn gpu(index: u32, device: u32) -> Candidate {
        Candidate {
            index,
            id: Some(PciId {
                device,
                subsystem: 0,
            }),
            mig_capable: device == A100,
        }
    }

    /// An A100, a T4, an A100.
    fn mixed() -> Vec<Candidate> {
        vec![gpu(0, A100), gpu(1, T4), gpu(2, A100)]
    }

    fn chosen(specs: &str, gpus: &[Candidate]) -> Result<Vec<(u32, u32)>, Vec<SelectError>> {
        let file = format!("version: v1\nmig-configs:\n  c:\n{specs}");
        let config = Config::parse("test", file.as_bytes()).unwrap();
        let (_, specs) = config.select(None).unwrap();
        // Specs are told apart by their count of 1g.5gb devices.
        let counts = |s: &Spec| s.mig_devices.values().sum();
        Ok(select(specs, gpus)?
            .into_iter()
            .map(|(i, s)| (i, counts(s)))
            .collect())
    }

    #[rstest]
    #[case::all_passes_over_the_t4(
        "  - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}", &[(0, 7), (2, 7)])]
    #[case::later_spec_wins(
        "  - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}\n  \
           - {devices: [2], mig-enabled: true, mig-devices: {1g.5gb: 1}}", &[(0, 7), (2, 1)])]
    #[case::only_the_named(
        "  - {devices: [2], mig-enabled: true, mig-devices: {1g.5gb: 7}}", &[(2, 7)])]
    #[case::filter(
        "  - {device-filter: '0x20B010DE', devices: all, mig-enabled: true, mig-devices: {1g.5gb: 3}}",
        &[(0, 3), (2, 3)])]
    #[case::other_hardware_is_passed_over(
        "  - {device-filter: '0x233010DE', devices: [7], mig-enabled: true, mig-devices: {1g.5gb: 3}}\n  \
           - {device-filter: ['0x20B010DE', '0x20B210DE'], devices: [0], mig-enabled: true, mig-devices: {1g.5gb: 2}}",
        &[(0, 2)])]
    #[case::mig_off_on_a_gpu_without_mig(
        "  - {devices: [1], mig-enabled: false}", &[])]
    fn chooses(#[case] specs: &str, #[case] expected: &[(u32, u32)]) {
        assert_eq!(chosen(specs, &mixed()).unwrap(), expected);
    }

    #[rstest]
    #[case::index_beyond(
        "  - {devices: [0, 3], mig-enabled: false}",
        SelectError::NoSuchGpu { indices: vec![3], count: 3 },
        "the config names GPU 3, but this node has 3 GPUs, 0 to 2")]
    #[case::mig_on_a_t4(
        "  - {devices: [1], mig-enabled: true, mig-devices: {}}",
        SelectError::NotCapable { index: 1 },
        "the config enables MIG on GPU 1, which does not support it")]
    #[case::index_outside_the_filter(
        "  - {device-filter: '0x20B010DE', devices: [0, 1], mig-enabled: true, mig-devices: {1g.5gb: 1}}",
        SelectError::Filtered { index: 1, id: "0x1EB810DE".into(), filter: "0x20B010DE".into() },
        "the config names GPU 1, whose id 0x1EB810DE its device-filter 0x20B010DE does not match")]
    #[case::no_filter_matches(
        "  - {device-filter: '0x233010DE', devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}",
        SelectError::NothingMatches { present: "0x20B010DE, 0x1EB810DE".into(), filters: "0x233010DE".into() },
        "no GPU of this node (0x20B010DE, 0x1EB810DE) matches a device-filter of the config (0x233010DE)")]
    fn refuses(#[case] specs: &str, #[case] expected: SelectError, #[case] text: &str) {
        assert_eq!(expected.to_string(), text);
        assert_eq!(chosen(specs, &mixed()).unwrap_err(), [expected]);
    }

    #[test]
    fn says_everything_that_is_wrong() {
        let specs = "  - {devices: [1, 8, 9], mig-enabled: true, mig-devices: {1g.5gb: 1}}\n  \
               - {devices: [3, 9], mig-enabled: false}";
        assert_eq!(
            chosen(specs, &mixed()).unwrap_err(),
            [
                SelectError::NotCapable { index: 1 },
                SelectError::NoSuchGpu {
                    indices: vec![3, 8, 9],
                    count: 3
                },
            ]
        );
    }

    #[test]
    fn silent_gpu_is_meant_by_all_and_by_its_index_but_not_by_a_filter() {
        let silent = Candidate {
            index: 1,
            id: None,
            mig_capable: true,
        };
        let gpus = [gpu(0, A100), silent];
        let all = "  - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}";
        assert_eq!(chosen(all, &gpus).unwrap(), [(0, 7), (1, 7)]);
        let named = "  - {devices: [1], mig-enabled: true, mig-devices: {1g.5gb: 7}}";
        assert_eq!(chosen(named, &gpus).unwrap(), [(1, 7)]);
        let filtered = "  - {device-filter: '0x20B010DE', devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}";
        assert_eq!(chosen(filtered, &gpus).unwrap(), [(0, 7)]);
    }

    #[test]
    fn no_gpu() {
        let all = "  - {devices: all, mig-enabled: false}";
        assert_eq!(chosen(all, &[]).unwrap_err(), [SelectError::NoGpus]);
    }
}
