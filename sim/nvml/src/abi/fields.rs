//! Field values: one call for many numbers, each with its own code.
//!
//! Field ids are the header's; those from 251 on were renumbered in the drivers of CUDA 13 update 1, and are brought back
//! to the earlier numbers here. Fields the simulation does not know answer NOT_SUPPORTED, each for itself.

use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlValue_t};

use super::{call::Call, export::exports, handle::Handle, pointer::Out};
use crate::{
    Code,
    model::{
        FieldScheme, Gpu,
        board::NvLinkSpec,
        counters::{Meters, Reading},
        health::Recovery,
        nvlink::{Link, LinkErrors, Remote},
    },
};

/// Highest id of the header.
const HIGHEST: u32 = 273;
/// Scope of a link counter: all links.
const ALL_LINKS: u32 = u32::MAX;
/// NVLink version from which a link counts packets and symbol errors (`nvmlNvlinkVersion_t`: 5.0).
const COUNTING_NVLINK: u32 = 7;
/// Bytes of an NVLink packet's payload.
const PACKET_BYTES: u64 = 256;

/// A value with its `nvmlValueType_t`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Uint(u32),
    Ulonglong(u64),
    Int(i32),
}

impl Value {
    fn number(self) -> u32 {
        match self {
            Value::Uint(_) => 1,
            Value::Ulonglong(_) => 3,
            Value::Int(_) => 5,
        }
    }

    fn union(self) -> nvmlValue_t {
        // Smaller members leave the rest of the union as it is, so start from zero.
        let mut union = nvmlValue_t { ullVal: 0 };
        match self {
            Value::Uint(value) => union.uiVal = value,
            Value::Ulonglong(value) => union.ullVal = value,
            Value::Int(value) => union.siVal = value,
        }
        union
    }
}

/// What every field of one call is computed from.
struct Sources<'a> {
    gpu: &'a Gpu,
    reading: Reading,
    meters: Meters,
}

/// The id in the numbering of CUDA 12.
fn canonical(scheme: FieldScheme, id: u32) -> u32 {
    match (scheme, id) {
        (FieldScheme::Thirteen, 251..=268) => id + 5,
        (FieldScheme::Thirteen, 269..=273) => id - 18,
        _ => id,
    }
}

fn flag(value: bool) -> Result<Value, Code> {
    Ok(Value::Uint(value.into()))
}

/// Bytes behind an integral of MB/s over seconds.
fn bytes(megabytes: f64) -> u64 {
    (megabytes * 1e6) as u64
}

impl Sources<'_> {
    fn field(&self, id: u32, scope: u32) -> Result<Value, Code> {
        let gpu = self.gpu;
        match id {
            1..=28 => self.ecc(id),
            29 | 30 | 31 | 92 | 93 => {
                if gpu.board.ecc && gpu.board.row_remap_banks.is_none() {
                    Ok(Value::Uint(0))
                } else {
                    Err(Code::NOT_SUPPORTED)
                }
            }
            74 => Ok(Value::Ulonglong(self.meters.violation_us.0 * 1000)),
            75 | 251 => Ok(Value::Ulonglong(self.meters.violation_us.1 * 1000)),
            76..=81 => Ok(Value::Ulonglong(0)),
            82 => self
                .reading
                .memory_temperature
                .map(Value::Uint)
                .ok_or(Code::NOT_SUPPORTED),
            83 | 191 => Ok(Value::Ulonglong(self.meters.energy_uj / 1000)),
            94 => Ok(Value::Uint(self.meters.pcie_replays as u32)),
            // Rollovers of the replay counter, then errors of the link by kind: none is modelled, none happened.
            95 | 169 | 173..=183 => Ok(Value::Uint(0)),
            142..=145 => self.remapped(id),
            184 => Ok(Value::Uint(gpu.mig_spec()?.resetless.into())),
            185..=190 | 192 if scope != 0 => Err(Code::NOT_SUPPORTED),
            185 => Ok(Value::Uint(self.reading.power_average_mw)),
            186 => Ok(Value::Uint(self.reading.power_mw)),
            187 => Ok(Value::Uint(gpu.board.power.min_mw)),
            188 => Ok(Value::Uint(gpu.board.power.max_mw)),
            189 => Ok(Value::Uint(gpu.board.power.default_mw)),
            190 | 192 => Ok(Value::Uint(gpu.modes.power_limit_mw)),
            193..=196 => {
                let limit = gpu.board.thermal.limit.ok_or(Code::NOT_SUPPORTED)?;
                Ok(Value::Int(match id {
                    193 => limit.shutdown,
                    194 => limit.slowdown,
                    _ => limit.max_operating,
                }))
            }
            197 => Ok(Value::Ulonglong(bytes(self.meters.whole.pcie_tx))),
            198 => Ok(Value::Ulonglong(bytes(self.meters.whole.pcie_rx))),
            // Whether profiles can be asked for with MIG off.
            199 => {
                gpu.mig_spec()?;
                flag(true)
            }
            226 => flag(gpu.recovery() == Recovery::Reset),
            227 => flag(gpu.recovery() == Recovery::DrainAndReset),
            230 => Ok(Value::Uint(gpu.recovery().number())),
            231..=233 if gpu.board.c2c => Ok(Value::Uint(0)),
            0 => Err(Code::INVALID_ARGUMENT),
            id if id > HIGHEST => Err(Code::INVALID_ARGUMENT),
            id => self.nvlink(id, scope),
        }
    }

    fn ecc(&self, id: u32) -> Result<Value, Code> {
        let gpu = self.gpu;
        let ecc = &gpu.ecc;
        match id {
            _ if !gpu.board.ecc => Err(Code::NOT_SUPPORTED),
            1 => flag(ecc.current),
            2 => flag(ecc.pending),
            _ if !ecc.current => Err(Code::NOT_SUPPORTED),
            3 => Ok(Value::Ulonglong(ecc.volatile.corrected())),
            4 => Ok(Value::Ulonglong(ecc.volatile.uncorrected())),
            5 => Ok(Value::Ulonglong(ecc.aggregate.corrected())),
            6 => Ok(Value::Ulonglong(ecc.aggregate.uncorrected())),
            11 => Ok(Value::Ulonglong(ecc.volatile.dram_corrected)),
            12 => Ok(Value::Ulonglong(ecc.volatile.dram_uncorrected)),
            22 => Ok(Value::Ulonglong(ecc.aggregate.dram_corrected)),
            23 => Ok(Value::Ulonglong(ecc.aggregate.dram_uncorrected)),
            // Caches and register files one by one, which only generations before Ampere tell.
            _ => Err(Code::NOT_SUPPORTED),
        }
    }

    fn remapped(&self, id: u32) -> Result<Value, Code> {
        let gpu = self.gpu;
        if gpu.board.row_remap_banks.is_none() || !gpu.mig.instances.is_empty() {
            return Err(Code::NOT_SUPPORTED);
        }
        match id {
            142 => Ok(Value::Uint(gpu.remap.correctable)),
            143 => Ok(Value::Uint(gpu.remap.uncorrectable)),
            144 => flag(gpu.remap.pending > 0),
            _ => flag(gpu.remap.failure),
        }
    }

    /// Fields of NVLinks. Early ones have the link in the id, later ones in the scope.
    fn nvlink(&self, id: u32, scope: u32) -> Result<Value, Code> {
        let gpu = self.gpu;
        let spec = gpu
            .board
            .nvlink
            .filter(|_| !gpu.mig.current)
            .ok_or(Code::NOT_SUPPORTED)?;
        let sum = |of: fn(&LinkErrors) -> u64| {
            Value::Ulonglong(gpu.links.iter().map(|link| of(&link.errors)).sum())
        };
        let one = |number: u32, of: fn(&LinkErrors) -> u64| {
            let link = self.link(number)?;
            Ok(Value::Ulonglong(of(&link.errors)))
        };
        let scoped = |of: fn(&LinkErrors) -> u64| {
            if scope == ALL_LINKS {
                Ok(sum(of))
            } else {
                one(scope, of)
            }
        };
        let speed = |number: u32| {
            let up = self.link(number)?.up;
            Ok(Value::Uint(if up { spec.mb_per_s } else { 0 }))
        };
        match id {
            32..=37 => one(id - 32, |errors| errors.crc_flit),
            96..=101 => one(id - 96 + 6, |errors| errors.crc_flit),
            38 => Ok(sum(|errors| errors.crc_flit)),
            39..=44 => one(id - 39, |errors| errors.crc_data),
            102..=107 => one(id - 102 + 6, |errors| errors.crc_data),
            45 => Ok(sum(|errors| errors.crc_data)),
            46..=51 => one(id - 46, |errors| errors.replay),
            108..=113 => one(id - 108 + 6, |errors| errors.replay),
            52 => Ok(sum(|errors| errors.replay)),
            53..=58 => one(id - 53, |errors| errors.recovery),
            114..=119 => one(id - 114 + 6, |errors| errors.recovery),
            59 => Ok(sum(|errors| errors.recovery)),
            84..=89 => speed(id - 84),
            132..=137 => speed(id - 132 + 6),
            90 => Ok(Value::Uint(spec.mb_per_s)),
            91 => Ok(Value::Uint(gpu.links.len() as u32)),
            // KiB; the raw counters include headers, one part in eight more.
            138 => Ok(Value::Ulonglong(
                self.link_bytes(scope, self.meters.whole.nvlink_tx)? / 1024,
            )),
            139 => Ok(Value::Ulonglong(
                self.link_bytes(scope, self.meters.whole.nvlink_rx)? / 1024,
            )),
            140 => Ok(Value::Ulonglong(
                self.link_bytes(scope, self.meters.whole.nvlink_tx * 1.125)? / 1024,
            )),
            141 => Ok(Value::Ulonglong(
                self.link_bytes(scope, self.meters.whole.nvlink_rx * 1.125)? / 1024,
            )),
            146 => self.link(scope).map(|_| Value::Uint(scope)),
            147 => {
                let switched = |link: &&Link| link.up && matches!(link.remote, Remote::Switch(_));
                Ok(Value::Uint(gpu.links.iter().filter(switched).count() as u32))
            }
            148..=159 => one(id - 148, |_| 0),
            160 => Ok(Value::Ulonglong(0)),
            161 => scoped(|errors| errors.replay),
            162 => scoped(|errors| errors.recovery),
            163 => scoped(|errors| errors.crc_flit + errors.crc_data),
            164 => speed(scope),
            165 => flag(self.link(scope)?.up),
            166 => self.link(scope).map(|_| Value::Uint(spec.version)),
            // Full power: links of the simulation never sleep.
            167 => self.link(scope).map(|_| Value::Uint(0)),
            201..=222 | 235..=250 => self.counting_link(id, scope, spec),
            _ => Err(Code::NOT_SUPPORTED),
        }
    }

    /// Counters that links have from NVLink 5 on.
    fn counting_link(&self, id: u32, scope: u32, spec: NvLinkSpec) -> Result<Value, Code> {
        if spec.version < COUNTING_NVLINK {
            return Err(Code::NOT_SUPPORTED);
        }
        let errors = self.link(scope)?.errors;
        let sent = self.link_bytes(scope, self.meters.whole.nvlink_tx)?;
        let received = self.link_bytes(scope, self.meters.whole.nvlink_rx)?;
        Ok(Value::Ulonglong(match id {
            201 => sent / PACKET_BYTES,
            202 => sent,
            203 => received / PACKET_BYTES,
            204 => received,
            208 => errors.crc_data,
            213 | 215 => errors.recovery,
            219 => errors.crc_flit,
            221 => errors.crc_flit,
            _ => 0,
        }))
    }

    fn link(&self, number: u32) -> Result<&Link, Code> {
        self.gpu
            .links
            .get(number as usize)
            .ok_or(Code::INVALID_ARGUMENT)
    }

    /// Bytes over one link or over all: traffic spreads evenly over the links.
    fn link_bytes(&self, scope: u32, megabytes: f64) -> Result<u64, Code> {
        if scope == ALL_LINKS {
            return Ok(bytes(megabytes));
        }
        self.link(scope)?;
        Ok(bytes(megabytes / self.gpu.links.len() as f64))
    }
}

fn check(count: i32, values: Out<nvmlFieldValue_t>) -> Result<usize, Code> {
    values.required()?;
    usize::try_from(count)
        .ok()
        .filter(|count| *count > 0)
        .ok_or(Code::INVALID_ARGUMENT)
}

fn get(call: &Call, count: i32, values: Out<nvmlFieldValue_t>) -> Result<(), Code> {
    let sources = Sources {
        gpu: call.gpu()?,
        reading: call.reading()?,
        meters: call.meters()?,
    };
    let scheme = call.node().field_scheme();
    for index in 0..check(count, values)? {
        let asked = values.at(index).get()?;
        let result = sources.field(canonical(scheme, asked.fieldId), asked.scopeId);
        let value = result.unwrap_or(Value::Uint(0));
        values.at(index).put(nvmlFieldValue_t {
            timestamp: call.now_us() as i64,
            latencyUsec: 0,
            valueType: value.number(),
            nvmlReturn: result.err().unwrap_or(Code::SUCCESS).0,
            value: value.union(),
            ..asked
        })?;
    }
    Ok(())
}

/// Only error counters of links can be cleared.
fn clear(call: &Call, count: i32, values: Out<nvmlFieldValue_t>) -> Result<(), Code> {
    let links = call.gpu()?.links.len();
    for index in 0..check(count, values)? {
        let asked = values.at(index).get()?;
        let result = match (asked.fieldId, asked.scopeId) {
            (161..=163, scope) if scope == ALL_LINKS || (scope as usize) < links => {
                call.change(|gpu| {
                    for (number, link) in gpu.links.iter_mut().enumerate() {
                        if scope == ALL_LINKS || scope as usize == number {
                            link.errors = LinkErrors::default();
                        }
                    }
                })
            }
            (161..=163, _) => Err(Code::INVALID_ARGUMENT),
            _ => Err(Code::NOT_SUPPORTED),
        };
        values.at(index).put(nvmlFieldValue_t {
            nvmlReturn: result.err().unwrap_or(Code::SUCCESS).0,
            ..asked
        })?;
    }
    Ok(())
}

exports! {
    query nvmlDeviceGetFieldValues(
        device: Handle,
        valuesCount: i32,
        values: Out<nvmlFieldValue_t>,
    ) |call| {
        get(call, valuesCount, values)
    };
    mutation nvmlDeviceClearFieldValues(
        device: Handle,
        valuesCount: i32,
        values: Out<nvmlFieldValue_t>,
    ) |call| {
        clear(call, valuesCount, values)
    };
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// 251–255 of CUDA 12 are 269–273 from driver 580.82 on, 256–273 are 251–268.
    #[rstest]
    #[case(FieldScheme::Twelve, 251, 251)]
    #[case(FieldScheme::Thirteen, 269, 251)]
    #[case(FieldScheme::Thirteen, 273, 255)]
    #[case(FieldScheme::Thirteen, 251, 256)]
    #[case(FieldScheme::Thirteen, 268, 273)]
    #[case(FieldScheme::Thirteen, 230, 230)]
    fn renumbered_fields(#[case] scheme: FieldScheme, #[case] id: u32, #[case] expected: u32) {
        assert_eq!(canonical(scheme, id), expected);
    }
}
