//! Drain, removal and rescan of GPUs, named by PCI address.

use nvml_wrapper_sys::bindings::nvmlPciInfo_t;

use super::{argument::Shown, call::Call, export::exports, pointer::In, pointer::Out};
use crate::{Code, model::PciAddress};

impl Shown for nvmlPciInfo_t {
    fn shown(&self) -> serde_json::Value {
        address(self).map_or(serde_json::Value::Null, |address| address.sysfs().into())
    }
}

fn address(info: &nvmlPciInfo_t) -> Result<PciAddress, Code> {
    let part = |value: u32| u8::try_from(value).map_err(|_| Code::INVALID_ARGUMENT);
    Ok(PciAddress {
        domain: info.domain,
        bus: part(info.bus)?,
        device: part(info.device)?,
    })
}

/// Position of the GPU at an address.
fn position(call: &Call, info: In<nvmlPciInfo_t>, removed: bool) -> Result<usize, Code> {
    let address = address(&info.get()?)?;
    let mut gpus = call.node().gpus.iter();
    gpus.position(|gpu| gpu.pci == address && gpu.removed == removed)
        .ok_or(Code::INVALID_ARGUMENT)
}

fn remove(call: &Call, info: In<nvmlPciInfo_t>) -> Result<(), Code> {
    let (position, now) = (position(call, info, false)?, call.now_us());
    call.update(|node| node.remove(position, std::process::id(), now))
}

exports! {
    mutation nvmlDeviceModifyDrainState(pciInfo: In<nvmlPciInfo_t>, newState: u32) |call| {
        let position = position(call, pciInfo, false)?;
        if newState > 1 {
            return Err(Code::INVALID_ARGUMENT);
        }
        call.update(|node| {
            let gpu = node.gpus.get_mut(position).ok_or(Code::INVALID_ARGUMENT)?;
            gpu.modes.drain = newState == 1;
            Ok(())
        })
    };
    query nvmlDeviceQueryDrainState(pciInfo: In<nvmlPciInfo_t>, currentState: Out<u32>) |call| {
        currentState.put(call.node().gpus[position(call, pciInfo, false)?].modes.drain.into())
    };
    mutation nvmlDeviceRemoveGpu_v2(
        pciInfo: In<nvmlPciInfo_t>,
        gpuState: u32,
        linkState: u32,
    ) |call| {
        if gpuState > 1 || linkState > 1 {
            return Err(Code::INVALID_ARGUMENT);
        }
        remove(call, pciInfo)
    };
    mutation nvmlDeviceRemoveGpu(pciInfo: In<nvmlPciInfo_t>) |call| remove(call, pciInfo);
    // A rescan that finds nothing new is a success.
    mutation nvmlDeviceDiscoverGpus(pciInfo: In<nvmlPciInfo_t>) |call| {
        address(&pciInfo.get()?)?;
        let Ok(position) = position(call, pciInfo, true) else { return Ok(()) };
        let now = call.now_us();
        call.update(|node| node.discover(position, now))
    };
}
