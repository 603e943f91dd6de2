//! What a GPU's meters show at a moment: pure functions of (seed, time, load).
//!
//! Rates hold between two changes of load; the integrals up to the last change are kept in the state, so a counter is its
//! kept value plus rate times elapsed time, in every process the same, and never falls. Instant readings carry a little
//! noise that depends on seed and time alone; integrals carry none.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Node, gpu::Gpu, load::Load, uuid};

/// Integrals up to a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Meters {
    /// The moment, microseconds of the node's clock.
    pub at_us: u64,
    /// Energy since the driver was loaded, microjoules.
    pub energy_uj: u64,
    /// Core temperature at the moment, degrees Celsius.
    pub temperature: f64,
    /// Activity of the whole GPU, summed over seconds.
    pub whole: Load,
    /// Activity of each GPU instance, summed over seconds.
    pub instances: BTreeMap<u32, Load>,
    /// PCIe replays.
    pub pcie_replays: u64,
    /// Time spent with clocks held down, microseconds: power, then thermal.
    pub violation_us: (u64, u64),
}

/// Bits of `nvmlClocksEventReasons`.
pub mod reason {
    /// Nothing runs.
    pub const IDLE: u64 = 0x1;
    /// Clocks are locked by a user.
    pub const CLOCKS_SETTING: u64 = 0x2;
    /// The power limit.
    pub const SW_POWER_CAP: u64 = 0x4;
    /// Any hardware slowdown.
    pub const HW_SLOWDOWN: u64 = 0x8;
    /// Software thermal slowdown.
    pub const SW_THERMAL: u64 = 0x20;
    /// Hardware thermal slowdown.
    pub const HW_THERMAL: u64 = 0x40;
    /// Power brake.
    pub const HW_POWER_BRAKE: u64 = 0x80;
}

/// Clocks at a moment, MHz.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockReading {
    /// Graphics, and SM which is the same domain.
    pub graphics: u32,
    /// Memory.
    pub memory: u32,
    /// Video.
    pub video: u32,
}

/// Everything that holds between two changes of load.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Activity of the whole GPU.
    pub whole: Load,
    /// Activity of each GPU instance.
    pub instances: BTreeMap<u32, Load>,
    /// Clocks.
    pub clocks: ClockReading,
    /// Clock event reasons.
    pub reasons: u64,
    /// Draw, milliwatts.
    pub power_mw: u32,
    /// Temperature it settles at, degrees Celsius.
    pub target: f64,
}

/// Instant readings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Time the multiprocessors were busy, percent.
    pub gpu_percent: u32,
    /// Time the memory was busy, percent.
    pub memory_percent: u32,
    /// Encoder, percent.
    pub encoder_percent: u32,
    /// Decoder, percent.
    pub decoder_percent: u32,
    /// JPEG, percent.
    pub jpeg_percent: u32,
    /// Optical flow, percent.
    pub ofa_percent: u32,
    /// Draw now, milliwatts.
    pub power_mw: u32,
    /// Draw averaged over a second, milliwatts.
    pub power_average_mw: u32,
    /// Core temperature, degrees Celsius.
    pub temperature: u32,
    /// Memory temperature, on boards with a sensor.
    pub memory_temperature: Option<u32>,
    /// Clocks.
    pub clocks: ClockReading,
    /// Clock event reasons.
    pub reasons: u64,
    /// Performance state: 0 under load, 8 idle.
    pub pstate: u32,
    /// PCIe from the GPU, KB/s.
    pub pcie_tx_kb_s: u32,
    /// PCIe to the GPU, KB/s.
    pub pcie_rx_kb_s: u32,
}

/// Time constant of the core temperature, seconds.
const THERMAL_SECONDS: f64 = 15.0;
/// Share of the full clock left under a hardware slowdown and under a software thermal slowdown.
const HW_SLOWDOWN_CLOCK: f64 = 0.5;
const SW_THERMAL_CLOCK: f64 = 0.75;
/// Noise changes this often, microseconds.
const NOISE_PERIOD_US: u64 = 100_000;

fn seconds_since(earlier_us: u64, now_us: u64) -> f64 {
    now_us.saturating_sub(earlier_us) as f64 / 1e6
}

/// A number in −1..1 that depends on seed, meter and time slot alone.
fn noise(seed: u64, gpu: &Gpu, meter: u64, now_us: u64) -> f64 {
    let slot = now_us / NOISE_PERIOD_US;
    let word = uuid::mix(seed ^ uuid::mix(u64::from(gpu.minor) << 8 | meter) ^ uuid::mix(slot));
    word as f64 / u64::MAX as f64 * 2.0 - 1.0
}

impl Node {
    /// What holds for a GPU as things are.
    pub fn rates(&self, position: usize) -> Rates {
        let Some(gpu) = self.gpus.get(position) else {
            return Rates::default();
        };
        let board = &gpu.board;
        let mut rates = Rates::default();
        rates.instances.extend(
            gpu.mig
                .instances
                .iter()
                .map(|instance| (instance.id, Load::default())),
        );
        let whole_sm = f64::from(board.multiprocessors.max(1));
        for workload in self.workloads_on(position) {
            let instance = workload.instance.and_then(|id| gpu.instance(id));
            let Some((instance, profile)) =
                instance.and_then(|found| Some((found, gpu.profile_of(found)?)))
            else {
                rates.whole = rates.whole.plus(workload.load, 1.0);
                continue;
            };
            let compute = workload.compute.and_then(|id| instance.compute_by_id(id));
            let compute_profile =
                compute.and_then(|compute| profile.compute_by_id(compute.profile));
            let sm =
                compute_profile.map_or(profile.multiprocessors, |compute| compute.multiprocessors);
            rates.whole = rates.whole.plus(workload.load, f64::from(sm) / whole_sm);
            let entry = rates.instances.entry(instance.id).or_default();
            *entry = entry.plus(
                workload.load,
                f64::from(sm) / f64::from(profile.multiprocessors.max(1)),
            );
        }
        self.settle_clocks(gpu, &mut rates);
        rates
    }

    fn settle_clocks(&self, gpu: &Gpu, rates: &mut Rates) {
        let (board, throttle) = (&gpu.board, &gpu.throttle);
        let busy = !rates.whole.is_idle();
        let mut ratio: f64 = 1.0;
        for (on, share, reason) in [
            (
                throttle.hw_thermal,
                HW_SLOWDOWN_CLOCK,
                reason::HW_THERMAL | reason::HW_SLOWDOWN,
            ),
            (
                throttle.power_brake,
                HW_SLOWDOWN_CLOCK,
                reason::HW_POWER_BRAKE | reason::HW_SLOWDOWN,
            ),
            (throttle.sw_thermal, SW_THERMAL_CLOCK, reason::SW_THERMAL),
            (throttle.power_cap, SW_THERMAL_CLOCK, reason::SW_POWER_CAP),
        ] {
            if on {
                ratio = ratio.min(share);
                rates.reasons |= reason;
            }
        }
        let idle_mw = f64::from(board.power.idle_mw);
        let span_mw = (f64::from(board.power.default_mw) - idle_mw).max(0.0);
        let demand = (0.8 * rates.whole.sm + 0.2 * rates.whole.dram).min(1.0) * span_mw;
        let room = (f64::from(gpu.modes.power_limit_mw) - idle_mw).max(0.0);
        if demand * ratio > room {
            ratio = room / demand;
            rates.reasons |= reason::SW_POWER_CAP;
        }
        let top = f64::from(board.clocks.graphics.max);
        let natural = if busy {
            (top * ratio) as u32
        } else {
            board.clocks.graphics.idle
        };
        rates.clocks.graphics = match gpu.modes.locked_graphics {
            Some((low, high)) => {
                rates.reasons |= reason::CLOCKS_SETTING;
                // A throttle holds against a lock: a lock raises an idle clock, never a throttled one.
                let floor = if rates.reasons & !reason::CLOCKS_SETTING == 0 {
                    low
                } else {
                    0
                };
                natural.clamp(floor.min(high), high)
            }
            None => natural,
        };
        rates.clocks.memory = match (busy, gpu.modes.locked_memory) {
            (_, Some((_, high))) => high.min(board.clocks.memory.max),
            (true, None) => board.clocks.memory.max,
            (false, None) => board.clocks.memory.idle,
        };
        rates.clocks.video = if busy {
            board.clocks.video.max
        } else {
            board.clocks.video.idle
        };
        if !busy {
            rates.reasons |= reason::IDLE;
        }
        let clock_share = if busy {
            f64::from(rates.clocks.graphics) / top.max(1.0)
        } else {
            0.0
        };
        rates.power_mw = (idle_mw + (demand * clock_share).min(room)) as u32;
        let thermal = &board.thermal;
        let heat = if span_mw > 0.0 {
            demand * clock_share / span_mw
        } else {
            0.0
        };
        rates.target =
            f64::from(thermal.idle) + heat * (f64::from(thermal.load) - f64::from(thermal.idle));
        if throttle.hw_thermal {
            rates.target = f64::from(thermal.slowdown);
        } else if throttle.sw_thermal {
            rates.target = f64::from(thermal.max_operating);
        }
    }

    /// The meters of a GPU at a moment.
    pub fn meters_at(&self, position: usize, now_us: u64) -> Meters {
        let Some(gpu) = self.gpus.get(position) else {
            return Meters::default();
        };
        advance(&gpu.meters, &self.rates(position), now_us)
    }

    /// What a GPU's sensors show at a moment.
    pub fn reading(&self, position: usize, now_us: u64) -> Reading {
        let Some(gpu) = self.gpus.get(position) else {
            return Reading::default();
        };
        let rates = self.rates(position);
        let wobble = |meter: u64| noise(self.seed, gpu, meter, now_us);
        // A busy meter wobbles by two points but neither leaves 1..100 nor moves off a full load.
        let percent = |fraction: f64, meter: u64| {
            if fraction <= 0.0 || fraction >= 1.0 {
                (fraction * 100.0) as u32
            } else {
                (fraction * 100.0 + 2.0 * wobble(meter))
                    .round()
                    .clamp(1.0, 100.0) as u32
            }
        };
        let power = f64::from(rates.power_mw);
        let limit = gpu.modes.power_limit_mw.max(gpu.board.power.idle_mw);
        let temperature = temperature_at(&gpu.meters, &rates, now_us);
        let kb_s = |mb_s: f64, meter: u64| (mb_s * 1000.0 * (1.0 + 0.02 * wobble(meter))) as u32;
        Reading {
            gpu_percent: percent(rates.whole.sm, 1),
            memory_percent: percent(rates.whole.dram, 2),
            encoder_percent: percent(rates.whole.encoder, 3),
            decoder_percent: percent(rates.whole.decoder, 4),
            jpeg_percent: percent(rates.whole.jpeg, 5),
            ofa_percent: percent(rates.whole.ofa, 6),
            power_mw: ((power * (1.0 + 0.01 * wobble(7))) as u32).min(limit),
            power_average_mw: rates.power_mw,
            temperature: temperature.round() as u32,
            memory_temperature: gpu
                .board
                .thermal
                .max_memory
                .map(|_| (temperature + 6.0).round() as u32),
            clocks: rates.clocks,
            reasons: rates.reasons,
            pstate: if rates.whole.is_idle() { 8 } else { 0 },
            pcie_tx_kb_s: kb_s(rates.whole.pcie_tx, 8),
            pcie_rx_kb_s: kb_s(rates.whole.pcie_rx, 9),
        }
    }

    /// Keeps what meters had counted under the old rates when a change gave a GPU new ones. `before` is the node before
    /// the change. A change that set the meters itself is left alone. Whether any were settled.
    pub fn settle(&mut self, before: &Node, now_us: u64) -> bool {
        let mut settled = false;
        for position in 0..self.gpus.len() {
            let Some(old) = before.gpus.get(position) else {
                continue;
            };
            if self.gpus[position].meters != old.meters
                || self.rates(position) == before.rates(position)
            {
                continue;
            }
            let mut meters = before.meters_at(position, now_us);
            let gpu = &mut self.gpus[position];
            meters
                .instances
                .retain(|id, _| gpu.mig.instances.iter().any(|instance| instance.id == *id));
            gpu.meters = meters;
            settled = true;
        }
        settled
    }
}

fn temperature_at(meters: &Meters, rates: &Rates, now_us: u64) -> f64 {
    let decay = (-seconds_since(meters.at_us, now_us) / THERMAL_SECONDS).exp();
    rates.target + (meters.temperature - rates.target) * decay
}

fn advance(meters: &Meters, rates: &Rates, now_us: u64) -> Meters {
    let elapsed_us = now_us.saturating_sub(meters.at_us);
    let seconds = seconds_since(meters.at_us, now_us);
    let instances = rates.instances.iter().map(|(id, load)| {
        let kept = meters.instances.get(id).copied().unwrap_or_default();
        (*id, kept.integrate(*load, seconds))
    });
    let held = |bits: u64| {
        if rates.reasons & bits != 0 {
            elapsed_us
        } else {
            0
        }
    };
    Meters {
        at_us: meters.at_us.max(now_us),
        // mW × µs is nJ; kept in whole µJ. The product fits 64 bits for 200 days at 1 kW, so go through 128.
        energy_uj: meters.energy_uj
            + u64::try_from(u128::from(rates.power_mw) * u128::from(elapsed_us) / 1000)
                .unwrap_or(u64::MAX / 2),
        temperature: temperature_at(meters, rates, now_us),
        whole: meters.whole.integrate(rates.whole, seconds),
        instances: instances.collect(),
        pcie_replays: meters.pcie_replays,
        violation_us: (
            meters.violation_us.0 + held(reason::SW_POWER_CAP | reason::HW_POWER_BRAKE),
            meters.violation_us.1 + held(reason::SW_THERMAL | reason::HW_THERMAL),
        ),
    }
}

#[cfg(test)]
mod tests;
