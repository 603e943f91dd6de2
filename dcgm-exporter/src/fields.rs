//! The instrumentation spec: every field this exporter knows, as data.
//!
//! Names, ids, types and units are DCGM's (`dcgm_fields.h`) and dcgm-exporter's counter file; dashboards and alerts depend
//! on them. What the collector reads, what the renderer prints and what the tests expect all come from this table, so a
//! field is added by adding a row (and, for a new kind of reading, a [`Source`]).
//!
//! This file must not know how a value is read or printed.

/// The type a family is declared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Goes up.
    Counter,
    /// Accepted in a counter file; nothing here is one.
    Histogram,
    /// Accepted in a counter file; nothing here is one.
    Summary,
    /// No family: the value is a label on every sample.
    Label,
}

impl Kind {
    /// The word in a counter file and after `# TYPE`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
            Self::Label => "label",
        }
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::Gauge,
            Self::Counter,
            Self::Histogram,
            Self::Summary,
            Self::Label,
        ]
        .into_iter()
        .find(|kind| kind.as_str() == name)
    }
}

/// What a value is on a GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// Known per GPU; on an instance the GPU's value is repeated, as dcgm-exporter does. A sum over instances over-counts.
    Gpu,
    /// Known per GPU and absent on an instance.
    GpuOnly,
    /// Each instance has its own.
    Instance,
}

/// What the value is read from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// Current clock.
    Clock(Clock),
    /// Die temperature.
    Temperature,
    /// Power draw: milliwatts, told as watts.
    Power,
    /// Energy since the driver was loaded, millijoules.
    Energy,
    /// PCIe replays.
    PcieReplays,
    /// Share of time the GPU was busy, percent.
    Utilisation(Utilisation),
    /// Framebuffer, MiB (rounded down) or a share.
    Memory(Memory),
    /// Remapped memory rows.
    RemappedRows(Rows),
    /// One value of `nvmlDeviceGetFieldValues`.
    FieldValue {
        /// `NVML_FI_*`.
        id: u32,
        /// From NVML's unit to DCGM's.
        scale: Scale,
    },
    /// NVLink data in both directions since the last reading, per second.
    NvlinkRate,
    /// GPU performance monitoring: an average between two samples.
    Gpm {
        /// `NVML_GPM_METRIC_*`.
        metric: u32,
        /// From NVML's unit to DCGM's.
        scale: Scale,
    },
    /// Number of the last XID error seen.
    LastXid,
    /// vGPU licence of a guest.
    Licence,
    /// A text, for label rows.
    Text(Text),
    /// A field of DCGM or of dcgm-exporter that NVML cannot give, or that is not collected yet: accepted, and always absent.
    Nothing,
}

/// Clock domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Streaming multiprocessors.
    Sm,
    /// Memory.
    Memory,
    /// Video engines.
    Video,
}

/// Utilisation counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Utilisation {
    /// A kernel was running.
    Gpu,
    /// The memory controller was busy.
    Memory,
    /// Encoder.
    Encoder,
    /// Decoder.
    Decoder,
}

/// Parts of the framebuffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// All of it.
    Total,
    /// Not in use.
    Free,
    /// In use, without what is reserved.
    Used,
    /// Kept by driver and firmware.
    Reserved,
    /// Used, as a share of what is not reserved.
    UsedShare,
}

/// Row remapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Rows remapped after uncorrectable errors.
    Uncorrectable,
    /// Rows remapped after correctable errors.
    Correctable,
    /// Whether a remapping has failed.
    Failure,
    /// Whether a remapping waits for a reset.
    Pending,
}

/// Unit conversion, and with it whether the value prints as an integer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// An integer as it is.
    Count,
    /// Temperature in °C; above 200 it is no reading (DCGM's rule).
    Celsius,
    /// Milliwatts, told as watts.
    MilliToWatts,
    /// Percent, told as a ratio 0–1.
    PercentToRatio,
    /// MiB/s, told as whole B/s.
    MibToBytes,
}

/// Texts for label rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// Driver version.
    DriverVersion,
    /// NVML version.
    NvmlVersion,
    /// Serial number.
    Serial,
}

/// One field.
#[derive(Debug)]
pub struct Field {
    /// DCGM's name, which is also the family's.
    pub name: &'static str,
    /// Other names it is known by: DCGM 4.6's canonical one.
    pub alias: Option<&'static str>,
    /// Its name in dcgm-exporter 1.x; taken only with the old namespace.
    pub old_name: Option<&'static str>,
    /// DCGM's field id. Families are sorted by it. 0 where DCGM has none.
    pub id: u16,
    /// The type dcgm-exporter declares.
    pub kind: Kind,
    /// Unit of the value; empty for counts and texts.
    pub unit: &'static str,
    /// What it is on an instance.
    pub level: Level,
    /// Where the value comes from.
    pub source: Source,
    /// One sentence for `# HELP`.
    pub help: &'static str,
    /// Whether it is collected when no counter file is given.
    pub default: bool,
}

/// Finds a field by any of its names; 1.x names only when `old_namespace` is set.
pub fn find(name: &str, old_namespace: bool) -> Option<&'static Field> {
    FIELDS.iter().find(|field| {
        field.name == name
            || field.alias == Some(name)
            || (old_namespace && field.old_name == Some(name))
    })
}

const fn field(
    name: &'static str,
    id: u16,
    kind: Kind,
    unit: &'static str,
    source: Source,
    help: &'static str,
) -> Field {
    Field {
        name,
        alias: None,
        old_name: None,
        id,
        kind,
        unit,
        level: Level::Gpu,
        source,
        help,
        default: false,
    }
}

impl Field {
    const fn on(mut self) -> Self {
        self.default = true;
        self
    }

    const fn level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    const fn alias(mut self, name: &'static str) -> Self {
        self.alias = Some(name);
        self
    }

    const fn old(mut self, name: &'static str) -> Self {
        self.old_name = Some(name);
        self
    }
}

const fn value(id: u32) -> Source {
    Source::FieldValue {
        id,
        scale: Scale::Count,
    }
}

const fn ratio(metric: u32) -> Source {
    Source::Gpm {
        metric,
        scale: Scale::PercentToRatio,
    }
}

const fn rate(metric: u32) -> Source {
    Source::Gpm {
        metric,
        scale: Scale::MibToBytes,
    }
}

use Kind::{Counter, Gauge, Label};
use Level::{GpuOnly, Instance};

/// Every field, ascending by id.
#[rustfmt::skip] // a table: one field per line
pub static FIELDS: &[Field] = &[
    field("DCGM_FI_DRIVER_VERSION", 1, Label, "", Source::Text(Text::DriverVersion), "Driver version.").on().alias("DCGM_FI_SYSTEM_DRIVER_VERSION"),
    field("DCGM_FI_NVML_VERSION", 2, Label, "", Source::Text(Text::NvmlVersion), "NVML version."),
    field("DCGM_FI_DEV_SERIAL", 53, Label, "", Source::Text(Text::Serial), "Serial number."),
    field("DCGM_FI_DEV_SM_CLOCK", 100, Gauge, "MHz", Source::Clock(Clock::Sm), "SM clock frequency (in MHz).").on().old("dcgm_sm_clock"),
    field("DCGM_FI_DEV_MEM_CLOCK", 101, Gauge, "MHz", Source::Clock(Clock::Memory), "Memory clock frequency (in MHz).").on().old("dcgm_memory_clock"),
    field("DCGM_FI_DEV_VIDEO_CLOCK", 102, Gauge, "MHz", Source::Clock(Clock::Video), "Video engine clock frequency (in MHz)."),
    field("DCGM_FI_DEV_MEMORY_TEMP", 140, Gauge, "°C", Source::FieldValue { id: 82, scale: Scale::Celsius }, "Memory temperature (in C).").on().alias("DCGM_FI_DEV_MEMORY_TEMP_CELSIUS").old("dcgm_memory_temp"),
    field("DCGM_FI_DEV_GPU_TEMP", 150, Gauge, "°C", Source::Temperature, "GPU temperature (in C).").on().alias("DCGM_FI_DEV_GPU_TEMP_CELSIUS").old("dcgm_gpu_temp"),
    field("DCGM_FI_DEV_POWER_USAGE", 155, Gauge, "W", Source::Power, "Power draw (in W).").on().alias("DCGM_FI_DEV_BOARD_POWER_WATTS").old("dcgm_power_usage"),
    field("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 156, Counter, "mJ", Source::Energy, "Energy used since the driver was loaded (in mJ).").on().old("dcgm_total_energy_consumption"),
    field("DCGM_FI_DEV_POWER_USAGE_INSTANT", 157, Gauge, "W", Source::FieldValue { id: 186, scale: Scale::MilliToWatts }, "Momentary power draw (in W)."),
    field("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 202, Counter, "", Source::PcieReplays, "PCIe packets sent again.").on().alias("DCGM_FI_DEV_PCIE_REPLAY_TOTAL").old("dcgm_pcie_replay_counter"),
    field("DCGM_FI_DEV_GPU_UTIL", 203, Gauge, "%", Source::Utilisation(Utilisation::Gpu), "Time during which a kernel was running (in %).").on().level(GpuOnly).old("dcgm_gpu_utilization"),
    field("DCGM_FI_DEV_MEM_COPY_UTIL", 204, Gauge, "%", Source::Utilisation(Utilisation::Memory), "Time during which the memory controller was busy (in %).").on().level(GpuOnly).old("dcgm_mem_copy_utilization"),
    field("DCGM_FI_DEV_ENC_UTIL", 206, Gauge, "%", Source::Utilisation(Utilisation::Encoder), "Video encoder utilization (in %).").on().level(GpuOnly).old("dcgm_enc_utilization"),
    field("DCGM_FI_DEV_DEC_UTIL", 207, Gauge, "%", Source::Utilisation(Utilisation::Decoder), "Video decoder utilization (in %).").on().level(GpuOnly).old("dcgm_dec_utilization"),
    field("DCGM_FI_DEV_XID_ERRORS", 230, Gauge, "", Source::LastXid, "Number of the last XID error.").on().level(Instance).alias("DCGM_FI_DEV_XID_ERROR").old("dcgm_xid_errors"),
    field("DCGM_FI_DEV_POWER_VIOLATION", 240, Counter, "ns", value(74), "Time clocks were held down by the power limit (in ns).").old("dcgm_power_violation"),
    field("DCGM_FI_DEV_THERMAL_VIOLATION", 241, Counter, "ns", value(75), "Time clocks were held down by temperature (in ns).").old("dcgm_thermal_violation"),
    field("DCGM_FI_DEV_SYNC_BOOST_VIOLATION", 242, Counter, "ns", value(76), "Time clocks were held down by sync boost (in ns).").old("dcgm_sync_boost_violation"),
    field("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", 243, Counter, "ns", value(77), "Time clocks were held down by the board limit (in ns).").old("dcgm_board_limit_violation"),
    field("DCGM_FI_DEV_LOW_UTIL_VIOLATION", 244, Counter, "ns", value(78), "Time clocks were held down by low utilization (in ns).").old("dcgm_low_util_violation"),
    field("DCGM_FI_DEV_RELIABILITY_VIOLATION", 245, Counter, "ns", value(79), "Time clocks were held down by the reliability limit (in ns).").old("dcgm_reliability_violation"),
    field("DCGM_FI_DEV_TOTAL_APP_CLOCKS_VIOLATION", 246, Counter, "ns", value(80), "Time below application clocks (in ns)."),
    field("DCGM_FI_DEV_TOTAL_BASE_CLOCKS_VIOLATION", 247, Counter, "ns", value(81), "Time below base clocks (in ns)."),
    field("DCGM_FI_DEV_FB_TOTAL", 250, Gauge, "MiB", Source::Memory(Memory::Total), "Framebuffer memory (in MiB).").level(Instance),
    field("DCGM_FI_DEV_FB_FREE", 251, Gauge, "MiB", Source::Memory(Memory::Free), "Framebuffer memory free (in MiB).").on().level(Instance).old("dcgm_fb_free"),
    field("DCGM_FI_DEV_FB_USED", 252, Gauge, "MiB", Source::Memory(Memory::Used), "Framebuffer memory used (in MiB).").on().level(Instance).old("dcgm_fb_used"),
    field("DCGM_FI_DEV_FB_RESERVED", 253, Gauge, "MiB", Source::Memory(Memory::Reserved), "Framebuffer memory reserved (in MiB).").on().level(Instance),
    field("DCGM_FI_DEV_FB_USED_PERCENT", 254, Gauge, "ratio", Source::Memory(Memory::UsedShare), "Framebuffer memory used, as a share of what is not reserved.").level(Instance),
    field("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 310, Counter, "", value(3), "Single-bit errors since the driver was loaded.").old("dcgm_ecc_sbe_volatile_total"),
    field("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 311, Counter, "", value(4), "Double-bit errors since the driver was loaded.").old("dcgm_ecc_dbe_volatile_total"),
    field("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", 312, Counter, "", value(5), "Single-bit errors over the GPU's life.").old("dcgm_ecc_sbe_aggregate_total"),
    field("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 313, Counter, "", value(6), "Double-bit errors over the GPU's life.").old("dcgm_ecc_dbe_aggregate_total"),
    field("DCGM_FI_DEV_RETIRED_SBE", 390, Counter, "", value(29), "Pages retired after single-bit errors.").old("dcgm_retired_pages_sbe"),
    field("DCGM_FI_DEV_RETIRED_DBE", 391, Counter, "", value(30), "Pages retired after a double-bit error.").old("dcgm_retired_pages_dbe"),
    field("DCGM_FI_DEV_RETIRED_PENDING", 392, Counter, "", value(31), "Pages waiting to be retired.").old("dcgm_retired_pages_pending"),
    field("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 393, Counter, "", Source::RemappedRows(Rows::Uncorrectable), "Rows remapped after uncorrectable errors.").on().level(GpuOnly).alias("DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL"),
    field("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", 394, Counter, "", Source::RemappedRows(Rows::Correctable), "Rows remapped after correctable errors.").on().level(GpuOnly).alias("DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL"),
    field("DCGM_FI_DEV_ROW_REMAP_FAILURE", 395, Gauge, "", Source::RemappedRows(Rows::Failure), "Whether a row could not be remapped.").on().level(GpuOnly).alias("DCGM_FI_DEV_ROW_REMAP_FAILED"),
    field("DCGM_FI_DEV_ROW_REMAP_PENDING", 396, Gauge, "", Source::RemappedRows(Rows::Pending), "Whether a row remapping waits for a reset.").level(GpuOnly),
    field("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 409, Counter, "", value(38), "NVLink flow-control CRC errors."),
    field("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 419, Counter, "", value(45), "NVLink data CRC errors."),
    field("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 429, Counter, "", value(52), "NVLink retries."),
    field("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 439, Counter, "", value(59), "NVLink recoveries."),
    field("DCGM_FI_DEV_NVLINK_BANDWIDTH_L0", 440, Counter, "MB/s", Source::Nothing, "NVLink rate of link 0 (in MB/s)."),
    field("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", 449, Gauge, "MB/s", Source::NvlinkRate, "NVLink data rate, both directions of all links (in MB/s).").on().alias("DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL").old("dcgm_nvlink_bandwidth_total"),
    field("DCGM_FI_DEV_VGPU_LICENSE_STATUS", 526, Gauge, "", Source::Licence, "Whether the vGPU guest holds a licence.").on(),
    field("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1001, Gauge, "ratio", ratio(1), "Share of time the graphics or compute engine was busy.").on().level(Instance).alias("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO").old("dcgm_fi_prof_gr_engine_active"),
    field("DCGM_FI_PROF_SM_ACTIVE", 1002, Gauge, "ratio", ratio(2), "Share of time an SM had a warp resident, averaged over SMs.").level(Instance),
    field("DCGM_FI_PROF_SM_OCCUPANCY", 1003, Gauge, "ratio", ratio(3), "Share of resident warps.").level(Instance),
    field("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1004, Gauge, "ratio", ratio(5), "Share of cycles a tensor pipe was busy.").on().level(Instance).alias("DCGM_FI_PROF_TENSOR_UTIL_RATIO").old("dcgm_fi_prof_pipe_tensor_active"),
    field("DCGM_FI_PROF_DRAM_ACTIVE", 1005, Gauge, "ratio", ratio(10), "Share of cycles the memory interface moved data.").on().level(Instance).alias("DCGM_FI_PROF_DRAM_UTIL_RATIO").old("dcgm_fi_prof_dram_active"),
    field("DCGM_FI_PROF_PIPE_FP64_ACTIVE", 1006, Gauge, "ratio", ratio(11), "Share of cycles the FP64 pipe was busy.").level(Instance),
    field("DCGM_FI_PROF_PIPE_FP32_ACTIVE", 1007, Gauge, "ratio", ratio(12), "Share of cycles the FP32 pipe was busy.").level(Instance),
    field("DCGM_FI_PROF_PIPE_FP16_ACTIVE", 1008, Gauge, "ratio", ratio(13), "Share of cycles the FP16 pipe was busy.").level(Instance),
    field("DCGM_FI_PROF_PCIE_TX_BYTES", 1009, Gauge, "B/s", rate(20), "PCIe data sent, per second (in bytes).").on().level(GpuOnly).old("dcgm_fi_prof_pcie_tx_bytes"),
    field("DCGM_FI_PROF_PCIE_RX_BYTES", 1010, Gauge, "B/s", rate(21), "PCIe data received, per second (in bytes).").on().level(GpuOnly).old("dcgm_fi_prof_pcie_rx_bytes"),
    field("DCGM_FI_PROF_NVLINK_TX_BYTES", 1011, Gauge, "B/s", rate(61), "NVLink data sent, per second (in bytes).").level(GpuOnly),
    field("DCGM_FI_PROF_NVLINK_RX_BYTES", 1012, Gauge, "B/s", rate(60), "NVLink data received, per second (in bytes).").level(GpuOnly),
    field("DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE", 1013, Gauge, "ratio", ratio(9), "Share of cycles the integer tensor pipe was busy.").level(Instance),
    field("DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE", 1014, Gauge, "ratio", ratio(7), "Share of cycles the half-precision tensor pipe was busy.").level(Instance),
    field("DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE", 1015, Gauge, "ratio", ratio(6), "Share of cycles the double-precision tensor pipe was busy.").level(Instance),
    field("DCGM_FI_PROF_PIPE_INT_ACTIVE", 1016, Gauge, "ratio", ratio(4), "Share of cycles the integer pipe was busy.").level(Instance),
    field("DCGM_EXP_XID_ERRORS_COUNT", 9001, Gauge, "", Source::Nothing, "XID errors in a time window."),
    field("DCGM_EXP_CLOCK_EVENTS_COUNT", 9002, Gauge, "", Source::Nothing, "Clock events in a time window."),
    field("DCGM_EXP_GPU_HEALTH_STATUS", 9003, Gauge, "", Source::Nothing, "Health checks."),
    field("DCGM_EXP_P2P_STATUS", 9004, Gauge, "", Source::Nothing, "NVLink state between pairs of GPUs."),
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_default_set_is_dcgm_exporters() {
        // Name, id and type of each active row of the shipped counter file.
        let wanted = "
            DCGM_FI_DRIVER_VERSION 1 label
            DCGM_FI_DEV_SM_CLOCK 100 gauge
            DCGM_FI_DEV_MEM_CLOCK 101 gauge
            DCGM_FI_DEV_MEMORY_TEMP 140 gauge
            DCGM_FI_DEV_GPU_TEMP 150 gauge
            DCGM_FI_DEV_POWER_USAGE 155 gauge
            DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION 156 counter
            DCGM_FI_DEV_PCIE_REPLAY_COUNTER 202 counter
            DCGM_FI_DEV_GPU_UTIL 203 gauge
            DCGM_FI_DEV_MEM_COPY_UTIL 204 gauge
            DCGM_FI_DEV_ENC_UTIL 206 gauge
            DCGM_FI_DEV_DEC_UTIL 207 gauge
            DCGM_FI_DEV_XID_ERRORS 230 gauge
            DCGM_FI_DEV_FB_FREE 251 gauge
            DCGM_FI_DEV_FB_USED 252 gauge
            DCGM_FI_DEV_FB_RESERVED 253 gauge
            DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS 393 counter
            DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS 394 counter
            DCGM_FI_DEV_ROW_REMAP_FAILURE 395 gauge
            DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL 449 gauge
            DCGM_FI_DEV_VGPU_LICENSE_STATUS 526 gauge
            DCGM_FI_PROF_GR_ENGINE_ACTIVE 1001 gauge
            DCGM_FI_PROF_PIPE_TENSOR_ACTIVE 1004 gauge
            DCGM_FI_PROF_DRAM_ACTIVE 1005 gauge
            DCGM_FI_PROF_PCIE_TX_BYTES 1009 gauge
            DCGM_FI_PROF_PCIE_RX_BYTES 1010 gauge";
        let wanted: Vec<&str> = wanted
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        let got: Vec<String> = FIELDS
            .iter()
            .filter(|field| field.default)
            .map(|field| format!("{} {} {}", field.name, field.id, field.kind.as_str()))
            .collect();
        assert_eq!(got, wanted);
    }

    #[test]
    fn every_name_means_one_field_and_ids_ascend() {
        assert!(FIELDS.is_sorted_by(|a, b| a.id < b.id));
        let mut names: Vec<&str> = FIELDS
            .iter()
            .flat_map(|f| [Some(f.name), f.alias, f.old_name])
            .flatten()
            .collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn names_are_found_by_their_namespace() {
        assert_eq!(
            find("DCGM_FI_DEV_BOARD_POWER_WATTS", false).unwrap().id,
            155
        );
        assert_eq!(find("dcgm_power_usage", true).unwrap().id, 155);
        assert!(find("dcgm_power_usage", false).is_none());
        assert!(find("DCGM_FI_DEV_POWER", true).is_none());
    }
}
