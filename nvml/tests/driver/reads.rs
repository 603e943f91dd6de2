//! Metrics, fields, processes, GPM.

use std::time::Duration;

use nvml::{Clock, Code, Field, GpmMetric, Optional, ProcessKind, TemperatureLimit};
use rstest::rstest;
use sim_nvml::admin::WorkloadSpec;
use sim_nvml::model::{Effect, Fault};

use crate::Node;

#[test]
fn a_gpu_has_its_numbers() {
    let node = Node::of("h100-sxm5-80gb", 1);
    node.open()
        .gpu(0)
        .run(|d| {
            assert_eq!(d.max_clock(Clock::Sm)?, 1980);
            assert_eq!(d.max_clock(Clock::Memory)?, 2619);
            assert!((1..=1980).contains(&d.clock(Clock::Sm)?));
            assert!((10..100).contains(&d.temperature()?));
            assert!((10..100).contains(&d.memory_temperature()?));
            let power = d.power_limits()?;
            assert_eq!(
                (power.min, power.max, power.default),
                (200_000, 700_000, 700_000)
            );
            assert!((1..=700_000).contains(&d.power_usage()?));
            let memory = d.memory()?;
            assert_eq!(memory.reserved, Some(480 << 20));
            assert_eq!(memory.total, memory.used + memory.free + 480 * (1 << 20));
            assert_eq!(d.ecc_errors(false, false)?, 0);
            assert_eq!(d.pcie_replays()?, 0);
            assert_eq!(d.utilization()?.gpu, 0);
            assert_eq!(d.encoder_utilization()?, 0);
            assert_eq!(d.decoder_utilization()?, 0);
            let rows = d.remapped_rows()?;
            assert_eq!((rows.correctable, rows.uncorrectable), (0, 0));
            assert!(!rows.pending && !rows.failure);
            assert_eq!(d.row_remap_histogram()?.max, 2560);
            assert_eq!(d.vgpu_licensed()?, None);
            // No fans on an SXM board.
            assert_eq!(d.fan_speed(0).optional()?, None);
            Ok(())
        })
        .unwrap();
}

#[test]
fn absolute_temperature_limits_are_those_of_the_board() {
    let node = Node::of("t4-16gb", 1);
    let limits = node
        .open()
        .gpu(0)
        .run(|d| {
            Ok((
                d.temperature_limit(TemperatureLimit::Shutdown)?,
                d.temperature_limit(TemperatureLimit::Slowdown)?,
                d.temperature_limit(TemperatureLimit::GpuMax)?,
            ))
        })
        .unwrap();
    assert_eq!(limits, (96, 93, 85));
}

#[test]
fn energy_grows_with_time() {
    let node = Node::of("a100-sxm4-40gb", 1);
    let gpu = node.open().gpu(0);
    let before = gpu.run(|d| d.energy()).unwrap();
    node.sim.step(Duration::from_secs(100)).unwrap();
    let after = gpu.run(|d| d.energy()).unwrap();
    // An idle A100 draws tens of watts, and at most 400 W: in 100 s that is 1 to 40 kJ, in mJ.
    assert!(
        (1_000_000..=41_000_000).contains(&(after - before)),
        "{}",
        after - before
    );
}

#[test]
fn fields_answer_one_by_one() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let answers = node
        .open()
        .gpu(0)
        .run(|d| {
            d.fields(&[
                Field::RESETLESS_MIG,
                Field::new(9999),
                Field::TOTAL_ENERGY,
                Field::NVLINK_DATA_TX,
            ])
        })
        .unwrap();
    assert_eq!(answers.len(), 4);
    assert_eq!(answers[0].unwrap().as_u64(), 1);
    assert!(answers[1].is_err());
    assert!(answers[2].is_ok() && answers[3].is_ok());
}

#[test]
fn a_process_is_told_with_its_command() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let pid = node
        .sim
        .run_workload(WorkloadSpec {
            name: "train.py".into(),
            memory_mib: 100,
            ..WorkloadSpec::default()
        })
        .unwrap();
    let processes = node.open().gpu(0).run(|d| d.processes()).unwrap();
    assert_eq!(processes.len(), 1);
    let process = &processes[0];
    assert_eq!((process.pid, process.kind), (pid, ProcessKind::Compute));
    assert!(process.command.as_deref().unwrap().contains("train.py"));
    assert_eq!(process.memory, Some(100 << 20));
    assert_eq!(
        (process.gpu_instance, process.compute_instance),
        (None, None)
    );
}

#[test]
fn without_a_list_nobody_claims_that_the_gpu_is_free() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let gpu = node.open().gpu(0);
    let workload = WorkloadSpec::default();
    let pid = node.sim.run_workload(workload).unwrap();
    let missing = |symbol| Fault::new(symbol, Effect::Fail(sim_nvml::Code(13)));
    // Older drivers have the list under an older name.
    let newest = missing("nvmlDeviceGetComputeRunningProcesses_v3");
    node.sim.inject(newest).unwrap();
    let processes = gpu.info().unwrap().processes.unwrap();
    assert_eq!(processes.iter().map(|p| p.pid).collect::<Vec<_>>(), [pid]);
    let every = missing("nvmlDeviceGetComputeRunningProcesses*");
    node.sim.inject(every).unwrap();
    assert_eq!(gpu.info().unwrap().processes, None);
}

#[test]
fn a_process_in_an_instance_is_told_with_it() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let gpu = node.open().gpu(0);
    gpu.run(|d| {
        d.set_mig_mode(true)?;
        let id = d.create_gpu_instance(9, None)?.id;
        d.create_compute_instance(id, 2, None)
    })
    .unwrap();
    node.sim
        .run_workload(WorkloadSpec {
            instance: Some((2, 0)),
            ..WorkloadSpec::default()
        })
        .unwrap();
    let processes = gpu.run(|d| d.processes()).unwrap();
    assert_eq!(
        (processes[0].gpu_instance, processes[0].compute_instance),
        (Some(2), Some(0))
    );
    let memory = gpu.run(|d| d.mig_device(0)?.unwrap().memory()).unwrap();
    assert_eq!(memory.total, 40448 << 20);
    assert!(gpu.run(|d| d.utilization()).unwrap_err().is_absent());
}

#[test]
fn gpm_measures_between_two_samples() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let driver = node.open();
    let gpu = driver.gpu(0);
    assert_eq!(gpu.run(|d| d.gpm_supported()), Ok(true));
    let older = gpu.run(|d| d.gpm_sample(None)).unwrap();
    node.sim.step(Duration::from_secs(1)).unwrap();
    let (older, newer, values) = gpu
        .run(move |d| {
            let newer = d.gpm_sample(None)?;
            let wanted = [
                GpmMetric::GRAPHICS_UTIL,
                GpmMetric(9999),
                GpmMetric::DRAM_BW_UTIL,
            ];
            let values = d.gpm_metrics(&older, &newer, &wanted)?;
            Ok((older, newer, values))
        })
        .unwrap();
    assert_eq!(values.len(), 3);
    assert!((0.0..=100.0).contains(values[0].as_ref().unwrap()));
    assert!(values[1].is_err());
    assert!(values[2].is_ok());
    // A restart ends the samples' life; using them says so, dropping them does no harm.
    driver.reopen().unwrap();
    let error = gpu
        .run(move |d| {
            let fresh = d.gpm_sample(None)?;
            d.gpm_metrics(&older, &fresh, &[GpmMetric::SM_UTIL])
        })
        .unwrap_err();
    assert_eq!(error.code(), Some(Code::INVALID_ARGUMENT));
    drop(newer);
}

#[test]
fn gpm_measures_an_instance() {
    let node = Node::of("h100-sxm5-80gb", 1);
    let gpu = node.open().gpu(0);
    let older = gpu
        .run(|d| {
            d.set_mig_mode(true)?;
            d.create_gpu_instance(9, None)?;
            d.gpm_sample(Some(2))
        })
        .unwrap();
    node.sim.step(Duration::from_secs(1)).unwrap();
    let values = gpu
        .run(move |d| {
            let newer = d.gpm_sample(Some(2))?;
            d.gpm_metrics(&older, &newer, &[GpmMetric::SM_UTIL])
        })
        .unwrap();
    assert!(values[0].is_ok());
}

#[test]
fn gpm_is_absent_before_hopper() {
    let node = Node::of("a100-sxm4-40gb", 1);
    let gpu = node.open().gpu(0);
    assert!(
        !gpu.run(|d| d.gpm_supported())
            .optional()
            .unwrap()
            .unwrap_or(false)
    );
    assert!(gpu.run(|d| d.gpm_sample(None)).is_err());
}

/// A driver that lacks a newer call, or knows no such version of its structure, is asked by the older one.
#[rstest]
#[case("nvmlDeviceGetMemoryInfo_v2", 13)]
#[case("nvmlDeviceGetMemoryInfo_v2", 25)]
#[case("nvmlDeviceGetTemperatureV", 13)]
#[case("nvmlDeviceGetCurrentClocksEventReasons", 13)]
#[case("nvmlDeviceGetRemappedRows_v2", 13)]
#[case("nvmlDeviceGetGpuFabricInfoV", 25)]
fn older_drivers_are_asked_the_older_way(#[case] symbol: &str, #[case] code: u32) {
    let node = Node::of("h100-sxm5-80gb", 1);
    let gpu = node.open().gpu(0);
    let read = move || {
        gpu.run(|d| {
            let rows = d.remapped_rows()?;
            let fabric = d.fabric()?.map(|f| (f.state, f.status, f.clique));
            Ok((
                d.memory()?.total,
                d.temperature()?,
                d.clock_reasons()?,
                rows,
                fabric,
            ))
        })
        .unwrap()
    };
    node.sim.step(Duration::from_secs(3600)).unwrap();
    let newer = read();
    let fault = Fault::new(symbol, Effect::Fail(sim_nvml::Code(code)));
    node.sim.inject(fault).unwrap();
    assert_eq!(read(), newer);
}

/// Codes that the safe wrapper crate cannot name, and one that no header has yet.
#[rstest]
#[case(23)]
#[case(24)]
#[case(25)]
#[case(26)]
#[case(27)]
#[case(28)]
#[case(29)]
#[case(30)]
#[case(77)]
#[case(999)]
fn every_code_comes_through_as_it_is(#[case] code: u32) {
    let node = Node::of("t4-16gb", 1);
    let fault = Fault::new("nvmlDeviceGetName", Effect::Fail(sim_nvml::Code(code)));
    node.sim.inject(fault).unwrap();
    let error = node.open().gpu(0).run(|d| d.name()).unwrap_err();
    assert_eq!(error.code(), Some(Code(code)));
    assert_eq!(error.call(), Some("nvmlDeviceGetName"));
}
