//! Processes, topology, NVLink and fabric.

use nvml_wrapper_sys::bindings::*;
use sim_nvml::{
    Code,
    admin::WorkloadSpec,
    model::{Load, fabric::FabricState},
};

use crate::driver::{Driver, code, get, version};

const NONE: u32 = 0xFFFF_FFFF;

fn list(driver: &Driver, device: nvmlDevice_t) -> Vec<(u32, u64, u32, u32)> {
    let mut count = 8;
    let mut infos = [nvmlProcessInfo_t {
        pid: 0,
        usedGpuMemory: 0,
        gpuInstanceId: 0,
        computeInstanceId: 0,
    }; 8];
    let code = code!(
        driver,
        nvmlDeviceGetComputeRunningProcesses_v3(device, &mut count, infos.as_mut_ptr())
    );
    assert_eq!(code, Code::SUCCESS);
    infos[..count as usize]
        .iter()
        .map(|info| {
            (
                info.pid,
                info.usedGpuMemory >> 20,
                info.gpuInstanceId,
                info.computeInstanceId,
            )
        })
        .collect()
}

#[test]
fn a_process_is_listed_where_it_runs() {
    let driver = Driver::with("h100-sxm5-80gb", 2);
    let workload = |gpu, instance| WorkloadSpec {
        gpu,
        instance,
        memory_mib: 700,
        load: Load::compute(30),
        ..WorkloadSpec::default()
    };
    let whole = driver.node.run_workload(workload(1, None)).unwrap();
    assert_eq!(list(&driver, driver.gpu(1)), [(whole, 700, NONE, NONE)]);
    assert_eq!(list(&driver, driver.gpu(0)), []);

    let gpu = driver.partitioned(0);
    for _ in 0..2 {
        let instance = get!(driver, nvmlDeviceCreateGpuInstance(gpu, 9)).unwrap();
        get!(driver, nvmlGpuInstanceCreateComputeInstance(instance, 2)).unwrap();
    }
    let inside = driver.node.run_workload(workload(0, Some((2, 0)))).unwrap();
    assert_eq!(list(&driver, gpu), [(inside, 700, 2, 0)]);
    let devices =
        [0, 1].map(|index| get!(driver, nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)).unwrap());
    assert_eq!(list(&driver, devices[0]), [], "instance 1");
    assert_eq!(
        list(&driver, devices[1]),
        [(inside, 700, 2, 0)],
        "instance 2"
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetMemoryInfo(devices[1]))
            .unwrap()
            .used
            >> 20,
        700
    );

    // What is in use stays.
    let instance = get!(driver, nvmlDeviceGetGpuInstanceById(gpu, 2)).unwrap();
    let compute = get!(driver, nvmlGpuInstanceGetComputeInstanceById(instance, 0)).unwrap();
    assert_eq!(
        code!(driver, nvmlComputeInstanceDestroy(compute)),
        Code::IN_USE
    );
    driver.node.stop_workload(inside).unwrap();
    assert_eq!(
        code!(driver, nvmlComputeInstanceDestroy(compute)),
        Code::SUCCESS
    );
}

#[test]
fn a_small_list_is_told_how_long_it_must_be() {
    let driver = Driver::with("t4-16gb", 1);
    let gpu = driver.gpu(0);
    let mut count = 0;
    let null = std::ptr::null_mut();
    assert_eq!(
        code!(
            driver,
            nvmlDeviceGetComputeRunningProcesses_v3(gpu, &mut count, null)
        ),
        Code::SUCCESS
    );
    driver
        .node
        .run_workload(WorkloadSpec {
            memory_mib: 1,
            ..WorkloadSpec::default()
        })
        .unwrap();
    assert_eq!(
        code!(
            driver,
            nvmlDeviceGetComputeRunningProcesses_v3(gpu, &mut count, null)
        ),
        Code::INSUFFICIENT_SIZE
    );
    assert_eq!(count, 1);
    assert_eq!(
        code!(
            driver,
            nvmlDeviceGetComputeRunningProcesses_v3(gpu, &mut count, null)
        ),
        Code::INVALID_ARGUMENT
    );
}

#[test]
fn graphics_and_mps_have_lists_of_their_own() {
    let driver = Driver::with("t4-16gb", 1);
    let gpu = driver.gpu(0);
    driver
        .node
        .run_workload(WorkloadSpec {
            graphics: true,
            ..WorkloadSpec::default()
        })
        .unwrap();
    driver
        .node
        .run_workload(WorkloadSpec {
            mps: true,
            ..WorkloadSpec::default()
        })
        .unwrap();
    let number = |mode| {
        let mut details: [nvmlProcessDetail_v1_t; 4] = unsafe { std::mem::zeroed() };
        let mut list = nvmlProcessDetailList_t {
            version: version::<nvmlProcessDetailList_t>(1),
            mode,
            numProcArrayEntries: 4,
            procArray: details.as_mut_ptr(),
        };
        assert_eq!(
            code!(
                driver,
                nvmlDeviceGetRunningProcessDetailList(gpu, &mut list)
            ),
            Code::SUCCESS
        );
        list.numProcArrayEntries
    };
    assert_eq!([number(0), number(1), number(2)], [1, 1, 1]);
}

#[test]
fn utilisation_by_process() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.gpu(0);
    let load = Load {
        sm: 0.4,
        dram: 0.2,
        ..Load::default()
    };
    let pid = driver
        .node
        .run_workload(WorkloadSpec {
            load,
            ..WorkloadSpec::default()
        })
        .unwrap();
    driver.node.step(std::time::Duration::from_secs(5)).unwrap();
    let mut count = 1;
    let mut sample: nvmlProcessUtilizationSample_t = unsafe { std::mem::zeroed() };
    assert_eq!(
        code!(
            driver,
            nvmlDeviceGetProcessUtilization(gpu, &mut sample, &mut count, 0)
        ),
        Code::SUCCESS
    );
    assert_eq!((sample.pid, sample.smUtil, sample.memUtil), (pid, 40, 20));
    let future = sample.timeStamp + 3_600_000_000;
    assert_eq!(
        code!(
            driver,
            nvmlDeviceGetProcessUtilization(gpu, &mut sample, &mut count, future)
        ),
        Code::NOT_FOUND
    );
}

#[test]
fn links_lead_to_switches_and_tell_when_they_are_down() {
    let driver = Driver::preset("dgx-h100");
    let gpu = driver.gpu(0);
    for link in 0..18 {
        assert_eq!(get!(driver, nvmlDeviceGetNvLinkState(gpu, link)), Ok(1));
        // NVLink 4 is 6 in the header's enumeration.
        assert_eq!(get!(driver, nvmlDeviceGetNvLinkVersion(gpu, link)), Ok(6));
        assert_eq!(
            get!(driver, nvmlDeviceGetNvLinkRemoteDeviceType(gpu, link)),
            Ok(2)
        );
    }
    assert_eq!(
        get!(driver, nvmlDeviceGetNvLinkState(gpu, 18)),
        Err(Code::INVALID_ARGUMENT)
    );
    driver.node.nvlink(0, 3, false, 7).unwrap();
    assert_eq!(get!(driver, nvmlDeviceGetNvLinkState(gpu, 3)), Ok(0));
    assert_eq!(
        get!(driver, nvmlDeviceGetNvLinkRemoteDeviceType(gpu, 3)),
        Ok(255)
    );
    assert_eq!(
        get!(driver, nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu, 3)).err(),
        Some(Code::NOT_SUPPORTED)
    );
    let other = driver.gpu(5);
    assert_eq!(
        get!(driver, nvmlDeviceGetP2PStatus(gpu, other, 2)),
        Ok(0),
        "the other links still join them"
    );
    let plain = Driver::with("l40s-48gb", 1);
    assert_eq!(
        get!(plain, nvmlDeviceGetNvLinkState(plain.gpu(0), 0)),
        Err(Code::NOT_SUPPORTED)
    );
}

/// DGX H100: GPUs 0–3 on NUMA node 0 with CPUs 0–55 and 112–167, GPUs 4–7 on node 1.
#[test]
fn topology_of_a_dgx() {
    let driver = Driver::preset("dgx-h100");
    assert_eq!(
        get!(
            driver,
            nvmlDeviceGetTopologyCommonAncestor(driver.gpu(0), driver.gpu(4))
        ),
        Ok(50),
        "SYS"
    );
    assert_eq!(
        get!(
            driver,
            nvmlDeviceGetTopologyCommonAncestor(driver.gpu(0), driver.gpu(3))
        ),
        Ok(40),
        "NODE"
    );
    let mut set = [0_u64; 4];
    assert_eq!(
        code!(
            driver,
            nvmlDeviceGetCpuAffinity(driver.gpu(0), 4, set.as_mut_ptr())
        ),
        Code::SUCCESS
    );
    let cpus: Vec<u32> = (0..256)
        .filter(|cpu| set[*cpu as usize / 64] >> (cpu % 64) & 1 == 1)
        .collect();
    assert_eq!(cpus, (0..=55).chain(112..=167).collect::<Vec<_>>());
    let mut count = 8;
    let mut gpus = [std::ptr::null_mut(); 8];
    assert_eq!(
        code!(
            driver,
            nvmlSystemGetTopologyGpuSet(60, &mut count, gpus.as_mut_ptr())
        ),
        Code::SUCCESS
    );
    assert_eq!(
        gpus[..count as usize],
        [4, 5, 6, 7].map(|index| driver.gpu(index))
    );
}

#[test]
fn fabric_in_three_versions() {
    let driver = Driver::preset("dgx-h100");
    let gpu = driver.gpu(0);
    let first = get!(driver, nvmlDeviceGetGpuFabricInfo(gpu)).unwrap();
    assert_eq!(
        (first.state, first.status, first.cliqueId, first.clusterUuid),
        (3, 0, 0, [0; 16])
    );
    let mut third: nvmlGpuFabricInfoV_t = unsafe { std::mem::zeroed() };
    third.version = version::<nvmlGpuFabricInfo_v3_t>(3);
    assert_eq!(
        code!(driver, nvmlDeviceGetGpuFabricInfoV(gpu, &mut third)),
        Code::SUCCESS
    );
    assert_eq!((third.state, third.healthSummary), (3, 1));
    // Degraded bandwidth: 1 in the two lowest bits.
    driver
        .node
        .fabric(0, FabricState::Completed, Some(0b1010_1001))
        .unwrap();
    assert_eq!(
        code!(driver, nvmlDeviceGetGpuFabricInfoV(gpu, &mut third)),
        Code::SUCCESS
    );
    assert_eq!((third.healthMask & 3, third.healthSummary), (1, 2));
    let mut second: nvmlGpuFabricInfo_v2_t = unsafe { std::mem::zeroed() };
    second.version = version::<nvmlGpuFabricInfo_v2_t>(2);
    let place = (&raw mut second).cast();
    assert_eq!(
        code!(driver, nvmlDeviceGetGpuFabricInfoV(gpu, place)),
        Code::SUCCESS
    );
    assert_eq!(second.healthMask, 0b1010_1001);
    let plain = Driver::with("a100-sxm4-40gb", 1);
    assert_eq!(
        get!(plain, nvmlDeviceGetGpuFabricInfo(plain.gpu(0))).err(),
        Some(Code::NOT_SUPPORTED)
    );
}

/// With a process go its memory and its load, though nobody changes the node.
#[test]
fn a_process_that_ended_leaves_nothing_behind() {
    let driver = Driver::with("h100-sxm5-80gb", 1);
    let gpu = driver.gpu(0);
    let shown = || {
        let memory = get!(driver, nvmlDeviceGetMemoryInfo(gpu)).unwrap();
        let busy = get!(driver, nvmlDeviceGetUtilizationRates(gpu)).unwrap();
        let energy = get!(driver, nvmlDeviceGetTotalEnergyConsumption(gpu)).unwrap();
        (memory.used, busy.gpu, energy)
    };
    let (used, ..) = shown();
    let mut child = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap();
    driver
        .node
        .run_workload(WorkloadSpec {
            memory_mib: 4096,
            load: Load::compute(100),
            pid: Some(child.id()),
            ..WorkloadSpec::default()
        })
        .unwrap();
    let (with, busy, energy) = shown();
    assert_eq!((with - used, busy), (4096 << 20, 100));
    child.kill().unwrap();
    child.wait().unwrap();
    let (after, idle, later) = shown();
    assert_eq!((after, idle), (used, 0));
    assert!(later >= energy, "{later} {energy}");
    assert!(driver.node.state().unwrap().workloads.is_empty());
}
