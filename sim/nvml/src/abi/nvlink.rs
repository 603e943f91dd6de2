//! NVLinks of a GPU. Not answered while the GPU is partitioned: then the links are shut.

use nvml_wrapper_sys::bindings::{
    nvmlNvLinkInfo_v1_t, nvmlNvLinkInfo_v2_t, nvmlNvlinkFirmwareInfo_t,
    nvmlNvlinkFirmwareVersion_t, nvmlNvlinkGetBwMode_v1_t, nvmlPciInfo_t,
};

use super::{
    call::Call,
    export::exports,
    handle::Handle,
    pci::{pci_info, pci_info_v2},
    pointer::Out,
    structs::{PciInfoV2, put_versioned, version},
};
use crate::{
    Code,
    model::{
        Gpu, PciAddress,
        board::{Architecture, NvLinkSpec, PciIds},
        nvlink::{Link, LinkErrors, Remote},
    },
};

/// `nvmlIntNvLinkDeviceType_t`.
const REMOTE_GPU: u32 = 0;
const REMOTE_SWITCH: u32 = 2;
const REMOTE_UNKNOWN: u32 = 255;

/// PCI class of an NVSwitch: a bridge of no special kind.
const CLASS_SWITCH: u32 = 0x06_8000;

/// Full width of `nvmlSystemGetNvlinkBwMode`.
const BANDWIDTH_FULL: u32 = 0;

fn spec(call: &Call) -> Result<(&Gpu, NvLinkSpec), Code> {
    let gpu = call.whole_gpu()?;
    Ok((gpu, gpu.board.nvlink.ok_or(Code::NOT_SUPPORTED)?))
}

fn link(call: &Call, number: u32) -> Result<&Link, Code> {
    spec(call)?
        .0
        .links
        .get(number as usize)
        .ok_or(Code::INVALID_ARGUMENT)
}

/// Ids of the NVSwitch generation that goes with a GPU generation; later ones are not PCI devices of the node.
fn switch_ids(architecture: Architecture) -> PciIds {
    let device = match architecture {
        Architecture::Hopper => 0x22A3,
        _ => 0x1AF1,
    };
    PciIds {
        device,
        subsystem: 0,
        class: CLASS_SWITCH,
    }
}

/// Where a link leads, and the ids of what is there; NOT_SUPPORTED for a link that is down.
fn remote(call: &Call, number: u32) -> Result<(PciAddress, PciIds), Code> {
    let link = link(call, number)?;
    if !link.up {
        return Err(Code::NOT_SUPPORTED);
    }
    match &link.remote {
        Remote::None => Err(Code::NOT_SUPPORTED),
        Remote::Switch(address) => Ok((*address, switch_ids(call.gpu()?.board.architecture))),
        Remote::Gpu(position) => {
            let gpu = call.node().gpus.get(*position).ok_or(Code::UNKNOWN)?;
            Ok((gpu.pci, gpu.board.pci.clone()))
        }
    }
}

exports! {
    query nvmlDeviceGetNvLinkState(device: Handle, link: u32, isActive: Out<u32>) |call| {
        isActive.put(self::link(call, link)?.up.into())
    };
    query nvmlDeviceGetNvLinkVersion(device: Handle, link: u32, version: Out<u32>) |call| {
        self::link(call, link)?;
        version.put(spec(call)?.1.version)
    };
    query nvmlDeviceGetNvLinkCapability(
        device: Handle,
        link: u32,
        capability: u32,
        capResult: Out<u32>,
    ) |call| {
        self::link(call, link)?;
        match capability {
            // P2P, access to system memory, atomics of both kinds, validity.
            0..=3 | 5 => capResult.put(1),
            // SLI.
            4 => capResult.put(0),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    };
    query nvmlDeviceGetNvLinkRemotePciInfo_v2(
        device: Handle,
        link: u32,
        pci: Out<nvmlPciInfo_t>,
    ) |call| {
        let (address, ids) = remote(call, link)?;
        pci.put(pci_info(&address, &ids))
    };
    query nvmlDeviceGetNvLinkRemotePciInfo(device: Handle, link: u32, pci: Out<PciInfoV2>) |call| {
        let (address, ids) = remote(call, link)?;
        pci.put(pci_info_v2(&address, &ids))
    };
    query nvmlDeviceGetNvLinkRemoteDeviceType(
        device: Handle,
        link: u32,
        pNvLinkDeviceType: Out<u32>,
    ) |call| {
        let link = self::link(call, link)?;
        pNvLinkDeviceType.put(match link.remote {
            _ if !link.up => REMOTE_UNKNOWN,
            Remote::None => REMOTE_UNKNOWN,
            Remote::Switch(_) => REMOTE_SWITCH,
            Remote::Gpu(_) => REMOTE_GPU,
        })
    };
    query nvmlDeviceGetNvLinkErrorCounter(
        device: Handle,
        link: u32,
        counter: u32,
        counterValue: Out<u64>,
    ) |call| {
        let errors = self::link(call, link)?.errors;
        counterValue.put(match counter {
            0 => errors.replay,
            1 => errors.recovery,
            2 => errors.crc_flit,
            3 => errors.crc_data,
            4 => return Err(Code::NOT_SUPPORTED),
            _ => return Err(Code::INVALID_ARGUMENT),
        })
    };
    mutation nvmlDeviceResetNvLinkErrorCounters(device: Handle, link: u32) |call| {
        self::link(call, link)?;
        call.change(|gpu| {
            if let Some(link) = gpu.links.get_mut(link as usize) {
                link.errors = LinkErrors::default();
            }
        })
    };
    query nvmlDeviceGetNvLinkInfo(device: Handle, info: Out<nvmlNvLinkInfo_v2_t>) |call| {
        spec(call)?;
        let asked = info.cast::<u32>().get()?;
        if asked == version::<nvmlNvLinkInfo_v1_t>(1) {
            return info.cast().put(nvmlNvLinkInfo_v1_t { version: asked, isNvleEnabled: 0 });
        }
        let none = nvmlNvlinkFirmwareVersion_t { ucodeType: 0, major: 0, minor: 0, subMinor: 0 };
        put_versioned(info, 2, |version| nvmlNvLinkInfo_v2_t {
            version,
            isNvleEnabled: 0,
            firmwareInfo: nvmlNvlinkFirmwareInfo_t { firmwareVersion: [none; 100], numValidEntries: 0 },
        })
    };
    query nvmlDeviceGetNvlinkBwMode(
        device: Handle,
        getBwMode: Out<nvmlNvlinkGetBwMode_v1_t>,
    ) |call| {
        spec(call)?;
        put_versioned(getBwMode, 1, |version| nvmlNvlinkGetBwMode_v1_t { version, bIsBest: 1, bwMode: 0 })
    };
    query nvmlSystemGetNvlinkBwMode(nvlinkBwMode: Out<u32>) |call| {
        let hopper = |gpu: &Gpu| gpu.board.architecture >= Architecture::Hopper && gpu.board.nvlink.is_some();
        if !call.visible().any(|(_, gpu)| hopper(gpu)) {
            return Err(Code::NOT_SUPPORTED);
        }
        nvlinkBwMode.put(BANDWIDTH_FULL)
    };
}
