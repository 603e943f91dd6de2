//! Reads the topology in the background: links can take seconds to ask, and no request waits for them.

use std::collections::BTreeSet;
use std::sync::mpsc::Sender;

use super::follow::Message;
use super::inventory::Inventory;

/// What a topology was read of: when it differs, another reading is due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Of {
    generation: u64,
    /// UUID, and whether MIG is on, which hides links, of the GPUs that answer.
    gpus: BTreeSet<(String, bool)>,
}

impl Of {
    pub(super) fn new(generation: u64, inventory: &Inventory) -> Self {
        let usable = inventory
            .gpus()
            .iter()
            .filter(|known| known.trouble.is_none());
        Self {
            generation,
            gpus: usable
                .map(|known| (known.gpu.uuid.clone(), known.gpu.mig_enabled))
                .collect(),
        }
    }
}

/// The readings: one at a time.
#[derive(Debug, Default)]
pub(super) struct Readings {
    of: Of,
    reading: bool,
    /// Something changed while a reading went on, which may have missed it even if all is as before now.
    outdated: bool,
}

impl Readings {
    /// Begins a reading when one is due.
    pub(super) fn update(&mut self, driver: &nvml::Driver, of: Of, messages: &Sender<Message>) {
        self.outdated |= of != self.of;
        if self.reading || !self.outdated {
            return;
        }
        self.outdated = false;
        self.of = of;
        // One GPU has no neighbours.
        if self.of.gpus.len() < 2 {
            return;
        }
        let driver = driver.clone();
        let messages = messages.clone();
        let thread = std::thread::Builder::new()
            .name("hardware-links".to_owned())
            .stack_size(super::STACK)
            .spawn(move || {
                // Nobody listens once the hardware is not followed any more.
                let _ = messages.send(Message::Topology(driver.topology()));
            });
        match thread {
            Ok(_) => self.reading = true,
            Err(error) => tracing::warn!(%error, "the topology of the GPUs is not known"),
        }
    }

    /// A reading is over; with its result when it has one.
    pub(super) fn done(
        &mut self,
        result: Result<nvml::TopologyReport, nvml::Error>,
    ) -> Option<gpu::Topology> {
        self.reading = false;
        match result {
            Ok(report) => {
                for error in report.failed.values() {
                    tracing::debug!(%error, "left out of the topology");
                }
                Some(report.topology)
            }
            Err(error) => {
                tracing::debug!(%error, "the topology could not be read");
                self.of = Of::default();
                None
            }
        }
    }
}
