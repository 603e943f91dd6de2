//! Memory of devices: frame buffer and BAR1.

use nvml_wrapper_sys::bindings::{nvmlBAR1Memory_t, nvmlMemory_t, nvmlMemory_v2_t};

use super::{
    call::{Call, Device},
    export::exports,
    handle::Handle,
    pointer::Out,
    structs::put_versioned,
};
use crate::Code;

const MIB: u64 = 1 << 20;

/// What the driver itself has mapped through BAR1, MiB.
const BAR1_OWN_MIB: u64 = 1;

/// Memory of a device in MiB.
struct Usage {
    total: u64,
    /// What the driver keeps for itself.
    reserved: u64,
    /// What processes hold.
    used: u64,
}

impl Usage {
    fn free(&self) -> u64 {
        self.total.saturating_sub(self.reserved + self.used)
    }
}

fn usage(call: &Call) -> Result<Usage, Code> {
    let position = call.position()?;
    match call.device()? {
        Device::Gpu(gpu) => {
            if gpu.mig.current {
                call.privileged()?;
            }
            let spec = &gpu.board.memory;
            let used = call.node().workload_memory_mib(position, None);
            Ok(Usage {
                total: spec.total_mib,
                reserved: spec.reserved_mib,
                used,
            })
        }
        Device::Mig(mig) => {
            // All compute instances of a GPU instance share its memory.
            let total = mig
                .gpu
                .profile_of(mig.instance)
                .ok_or(Code::UNKNOWN)?
                .memory_mib;
            Ok(Usage {
                total,
                reserved: 0,
                used: call
                    .node()
                    .workload_memory_mib(position, Some(mig.instance.id)),
            })
        }
    }
}

/// BAR1 of a device in MiB, total and used; a GPU instance has the share of its memory slices.
fn bar1(call: &Call) -> Result<(u64, u64), Code> {
    match call.device()? {
        Device::Gpu(gpu) => {
            if gpu.mig.current {
                call.privileged()?;
            }
            Ok((gpu.board.memory.bar1_mib, BAR1_OWN_MIB))
        }
        Device::Mig(mig) => {
            let slices = u64::from(mig.gpu.mig_spec()?.memory_slices.max(1));
            Ok((
                mig.gpu.board.memory.bar1_mib * u64::from(mig.instance.placement.size) / slices,
                0,
            ))
        }
    }
}

exports! {
    // The first version counts the driver's own part as used.
    query nvmlDeviceGetMemoryInfo(device: Handle, memory: Out<nvmlMemory_t>) |call| {
        let usage = usage(call)?;
        memory.put(nvmlMemory_t {
            total: usage.total * MIB,
            free: usage.free() * MIB,
            used: (usage.reserved + usage.used) * MIB,
        })
    };
    query nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: Out<nvmlMemory_v2_t>) |call| {
        let usage = usage(call)?;
        put_versioned(memory, 2, |version| nvmlMemory_v2_t {
            version,
            total: usage.total * MIB,
            reserved: usage.reserved * MIB,
            free: usage.free() * MIB,
            used: usage.used * MIB,
        })
    };
    query nvmlDeviceGetBAR1MemoryInfo(device: Handle, bar1Memory: Out<nvmlBAR1Memory_t>) |call| {
        let (total, used) = bar1(call)?;
        bar1Memory.put(nvmlBAR1Memory_t {
            bar1Total: total * MIB,
            bar1Free: total.saturating_sub(used) * MIB,
            bar1Used: used * MIB,
        })
    };
    query nvmlDeviceGetMemoryBusWidth(device: Handle, busWidth: Out<u32>) |call| {
        busWidth.put(call.gpu()?.board.memory.bus_bits)
    };
}
