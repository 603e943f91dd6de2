//! Settings: persistence, compute mode, API restrictions.

use super::{call::Device, export::exports, handle::Handle, pointer::Out};
use crate::{Code, model::ComputeMode};

fn key(instance: u32, compute: u32) -> String {
    format!("{instance}/{compute}")
}

exports! {
    query nvmlDeviceGetPersistenceMode(device: Handle, mode: Out<u32>) |call| {
        mode.put(call.gpu()?.modes.persistence.into())
    };
    mutation nvmlDeviceSetPersistenceMode(device: Handle, mode: u32) |call| {
        call.gpu()?;
        if mode > 1 {
            return Err(Code::INVALID_ARGUMENT);
        }
        call.change(|gpu| gpu.modes.persistence = mode == 1)
    };
    // A partitioned GPU has no compute mode of its own; each of its MIG devices has one.
    query nvmlDeviceGetComputeMode(device: Handle, mode: Out<u32>) |call| match call.device()? {
        Device::Gpu(gpu) if gpu.mig.current => Err(Code::NOT_SUPPORTED),
        Device::Gpu(gpu) => mode.put(gpu.modes.compute.number()),
        Device::Mig(mig) => {
            let set = mig.gpu.modes.mig_compute.get(&key(mig.instance.id, mig.compute.id));
            mode.put(set.copied().unwrap_or_default().number())
        }
    };
    mutation nvmlDeviceSetComputeMode(device: Handle, mode: u32) |call| {
        let wanted = ComputeMode::from_number(mode).ok_or(Code::INVALID_ARGUMENT)?;
        match call.device()? {
            Device::Gpu(gpu) if gpu.mig.current => Err(Code::NOT_SUPPORTED),
            Device::Gpu(_) => call.change(|gpu| gpu.modes.compute = wanted),
            Device::Mig(mig) => {
                let key = key(mig.instance.id, mig.compute.id);
                call.change(|gpu| match wanted {
                    ComputeMode::Default => drop(gpu.modes.mig_compute.remove(&key)),
                    other => drop(gpu.modes.mig_compute.insert(key, other)),
                })
            }
        }
    };
    // Setting application clocks (0) and auto boost (1) are for root, as on every data-centre board.
    query nvmlDeviceGetAPIRestriction(device: Handle, apiType: u32, isRestricted: Out<u32>) |call| {
        call.gpu()?;
        if apiType < 2 { isRestricted.put(1) } else { Err(Code::INVALID_ARGUMENT) }
    };
}
