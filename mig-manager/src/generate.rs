//! Named layouts: for the GPUs that are there, or, where the driver will not say what they offer, for all known boards.

use std::collections::BTreeMap;

use gpu::{Board, NamedSpec, PciId, named_configs};

use crate::config::{Config, DeviceFilter, Devices, Spec};
use crate::strict::DocumentError;

/// A layout of every name for every known board.
const DEFAULT: &[u8] = include_bytes!("../configs/config-default.yaml");

/// The config that ships with the program: every known board's layouts.
///
/// # Errors
/// None in a released program: a test reads the file.
pub fn default_config() -> Result<Config, DocumentError> {
    Config::parse("config-default.yaml", DEFAULT)
}

/// The layouts of the node's MIG-capable GPUs; the default config where no GPU's profiles are known.
pub(crate) fn generate(boards: &[(PciId, Board)]) -> Result<Config, DocumentError> {
    let told: Vec<_> = boards
        .iter()
        .filter(|(_, b)| b.lists_profiles())
        .cloned()
        .collect();
    if told.is_empty() && !boards.is_empty() {
        return default_config();
    }
    let configs: BTreeMap<String, Vec<Spec>> = named_configs(&told)
        .into_iter()
        .map(|(name, specs)| (name, specs.into_iter().map(spec).collect()))
        .collect();
    Config::new(configs).map_or_else(default_config, Ok)
}

fn spec(named: NamedSpec) -> Spec {
    Spec {
        filter: named.filter.into_iter().map(DeviceFilter::from).collect(),
        devices: Devices::All,
        mig_enabled: named.mig_enabled,
        mig_devices: named.devices,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn default_config_has_the_names_that_node_labels_use() {
        let config = default_config().unwrap();
        assert_eq!(config.names().count(), 81);
        let counts = |name, device| {
            let (_, specs) = config.select(Some(name)).unwrap();
            let id = PciId {
                device,
                subsystem: 0,
            };
            let spec = specs.iter().find(|s| s.passes(id))?;
            let shown = spec.mig_devices.iter().map(|(p, n)| format!("{n}x{p}"));
            Some(shown.collect::<Vec<_>>().join(" "))
        };
        let expected = |text: &str| Some(text.to_owned());
        // One name, two boards, two counts: A100 40 GB and H100 80 GB; H200 and GB300.
        assert_eq!(counts("all-1g.10gb", 0x20B0_10DE), expected("4x1g.10gb"));
        assert_eq!(counts("all-1g.10gb", 0x2330_10DE), expected("7x1g.10gb"));
        assert_eq!(counts("all-1g.35gb", 0x2335_10DE), expected("4x1g.35gb"));
        assert_eq!(counts("all-1g.35gb", 0x31C2_10DE), expected("7x1g.35gb"));
        // A T4 has no balanced layout.
        assert_eq!(counts("all-balanced", 0x1EB8_10DE), None);
        assert_eq!(
            counts("all-balanced", 0x2330_10DE),
            expected("2x1g.10gb 1x2g.20gb 1x3g.40gb")
        );
        assert_eq!(
            counts("all-1g.24gb-me", 0x2BB5_10DE),
            expected("4x1g.24gb-me")
        );
        assert_eq!(
            counts("all-1g.10gb.me", 0x2330_10DE),
            expected("1x1g.10gb+me")
        );
    }

    #[test]
    fn default_config_stands_in_when_the_driver_lists_nothing() {
        let silent = Board {
            memory_bytes: 85_899_345_920,
            profiles: Vec::new(),
        };
        let id = PciId {
            device: 0x20B2_10DE,
            subsystem: 0,
        };
        assert_eq!(
            generate(&[(id, silent)]).unwrap(),
            default_config().unwrap()
        );
    }

    #[test]
    fn node_without_mig_can_still_be_asked_to_have_none() {
        let config = generate(&[]).unwrap();
        assert_eq!(
            config.names().collect::<Vec<_>>(),
            ["all-disabled", "all-enabled"]
        );
    }
}
