//! GPM: activity of a GPU or GPU instance between two samples (Hopper and later).
//!
//! The driver's samples are memory of the library. They are pooled: a dropped sample is used again, and all are freed
//! when the library is shut down, so no driver call hides in a `drop`.

use std::sync::{Arc, Mutex};

use nvml_wrapper_sys::bindings as sys;

use crate::Code;
use crate::device::Device;
use crate::error::Error;
use crate::lane::lock;
use crate::library::symbol;
use crate::plain::zeroed;

/// `NVML_GPM_METRIC_MAX` of the 13.3 header. The array grew between headers without a new version of the structure, so
/// there must always be room for the longest; the driver touches only the first `numMetrics`.
const METRIC_MAX: usize = 333;

/// `NVML_GPM_METRICS_GET_VERSION` and `NVML_GPM_SUPPORT_VERSION`: plain numbers, not the size form.
const VERSION: u32 = 1;

/// `nvmlGpmMetricsGet_t` with room for the longest metric list. Everything before the array is the bindings' layout.
#[repr(C)]
struct MetricsGet {
    version: u32,
    count: u32,
    older: sys::nvmlGpmSample_t,
    newer: sys::nvmlGpmSample_t,
    metrics: [sys::nvmlGpmMetric_t; METRIC_MAX],
}

/// Ids of the GPM metrics that Lathe reads (`NVML_GPM_METRIC_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpmMetric(pub u32);

impl GpmMetric {
    /// Share of time that any engine was busy, in percent.
    pub const GRAPHICS_UTIL: Self = Self(1);
    /// Share of SMs that were busy, in percent.
    pub const SM_UTIL: Self = Self(2);
    /// Warps resident of those possible, in percent.
    pub const SM_OCCUPANCY: Self = Self(3);
    /// Share of time that any tensor pipe was active, in percent.
    pub const ANY_TENSOR_UTIL: Self = Self(5);
    /// Memory bandwidth used, in percent.
    pub const DRAM_BW_UTIL: Self = Self(10);
    /// Double-precision pipe, in percent.
    pub const FP64_UTIL: Self = Self(11);
    /// Single-precision pipe, in percent.
    pub const FP32_UTIL: Self = Self(12);
    /// Half-precision pipe, in percent.
    pub const FP16_UTIL: Self = Self(13);
    /// PCIe bytes sent, in MiB/s.
    pub const PCIE_TX: Self = Self(20);
    /// PCIe bytes received, in MiB/s.
    pub const PCIE_RX: Self = Self(21);
    /// NVLink bytes received by all links, in MiB/s. Receiving has the lower id.
    pub const NVLINK_RX: Self = Self(60);
    /// NVLink bytes sent by all links, in MiB/s.
    pub const NVLINK_TX: Self = Self(61);
}

/// Samples of one opening of the library.
#[derive(Default)]
pub(crate) struct SamplePool {
    state: Mutex<Pool>,
}

#[derive(Default)]
struct Pool {
    /// Every sample allocated, as addresses.
    all: Vec<usize>,
    /// Those nobody uses.
    free: Vec<usize>,
}

impl SamplePool {
    /// Hands out every sample for freeing; none can be used afterwards.
    pub(crate) fn drain(&self) -> Vec<sys::nvmlGpmSample_t> {
        let mut pool = lock(&self.state);
        pool.free.clear();
        std::mem::take(&mut pool.all)
            .into_iter()
            .map(|address| address as sys::nvmlGpmSample_t)
            .collect()
    }
}

/// One look at the counters of a GPU or GPU instance. Two of them give metrics: [`Device::gpm_metrics`].
///
/// It may be kept and sent between threads; after a driver restart it is refused.
pub struct GpmSample {
    pool: Arc<SamplePool>,
    address: usize,
}

impl std::fmt::Debug for GpmSample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GpmSample")
    }
}

impl Drop for GpmSample {
    fn drop(&mut self) {
        let mut pool = lock(&self.pool.state);
        // After a shutdown the pool is empty: there is nothing to give back.
        if pool.all.contains(&self.address) {
            pool.free.push(self.address);
        }
    }
}

impl Device<'_> {
    /// Whether the GPU has GPM.
    ///
    /// # Errors
    /// The call's.
    pub fn gpm_supported(&self) -> Result<bool, Error> {
        let library = self.context.library;
        let request = sys::nvmlGpmSupport_t {
            version: VERSION,
            ..zeroed()
        };
        let read = self.context.fill(
            symbol!(library, nvmlGpmQueryDeviceSupport),
            self.handle,
            request,
        )?;
        Ok(read.isSupportedDevice != 0)
    }

    /// Samples the GPU, or one GPU instance of it.
    ///
    /// # Errors
    /// The calls'; `NOT_SUPPORTED` before Hopper.
    pub fn gpm_sample(&self, gpu_instance: Option<u32>) -> Result<GpmSample, Error> {
        let context = self.context;
        let library = context.library;
        let sample = self.new_sample()?;
        let raw = sample.address as sys::nvmlGpmSample_t;
        match gpu_instance {
            // SAFETY: the sample was allocated by this opening of the library and nobody else uses it.
            None => context.call(symbol!(library, nvmlGpmSampleGet), |f| unsafe {
                f(self.handle, raw)
            })?,
            // SAFETY: as above.
            Some(id) => context.call(symbol!(library, nvmlGpmMigSampleGet), |f| unsafe {
                f(self.handle, id, raw)
            })?,
        }
        Ok(sample)
    }

    /// Whether a sample was taken since the driver last came up, so that metrics can be made of it.
    pub fn knows(&self, sample: &GpmSample) -> bool {
        Arc::ptr_eq(&sample.pool, &self.context.library.samples)
    }

    fn new_sample(&self) -> Result<GpmSample, Error> {
        let library = self.context.library;
        let pool = Arc::clone(&library.samples);
        if let Some(address) = lock(&pool.state).free.pop() {
            return Ok(GpmSample {
                pool: Arc::clone(&pool),
                address,
            });
        }
        let raw = self.context.get(symbol!(library, nvmlGpmSampleAlloc))?;
        let address = raw as usize;
        lock(&pool.state).all.push(address);
        Ok(GpmSample { pool, address })
    }

    /// The metrics between two samples of the same GPU or GPU instance, in the order asked; not-a-number is
    /// [`Code::NO_DATA`]. The samples should lie at least 100 ms apart.
    ///
    /// # Errors
    /// When the whole call fails; `INVALID_ARGUMENT` for samples from before a driver restart.
    pub fn gpm_metrics(
        &self,
        older: &GpmSample,
        newer: &GpmSample,
        metrics: &[GpmMetric],
    ) -> Result<Vec<Result<f64, Code>>, Error> {
        let symbol = symbol!(self.context.library, nvmlGpmMetricsGet);
        if !self.knows(older) || !self.knows(newer) || metrics.len() > METRIC_MAX {
            return Err(self.context.error(symbol.name, Code::INVALID_ARGUMENT));
        }
        let mut request = MetricsGet {
            version: VERSION,
            count: metrics.len() as u32,
            older: older.address as sys::nvmlGpmSample_t,
            newer: newer.address as sys::nvmlGpmSample_t,
            metrics: [EMPTY; METRIC_MAX],
        };
        for (slot, metric) in request.metrics.iter_mut().zip(metrics) {
            slot.metricId = metric.0;
        }
        let pointer = (&raw mut request).cast::<sys::nvmlGpmMetricsGet_t>();
        // SAFETY: ours starts like the bindings' structure and is at least as long, so the driver stays inside it; both
        // samples belong to this opening of the library.
        self.context.call(symbol, |f| unsafe { f(pointer) })?;
        let read = request.metrics.iter().take(metrics.len());
        Ok(read
            .map(|metric| match Code(metric.nvmlReturn) {
                Code::SUCCESS if metric.value.is_finite() => Ok(metric.value),
                Code::SUCCESS => Err(Code::NO_DATA),
                code => Err(code),
            })
            .collect())
    }
}

const EMPTY: sys::nvmlGpmMetric_t = sys::nvmlGpmMetric_t {
    metricId: 0,
    nvmlReturn: 0,
    value: 0.0,
    metricInfo: sys::nvmlGpmMetric_t__bindgen_ty_1 {
        shortName: std::ptr::null_mut(),
        longName: std::ptr::null_mut(),
        unit: std::ptr::null_mut(),
    },
};

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::mem::offset_of;

    use super::*;

    /// Size and offsets of the 13.3 header.
    #[test]
    fn the_structure_follows_the_longest_header() {
        assert_eq!(size_of::<MetricsGet>(), 13344);
        assert_eq!(offset_of!(MetricsGet, older), 8);
        assert_eq!(offset_of!(MetricsGet, metrics), 24);
        assert_eq!(size_of::<sys::nvmlGpmMetric_t>(), 40);
        assert!(size_of::<MetricsGet>() >= size_of::<sys::nvmlGpmMetricsGet_t>());
    }

    #[test]
    fn a_dropped_sample_is_used_again_until_the_library_goes() {
        let pool = Arc::new(SamplePool::default());
        lock(&pool.state).all.push(0x1000);
        let sample = || GpmSample {
            pool: Arc::clone(&pool),
            address: 0x1000,
        };
        drop(sample());
        assert_eq!(lock(&pool.state).free, [0x1000]);
        let late = sample();
        assert_eq!(pool.drain().len(), 1);
        drop(late);
        assert!(lock(&pool.state).free.is_empty());
        assert!(pool.drain().is_empty());
    }
}
