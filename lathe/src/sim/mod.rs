//! `lathe sim`: makes a simulated node and acts on it.
//!
//! Turns flags into calls of the simulator's administration; what they do to the node is decided there.

mod arguments;
mod inject;
mod show;
mod smi;
mod table;

use std::{path::Path, process::ExitCode};

use anyhow::Context;
use mig_manager::strict;
use serde::Serialize;
use sim_nvml::{
    admin::{SimulatedNode, WorkloadSpec},
    boards,
    model::{Load, PciAddress},
    presets::{self, NodeSpec},
};

use crate::output::say;
pub(crate) use arguments::{Args, latency};
use arguments::{Command, CreateArgs, Format, TraceArgs, WorkloadArgs};

/// Runs one `lathe sim` command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let root = args.root.as_path();
    let node = || SimulatedNode::open(root);
    match &args.command {
        Command::Create(create) => made(root, create)?,
        Command::Show(output) => {
            let view = show::View::of(&*node()?.state()?);
            print(output.format, &view, || view.text())?;
        }
        Command::Inject(what) => inject::inject(&node()?, what)?,
        Command::Clear { faults } if faults.is_empty() => node()?.clear_all()?,
        Command::Clear { faults } => {
            let node = node()?;
            faults.iter().try_for_each(|fault| node.clear(*fault))?;
        }
        Command::Step { by } => node()?.step(*by)?,
        Command::RunWorkload(workload) => {
            say(&format!("{}\n", run_workload(&node()?, workload)?))?;
        }
        Command::StopWorkload { pid } => node()?.stop_workload(*pid)?,
        Command::Reset { gpu } => {
            let node = node()?;
            node.reset(node.find_gpu(gpu)?)?;
        }
        Command::Reboot => node()?.reboot()?,
        Command::Reload => node()?.reload_driver()?,
        Command::Unload => node()?.unload_driver()?,
        Command::Load => node()?.load_driver()?,
        Command::Latency { latency } => node()?.set_latency(latency.clone())?,
        Command::Trace(trace) => follow_trace(&node()?, trace)?,
        Command::Boards(output) => list(output.format, boards::names())?,
        Command::Presets(output) => list(output.format, presets::names())?,
        Command::NvidiaSmi(arguments) => return smi::run(&node()?, arguments),
    }
    Ok(ExitCode::SUCCESS)
}

fn print<T: Serialize>(
    format: Format,
    value: &T,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    let text = match format {
        Format::Text => text(),
        Format::Json => serde_json::to_string_pretty(value)? + "\n",
        Format::Yaml => serde_saphyr::to_string(value)?,
    };
    Ok(say(&text)?)
}

fn list(format: Format, names: impl Iterator<Item = &'static str>) -> anyhow::Result<()> {
    let names: Vec<&str> = names.collect();
    print(format, &names, || {
        names.iter().map(|name| format!("{name}\n")).collect()
    })
}

fn made(root: &Path, args: &CreateArgs) -> anyhow::Result<()> {
    let mut spec = match (&args.board, &args.preset, &args.node) {
        (Some(board), _, _) => NodeSpec::uniform(board, args.gpus)?,
        (_, Some(preset), _) => NodeSpec::preset(preset)?,
        (_, _, Some(file)) => strict::parse(&file.display().to_string(), &strict::read(file)?)?,
        (None, None, None) => anyhow::bail!("name a --board, a --preset or a --node file"),
    };
    if let Some(name) = &args.name {
        spec.name.clone_from(name);
    }
    spec.seed = args.seed.or(spec.seed);
    if let Some(version) = &args.driver_version {
        spec.driver.version.clone_from(version);
    }
    if let Some(cuda) = args.cuda_version {
        spec.driver.cuda = cuda;
    }
    if let Some(latency) = &args.latency {
        spec.latency.clone_from(latency);
    }
    let node = match &args.library {
        Some(library) => SimulatedNode::create_with(root, &spec, library),
        None => SimulatedNode::create(root, &spec),
    };
    let node = node.with_context(|| format!("cannot make a node at {}", root.display()))?;
    let state = node.state()?;
    Ok(say(&format!(
        "node {} with {} GPUs at {}\nfor NVML clients: export LD_LIBRARY_PATH={}\n",
        state.name,
        state.gpus.len(),
        node.root().display(),
        node.library_folder().display()
    ))?)
}

fn run_workload(node: &SimulatedNode, args: &WorkloadArgs) -> anyhow::Result<u32> {
    let spec = WorkloadSpec {
        gpu: node.find_gpu(&args.gpu)?,
        instance: args.instance,
        memory_mib: args.memory,
        load: Load::compute(args.utilization),
        name: args.name.clone(),
        pid: args.pid,
        graphics: args.graphics,
        mps: args.mps,
    };
    Ok(node.run_workload(spec)?)
}

fn follow_trace(node: &SimulatedNode, args: &TraceArgs) -> anyhow::Result<()> {
    if args.queries || args.changes_only {
        node.set_trace(args.queries)?;
    }
    if args.clear {
        node.clear_trace()?;
    }
    if args.queries || args.changes_only || args.clear {
        return Ok(());
    }
    let calls = node.trace()?;
    let wanted: Vec<_> = calls
        .into_iter()
        .filter(|call| call.mutating || !args.mutating)
        .collect();
    print(args.output.format, &wanted, || {
        let line = |call: &sim_nvml::trace::Entry| {
            let arguments: Vec<String> = call
                .args
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            let seconds = call.time_ns as f64 / 1e9;
            format!(
                "{seconds:.6} pid {} {}({}) = {}\n",
                call.pid,
                call.symbol,
                arguments.join(", "),
                sim_nvml::Code(call.result)
            )
        };
        wanted.iter().map(line).collect()
    })
}

/// A GPU as NVML clients name it on command lines: index among those the driver shows, UUID or PCI address.
fn visible_gpu(node: &SimulatedNode, text: &str) -> anyhow::Result<usize> {
    let state = node.state()?;
    if let Ok(index) = text.parse::<usize>() {
        let found = state.visible(state.sequence).nth(index);
        return found.with_context(|| format!("the driver shows no GPU {index}"));
    }
    let address: Option<PciAddress> = text.parse().ok();
    let found = state.visible(state.sequence).find(|position| {
        let gpu = &state.gpus[*position];
        gpu.uuid == text || Some(gpu.pci) == address
    });
    found.with_context(|| format!("the driver shows no GPU {text}"))
}
