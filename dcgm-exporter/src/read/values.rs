//! The values of a GPU and of its instances, in the order of the families.
//!
//! A call that gives several values is made once. Who the entities are is none of this file's affairs.

use nvml::{Error, Field, Optional as _};

use super::{Instance, Reader};
use crate::convert::{
    celsius, driver_clock, field_value, gpm_value, int, memory_value, rows_value,
};
use crate::fields::{Level, Source, Utilisation};
use crate::rates::{Count, nvlink_mb_per_second};
use crate::state::GpmValues;
use crate::value::Value;

/// KiB sent and KiB received over NVLink, payload only (`NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX`, `…_RX`).
const NVLINK_DATA: [u32; 2] = [138, 139];

impl Reader<'_, '_> {
    /// The GPU's values. Those that only make sense for the whole GPU are read only when it is an entity.
    pub(super) fn gpu_values(&mut self, whole: bool) -> Result<Vec<Option<Value>>, Error> {
        let plan = self.plan;
        let mut values = self.field_values()?;
        let (mut utilisation, mut memory, mut rows, mut gpm) = (None, None, None, None);
        for (i, counter) in plan.counters.families.iter().enumerate() {
            if !whole && counter.field.level != Level::Gpu {
                continue;
            }
            let device = self.device;
            let value = match counter.field.source {
                Source::FieldValue { .. } => continue,
                Source::Text(_) | Source::Nothing => None,
                Source::Clock(clock) => int(self.value(device.clock(driver_clock(clock)))?),
                Source::Temperature => self.value(device.temperature())?.and_then(celsius),
                Source::Power => self
                    .value(device.power_usage())?
                    .map(|mw| Value::Double(f64::from(mw) / 1000.0)),
                Source::Energy => self.value(device.energy())?.map(Value::Int),
                Source::PcieReplays => int(self.value(device.pcie_replays())?),
                Source::Utilisation(Utilisation::Encoder) => {
                    int(self.value(device.encoder_utilization())?)
                }
                Source::Utilisation(Utilisation::Decoder) => {
                    int(self.value(device.decoder_utilization())?)
                }
                Source::Utilisation(kind) => {
                    let both = match utilisation {
                        Some(read) => read,
                        None => *utilisation.insert(self.value(device.utilization())?),
                    };
                    int(both.map(|both| {
                        if kind == Utilisation::Gpu {
                            both.gpu
                        } else {
                            both.memory
                        }
                    }))
                }
                Source::Memory(part) => {
                    let read = match memory {
                        Some(read) => read,
                        None => *memory.insert(self.value(device.memory())?),
                    };
                    read.and_then(|read| memory_value(read, part))
                }
                Source::RemappedRows(kind) => {
                    let read = match rows {
                        Some(read) => read,
                        None => *rows.insert(self.value(device.remapped_rows())?),
                    };
                    read.map(|read| rows_value(read, kind))
                }
                Source::NvlinkRate => self.nvlink()?.map(Value::Int),
                Source::Gpm { scale, .. } => {
                    if gpm.is_none() {
                        gpm = Some(self.gpm(None)?);
                    }
                    gpm_value(
                        &plan.counters,
                        gpm.as_ref().and_then(Option::as_ref),
                        i,
                        scale,
                    )
                }
                Source::LastXid => self.state.xid(device.uuid(), None).map(Value::Xid),
                Source::Licence => self
                    .value(device.vgpu_licensed())?
                    .flatten()
                    .map(|held| Value::Int(held.into())),
            };
            values[i] = value;
        }
        Ok(values)
    }

    /// All families that are a field value, with one call.
    fn field_values(&mut self) -> Result<Vec<Option<Value>>, Error> {
        let families = &self.plan.counters.families;
        let mut values = vec![None; families.len()];
        let mut asked = Vec::new();
        for (i, counter) in families.iter().enumerate() {
            if let Source::FieldValue { id, scale } = counter.field.source {
                asked.push((i, Field::new(id), scale));
            }
        }
        if asked.is_empty() {
            return Ok(values);
        }
        let fields: Vec<Field> = asked.iter().map(|&(_, field, _)| field).collect();
        let answers = self.value(self.device.fields(&fields))?.unwrap_or_default();
        for ((i, _, scale), answer) in asked.into_iter().zip(answers) {
            // Which fields a board answers is its own affair, so a code here is an absent value whatever it says.
            let Ok(answer) = answer else { continue };
            values[i] = field_value(answer, scale);
        }
        Ok(values)
    }

    fn nvlink(&mut self) -> Result<Option<u64>, Error> {
        let device = self.device;
        let fields = NVLINK_DATA.map(|id| Field::scoped(id, nvml::ALL_LINKS));
        let read = || {
            let answers = device.fields(&fields)?;
            let [Ok(sent), Ok(received)] = answers[..] else {
                return Ok(None);
            };
            let value = sent.as_u64().saturating_add(received.as_u64());
            Ok(Some(Count {
                value,
                at_us: received.timestamp_us,
            }))
        };
        let rate = self.windows.nvlink.advance(self.now, read, |older, newer| {
            Ok(nvlink_mb_per_second(*older, *newer))
        });
        Ok(self.value(rate)?.flatten())
    }

    /// GPM values of the GPU or of one instance; `None` before there are two samples, and on GPUs without GPM.
    fn gpm(&mut self, instance: Option<u32>) -> Result<Option<GpmValues>, Error> {
        let (device, metrics) = (self.device, &self.plan.metrics);
        let window = self.windows.gpm.entry(instance).or_default();
        window.keep_if(|older| device.knows(older));
        let read = || device.gpm_sample(instance).readable();
        let values = window.advance(self.now, read, |older, newer| {
            let answers = device.gpm_metrics(older, newer, metrics).readable()?;
            // Which metrics a GPU or an instance has is its own affair: a code is an absent value.
            Ok(answers.map(|answers| answers.into_iter().map(Result::ok).collect()))
        });
        Ok(self.value(values)?.flatten())
    }

    pub(super) fn instance_values(
        &mut self,
        instance: &Instance<'_>,
        gpu: &[Option<Value>],
    ) -> Result<Vec<Option<Value>>, Error> {
        let plan = self.plan;
        let (mut memory, mut gpm) = (None, None);
        let mut values = Vec::with_capacity(gpu.len());
        for (i, (counter, gpu)) in plan.counters.families.iter().zip(gpu).enumerate() {
            values.push(match (counter.field.level, counter.field.source) {
                (Level::Gpu, _) => *gpu,
                (Level::GpuOnly, _) => None,
                (Level::Instance, Source::Memory(part)) => {
                    let read = match memory {
                        Some(read) => read,
                        None => *memory.insert(self.value(instance.device.memory())?),
                    };
                    read.and_then(|read| memory_value(read, part))
                }
                (Level::Instance, Source::Gpm { scale, .. }) => {
                    if gpm.is_none() {
                        gpm = Some(self.gpm(Some(instance.id))?);
                    }
                    gpm_value(
                        &plan.counters,
                        gpm.as_ref().and_then(Option::as_ref),
                        i,
                        scale,
                    )
                }
                (Level::Instance, Source::LastXid) => self
                    .state
                    .xid(self.device.uuid(), Some(instance.id))
                    .map(Value::Xid),
                (Level::Instance, _) => None,
            });
        }
        Ok(values)
    }
}
