//! What a device is and where it sits.

use std::ffi::{c_char, c_ulong};

use nvml_wrapper_sys::bindings::{
    nvmlC2cModeInfo_v1_t, nvmlDeviceAddressingMode_v1_t, nvmlDeviceAttributes_t,
    nvmlDeviceCapabilities_v1_t, nvmlPdi_v1_t, nvmlPlatformInfo_v1_t, nvmlPlatformInfo_v2_t,
};

use super::{
    call::{Device, MigDevice},
    export::exports,
    handle::Handle,
    pointer::Out,
    structs::{DeviceAttributesV1, nvmlHostname_v1_t, put_versioned, version},
};
use crate::{
    Code,
    model::{
        board::{Addressing, Engines},
        uuid,
    },
};

/// `NVML_BRAND_NVIDIA`, what current drivers report for every data-centre board.
const BRAND_NVIDIA: u32 = 14;
/// `NVML_BUS_TYPE_PCIE`.
const BUS_PCIE: u32 = 2;
/// `NVML_POWER_SOURCE_AC`.
const POWER_AC: u32 = 0;

/// `nvmlInforomObject_t`.
const INFOROM_OEM: u32 = 0;
const INFOROM_ECC: u32 = 1;

/// `nvmlAffinityScope_t`.
const SCOPE_NODE: u32 = 0;
const SCOPE_SOCKET: u32 = 1;

/// PCI class of a display controller that drives monitors.
const CLASS_VGA: u32 = 0x03_0000;

impl MigDevice<'_> {
    fn attributes(&self) -> Result<nvmlDeviceAttributes_t, Code> {
        let profile = self.gpu.profile_of(self.instance).ok_or(Code::UNKNOWN)?;
        let compute = profile
            .compute_by_id(self.compute.profile)
            .ok_or(Code::UNKNOWN)?;
        let Engines {
            copy,
            decoder,
            encoder,
            jpeg,
            ofa,
        } = profile.engines;
        Ok(nvmlDeviceAttributes_t {
            multiprocessorCount: compute.multiprocessors,
            sharedCopyEngineCount: copy,
            sharedDecoderCount: decoder,
            sharedEncoderCount: encoder,
            sharedJpegCount: jpeg,
            sharedOfaCount: ofa,
            gpuInstanceSliceCount: profile.slices,
            computeInstanceSliceCount: compute.slices,
            memorySizeMB: profile.memory_mib,
        })
    }
}

exports! {
    query nvmlDeviceGetName(
        device: Handle,
        name: Out<c_char>,
        length: u32,
    ) |call| match call.device()? {
        Device::Gpu(gpu) => name.put_text(length, &gpu.board.product),
        Device::Mig(mig) => name.put_text(length, &mig.gpu.mig_name(mig.instance, mig.compute)),
    };
    query nvmlDeviceGetUUID(
        device: Handle,
        uuid: Out<c_char>,
        length: u32,
    ) |call| match call.device()? {
        Device::Gpu(gpu) => uuid.put_text(length, &gpu.uuid),
        Device::Mig(mig) => uuid.put_text(length, &mig.gpu.mig_uuid(mig.instance, mig.compute)),
    };
    query nvmlDeviceGetIndex(device: Handle, index: Out<u32>) |call| match call.device()? {
        Device::Gpu(_) => {
            let own = call.position()?;
            let place = call.visible().position(|(position, _)| position == own).ok_or(Code::UNKNOWN)?;
            index.put(place as u32)
        }
        Device::Mig(mig) => {
            let place = call.node().mig_device_index(call.position()?, mig.instance.id, mig.compute.id);
            index.put(place.ok_or(Code::UNKNOWN)?)
        }
    };
    query nvmlDeviceGetAttributes_v2(
        device: Handle,
        attributes: Out<nvmlDeviceAttributes_t>,
    ) |call| {
        match call.device()? {
            Device::Gpu(_) => Err(Code::NOT_SUPPORTED),
            Device::Mig(mig) => attributes.put(mig.attributes()?),
        }
    };
    query nvmlDeviceGetAttributes(
        device: Handle,
        attributes: Out<DeviceAttributesV1>,
    ) |call| match call.device()? {
        Device::Gpu(_) => Err(Code::NOT_SUPPORTED),
        Device::Mig(mig) => {
            let full = mig.attributes()?;
            attributes.put(DeviceAttributesV1 {
                multiprocessorCount: full.multiprocessorCount,
                sharedCopyEngineCount: full.sharedCopyEngineCount,
                sharedDecoderCount: full.sharedDecoderCount,
                sharedEncoderCount: full.sharedEncoderCount,
                sharedJpegCount: full.sharedJpegCount,
                sharedOfaCount: full.sharedOfaCount,
            })
        }
    };

    query nvmlDeviceGetBrand(device: Handle, kind: Out<u32>) |call| {
        call.gpu()?;
        kind.put(BRAND_NVIDIA)
    };
    query nvmlDeviceGetSerial(device: Handle, serial: Out<c_char>, length: u32) |call| {
        serial.put_text(length, &call.gpu()?.serial)
    };
    query nvmlDeviceGetMinorNumber(
        device: Handle,
        minorNumber: Out<u32>,
    ) |call| minorNumber.put(call.gpu()?.minor);
    query nvmlDeviceGetModuleId(
        device: Handle,
        moduleId: Out<u32>,
    ) |call| moduleId.put(call.gpu()?.module_id);
    query nvmlDeviceGetBoardId(device: Handle, boardId: Out<u32>) |call| {
        let pci = call.gpu()?.pci;
        boardId.put(pci.domain << 16 | u32::from(pci.bus) << 8 | u32::from(pci.device))
    };
    query nvmlDeviceGetBoardPartNumber(
        device: Handle,
        partNumber: Out<c_char>,
        length: u32,
    ) |call| {
        partNumber.put_text(length, &call.gpu()?.board.part_number)
    };
    query nvmlDeviceGetMultiGpuBoard(device: Handle, multiGpuBool: Out<u32>) |call| {
        call.gpu()?;
        multiGpuBool.put(0)
    };
    query nvmlDeviceGetVbiosVersion(device: Handle, version: Out<c_char>, length: u32) |call| {
        version.put_text(length, &call.gpu()?.board.vbios)
    };
    query nvmlDeviceGetInforomVersion(
        device: Handle,
        object: u32,
        version: Out<c_char>,
        length: u32,
    ) |call| {
        let inforom = call.gpu()?.board.inforom.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        match object {
            INFOROM_OEM => version.put_text(length, &inforom.oem),
            INFOROM_ECC => version.put_text(length, inforom.ecc.as_deref().ok_or(Code::NOT_SUPPORTED)?),
            // Power management, and the tag of the whole image of drivers that have one.
            2 | 3 => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    };
    query nvmlDeviceGetInforomImageVersion(
        device: Handle,
        version: Out<c_char>,
        length: u32,
    ) |call| {
        let inforom = call.gpu()?.board.inforom.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        version.put_text(length, &inforom.image)
    };
    query nvmlDeviceGetInforomConfigurationChecksum(device: Handle, checksum: Out<u32>) |call| {
        let gpu = call.gpu()?;
        if gpu.health.inforom_corrupt {
            return Err(Code::CORRUPTED_INFOROM);
        }
        let inforom = gpu.board.inforom.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        checksum.put(uuid::hash(0, &inforom.image) as u32)
    };
    query nvmlDeviceValidateInforom(device: Handle) |call| {
        let gpu = call.gpu()?;
        gpu.board.inforom.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        if gpu.health.inforom_corrupt { Err(Code::CORRUPTED_INFOROM) } else { Ok(()) }
    };

    query nvmlDeviceGetArchitecture(
        device: Handle,
        arch: Out<u32>,
    ) |call| arch.put(call.gpu()?.board.architecture.number());
    query nvmlDeviceGetCudaComputeCapability(
        device: Handle,
        major: Out<i32>,
        minor: Out<i32>,
    ) |call| {
        let capability = call.gpu()?.board.compute_capability;
        minor.required()?;
        major.put(capability.0 as i32)?;
        minor.put(capability.1 as i32)
    };
    query nvmlDeviceGetNumGpuCores(
        device: Handle,
        numCores: Out<u32>,
    ) |call| numCores.put(call.whole_gpu()?.board.cores);
    query nvmlDeviceGetBusType(device: Handle, kind: Out<u32>) |call| {
        call.gpu()?;
        kind.put(BUS_PCIE)
    };
    query nvmlDeviceGetPowerSource(device: Handle, powerSource: Out<u32>) |call| {
        call.gpu()?;
        powerSource.put(POWER_AC)
    };
    query nvmlDeviceGetVirtualizationMode(device: Handle, pVirtualMode: Out<u32>) |call| {
        call.gpu()?;
        pVirtualMode.put(0)
    };
    query nvmlDeviceGetDisplayMode(device: Handle, display: Out<u32>) |call| {
        display.put((call.gpu()?.board.pci.class == CLASS_VGA).into())
    };
    query nvmlDeviceGetDisplayActive(device: Handle, isActive: Out<u32>) |call| {
        isActive.put((call.gpu()?.board.pci.class == CLASS_VGA).into())
    };
    query nvmlDeviceGetAddressingMode(
        device: Handle,
        mode: Out<nvmlDeviceAddressingMode_v1_t>,
    ) |call| {
        let value = match call.gpu()?.board.addressing {
            Addressing::None => 0,
            Addressing::Hmm => 1,
            Addressing::Ats => 2,
        };
        put_versioned(mode, 1, |version| nvmlDeviceAddressingMode_v1_t { version, value })
    };
    query nvmlDeviceGetGspFirmwareVersion(device: Handle, version: Out<c_char>) |call| {
        call.gpu()?;
        // The header fixes the buffer's size (`NVML_GSP_FIRMWARE_VERSION_BUF_SIZE`) instead of taking it.
        version.put_text(64, &call.node().driver.version)
    };
    query nvmlDeviceGetGspFirmwareMode(
        device: Handle,
        isEnabled: Out<u32>,
        defaultMode: Out<u32>,
    ) |call| {
        call.gpu()?;
        defaultMode.required()?;
        isEnabled.put(1)?;
        defaultMode.put(1)
    };
    query nvmlDeviceGetPdi(device: Handle, pdi: Out<nvmlPdi_v1_t>) |call| {
        let value = uuid::hash(0, &call.gpu()?.uuid);
        put_versioned(pdi, 1, |version| nvmlPdi_v1_t { version, value })
    };
    query nvmlDeviceGetCapabilities(device: Handle, caps: Out<nvmlDeviceCapabilities_v1_t>) |call| {
        call.gpu()?;
        put_versioned(caps, 1, |version| nvmlDeviceCapabilities_v1_t { version, capMask: 0 })
    };
    query nvmlDeviceGetC2cModeInfoV(device: Handle, c2cModeInfo: Out<nvmlC2cModeInfo_v1_t>) |call| {
        if !call.gpu()?.board.c2c {
            return Err(Code::NOT_SUPPORTED);
        }
        c2cModeInfo.put(nvmlC2cModeInfo_v1_t { isC2cEnabled: 1 })
    };
    query nvmlDeviceGetPlatformInfo(
        device: Handle,
        platformInfo: Out<nvmlPlatformInfo_v2_t>,
    ) |call| {
        let gpu = call.gpu()?;
        let asked = platformInfo.cast::<u32>().get()?;
        let (first, second) = (version::<nvmlPlatformInfo_v1_t>(1), version::<nvmlPlatformInfo_v2_t>(2));
        if asked != first && asked != second {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let place = gpu.platform.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        let mut chassis = [0; 16];
        for (slot, byte) in chassis.iter_mut().zip(place.chassis_serial.bytes()) {
            *slot = byte;
        }
        let module = gpu.module_id as u8;
        let mut ib_guid = [0; 16];
        ib_guid[..8].copy_from_slice(&uuid::hash(1, &gpu.uuid).to_be_bytes());
        if asked == first {
            return platformInfo.cast().put(nvmlPlatformInfo_v1_t {
                version: asked,
                ibGuid: ib_guid,
                rackGuid: chassis,
                chassisPhysicalSlotNumber: place.slot,
                computeSlotIndex: place.tray,
                nodeIndex: place.host,
                peerType: place.peer_type,
                moduleId: module,
            });
        }
        platformInfo.put(nvmlPlatformInfo_v2_t {
            version: asked,
            ibGuid: ib_guid,
            chassisSerialNumber: chassis,
            slotNumber: place.slot,
            trayIndex: place.tray,
            hostId: place.host,
            peerType: place.peer_type,
            moduleId: module,
        })
    };
    query nvmlDeviceGetHostname_v1(device: Handle, hostname: Out<nvmlHostname_v1_t>) |call| {
        call.gpu()?;
        hostname.put(nvmlHostname_v1_t { value: super::pointer::fixed(&call.node().name) })
    };

    // Only where GPU memory is memory of the system: each GPU then has a NUMA node for itself and seven for MIG, after
    // those of the CPUs. The numbers are inferred.
    query nvmlDeviceGetNumaNodeId(device: Handle, node: Out<u32>) |call| {
        if call.gpu()?.board.addressing != Addressing::Ats {
            return Err(Code::NOT_SUPPORTED);
        }
        node.put(call.node().machine.numa.len() as u32 + 8 * call.position()? as u32)
    };
    query nvmlDeviceGetCpuAffinity(device: Handle, cpuSetSize: u32, cpuSet: Out<c_ulong>) |call| {
        let gpu = call.gpu()?;
        put_bits(cpuSet, cpuSetSize, call.node().near_cpus(gpu, false))
    };
    query nvmlDeviceGetCpuAffinityWithinScope(
        device: Handle,
        cpuSetSize: u32,
        cpuSet: Out<c_ulong>,
        scope: u32,
    ) |call| {
        let gpu = call.gpu()?;
        match scope {
            SCOPE_NODE => put_bits(cpuSet, cpuSetSize, call.node().near_cpus(gpu, false)),
            SCOPE_SOCKET => put_bits(cpuSet, cpuSetSize, call.node().near_cpus(gpu, true)),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    };
    query nvmlDeviceGetMemoryAffinity(
        device: Handle,
        nodeSetSize: u32,
        nodeSet: Out<c_ulong>,
        scope: u32,
    ) |call| {
        let gpu = call.gpu()?;
        if scope != SCOPE_NODE && scope != SCOPE_SOCKET {
            return Err(Code::INVALID_ARGUMENT);
        }
        put_bits(nodeSet, nodeSetSize, [gpu.numa.ok_or(Code::NOT_SUPPORTED)?])
    };
}

/// Writes a bit set of `size` words; members beyond it are left out, as the header has it.
fn put_bits(
    set: Out<c_ulong>,
    size: u32,
    members: impl IntoIterator<Item = u32>,
) -> Result<(), Code> {
    if size == 0 {
        return Err(Code::INVALID_ARGUMENT);
    }
    let members: Vec<u32> = members.into_iter().collect();
    let in_word = |word: u32| members.iter().filter(move |member| **member / 64 == word);
    set.put_all(
        (0..size).map(|word| in_word(word).fold(0, |bits, member| bits | 1 << (member % 64))),
    )
}
