//! The system as a whole: versions, process names, excluded devices, confidential computing.

use std::ffi::c_char;

use nvml_wrapper_sys::bindings::{
    nvmlConfComputeSystemCaps_t, nvmlConfComputeSystemState_t, nvmlExcludedDeviceInfo_t,
    nvmlHwbcEntry_t, nvmlSystemConfComputeSettings_v1_t, nvmlSystemDriverBranchInfo_v1_t,
};

use super::{
    export::exports,
    pci::pci_info,
    pointer::{Out, fixed},
    structs::put_versioned,
};
use crate::{Code, model::Node};

/// `NVML_CC_ACCEPTING_CLIENT_REQUESTS_TRUE`: without confidential computing the GPUs always accept work.
const ACCEPTING: u32 = 1;

exports! {
    query nvmlSystemGetDriverVersion(version: Out<c_char>, length: u32) |call| {
        version.put_text(length, &call.node().driver.version)
    };
    query nvmlSystemGetNVMLVersion(version: Out<c_char>, length: u32) |call| {
        version.put_text(length, &call.node().driver.nvml)
    };
    query nvmlSystemGetCudaDriverVersion(cudaDriverVersion: Out<i32>) |call| {
        cudaDriverVersion.put(call.node().driver.cuda as i32)
    };
    query nvmlSystemGetCudaDriverVersion_v2(cudaDriverVersion: Out<i32>) |call| {
        cudaDriverVersion.put(call.node().driver.cuda as i32)
    };
    query nvmlSystemGetDriverBranch(
        branchInfo: Out<nvmlSystemDriverBranchInfo_v1_t>,
        length: u32,
    ) |call| {
        let branch = &call.node().driver.branch;
        if branch.len() >= length as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        put_versioned(branchInfo, 1, |version| nvmlSystemDriverBranchInfo_v1_t { version, branch: fixed(branch) })
    };
    query nvmlSystemGetProcessName(pid: u32, name: Out<c_char>, length: u32) |call| {
        let name = name.required()?;
        let full = process_name(call.node(), pid).ok_or(Code::NOT_FOUND)?;
        // The header: a name that does not fit is cut, never refused; but there must be room for something.
        let mut cut = (length as usize).checked_sub(1).ok_or(Code::INVALID_ARGUMENT)?.min(full.len());
        while !full.is_char_boundary(cut) {
            cut -= 1;
        }
        name.put_text(length, &full[..cut])
    };
    query nvmlSystemGetHicVersion(
        hwbcCount: Out<u32>,
        _hwbcEntries: Out<nvmlHwbcEntry_t>,
    ) |_| hwbcCount.put(0);
    query nvmlUnitGetCount(unitCount: Out<u32>) |_| unitCount.put(0);

    query nvmlGetExcludedDeviceCount(
        deviceCount: Out<u32>,
    ) |call| deviceCount.put(call.node().excluded.len() as u32);
    query nvmlGetExcludedDeviceInfoByIndex(index: u32, info: Out<nvmlExcludedDeviceInfo_t>) |call| {
        let excluded = call.node().excluded.get(index as usize).ok_or(Code::INVALID_ARGUMENT)?;
        let board = call.node().boards.get(&excluded.board_name).ok_or(Code::UNKNOWN)?;
        info.put(nvmlExcludedDeviceInfo_t { pciInfo: pci_info(&excluded.pci, &board.pci), uuid: fixed(&excluded.uuid) })
    };

    query nvmlSystemGetConfComputeCapabilities(capabilities: Out<nvmlConfComputeSystemCaps_t>) |_| {
        capabilities.put(nvmlConfComputeSystemCaps_t { cpuCaps: 0, gpusCaps: 0 })
    };
    query nvmlSystemGetConfComputeState(state: Out<nvmlConfComputeSystemState_t>) |_| {
        state.put(nvmlConfComputeSystemState_t { environment: 0, ccFeature: 0, devToolsMode: 0 })
    };
    query nvmlSystemGetConfComputeSettings(settings: Out<nvmlSystemConfComputeSettings_v1_t>) |_| {
        put_versioned(settings, 1, |version| nvmlSystemConfComputeSettings_v1_t {
            version,
            environment: 0,
            ccFeature: 0,
            devToolsMode: 0,
            multiGpuMode: 0,
        })
    };
    query nvmlSystemGetConfComputeGpusReadyState(
        isAcceptingWork: Out<u32>,
    ) |_| isAcceptingWork.put(ACCEPTING);
}

/// Name of a process: a simulated workload's own, otherwise the command line of a process of this machine.
fn process_name(node: &Node, pid: u32) -> Option<String> {
    if let Some(workload) = node.workloads.iter().find(|workload| workload.pid == pid) {
        return Some(workload.name.clone());
    }
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = line
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty());
    let name = words
        .map(String::from_utf8_lossy)
        .collect::<Vec<_>>()
        .join(" ");
    if name.is_empty() { None } else { Some(name) }
}
