//! What is refused: modes, stale handles, whole-GPU queries on partitioned GPUs.

use nvml_wrapper_sys::bindings::*;
use rstest::rstest;
use sim_nvml::{Code, admin::WorkloadSpec, model::Load};

use crate::driver::{Driver, code, get, text, version};

fn modes(driver: &Driver, gpu: nvmlDevice_t) -> Result<(u32, u32), Code> {
    let (mut current, mut pending) = (7, 7);
    match code!(
        driver,
        nvmlDeviceGetMigMode(gpu, &mut current, &mut pending)
    ) {
        Code::SUCCESS => Ok((current, pending)),
        code => Err(code),
    }
}

fn busy(driver: &Driver) -> u32 {
    let spec = WorkloadSpec {
        memory_mib: 1024,
        load: Load::compute(50),
        ..WorkloadSpec::default()
    };
    driver.node.run_workload(spec).unwrap()
}

#[rstest]
#[case("l40s-48gb")]
#[case("t4-16gb")]
fn boards_without_mig_say_so(#[case] board: &str) {
    let driver = Driver::with(board, 1);
    let gpu = driver.gpu(0);
    assert_eq!(modes(&driver, gpu), Err(Code::NOT_SUPPORTED));
    assert_eq!(
        get!(driver, nvmlDeviceSetMigMode(gpu, 1)),
        Err(Code::NOT_SUPPORTED)
    );
    assert_eq!(get!(driver, nvmlDeviceGetMaxMigDeviceCount(gpu)), Ok(0));
    assert_eq!(
        get!(driver, nvmlDeviceGetGpuInstanceProfileInfo(gpu, 0)).err(),
        Some(Code::NOT_SUPPORTED)
    );
}

/// Ampere keeps an unfulfilled wish and fulfils it at the next reset; Hopper has nothing to keep it in.
#[rstest]
#[case("a100-sxm4-40gb", (0, 1), (1, 1))]
#[case("h100-sxm5-80gb", (0, 0), (0, 0))]
fn a_busy_gpu_keeps_its_mode(
    #[case] board: &str,
    #[case] while_busy: (u32, u32),
    #[case] after_reset: (u32, u32),
) {
    let driver = Driver::with(board, 1);
    let pid = busy(&driver);
    // The call itself succeeds; the second result tells.
    assert_eq!(
        get!(driver, nvmlDeviceSetMigMode(driver.gpu(0), 1)),
        Ok(Code::IN_USE.0)
    );
    assert_eq!(modes(&driver, driver.gpu(0)), Ok(while_busy));
    driver.node.stop_workload(pid).unwrap();
    driver.node.reset(0).unwrap();
    assert_eq!(modes(&driver, driver.gpu(0)), Ok(after_reset));
}

#[test]
fn only_amperes_mode_outlives_a_reboot_and_no_instance_does() {
    for (board, expected) in [("a100-sxm4-40gb", (1, 1)), ("h100-sxm5-80gb", (0, 0))] {
        let driver = Driver::with(board, 1);
        let gpu = driver.partitioned(0);
        get!(driver, nvmlDeviceCreateGpuInstance(gpu, 19)).unwrap();
        driver.node.reboot().unwrap();
        assert_eq!(modes(&driver, driver.gpu(0)), Ok(expected), "{board}");
        assert!(
            driver.node.state().unwrap().gpus[0]
                .mig
                .instances
                .is_empty()
        );
    }
}

#[test]
fn instances_need_the_mode() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.gpu(0);
    let refused = Some(Code::NOT_SUPPORTED);
    assert_eq!(
        get!(driver, nvmlDeviceCreateGpuInstance(gpu, 19)).err(),
        refused
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 19)).err(),
        refused
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetGpuInstanceById(gpu, 0)).err(),
        refused
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)).err(),
        refused
    );
    assert_eq!(get!(driver, nvmlDeviceGetMaxMigDeviceCount(gpu)), Ok(0));
    assert_eq!(
        get!(driver, nvmlDeviceSetMigMode(gpu, 2)),
        Err(Code::INVALID_ARGUMENT)
    );
}

#[test]
fn handles_go_stale_and_never_crash() {
    let driver = Driver::with("a100-sxm4-40gb", 2);
    let before = driver.gpu(0);
    let other = driver.gpu(1);
    // On Ampere the mode change resets the GPU: its handles from before are stale, those of its neighbour are not.
    let gpu = driver.partitioned(0);
    assert_eq!(
        get!(driver, nvmlDeviceGetMinorNumber(before)),
        Err(Code::INVALID_ARGUMENT)
    );
    assert_eq!(get!(driver, nvmlDeviceGetMinorNumber(other)), Ok(1));
    let instance = get!(driver, nvmlDeviceCreateGpuInstance(gpu, 19)).unwrap();
    let compute = get!(driver, nvmlGpuInstanceCreateComputeInstance(instance, 0)).unwrap();
    let device = get!(driver, nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)).unwrap();
    assert_eq!(
        code!(driver, nvmlComputeInstanceDestroy(compute)),
        Code::SUCCESS
    );
    assert_eq!(
        code!(driver, nvmlComputeInstanceDestroy(compute)),
        Code::INVALID_ARGUMENT
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetMemoryInfo(device)).err(),
        Some(Code::INVALID_ARGUMENT)
    );
    assert_eq!(
        code!(driver, nvmlGpuInstanceDestroy(instance)),
        Code::SUCCESS
    );
    assert_eq!(
        get!(driver, nvmlGpuInstanceGetInfo(instance)).err(),
        Some(Code::INVALID_ARGUMENT)
    );
    driver.node.reload_driver().unwrap();
    assert_eq!(
        get!(driver, nvmlDeviceGetMinorNumber(other)),
        Err(Code::INVALID_ARGUMENT)
    );
    assert_eq!(get!(driver, nvmlDeviceGetMinorNumber(driver.gpu(1))), Ok(1));
}

/// The header: the handle of a destroyed instance is invalid, and only creating it again gives a valid one.
#[test]
fn the_handle_of_a_destroyed_instance_is_not_that_of_its_successor() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.partitioned(0);
    let compute = |instance| {
        let compute = get!(driver, nvmlGpuInstanceCreateComputeInstance(instance, 0)).unwrap();
        let device = get!(driver, nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)).unwrap();
        (compute, device)
    };
    let uuid = |device| text!(driver, nvmlDeviceGetUUID(device));
    let stale = |compute, device| {
        assert_eq!(
            get!(driver, nvmlComputeInstanceGetInfo_v2(compute)).err(),
            Some(Code::INVALID_ARGUMENT)
        );
        assert_eq!(uuid(device), Err(Code::INVALID_ARGUMENT));
    };
    let instance = get!(driver, nvmlDeviceCreateGpuInstance(gpu, 19)).unwrap();
    let (first, first_device) = compute(instance);
    let name = uuid(first_device).unwrap();
    assert_eq!(
        code!(driver, nvmlComputeInstanceDestroy(first)),
        Code::SUCCESS
    );
    let (second, second_device) = compute(instance);
    stale(first, first_device);
    assert_eq!(
        uuid(second_device).unwrap(),
        name,
        "same geometry, same UUID"
    );
    assert_eq!(
        code!(driver, nvmlComputeInstanceDestroy(second)),
        Code::SUCCESS
    );
    assert_eq!(
        code!(driver, nvmlGpuInstanceDestroy(instance)),
        Code::SUCCESS
    );
    let successor = get!(driver, nvmlDeviceCreateGpuInstance(gpu, 20)).unwrap();
    assert_eq!(
        get!(driver, nvmlGpuInstanceGetInfo(successor)).unwrap().id,
        13
    );
    assert_eq!(
        get!(driver, nvmlGpuInstanceGetInfo(instance)).err(),
        Some(Code::INVALID_ARGUMENT)
    );
    let (_, third_device) = compute(successor);
    stale(first, first_device);
    stale(second, second_device);
    assert_eq!(uuid(third_device).unwrap(), name);
}

#[test]
fn other_pointers_are_no_handles() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.partitioned(0);
    let instance = get!(driver, nvmlDeviceCreateGpuInstance(gpu, 19)).unwrap();
    let mut local = 0_u64;
    let foreign: [nvmlDevice_t; 4] = [
        std::ptr::null_mut(),
        std::ptr::without_provenance_mut(1),
        (&raw mut local).cast(),
        instance.cast(),
    ];
    for handle in foreign {
        assert_eq!(
            get!(driver, nvmlDeviceGetMinorNumber(handle)),
            Err(Code::INVALID_ARGUMENT)
        );
        assert_eq!(
            get!(driver, nvmlDeviceGetMemoryInfo(handle)).err(),
            Some(Code::INVALID_ARGUMENT)
        );
    }
    assert_eq!(
        get!(driver, nvmlGpuInstanceGetInfo(gpu.cast())).err(),
        Some(Code::INVALID_ARGUMENT)
    );
}

#[test]
fn a_partitioned_gpu_does_not_tell_what_only_a_whole_one_can() {
    let driver = Driver::with("h100-sxm5-80gb", 2);
    let whole = driver.gpu(0);
    assert!(get!(driver, nvmlDeviceGetUtilizationRates(whole)).is_ok());
    assert_eq!(get!(driver, nvmlDeviceGetNvLinkState(whole, 0)), Ok(1));
    assert!(get!(driver, nvmlDeviceGetRowRemapperHistogram(whole)).is_ok());
    assert!(get!(driver, nvmlDeviceGetComputeMode(whole)).is_ok());

    let gpu = driver.partitioned(0);
    let refused = Some(Code::NOT_SUPPORTED);
    assert_eq!(
        get!(driver, nvmlDeviceGetUtilizationRates(gpu)).err(),
        refused
    );
    let mut period = 0;
    let mut percent = 0;
    assert_eq!(
        code!(
            driver,
            nvmlDeviceGetEncoderUtilization(gpu, &mut percent, &mut period)
        ),
        Code::NOT_SUPPORTED
    );
    assert_eq!(get!(driver, nvmlDeviceGetNumGpuCores(gpu)).err(), refused);
    assert_eq!(
        get!(driver, nvmlDeviceGetNvLinkState(gpu, 0)).err(),
        refused
    );
    assert_eq!(get!(driver, nvmlDeviceGetComputeMode(gpu)).err(), refused);
    assert!(
        get!(driver, nvmlDeviceGetPowerUsage(gpu)).is_ok(),
        "power is the whole board's"
    );
    assert!(
        get!(driver, nvmlDeviceGetRowRemapperHistogram(gpu)).is_ok(),
        "no instance yet"
    );

    let instance = get!(driver, nvmlDeviceCreateGpuInstance(gpu, 19)).unwrap();
    get!(driver, nvmlGpuInstanceCreateComputeInstance(instance, 0)).unwrap();
    assert_eq!(
        get!(driver, nvmlDeviceGetRowRemapperHistogram(gpu)).err(),
        refused
    );

    // A MIG device answers what the header lists, and nothing else.
    let device = get!(driver, nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)).unwrap();
    assert_eq!(
        code!(driver, nvmlDeviceSetComputeMode(device, 3)),
        Code::SUCCESS
    );
    assert_eq!(get!(driver, nvmlDeviceGetComputeMode(device)), Ok(3));
    assert!(get!(driver, nvmlDeviceGetBAR1MemoryInfo(device)).is_ok());
    assert_eq!(
        get!(driver, nvmlDeviceGetMemoryErrorCounter(device, 0, 0, 2)),
        Ok(0)
    );
    assert_eq!(get!(driver, nvmlDeviceGetPowerUsage(device)).err(), refused);
    assert_eq!(get!(driver, nvmlDeviceGetPciInfo_v3(device)).err(), refused);
    assert_eq!(
        get!(driver, nvmlDeviceGetAttributes_v2(gpu)).err(),
        refused,
        "MIG devices only"
    );
    let set = get!(driver, nvmlEventSetCreate()).unwrap();
    assert_eq!(
        code!(driver, nvmlDeviceRegisterEvents(device, 8, set)),
        Code::NOT_SUPPORTED
    );
}

#[test]
fn settings_stay_until_the_driver_goes() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.gpu(0);
    assert_eq!(
        code!(driver, nvmlDeviceSetPowerManagementLimit(gpu, 500_000)),
        Code::SUCCESS
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetEnforcedPowerLimit(gpu)),
        Ok(500_000)
    );
    // 200 to 700 W.
    assert_eq!(
        code!(driver, nvmlDeviceSetPowerManagementLimit(gpu, 199_999)),
        Code::INVALID_ARGUMENT
    );
    assert_eq!(
        code!(driver, nvmlDeviceSetPowerManagementLimit(gpu, 700_001)),
        Code::INVALID_ARGUMENT
    );
    let mut value = nvmlPowerValue_v2_t {
        version: version::<nvmlPowerValue_v2_t>(2),
        powerScope: 0,
        powerValueMw: 400_000,
    };
    assert_eq!(
        code!(
            driver,
            nvmlDeviceSetPowerManagementLimit_v2(gpu, &mut value)
        ),
        Code::SUCCESS
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetPowerManagementLimit(gpu)),
        Ok(400_000)
    );
    assert_eq!(
        code!(driver, nvmlDeviceSetPersistenceMode(gpu, 1)),
        Code::SUCCESS
    );
    assert_eq!(
        code!(driver, nvmlDeviceSetGpuLockedClocks(gpu, 900, 900)),
        Code::SUCCESS
    );
    assert_eq!(get!(driver, nvmlDeviceGetClockInfo(gpu, 0)), Ok(900));
    assert_eq!(
        code!(driver, nvmlDeviceSetGpuLockedClocks(gpu, 900, 800)),
        Code::INVALID_ARGUMENT
    );
    driver.node.reload_driver().unwrap();
    let gpu = driver.gpu(0);
    assert_eq!(
        get!(driver, nvmlDeviceGetPowerManagementLimit(gpu)),
        Ok(700_000)
    );
    assert_eq!(get!(driver, nvmlDeviceGetPersistenceMode(gpu)), Ok(0));
    // Idle clock of the capture.
    assert_eq!(get!(driver, nvmlDeviceGetClockInfo(gpu, 0)), Ok(345));
}

#[test]
fn a_drained_gpu_can_be_removed_and_found_again() {
    let driver = Driver::with("h100-sxm5-80gb", 2);
    let gpu = driver.gpu(0);
    let mut pci = get!(driver, nvmlDeviceGetPciInfo_v3(gpu)).unwrap();
    // The header: persistence mode counts as a use of the GPU.
    assert_eq!(
        code!(driver, nvmlDeviceRemoveGpu_v2(&mut pci, 0, 0)),
        Code::IN_USE
    );
    assert_eq!(
        code!(driver, nvmlDeviceSetPersistenceMode(gpu, 0)),
        Code::SUCCESS
    );
    let pid = busy(&driver);
    assert_eq!(
        code!(driver, nvmlDeviceModifyDrainState(&mut pci, 1)),
        Code::SUCCESS
    );
    assert_eq!(get!(driver, nvmlDeviceQueryDrainState(&mut pci)), Ok(1));
    assert_eq!(
        code!(driver, nvmlDeviceRemoveGpu_v2(&mut pci, 0, 0)),
        Code::IN_USE
    );
    driver.node.stop_workload(pid).unwrap();
    get!(
        driver,
        nvmlDeviceCreateGpuInstance(driver.partitioned(0), 19)
    )
    .unwrap();
    assert_eq!(
        code!(driver, nvmlDeviceRemoveGpu_v2(&mut pci, 0, 0)),
        Code::SUCCESS
    );
    assert_eq!(get!(driver, nvmlDeviceGetCount_v2()), Ok(1));
    assert_eq!(
        get!(driver, nvmlDeviceGetMinorNumber(driver.gpu(0))),
        Ok(1),
        "indices close up"
    );
    assert_eq!(
        code!(driver, nvmlDeviceDiscoverGpus(&mut pci)),
        Code::SUCCESS
    );
    assert_eq!(get!(driver, nvmlDeviceGetCount_v2()), Ok(2));
    assert_eq!(get!(driver, nvmlDeviceQueryDrainState(&mut pci)), Ok(0));
    // The driver begins with it afresh: without instances, and a mode that lives in the driver is gone.
    assert_eq!(modes(&driver, driver.gpu(0)), Ok((0, 0)));
    assert!(
        driver.node.state().unwrap().gpus[0]
            .mig
            .instances
            .is_empty()
    );
}
