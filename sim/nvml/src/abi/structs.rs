//! C structs of the interface: versions, the structs that the bindings crate lacks, and proof of every layout used.
//!
//! The layouts are those of NVIDIA's header 13.3 on x86-64 and AArch64. Must not know what goes into the fields.

#![allow(non_camel_case_types, non_snake_case)]

use std::ffi::{c_char, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlGpuInstance_t};

use super::pointer::Out;
use crate::Code;

/// The version word of a struct: its size, with the version number in the top byte.
pub(super) const fn version<T>(number: u32) -> u32 {
    size_of::<T>() as u32 | number << 24
}

/// Fills a struct of which only one version exists: `ARGUMENT_VERSION_MISMATCH` unless the caller named that version.
pub(super) fn put_versioned<T: Copy>(
    out: Out<T>,
    number: u32,
    value: impl FnOnce(u32) -> T,
) -> Result<(), Code> {
    check_version(out, number)?;
    out.put(value(version::<T>(number)))
}

/// Checks the version word that a caller wrote at the beginning of a struct.
pub(super) fn check_version<T: Copy>(out: Out<T>, number: u32) -> Result<(), Code> {
    if out.cast::<u32>().get()? == version::<T>(number) {
        Ok(())
    } else {
        Err(Code::ARGUMENT_VERSION_MISMATCH)
    }
}

/// `nvmlRemappedRowsInfo_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct nvmlRemappedRowsInfo_v2_t {
    pub(super) corrActiveRemaps: c_uint,
    pub(super) corrInactiveRemaps: c_uint,
    pub(super) uncActiveRemaps: c_uint,
    pub(super) uncInactiveRemaps: c_uint,
    pub(super) bPending: c_uint,
    pub(super) bFailureOccurred: c_uint,
}

/// `nvmlUnrepairableMemoryStatus_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct nvmlUnrepairableMemoryStatus_v1_t {
    pub(super) bUnrepairableMemory: c_uint,
}

/// `nvmlHostname_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct nvmlHostname_v1_t {
    pub(super) value: [c_char; 64],
}

/// `nvmlAccountingStats_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct nvmlAccountingStats_v2_t {
    pub(super) pid: c_uint,
    pub(super) isRunning: c_uint,
    pub(super) gpuUtilization: c_uint,
    pub(super) memoryUtilization: c_uint,
    pub(super) maxMemoryUsage: c_ulonglong,
    pub(super) sampleCount: c_uint,
    pub(super) sumGpuUtil: c_ulonglong,
    pub(super) sumFbUtil: c_ulonglong,
    pub(super) time: c_ulonglong,
    pub(super) startTime: c_ulonglong,
}

/// `nvmlGpuFabricInfo_t`. The header's `state` is one byte and followed by padding; here, and in the later versions, it is
/// the whole little-endian word, because nvidia-ml-py reads it as one and the padding must be zero for it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FabricInfoV1 {
    pub(super) clusterUuid: [u8; 16],
    pub(super) status: c_uint,
    pub(super) cliqueId: c_uint,
    pub(super) state: c_uint,
}

/// `nvmlGpuFabricInfo_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FabricInfoV2 {
    pub(super) version: c_uint,
    pub(super) first: FabricInfoV1,
    pub(super) healthMask: c_uint,
}

/// `nvmlGpuFabricInfo_v3_t`; the summary is a byte and padding like the state.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FabricInfoV3 {
    pub(super) second: FabricInfoV2,
    pub(super) healthSummary: c_uint,
}

/// `nvmlGpuFabricInfo_v4_t` of the 13.4 header, which has no version word.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FabricInfoV4 {
    pub(super) clusterUuid: [u8; 16],
    pub(super) status: c_uint,
    /// Pairs of type and id; the type is a byte and padding.
    pub(super) cliques: [[c_uint; 2]; 64],
    pub(super) numCliques: c_uint,
    pub(super) state: c_uint,
    pub(super) healthMask: c_uint,
    pub(super) healthSummary: c_uint,
}

/// `nvmlPciInfo_t` before subsystem ids (`nvmlDeviceGetPciInfo`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PciInfoV1 {
    pub(super) busId: [c_char; 16],
    pub(super) domain: c_uint,
    pub(super) bus: c_uint,
    pub(super) device: c_uint,
    pub(super) pciDeviceId: c_uint,
}

/// `nvmlPciInfo_t` before the long bus id (`nvmlDeviceGetPciInfo_v2`); the reserved words at its end are not written.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PciInfoV2 {
    pub(super) first: PciInfoV1,
    pub(super) pciSubSystemId: c_uint,
}

/// `nvmlEventData_t` before MIG (`nvmlEventSetWait`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct EventDataV1 {
    pub(super) device: nvmlDevice_t,
    pub(super) eventType: c_ulonglong,
    pub(super) eventData: c_ulonglong,
}

/// `nvmlDeviceAttributes_t` before slice counts and memory (`nvmlDeviceGetAttributes`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DeviceAttributesV1 {
    pub(super) multiprocessorCount: c_uint,
    pub(super) sharedCopyEngineCount: c_uint,
    pub(super) sharedDecoderCount: c_uint,
    pub(super) sharedEncoderCount: c_uint,
    pub(super) sharedJpegCount: c_uint,
    pub(super) sharedOfaCount: c_uint,
}

/// `nvmlComputeInstanceInfo_t` before placements (`nvmlComputeInstanceGetInfo`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ComputeInstanceInfoV1 {
    pub(super) device: nvmlDevice_t,
    pub(super) gpuInstance: nvmlGpuInstance_t,
    pub(super) id: c_uint,
    pub(super) profileId: c_uint,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use nvml_wrapper_sys::bindings::*;

    use super::*;

    /// One line per struct: size, then the offset of each field, taken from the compiled 13.3 header.
    macro_rules! layouts {
        ($($name:ident $size:literal: $($field:ident $offset:literal),+;)+) => {
            #[test]
            fn layouts_are_those_of_the_header() {
                $(
                    assert_eq!(size_of::<$name>(), $size, stringify!($name));
                    $(assert_eq!(offset_of!($name, $field), $offset, concat!(stringify!($name), ".", stringify!($field)));)+
                )+
            }
        };
    }

    layouts! {
        FabricInfoV1 28: clusterUuid 0, status 16, cliqueId 20, state 24;
        FabricInfoV2 36: version 0, first 4, healthMask 32;
        FabricInfoV3 40: second 0, healthSummary 36;
        FabricInfoV4 548: clusterUuid 0, status 16, cliques 20, numCliques 532, state 536, healthMask 540,
            healthSummary 544;
        PciInfoV1 32: busId 0, domain 16, bus 20, device 24, pciDeviceId 28;
        PciInfoV2 36: first 0, pciSubSystemId 32;
        EventDataV1 24: device 0, eventType 8, eventData 16;
        DeviceAttributesV1 24: multiprocessorCount 0, sharedCopyEngineCount 4, sharedDecoderCount 8,
            sharedEncoderCount 12, sharedJpegCount 16, sharedOfaCount 20;
        ComputeInstanceInfoV1 24: device 0, gpuInstance 8, id 16, profileId 20;
        nvmlPciInfoExt_v1_t 64: version 0, domain 4, bus 8, device 12, pciDeviceId 16, pciSubSystemId 20,
            baseClass 24, subClass 28, busId 32;
        nvmlPciInfo_t 68: busIdLegacy 0, domain 16, bus 20, device 24, pciDeviceId 28, pciSubSystemId 32,
            busId 36;
        nvmlEccErrorCounts_t 32: l1Cache 0, l2Cache 8, deviceMemory 16, registerFile 24;
        nvmlUtilization_t 8: gpu 0, memory 4;
        nvmlMemory_t 24: total 0, free 8, used 16;
        nvmlMemory_v2_t 40: version 0, total 8, reserved 16, free 24, used 32;
        nvmlBAR1Memory_t 24: bar1Total 0, bar1Free 8, bar1Used 16;
        nvmlProcessInfo_v1_t 16: pid 0, usedGpuMemory 8;
        nvmlProcessInfo_v2_t 24: pid 0, usedGpuMemory 8, gpuInstanceId 16, computeInstanceId 20;
        nvmlProcessDetail_v1_t 32: pid 0, usedGpuMemory 8, gpuInstanceId 16, computeInstanceId 20,
            usedGpuCcProtectedMemory 24;
        nvmlProcessDetailList_v1_t 24: version 0, mode 4, numProcArrayEntries 8, procArray 16;
        nvmlDeviceAttributes_t 40: multiprocessorCount 0, sharedCopyEngineCount 4, sharedDecoderCount 8,
            sharedEncoderCount 12, sharedJpegCount 16, sharedOfaCount 20, gpuInstanceSliceCount 24,
            computeInstanceSliceCount 28, memorySizeMB 32;
        nvmlC2cModeInfo_v1_t 4: isC2cEnabled 0;
        nvmlDeviceAddressingMode_v1_t 8: version 0, value 4;
        nvmlRepairStatus_v1_t 12: version 0, bChannelRepairPending 4, bTpcRepairPending 8;
        nvmlUnrepairableMemoryStatus_v1_t 4: bUnrepairableMemory 0;
        nvmlRowRemapperHistogramValues_t 20: max 0, high 4, partial 8, low 12, none 16;
        nvmlBridgeChipHierarchy_t 1028: bridgeCount 0, bridgeChipInfo 4;
        nvmlSample_t 16: timeStamp 0, sampleValue 8;
        nvmlViolationTime_t 16: referenceTime 0, violationTime 8;
        nvmlGpuThermalSettings_t 64: count 0, sensor 4;
        nvmlUUID_v1_t 52: version 0, type_ 4, value 8;
        nvmlPdi_v1_t 16: version 0, value 8;
        nvmlMarginTemperature_v1_t 8: version 0, marginTemperature 4;
        nvmlProcessUtilizationSample_t 32: pid 0, timeStamp 8, smUtil 16, memUtil 20, encUtil 24, decUtil 28;
        nvmlProcessUtilizationInfo_v1_t 40: timeStamp 0, pid 8, smUtil 12, memUtil 16, encUtil 20, decUtil 24,
            jpgUtil 28, ofaUtil 32;
        nvmlProcessesUtilizationInfo_v1_t 24: version 0, processSamplesCount 4, lastSeenTimeStamp 8,
            procUtilArray 16;
        nvmlEccSramErrorStatus_v1_t 104: version 0, aggregateUncParity 8, aggregateUncSecDed 16, aggregateCor
            24, volatileUncParity 32, volatileUncSecDed 40, volatileCor 48, aggregateUncBucketL2 56,
            aggregateUncBucketSm 64, aggregateUncBucketPcie 72, aggregateUncBucketMcu 80, aggregateUncBucketOther
            88, bThresholdExceeded 96;
        nvmlPlatformInfo_v1_t 44: version 0, ibGuid 4, rackGuid 20, chassisPhysicalSlotNumber 36,
            computeSlotIndex 37, nodeIndex 38, peerType 39, moduleId 40;
        nvmlPlatformInfo_v2_t 44: version 0, ibGuid 4, chassisSerialNumber 20, slotNumber 36, trayIndex 37,
            hostId 38, peerType 39, moduleId 40;
        nvmlHostname_v1_t 64: value 0;
        nvmlEccSramUniqueUncorrectedErrorCounts_v1_t 16: version 0, entryCount 4, entries 8;
        nvmlRemappedRowsInfo_v2_t 24: corrActiveRemaps 0, corrInactiveRemaps 4, uncActiveRemaps 8,
            uncInactiveRemaps 12, bPending 16, bFailureOccurred 20;
        nvmlPowerValue_v2_t 12: version 0, powerScope 4, powerValueMw 8;
        nvmlFieldValue_t 40: fieldId 0, scopeId 4, timestamp 8, latencyUsec 16, valueType 24, nvmlReturn 28,
            value 32;
        nvmlEventData_t 32: device 0, eventType 8, eventData 16, gpuInstanceId 24, computeInstanceId 28;
        nvmlSystemEventSetCreateRequest_v1_t 16: version 0, set 8;
        nvmlSystemEventSetFreeRequest_v1_t 16: version 0, set 8;
        nvmlSystemRegisterEventRequest_v1_t 24: version 0, eventTypes 8, set 16;
        nvmlSystemEventData_v1_t 16: eventType 0, gpuId 8;
        nvmlSystemEventSetWaitRequest_v1_t 32: version 0, timeoutms 4, set 8, data 16, dataSize 24, numEvent
            28;
        nvmlAccountingStats_t 56: gpuUtilization 0, memoryUtilization 4, maxMemoryUsage 8, time 16, startTime
            24, isRunning 32, reserved 36;
        nvmlAccountingStats_v2_t 64: pid 0, isRunning 4, gpuUtilization 8, memoryUtilization 12,
            maxMemoryUsage 16, sampleCount 24, sumGpuUtil 32, sumFbUtil 40, time 48, startTime 56;
        nvmlConfComputeSystemCaps_t 8: cpuCaps 0, gpusCaps 4;
        nvmlConfComputeSystemState_t 12: environment 0, ccFeature 4, devToolsMode 8;
        nvmlSystemConfComputeSettings_v1_t 20: version 0, environment 4, ccFeature 8, devToolsMode 12,
            multiGpuMode 16;
        nvmlConfComputeMemSizeInfo_t 16: protectedMemSizeKib 0, unprotectedMemSizeKib 8;
        nvmlGpuFabricInfo_t 28: clusterUuid 0, status 16, cliqueId 20, state 24;
        nvmlGpuFabricInfo_v2_t 36: version 0, clusterUuid 4, status 20, cliqueId 24, state 28, healthMask 32;
        nvmlGpuFabricInfo_v3_t 40: version 0, clusterUuid 4, status 20, cliqueId 24, state 28, healthMask 32,
            healthSummary 36;
        nvmlSystemDriverBranchInfo_v1_t 84: version 0, branch 4;
        nvmlTemperature_v1_t 12: version 0, sensorType 4, temperature 8;
        nvmlNvlinkGetBwMode_v1_t 12: version 0, bIsBest 4, bwMode 8;
        nvmlNvLinkInfo_v1_t 8: version 0, isNvleEnabled 4;
        nvmlNvLinkInfo_v2_t 1612: version 0, isNvleEnabled 4, firmwareInfo 8;
        nvmlExcludedDeviceInfo_t 148: pciInfo 0, uuid 68;
        nvmlGpuInstancePlacement_t 8: start 0, size 4;
        nvmlGpuInstanceProfileInfo_t 48: id 0, isP2pSupported 4, sliceCount 8, instanceCount 12,
            multiprocessorCount 16, copyEngineCount 20, decoderCount 24, encoderCount 28, jpegCount 32, ofaCount
            36, memorySizeMB 40;
        nvmlGpuInstanceProfileInfo_v2_t 152: version 0, id 4, isP2pSupported 8, sliceCount 12, instanceCount
            16, multiprocessorCount 20, copyEngineCount 24, decoderCount 28, encoderCount 32, jpegCount 36,
            ofaCount 40, memorySizeMB 48, name 56;
        nvmlGpuInstanceProfileInfo_v3_t 152: version 0, id 4, sliceCount 8, instanceCount 12,
            multiprocessorCount 16, copyEngineCount 20, decoderCount 24, encoderCount 28, jpegCount 32, ofaCount
            36, memorySizeMB 40, name 48, capabilities 144;
        nvmlGpuInstanceInfo_t 24: device 0, id 8, profileId 12, placement 16;
        nvmlComputeInstancePlacement_t 8: start 0, size 4;
        nvmlComputeInstanceProfileInfo_t 36: id 0, sliceCount 4, instanceCount 8, multiprocessorCount 12,
            sharedCopyEngineCount 16, sharedDecoderCount 20, sharedEncoderCount 24, sharedJpegCount 28,
            sharedOfaCount 32;
        nvmlComputeInstanceProfileInfo_v2_t 136: version 0, id 4, sliceCount 8, instanceCount 12,
            multiprocessorCount 16, sharedCopyEngineCount 20, sharedDecoderCount 24, sharedEncoderCount 28,
            sharedJpegCount 32, sharedOfaCount 36, name 40;
        nvmlComputeInstanceProfileInfo_v3_t 140: version 0, id 4, sliceCount 8, instanceCount 12,
            multiprocessorCount 16, sharedCopyEngineCount 20, sharedDecoderCount 24, sharedEncoderCount 28,
            sharedJpegCount 32, sharedOfaCount 36, name 40, capabilities 136;
        nvmlComputeInstanceInfo_t 32: device 0, gpuInstance 8, id 16, profileId 20, placement 24;
        nvmlGpmMetric_t 40: metricId 0, nvmlReturn 4, value 8, metricInfo 16;
        nvmlGpmSupport_t 8: version 0, isSupportedDevice 4;
        nvmlDeviceCapabilities_v1_t 8: version 0, capMask 4;
        nvmlGpuDynamicPstatesInfo_t 132: flags 0, utilization 4;
        nvmlDevicePerfModes_v1_t 2052: version 0, str_ 4;
        nvmlDeviceCurrentClockFreqs_v1_t 2052: version 0, str_ 4;
    }

    #[test]
    fn version_words() {
        assert_eq!(version::<nvmlMemory_v2_t>(2), 0x0200_0028);
        assert_eq!(version::<nvmlGpuInstanceProfileInfo_v3_t>(3), 0x0300_0098);
        assert_eq!(
            version::<nvmlComputeInstanceProfileInfo_v3_t>(3),
            0x0300_008c
        );
        assert_eq!(version::<nvmlGpuFabricInfo_v3_t>(3), 0x0300_0028);
        assert_eq!(version::<nvmlC2cModeInfo_v1_t>(1), 0x0100_0004);
    }
}
