//! Event sets.

use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::*;
use sim_nvml::{Code, model::health::EccError};

use crate::driver::{Driver, code, get, version};

const XID: u64 = 8;
const MIG_CONFIG_CHANGE: u64 = 0x100;
const WHOLE: u32 = 0xFFFF_FFFF;

fn set(driver: &Driver, gpus: &[u32], kinds: u64) -> nvmlEventSet_t {
    let set = get!(driver, nvmlEventSetCreate()).unwrap();
    for gpu in gpus {
        assert_eq!(
            code!(
                driver,
                nvmlDeviceRegisterEvents(driver.gpu(*gpu), kinds, set)
            ),
            Code::SUCCESS
        );
    }
    set
}

fn wait(driver: &Driver, set: nvmlEventSet_t, timeout_ms: u32) -> Result<nvmlEventData_t, Code> {
    let mut data: nvmlEventData_t = unsafe { std::mem::zeroed() };
    match code!(driver, nvmlEventSetWait_v2(set, &mut data, timeout_ms)) {
        Code::SUCCESS => Ok(data),
        code => Err(code),
    }
}

#[test]
fn every_set_gets_every_event_it_wants_once() {
    let driver = Driver::with("h100-sxm5-80gb", 2);
    let (both, second) = (set(&driver, &[0, 1], XID), set(&driver, &[1], XID));
    driver.node.xid(0, 31, None).unwrap();
    driver.node.xid(1, 94, Some((9, 0))).unwrap();
    let seen = |set| {
        let data = wait(&driver, set, 0)?;
        let device = get!(driver, nvmlDeviceGetIndex(data.device)).unwrap();
        Ok((
            device,
            data.eventType,
            data.eventData,
            data.gpuInstanceId,
            data.computeInstanceId,
        ))
    };
    assert_eq!(seen(both), Ok((0, XID, 31, WHOLE, WHOLE)));
    assert_eq!(seen(both), Ok((1, XID, 94, 9, 0)));
    assert_eq!(seen(both), Err(Code::TIMEOUT));
    assert_eq!(seen(second), Ok((1, XID, 94, 9, 0)));
    assert_eq!(seen(second), Err(Code::TIMEOUT));
    let late = set(&driver, &[0, 1], XID);
    assert_eq!(
        seen(late),
        Err(Code::TIMEOUT),
        "events from before the registration are not for it"
    );
}

/// Shutdown frees what belongs to the library's use; handles from before are no handles of the next.
#[test]
fn sets_and_samples_end_with_the_librarys_use() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let set = set(&driver, &[0], XID);
    let sample = get!(driver, nvmlGpmSampleAlloc()).unwrap();
    assert_eq!(code!(driver, nvmlInit_v2()), Code::SUCCESS);
    assert_eq!(code!(driver, nvmlShutdown()), Code::SUCCESS);
    assert_eq!(
        wait(&driver, set, 0).err(),
        Some(Code::TIMEOUT),
        "one use is left"
    );
    assert_eq!(code!(driver, nvmlShutdown()), Code::SUCCESS);
    assert_eq!(code!(driver, nvmlInit_v2()), Code::SUCCESS);
    driver.node.xid(0, 31, None).unwrap();
    assert_eq!(wait(&driver, set, 0).err(), Some(Code::INVALID_ARGUMENT));
    assert_eq!(
        code!(driver, nvmlGpmSampleGet(driver.gpu(0), sample)),
        Code::INVALID_ARGUMENT
    );
    assert_eq!(
        code!(driver, nvmlGpmSampleFree(sample)),
        Code::INVALID_ARGUMENT
    );
}

#[test]
fn kinds_are_masked() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let supported = get!(driver, nvmlDeviceGetSupportedEventTypes(driver.gpu(0))).unwrap();
    assert_eq!(
        supported & (XID | 1 | 2 | MIG_CONFIG_CHANGE),
        XID | 1 | 2 | MIG_CONFIG_CHANGE
    );
    let set = set(&driver, &[0], MIG_CONFIG_CHANGE);
    driver.node.ecc(0, EccError::Dbe, 1).unwrap();
    assert_eq!(wait(&driver, set, 0).err(), Some(Code::TIMEOUT));
    driver.partitioned(0);
    assert_eq!(wait(&driver, set, 0).unwrap().eventType, MIG_CONFIG_CHANGE);
    let unknown = code!(
        driver,
        nvmlDeviceRegisterEvents(driver.gpu(0), 1 << 40, set)
    );
    assert_eq!(unknown, Code::NOT_SUPPORTED);
}

#[test]
fn a_waiting_call_wakes_for_an_event() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let set = set(&driver, &[0], XID).addr();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            wait(&driver, std::ptr::without_provenance_mut(set), 30_000).map(|data| data.eventData)
        });
        std::thread::sleep(Duration::from_millis(50));
        driver.node.xid(0, 119, None).unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(119));
    });
}

#[test]
fn a_wait_ends_with_its_time() {
    let driver = Driver::with("t4-16gb", 1);
    let set = set(&driver, &[0], XID);
    let start = Instant::now();
    assert_eq!(wait(&driver, set, 60).err(), Some(Code::TIMEOUT));
    assert!(start.elapsed() >= Duration::from_millis(60));
}

#[test]
fn the_event_of_a_fall_comes_before_the_loss() {
    let driver = Driver::with("h100-sxm5-80gb", 2);
    let set = set(&driver, &[0, 1], XID);
    driver.node.fall_off(0).unwrap();
    assert_eq!(wait(&driver, set, 0).unwrap().eventData, 79);
    assert_eq!(wait(&driver, set, 30_000).err(), Some(Code::GPU_IS_LOST));
}

#[test]
fn a_freed_set_is_gone() {
    let driver = Driver::with("t4-16gb", 1);
    let set = set(&driver, &[0], XID);
    assert_eq!(code!(driver, nvmlEventSetFree(set)), Code::SUCCESS);
    assert_eq!(code!(driver, nvmlEventSetFree(set)), Code::INVALID_ARGUMENT);
    assert_eq!(wait(&driver, set, 0).err(), Some(Code::INVALID_ARGUMENT));
    assert_eq!(
        code!(driver, nvmlEventSetFree(std::ptr::null_mut())),
        Code::INVALID_ARGUMENT
    );
}

#[test]
fn removal_and_rescan_are_system_events() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let mut create = nvmlSystemEventSetCreateRequest_t {
        version: version::<nvmlSystemEventSetCreateRequest_t>(1),
        set: std::ptr::null_mut(),
    };
    assert_eq!(
        code!(driver, nvmlSystemEventSetCreate(&mut create)),
        Code::SUCCESS
    );
    let set = create.set;
    let mut register = nvmlSystemRegisterEventRequest_t {
        version: version::<nvmlSystemRegisterEventRequest_t>(1),
        eventTypes: 3,
        set,
    };
    assert_eq!(
        code!(driver, nvmlSystemRegisterEvents(&mut register)),
        Code::SUCCESS
    );
    let mut pci = get!(driver, nvmlDeviceGetPciInfo_v3(driver.gpu(0))).unwrap();
    assert_eq!(
        code!(driver, nvmlDeviceSetPersistenceMode(driver.gpu(0), 0)),
        Code::SUCCESS
    );
    assert_eq!(
        code!(driver, nvmlDeviceRemoveGpu_v2(&mut pci, 0, 0)),
        Code::SUCCESS
    );
    assert_eq!(
        code!(driver, nvmlDeviceDiscoverGpus(&mut pci)),
        Code::SUCCESS
    );
    let mut data = [nvmlSystemEventData_v1_t {
        eventType: 0,
        gpuId: 0,
    }; 4];
    let mut wait = nvmlSystemEventSetWaitRequest_t {
        version: version::<nvmlSystemEventSetWaitRequest_t>(1),
        timeoutms: 0,
        set,
        data: data.as_mut_ptr(),
        dataSize: 4,
        numEvent: 0,
    };
    assert_eq!(
        code!(driver, nvmlSystemEventSetWait(&mut wait)),
        Code::SUCCESS
    );
    // 1 is the unbinding, 2 the binding.
    assert_eq!(
        (wait.numEvent, data[0].eventType, data[1].eventType),
        (2, 1, 2)
    );
    let mut free = nvmlSystemEventSetFreeRequest_t {
        version: version::<nvmlSystemEventSetFreeRequest_t>(1),
        set,
    };
    assert_eq!(
        code!(driver, nvmlSystemEventSetFree(&mut free)),
        Code::SUCCESS
    );
    assert_eq!(
        code!(driver, nvmlSystemEventSetWait(&mut wait)),
        Code::INVALID_ARGUMENT
    );
}
