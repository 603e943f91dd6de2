//! Injected faults, lost GPUs, a driver that is gone, and the trace.

use std::time::{Duration, Instant};

use sim_nvml::{
    Code,
    model::{
        Effect, Fault,
        latency::{Class, Latency},
    },
};

use crate::driver::{Driver, code, get, text, until};

#[test]
fn a_fault_hits_its_symbol_on_its_gpu() {
    let driver = Driver::with("h100-sxm5-80gb", 2);
    let id = driver
        .node
        .inject(Fault {
            gpu: Some(1),
            ..Fault::new("nvmlDeviceGetPowerUsage", Effect::Fail(Code::UNKNOWN))
        })
        .unwrap();
    assert!(get!(driver, nvmlDeviceGetPowerUsage(driver.gpu(0))).is_ok());
    assert_eq!(
        get!(driver, nvmlDeviceGetPowerUsage(driver.gpu(1))),
        Err(Code::UNKNOWN)
    );
    assert!(get!(driver, nvmlDeviceGetTotalEnergyConsumption(driver.gpu(1))).is_ok());
    driver.node.clear(id).unwrap();
    assert!(get!(driver, nvmlDeviceGetPowerUsage(driver.gpu(1))).is_ok());
}

#[test]
fn a_fault_can_wait_for_its_turn() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.partitioned(0);
    let fault = Fault::new(
        "nvmlDeviceCreateGpuInstance",
        Effect::Fail(Code::INSUFFICIENT_RESOURCES),
    );
    driver
        .node
        .inject(Fault {
            after: 2,
            times: Some(1),
            ..fault
        })
        .unwrap();
    let results: Vec<Option<Code>> = (0..4)
        .map(|_| get!(driver, nvmlDeviceCreateGpuInstance(gpu, 19)).err())
        .collect();
    assert_eq!(
        results,
        [None, None, Some(Code::INSUFFICIENT_RESOURCES), None]
    );
}

#[test]
fn a_failing_init_leaves_the_library_uninitialised() {
    let spec = sim_nvml::presets::NodeSpec::uniform("t4-16gb", 1).unwrap();
    let driver = Driver::cold(&spec);
    let id = driver
        .node
        .inject(Fault::new(
            "nvmlInit*",
            Effect::Fail(Code::DRIVER_NOT_LOADED),
        ))
        .unwrap();
    assert_eq!(code!(driver, nvmlInit_v2()), Code::DRIVER_NOT_LOADED);
    assert_eq!(code!(driver, nvmlInitWithFlags(0)), Code::DRIVER_NOT_LOADED);
    assert_eq!(
        get!(driver, nvmlDeviceGetCount_v2()),
        Err(Code::UNINITIALIZED)
    );
    driver.node.clear(id).unwrap();
    assert_eq!(code!(driver, nvmlInit_v2()), Code::SUCCESS);
}

#[test]
fn a_hanging_call_ends_when_the_fault_is_cleared_and_holds_up_nobody() {
    let driver = Driver::with("h100-sxm5-80gb", 2);
    let (stuck, free) = (driver.gpu(0).addr(), driver.gpu(1));
    let id = driver
        .node
        .inject(Fault {
            gpu: Some(0),
            ..Fault::new("nvmlDeviceGetName", Effect::Hang)
        })
        .unwrap();
    std::thread::scope(|scope| {
        let call = scope.spawn(|| {
            text!(
                driver,
                nvmlDeviceGetName(std::ptr::without_provenance_mut(stuck))
            )
        });
        assert_eq!(
            text!(driver, nvmlDeviceGetName(free)).unwrap(),
            "NVIDIA H100 80GB HBM3"
        );
        assert!(get!(driver, nvmlDeviceGetPowerUsage(driver.gpu(0))).is_ok());
        // Long enough that a call which does not hang would be back.
        std::thread::sleep(Duration::from_millis(100));
        assert!(!call.is_finished());
        driver.node.clear(id).unwrap();
        assert_eq!(call.join().unwrap().unwrap(), "NVIDIA H100 80GB HBM3");
    });
}

/// A counted hang catches one call and keeps it until that fault is cleared, whatever other faults there are.
#[test]
fn a_hang_can_wait_for_its_turn() {
    let driver = Driver::with("t4-16gb", 1);
    let gpu = driver.gpu(0).addr();
    let hang = |symbol: &str| Fault {
        after: 1,
        times: Some(1),
        ..Fault::new(symbol, Effect::Hang)
    };
    driver
        .node
        .inject(Fault::new("nvmlDeviceGetSerial", Effect::Hang))
        .unwrap();
    let id = driver
        .node
        .inject(hang("nvmlDeviceGetMinorNumber"))
        .unwrap();
    let minor = || {
        get!(
            driver,
            nvmlDeviceGetMinorNumber(std::ptr::without_provenance_mut(gpu))
        )
    };
    assert_eq!(minor(), Ok(0));
    std::thread::scope(|scope| {
        let caught = scope.spawn(minor);
        until("the second call to be counted", || {
            driver
                .node
                .state()
                .unwrap()
                .faults
                .iter()
                .any(|fault| fault.calls == 2)
        });
        assert_eq!(minor(), Ok(0), "the third call passes");
        assert!(!caught.is_finished());
        driver.node.clear(id).unwrap();
        assert_eq!(caught.join().unwrap(), Ok(0));
    });
}

#[test]
fn slow_calls_on_different_gpus_overlap() {
    let driver = Driver::with("h100-sxm5-80gb", 8);
    let pause = Duration::from_secs(2);
    let classes = [(Class::Mode, pause.as_micros() as u64)].into();
    driver
        .node
        .set_latency(Latency {
            classes,
            symbols: Default::default(),
        })
        .unwrap();
    let gpus: Vec<usize> = (0..8).map(|index| driver.gpu(index).addr()).collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for gpu in gpus {
            let driver = &driver;
            scope.spawn(move || {
                get!(
                    driver,
                    nvmlDeviceSetMigMode(std::ptr::without_provenance_mut(gpu), 1)
                )
                .unwrap()
            });
        }
    });
    let took = start.elapsed();
    assert!(took >= pause, "the latency is there");
    // One after the other would take 8 × 2 s.
    assert!(took < pause * 8, "{took:?}");
    assert!(
        driver
            .node
            .state()
            .unwrap()
            .gpus
            .iter()
            .all(|gpu| gpu.mig.current)
    );
}

#[test]
fn a_lost_gpu_answers_lost_and_no_other_does() {
    let driver = Driver::with("h100-sxm5-80gb", 2);
    let (lost, fine) = (driver.gpu(0), driver.gpu(1));
    driver.node.lose(0).unwrap();
    assert_eq!(
        get!(driver, nvmlDeviceGetMinorNumber(lost)),
        Err(Code::GPU_IS_LOST)
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetHandleByIndex_v2(0)).err(),
        Some(Code::GPU_IS_LOST)
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetCount_v2()),
        Ok(2),
        "it is still counted"
    );
    assert_eq!(get!(driver, nvmlDeviceGetMinorNumber(fine)), Ok(1));
    driver.node.reset(0).unwrap();
    assert_eq!(get!(driver, nvmlDeviceGetMinorNumber(driver.gpu(0))), Ok(0));
}

#[test]
fn a_fallen_gpu_is_lost_to_those_who_knew_it_and_absent_for_others() {
    let driver = Driver::with("h100-sxm5-80gb", 2);
    let fallen = driver.gpu(0);
    driver.node.fall_off(0).unwrap();
    assert_eq!(
        get!(driver, nvmlDeviceGetMinorNumber(fallen)),
        Err(Code::GPU_IS_LOST)
    );
    assert_eq!(get!(driver, nvmlDeviceGetCount_v2()), Ok(2));
    assert_eq!(code!(driver, nvmlShutdown()), Code::SUCCESS);
    assert_eq!(code!(driver, nvmlInit_v2()), Code::SUCCESS);
    assert_eq!(get!(driver, nvmlDeviceGetCount_v2()), Ok(1));
    assert_eq!(get!(driver, nvmlDeviceGetMinorNumber(driver.gpu(0))), Ok(1));
    assert!(driver.node.reset(0).is_err(), "only a reboot helps");
    driver.node.reboot().unwrap();
    assert_eq!(get!(driver, nvmlDeviceGetCount_v2()), Ok(2));
}

#[test]
fn without_its_driver_a_node_answers_so() {
    let driver = Driver::with("t4-16gb", 1);
    driver.node.unload_driver().unwrap();
    assert_eq!(
        get!(driver, nvmlDeviceGetCount_v2()),
        Err(Code::DRIVER_NOT_LOADED)
    );
    assert_eq!(code!(driver, nvmlInit_v2()), Code::DRIVER_NOT_LOADED);
    driver.node.load_driver().unwrap();
    assert_eq!(get!(driver, nvmlDeviceGetCount_v2()), Ok(1));
    driver.node.mismatch_driver().unwrap();
    assert_eq!(code!(driver, nvmlInit_v2()), Code::LIB_RM_VERSION_MISMATCH);
    driver.node.load_driver().unwrap();
}

#[test]
fn a_library_without_a_node_has_no_driver() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libnvidia-ml.so.1");
    std::fs::copy(sim_nvml::library::locate().unwrap(), file).unwrap();
    let lib = crate::driver::load(folder.path());
    // SAFETY: the function takes nothing.
    assert_eq!(unsafe { lib.nvmlInit_v2() }, Code::DRIVER_NOT_LOADED.0);
}

#[test]
fn changes_are_always_traced_and_queries_on_request() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.partitioned(0);
    assert!(get!(driver, nvmlDeviceGetPowerUsage(gpu)).is_ok());
    assert_eq!(
        get!(driver, nvmlDeviceCreateGpuInstance(gpu, 99)).err(),
        Some(Code::INVALID_ARGUMENT)
    );
    let instance = get!(driver, nvmlDeviceCreateGpuInstance(gpu, 14)).unwrap();
    assert_eq!(
        code!(driver, nvmlGpuInstanceDestroy(instance)),
        Code::SUCCESS
    );
    let trace = driver.node.trace().unwrap();
    let lines: Vec<_> = trace
        .iter()
        .map(|entry| {
            (
                entry.symbol.as_str(),
                serde_json::to_string(&entry.args).unwrap(),
                entry.result,
            )
        })
        .collect();
    assert_eq!(
        lines,
        [
            (
                "nvmlDeviceSetMigMode",
                r#"{"activationStatus":0,"device":"gpu0","mode":1}"#.to_owned(),
                0
            ),
            (
                "nvmlDeviceCreateGpuInstance",
                r#"{"device":"gpu0","profileId":99}"#.to_owned(),
                2
            ),
            (
                "nvmlDeviceCreateGpuInstance",
                r#"{"created":5,"device":"gpu0","profileId":14}"#.to_owned(),
                0
            ),
            (
                "nvmlGpuInstanceDestroy",
                r#"{"gpuInstance":"gpu0/gi5"}"#.to_owned(),
                0
            ),
        ]
    );
    assert!(
        trace
            .iter()
            .all(|entry| entry.mutating && entry.pid == std::process::id())
    );

    driver.node.clear_trace().unwrap();
    driver.node.set_trace(true).unwrap();
    assert!(get!(driver, nvmlDeviceGetPowerUsage(gpu)).is_ok());
    driver.node.set_trace(false).unwrap();
    assert!(get!(driver, nvmlDeviceGetPowerUsage(gpu)).is_ok());
    let trace = driver.node.trace().unwrap();
    assert_eq!(
        trace
            .iter()
            .map(|entry| entry.symbol.as_str())
            .collect::<Vec<_>>(),
        ["nvmlDeviceGetPowerUsage"]
    );
    assert!(!trace[0].mutating);
}

/// Another process, which is this test program again: it partitions the node in the environment and leaves without a
/// shutdown.
#[test]
fn other_process() {
    let Some(folder) = std::env::var_os("SIM_NVML_OTHER_PROCESS") else {
        return;
    };
    let lib = crate::driver::load(std::path::Path::new(&folder));
    // SAFETY: the functions get the arguments of the header.
    unsafe {
        assert_eq!(lib.nvmlInit_v2(), 0);
        let (mut gpu, mut status, mut instance) = (std::ptr::null_mut(), 9, std::ptr::null_mut());
        assert_eq!(lib.nvmlDeviceGetHandleByIndex_v2(0, &mut gpu), 0);
        assert_eq!(lib.nvmlDeviceSetMigMode(gpu, 1, &mut status), 0);
        assert_eq!(lib.nvmlDeviceCreateGpuInstance(gpu, 9, &mut instance), 0);
    }
    std::process::exit(0);
}

#[test]
fn what_one_process_does_another_sees() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.gpu(0);
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::other_process"])
        .env("SIM_NVML_OTHER_PROCESS", driver.node.library_folder())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id();
    assert!(child.wait().unwrap().success());
    // On Hopper the mode changes without a reset, so the handle is still good.
    let instance = get!(driver, nvmlDeviceGetGpuInstanceById(gpu, 2)).unwrap();
    assert_eq!(
        get!(driver, nvmlGpuInstanceGetInfo(instance))
            .unwrap()
            .profileId,
        9
    );
    // It left without a shutdown: the next change forgets it.
    assert_eq!(
        code!(driver, nvmlGpuInstanceDestroy(instance)),
        Code::SUCCESS
    );
    until("the dead client to be forgotten", || {
        driver
            .node
            .state()
            .unwrap()
            .clients
            .iter()
            .all(|client| client.pid != pid)
    });
}

#[test]
fn threads_see_whole_states_only() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.partitioned(0).addr();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    // A 3g and what is left of the GPU are one state: never two, never a torn one.
                    let left = get!(
                        driver,
                        nvmlDeviceGetGpuInstanceRemainingCapacity(
                            std::ptr::without_provenance_mut(gpu),
                            9
                        )
                    );
                    assert!(matches!(left, Ok(1 | 2)), "{left:?}");
                }
            });
        }
        for _ in 0..40 {
            let gpu = std::ptr::without_provenance_mut(gpu);
            let instance = get!(driver, nvmlDeviceCreateGpuInstance(gpu, 9)).unwrap();
            assert_eq!(
                code!(driver, nvmlGpuInstanceDestroy(instance)),
                Code::SUCCESS
            );
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
