//! A node's present layout as a config, in the compact form of `nvidia-mig-parted export`.
//!
//! Pure: from what each GPU is to the specs that say so.

use std::collections::{BTreeMap, BTreeSet};

use gpu::{PciId, Profile};

use crate::config::{Config, DeviceFilter, Devices, Spec};

/// What one GPU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// NVML index.
    pub index: u32,
    /// PCI ids; the subsystem's are not exported.
    pub id: PciId,
    /// Whether MIG is on. A GPU without MIG counts as off.
    pub mig_enabled: bool,
    /// Its MIG devices.
    pub mig_devices: BTreeMap<Profile, u32>,
}

/// The config with one layout named `label`; `None` when there is no GPU.
///
/// GPUs that are alike share a spec. A spec that covers every GPU its filter matches says `all`; where one filter or one spec
/// is enough for the whole node, no filter is written.
pub fn export(label: &str, gpus: &[Exported]) -> Option<Config> {
    let boards: BTreeSet<DeviceFilter> = gpus.iter().map(|g| DeviceFilter::device(g.id)).collect();
    let mut groups: Vec<Vec<&Exported>> = Vec::new();
    for gpu in gpus {
        let alike = groups.iter_mut().find(|group| {
            group.first().is_some_and(|first| {
                first.mig_enabled == gpu.mig_enabled && first.mig_devices == gpu.mig_devices
            })
        });
        match alike {
            Some(group) => group.push(gpu),
            None => groups.push(vec![gpu]),
        }
    }
    let filtered = boards.len() > 1 && groups.len() > 1;
    let specs = groups.iter().filter_map(|group| {
        let first = group.first()?;
        let filter: BTreeSet<DeviceFilter> =
            group.iter().map(|g| DeviceFilter::device(g.id)).collect();
        let covered = gpus
            .iter()
            .filter(|g| filter.iter().any(|f| f.matches(g.id)))
            .count();
        Some(Spec {
            devices: if covered == group.len() {
                Devices::All
            } else {
                Devices::Indices(group.iter().map(|g| g.index).collect())
            },
            filter: if filtered {
                filter.into_iter().collect()
            } else {
                Vec::new()
            },
            mig_enabled: first.mig_enabled,
            mig_devices: first.mig_devices.clone(),
        })
    });
    Config::new(BTreeMap::from([(label.to_owned(), specs.collect())]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;
    use crate::output::Format;

    const A100: u32 = 0x20B0_10DE;
    const H100: u32 = 0x2330_10DE;
    const T4: u32 = 0x1EB8_10DE;

    /// MIG devices; `None` for MIG off.
    type Cut = Option<&'static [(&'static str, u32)]>;

    /// GPUs in index order: PCI id and cut.
    fn exported(gpus: &[(u32, Cut)]) -> String {
        let gpus: Vec<Exported> = gpus
            .iter()
            .zip(0..)
            .map(|((device, devices), index)| Exported {
                index,
                id: PciId {
                    device: *device,
                    subsystem: 0x1234_10DE,
                },
                mig_enabled: devices.is_some(),
                mig_devices: devices
                    .unwrap_or_default()
                    .iter()
                    .map(|(p, n)| (p.parse().unwrap(), *n))
                    .collect(),
            })
            .collect();
        let config = export("current", &gpus).unwrap();
        let text = Format::Yaml.write("config", &config).unwrap();
        text.strip_prefix("version: v1\nmig-configs:\n  current:\n")
            .unwrap()
            .to_owned()
    }

    const SEVEN: Cut = Some(&[("1g.5gb", 7)]);
    const MIXED: Cut = Some(&[("1g.5gb", 2), ("3g.20gb", 1)]);

    #[rstest]
    #[case::homogeneous(&[(A100, SEVEN), (A100, SEVEN)],
        "  - devices: all\n    mig-enabled: true\n    mig-devices:\n      1g.5gb: 7\n")]
    #[case::one_board_two_layouts(&[(A100, SEVEN), (A100, MIXED), (A100, SEVEN)],
        "  - devices:\n    - 0\n    - 2\n    mig-enabled: true\n    mig-devices:\n      1g.5gb: 7\n\
         \x20 - devices:\n    - 1\n    mig-enabled: true\n    mig-devices:\n      1g.5gb: 2\n      3g.20gb: 1\n")]
    #[case::two_boards_one_layout(&[(A100, None), (T4, None)],
        "  - devices: all\n    mig-enabled: false\n    mig-devices: {}\n")]
    #[case::filter_fully_covered(&[(A100, SEVEN), (A100, SEVEN), (T4, None)],
        "  - device-filter: \"0x20B010DE\"\n    devices: all\n    mig-enabled: true\n    mig-devices:\n      1g.5gb: 7\n\
         \x20 - device-filter: \"0x1EB810DE\"\n    devices: all\n    mig-enabled: false\n    mig-devices: {}\n")]
    #[case::filter_list(&[(A100, None), (H100, SEVEN), (T4, None)],
        "  - device-filter:\n    - \"0x1EB810DE\"\n    - \"0x20B010DE\"\n    devices: all\n    mig-enabled: false\n    mig-devices: {}\n\
         \x20 - device-filter: \"0x233010DE\"\n    devices: all\n    mig-enabled: true\n    mig-devices:\n      1g.5gb: 7\n")]
    #[case::filter_partly_covered(&[(A100, SEVEN), (A100, None), (T4, None)],
        "  - device-filter: \"0x20B010DE\"\n    devices:\n    - 0\n    mig-enabled: true\n    mig-devices:\n      1g.5gb: 7\n\
         \x20 - device-filter:\n    - \"0x1EB810DE\"\n    - \"0x20B010DE\"\n    devices:\n    - 1\n    - 2\n    mig-enabled: false\n    mig-devices: {}\n")]
    fn merged(#[case] gpus: &[(u32, Cut)], #[case] expected: &str) {
        assert_eq!(exported(gpus), expected);
    }

    #[test]
    fn no_gpu_no_config() {
        assert_eq!(export("current", &[]), None);
    }
}
