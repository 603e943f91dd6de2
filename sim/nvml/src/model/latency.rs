//! How long the driver takes: a duration per kind of call.
//!
//! Only numbers; the library sleeps, and does so outside the store's lock, so that calls on different GPUs overlap.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

/// Kinds of calls that take alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Reads.
    Query,
    /// Library initialisation.
    Init,
    /// MIG mode change.
    Mode,
    /// GPU-instance creation.
    CreateInstance,
    /// Compute-instance creation.
    CreateCompute,
    /// GPU-instance destruction.
    DestroyInstance,
    /// Compute-instance destruction.
    DestroyCompute,
    /// Other writes.
    Write,
    /// GPU reset.
    Reset,
}

impl Class {
    /// The class of a symbol.
    pub fn of(symbol: &str) -> Class {
        match symbol {
            "nvmlDeviceSetMigMode" => Class::Mode,
            "nvmlDeviceCreateGpuInstance" | "nvmlDeviceCreateGpuInstanceWithPlacement" => {
                Class::CreateInstance
            }
            "nvmlGpuInstanceCreateComputeInstance"
            | "nvmlGpuInstanceCreateComputeInstanceWithPlacement" => Class::CreateCompute,
            "nvmlGpuInstanceDestroy" => Class::DestroyInstance,
            "nvmlComputeInstanceDestroy" => Class::DestroyCompute,
            _ if symbol.starts_with("nvmlInit") => Class::Init,
            _ if [
                "nvmlDeviceSet",
                "nvmlDeviceReset",
                "nvmlDeviceClear",
                "nvmlDeviceModify",
                "nvmlDeviceRemove",
            ]
            .iter()
            .any(|prefix| symbol.starts_with(prefix)) =>
            {
                Class::Write
            }
            _ => Class::Query,
        }
    }
}

/// Latency settings of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Latency {
    /// Microseconds per class; a class not named takes none.
    pub classes: BTreeMap<Class, u64>,
    /// Microseconds per symbol, before the class's.
    pub symbols: BTreeMap<String, u64>,
}

impl Latency {
    /// No delays.
    pub fn zero() -> Self {
        Latency::default()
    }

    /// About what hardware takes: seconds for a mode change, tens to hundreds of milliseconds for instances.
    pub fn realistic() -> Self {
        let classes = [
            (Class::Query, 30),
            (Class::Init, 20_000),
            (Class::Mode, 4_000_000),
            (Class::CreateInstance, 150_000),
            (Class::CreateCompute, 60_000),
            (Class::DestroyInstance, 80_000),
            (Class::DestroyCompute, 40_000),
            (Class::Write, 5_000),
            (Class::Reset, 3_000_000),
        ];
        Latency {
            classes: classes.into(),
            symbols: BTreeMap::new(),
        }
    }

    /// The preset with this name: `zero` or `realistic`.
    pub fn preset(name: &str) -> Option<Self> {
        match name {
            "zero" => Some(Latency::zero()),
            "realistic" => Some(Latency::realistic()),
            _ => None,
        }
    }

    /// How long a call of `symbol` takes.
    pub fn of(&self, symbol: &str) -> Duration {
        if self.classes.is_empty() && self.symbols.is_empty() {
            return Duration::ZERO;
        }
        let micros = self
            .symbols
            .get(symbol)
            .or_else(|| self.classes.get(&Class::of(symbol)));
        Duration::from_micros(micros.copied().unwrap_or(0))
    }

    /// How long an operation of a class takes.
    pub fn of_class(&self, class: Class) -> Duration {
        Duration::from_micros(self.classes.get(&class).copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn realistic_orders_of_magnitude() {
        let latency = Latency::realistic();
        assert_eq!(latency.of("nvmlDeviceSetMigMode"), Duration::from_secs(4));
        assert_eq!(
            latency.of("nvmlDeviceCreateGpuInstanceWithPlacement"),
            Duration::from_millis(150)
        );
        assert_eq!(latency.of("nvmlDeviceGetName"), Duration::from_micros(30));
        assert_eq!(Latency::zero().of("nvmlDeviceSetMigMode"), Duration::ZERO);
    }

    #[test]
    fn a_symbol_goes_before_its_class() {
        let mut latency = Latency::realistic();
        latency.symbols.insert("nvmlGpuInstanceDestroy".into(), 7);
        assert_eq!(
            latency.of("nvmlGpuInstanceDestroy"),
            Duration::from_micros(7)
        );
    }
}
