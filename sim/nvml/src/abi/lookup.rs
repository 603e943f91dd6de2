//! From an index, a UUID, a bus id or a serial number to a device handle.
//!
//! A GPU that fell off the bus after this process initialised is still counted, and lost; one that fell off before is not
//! there. Indices follow the order of bus addresses, so they shift when a GPU is gone.

use std::ffi::CStr;

use nvml_wrapper_sys::bindings::nvmlUUID_v1_t;

use super::{
    call::Call,
    export::exports,
    handle::{Handle, Named},
    pointer::{In, Out, Text},
    structs::version,
};
use crate::{
    Code,
    model::{Gpu, PciAddress},
};

/// `nvmlUUIDType_t`.
const UUID_ASCII: u32 = 1;
const UUID_BINARY: u32 = 2;

impl Call {
    /// The GPUs that this process sees, in index order, with their positions in the node.
    pub(super) fn visible(&self) -> impl Iterator<Item = (usize, &Gpu)> {
        self.node()
            .gpus
            .iter()
            .enumerate()
            .filter(|(_, gpu)| gpu.visible_since(self.client().since()))
    }

    /// The handle of the GPU at a position in the node.
    pub(super) fn gpu_handle(&self, position: usize) -> Result<Handle, Code> {
        self.handle_of(Named::Gpu {
            gpu: position as u32,
        })
    }
}

/// The handle of the first visible GPU that fits, `GPU_IS_LOST` when that one is lost, `missing` when none fits.
fn find(call: &Call, missing: Code, fits: impl Fn(&Gpu) -> bool) -> Result<Handle, Code> {
    let (position, gpu) = call.visible().find(|(_, gpu)| fits(gpu)).ok_or(missing)?;
    if gpu.is_lost() {
        Err(Code::GPU_IS_LOST)
    } else {
        call.gpu_handle(position)
    }
}

fn by_index(call: &Call, index: u32) -> Result<Handle, Code> {
    let (position, gpu) = call
        .visible()
        .nth(index as usize)
        .ok_or(Code::INVALID_ARGUMENT)?;
    if gpu.is_lost() {
        Err(Code::GPU_IS_LOST)
    } else {
        call.gpu_handle(position)
    }
}

fn by_bus_id(call: &Call, text: &str) -> Result<Handle, Code> {
    let address: PciAddress = text.parse().map_err(|_| Code::INVALID_ARGUMENT)?;
    find(call, Code::NOT_FOUND, |gpu| gpu.pci == address)
}

/// `GPU-…` names a GPU; `MIG-…` a MIG device, in today's form and in the form of drivers before R470.
fn by_uuid(call: &Call, text: &str) -> Result<Handle, Code> {
    if !text.starts_with("MIG-") {
        return find(call, Code::NOT_FOUND, |gpu| {
            gpu.uuid.eq_ignore_ascii_case(text)
        });
    }
    for (position, gpu) in call.visible() {
        for (instance, compute) in gpu.mig_devices() {
            let names = [
                gpu.mig_uuid(instance, compute),
                gpu.mig_uuid_legacy(instance.id, compute.id),
            ];
            if names.iter().any(|name| name.eq_ignore_ascii_case(text)) {
                if gpu.is_lost() {
                    return Err(Code::GPU_IS_LOST);
                }
                let named = Named::MigDevice {
                    gpu: position as u32,
                    instance: instance.id,
                    compute: compute.id,
                };
                return call.handle_of(named);
            }
        }
    }
    Err(Code::NOT_FOUND)
}

/// The text form of a UUID that a caller passed in `nvmlUUID_t`. Binary ones carry no prefix: they name GPUs.
fn uuid_text(uuid: &nvmlUUID_v1_t) -> Result<String, Code> {
    match uuid.type_ {
        UUID_ASCII => {
            // SAFETY: every bit pattern is a valid array of characters.
            let characters = unsafe { uuid.value.str_ };
            let bytes: Vec<u8> = characters
                .iter()
                .map(|character| *character as u8)
                .collect();
            let text = CStr::from_bytes_until_nul(&bytes).map_err(|_| Code::INVALID_ARGUMENT)?;
            Ok(text
                .to_str()
                .map_err(|_| Code::INVALID_ARGUMENT)?
                .to_owned())
        }
        UUID_BINARY => {
            // SAFETY: every bit pattern is a valid array of bytes.
            let bytes = unsafe { uuid.value.bytes };
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            Ok(format!(
                "GPU-{}-{}-{}-{}-{}",
                &hex[..8],
                &hex[8..12],
                &hex[12..16],
                &hex[16..20],
                &hex[20..]
            ))
        }
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

exports! {
    query nvmlDeviceGetCount_v2(
        deviceCount: Out<u32>,
    ) |call| deviceCount.put(call.visible().count() as u32);
    query nvmlDeviceGetCount(
        deviceCount: Out<u32>,
    ) |call| deviceCount.put(call.visible().count() as u32);
    query nvmlDeviceGetHandleByIndex_v2(index: u32, device: Out<Handle>) |call| {
        device.required()?.put(by_index(call, index)?)
    };
    query nvmlDeviceGetHandleByIndex(index: u32, device: Out<Handle>) |call| {
        device.required()?.put(by_index(call, index)?)
    };
    query nvmlDeviceGetHandleByPciBusId_v2(pciBusId: Text, device: Out<Handle>) |call| {
        device.required()?.put(by_bus_id(call, pciBusId.get()?)?)
    };
    query nvmlDeviceGetHandleByPciBusId(pciBusId: Text, device: Out<Handle>) |call| {
        device.required()?.put(by_bus_id(call, pciBusId.get()?)?)
    };
    query nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<Handle>) |call| {
        device.required()?.put(by_uuid(call, uuid.get()?)?)
    };
    query nvmlDeviceGetHandleByUUIDV(uuid: In<nvmlUUID_v1_t>, device: Out<Handle>) |call| {
        let uuid = uuid.get()?;
        if uuid.version != version::<nvmlUUID_v1_t>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        device.required()?.put(by_uuid(call, &uuid_text(&uuid)?)?)
    };
    query nvmlDeviceGetHandleBySerial(serial: Text, device: Out<Handle>) |call| {
        let serial = serial.get()?;
        device.required()?.put(find(call, Code::NOT_FOUND, |gpu| gpu.serial == serial)?)
    };
}

impl super::argument::Shown for nvmlUUID_v1_t {
    fn shown(&self) -> serde_json::Value {
        uuid_text(self).map_or(serde_json::Value::Null, Into::into)
    }
}
