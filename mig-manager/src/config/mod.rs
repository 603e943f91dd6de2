//! The partition config: named layouts in the file format of nvidia-mig-parted, `version: v1`.
//!
//! A [`Config`] in hand is valid as a document. Whether this node's GPUs can do what it says is not known here.

mod filter;
mod parse;
mod write;

use std::collections::BTreeMap;

use configuration::nearest::nearest;
use gpu::Profile;

pub use filter::{DeviceFilter, FilterError};

use crate::listing;

/// A whole config file: at least one named layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    configs: BTreeMap<String, Vec<Spec>>,
}

/// One rule of a named layout: these GPUs become this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Which boards it means; empty means all.
    pub filter: Vec<DeviceFilter>,
    /// Which GPUs among those.
    pub devices: Devices,
    /// Whether MIG mode is to be on.
    pub mig_enabled: bool,
    /// How many MIG devices of each profile; no zero counts. Empty when MIG is to be off.
    pub mig_devices: BTreeMap<Profile, u32>,
}

/// Which GPUs a spec names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Devices {
    /// Every GPU that passes the filter; those that cannot do MIG are passed over.
    All,
    /// These NVML indices (the order of PCI addresses), ascending and unique.
    Indices(Vec<u32>),
}

impl Spec {
    /// Whether the filter lets a GPU with these PCI ids pass.
    pub fn passes(&self, id: gpu::PciId) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|f| f.matches(id))
    }
}

/// Why a named layout could not be picked from a config.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// The config has no layout of this name.
    #[error("no config named {name:?}; {}", rather(.nearest, .names))]
    Unknown {
        /// What was asked for.
        name: String,
        /// The names most like it.
        nearest: Vec<String>,
        /// All there are.
        names: Vec<String>,
    },
    /// No name was given and the config has several layouts.
    #[error("name one of the {} configs with --selected-config, such as {first:?}", .count)]
    Ambiguous {
        /// How many there are.
        count: usize,
        /// The first of them.
        first: String,
    },
}

/// Where nothing is like the name, the whole choice helps.
fn rather(nearest: &[String], names: &[String]) -> String {
    if nearest.is_empty() {
        format!("choose one of {}", listing::names(names))
    } else {
        format!("did you mean {}?", nearest.join(", "))
    }
}

impl Config {
    /// A config made by the program itself; `None` when there is nothing in it.
    pub fn new(configs: BTreeMap<String, Vec<Spec>>) -> Option<Self> {
        let empty = configs.is_empty() || configs.values().any(Vec::is_empty);
        (!empty).then_some(Self { configs })
    }

    /// Names of the layouts, ascending.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.configs.keys().map(String::as_str)
    }

    /// The specs of a layout. Without a name, those of the only one.
    ///
    /// # Errors
    /// [`SelectionError`] when the name is unknown, or needed and missing.
    pub fn select(&self, name: Option<&str>) -> Result<(&str, &[Spec]), SelectionError> {
        let found = match name {
            Some(name) => {
                self.configs
                    .get_key_value(name)
                    .ok_or_else(|| SelectionError::Unknown {
                        name: name.to_owned(),
                        nearest: nearest(name, self.names(), 3),
                        names: self.names().map(str::to_owned).collect(),
                    })?
            }
            None => {
                let mut all = self.configs.iter();
                match (all.next(), all.next()) {
                    (Some(only), None) => only,
                    (first, _) => {
                        return Err(SelectionError::Ambiguous {
                            count: self.configs.len(),
                            first: first.map(|(n, _)| n.clone()).unwrap_or_default(),
                        });
                    }
                }
            }
        };
        Ok((found.0, found.1))
    }
}
