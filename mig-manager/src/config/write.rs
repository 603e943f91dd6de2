//! A [`Config`] as the file mig-parted would write: fields in its order, `mig-devices: {}` where there are none.

use std::collections::BTreeMap;

use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

use super::{Config, DeviceFilter, Devices, Spec};

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut file = serializer.serialize_struct("Config", 2)?;
        file.serialize_field("version", "v1")?;
        file.serialize_field("mig-configs", &self.configs)?;
        file.end()
    }
}

impl Serialize for Spec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self.filter.as_slice() {
            [] => {}
            [one] => map.serialize_entry("device-filter", one)?,
            several => map.serialize_entry("device-filter", several)?,
        }
        map.serialize_entry("devices", &self.devices)?;
        map.serialize_entry("mig-enabled", &self.mig_enabled)?;
        let counts: BTreeMap<String, u32> = self
            .mig_devices
            .iter()
            .map(|(p, n)| (p.to_string(), *n))
            .collect();
        map.serialize_entry("mig-devices", &counts)?;
        map.end()
    }
}

impl Serialize for DeviceFilter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Devices {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str("all"),
            Self::Indices(indices) => indices.serialize(serializer),
        }
    }
}
