//! How busy a GPU is. None of this is answered while the GPU is partitioned: then only GPM tells.

use nvml_wrapper_sys::bindings::{nvmlSample_t, nvmlUtilization_t, nvmlValue_t};

use super::{call::Call, export::exports, handle::Handle, pointer::Out};
use crate::{Code, model::counters::Reading};

/// Window over which media engines are averaged, microseconds.
const MEDIA_PERIOD_US: u32 = 167_000;

/// Distance of the driver's samples and how many it keeps.
const SAMPLE_PERIOD_US: u64 = 100_000;
const SAMPLES_KEPT: u64 = 100;

/// `NVML_VALUE_TYPE_UNSIGNED_INT`.
const VALUE_UINT: u32 = 1;

/// `nvmlSamplingType_t`.
const TOTAL_POWER: u32 = 0;
const GPU_UTILIZATION: u32 = 1;
const MEMORY_UTILIZATION: u32 = 2;
const ENCODER_UTILIZATION: u32 = 3;
const DECODER_UTILIZATION: u32 = 4;
const PROCESSOR_CLOCK: u32 = 5;
const MEMORY_CLOCK: u32 = 6;
const JPEG_UTILIZATION: u32 = 8;
const OFA_UTILIZATION: u32 = 9;

fn sampled(reading: &Reading, kind: u32) -> Option<u32> {
    Some(match kind {
        TOTAL_POWER => reading.power_mw,
        GPU_UTILIZATION => reading.gpu_percent,
        MEMORY_UTILIZATION => reading.memory_percent,
        ENCODER_UTILIZATION => reading.encoder_percent,
        DECODER_UTILIZATION => reading.decoder_percent,
        PROCESSOR_CLOCK => reading.clocks.graphics,
        MEMORY_CLOCK => reading.clocks.memory,
        JPEG_UTILIZATION => reading.jpeg_percent,
        OFA_UTILIZATION => reading.ofa_percent,
        _ => return None,
    })
}

/// The driver's samples newer than `last_seen_us`, oldest first. They reach back at most to the last change of load:
/// what a meter showed before it is not kept.
fn samples(call: &Call, kind: u32, last_seen_us: u64) -> Result<Vec<nvmlSample_t>, Code> {
    let gpu = call.gpu()?;
    let power_or_clock = matches!(kind, TOTAL_POWER | PROCESSOR_CLOCK | MEMORY_CLOCK);
    if gpu.mig.current && !power_or_clock {
        return Err(Code::NOT_SUPPORTED);
    }
    let position = call.position()?;
    let newest = call.now_us() / SAMPLE_PERIOD_US;
    let oldest = newest
        .saturating_sub(SAMPLES_KEPT - 1)
        .max(last_seen_us / SAMPLE_PERIOD_US + 1);
    let mut kept = Vec::new();
    for time in (oldest.max(gpu.meters.at_us.div_ceil(SAMPLE_PERIOD_US))..=newest)
        .map(|slot| slot * SAMPLE_PERIOD_US)
    {
        let value =
            sampled(&call.node().reading(position, time), kind).ok_or(Code::INVALID_ARGUMENT)?;
        kept.push(nvmlSample_t {
            timeStamp: time,
            sampleValue: nvmlValue_t { uiVal: value },
        });
    }
    if kept.is_empty() {
        Err(Code::NOT_FOUND)
    } else {
        Ok(kept)
    }
}

fn put_media(
    call: &Call,
    percent: fn(&Reading) -> u32,
    utilization: Out<u32>,
    period: Out<u32>,
) -> Result<(), Code> {
    call.whole_gpu()?;
    period.required()?;
    utilization.put(percent(&call.reading()?))?;
    period.put(MEDIA_PERIOD_US)
}

exports! {
    query nvmlDeviceGetUtilizationRates(
        device: Handle,
        utilization: Out<nvmlUtilization_t>,
    ) |call| {
        call.whole_gpu()?;
        let reading = call.reading()?;
        utilization.put(nvmlUtilization_t { gpu: reading.gpu_percent, memory: reading.memory_percent })
    };
    query nvmlDeviceGetEncoderUtilization(
        device: Handle,
        utilization: Out<u32>,
        samplingPeriodUs: Out<u32>,
    ) |call| {
        put_media(call, |reading| reading.encoder_percent, utilization, samplingPeriodUs)
    };
    query nvmlDeviceGetDecoderUtilization(
        device: Handle,
        utilization: Out<u32>,
        samplingPeriodUs: Out<u32>,
    ) |call| {
        put_media(call, |reading| reading.decoder_percent, utilization, samplingPeriodUs)
    };
    query nvmlDeviceGetJpgUtilization(
        device: Handle,
        utilization: Out<u32>,
        samplingPeriodUs: Out<u32>,
    ) |call| {
        put_media(call, |reading| reading.jpeg_percent, utilization, samplingPeriodUs)
    };
    query nvmlDeviceGetOfaUtilization(
        device: Handle,
        utilization: Out<u32>,
        samplingPeriodUs: Out<u32>,
    ) |call| {
        put_media(call, |reading| reading.ofa_percent, utilization, samplingPeriodUs)
    };
    query nvmlDeviceGetSamples(
        device: Handle,
        kind: u32,
        lastSeenTimeStamp: u64,
        sampleValType: Out<u32>,
        sampleCount: Out<u32>,
        samples: Out<nvmlSample_t>,
    ) |call| {
        sampleValType.required()?;
        let kept = self::samples(call, kind, lastSeenTimeStamp)?;
        sampleValType.put(VALUE_UINT)?;
        if samples.is_null() {
            // Without a buffer the answer is the size of the driver's own.
            return sampleCount.put(SAMPLES_KEPT as u32);
        }
        // As many as there is room for, the oldest first: the caller goes on from the last it got.
        let room = sampleCount.get()? as usize;
        if room == 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        let given = &kept[..room.min(kept.len())];
        sampleCount.put(given.len() as u32)?;
        samples.put_all(given.iter().copied())
    };

    // Video encoding sessions do not exist in the simulation; boards without encoders cannot have any.
    query nvmlDeviceGetEncoderCapacity(
        device: Handle,
        encoderQueryType: u32,
        encoderCapacity: Out<u32>,
    ) |call| {
        match (call.gpu()?.board.engines.encoder, encoderQueryType) {
            (0, _) => Err(Code::NOT_SUPPORTED),
            (_, 0..=2) => encoderCapacity.put(100),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    };
    query nvmlDeviceGetEncoderStats(
        device: Handle,
        sessionCount: Out<u32>,
        averageFps: Out<u32>,
        averageLatency: Out<u32>,
    ) |call| {
        if call.gpu()?.board.engines.encoder == 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        sessionCount.put(0)?;
        averageFps.put(0)?;
        averageLatency.put(0)
    };
}
