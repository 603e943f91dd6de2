//! The GPUs that the node has or had: folds what the driver says, look by look, and forgets no GPU that stops answering.
//!
//! Pure. A GPU is the board with its UUID. One that is lost, hangs, or drops out of the driver's list keeps its last
//! description, MIG layout included, so that its devices turn unhealthy instead of vanishing; another board in its slot
//! takes its place.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::resources::Gpu;

/// A GPU as it last described itself, and what keeps it from being used now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownGpu {
    /// What resources are made of.
    pub gpu: Gpu,
    /// Whether it can be cut into MIG devices.
    pub mig_capable: bool,
    /// Memory in bytes; `None` when the driver does not say.
    pub memory_bytes: Option<u64>,
    /// CUDA compute capability; `None` when the driver does not say.
    pub compute_capability: Option<(u32, u32)>,
    /// Why it cannot be used now.
    pub trouble: Option<Trouble>,
}

/// What kind of trouble a GPU is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// It fell off the bus, or needs a reset before it answers.
    Lost,
    /// A driver call about it does not come back.
    Hung,
    /// The driver answers questions about it with another error.
    NoAnswer,
    /// The driver lists it no more.
    Absent,
    /// There is no driver.
    DriverGone,
    /// MIG manager may be changing it, and this process looks away meanwhile.
    Reshaping,
}

/// Why a GPU cannot be used now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Its kind.
    pub cause: Cause,
    /// One line for people, from when it began.
    pub text: String,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<&nvml::Error> for Trouble {
    fn from(error: &nvml::Error) -> Self {
        let cause = match error {
            _ if error.is_gpu_lost() => Cause::Lost,
            _ if error.is_hung() => Cause::Hung,
            _ if error.is_driver_gone() => Cause::DriverGone,
            nvml::Error::NoSuchGpu { .. } => Cause::Absent,
            _ => Cause::NoAnswer,
        };
        Self {
            cause,
            text: error.to_string(),
        }
    }
}

/// The driver, as far as the inventory is about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Driver {
    /// Nobody has looked yet.
    #[default]
    Unknown,
    /// It answers.
    Present {
        /// Kernel driver, for example `580.105.08`.
        version: String,
        /// Which opening of the library it is ([`nvml::Driver::generation`]).
        generation: u64,
    },
    /// There is none, or none that works.
    Gone {
        /// One line for people.
        reason: String,
    },
}

/// What was seen.
#[derive(Clone, Debug)]
pub enum Observation {
    /// The driver was opened.
    Driver {
        /// Its version.
        version: String,
        /// Which opening of the library it is.
        generation: u64,
    },
    /// There is no driver.
    DriverGone(nvml::Error),
    /// A GPU was asked to describe itself. It answered `None` when it is none that programs compute on.
    Gpu {
        /// At which NVML index.
        index: u32,
        /// What came back.
        answer: Result<Option<KnownGpu>, nvml::Error>,
    },
    /// A GPU is in trouble, as an event says.
    Trouble {
        /// Which.
        gpu: nvml::GpuRef,
        /// What the event said.
        error: nvml::Error,
    },
    /// Every GPU of the driver's list was asked; so many there were, and these answered.
    Listed {
        /// Length of the list.
        count: u32,
        /// UUIDs of those that answered, whatever else they said.
        uuids: BTreeSet<String>,
    },
    /// The GPUs are left alone for MIG manager; those that it can change are not to be used meanwhile.
    Reshaping,
}

/// See the module's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    gpus: Vec<KnownGpu>,
    driver: Driver,
    /// Entries of the driver's list that were never described, by index.
    unknown: BTreeMap<u32, Trouble>,
}

impl Inventory {
    /// All known GPUs by NVML index, those in trouble included.
    pub fn gpus(&self) -> &[KnownGpu] {
        &self.gpus
    }

    /// The descriptions alone, as [`resources`](crate::resources()) takes them.
    pub fn descriptions(&self) -> Vec<Gpu> {
        self.gpus.iter().map(|known| known.gpu.clone()).collect()
    }

    /// The GPU with this UUID.
    pub fn gpu(&self, uuid: &str) -> Option<&KnownGpu> {
        self.gpus.iter().find(|known| known.gpu.uuid == uuid)
    }

    /// The driver.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// GPUs that the driver lists and that never described themselves, by index, and why: nothing can be offered of them.
    pub fn unknown(&self) -> impl Iterator<Item = (u32, &Trouble)> {
        self.unknown
            .iter()
            .map(|(index, trouble)| (*index, trouble))
    }

    /// Takes in what was seen, and says whether anything is different now.
    pub fn observe(&mut self, observation: Observation) -> bool {
        let before = self.clone();
        match observation {
            Observation::Driver {
                version,
                generation,
            } => {
                self.driver = Driver::Present {
                    version,
                    generation,
                }
            }
            Observation::DriverGone(error) => self.driver_gone(&error),
            Observation::Gpu { index, answer } => self.answered(index, answer),
            Observation::Trouble { gpu, error } => self.failed(&gpu, &error),
            Observation::Listed { count, uuids } => self.listed(count, &uuids),
            Observation::Reshaping => {
                let trouble = Trouble {
                    cause: Cause::Reshaping,
                    text: "left alone while MIG manager changes the layout".to_owned(),
                };
                let capable = self.gpus.iter_mut().filter(|known| known.mig_capable);
                for known in capable.filter(|known| known.trouble.is_none()) {
                    known.trouble = Some(trouble.clone());
                }
            }
        }
        *self != before
    }

    fn driver_gone(&mut self, error: &nvml::Error) {
        // The first reason stays: later attempts fail in other words about the same thing.
        if !matches!(self.driver, Driver::Gone { .. }) {
            self.driver = Driver::Gone {
                reason: error.to_string(),
            };
        }
        self.unknown.clear();
        let trouble = Trouble {
            cause: Cause::DriverGone,
            text: error.to_string(),
        };
        for known in &mut self.gpus {
            set(known, trouble.clone());
        }
    }

    fn answered(&mut self, index: u32, answer: Result<Option<KnownGpu>, nvml::Error>) {
        match answer {
            Ok(Some(found)) => {
                self.unknown.remove(&index);
                // The same board, wherever it was, or another one in this slot.
                self.gpus.retain(|known| {
                    known.gpu.uuid != found.gpu.uuid && known.gpu.bus_id != found.gpu.bus_id
                });
                self.gpus.push(found);
                self.gpus
                    .sort_by(|a, b| (a.gpu.index, &a.gpu.uuid).cmp(&(b.gpu.index, &b.gpu.uuid)));
            }
            Ok(None) => {
                self.unknown.remove(&index);
            }
            Err(error) if error.is_driver_gone() => self.driver_gone(&error),
            Err(error) => {
                let uuid = error.gpu().and_then(|gpu| gpu.uuid.clone());
                self.failed(&nvml::GpuRef { index, uuid }, &error);
            }
        }
    }

    fn failed(&mut self, gpu: &nvml::GpuRef, error: &nvml::Error) {
        let meant = |known: &&mut KnownGpu| match &gpu.uuid {
            Some(uuid) => known.gpu.uuid == **uuid,
            None => known.gpu.index == gpu.index,
        };
        let trouble = Trouble::from(error);
        match self.gpus.iter_mut().find(meant) {
            Some(known) => set(known, trouble),
            None => {
                let entry = self.unknown.entry(gpu.index);
                let kept = entry.or_insert_with(|| trouble.clone());
                if kept.cause != trouble.cause {
                    *kept = trouble;
                }
            }
        }
    }

    fn listed(&mut self, count: u32, uuids: &BTreeSet<String>) {
        self.unknown.retain(|index, _| *index < count);
        for known in &mut self.gpus {
            let explained = known.trouble.as_ref().is_some_and(|trouble| {
                !matches!(trouble.cause, Cause::DriverGone | Cause::Reshaping)
            });
            if !uuids.contains(&known.gpu.uuid) && !explained {
                let text = format!("{} is not in the driver's list any more", known.gpu.uuid);
                set(
                    known,
                    Trouble {
                        cause: Cause::Absent,
                        text,
                    },
                );
            }
        }
    }
}

/// Puts a GPU into trouble. The words of the same trouble stay those that it began with: they name times, and would make
/// every look a change.
fn set(known: &mut KnownGpu, trouble: Trouble) {
    if known.trouble.as_ref().map(|old| old.cause) != Some(trouble.cause) {
        known.trouble = Some(trouble);
    }
}

#[cfg(test)]
#[path = "inventory_tests.rs"]
mod tests;
