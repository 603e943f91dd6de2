//! Faults: of calls, of the hardware, of the links between.

use super::{Error, SimulatedNode};
use crate::model::{
    DriverState, Fault,
    fabric::FabricState,
    health::{EccError, Throttle, XID_FALLEN},
};

impl SimulatedNode {
    /// Injects a fault into calls and returns its id.
    pub fn inject(&self, fault: Fault) -> Result<u64, Error> {
        if let Some(gpu) = fault.gpu {
            self.on_gpu(gpu, |node, _| node.inject(fault))
        } else {
            Ok(self.store.update(|node| node.inject(fault))?)
        }
    }

    /// Clears one fault of calls.
    pub fn clear(&self, id: u64) -> Result<(), Error> {
        if self.store.update(|node| node.clear_fault(id))? {
            Ok(())
        } else {
            Err(Error::NoFault(id))
        }
    }

    /// Clears all faults of calls, and of the hardware all but what only a reset or reboot mends.
    pub fn clear_all(&self) -> Result<(), Error> {
        Ok(self.store.update(|node| {
            node.faults.clear();
            if node.driver.state == DriverState::Mismatch {
                node.driver.state = DriverState::Loaded;
            }
            for gpu in &mut node.gpus {
                gpu.mend();
                gpu.health.reset_refused = false;
                gpu.health.inforom_corrupt = false;
                gpu.mig.stuck = false;
            }
        })?)
    }

    /// Raises an XID on a GPU or on one of its instances. XID 79 makes the GPU fall off the bus.
    pub fn xid(&self, gpu: usize, xid: u64, instance: Option<(u32, u32)>) -> Result<(), Error> {
        self.on_gpu(gpu, |node, now| {
            node.raise_xid(
                gpu,
                xid,
                instance.map(|(gi, _)| gi),
                instance.map(|(_, ci)| ci),
                now,
            )
        })
    }

    /// Raises memory errors on a GPU.
    pub fn ecc(&self, gpu: usize, error: EccError, count: u64) -> Result<(), Error> {
        self.on_gpu(gpu, |node, now| node.raise_ecc(gpu, error, count, now))
    }

    /// Makes rows of a GPU wait for a reset to be remapped.
    pub fn row_remap(&self, gpu: usize, rows: u32) -> Result<(), Error> {
        self.on_gpu(gpu, |node, now| node.raise_row_remap(gpu, rows, now))
    }

    /// Makes every call on a GPU answer GPU_IS_LOST until a reset.
    pub fn lose(&self, gpu: usize) -> Result<(), Error> {
        self.on_gpu(gpu, |node, _| node.gpus[gpu].health.lost = true)
    }

    /// Makes a GPU fall off the bus: lost to those who know it, absent to those who come later.
    pub fn fall_off(&self, gpu: usize) -> Result<(), Error> {
        self.xid(gpu, XID_FALLEN, None)
    }

    /// Holds a GPU's clocks down.
    pub fn throttle(&self, gpu: usize, throttle: Throttle) -> Result<(), Error> {
        self.on_gpu(gpu, |node, _| node.gpus[gpu].throttle = throttle)
    }

    /// Makes resets of a GPU fail, or work again.
    pub fn refuse_reset(&self, gpu: usize, refuse: bool) -> Result<(), Error> {
        self.on_gpu(gpu, |node, _| node.gpus[gpu].health.reset_refused = refuse)
    }

    /// Makes MIG mode changes of a GPU stay pending, or work again.
    pub fn stick_mig_mode(&self, gpu: usize, stuck: bool) -> Result<(), Error> {
        self.on_gpu(gpu, |node, _| node.gpus[gpu].mig.stuck = stuck)
    }

    /// Corrupts a GPU's InfoROM, or mends it.
    pub fn corrupt_inforom(&self, gpu: usize, corrupt: bool) -> Result<(), Error> {
        self.on_gpu(gpu, |node, _| {
            node.gpus[gpu].health.inforom_corrupt = corrupt
        })
    }

    /// Takes an NVLink of a GPU down or up. `errors` are added to its CRC and replay counters.
    pub fn nvlink(&self, gpu: usize, link: usize, up: bool, errors: u64) -> Result<(), Error> {
        self.on_gpu(gpu, |node, _| {
            let found = node.gpus[gpu]
                .links
                .get_mut(link)
                .ok_or(Error::NoLink { gpu, link })?;
            found.up = up;
            found.errors.crc_flit = found.errors.crc_flit.saturating_add(errors);
            found.errors.replay = found.errors.replay.saturating_add(errors);
            Ok(())
        })?
    }

    /// Sets the state of a GPU's fabric registration and its health mask.
    pub fn fabric(&self, gpu: usize, state: FabricState, health: Option<u32>) -> Result<(), Error> {
        self.on_gpu(gpu, |node, _| {
            let gpu = &mut node.gpus[gpu];
            gpu.fabric_made.get_or_insert_with(|| gpu.fabric.clone());
            gpu.fabric.state = state;
            gpu.fabric.health = health.unwrap_or(gpu.fabric.health);
        })
    }
}
