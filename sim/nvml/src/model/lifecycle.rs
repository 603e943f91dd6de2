//! Resets, removals, driver reloads and reboots: what each one makes of the state.
//!
//! Pure changes; who asks, and through which file or command, is `admin`'s business.

use super::{
    DriverState, Event, Node, events::system_kind, gpu::Gpu, health::EccCounters, nvlink::Remote,
};
use crate::Code;

impl Gpu {
    /// What a reset does to one GPU, the handles' generation aside: instances go, what waited for a reset happens.
    pub(crate) fn after_reset(&mut self) {
        self.mig.instances.clear();
        self.modes.mig_compute.clear();
        let resetless = self.board.mig.as_ref().is_some_and(|spec| spec.resetless);
        if !self.mig.stuck && !resetless {
            self.mig.current = self.mig.pending;
        }
        self.ecc.current = self.ecc.pending;
        self.ecc.volatile = EccCounters::default();
        let remapped = std::mem::take(&mut self.remap.pending);
        self.remap.uncorrectable = self.remap.uncorrectable.saturating_add(remapped);
        self.health.lost = false;
        self.health.reset_required = false;
        self.health.last_xid = None;
    }

    /// Ends what holds clocks down, and brings links and fabric to where they were made to be.
    pub(crate) fn mend(&mut self) {
        self.throttle = super::health::Throttle::default();
        for link in &mut self.links {
            link.up = link.remote != Remote::None;
        }
        if let Some(fabric) = self.fabric_made.take() {
            self.fabric = fabric;
        }
    }

    /// What a fresh driver does to one GPU: a reset, and settings go back to their defaults. A resetless MIG mode lives in
    /// the driver and goes with it.
    fn after_reload(&mut self, now_us: u64) {
        self.after_reset();
        if self.board.mig.as_ref().is_some_and(|spec| spec.resetless) && !self.mig.stuck {
            self.mig.current = false;
            self.mig.pending = false;
        }
        self.modes.persistence = false;
        self.modes.compute = super::ComputeMode::Default;
        self.modes.locked_graphics = None;
        self.modes.locked_memory = None;
        self.modes.power_limit_mw = self.board.power.default_mw;
        self.modes.accounting = false;
        self.modes.gpm_streaming = false;
        self.modes.drain = false;
        self.removed = false;
        self.generation += 1;
        // Energy counts from the driver's load; the temperature of the chip does not care.
        self.meters = super::counters::Meters {
            at_us: now_us,
            temperature: self.meters.temperature,
            ..super::counters::Meters::default()
        };
    }
}

impl Node {
    /// Resets one GPU. IN_USE while anybody uses it, NOT_SUPPORTED where resets are refused, GPU_IS_LOST once it has
    /// fallen off the bus.
    pub fn reset(&mut self, gpu: usize, caller: u32) -> Result<(), Code> {
        let busy = self.is_held(gpu, caller);
        let state = self.gpus.get_mut(gpu).ok_or(Code::INVALID_ARGUMENT)?;
        if state.health.fallen_at.is_some() {
            Err(Code::GPU_IS_LOST)
        } else if state.health.reset_refused {
            Err(Code::NOT_SUPPORTED)
        } else if busy {
            Err(Code::IN_USE)
        } else {
            state.after_reset();
            state.generation += 1;
            Ok(())
        }
    }

    /// Takes one GPU from the driver. IN_USE while anybody uses it or persistence mode holds it.
    pub fn remove(&mut self, gpu: usize, caller: u32, now_us: u64) -> Result<(), Code> {
        let busy = self.is_held(gpu, caller);
        let state = self.gpus.get_mut(gpu).ok_or(Code::INVALID_ARGUMENT)?;
        if busy || state.modes.persistence {
            return Err(Code::IN_USE);
        }
        state.removed = true;
        state.generation += 1;
        state.mig.instances.clear();
        self.note_binding(gpu, system_kind::UNBIND, now_us);
        Ok(())
    }

    /// Gives a removed GPU back to the driver, which begins with it afresh.
    pub fn discover(&mut self, gpu: usize, now_us: u64) -> Result<(), Code> {
        let state = self.gpus.get_mut(gpu).ok_or(Code::INVALID_ARGUMENT)?;
        state.after_reload(now_us);
        self.note_binding(gpu, system_kind::BIND, now_us);
        Ok(())
    }

    fn note_binding(&mut self, gpu: usize, kind: u64, now_us: u64) {
        self.events.push(Event {
            system: true,
            gpu,
            ..Event::new(kind, 0, now_us)
        });
    }

    /// Takes the driver away; IN_USE while a workload or a holder uses a GPU.
    pub fn unload_driver(&mut self, caller: u32) -> Result<(), Code> {
        if !self.workloads.is_empty() || self.has_holder(caller) {
            return Err(Code::IN_USE);
        }
        self.driver.state = DriverState::Unloaded;
        self.generation += 1;
        self.clients.clear();
        Ok(())
    }

    /// Brings the driver back: resetless MIG modes and all instances are gone.
    pub fn load_driver(&mut self, now_us: u64) {
        self.driver.state = DriverState::Loaded;
        self.driver.loaded_us = now_us;
        self.generation += 1;
        for gpu in &mut self.gpus {
            gpu.after_reload(now_us);
        }
    }

    /// Reboots: every process ends, GPUs that fell off the bus come back, links train and register anew; faults of calls
    /// stay, they are the experimenter's.
    pub fn reboot(&mut self, now_us: u64) {
        self.clients.clear();
        self.workloads.clear();
        self.boots += 1;
        for gpu in &mut self.gpus {
            gpu.health.fallen_at = None;
            gpu.mend();
        }
        self.load_driver(now_us);
    }
}
