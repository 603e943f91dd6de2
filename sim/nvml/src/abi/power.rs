//! Power and energy. Power in milliwatts, energy in millijoules.

use nvml_wrapper_sys::bindings::nvmlPowerValue_v2_t;

use super::{
    call::Call, export::exports, handle::Handle, pointer::In, pointer::Out, structs::version,
};
use crate::{Code, model::board::Architecture};

/// `NVML_POWER_SCOPE_GPU`.
const SCOPE_GPU: u8 = 0;

fn set_limit(call: &Call, limit: u32) -> Result<(), Code> {
    let spec = call.gpu()?.board.power;
    if !(spec.min_mw..=spec.max_mw).contains(&limit) {
        return Err(Code::INVALID_ARGUMENT);
    }
    call.change(|gpu| gpu.modes.power_limit_mw = limit)
}

impl super::argument::Shown for nvmlPowerValue_v2_t {
    fn shown(&self) -> serde_json::Value {
        serde_json::json!({ "powerScope": self.powerScope, "powerValueMw": self.powerValueMw })
    }
}

exports! {
    // The big Ampere chips and everything older report an instant value, later ones a mean over a second.
    query nvmlDeviceGetPowerUsage(device: Handle, power: Out<u32>) |call| {
        let instant = call.gpu()?.board.architecture <= Architecture::Ampere;
        let reading = call.reading()?;
        power.put(if instant { reading.power_mw } else { reading.power_average_mw })
    };
    query nvmlDeviceGetTotalEnergyConsumption(device: Handle, energy: Out<u64>) |call| {
        energy.put(call.meters()?.energy_uj / 1000)
    };
    query nvmlDeviceGetPowerManagementMode(device: Handle, mode: Out<u32>) |call| {
        call.gpu()?;
        mode.put(1)
    };
    query nvmlDeviceGetPowerManagementLimit(
        device: Handle,
        limit: Out<u32>,
    ) |call| limit.put(call.gpu()?.modes.power_limit_mw);
    query nvmlDeviceGetEnforcedPowerLimit(
        device: Handle,
        limit: Out<u32>,
    ) |call| limit.put(call.gpu()?.modes.power_limit_mw);
    query nvmlDeviceGetPowerManagementLimitConstraints(
        device: Handle,
        minLimit: Out<u32>,
        maxLimit: Out<u32>,
    ) |call| {
        let spec = call.gpu()?.board.power;
        maxLimit.required()?;
        minLimit.put(spec.min_mw)?;
        maxLimit.put(spec.max_mw)
    };
    query nvmlDeviceGetPowerManagementDefaultLimit(device: Handle, defaultLimit: Out<u32>) |call| {
        defaultLimit.put(call.gpu()?.board.power.default_mw)
    };
    mutation nvmlDeviceSetPowerManagementLimit(
        device: Handle,
        limit: u32,
    ) |call| set_limit(call, limit);
    mutation nvmlDeviceSetPowerManagementLimit_v2(
        device: Handle,
        powerValue: In<nvmlPowerValue_v2_t>,
    ) |call| {
        let asked = powerValue.get()?;
        if asked.version != version::<nvmlPowerValue_v2_t>(2) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        match asked.powerScope {
            SCOPE_GPU => set_limit(call, asked.powerValueMw),
            // A module limit, on boards that share it with a CPU, is not modelled; memory has none.
            1 | 2 => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    };
}
