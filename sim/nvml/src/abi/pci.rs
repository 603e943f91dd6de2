//! PCI identity and the PCI Express link.

use nvml_wrapper_sys::bindings::{nvmlPciInfo_t, nvmlPciInfoExt_v1_t};

use super::{
    export::exports,
    handle::Handle,
    pointer::{Out, fixed},
    structs::{PciInfoV1, PciInfoV2, put_versioned},
};
use crate::{
    Code,
    model::{PciAddress, board::PciIds},
};

/// `nvmlPcieUtilCounter_t`.
const PCIE_TX: u32 = 0;
const PCIE_RX: u32 = 1;

pub(super) fn pci_info(address: &PciAddress, ids: &PciIds) -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        busIdLegacy: fixed(&address.legacy()),
        domain: address.domain,
        bus: address.bus.into(),
        device: address.device.into(),
        pciDeviceId: ids.device_word(),
        pciSubSystemId: ids.subsystem_word(),
        busId: fixed(&address.long()),
    }
}

pub(super) fn pci_info_v2(address: &PciAddress, ids: &PciIds) -> PciInfoV2 {
    PciInfoV2 {
        first: PciInfoV1 {
            busId: fixed(&address.legacy()),
            domain: address.domain,
            bus: address.bus.into(),
            device: address.device.into(),
            pciDeviceId: ids.device_word(),
        },
        pciSubSystemId: ids.subsystem_word(),
    }
}

/// Transfer rate of one lane in MT/s (`nvmlDeviceGetPcieSpeed` reports the link in Mbps per lane).
fn lane_speed(generation: u32) -> u32 {
    match generation {
        1 => 2_500,
        2 => 5_000,
        generation => 8_000 << (generation.clamp(3, 6) - 3),
    }
}

exports! {
    query nvmlDeviceGetPciInfo_v3(device: Handle, pci: Out<nvmlPciInfo_t>) |call| {
        let gpu = call.gpu()?;
        pci.put(pci_info(&gpu.pci, &gpu.board.pci))
    };
    query nvmlDeviceGetPciInfo_v2(device: Handle, pci: Out<nvmlPciInfo_t>) |call| {
        let gpu = call.gpu()?;
        pci.cast().put(pci_info_v2(&gpu.pci, &gpu.board.pci))
    };
    query nvmlDeviceGetPciInfo(device: Handle, pci: Out<nvmlPciInfo_t>) |call| {
        let gpu = call.gpu()?;
        pci.cast().put(pci_info_v2(&gpu.pci, &gpu.board.pci).first)
    };
    query nvmlDeviceGetPciInfoExt(device: Handle, pci: Out<nvmlPciInfoExt_v1_t>) |call| {
        let gpu = call.gpu()?;
        put_versioned(pci, 1, |version| nvmlPciInfoExt_v1_t {
            version,
            domain: gpu.pci.domain,
            bus: gpu.pci.bus.into(),
            device: gpu.pci.device.into(),
            pciDeviceId: gpu.board.pci.device_word(),
            pciSubSystemId: gpu.board.pci.subsystem_word(),
            baseClass: gpu.board.pci.class >> 16,
            subClass: gpu.board.pci.class >> 8 & 0xFF,
            busId: fixed(&gpu.pci.long()),
        })
    };
    query nvmlDeviceGetMaxPcieLinkGeneration(device: Handle, maxLinkGen: Out<u32>) |call| {
        maxLinkGen.put(call.gpu()?.board.pcie.generation)
    };
    query nvmlDeviceGetGpuMaxPcieLinkGeneration(device: Handle, maxLinkGenDevice: Out<u32>) |call| {
        maxLinkGenDevice.put(call.gpu()?.board.pcie.device_generation)
    };
    query nvmlDeviceGetMaxPcieLinkWidth(device: Handle, maxLinkWidth: Out<u32>) |call| {
        maxLinkWidth.put(call.gpu()?.board.pcie.width)
    };
    query nvmlDeviceGetCurrPcieLinkGeneration(device: Handle, currLinkGen: Out<u32>) |call| {
        currLinkGen.put(call.gpu()?.board.pcie.generation)
    };
    query nvmlDeviceGetCurrPcieLinkWidth(device: Handle, currLinkWidth: Out<u32>) |call| {
        currLinkWidth.put(call.gpu()?.board.pcie.width)
    };
    query nvmlDeviceGetPcieSpeed(device: Handle, pcieSpeed: Out<u32>) |call| {
        pcieSpeed.put(lane_speed(call.gpu()?.board.pcie.generation))
    };
    // An enumeration: 1 for generation 1, and so on.
    query nvmlDeviceGetPcieLinkMaxSpeed(device: Handle, maxSpeed: Out<u32>) |call| {
        maxSpeed.put(call.gpu()?.board.pcie.generation)
    };
    // KB/s over a window of 20 ms.
    query nvmlDeviceGetPcieThroughput(device: Handle, counter: u32, value: Out<u32>) |call| {
        let reading = call.reading()?;
        match counter {
            PCIE_TX => value.put(reading.pcie_tx_kb_s),
            PCIE_RX => value.put(reading.pcie_rx_kb_s),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    };
    query nvmlDeviceGetPcieReplayCounter(device: Handle, value: Out<u32>) |call| {
        value.put(call.meters()?.pcie_replays as u32)
    };
}
