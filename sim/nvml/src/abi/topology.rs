//! How GPUs relate to each other and to CPUs.

use super::{call::Call, export::exports, handle::Handle, pointer::Out};
use crate::{
    Code,
    model::{Gpu, nvlink::Remote, topology::Level},
};

/// `nvmlGpuP2PStatus_t`.
const P2P_OK: u32 = 0;
const P2P_CHIPSET_NOT_SUPPORTED: u32 = 1;
const P2P_GPU_NOT_SUPPORTED: u32 = 2;
const P2P_NOT_SUPPORTED: u32 = 5;

/// Fills an array whose count is in-out, with 0 asking for the number alone and no error for a smaller one.
fn put_gpus(array: Out<Handle>, count: Out<u32>, gpus: &[Handle]) -> Result<(), Code> {
    let capacity = count.get()? as usize;
    if capacity > 0 {
        array.put_all(gpus.iter().copied().take(capacity))?;
    }
    count.put(gpus.len() as u32)
}

/// Whether an NVLink, direct or through switches, joins two GPUs.
fn linked(one: &Gpu, other_position: usize, other: &Gpu) -> bool {
    let through_switch = |gpu: &Gpu| {
        gpu.links
            .iter()
            .any(|link| link.up && matches!(link.remote, Remote::Switch(_)))
    };
    one.links
        .iter()
        .any(|link| link.up && link.remote == Remote::Gpu(other_position))
        || (through_switch(one) && through_switch(other))
}

fn p2p(call: &Call, one: Handle, other: Handle, index: u32) -> Result<u32, Code> {
    let (from, one) = call.gpu_of(one)?;
    let (to, other) = call.gpu_of(other)?;
    if one.mig.current || other.mig.current {
        return Ok(P2P_GPU_NOT_SUPPORTED);
    }
    let nvlink = linked(one, to, other);
    let same_root = call.node().level(from, to) <= Level::Node;
    match index {
        // Read, write, properties.
        0 | 1 | 4 => Ok(if nvlink || same_root {
            P2P_OK
        } else {
            P2P_CHIPSET_NOT_SUPPORTED
        }),
        // NVLink, atomics.
        2 | 3 => Ok(if nvlink { P2P_OK } else { P2P_NOT_SUPPORTED }),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

exports! {
    query nvmlDeviceGetTopologyCommonAncestor(
        device1: Handle,
        device2: Handle,
        pathInfo: Out<u32>,
    ) |call| {
        let ((one, _), (other, _)) = (call.gpu_of(device1)?, call.gpu_of(device2)?);
        pathInfo.put(call.node().level(one, other).number())
    };
    query nvmlDeviceGetTopologyNearestGpus(
        device: Handle,
        level: u32,
        count: Out<u32>,
        deviceArray: Out<Handle>,
    ) |call| {
        call.gpu()?;
        if !matches!(level, 0 | 10 | 20 | 30 | 40 | 50) {
            return Err(Code::INVALID_ARGUMENT);
        }
        let own = call.position()?;
        let at_level = call.visible().filter(|(other, _)| {
            *other != own && call.node().level(own, *other).number() == level
        });
        let gpus = at_level.map(|(position, _)| call.gpu_handle(position)).collect::<Result<Vec<Handle>, Code>>()?;
        put_gpus(deviceArray, count, &gpus)
    };
    query nvmlSystemGetTopologyGpuSet(
        cpuNumber: u32,
        count: Out<u32>,
        deviceArray: Out<Handle>,
    ) |call| {
        let near = call.visible().filter(|(_, gpu)| call.node().near_cpus(gpu, false).contains(&cpuNumber));
        let gpus = near.map(|(position, _)| call.gpu_handle(position)).collect::<Result<Vec<Handle>, Code>>()?;
        put_gpus(deviceArray, count, &gpus)
    };
    query nvmlDeviceGetP2PStatus(
        device1: Handle,
        device2: Handle,
        p2pIndex: u32,
        p2pStatus: Out<u32>,
    ) |call| {
        p2pStatus.put(p2p(call, device1, device2, p2pIndex)?)
    };
    query nvmlDeviceOnSameBoard(device1: Handle, device2: Handle, onSameBoard: Out<i32>) |call| {
        let ((one, _), (other, _)) = (call.gpu_of(device1)?, call.gpu_of(device2)?);
        onSameBoard.put((one == other).into())
    };
}
