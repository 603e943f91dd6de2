//! Memory errors: ECC counters, remapped rows, retired pages.

use std::ffi::c_ulonglong;

use nvml_wrapper_sys::bindings::{
    nvmlEccErrorCounts_t, nvmlEccSramErrorStatus_v1_t,
    nvmlEccSramUniqueUncorrectedErrorCounts_v1_t, nvmlRepairStatus_v1_t,
    nvmlRowRemapperHistogramValues_t,
};

use super::{
    call::{Call, Device},
    export::exports,
    handle::Handle,
    pointer::{Out, put_list},
    structs::{
        check_version, nvmlRemappedRowsInfo_v2_t, nvmlUnrepairableMemoryStatus_v1_t, put_versioned,
    },
};
use crate::{
    Code,
    model::{Gpu, health::EccCounters},
};

/// `nvmlMemoryLocation_t`: those that boards of the simulated generations have.
const LOCATION_DEVICE: u32 = 2;
const LOCATION_SRAM: u32 = 7;
const LOCATIONS: u32 = 8;

/// Sources of retired pages (`nvmlPageRetirementCause_t`): several single-bit errors, or one double-bit error.
const RETIREMENT_CAUSES: u32 = 2;

/// Counters of a life time: 0 volatile, 1 aggregate. Absent while ECC is off.
fn counters(gpu: &Gpu, counter_type: u32) -> Result<&EccCounters, Code> {
    if !gpu.board.ecc || !gpu.ecc.current {
        return Err(Code::NOT_SUPPORTED);
    }
    match counter_type {
        0 => Ok(&gpu.ecc.volatile),
        1 => Ok(&gpu.ecc.aggregate),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// One of (corrected, uncorrected) by `nvmlMemoryErrorType_t`.
fn of_type(error_type: u32, corrected: u64, uncorrected: u64) -> Result<u64, Code> {
    match error_type {
        0 => Ok(corrected),
        1 => Ok(uncorrected),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

fn with_ecc(call: &Call) -> Result<&Gpu, Code> {
    let gpu = call.gpu()?;
    if gpu.board.ecc {
        Ok(gpu)
    } else {
        Err(Code::NOT_SUPPORTED)
    }
}

/// A GPU whose row remapper answers: not while GPU instances exist.
fn remapper(call: &Call) -> Result<&Gpu, Code> {
    let gpu = call.gpu()?;
    if gpu.board.row_remap_banks.is_some() && gpu.mig.instances.is_empty() {
        Ok(gpu)
    } else {
        Err(Code::NOT_SUPPORTED)
    }
}

/// A GPU that retires pages instead of remapping rows.
fn retirer(call: &Call) -> Result<&Gpu, Code> {
    let gpu = with_ecc(call)?;
    if gpu.board.row_remap_banks.is_none() {
        Ok(gpu)
    } else {
        Err(Code::NOT_SUPPORTED)
    }
}

fn check_cause(cause: u32) -> Result<(), Code> {
    if cause < RETIREMENT_CAUSES {
        Ok(())
    } else {
        Err(Code::INVALID_ARGUMENT)
    }
}

exports! {
    query nvmlDeviceGetEccMode(device: Handle, current: Out<u32>, pending: Out<u32>) |call| {
        let gpu = with_ecc(call)?;
        pending.required()?;
        current.put(gpu.ecc.current.into())?;
        pending.put(gpu.ecc.pending.into())
    };
    query nvmlDeviceGetDefaultEccMode(device: Handle, defaultMode: Out<u32>) |call| {
        with_ecc(call)?;
        defaultMode.put(1)
    };
    mutation nvmlDeviceSetEccMode(device: Handle, ecc: u32) |call| {
        with_ecc(call)?;
        if ecc > 1 {
            return Err(Code::INVALID_ARGUMENT);
        }
        // Takes effect at the next reset.
        call.change(|gpu| gpu.ecc.pending = ecc == 1)
    };
    query nvmlDeviceGetTotalEccErrors(
        device: Handle,
        errorType: u32,
        counterType: u32,
        eccCounts: Out<u64>,
    ) |call| {
        let counters = counters(call.gpu()?, counterType)?;
        eccCounts.put(of_type(errorType, counters.corrected(), counters.uncorrected())?)
    };
    query nvmlDeviceGetDetailedEccErrors(
        device: Handle,
        errorType: u32,
        counterType: u32,
        eccCounts: Out<nvmlEccErrorCounts_t>,
    ) |call| {
        let counters = counters(call.gpu()?, counterType)?;
        eccCounts.put(nvmlEccErrorCounts_t {
            l1Cache: 0,
            l2Cache: of_type(errorType, counters.sram_corrected, counters.sram_uncorrected())?,
            deviceMemory: of_type(errorType, counters.dram_corrected, counters.dram_uncorrected)?,
            registerFile: 0,
        })
    };
    // MIG devices may ask too; the simulation does not know which instance an error hit, so theirs count none.
    query nvmlDeviceGetMemoryErrorCounter(
        device: Handle,
        errorType: u32,
        counterType: u32,
        locationType: u32,
        count: Out<u64>,
    ) |call| {
        let device = call.device()?;
        let counters = counters(device.physical(), counterType)?;
        let value = match locationType {
            LOCATION_DEVICE => of_type(errorType, counters.dram_corrected, counters.dram_uncorrected)?,
            LOCATION_SRAM => of_type(errorType, counters.sram_corrected, counters.sram_uncorrected())?,
            0..LOCATIONS => return Err(Code::NOT_SUPPORTED),
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        count.put(if matches!(device, Device::Gpu(_)) { value } else { 0 })
    };
    mutation nvmlDeviceClearEccErrorCounts(device: Handle, counterType: u32) |call| {
        counters(call.gpu()?, counterType)?;
        call.change(|gpu| match counterType {
            0 => gpu.ecc.volatile = EccCounters::default(),
            _ => gpu.ecc.aggregate = EccCounters::default(),
        })
    };
    // Which unit an error sat in is not modelled: all are in the SM bucket.
    privileged nvmlDeviceGetSramEccErrorStatus(
        device: Handle,
        status: Out<nvmlEccSramErrorStatus_v1_t>,
    ) |call| {
        let gpu = call.gpu()?;
        let (volatile, aggregate) = (counters(gpu, 0)?, counters(gpu, 1)?);
        put_versioned(status, 1, |version| nvmlEccSramErrorStatus_v1_t {
            version,
            aggregateUncParity: aggregate.sram_parity,
            aggregateUncSecDed: aggregate.sram_secded,
            aggregateCor: aggregate.sram_corrected,
            volatileUncParity: volatile.sram_parity,
            volatileUncSecDed: volatile.sram_secded,
            volatileCor: volatile.sram_corrected,
            aggregateUncBucketL2: 0,
            aggregateUncBucketSm: aggregate.sram_uncorrected(),
            aggregateUncBucketPcie: 0,
            aggregateUncBucketMcu: 0,
            aggregateUncBucketOther: 0,
            bThresholdExceeded: gpu.ecc.sram_threshold_exceeded.into(),
        })
    };
    query nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(
        device: Handle,
        errorCounts: Out<nvmlEccSramUniqueUncorrectedErrorCounts_v1_t>,
    ) |call| {
        counters(call.gpu()?, 1)?;
        check_version(errorCounts, 1)?;
        // Addresses of errors are not modelled, so no error is told apart from another.
        errorCounts.put(nvmlEccSramUniqueUncorrectedErrorCounts_v1_t { entryCount: 0, ..errorCounts.get()? })
    };

    query nvmlDeviceGetRemappedRows(
        device: Handle,
        corrRows: Out<u32>,
        uncRows: Out<u32>,
        isPending: Out<u32>,
        failureOccurred: Out<u32>,
    ) |call| {
        let rows = &remapper(call)?.remap;
        corrRows.required()?;
        uncRows.required()?;
        isPending.required()?;
        failureOccurred.put(rows.failure.into())?;
        corrRows.put(rows.correctable)?;
        uncRows.put(rows.uncorrectable)?;
        isPending.put((rows.pending > 0).into())
    };
    query nvmlDeviceGetRemappedRows_v2(
        device: Handle,
        info: Out<nvmlRemappedRowsInfo_v2_t>,
    ) |call| {
        let rows = &remapper(call)?.remap;
        info.put(nvmlRemappedRowsInfo_v2_t {
            corrActiveRemaps: rows.correctable,
            corrInactiveRemaps: 0,
            uncActiveRemaps: rows.uncorrectable,
            uncInactiveRemaps: rows.pending,
            bPending: (rows.pending > 0).into(),
            bFailureOccurred: rows.failure.into(),
        })
    };
    query nvmlDeviceGetRowRemapperHistogram(
        device: Handle,
        values: Out<nvmlRowRemapperHistogramValues_t>,
    ) |call| {
        let histogram = remapper(call)?.histogram().ok_or(Code::NOT_SUPPORTED)?;
        values.put(nvmlRowRemapperHistogramValues_t {
            max: histogram.max,
            high: histogram.high,
            partial: histogram.partial,
            low: histogram.low,
            none: histogram.none,
        })
    };
    query nvmlDeviceGetUnrepairableMemoryFlag_v1(
        device: Handle,
        unrepairableMemoryStatus: Out<nvmlUnrepairableMemoryStatus_v1_t>,
    ) |call| {
        let gpu = call.gpu()?;
        gpu.board.row_remap_banks.ok_or(Code::NOT_SUPPORTED)?;
        let failed = gpu.remap.failure.into();
        unrepairableMemoryStatus.put(nvmlUnrepairableMemoryStatus_v1_t { bUnrepairableMemory: failed })
    };
    query nvmlDeviceGetRepairStatus(
        device: Handle,
        repairStatus: Out<nvmlRepairStatus_v1_t>,
    ) |call| {
        call.gpu()?.board.row_remap_banks.ok_or(Code::NOT_SUPPORTED)?;
        put_versioned(repairStatus, 1, |version| nvmlRepairStatus_v1_t {
            version,
            bChannelRepairPending: 0,
            bTpcRepairPending: 0,
        })
    };

    // No simulated error retires a page.
    query nvmlDeviceGetRetiredPages(
        device: Handle,
        cause: u32,
        pageCount: Out<u32>,
        addresses: Out<c_ulonglong>,
    ) |call| {
        retirer(call)?;
        check_cause(cause)?;
        put_list(addresses, pageCount, &[])
    };
    query nvmlDeviceGetRetiredPages_v2(
        device: Handle,
        cause: u32,
        pageCount: Out<u32>,
        addresses: Out<c_ulonglong>,
        _timestamps: Out<c_ulonglong>,
    ) |call| {
        retirer(call)?;
        check_cause(cause)?;
        put_list(addresses, pageCount, &[])
    };
    query nvmlDeviceGetRetiredPagesPendingStatus(device: Handle, isPending: Out<u32>) |call| {
        retirer(call)?;
        isPending.put(0)
    };
}
