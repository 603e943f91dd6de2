//! The instrumentation spec: every field this exporter knows, as data.
//!
//! Names, ids, types and units are DCGM's (`dcgm_fields.h`) and dcgm-exporter's counter file; dashboards and alerts depend
//! on them. What the collector reads, what the renderer prints and what the tests expect all come from this table, so a
//! field is added by adding a row (and, for a new kind of reading, a [`Source`]).
//!
//! This file must not know how a value is read or printed. The fields themselves are in `table`.

mod table;

pub use table::FIELDS;

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

    /// A counter file that names one must not keep the exporter from starting, though nothing is collected for it yet.
    #[test]
    fn fields_that_users_add_to_the_default_set_are_known() {
        let wanted = "
            BRAND 51, OEM_INFOROM_VER 56, ECC_INFOROM_VER 80, POWER_INFOROM_VER 81, INFOROM_IMAGE_VER 82, VBIOS_VERSION 85,
            BAR1_TOTAL 90, BAR1_USED 92, BAR1_FREE 93, VIDEO_CLOCK 102, APP_SM_CLOCK 110, APP_MEM_CLOCK 111,
            CLOCKS_EVENT_REASONS 112, MAX_SM_CLOCK 113, POWER_USAGE_INSTANT 157, SLOWDOWN_TEMP 158, SHUTDOWN_TEMP 159,
            POWER_MGMT_LIMIT 160, ENFORCED_POWER_LIMIT 164, PSTATE 190, FAN_SPEED 191, TOTAL_APP_CLOCKS_VIOLATION 246,
            TOTAL_BASE_CLOCKS_VIOLATION 247, FB_TOTAL 250, FB_USED_PERCENT 254, ROW_REMAP_PENDING 396";
        for entry in wanted.split(',') {
            let (name, id) = entry.trim().split_once(' ').unwrap();
            let field = find(&format!("DCGM_FI_DEV_{name}"), false);
            assert_eq!(field.map(|field| field.id), id.parse().ok(), "{name}");
        }
        let engines = [
            ("NVDEC7", 1024),
            ("NVJPG0", 1025),
            ("NVJPG7", 1032),
            ("NVOFA1", 1034),
        ];
        for (engine, id) in engines {
            let field = find(&format!("DCGM_FI_PROF_{engine}_ACTIVE"), false);
            assert_eq!(field.map(|field| field.id), Some(id), "{engine}");
        }
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
