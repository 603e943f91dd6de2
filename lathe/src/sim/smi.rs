//! The node's `nvidia-smi`, as far as programs need it: the list of GPUs, and the reset that NVML does not have.

use std::process::ExitCode;

use sim_nvml::{
    Code,
    admin::{Error, SimulatedNode},
    model::DriverState,
};

use super::{arguments::SmiArgs, visible_gpu};
use crate::output::say;

/// Runs it. Exit codes are NVML's, as with the real program.
pub(super) fn run(node: &SimulatedNode, args: &SmiArgs) -> anyhow::Result<ExitCode> {
    if node.state()?.driver.state != DriverState::Loaded {
        say(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest \
             NVIDIA driver is installed and running.\n",
        )?;
        return Ok(exit(Code::DRIVER_NOT_LOADED));
    }
    if args.list {
        say(&list(node)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let wanted: Vec<usize> = if args.id.is_empty() {
        let state = node.state()?;
        state.visible(state.sequence).collect()
    } else {
        args.id
            .iter()
            .map(|id| visible_gpu(node, id))
            .collect::<Result<_, _>>()?
    };
    let mut outcome = Code::SUCCESS;
    for gpu in wanted {
        let address = node.state()?.gpus[gpu].pci.long();
        match node.reset(gpu) {
            Ok(()) => say(&format!("GPU {address} was successfully reset.\n"))?,
            Err(Error::Refused { code, .. }) => {
                say(&format!("GPU {address}: {code}\n"))?;
                outcome = code;
            }
            Err(other) => return Err(other.into()),
        }
    }
    say("All done.\n")?;
    Ok(exit(outcome))
}

fn exit(code: Code) -> ExitCode {
    ExitCode::from(u8::try_from(code.0).unwrap_or(u8::MAX))
}

fn list(node: &SimulatedNode) -> anyhow::Result<String> {
    let state = node.state()?;
    let mut text = String::new();
    for (index, position) in state.visible(state.sequence).enumerate() {
        let gpu = &state.gpus[position];
        text += &format!("GPU {index}: {} (UUID: {})\n", gpu.board.product, gpu.uuid);
        for (device, (instance, compute)) in gpu.mig_devices().enumerate() {
            let profile = gpu.device_profile_name(instance, compute);
            let uuid = gpu.mig_uuid(instance, compute);
            text += &format!("  MIG {profile:<16} Device {device:>2}: (UUID: {uuid})\n");
        }
    }
    Ok(text)
}
