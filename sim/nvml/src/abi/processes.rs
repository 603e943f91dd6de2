//! Processes on a device, and accounting of them.

use nvml_wrapper_sys::bindings::{
    nvmlAccountingStats_t, nvmlProcessDetail_v1_t, nvmlProcessDetailList_v1_t,
    nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlProcessUtilizationInfo_v1_t,
    nvmlProcessUtilizationSample_t, nvmlProcessesUtilizationInfo_v1_t,
};

use super::{
    call::{Call, Device},
    export::exports,
    handle::Handle,
    pointer::{Out, put_list},
    structs::{check_version, nvmlAccountingStats_v2_t},
};
use crate::{Code, model::Workload};

const MIB: u64 = 1 << 20;
/// Instance id of a process that uses a whole GPU.
const NO_INSTANCE: u32 = 0xFFFF_FFFF;
/// Distance of the driver's samples of processes, microseconds.
const SAMPLE_PERIOD_US: u64 = 1_000_000;
/// Processes that the driver's accounting keeps.
const ACCOUNTING_BUFFER: u32 = 4000;

/// Which processes a list shows.
#[derive(Clone, Copy)]
enum Kind {
    Compute,
    Graphics,
    Mps,
}

impl Kind {
    fn includes(self, workload: &Workload) -> bool {
        match self {
            Kind::Compute => !workload.graphics,
            Kind::Graphics => workload.graphics,
            Kind::Mps => workload.mps,
        }
    }
}

/// Processes on the call's device: all of a GPU, or those of a MIG device. All of a partitioned GPU are for root to see.
fn processes(call: &Call, kind: Kind) -> Result<Vec<&Workload>, Code> {
    let position = call.position()?;
    let node = call.node();
    let all: Vec<&Workload> = match call.device()? {
        Device::Gpu(gpu) => {
            if gpu.mig.current {
                call.privileged()?;
            }
            node.workloads_on(position).collect()
        }
        Device::Mig(mig) => node
            .workloads_in(position, mig.instance.id, Some(mig.compute.id))
            .collect(),
    };
    Ok(all
        .into_iter()
        .filter(|workload| kind.includes(workload))
        .collect())
}

fn put_v1(
    call: &Call,
    kind: Kind,
    count: Out<u32>,
    infos: Out<nvmlProcessInfo_v1_t>,
) -> Result<(), Code> {
    let list = processes(call, kind)?;
    let info = |workload: &&Workload| nvmlProcessInfo_v1_t {
        pid: workload.pid,
        usedGpuMemory: workload.memory_mib * MIB,
    };
    put_list(infos, count, &list.iter().map(info).collect::<Vec<_>>())
}

fn put_v2(
    call: &Call,
    kind: Kind,
    count: Out<u32>,
    infos: Out<nvmlProcessInfo_v2_t>,
) -> Result<(), Code> {
    let list = processes(call, kind)?;
    let info = |workload: &&Workload| nvmlProcessInfo_v2_t {
        pid: workload.pid,
        usedGpuMemory: workload.memory_mib * MIB,
        gpuInstanceId: workload.instance.unwrap_or(NO_INSTANCE),
        computeInstanceId: workload.compute.unwrap_or(NO_INSTANCE),
    };
    put_list(infos, count, &list.iter().map(info).collect::<Vec<_>>())
}

fn percent(fraction: f64) -> u32 {
    (fraction.clamp(0.0, 1.0) * 100.0).round() as u32
}

/// The newest sample of each process, if it is newer than `last_seen_us`.
fn sampled(call: &Call, last_seen_us: u64) -> Result<(u64, Vec<&Workload>), Code> {
    call.whole_gpu()?;
    let position = call.position()?;
    let time = call.now_us() / SAMPLE_PERIOD_US * SAMPLE_PERIOD_US;
    let fresh = |workload: &&Workload| time > last_seen_us && workload.since_us <= time;
    let list: Vec<_> = call.node().workloads_on(position).filter(fresh).collect();
    if list.is_empty() {
        Err(Code::NOT_FOUND)
    } else {
        Ok((time, list))
    }
}

/// The workload with a pid while accounting is on: it is off under MIG, whatever was set.
fn accounted(call: &Call, pid: u32) -> Result<&Workload, Code> {
    let list = accounted_all(call)?;
    list.into_iter()
        .find(|workload| workload.pid == pid)
        .ok_or(Code::NOT_FOUND)
}

fn accounted_all(call: &Call) -> Result<Vec<&Workload>, Code> {
    let gpu = call.gpu()?;
    let position = call.position()?;
    let on = gpu.modes.accounting && !gpu.mig.current;
    Ok(call.node().workloads_on(position).filter(|_| on).collect())
}

exports! {
    query nvmlDeviceGetComputeRunningProcesses(
        device: Handle,
        infoCount: Out<u32>,
        infos: Out<nvmlProcessInfo_v1_t>,
    ) |call| {
        put_v1(call, Kind::Compute, infoCount, infos)
    };
    query nvmlDeviceGetComputeRunningProcesses_v2(
        device: Handle,
        infoCount: Out<u32>,
        infos: Out<nvmlProcessInfo_v2_t>,
    ) |call| {
        put_v2(call, Kind::Compute, infoCount, infos)
    };
    query nvmlDeviceGetComputeRunningProcesses_v3(
        device: Handle,
        infoCount: Out<u32>,
        infos: Out<nvmlProcessInfo_v2_t>,
    ) |call| {
        put_v2(call, Kind::Compute, infoCount, infos)
    };
    query nvmlDeviceGetGraphicsRunningProcesses(
        device: Handle,
        infoCount: Out<u32>,
        infos: Out<nvmlProcessInfo_v1_t>,
    ) |call| {
        put_v1(call, Kind::Graphics, infoCount, infos)
    };
    query nvmlDeviceGetGraphicsRunningProcesses_v2(
        device: Handle,
        infoCount: Out<u32>,
        infos: Out<nvmlProcessInfo_v2_t>,
    ) |call| {
        put_v2(call, Kind::Graphics, infoCount, infos)
    };
    query nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: Handle,
        infoCount: Out<u32>,
        infos: Out<nvmlProcessInfo_v2_t>,
    ) |call| {
        put_v2(call, Kind::Graphics, infoCount, infos)
    };
    query nvmlDeviceGetMPSComputeRunningProcesses(
        device: Handle,
        infoCount: Out<u32>,
        infos: Out<nvmlProcessInfo_v1_t>,
    ) |call| {
        put_v1(call, Kind::Mps, infoCount, infos)
    };
    query nvmlDeviceGetMPSComputeRunningProcesses_v2(
        device: Handle,
        infoCount: Out<u32>,
        infos: Out<nvmlProcessInfo_v2_t>,
    ) |call| {
        put_v2(call, Kind::Mps, infoCount, infos)
    };
    query nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: Handle,
        infoCount: Out<u32>,
        infos: Out<nvmlProcessInfo_v2_t>,
    ) |call| {
        put_v2(call, Kind::Mps, infoCount, infos)
    };
    query nvmlDeviceGetRunningProcessDetailList(
        device: Handle,
        plist: Out<nvmlProcessDetailList_v1_t>,
    ) |call| {
        check_version(plist, 1)?;
        let asked = plist.get()?;
        let kind = match asked.mode {
            0 => Kind::Compute,
            1 => Kind::Graphics,
            2 => Kind::Mps,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        let list = processes(call, kind)?;
        plist.put(nvmlProcessDetailList_v1_t { numProcArrayEntries: list.len() as u32, ..asked })?;
        if (asked.numProcArrayEntries as usize) < list.len() {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        let details = list.iter().map(|workload| nvmlProcessDetail_v1_t {
            pid: workload.pid,
            usedGpuMemory: workload.memory_mib * MIB,
            gpuInstanceId: workload.instance.unwrap_or(NO_INSTANCE),
            computeInstanceId: workload.compute.unwrap_or(NO_INSTANCE),
            usedGpuCcProtectedMemory: 0,
        });
        if list.is_empty() {
            return Ok(());
        }
        // SAFETY: the header has the caller put a pointer to `numProcArrayEntries` entries there.
        unsafe { Out::from_caller(asked.procArray) }.put_all(details)
    };
    query nvmlDeviceGetProcessUtilization(
        device: Handle,
        utilization: Out<nvmlProcessUtilizationSample_t>,
        processSamplesCount: Out<u32>,
        lastSeenTimeStamp: u64,
    ) |call| {
        let (time, list) = sampled(call, lastSeenTimeStamp)?;
        let samples: Vec<_> = list
            .iter()
            .map(|workload| nvmlProcessUtilizationSample_t {
                pid: workload.pid,
                timeStamp: time,
                smUtil: percent(workload.load.sm),
                memUtil: percent(workload.load.dram),
                encUtil: percent(workload.load.encoder),
                decUtil: percent(workload.load.decoder),
            })
            .collect();
        put_list(utilization, processSamplesCount, &samples)
    };
    query nvmlDeviceGetProcessesUtilizationInfo(
        device: Handle,
        procesesUtilInfo: Out<nvmlProcessesUtilizationInfo_v1_t>,
    ) |call| {
        check_version(procesesUtilInfo, 1)?;
        let asked = procesesUtilInfo.get()?;
        let (time, list) = sampled(call, asked.lastSeenTimeStamp)?;
        procesesUtilInfo.put(nvmlProcessesUtilizationInfo_v1_t { processSamplesCount: list.len() as u32, ..asked })?;
        if (asked.processSamplesCount as usize) < list.len() {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        // SAFETY: the header has the caller put a pointer to `processSamplesCount` entries there.
        unsafe { Out::from_caller(asked.procUtilArray) }.put_all(list.iter().map(|workload| nvmlProcessUtilizationInfo_v1_t {
            timeStamp: time,
            pid: workload.pid,
            smUtil: percent(workload.load.sm),
            memUtil: percent(workload.load.dram),
            encUtil: percent(workload.load.encoder),
            decUtil: percent(workload.load.decoder),
            jpgUtil: percent(workload.load.jpeg),
            ofaUtil: percent(workload.load.ofa),
        }))
    };

    query nvmlDeviceGetAccountingMode(device: Handle, mode: Out<u32>) |call| {
        let gpu = call.gpu()?;
        mode.put((gpu.modes.accounting && !gpu.mig.current).into())
    };
    mutation nvmlDeviceSetAccountingMode(device: Handle, mode: u32) |call| {
        call.whole_gpu()?;
        if mode > 1 {
            return Err(Code::INVALID_ARGUMENT);
        }
        call.change(|gpu| gpu.modes.accounting = mode == 1)
    };
    query nvmlDeviceGetAccountingBufferSize(device: Handle, bufferSize: Out<u32>) |call| {
        call.gpu()?;
        bufferSize.put(ACCOUNTING_BUFFER)
    };
    query nvmlDeviceGetAccountingPids(device: Handle, count: Out<u32>, pids: Out<u32>) |call| {
        let list: Vec<u32> = accounted_all(call)?.iter().map(|workload| workload.pid).collect();
        put_list(pids, count, &list)
    };
    // The active time is 0 until a process ends; ended ones are not kept. Starts are in microseconds.
    query nvmlDeviceGetAccountingStats(
        device: Handle,
        pid: u32,
        stats: Out<nvmlAccountingStats_t>,
    ) |call| {
        let workload = accounted(call, pid)?;
        stats.put(nvmlAccountingStats_t {
            gpuUtilization: percent(workload.load.sm),
            memoryUtilization: percent(workload.load.dram),
            maxMemoryUsage: workload.memory_mib * MIB,
            time: 0,
            startTime: workload.since_us,
            isRunning: 1,
            reserved: [0; 5],
        })
    };
    query nvmlDeviceGetAccountingStats_v2(
        device: Handle,
        stats: Out<nvmlAccountingStats_v2_t>,
    ) |call| {
        let workload = accounted(call, stats.get()?.pid)?;
        let samples = call.now_us().saturating_sub(workload.since_us) / SAMPLE_PERIOD_US + 1;
        let (gpu, memory) = (percent(workload.load.sm), percent(workload.load.dram));
        stats.put(nvmlAccountingStats_v2_t {
            pid: workload.pid,
            isRunning: 1,
            gpuUtilization: gpu,
            memoryUtilization: memory,
            maxMemoryUsage: workload.memory_mib * MIB,
            sampleCount: samples as u32,
            // Sums are in hundredths of a percent.
            sumGpuUtil: samples * u64::from(gpu) * 100,
            sumFbUtil: samples * u64::from(memory) * 100,
            time: 0,
            startTime: workload.since_us,
        })
    };
}
