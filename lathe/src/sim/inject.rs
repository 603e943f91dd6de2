//! `lathe sim inject`.

use std::collections::BTreeSet;

use anyhow::Context;
use configuration::nearest::nearest;
use sim_nvml::{
    Code,
    admin::SimulatedNode,
    functions,
    model::{
        Effect,
        fabric::FabricState,
        faults,
        health::{self, EccError},
    },
};

use super::arguments::{self, CallArgs, Fault};
use crate::output::say;

/// Injects one fault.
pub(super) fn inject(node: &SimulatedNode, fault: &Fault) -> anyhow::Result<()> {
    let on = |gpu: &arguments::OnGpu| node.find_gpu(&gpu.gpu);
    match fault {
        Fault::Call(call) => say(&format!("{}\n", calls(node, call)?))?,
        Fault::Xid {
            number,
            gpu,
            instance,
        } => node.xid(on(gpu)?, *number, *instance)?,
        Fault::Ecc { error, gpu, count } => node.ecc(on(gpu)?, ecc(*error), *count)?,
        Fault::RowRemap { gpu, rows } => node.row_remap(on(gpu)?, *rows)?,
        Fault::Lost(gpu) => node.lose(on(gpu)?)?,
        Fault::FallOff(gpu) => node.fall_off(on(gpu)?)?,
        Fault::Throttle { reason, gpu } => node.throttle(on(gpu)?, throttle(*reason))?,
        Fault::Nvlink {
            link,
            gpu,
            up,
            errors,
        } => node.nvlink(on(gpu)?, *link, *up, *errors)?,
        Fault::Fabric { state, gpu, health } => node.fabric(on(gpu)?, fabric(*state), *health)?,
        Fault::RefuseReset(gpu) => node.refuse_reset(on(gpu)?, true)?,
        Fault::StickMigMode(gpu) => node.stick_mig_mode(on(gpu)?, true)?,
        Fault::CorruptInforom(gpu) => node.corrupt_inforom(on(gpu)?, true)?,
        Fault::VersionMismatch => node.mismatch_driver()?,
        Fault::Holder {
            pid,
            release: false,
        } => node.hold(*pid)?,
        Fault::Holder { pid, release: true } => node.release(*pid)?,
    }
    Ok(())
}

fn calls(node: &SimulatedNode, args: &CallArgs) -> anyhow::Result<u64> {
    let effect = match (args.fail, args.hang, args.delay) {
        // The caller would take what the call never wrote for its answer.
        (Some(Code::SUCCESS), _, _) => anyhow::bail!("SUCCESS is no failure: name another code"),
        (Some(code), _, _) => Effect::Fail(code),
        (_, true, _) => Effect::Hang,
        (_, _, Some(delay)) => {
            Effect::Delay(u64::try_from(delay.as_micros()).context("the delay is too long")?)
        }
        (None, false, None) => anyhow::bail!("say what happens: --fail, --hang or --delay"),
    };
    check_function(&args.symbol)?;
    let gpu = args
        .gpu
        .as_deref()
        .map(|gpu| node.find_gpu(gpu))
        .transpose()?;
    Ok(node.inject(faults::Fault {
        gpu,
        after: args.after,
        times: args.times,
        probability: args.probability,
        ..faults::Fault::new(&args.symbol, effect)
    })?)
}

/// A fault of a function that does not exist would never happen.
fn check_function(symbol: &str) -> anyhow::Result<()> {
    let (wanted, rest) = match symbol.strip_suffix('*') {
        Some(prefix) => (prefix, "*"),
        None => (symbol, ""),
    };
    // As much of each name as could have been meant.
    let known: BTreeSet<&str> = functions::all()
        .map(|name| match rest {
            "" => name,
            _ => name.get(..wanted.len()).unwrap_or(name),
        })
        .collect();
    if known.contains(wanted) {
        return Ok(());
    }
    let near: Vec<String> = nearest(wanted, known.into_iter(), 3)
        .into_iter()
        .map(|name| name + rest)
        .collect();
    let advice = if near.is_empty() {
        "names are those of NVIDIA's header, nvml.h".to_owned()
    } else {
        format!("did you mean {}?", near.join(", "))
    };
    anyhow::bail!("the driver library has no function {symbol:?}; {advice}")
}

fn ecc(error: arguments::EccError) -> EccError {
    match error {
        arguments::EccError::Sbe => EccError::Sbe,
        arguments::EccError::Dbe => EccError::Dbe,
        arguments::EccError::SramCorrected => EccError::SramCorrected,
        arguments::EccError::SramParity => EccError::SramParity,
        arguments::EccError::SramSecded => EccError::SramSecded,
    }
}

fn throttle(reason: arguments::Throttle) -> health::Throttle {
    let mut throttle = health::Throttle::default();
    match reason {
        arguments::Throttle::HwThermal => throttle.hw_thermal = true,
        arguments::Throttle::SwThermal => throttle.sw_thermal = true,
        arguments::Throttle::PowerBrake => throttle.power_brake = true,
        arguments::Throttle::PowerCap => throttle.power_cap = true,
        arguments::Throttle::None => {}
    }
    throttle
}

fn fabric(state: arguments::FabricState) -> FabricState {
    match state {
        arguments::FabricState::NotSupported => FabricState::NotSupported,
        arguments::FabricState::NotStarted => FabricState::NotStarted,
        arguments::FabricState::InProgress => FabricState::InProgress,
        arguments::FabricState::Completed => FabricState::Completed,
    }
}
