//! Clocks, performance states and what holds clocks down.

use nvml_wrapper_sys::bindings::{
    nvmlGpuDynamicPstatesInfo_st__bindgen_ty_1, nvmlGpuDynamicPstatesInfo_t, nvmlViolationTime_t,
};

use super::{
    call::Call,
    export::exports,
    handle::Handle,
    pointer::{Out, put_list},
};
use crate::{
    Code,
    model::{
        Gpu,
        board::{ClockRange, Clocks},
        counters::ClockReading,
    },
};

/// `nvmlClockType_t`.
const GRAPHICS: u32 = 0;
const SM: u32 = 1;
const MEMORY: u32 = 2;
const VIDEO: u32 = 3;

/// `nvmlClockId_t`.
const CURRENT: u32 = 0;
const APPLICATION_TARGET: u32 = 1;
const APPLICATION_DEFAULT: u32 = 2;
const CUSTOMER_BOOST_MAX: u32 = 3;

/// Driver branch from which application clocks answer DEPRECATED.
const APPLICATION_CLOCKS_GONE: u32 = 590;

/// Distance of supported graphics clocks, MHz.
const GRAPHICS_STEP: u32 = 15;

/// Every bit of `nvmlClocksEventReasons`.
const ALL_REASONS: u64 = 0x1FF;

/// From this value on a locked clock is a limit (`nvmlClockLimitId_t`), not a frequency.
const LIMITS_FROM: u32 = 0xFFFF_FF00;

/// `NVML_PSTATE_UNKNOWN`.
const PSTATE_UNKNOWN: u32 = 32;
/// The states the simulated boards use: full speed and idle.
const PSTATES: [u32; 2] = [0, 8];

fn range(clocks: &Clocks, domain: u32) -> Result<ClockRange, Code> {
    match domain {
        GRAPHICS | SM => Ok(clocks.graphics),
        MEMORY => Ok(clocks.memory),
        VIDEO => Ok(clocks.video),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

fn current(clocks: &ClockReading, domain: u32) -> Result<u32, Code> {
    match domain {
        GRAPHICS | SM => Ok(clocks.graphics),
        MEMORY => Ok(clocks.memory),
        VIDEO => Ok(clocks.video),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// Application clocks: the default is the highest clock, and nobody changed it.
fn application(call: &Call, domain: u32) -> Result<u32, Code> {
    if call.node().driver.major() >= APPLICATION_CLOCKS_GONE {
        return Err(Code::DEPRECATED);
    }
    match domain {
        VIDEO => Err(Code::NOT_SUPPORTED),
        domain => Ok(range(&call.gpu()?.board.clocks, domain)?.max),
    }
}

/// Memory clocks of a board, highest first.
fn memory_clocks(gpu: &Gpu) -> Vec<u32> {
    let ClockRange { idle, max } = gpu.board.clocks.memory;
    if idle == max {
        vec![max]
    } else {
        vec![max, idle]
    }
}

/// A lock within what a board can do; a limit stands for the highest clock.
fn lock(range: ClockRange, low: u32, high: u32) -> Result<(u32, u32), Code> {
    let frequency = |value: u32| {
        if value >= LIMITS_FROM {
            range.max
        } else {
            value.clamp(range.idle, range.max)
        }
    };
    if low < LIMITS_FROM && high < LIMITS_FROM && low > high {
        return Err(Code::INVALID_ARGUMENT);
    }
    Ok((frequency(low).min(frequency(high)), frequency(high)))
}

fn reasons(call: &Call, out: Out<u64>) -> Result<(), Code> {
    out.put(call.reading()?.reasons)
}

fn supported_reasons(call: &Call, out: Out<u64>) -> Result<(), Code> {
    call.gpu()?;
    out.put(ALL_REASONS)
}

exports! {
    query nvmlDeviceGetClockInfo(device: Handle, kind: u32, clock: Out<u32>) |call| {
        clock.put(current(&call.reading()?.clocks, kind)?)
    };
    query nvmlDeviceGetMaxClockInfo(device: Handle, kind: u32, clock: Out<u32>) |call| {
        clock.put(range(&call.gpu()?.board.clocks, kind)?.max)
    };
    query nvmlDeviceGetClock(
        device: Handle,
        clockType: u32,
        clockId: u32,
        clockMHz: Out<u32>,
    ) |call| match clockId {
        CURRENT => clockMHz.put(current(&call.reading()?.clocks, clockType)?),
        APPLICATION_TARGET | APPLICATION_DEFAULT => clockMHz.put(application(call, clockType)?),
        CUSTOMER_BOOST_MAX => clockMHz.put(range(&call.gpu()?.board.clocks, clockType)?.max),
        _ => Err(Code::INVALID_ARGUMENT),
    };
    query nvmlDeviceGetMaxCustomerBoostClock(
        device: Handle,
        clockType: u32,
        clockMHz: Out<u32>,
    ) |call| {
        clockMHz.put(range(&call.gpu()?.board.clocks, clockType)?.max)
    };
    query nvmlDeviceGetApplicationsClock(
        device: Handle,
        clockType: u32,
        clockMHz: Out<u32>,
    ) |call| {
        clockMHz.put(application(call, clockType)?)
    };
    query nvmlDeviceGetDefaultApplicationsClock(
        device: Handle,
        clockType: u32,
        clockMHz: Out<u32>,
    ) |call| {
        clockMHz.put(application(call, clockType)?)
    };
    query nvmlDeviceGetSupportedMemoryClocks(
        device: Handle,
        count: Out<u32>,
        clocksMHz: Out<u32>,
    ) |call| {
        put_list(clocksMHz, count, &memory_clocks(call.gpu()?))
    };
    query nvmlDeviceGetSupportedGraphicsClocks(
        device: Handle,
        memoryClockMHz: u32,
        count: Out<u32>,
        clocksMHz: Out<u32>,
    ) |call| {
        let gpu = call.gpu()?;
        if !memory_clocks(gpu).contains(&memoryClockMHz) {
            return Err(Code::NOT_FOUND);
        }
        let ClockRange { idle, max } = gpu.board.clocks.graphics;
        let count_of_steps = max.saturating_sub(idle) / GRAPHICS_STEP;
        let steps: Vec<u32> = (0..=count_of_steps).map(|step| max - step * GRAPHICS_STEP).collect();
        put_list(clocksMHz, count, &steps)
    };
    mutation nvmlDeviceSetGpuLockedClocks(
        device: Handle,
        minGpuClockMHz: u32,
        maxGpuClockMHz: u32,
    ) |call| {
        let locked = lock(call.gpu()?.board.clocks.graphics, minGpuClockMHz, maxGpuClockMHz)?;
        call.change(|gpu| gpu.modes.locked_graphics = Some(locked))
    };
    mutation nvmlDeviceResetGpuLockedClocks(device: Handle) |call| {
        call.gpu()?;
        call.change(|gpu| gpu.modes.locked_graphics = None)
    };
    mutation nvmlDeviceSetMemoryLockedClocks(
        device: Handle,
        minMemClockMHz: u32,
        maxMemClockMHz: u32,
    ) |call| {
        let locked = lock(call.gpu()?.board.clocks.memory, minMemClockMHz, maxMemClockMHz)?;
        call.change(|gpu| gpu.modes.locked_memory = Some(locked))
    };
    mutation nvmlDeviceResetMemoryLockedClocks(device: Handle) |call| {
        call.gpu()?;
        call.change(|gpu| gpu.modes.locked_memory = None)
    };
    query nvmlDeviceGetPerformanceState(
        device: Handle,
        pState: Out<u32>,
    ) |call| pState.put(call.reading()?.pstate);
    query nvmlDeviceGetPowerState(
        device: Handle,
        pState: Out<u32>,
    ) |call| pState.put(call.reading()?.pstate);
    // `size` counts bytes.
    query nvmlDeviceGetSupportedPerformanceStates(
        device: Handle,
        pstates: Out<u32>,
        size: u32,
    ) |call| {
        call.gpu()?;
        let room = size as usize / size_of::<u32>();
        if room < PSTATES.len() {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        pstates.put_all(PSTATES.into_iter().chain(std::iter::repeat(PSTATE_UNKNOWN)).take(room))
    };
    query nvmlDeviceGetMinMaxClockOfPState(
        device: Handle,
        kind: u32,
        pstate: u32,
        minClockMHz: Out<u32>,
        maxClockMHz: Out<u32>,
    ) |call| {
        let ClockRange { idle, max } = range(&call.gpu()?.board.clocks, kind)?;
        let (low, high) = match pstate {
            0 => (idle, max),
            8 => (idle, idle),
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        minClockMHz.put(low)?;
        maxClockMHz.put(high)
    };
    query nvmlDeviceGetDynamicPstatesInfo(
        device: Handle,
        pDynamicPstatesInfo: Out<nvmlGpuDynamicPstatesInfo_t>,
    ) |call| {
        call.whole_gpu()?;
        let reading = call.reading()?;
        let absent = nvmlGpuDynamicPstatesInfo_st__bindgen_ty_1 {
            bIsPresent: 0,
            percentage: 0,
            incThreshold: 0,
            decThreshold: 0,
        };
        let mut utilization = [absent; 8];
        // Domains: graphics engine, frame buffer, video engine.
        let percentages = [reading.gpu_percent, reading.memory_percent, reading.decoder_percent];
        for (slot, percentage) in utilization.iter_mut().zip(percentages) {
            *slot = nvmlGpuDynamicPstatesInfo_st__bindgen_ty_1 { bIsPresent: 1, percentage, ..absent };
        }
        pDynamicPstatesInfo.put(nvmlGpuDynamicPstatesInfo_t { flags: 0, utilization })
    };
    query nvmlDeviceGetCurrentClocksEventReasons(
        device: Handle,
        clocksEventReasons: Out<u64>,
    ) |call| {
        reasons(call, clocksEventReasons)
    };
    query nvmlDeviceGetCurrentClocksThrottleReasons(
        device: Handle,
        clocksThrottleReasons: Out<u64>,
    ) |call| {
        reasons(call, clocksThrottleReasons)
    };
    query nvmlDeviceGetSupportedClocksEventReasons(
        device: Handle,
        supportedClocksEventReasons: Out<u64>,
    ) |call| {
        supported_reasons(call, supportedClocksEventReasons)
    };
    query nvmlDeviceGetSupportedClocksThrottleReasons(
        device: Handle,
        supportedClocksThrottleReasons: Out<u64>,
    ) |call| {
        supported_reasons(call, supportedClocksThrottleReasons)
    };
    // Reference in microseconds, violation in nanoseconds.
    query nvmlDeviceGetViolationStatus(
        device: Handle,
        perfPolicyType: u32,
        violTime: Out<nvmlViolationTime_t>,
    ) |call| {
        let meters = call.meters()?;
        let held_us = match perfPolicyType {
            0 => meters.violation_us.0,
            1 => meters.violation_us.1,
            2..=5 | 10 | 11 => 0,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        violTime.put(nvmlViolationTime_t { referenceTime: call.now_us(), violationTime: held_us * 1000 })
    };
}
