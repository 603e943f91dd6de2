//! Flags of `lathe sim`.

use std::{path::PathBuf, time::Duration};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, ValueEnum};
use sim_nvml::Code;
use sim_nvml::model::latency::Latency;

use crate::help;

/// Make a simulated node with GPUs, look at it and act on it
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder that stands for the node's root
    #[arg(
        long,
        env = "LATHE_ROOT",
        value_name = "DIR",
        global = true,
        display_order = help::SHARED,
        default_value = "lathe-node"
    )]
    pub(super) root: PathBuf,

    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Make a node
    Create(CreateArgs),
    /// Show what the node is like now
    Show(Output),
    /// Break something
    #[command(subcommand)]
    Inject(Fault),
    /// Clear faults of calls by the ids that `inject call` printed; without ids, clear everything but what only a reset
    /// or a reboot mends
    Clear {
        /// Ids of faults
        #[arg(value_name = "ID")]
        faults: Vec<u64>,
    },
    /// Step the node's clock forward
    Step {
        /// How far, for example 90s, 5m, 250ms
        #[arg(value_name = "DURATION", value_parser = duration)]
        by: Duration,
    },
    /// Run a workload; prints its process id
    RunWorkload(WorkloadArgs),
    /// Stop a workload
    StopWorkload {
        /// Process id
        pid: u32,
    },
    /// Reset a GPU
    Reset {
        /// Position, UUID or PCI address
        #[arg(value_name = "GPU")]
        gpu: String,
    },
    /// Reboot the node
    Reboot,
    /// Unload the driver and load it again
    Reload,
    /// Unload the driver
    Unload,
    /// Load the driver
    Load,
    /// Set how long driver calls take
    Latency {
        /// As on real hardware, or no time at all
        #[arg(value_name = "PRESET", value_parser = latency())]
        latency: Latency,
    },
    /// Show the calls that clients made, or say which are traced
    Trace(TraceArgs),
    /// List the boards
    Boards(Output),
    /// List the presets
    Presets(Output),
    /// Stand in for the node's `nvidia-smi`: -L, and --gpu-reset -i
    NvidiaSmi(SmiArgs),
}

/// How to print
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Output {
    /// Output for people, or for programs
    #[arg(
        long = "output",
        short = 'o',
        value_name = "FORMAT",
        default_value = "text"
    )]
    pub(super) format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    Text,
    Json,
    Yaml,
}

#[derive(Clone, Debug, clap::Args)]
#[command(group(ArgGroup::new("what").required(true).args(["board", "preset", "node"])))]
pub(super) struct CreateArgs {
    /// Equal boards of this kind (see `lathe sim boards`)
    #[arg(long)]
    pub(super) board: Option<String>,
    /// How many of the board
    #[arg(long, default_value_t = 1, value_name = "N", requires = "board")]
    pub(super) gpus: usize,
    /// A well-known machine (see `lathe sim presets`)
    #[arg(long)]
    pub(super) preset: Option<String>,
    /// A file that describes the node, for mixed or odd ones
    #[arg(long, value_name = "FILE")]
    pub(super) node: Option<PathBuf>,
    /// Name of the node; the board's or preset's by default
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Seed of UUIDs, serial numbers and noise; derived from the name by default
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// Driver version
    #[arg(long, value_name = "VERSION")]
    pub(super) driver_version: Option<String>,
    /// CUDA version, 1000 × major + 10 × minor
    #[arg(long, value_name = "NUMBER")]
    pub(super) cuda_version: Option<u32>,
    /// How long driver calls take: as on real hardware, or no time at all
    #[arg(long, value_name = "PRESET", value_parser = latency())]
    pub(super) latency: Option<Latency>,
    /// The simulated driver library, where it is not beside this program
    #[arg(long, env = "LATHE_SIM_LIBRARY", value_name = "FILE")]
    pub(super) library: Option<PathBuf>,
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct WorkloadArgs {
    /// Position, UUID or PCI address of the GPU
    #[arg(long, value_name = "GPU")]
    pub(super) gpu: String,
    /// GPU instance and compute instance, for example 9/0
    #[arg(long, value_name = "GI/CI", value_parser = instance)]
    pub(super) instance: Option<(u32, u32)>,
    /// Device memory, MiB
    #[arg(long, default_value_t = 1024, value_name = "MIB")]
    pub(super) memory: u64,
    /// How busy it keeps what it runs on, percent
    #[arg(long, default_value_t = 90, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(super) utilization: u32,
    /// Command that the driver shows
    #[arg(long, default_value = "workload")]
    pub(super) name: String,
    /// A running process whose workload it is, and with which it ends
    #[arg(long)]
    pub(super) pid: Option<u32>,
    /// Let it be a graphics client
    #[arg(long)]
    pub(super) graphics: bool,
    /// Let it run through MPS
    #[arg(long)]
    pub(super) mps: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct TraceArgs {
    /// Trace queries as well from now on
    #[arg(long, conflicts_with = "changes_only")]
    pub(super) queries: bool,
    /// Trace only calls that change something from now on
    #[arg(long)]
    pub(super) changes_only: bool,
    /// Forget the calls traced so far
    #[arg(long)]
    pub(super) clear: bool,
    /// Show only calls that change something
    #[arg(long)]
    pub(super) mutating: bool,
    #[command(flatten)]
    pub(super) output: Output,
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct SmiArgs {
    /// List the GPUs and MIG devices
    #[arg(
        short = 'L',
        long = "list-gpus",
        conflicts_with = "reset",
        required_unless_present = "reset"
    )]
    pub(super) list: bool,
    /// Reset GPUs
    #[arg(short = 'r', long = "gpu-reset")]
    pub(super) reset: bool,
    /// GPUs by index, UUID or PCI address, separated by commas; all by default
    #[arg(short = 'i', long = "id", value_name = "GPU", value_delimiter = ',')]
    pub(super) id: Vec<String>,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub(super) enum Fault {
    /// Driver calls fail, hang or are late; prints the fault's id
    Call(CallArgs),
    /// An XID
    Xid {
        /// Number; 79 makes the GPU fall off the bus
        number: u64,
        #[command(flatten)]
        gpu: OnGpu,
        /// GPU instance and compute instance it hits
        #[arg(long, value_name = "GI/CI", value_parser = instance)]
        instance: Option<(u32, u32)>,
    },
    /// Memory errors
    Ecc {
        /// Where they are
        error: EccError,
        #[command(flatten)]
        gpu: OnGpu,
        /// How many
        #[arg(long, default_value_t = 1)]
        count: u64,
    },
    /// Rows that wait for a reset to be remapped
    RowRemap {
        #[command(flatten)]
        gpu: OnGpu,
        /// How many
        #[arg(long, default_value_t = 1)]
        rows: u32,
    },
    /// Every call on the GPU answers GPU_IS_LOST until a reset
    Lost(OnGpu),
    /// The GPU falls off the bus until a reboot
    FallOff(OnGpu),
    /// Clocks are held down
    Throttle {
        /// Why
        reason: Throttle,
        #[command(flatten)]
        gpu: OnGpu,
    },
    /// An NVLink goes down, or comes back with --up
    Nvlink {
        /// Number of the link
        link: usize,
        #[command(flatten)]
        gpu: OnGpu,
        /// Bring it up
        #[arg(long)]
        up: bool,
        /// Errors to count
        #[arg(long, default_value_t = 0)]
        errors: u64,
    },
    /// State of the NVLink fabric registration
    Fabric {
        /// State
        state: FabricState,
        #[command(flatten)]
        gpu: OnGpu,
        /// Health mask
        #[arg(long)]
        health: Option<u32>,
    },
    /// Resets are refused
    RefuseReset(OnGpu),
    /// MIG mode changes stay pending
    StickMigMode(OnGpu),
    /// The InfoROM is corrupt
    CorruptInforom(OnGpu),
    /// The kernel module has another version than the library
    VersionMismatch,
    /// A running process holds the GPUs open, like a monitoring daemon
    Holder {
        /// Process id
        pid: u32,
        /// End the hold
        #[arg(long)]
        release: bool,
    },
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct OnGpu {
    /// Position, UUID or PCI address of the GPU
    #[arg(long, value_name = "GPU")]
    pub(super) gpu: String,
}

#[derive(Clone, Debug, clap::Args)]
#[command(group(ArgGroup::new("effect").required(true).args(["fail", "hang", "delay"])))]
pub(super) struct CallArgs {
    /// Function, for example nvmlDeviceCreateGpuInstance; a trailing * matches any rest
    #[arg(value_name = "FUNCTION")]
    pub(super) symbol: String,
    /// Answer this code: a number or a name, for example GPU_IS_LOST
    #[arg(long, value_name = "CODE")]
    pub(super) fail: Option<Code>,
    /// Do not return until the fault is cleared
    #[arg(long)]
    pub(super) hang: bool,
    /// Take this much longer, for example 300ms
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) delay: Option<Duration>,
    /// Only on this GPU: position, UUID or PCI address
    #[arg(long, value_name = "GPU")]
    pub(super) gpu: Option<String>,
    /// Let this many calls pass first
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(super) after: u64,
    /// Stop after this many calls
    #[arg(long, value_name = "N")]
    pub(super) times: Option<u64>,
    /// Hit a call with this probability, 0 to 1
    #[arg(long, value_name = "P", value_parser = probability)]
    pub(super) probability: Option<f64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum EccError {
    /// Corrected, device memory
    Sbe,
    /// Uncorrected, device memory; comes with XID 48
    Dbe,
    /// Corrected, on-chip memory
    SramCorrected,
    /// Uncorrected parity, on-chip memory
    SramParity,
    /// Uncorrected SEC-DED, on-chip memory
    SramSecded,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Throttle {
    /// Hardware thermal slowdown
    HwThermal,
    /// Software thermal slowdown
    SwThermal,
    /// Power brake
    PowerBrake,
    /// Power cap
    PowerCap,
    /// Nothing any more
    None,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum FabricState {
    /// Not on a fabric
    NotSupported,
    /// Not started
    NotStarted,
    /// In progress
    InProgress,
    /// Completed
    Completed,
}

/// The name of a latency model.
pub(crate) fn latency() -> impl TypedValueParser<Value = Latency> {
    PossibleValuesParser::new(["zero", "realistic"])
        .try_map(|name| Latency::preset(&name).ok_or("there is no such latency"))
}

fn instance(text: &str) -> Result<(u32, u32), String> {
    let parse = |part: &str| part.parse::<u32>().ok();
    let pair = text
        .split_once('/')
        .and_then(|(instance, compute)| Some((parse(instance)?, parse(compute)?)));
    pair.ok_or_else(|| "write GPU instance and compute instance as 9/0".to_owned())
}

fn probability(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.parse().ok();
    value
        .filter(|value| (0.0..=1.0).contains(value))
        .ok_or_else(|| "a probability lies between 0 and 1".to_owned())
}

/// A number with one of the units ms, s, m, h.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration: write it as 250ms, 90s, 5m or 2h");
    let digits = text
        .find(|char: char| !char.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let millis = match &text[digits..] {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    millis
        .and_then(|millis| number.checked_mul(millis))
        .map(Duration::from_millis)
        .ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("250ms").unwrap(), Duration::from_millis(250));
        assert_eq!(duration("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("2h").unwrap(), Duration::from_secs(7200));
        for wrong in [
            "",
            "s",
            "5",
            "5d",
            "-5s",
            "1.5s",
            "99999999999999999999s",
            "18446744073709551615h",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn instances_and_probabilities() {
        assert_eq!(instance("9/0").unwrap(), (9, 0));
        assert!(instance("9").is_err() && instance("a/0").is_err());
        assert_eq!(probability("0.5").unwrap(), 0.5);
        assert!(probability("1.5").is_err() && probability("NaN").is_err());
    }
}
