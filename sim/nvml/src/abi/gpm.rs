//! GPM: metrics of a whole GPU or of one GPU instance, as means between two samples.
//!
//! A sample is what the meters had counted at a moment; it belongs to this process. Of the metrics array only the entries
//! that the caller announces may be touched: the struct's array grew between headers.

use std::{
    collections::BTreeMap,
    ffi::{CStr, c_char},
    mem::offset_of,
    sync::{Mutex, MutexGuard, PoisonError},
};

use nvml_wrapper_sys::bindings::{
    nvmlGpmMetric_t, nvmlGpmMetric_t__bindgen_ty_1, nvmlGpmMetricsGet_t, nvmlGpmSupport_t,
};

use super::{
    call::{Call, Device},
    export::exports,
    handle::{Handle, Named},
    pointer::Out,
};
use crate::{
    Code,
    model::{Load, board::Engines},
};

/// `NVML_GPM_METRICS_GET_VERSION` and `NVML_GPM_SUPPORT_VERSION`: plain numbers, without the size.
const VERSION: u32 = 1;
/// More metrics than any header knows: a caller that announces more has passed something else.
const MOST_METRICS: u32 = 4096;
/// MB/s, in which meters count traffic, in MiB/s, in which GPM reports it.
const MIB_PER_MB: f64 = 1e6 / (1 << 20) as f64;

/// What the meters had counted at a moment.
#[derive(Clone)]
struct Sample {
    position: usize,
    instance: Option<u32>,
    time_us: u64,
    counted: Load,
    /// Engines of the GPU or the instance, and its links.
    engines: Engines,
    links: u32,
    c2c: bool,
}

/// The samples of this process; allocated ones are empty until they are taken.
struct Samples {
    next: u32,
    samples: BTreeMap<u32, Option<Sample>>,
}

static SAMPLES: Mutex<Samples> = Mutex::new(Samples {
    next: 1,
    samples: BTreeMap::new(),
});

fn samples() -> MutexGuard<'static, Samples> {
    SAMPLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees all samples: they belong to the library's use that ended.
pub(super) fn forget_samples() {
    samples().samples.clear();
}

fn sample_number(handle: Handle) -> Result<u32, Code> {
    match handle.named() {
        Some(Named::Sample { number }) => Ok(number),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// Takes a sample of the call's GPU, or of one of its instances, into an allocated place.
fn take(call: &Call, instance: Option<u32>, place: Handle) -> Result<(), Code> {
    let position = call.position()?;
    let gpu = call.device()?.physical();
    if !gpu.board.gpm {
        return Err(Code::NOT_SUPPORTED);
    }
    let time_us = call.now_us();
    let meters = call.node().meters_at(position, time_us);
    let (counted, engines) = match instance {
        None => (meters.whole, gpu.board.engines),
        Some(id) => {
            let found = gpu.instance(id).ok_or(Code::INVALID_ARGUMENT)?;
            let profile = gpu.profile_of(found).ok_or(Code::UNKNOWN)?;
            (
                meters.instances.get(&id).copied().unwrap_or_default(),
                profile.engines,
            )
        }
    };
    // The links of a partitioned GPU are shut.
    let links = if gpu.mig.current {
        0
    } else {
        gpu.links.len() as u32
    };
    let sample = Sample {
        position,
        instance,
        time_us,
        counted,
        engines,
        links,
        c2c: gpu.board.c2c,
    };
    let number = sample_number(place)?;
    *samples()
        .samples
        .get_mut(&number)
        .ok_or(Code::INVALID_ARGUMENT)? = Some(sample);
    Ok(())
}

fn taken<T>(pointer: *mut T) -> Result<Sample, Code> {
    let number = sample_number(Handle::from_pointer(pointer))?;
    samples()
        .samples
        .get(&number)
        .cloned()
        .flatten()
        .ok_or(Code::INVALID_ARGUMENT)
}

/// The value of a metric, from the mean rates between two samples of one device.
fn value(metric: u32, rates: &Load, sample: &Sample) -> Result<f64, Code> {
    let percent = |fraction: f64| Ok(fraction.clamp(0.0, 1.0) * 100.0);
    let traffic = |mb_per_s: f64| Ok(mb_per_s.max(0.0) * MIB_PER_MB);
    let engine = |first: u32, engines: u32, fraction: f64| {
        if metric - first < engines {
            percent(fraction)
        } else {
            Err(Code::NOT_SUPPORTED)
        }
    };
    let link = |first: u32, mb_per_s: f64| {
        let number = (metric - first) / 2;
        if number < sample.links {
            traffic(mb_per_s / f64::from(sample.links))
        } else {
            Err(Code::NOT_SUPPORTED)
        }
    };
    match metric {
        1 | 2 => percent(rates.sm),
        3 => percent(rates.occupancy),
        4 => percent(rates.integer),
        // The simulation has one kind of tensor work, half precision.
        5 | 7 => percent(rates.tensor),
        6 | 8 | 9 => percent(0.0),
        10 => percent(rates.dram),
        11 => percent(rates.fp64),
        12 => percent(rates.fp32),
        13 => percent(rates.fp16),
        20 => traffic(rates.pcie_tx),
        21 => traffic(rates.pcie_rx),
        30..=37 => engine(30, sample.engines.decoder, rates.decoder),
        40..=47 => engine(40, sample.engines.jpeg, rates.jpeg),
        50 | 51 => engine(50, sample.engines.ofa, rates.ofa),
        60 | 61 if sample.links == 0 => Err(Code::NOT_SUPPORTED),
        60 => traffic(rates.nvlink_rx),
        61 => traffic(rates.nvlink_tx),
        62..=97 if metric.is_multiple_of(2) => link(62, rates.nvlink_rx),
        62..=97 => link(63, rates.nvlink_tx),
        // Traffic to the CPU over C2C is not modelled; where there is such a link, it is idle.
        100..=159 if sample.c2c => Ok(0.0),
        166..=169 => engine(166, sample.engines.encoder, rates.encoder),
        0 => Err(Code::INVALID_ARGUMENT),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

/// Name and unit of a metric, where the interface has the caller print them.
fn description(metric: u32) -> Option<(&'static CStr, &'static CStr)> {
    Some(match metric {
        1 => (c"Graphics Util", c"%"),
        2 => (c"SM Util", c"%"),
        3 => (c"SM Occupancy", c"%"),
        4 => (c"Integer Util", c"%"),
        5 => (c"Tensor Util", c"%"),
        6 => (c"DFMA Tensor Util", c"%"),
        7 => (c"HMMA Tensor Util", c"%"),
        8 => (c"DMMA Tensor Util", c"%"),
        9 => (c"IMMA Tensor Util", c"%"),
        10 => (c"DRAM BW Util", c"%"),
        11 => (c"FP64 Util", c"%"),
        12 => (c"FP32 Util", c"%"),
        13 => (c"FP16 Util", c"%"),
        20 => (c"PCIe TX", c"MiB/s"),
        21 => (c"PCIe RX", c"MiB/s"),
        60 => (c"NVLink RX", c"MiB/s"),
        61 => (c"NVLink TX", c"MiB/s"),
        _ => return None,
    })
}

fn answered(asked: nvmlGpmMetric_t, result: Result<f64, Code>) -> nvmlGpmMetric_t {
    let (name, unit) = match description(asked.metricId) {
        Some((name, unit)) => (name.as_ptr().cast_mut(), unit.as_ptr().cast_mut()),
        None => (std::ptr::null_mut::<c_char>(), std::ptr::null_mut()),
    };
    nvmlGpmMetric_t {
        metricId: asked.metricId,
        nvmlReturn: result.err().unwrap_or(Code::SUCCESS).0,
        value: result.unwrap_or(0.0),
        metricInfo: nvmlGpmMetric_t__bindgen_ty_1 {
            shortName: name,
            longName: name,
            unit,
        },
    }
}

/// The part of `nvmlGpmMetricsGet_t` before the array.
#[repr(C)]
#[derive(Clone, Copy)]
struct Head {
    version: u32,
    metrics: u32,
    sample1: *mut std::ffi::c_void,
    sample2: *mut std::ffi::c_void,
}

exports! {
    query nvmlGpmQueryDeviceSupport(device: Handle, gpmSupport: Out<nvmlGpmSupport_t>) |call| {
        let supported = call.device()?.physical().board.gpm;
        if gpmSupport.get()?.version != VERSION {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        gpmSupport.put(nvmlGpmSupport_t { version: VERSION, isSupportedDevice: supported.into() })
    };
    query nvmlGpmSampleAlloc(gpmSample: Out<Handle>) |_| {
        let gpmSample = gpmSample.required()?;
        let mut samples = samples();
        let number = samples.next;
        samples.next += 1;
        samples.samples.insert(number, None);
        gpmSample.put(Handle::new(Named::Sample { number }, 0))
    };
    query nvmlGpmSampleFree(gpmSample: Handle) |_| {
        let number = sample_number(gpmSample)?;
        samples().samples.remove(&number).map(drop).ok_or(Code::INVALID_ARGUMENT)
    };
    query nvmlGpmSampleGet(device: Handle, gpmSample: Handle) |call| match call.device()? {
        Device::Gpu(_) => take(call, None, gpmSample),
        Device::Mig(mig) => take(call, Some(mig.instance.id), gpmSample),
    };
    query nvmlGpmMigSampleGet(device: Handle, gpuInstanceId: u32, gpmSample: Handle) |call| {
        if !call.gpu()?.mig.current {
            return Err(Code::NOT_SUPPORTED);
        }
        take(call, Some(gpuInstanceId), gpmSample)
    };
    query nvmlGpmMetricsGet(metricsGet: Out<nvmlGpmMetricsGet_t>) |_| {
        let head = metricsGet.cast::<Head>().get()?;
        if head.version != VERSION {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        if head.metrics > MOST_METRICS {
            return Err(Code::INVALID_ARGUMENT);
        }
        let (first, second) = (taken(head.sample1)?, taken(head.sample2)?);
        if (first.position, first.instance) != (second.position, second.instance) {
            return Err(Code::INVALID_ARGUMENT);
        }
        let seconds = second.time_us.saturating_sub(first.time_us) as f64 / 1e6;
        let rates = second.counted.mean_since(first.counted, seconds);
        let array = metricsGet.cast::<u8>().at(offset_of!(nvmlGpmMetricsGet_t, metrics)).cast::<nvmlGpmMetric_t>();
        for index in 0..head.metrics as usize {
            let asked = array.at(index).get()?;
            // Nothing can be said about an interval of no length.
            let result = if seconds > 0.0 { value(asked.metricId, &rates, &second) } else { Err(Code::NO_DATA) };
            array.at(index).put(answered(asked, result))?;
        }
        Ok(())
    };
    query nvmlGpmQueryIfStreamingEnabled(device: Handle, state: Out<u32>) |call| {
        let gpu = call.gpu()?;
        if gpu.board.gpm { state.put(gpu.modes.gpm_streaming.into()) } else { Err(Code::NOT_SUPPORTED) }
    };
    mutation nvmlGpmSetStreamingEnabled(device: Handle, state: u32) |call| {
        if !call.gpu()?.board.gpm {
            return Err(Code::NOT_SUPPORTED);
        }
        if state > 1 {
            return Err(Code::INVALID_ARGUMENT);
        }
        call.change(|gpu| gpu.modes.gpm_streaming = state == 1)
    };
}
