//! Temperatures, thresholds and fans. Degrees Celsius.

use nvml_wrapper_sys::bindings::{
    nvmlGpuThermalSettings_t, nvmlGpuThermalSettings_t__bindgen_ty_1, nvmlMarginTemperature_v1_t,
    nvmlTemperature_v1_t,
};

use super::{
    call::Call,
    export::exports,
    handle::Handle,
    pointer::Out,
    structs::{check_version, put_versioned},
};
use crate::{Code, model::Gpu};

/// `NVML_TEMPERATURE_GPU`, the only sensor.
const SENSOR_GPU: u32 = 0;

/// `NVML_THERMAL_TARGET_ALL`; other values of `sensorIndex` are indices of sensors, of which there is one.
const ALL_SENSORS: u32 = 15;
/// `NVML_THERMAL_CONTROLLER_GPU_INTERNAL` and `NVML_THERMAL_TARGET_GPU`.
const CONTROLLER_INTERNAL: i32 = 1;
const TARGET_GPU: i32 = 1;

/// Fan speed at rest, percent, and the temperature up to which it stays there.
const FAN_REST: u32 = 30;
const FAN_REST_UNTIL: u32 = 40;

fn threshold(gpu: &Gpu, kind: u32) -> Result<u32, Code> {
    let spec = &gpu.board.thermal;
    match kind {
        0 => Ok(spec.shutdown),
        1 => Ok(spec.slowdown),
        2 => spec.max_memory.ok_or(Code::NOT_SUPPORTED),
        3 => Ok(spec.max_operating),
        // Acoustic limits and the GPS mode belong to desktop boards.
        4..=7 => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

fn fan_speed(call: &Call, fan: u32) -> Result<u32, Code> {
    match call.gpu()?.board.fans {
        0 => Err(Code::NOT_SUPPORTED),
        fans if fan >= fans => Err(Code::INVALID_ARGUMENT),
        _ => Ok((FAN_REST + call.reading()?.temperature.saturating_sub(FAN_REST_UNTIL)).min(100)),
    }
}

/// Degrees left until the operating limit, on boards that measure so.
pub(super) fn margin(call: &Call) -> Result<i32, Code> {
    let thermal = &call.gpu()?.board.thermal;
    thermal.limit.ok_or(Code::NOT_SUPPORTED)?;
    Ok(thermal.max_operating as i32 - call.reading()?.temperature as i32)
}

exports! {
    query nvmlDeviceGetTemperature(device: Handle, sensorType: u32, temp: Out<u32>) |call| {
        let reading = call.reading()?;
        if sensorType == SENSOR_GPU { temp.put(reading.temperature) } else { Err(Code::INVALID_ARGUMENT) }
    };
    query nvmlDeviceGetTemperatureV(device: Handle, temperature: Out<nvmlTemperature_v1_t>) |call| {
        check_version(temperature, 1)?;
        let asked = temperature.get()?;
        let reading = call.reading()?;
        if asked.sensorType != SENSOR_GPU {
            return Err(Code::INVALID_ARGUMENT);
        }
        temperature.put(nvmlTemperature_v1_t { temperature: reading.temperature as i32, ..asked })
    };
    query nvmlDeviceGetTemperatureThreshold(
        device: Handle,
        thresholdType: u32,
        temp: Out<u32>,
    ) |call| {
        temp.put(threshold(call.gpu()?, thresholdType)?)
    };
    query nvmlDeviceGetMarginTemperature(
        device: Handle,
        marginTempInfo: Out<nvmlMarginTemperature_v1_t>,
    ) |call| {
        let left = margin(call)?;
        put_versioned(marginTempInfo, 1, |version| nvmlMarginTemperature_v1_t { version, marginTemperature: left })
    };
    query nvmlDeviceGetThermalSettings(
        device: Handle,
        sensorIndex: u32,
        pThermalSettings: Out<nvmlGpuThermalSettings_t>,
    ) |call| {
        let gpu = call.gpu()?;
        if sensorIndex != 0 && sensorIndex != ALL_SENSORS {
            return Err(Code::INVALID_ARGUMENT);
        }
        let sensor = nvmlGpuThermalSettings_t__bindgen_ty_1 {
            controller: CONTROLLER_INTERNAL,
            defaultMinTemp: 0,
            defaultMaxTemp: gpu.board.thermal.shutdown as i32,
            currentTemp: call.reading()?.temperature as i32,
            target: TARGET_GPU,
        };
        let none = nvmlGpuThermalSettings_t__bindgen_ty_1 {
            controller: 0,
            defaultMinTemp: 0,
            defaultMaxTemp: 0,
            currentTemp: 0,
            target: 0,
        };
        pThermalSettings.put(nvmlGpuThermalSettings_t { count: 1, sensor: [sensor, none, none] })
    };
    query nvmlDeviceGetNumFans(
        device: Handle,
        numFans: Out<u32>,
    ) |call| numFans.put(call.gpu()?.board.fans);
    query nvmlDeviceGetFanSpeed(
        device: Handle,
        speed: Out<u32>,
    ) |call| speed.put(fan_speed(call, 0)?);
    query nvmlDeviceGetFanSpeed_v2(
        device: Handle,
        fan: u32,
        speed: Out<u32>,
    ) |call| speed.put(fan_speed(call, fan)?);
}
