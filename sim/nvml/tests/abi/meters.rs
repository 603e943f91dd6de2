//! Sensors, counters, field values and GPM.

use std::time::Duration;

use nvml_wrapper_sys::bindings::*;
use rstest::rstest;
use sim_nvml::{
    Code,
    admin::WorkloadSpec,
    model::{
        Load,
        health::{EccError, Throttle},
    },
    presets::NodeSpec,
};

use crate::driver::{Driver, code, get};

fn field(driver: &Driver, gpu: nvmlDevice_t, id: u32, scope: u32) -> Result<u64, Code> {
    let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
    value.fieldId = id;
    value.scopeId = scope;
    assert_eq!(
        code!(driver, nvmlDeviceGetFieldValues(gpu, 1, &mut value)),
        Code::SUCCESS
    );
    match Code(value.nvmlReturn) {
        // SAFETY: the library zeroes the union before it writes a member.
        Code::SUCCESS => Ok(unsafe { value.value.ullVal }),
        code => Err(code),
    }
}

fn run(driver: &Driver, instance: Option<(u32, u32)>, load: Load) {
    driver
        .node
        .run_workload(WorkloadSpec {
            memory_mib: 2048,
            load,
            instance,
            ..WorkloadSpec::default()
        })
        .unwrap();
    settled(driver);
}

/// Meters stand still after a change, for up to 20 s where the writer was held up.
fn settled(driver: &Driver) {
    driver.node.step(Duration::from_secs(30)).unwrap();
}

#[test]
fn load_shows_in_every_sensor() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.gpu(0);
    let idle = get!(driver, nvmlDeviceGetPowerUsage(gpu)).unwrap();
    assert_eq!(
        get!(driver, nvmlDeviceGetUtilizationRates(gpu))
            .unwrap()
            .gpu,
        0
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetCurrentClocksEventReasons(gpu)).unwrap() & 1,
        1,
        "idle"
    );
    run(
        &driver,
        None,
        Load {
            sm: 1.0,
            dram: 1.0,
            ..Load::default()
        },
    );
    driver.node.step(Duration::from_secs(120)).unwrap();
    let rates = get!(driver, nvmlDeviceGetUtilizationRates(gpu)).unwrap();
    assert_eq!((rates.gpu, rates.memory), (100, 100));
    assert_eq!(get!(driver, nvmlDeviceGetClockInfo(gpu, 0)), Ok(1980));
    assert_eq!(get!(driver, nvmlDeviceGetPerformanceState(gpu)), Ok(0));
    let power = get!(driver, nvmlDeviceGetPowerUsage(gpu)).unwrap();
    assert!(power > idle * 2 && power <= 700_000, "{idle} to {power}");
    assert_eq!(
        get!(driver, nvmlDeviceGetMemoryInfo(gpu)).unwrap().used >> 20,
        480 + 2048
    );
}

#[test]
fn energy_is_power_over_time() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.gpu(0);
    let watts = get!(driver, nvmlDeviceGetPowerUsage(gpu)).unwrap() / 1000;
    let before = get!(driver, nvmlDeviceGetTotalEnergyConsumption(gpu)).unwrap();
    driver.node.step(Duration::from_secs(1000)).unwrap();
    let joules = (get!(driver, nvmlDeviceGetTotalEnergyConsumption(gpu)).unwrap() - before) / 1000;
    // A little real time passes too.
    let expected = u64::from(watts) * 1000;
    assert!(
        joules + 50 >= expected && joules <= expected * 11 / 10,
        "{joules} J at {watts} W"
    );
    let total = || get!(driver, nvmlDeviceGetTotalEnergyConsumption(gpu)).unwrap();
    let (before, told, after) = (total(), field(&driver, gpu, 83, 0).unwrap(), total());
    assert!((before..=after).contains(&told), "{before} {told} {after}");
}

#[test]
fn a_throttled_gpu_says_why_and_slows_down() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.gpu(0);
    run(
        &driver,
        None,
        Load {
            sm: 1.0,
            ..Load::default()
        },
    );
    driver
        .node
        .throttle(
            0,
            Throttle {
                hw_thermal: true,
                ..Throttle::default()
            },
        )
        .unwrap();
    let reasons = get!(driver, nvmlDeviceGetCurrentClocksEventReasons(gpu)).unwrap();
    // Hardware slowdown 0x8 and its thermal cause 0x40.
    assert_eq!(reasons & 0x48, 0x48);
    assert_eq!(
        get!(driver, nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
        Ok(reasons)
    );
    assert!(get!(driver, nvmlDeviceGetClockInfo(gpu, 0)).unwrap() < 1980);
    let held = || {
        let status = get!(driver, nvmlDeviceGetViolationStatus(gpu, 1)).unwrap();
        Duration::from_nanos(status.violationTime)
    };
    settled(&driver);
    let before = held();
    driver.node.step(Duration::from_secs(5)).unwrap();
    assert!(held() - before >= Duration::from_secs(5));
}

#[test]
fn errors_are_counted_where_they_were() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.gpu(0);
    driver.node.ecc(0, EccError::Sbe, 3).unwrap();
    driver.node.ecc(0, EccError::SramParity, 2).unwrap();
    assert_eq!(get!(driver, nvmlDeviceGetTotalEccErrors(gpu, 0, 0)), Ok(3));
    assert_eq!(get!(driver, nvmlDeviceGetTotalEccErrors(gpu, 1, 1)), Ok(2));
    assert_eq!(
        get!(driver, nvmlDeviceGetMemoryErrorCounter(gpu, 0, 0, 2)),
        Ok(3)
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetMemoryErrorCounter(gpu, 1, 0, 7)),
        Ok(2)
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetMemoryErrorCounter(gpu, 1, 0, 4)),
        Err(Code::NOT_SUPPORTED)
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetMemoryErrorCounter(gpu, 1, 0, 8)),
        Err(Code::INVALID_ARGUMENT)
    );
    let ids = [3, 4, 5, 6].map(|id| field(&driver, gpu, id, 0));
    assert_eq!(ids, [Ok(3), Ok(2), Ok(3), Ok(2)]);
    assert_eq!(
        code!(driver, nvmlDeviceClearEccErrorCounts(gpu, 0)),
        Code::SUCCESS
    );
    assert_eq!(get!(driver, nvmlDeviceGetTotalEccErrors(gpu, 0, 0)), Ok(0));
    assert_eq!(
        get!(driver, nvmlDeviceGetTotalEccErrors(gpu, 0, 1)),
        Ok(3),
        "the aggregate stays"
    );
}

#[test]
fn rows_wait_for_a_reset() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let rows = |driver: &Driver| {
        let mut out = [9; 4];
        let [correctable, uncorrectable, pending, failure] = &mut out;
        assert_eq!(
            code!(
                driver,
                nvmlDeviceGetRemappedRows(
                    driver.gpu(0),
                    correctable,
                    uncorrectable,
                    pending,
                    failure
                )
            ),
            Code::SUCCESS
        );
        out
    };
    assert_eq!(rows(&driver), [0, 0, 0, 0]);
    assert_eq!(
        get!(driver, nvmlDeviceGetRowRemapperHistogram(driver.gpu(0)))
            .unwrap()
            .max,
        2560
    );
    driver.node.row_remap(0, 1).unwrap();
    assert_eq!(rows(&driver), [0, 0, 1, 0]);
    // Recovery action 4: drain and reset.
    assert_eq!(field(&driver, driver.gpu(0), 230, 0), Ok(4));
    driver.node.reset(0).unwrap();
    assert_eq!(rows(&driver), [0, 1, 0, 0]);
    assert_eq!(
        get!(driver, nvmlDeviceGetRowRemapperHistogram(driver.gpu(0)))
            .unwrap()
            .max,
        2559
    );
    assert_eq!(field(&driver, driver.gpu(0), 230, 0), Ok(0));
}

/// Each field has its own code; only a wrong call fails as a whole.
#[test]
fn fields_fail_one_by_one() {
    let driver = Driver::with("h100-sxm5-80gb", 2);
    let gpu = driver.gpu(0);
    assert_eq!(field(&driver, gpu, 91, 0), Ok(18), "links");
    assert_eq!(field(&driver, gpu, 164, 17), Ok(26562), "MB/s of a link");
    assert_eq!(field(&driver, gpu, 164, 18), Err(Code::INVALID_ARGUMENT));
    assert_eq!(field(&driver, gpu, 184, 0), Ok(1), "MIG without reset");
    assert_eq!(field(&driver, gpu, 189, 0), Ok(700_000));
    assert_eq!(
        field(&driver, gpu, 193, 0).map(|value| value as u32 as i32),
        Ok(-8),
        "T.limit of the shutdown"
    );
    assert_eq!(
        field(&driver, gpu, 29, 0),
        Err(Code::NOT_SUPPORTED),
        "rows are remapped, pages not retired"
    );
    assert_eq!(
        field(&driver, gpu, 201, 0),
        Err(Code::NOT_SUPPORTED),
        "NVLink 5 only"
    );
    assert_eq!(field(&driver, gpu, 999, 0), Err(Code::INVALID_ARGUMENT));
    let null = std::ptr::null_mut();
    assert_eq!(
        code!(driver, nvmlDeviceGetFieldValues(gpu, 1, null)),
        Code::INVALID_ARGUMENT
    );
    let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
    assert_eq!(
        code!(driver, nvmlDeviceGetFieldValues(gpu, 0, &mut value)),
        Code::INVALID_ARGUMENT
    );
}

/// The time of thermal violation is field 251 of drivers up to 580.81 and 269 from 580.82 on.
#[rstest]
#[case("570.148.08", 251, 269)]
#[case("580.65.06", 251, 269)]
#[case("580.105.08", 269, 251)]
fn field_ids_follow_the_drivers_version(
    #[case] version: &str,
    #[case] thermal: u32,
    #[case] other: u32,
) {
    let mut spec = NodeSpec::uniform("h100-sxm5-80gb", 1).unwrap();
    spec.driver.version = version.into();
    let driver = Driver::of(&spec);
    assert!(field(&driver, driver.gpu(0), thermal, 0).is_ok());
    assert_eq!(
        field(&driver, driver.gpu(0), other, 0),
        Err(Code::NOT_SUPPORTED)
    );
}

/// A caller's array of metrics may be of any header's length: only what it announces is touched.
#[repr(C)]
struct Metrics {
    version: u32,
    number: u32,
    samples: [nvmlGpmSample_t; 2],
    metrics: [nvmlGpmMetric_t; 6],
    guard: [u8; 64],
}

fn metrics(
    driver: &Driver,
    samples: [nvmlGpmSample_t; 2],
    ids: [u32; 6],
) -> Result<[Result<f64, Code>; 6], Code> {
    let mut asked: Metrics = unsafe { std::mem::zeroed() };
    asked.version = 1;
    asked.number = 6;
    asked.samples = samples;
    asked.guard = [0xAA; 64];
    for (metric, id) in asked.metrics.iter_mut().zip(ids) {
        metric.metricId = id;
    }
    let code = code!(driver, nvmlGpmMetricsGet((&raw mut asked).cast()));
    assert_eq!(asked.guard, [0xAA; 64]);
    if code != Code::SUCCESS {
        return Err(code);
    }
    Ok(asked.metrics.map(|metric| match Code(metric.nvmlReturn) {
        Code::SUCCESS => Ok(metric.value),
        code => Err(code),
    }))
}

fn near(result: Result<f64, Code>, expected: f64) {
    let value = result.unwrap();
    assert!(
        (value - expected).abs() <= expected * 0.02,
        "{value}, not {expected}"
    );
}

#[test]
fn gpm_gives_means_between_two_samples() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.gpu(0);
    run(
        &driver,
        None,
        Load {
            sm: 0.5,
            tensor: 0.25,
            pcie_tx: 1048.576,
            ..Load::default()
        },
    );
    let samples = [0; 2].map(|_: u32| get!(driver, nvmlGpmSampleAlloc()).unwrap());
    assert_eq!(
        metrics(&driver, samples, [2; 6]),
        Err(Code::INVALID_ARGUMENT),
        "samples not taken yet"
    );
    assert_eq!(
        code!(driver, nvmlGpmSampleGet(gpu, samples[0])),
        Code::SUCCESS
    );
    driver.node.step(Duration::from_secs(10)).unwrap();
    assert_eq!(
        code!(driver, nvmlGpmSampleGet(gpu, samples[1])),
        Code::SUCCESS
    );
    let [sm, tensor, pcie, decoder, beyond, unknown] =
        metrics(&driver, samples, [2, 5, 20, 36, 37, 0]).unwrap();
    near(sm, 50.0);
    near(tensor, 25.0);
    near(pcie, 1000.0);
    assert_eq!(decoder, Ok(0.0), "the seventh decoder");
    assert_eq!(beyond, Err(Code::NOT_SUPPORTED), "an eighth there is not");
    assert_eq!(unknown, Err(Code::INVALID_ARGUMENT));
    let same = metrics(&driver, [samples[0]; 2], [2; 6]).unwrap();
    assert_eq!(same[0], Err(Code::NO_DATA), "an interval of no length");
    assert_eq!(code!(driver, nvmlGpmSampleFree(samples[0])), Code::SUCCESS);
    assert_eq!(
        code!(driver, nvmlGpmSampleFree(samples[0])),
        Code::INVALID_ARGUMENT
    );
}

#[test]
fn gpm_measures_a_gpu_instance_by_itself() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.partitioned(0);
    for _ in 0..2 {
        let instance = get!(driver, nvmlDeviceCreateGpuInstance(gpu, 19)).unwrap();
        get!(driver, nvmlGpuInstanceCreateComputeInstance(instance, 0)).unwrap();
    }
    // Ids 13 and 11; one works, the other idles.
    run(
        &driver,
        Some((13, 0)),
        Load {
            sm: 1.0,
            ..Load::default()
        },
    );
    let samples = [0; 6].map(|_: u32| get!(driver, nvmlGpmSampleAlloc()).unwrap());
    for (round, pair) in samples.chunks(3).enumerate() {
        assert_eq!(
            code!(driver, nvmlGpmMigSampleGet(gpu, 13, pair[0])),
            Code::SUCCESS
        );
        assert_eq!(
            code!(driver, nvmlGpmMigSampleGet(gpu, 11, pair[1])),
            Code::SUCCESS
        );
        assert_eq!(code!(driver, nvmlGpmSampleGet(gpu, pair[2])), Code::SUCCESS);
        if round == 0 {
            driver.node.step(Duration::from_secs(5)).unwrap();
        }
    }
    let sm =
        |first: usize| metrics(&driver, [samples[first], samples[first + 3]], [2; 6]).unwrap()[0];
    near(sm(0), 100.0);
    assert_eq!(sm(1), Ok(0.0));
    // 16 of 132 SMs.
    near(sm(2), 100.0 * 16.0 / 132.0);
    assert_eq!(
        metrics(&driver, [samples[0], samples[4]], [2; 6]),
        Err(Code::INVALID_ARGUMENT),
        "two devices"
    );
    assert_eq!(
        code!(driver, nvmlGpmMigSampleGet(gpu, 3, samples[0])),
        Code::INVALID_ARGUMENT
    );
}

#[test]
fn gpm_begins_with_hopper() {
    for (board, supported) in [
        ("a100-sxm4-40gb", 0),
        ("h100-sxm5-80gb", 1),
        ("b200-180gb", 1),
    ] {
        let driver = Driver::with(board, 1);
        let mut support = nvmlGpmSupport_t {
            version: 1,
            isSupportedDevice: 9,
        };
        assert_eq!(
            code!(
                driver,
                nvmlGpmQueryDeviceSupport(driver.gpu(0), &mut support)
            ),
            Code::SUCCESS
        );
        assert_eq!(support.isSupportedDevice, supported, "{board}");
        let sample = get!(driver, nvmlGpmSampleAlloc()).unwrap();
        let expected = if supported == 1 {
            Code::SUCCESS
        } else {
            Code::NOT_SUPPORTED
        };
        assert_eq!(
            code!(driver, nvmlGpmSampleGet(driver.gpu(0), sample)),
            expected
        );
    }
}

#[test]
fn samples_are_newer_than_what_was_seen() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.gpu(0);
    driver.node.step(Duration::from_secs(60)).unwrap();
    let mut kind = 0;
    let mut count = 200;
    let mut samples = vec![
        nvmlSample_t {
            timeStamp: 0,
            sampleValue: nvmlValue_t { ullVal: 0 }
        };
        200
    ];
    let mut ask = |since: u64, count: &mut u32| {
        code!(
            driver,
            nvmlDeviceGetSamples(gpu, 0, since, &mut kind, count, samples.as_mut_ptr())
        )
    };
    assert_eq!(ask(0, &mut count), Code::SUCCESS);
    assert!(count > 10);
    let newest = samples[count as usize - 1].timeStamp;
    assert!(samples[..count as usize].is_sorted_by_key(|sample| sample.timeStamp));
    let mut ask = |since: u64, count: &mut u32| {
        code!(
            driver,
            nvmlDeviceGetSamples(gpu, 0, since, &mut kind, count, samples.as_mut_ptr())
        )
    };
    count = 200;
    assert_eq!(ask(newest + 3_600_000_000, &mut count), Code::NOT_FOUND);
    // The header: as many as there is room for; none is no room at all.
    count = 3;
    assert_eq!(ask(0, &mut count), Code::SUCCESS);
    assert_eq!(count, 3);
    count = 0;
    assert_eq!(ask(0, &mut count), Code::INVALID_ARGUMENT);
    let last = samples[2].timeStamp;
    assert!(samples[0].timeStamp < last && last < newest);
}
