//! What only root may do, on a node that enforces it.

use nvml_wrapper_sys::bindings::*;
use sim_nvml::{
    Code,
    model::{Node, Personality},
    presets::NodeSpec,
};

use crate::driver::{Driver, code, get};

/// A driver with one H100 that enforces permissions.
fn enforcing() -> Driver {
    let mut spec = NodeSpec::uniform("h100-sxm5-80gb", 1).unwrap();
    spec.personality = Some(Personality {
        enforce_permissions: true,
        ..Personality::default()
    });
    Driver::of(&spec)
}

/// Runs a check as a user without rights: credentials belong to threads, so the others keep theirs.
fn unprivileged(check: impl FnOnce() + Send) {
    const NOBODY: u32 = 65_534;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(NOBODY)).unwrap();
            }
            check();
        });
    });
}

#[test]
fn where_permissions_are_enforced_only_root_changes_anything() {
    let driver = enforcing();
    let gpu = driver.gpu(0).addr();
    let set = || {
        let gpu = std::ptr::without_provenance_mut(gpu);
        code!(driver, nvmlDeviceSetPersistenceMode(gpu, 1))
    };
    unprivileged(|| assert_eq!(set(), Code::NO_PERMISSION));
    if rustix::process::geteuid().is_root() {
        assert_eq!(set(), Code::SUCCESS);
    }
}

/// What the header says takes a privileged user, queries among it.
#[test]
fn where_permissions_are_enforced_only_root_looks_into_a_partitioned_gpu() {
    let driver = enforcing();
    let made = |node: &mut Node| {
        node.set_mig_mode(0, true, 0, 0).unwrap();
        let instance = node.create_gpu_instance(0, 9, None, 0, 0).unwrap();
        node.create_compute_instance(0, instance, 2, None, 0)
            .unwrap();
    };
    driver.node.store().update(made).unwrap();
    let gpu = driver.gpu(0).addr();
    // Who may not ask gets no handle of an instance, but another thread of the process may have one.
    let instance = get!(driver, nvmlDeviceGetGpuInstanceById(driver.gpu(0), 2));
    let instance = instance.map(|instance| instance.addr());
    let set = get!(driver, nvmlEventSetCreate()).unwrap();
    assert_eq!(
        code!(driver, nvmlDeviceRegisterEvents(driver.gpu(0), 8, set)),
        Code::SUCCESS
    );
    let set = set.addr();
    driver.node.xid(0, 94, Some((2, 0))).unwrap();
    driver.node.xid(0, 13, None).unwrap();
    unprivileged(|| {
        let gpu: nvmlDevice_t = std::ptr::without_provenance_mut(gpu);
        let (mut count, none) = (0, std::ptr::null_mut());
        let asked = [
            get!(driver, nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 9)).err(),
            get!(
                driver,
                nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu, 9, none)
            )
            .err(),
            get!(driver, nvmlDeviceGetGpuInstanceById(gpu, 2)).err(),
            get!(driver, nvmlDeviceGetSramEccErrorStatus(gpu)).err(),
            get!(driver, nvmlDeviceCreateGpuInstance(gpu, 9)).err(),
            get!(driver, nvmlDeviceSetMigMode(gpu, 0)).err(),
            get!(driver, nvmlDeviceGetMemoryInfo(gpu)).err(),
        ];
        assert_eq!(asked, [Some(Code::NO_PERMISSION); 7]);
        let mut instances = [std::ptr::null_mut(); 7];
        let list = instances.as_mut_ptr();
        assert_eq!(
            code!(driver, nvmlDeviceGetGpuInstances(gpu, 9, list, &mut count)),
            Code::NO_PERMISSION
        );
        assert!(get!(driver, nvmlDeviceGetGpuInstanceProfileInfo(gpu, 2)).is_ok());
        let device = get!(driver, nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)).unwrap();
        assert!(get!(driver, nvmlDeviceGetMemoryInfo(device)).is_ok());
        if let Ok(instance) = instance {
            looks_into(&driver, std::ptr::without_provenance_mut(instance));
        }
        // Of events, those of the whole device only.
        let mut data: nvmlEventData_t = unsafe { std::mem::zeroed() };
        let set = std::ptr::without_provenance_mut(set);
        assert_eq!(
            code!(driver, nvmlEventSetWait_v2(set, &mut data, 0)),
            Code::SUCCESS
        );
        assert_eq!((data.eventData, data.gpuInstanceId), (13, u32::MAX));
    });
}

fn looks_into(driver: &Driver, instance: nvmlGpuInstance_t) {
    let (mut count, none) = (0, std::ptr::null_mut());
    let asked = [
        get!(
            driver,
            nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 0)
        )
        .err(),
        get!(
            driver,
            nvmlGpuInstanceGetComputeInstancePossiblePlacements(instance, 0, none)
        )
        .err(),
        get!(driver, nvmlGpuInstanceGetComputeInstanceById(instance, 0)).err(),
        get!(driver, nvmlGpuInstanceCreateComputeInstance(instance, 0)).err(),
    ];
    assert_eq!(asked, [Some(Code::NO_PERMISSION); 4]);
    let mut computes = [std::ptr::null_mut(); 7];
    let list = computes.as_mut_ptr();
    assert_eq!(
        code!(
            driver,
            nvmlGpuInstanceGetComputeInstances(instance, 0, list, &mut count)
        ),
        Code::NO_PERMISSION
    );
    assert!(get!(driver, nvmlGpuInstanceGetInfo(instance)).is_ok());
}
