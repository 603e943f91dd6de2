//! MIG mode and MIG devices: the view of partitions as devices.

use super::{
    call::Device,
    export::exports,
    handle::{Handle, Named},
    pointer::Out,
};
use crate::Code;

/// `NVML_DEVICE_MIG_DISABLE` and `NVML_DEVICE_MIG_ENABLE`.
const DISABLE: u32 = 0;
const ENABLE: u32 = 1;

exports! {
    query nvmlDeviceGetMigMode(
        device: Handle,
        currentMode: Out<u32>,
        pendingMode: Out<u32>,
    ) |call| {
        let gpu = call.gpu()?;
        gpu.mig_spec()?;
        pendingMode.required()?;
        currentMode.put(gpu.mig.current.into())?;
        pendingMode.put(gpu.mig.pending.into())
    };
    // Two results: the call's own, and what became of the activation.
    mutation nvmlDeviceSetMigMode(device: Handle, mode: u32, activationStatus: Out<u32>) |call| {
        call.gpu()?.mig_spec()?;
        let position = call.position()?;
        let enable = match mode {
            DISABLE => false,
            ENABLE => true,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        let activationStatus = activationStatus.required()?;
        let now = call.now_us();
        let status = call.update(|node| node.set_mig_mode(position, enable, std::process::id(), now))?;
        call.note("activationStatus", status.0);
        activationStatus.put(status.0)
    };
    query nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: Out<u32>) |call| {
        let gpu = call.gpu()?;
        // 0 both without MIG and with MIG off; with MIG on what the board can hold, whatever exists.
        let most = gpu.board.mig.as_ref().filter(|_| gpu.mig.current).map_or(0, |spec| spec.max_devices);
        count.put(most)
    };
    query nvmlDeviceGetMigDeviceHandleByIndex(
        device: Handle,
        index: u32,
        migDevice: Out<Handle>,
    ) |call| {
        call.gpu()?;
        let position = call.position()?;
        let (instance, compute) = call.node().mig_device(position, index)?;
        migDevice.put(call.handle_of(Named::MigDevice { gpu: position as u32, instance, compute })?)
    };
    query nvmlDeviceIsMigDeviceHandle(device: Handle, isMigDevice: Out<u32>) |call| {
        isMigDevice.put(matches!(call.device()?, Device::Mig(_)).into())
    };
    query nvmlDeviceGetGpuInstanceId(device: Handle, id: Out<u32>) |call| match call.device()? {
        Device::Gpu(_) => Err(Code::NOT_SUPPORTED),
        Device::Mig(mig) => id.put(mig.instance.id),
    };
    query nvmlDeviceGetComputeInstanceId(device: Handle, id: Out<u32>) |call| match call.device()? {
        Device::Gpu(_) => Err(Code::NOT_SUPPORTED),
        Device::Mig(mig) => id.put(mig.compute.id),
    };
    query nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
        migDevice: Handle,
        device: Out<Handle>,
    ) |call| {
        match call.device()? {
            Device::Gpu(_) => Err(Code::INVALID_ARGUMENT),
            Device::Mig(_) => device.put(call.gpu_handle(call.position()?)?),
        }
    };
}
