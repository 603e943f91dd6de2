//! From the bytes of a config file to a [`Config`], or to the place that is wrong.
//!
//! Stricter than mig-parted where it silently does nothing: malformed filters, a profile given twice.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use gpu::{ParseProfileError, Profile};
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::{Config, DeviceFilter, Devices, Spec};
use crate::strict::{self, DocumentError, Entries, Position};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    version: Spanned<String>,
    #[serde(rename = "mig-configs")]
    mig_configs: Spanned<Entries<Spanned<Vec<RawSpec>>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawSpec {
    #[serde(default)]
    device_filter: Option<Spanned<RawFilter>>,
    devices: Spanned<RawDevices>,
    mig_enabled: Spanned<bool>,
    #[serde(default)]
    mig_devices: Option<Spanned<Entries<Spanned<i64>>>>,
}

// Numbers are taken as text, so that the error can point at them.
enum RawFilter {
    One(String),
    Many(Vec<Spanned<FilterText>>),
}

struct FilterText(String);

enum RawDevices {
    Word(String),
    Indices(Vec<Spanned<i64>>),
}

impl<'de> Deserialize<'de> for RawFilter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = RawFilter;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a device-filter in quotes, such as \"0x20B010DE\", or a list of them")
            }

            fn visit_str<E: de::Error>(self, s: &str) -> Result<RawFilter, E> {
                Ok(RawFilter::One(s.to_owned()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<RawFilter, E> {
                Ok(RawFilter::One(number.to_string()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<RawFilter, A::Error> {
                collect(seq).map(RawFilter::Many)
            }
        }
        deserializer.deserialize_any(V)
    }
}

impl<'de> Deserialize<'de> for FilterText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = FilterText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a device-filter in quotes, such as \"0x20B010DE\"")
            }

            fn visit_str<E: de::Error>(self, s: &str) -> Result<FilterText, E> {
                Ok(FilterText(s.to_owned()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<FilterText, E> {
                Ok(FilterText(number.to_string()))
            }
        }
        deserializer.deserialize_any(V)
    }
}

impl<'de> Deserialize<'de> for RawDevices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = RawDevices;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`all` or a list of GPU indices")
            }

            fn visit_str<E: de::Error>(self, s: &str) -> Result<RawDevices, E> {
                Ok(RawDevices::Word(s.to_owned()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<RawDevices, E> {
                Ok(RawDevices::Word(number.to_string()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<RawDevices, E> {
                Ok(RawDevices::Word(number.to_string()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<RawDevices, A::Error> {
                collect(seq).map(RawDevices::Indices)
            }
        }
        deserializer.deserialize_any(V)
    }
}

fn collect<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(mut seq: A) -> Result<Vec<T>, A::Error> {
    let mut all = Vec::new();
    while let Some(one) = seq.next_element()? {
        all.push(one);
    }
    Ok(all)
}

impl Config {
    /// Reads and checks a config file; `-` is standard input.
    ///
    /// # Errors
    /// [`DocumentError`] with file, line and column.
    pub fn read(path: &Path) -> Result<Self, DocumentError> {
        let bytes = strict::read(path)?;
        Self::parse(&path.display().to_string(), &bytes)
    }

    /// Checks a config document (YAML, or JSON as its subset). `file` is what errors name.
    ///
    /// # Errors
    /// [`DocumentError`] with file, line and column.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, DocumentError> {
        let raw: RawFile = strict::parse(file, bytes)?;
        let check = Check { file };
        check.version(&raw.version)?;
        if raw.mig_configs.value.0.is_empty() {
            return Err(check.wrong(&raw.mig_configs, "mig-configs is empty"));
        }
        let mut configs = BTreeMap::new();
        for (name, specs) in raw.mig_configs.value.0 {
            if specs.value.is_empty() {
                let message = format!("config {:?} has no specs", name.value);
                return Err(check.wrong(&specs, message));
            }
            let specs = specs.value.into_iter().map(|s| check.spec(s));
            configs.insert(name.value, specs.collect::<Result<_, _>>()?);
        }
        Ok(Self { configs })
    }
}

struct Check<'a> {
    file: &'a str,
}

impl Check<'_> {
    fn wrong<T>(&self, at: &Spanned<T>, message: impl Into<String>) -> DocumentError {
        DocumentError::invalid(self.file, Position::of(at), message)
    }

    fn version(&self, version: &Spanned<String>) -> Result<(), DocumentError> {
        if version.value == "v1" {
            return Ok(());
        }
        let given: String = version.value.chars().take(40).collect();
        Err(self.wrong(
            version,
            format!("unknown version {given:?}: only \"v1\" exists"),
        ))
    }

    fn spec(&self, raw: RawSpec) -> Result<Spec, DocumentError> {
        let mig_devices = match &raw.mig_devices {
            Some(map) => self.mig_devices(map)?,
            None => BTreeMap::new(),
        };
        match (raw.mig_enabled.value, &raw.mig_devices) {
            (true, None) => Err(self.wrong(
                &raw.mig_enabled,
                "mig-devices is missing: mig-enabled: true needs it, {} for none",
            )),
            (false, Some(map)) if !map.value.0.is_empty() => Err(self.wrong(
                map,
                "mig-devices must be empty or absent where mig-enabled is false",
            )),
            (mig_enabled, _) => Ok(Spec {
                filter: self.filter(raw.device_filter)?,
                devices: self.devices(raw.devices)?,
                mig_enabled,
                mig_devices,
            }),
        }
    }

    fn filter(&self, raw: Option<Spanned<RawFilter>>) -> Result<Vec<DeviceFilter>, DocumentError> {
        let Some(raw) = raw else {
            return Ok(Vec::new());
        };
        match &raw.value {
            // mig-parted takes an empty filter for no filter.
            RawFilter::One(text) if text.is_empty() => Ok(Vec::new()),
            RawFilter::One(text) => {
                let filter = text
                    .parse::<DeviceFilter>()
                    .map_err(|e| self.wrong(&raw, e.to_string()))?;
                Ok(vec![filter])
            }
            RawFilter::Many(texts) => texts
                .iter()
                .map(|t| {
                    t.value
                        .0
                        .parse::<DeviceFilter>()
                        .map_err(|e| self.wrong(t, e.to_string()))
                })
                .collect(),
        }
    }

    fn devices(&self, raw: Spanned<RawDevices>) -> Result<Devices, DocumentError> {
        match &raw.value {
            RawDevices::Word(word) if word == "all" => Ok(Devices::All),
            RawDevices::Word(word) => {
                let given: String = word.chars().take(40).collect();
                let message = format!("devices is {given:?}: write `all` or a list of GPU indices");
                Err(self.wrong(&raw, message))
            }
            RawDevices::Indices(list) if list.is_empty() => Err(self.wrong(
                &raw,
                "devices is an empty list: name GPU indices or write `all`",
            )),
            RawDevices::Indices(list) => {
                let mut indices = Vec::with_capacity(list.len());
                for index in list {
                    let valid = u32::try_from(index.value)
                        .map_err(|_| self.wrong(index, format!("{} is no GPU index", index.value)));
                    indices.push(valid?);
                }
                indices.sort_unstable();
                indices.dedup();
                Ok(Devices::Indices(indices))
            }
        }
    }

    fn mig_devices(
        &self,
        raw: &Spanned<Entries<Spanned<i64>>>,
    ) -> Result<BTreeMap<Profile, u32>, DocumentError> {
        let mut counts = BTreeMap::new();
        for (name, count) in &raw.value.0 {
            let profile: Profile = name
                .value
                .parse()
                .map_err(|e: ParseProfileError| self.wrong(name, e.to_string()))?;
            let number = u32::try_from(count.value).map_err(|_| {
                let message = format!("{} is no count of {profile} devices", count.value);
                self.wrong(count, message)
            })?;
            if counts.insert(profile.clone(), number).is_some() {
                return Err(self.wrong(name, format!("profile {profile} is given twice")));
            }
        }
        if !counts.is_empty() && counts.values().all(|n| *n == 0) {
            return Err(self.wrong(raw, "every count is 0: write {} to have no MIG devices"));
        }
        counts.retain(|_, n| *n > 0);
        Ok(counts)
    }
}
