//! Every field: names, ids, types, units and help texts, one field per line.

use super::{Clock, Field, Kind, Level, Memory, Rows, Scale, Source, Text, Utilisation};

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
    field("DCGM_FI_DEV_BRAND", 51, Label, "", Source::Nothing, "Brand."),
    field("DCGM_FI_DEV_SERIAL", 53, Label, "", Source::Text(Text::Serial), "Serial number."),
    field("DCGM_FI_DEV_OEM_INFOROM_VER", 56, Label, "", Source::Nothing, "Version of the InfoROM's OEM object."),
    field("DCGM_FI_DEV_ECC_INFOROM_VER", 80, Label, "", Source::Nothing, "Version of the InfoROM's ECC object."),
    field("DCGM_FI_DEV_POWER_INFOROM_VER", 81, Label, "", Source::Nothing, "Version of the InfoROM's power object."),
    field("DCGM_FI_DEV_INFOROM_IMAGE_VER", 82, Label, "", Source::Nothing, "Version of the InfoROM's image."),
    field("DCGM_FI_DEV_VBIOS_VERSION", 85, Label, "", Source::Nothing, "VBIOS version."),
    field("DCGM_FI_DEV_BAR1_TOTAL", 90, Gauge, "MiB", Source::Nothing, "BAR1 memory (in MiB)."),
    field("DCGM_FI_DEV_BAR1_USED", 92, Gauge, "MiB", Source::Nothing, "BAR1 memory used (in MiB)."),
    field("DCGM_FI_DEV_BAR1_FREE", 93, Gauge, "MiB", Source::Nothing, "BAR1 memory free (in MiB)."),
    field("DCGM_FI_DEV_SM_CLOCK", 100, Gauge, "MHz", Source::Clock(Clock::Sm), "SM clock frequency (in MHz).").on().old("dcgm_sm_clock"),
    field("DCGM_FI_DEV_MEM_CLOCK", 101, Gauge, "MHz", Source::Clock(Clock::Memory), "Memory clock frequency (in MHz).").on().old("dcgm_memory_clock"),
    field("DCGM_FI_DEV_VIDEO_CLOCK", 102, Gauge, "MHz", Source::Clock(Clock::Video), "Video engine clock frequency (in MHz)."),
    field("DCGM_FI_DEV_APP_SM_CLOCK", 110, Gauge, "MHz", Source::Nothing, "Application SM clock (in MHz)."),
    field("DCGM_FI_DEV_APP_MEM_CLOCK", 111, Gauge, "MHz", Source::Nothing, "Application memory clock (in MHz)."),
    field("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 112, Gauge, "", Source::Nothing, "Why clocks are held down, as a bit mask."),
    field("DCGM_FI_DEV_MAX_SM_CLOCK", 113, Gauge, "MHz", Source::Nothing, "Highest SM clock (in MHz)."),
    field("DCGM_FI_DEV_MEMORY_TEMP", 140, Gauge, "°C", Source::FieldValue { id: 82, scale: Scale::Celsius }, "Memory temperature (in C).").on().alias("DCGM_FI_DEV_MEMORY_TEMP_CELSIUS").old("dcgm_memory_temp"),
    field("DCGM_FI_DEV_GPU_TEMP", 150, Gauge, "°C", Source::Temperature, "GPU temperature (in C).").on().alias("DCGM_FI_DEV_GPU_TEMP_CELSIUS").old("dcgm_gpu_temp"),
    field("DCGM_FI_DEV_POWER_USAGE", 155, Gauge, "W", Source::Power, "Power draw (in W).").on().alias("DCGM_FI_DEV_BOARD_POWER_WATTS").old("dcgm_power_usage"),
    field("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 156, Counter, "mJ", Source::Energy, "Energy used since the driver was loaded (in mJ).").on().old("dcgm_total_energy_consumption"),
    field("DCGM_FI_DEV_POWER_USAGE_INSTANT", 157, Gauge, "W", Source::FieldValue { id: 186, scale: Scale::MilliToWatts }, "Momentary power draw (in W)."),
    field("DCGM_FI_DEV_SLOWDOWN_TEMP", 158, Gauge, "°C", Source::Nothing, "Temperature at which the GPU slows down (in C)."),
    field("DCGM_FI_DEV_SHUTDOWN_TEMP", 159, Gauge, "°C", Source::Nothing, "Temperature at which the GPU shuts down (in C)."),
    field("DCGM_FI_DEV_POWER_MGMT_LIMIT", 160, Gauge, "W", Source::Nothing, "Power limit that was set (in W)."),
    field("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 164, Gauge, "W", Source::Nothing, "Power limit in force (in W)."),
    field("DCGM_FI_DEV_PSTATE", 190, Gauge, "", Source::Nothing, "Performance state, 0 is the highest."),
    field("DCGM_FI_DEV_FAN_SPEED", 191, Gauge, "%", Source::Nothing, "Fan speed (in %)."),
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
    field("DCGM_FI_PROF_NVDEC0_ACTIVE", 1017, Gauge, "ratio", Source::Nothing, "Share of time video decoder 0 was busy."),
    field("DCGM_FI_PROF_NVDEC1_ACTIVE", 1018, Gauge, "ratio", Source::Nothing, "Share of time video decoder 1 was busy."),
    field("DCGM_FI_PROF_NVDEC2_ACTIVE", 1019, Gauge, "ratio", Source::Nothing, "Share of time video decoder 2 was busy."),
    field("DCGM_FI_PROF_NVDEC3_ACTIVE", 1020, Gauge, "ratio", Source::Nothing, "Share of time video decoder 3 was busy."),
    field("DCGM_FI_PROF_NVDEC4_ACTIVE", 1021, Gauge, "ratio", Source::Nothing, "Share of time video decoder 4 was busy."),
    field("DCGM_FI_PROF_NVDEC5_ACTIVE", 1022, Gauge, "ratio", Source::Nothing, "Share of time video decoder 5 was busy."),
    field("DCGM_FI_PROF_NVDEC6_ACTIVE", 1023, Gauge, "ratio", Source::Nothing, "Share of time video decoder 6 was busy."),
    field("DCGM_FI_PROF_NVDEC7_ACTIVE", 1024, Gauge, "ratio", Source::Nothing, "Share of time video decoder 7 was busy."),
    field("DCGM_FI_PROF_NVJPG0_ACTIVE", 1025, Gauge, "ratio", Source::Nothing, "Share of time JPEG engine 0 was busy."),
    field("DCGM_FI_PROF_NVJPG1_ACTIVE", 1026, Gauge, "ratio", Source::Nothing, "Share of time JPEG engine 1 was busy."),
    field("DCGM_FI_PROF_NVJPG2_ACTIVE", 1027, Gauge, "ratio", Source::Nothing, "Share of time JPEG engine 2 was busy."),
    field("DCGM_FI_PROF_NVJPG3_ACTIVE", 1028, Gauge, "ratio", Source::Nothing, "Share of time JPEG engine 3 was busy."),
    field("DCGM_FI_PROF_NVJPG4_ACTIVE", 1029, Gauge, "ratio", Source::Nothing, "Share of time JPEG engine 4 was busy."),
    field("DCGM_FI_PROF_NVJPG5_ACTIVE", 1030, Gauge, "ratio", Source::Nothing, "Share of time JPEG engine 5 was busy."),
    field("DCGM_FI_PROF_NVJPG6_ACTIVE", 1031, Gauge, "ratio", Source::Nothing, "Share of time JPEG engine 6 was busy."),
    field("DCGM_FI_PROF_NVJPG7_ACTIVE", 1032, Gauge, "ratio", Source::Nothing, "Share of time JPEG engine 7 was busy."),
    field("DCGM_FI_PROF_NVOFA0_ACTIVE", 1033, Gauge, "ratio", Source::Nothing, "Share of time optical flow accelerator 0 was busy."),
    field("DCGM_FI_PROF_NVOFA1_ACTIVE", 1034, Gauge, "ratio", Source::Nothing, "Share of time optical flow accelerator 1 was busy."),
    field("DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL", 1091, Counter, "B", Source::Nothing, "PCIe data sent (in bytes)."),
    field("DCGM_FI_PROF_PCIE_RX_BYTES_TOTAL", 1092, Counter, "B", Source::Nothing, "PCIe data received (in bytes)."),
    field("DCGM_EXP_XID_ERRORS_COUNT", 9001, Gauge, "", Source::Nothing, "XID errors in a time window."),
    field("DCGM_EXP_CLOCK_EVENTS_COUNT", 9002, Gauge, "", Source::Nothing, "Clock events in a time window."),
    field("DCGM_EXP_GPU_HEALTH_STATUS", 9003, Gauge, "", Source::Nothing, "Health checks."),
    field("DCGM_EXP_P2P_STATUS", 9004, Gauge, "", Source::Nothing, "NVLink state between pairs of GPUs."),
];
