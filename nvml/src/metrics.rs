//! What is measured on a GPU. Values come in the driver's own units, named at each.

use nvml_wrapper_sys::bindings as sys;

use crate::device::Device;
use crate::error::{Error, Optional};
use crate::field::Field;
use crate::library::symbol;
use crate::plain::{Plain, version, zeroed};

/// A clock (`nvmlClockType_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Clock {
    /// Graphics.
    Graphics = 0,
    /// Streaming multiprocessors.
    Sm = 1,
    /// Memory.
    Memory = 2,
    /// Video engines.
    Video = 3,
}

/// A temperature limit (`nvmlTemperatureThresholds_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum TemperatureLimit {
    /// The GPU shuts down.
    Shutdown = 0,
    /// The GPU slows down.
    Slowdown = 1,
    /// Highest for memory in operation.
    MemoryMax = 2,
    /// Highest for the GPU in operation.
    GpuMax = 3,
}

/// Power limits in mW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Power {
    /// The limit in force.
    pub enforced: u32,
    /// Lowest that can be set.
    pub min: u32,
    /// Highest that can be set.
    pub max: u32,
    /// The board's own.
    pub default: u32,
}

/// Busy shares in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utilization {
    /// Time that a kernel ran.
    pub gpu: u32,
    /// Time that memory was read or written.
    pub memory: u32,
}

/// Memory rows that were replaced by spare ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemappedRows {
    /// Because of correctable errors.
    pub correctable: u32,
    /// Because of uncorrectable errors.
    pub uncorrectable: u32,
    /// A replacement waits for a reset.
    pub pending: bool,
    /// A replacement failed.
    pub failure: bool,
}

/// Banks of memory by how many spare rows they have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRemapHistogram {
    /// All spare rows left.
    pub max: u32,
    /// Many.
    pub high: u32,
    /// Some.
    pub partial: u32,
    /// Few.
    pub low: u32,
    /// None.
    pub none: u32,
}

/// The code of the vGPU entry among a guest's licensable features (`NVML_GRID_LICENSE_FEATURE_CODE_NVIDIA_RTX` and the
/// compute feature are other products).
const VGPU_FEATURE: u32 = 1;

impl Device<'_> {
    fn number<T: Plain>(
        &self,
        symbol: crate::library::Symbol<
            unsafe extern "C" fn(sys::nvmlDevice_t, *mut T) -> sys::nvmlReturn_t,
        >,
    ) -> Result<T, Error> {
        self.context.get_of(symbol, self.handle)
    }

    /// A clock now, in MHz.
    ///
    /// # Errors
    /// The call's.
    pub fn clock(&self, clock: Clock) -> Result<u32, Error> {
        let library = self.context.library;
        let symbol = symbol!(library, nvmlDeviceGetClockInfo);
        self.context.get_with(symbol, self.handle, clock as u32)
    }

    /// The highest that a clock can be, in MHz.
    ///
    /// # Errors
    /// The call's.
    pub fn max_clock(&self, clock: Clock) -> Result<u32, Error> {
        let library = self.context.library;
        let symbol = symbol!(library, nvmlDeviceGetMaxClockInfo);
        self.context.get_with(symbol, self.handle, clock as u32)
    }

    /// Why the clocks are below their highest: bits (`nvmlClocksEventReason*`).
    ///
    /// # Errors
    /// The calls'.
    pub fn clock_reasons(&self) -> Result<u64, Error> {
        let library = self.context.library;
        let read = self.number(symbol!(library, nvmlDeviceGetCurrentClocksEventReasons));
        match read.optional()? {
            Some(bits) => Ok(bits),
            // Its older name.
            None => self.number(symbol!(library, nvmlDeviceGetCurrentClocksThrottleReasons)),
        }
    }

    /// Performance state, 0 (fastest) to 15.
    ///
    /// # Errors
    /// The call's.
    pub fn performance_state(&self) -> Result<u32, Error> {
        let library = self.context.library;
        self.number(symbol!(library, nvmlDeviceGetPerformanceState))
    }

    /// Temperature of the GPU in °C.
    ///
    /// # Errors
    /// The calls'.
    pub fn temperature(&self) -> Result<i32, Error> {
        let library = self.context.library;
        let request = sys::nvmlTemperature_t {
            version: version::<sys::nvmlTemperature_t>(1),
            // NVML_TEMPERATURE_GPU, the only sensor there is.
            sensorType: 0,
            ..zeroed()
        };
        let symbol = symbol!(library, nvmlDeviceGetTemperatureV);
        match self.context.fill(symbol, self.handle, request).optional()? {
            Some(read) => Ok(read.temperature),
            // The older call, deprecated in the 13.3 header.
            None => {
                let symbol = symbol!(library, nvmlDeviceGetTemperature);
                let read: u32 = self.context.get_with(symbol, self.handle, 0)?;
                Ok(read as i32)
            }
        }
    }

    /// Temperature of the memory in °C.
    ///
    /// # Errors
    /// The call's or the field's.
    pub fn memory_temperature(&self) -> Result<u32, Error> {
        let value = self.field(Field::MEMORY_TEMPERATURE)?;
        Ok(value.low_u32())
    }

    /// A temperature limit in °C.
    ///
    /// # Errors
    /// The call's.
    pub fn temperature_limit(&self, limit: TemperatureLimit) -> Result<u32, Error> {
        let library = self.context.library;
        let symbol = symbol!(library, nvmlDeviceGetTemperatureThreshold);
        self.context.get_with(symbol, self.handle, limit as u32)
    }

    /// Power drawn, in mW.
    ///
    /// # Errors
    /// The call's.
    pub fn power_usage(&self) -> Result<u32, Error> {
        let library = self.context.library;
        self.number(symbol!(library, nvmlDeviceGetPowerUsage))
    }

    /// Power limits.
    ///
    /// # Errors
    /// The calls'.
    pub fn power_limits(&self) -> Result<Power, Error> {
        let library = self.context.library;
        let (min, max) = self.context.get_two(
            symbol!(library, nvmlDeviceGetPowerManagementLimitConstraints),
            self.handle,
        )?;
        Ok(Power {
            enforced: self.number(symbol!(library, nvmlDeviceGetEnforcedPowerLimit))?,
            min,
            max,
            default: self.number(symbol!(library, nvmlDeviceGetPowerManagementDefaultLimit))?,
        })
    }

    /// Energy used since the driver was loaded or the GPU reset, in mJ.
    ///
    /// # Errors
    /// The call's.
    pub fn energy(&self) -> Result<u64, Error> {
        let library = self.context.library;
        self.number(symbol!(library, nvmlDeviceGetTotalEnergyConsumption))
    }

    /// PCIe packets sent again.
    ///
    /// # Errors
    /// The call's.
    pub fn pcie_replays(&self) -> Result<u32, Error> {
        let library = self.context.library;
        self.number(symbol!(library, nvmlDeviceGetPcieReplayCounter))
    }

    /// Busy shares of the GPU; `NOT_SUPPORTED` in MIG mode.
    ///
    /// # Errors
    /// The call's.
    pub fn utilization(&self) -> Result<Utilization, Error> {
        let library = self.context.library;
        let read: sys::nvmlUtilization_t =
            self.number(symbol!(library, nvmlDeviceGetUtilizationRates))?;
        Ok(Utilization {
            gpu: read.gpu,
            memory: read.memory,
        })
    }

    /// Busy share of the video encoders in percent; `NOT_SUPPORTED` in MIG mode.
    ///
    /// # Errors
    /// The call's.
    pub fn encoder_utilization(&self) -> Result<u32, Error> {
        let library = self.context.library;
        self.engine(symbol!(library, nvmlDeviceGetEncoderUtilization))
    }

    /// Busy share of the video decoders in percent; `NOT_SUPPORTED` in MIG mode.
    ///
    /// # Errors
    /// The call's.
    pub fn decoder_utilization(&self) -> Result<u32, Error> {
        let library = self.context.library;
        self.engine(symbol!(library, nvmlDeviceGetDecoderUtilization))
    }

    /// Busy share of the JPEG engines in percent; `NOT_SUPPORTED` in MIG mode.
    ///
    /// # Errors
    /// The call's.
    pub fn jpeg_utilization(&self) -> Result<u32, Error> {
        let library = self.context.library;
        self.engine(symbol!(library, nvmlDeviceGetJpgUtilization))
    }

    /// Busy share of the optical-flow engines in percent; `NOT_SUPPORTED` in MIG mode.
    ///
    /// # Errors
    /// The call's.
    pub fn ofa_utilization(&self) -> Result<u32, Error> {
        let library = self.context.library;
        self.engine(symbol!(library, nvmlDeviceGetOfaUtilization))
    }

    fn engine(
        &self,
        symbol: crate::library::Symbol<
            unsafe extern "C" fn(sys::nvmlDevice_t, *mut u32, *mut u32) -> sys::nvmlReturn_t,
        >,
    ) -> Result<u32, Error> {
        let (percent, _period_us) = self.context.get_two(symbol, self.handle)?;
        Ok(percent)
    }

    /// Fan speed in percent of its highest; may exceed 100.
    ///
    /// # Errors
    /// The call's; boards without fans have none.
    pub fn fan_speed(&self, fan: u32) -> Result<u32, Error> {
        let library = self.context.library;
        let symbol = symbol!(library, nvmlDeviceGetFanSpeed_v2);
        self.context.get_with(symbol, self.handle, fan)
    }

    /// Remapped memory rows; `NOT_SUPPORTED` while MIG instances exist and before Ampere.
    ///
    /// # Errors
    /// The calls'.
    pub fn remapped_rows(&self) -> Result<RemappedRows, Error> {
        let library = self.context.library;
        let read = self
            .context
            .get_of(library.remapped_rows_v2, self.handle)
            .optional()?;
        if let Some(rows) = read {
            return Ok(RemappedRows {
                correctable: rows.correctable_active + rows.correctable_inactive,
                uncorrectable: rows.uncorrectable_active + rows.uncorrectable_inactive,
                pending: rows.pending != 0,
                failure: rows.failure != 0,
            });
        }
        let (mut correctable, mut uncorrectable, mut pending, mut failure) = (0, 0, 0, 0);
        let symbol = symbol!(library, nvmlDeviceGetRemappedRows);
        // SAFETY: the four results are valid for the call.
        self.context.call(symbol, |f| unsafe {
            f(
                self.handle,
                &raw mut correctable,
                &raw mut uncorrectable,
                &raw mut pending,
                &raw mut failure,
            )
        })?;
        Ok(RemappedRows {
            correctable,
            uncorrectable,
            pending: pending != 0,
            failure: failure != 0,
        })
    }

    /// Memory banks by the spare rows they have left.
    ///
    /// # Errors
    /// The call's.
    pub fn row_remap_histogram(&self) -> Result<RowRemapHistogram, Error> {
        let library = self.context.library;
        let read: sys::nvmlRowRemapperHistogramValues_t =
            self.number(symbol!(library, nvmlDeviceGetRowRemapperHistogram))?;
        Ok(RowRemapHistogram {
            max: read.max,
            high: read.high,
            partial: read.partial,
            low: read.low,
            none: read.none,
        })
    }

    /// ECC errors of the whole GPU: corrected or not, since driver load or over the GPU's life.
    ///
    /// # Errors
    /// The call's; `NOT_SUPPORTED` with ECC off.
    pub fn ecc_errors(&self, uncorrected: bool, lifetime: bool) -> Result<u64, Error> {
        let library = self.context.library;
        let symbol = symbol!(library, nvmlDeviceGetTotalEccErrors);
        let (kind, counter) = (u32::from(uncorrected), u32::from(lifetime));
        let mut count = 0;
        // SAFETY: the result is valid for the call.
        self.context.call(symbol, |f| unsafe {
            f(self.handle, kind, counter, &raw mut count)
        })?;
        Ok(count)
    }

    /// Whether a vGPU guest holds its licence. Absent outside of guests.
    ///
    /// # Errors
    /// The call's.
    pub fn vgpu_licensed(&self) -> Result<Option<bool>, Error> {
        let library = self.context.library;
        let read: Option<sys::nvmlGridLicensableFeatures_t> = self
            .number(symbol!(library, nvmlDeviceGetGridLicensableFeatures_v4))
            .optional()?;
        Ok(read
            .filter(|features| features.isGridLicenseSupported != 0)
            .and_then(|features| {
                features
                    .gridLicensableFeatures
                    .iter()
                    .take(features.licensableFeaturesCount as usize)
                    .find(|feature| feature.featureCode == VGPU_FEATURE)
                    .map(|feature| feature.featureState != 0)
            }))
    }
}
