//! What is wrong with a GPU: error counters, row remapping, loss, throttling.
//!
//! State and the pure changes to it. Which NVML call shows what is not known here.

use serde::{Deserialize, Serialize};

use super::Node;
use super::events::{Event, kind};
use super::gpu::Gpu;

/// Error counters of one life time (volatile: since the last reset; aggregate: since manufacture).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EccCounters {
    /// Corrected errors in device memory.
    pub dram_corrected: u64,
    /// Uncorrected errors in device memory.
    pub dram_uncorrected: u64,
    /// Corrected errors in on-chip memory.
    pub sram_corrected: u64,
    /// Uncorrected parity errors in on-chip memory.
    pub sram_parity: u64,
    /// Uncorrected SEC-DED errors in on-chip memory.
    pub sram_secded: u64,
}

impl EccCounters {
    /// All corrected errors.
    pub fn corrected(&self) -> u64 {
        self.dram_corrected.saturating_add(self.sram_corrected)
    }

    /// Uncorrected errors in on-chip memory.
    pub fn sram_uncorrected(&self) -> u64 {
        self.sram_parity.saturating_add(self.sram_secded)
    }

    /// All uncorrected errors.
    pub fn uncorrected(&self) -> u64 {
        self.dram_uncorrected
            .saturating_add(self.sram_uncorrected())
    }
}

/// ECC mode and counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ecc {
    /// Whether it is on.
    pub current: bool,
    /// Whether it will be on after the next reset.
    pub pending: bool,
    /// Since the last reset.
    pub volatile: EccCounters,
    /// Since manufacture.
    pub aggregate: EccCounters,
    /// The driver's flag that on-chip errors passed the threshold for a replacement.
    pub sram_threshold_exceeded: bool,
}

/// Row remapper.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RowRemap {
    /// Rows remapped for corrected errors.
    pub correctable: u32,
    /// Rows remapped for uncorrected errors.
    pub uncorrectable: u32,
    /// Rows that the next reset will remap.
    pub pending: u32,
    /// A remapping failed: the board needs replacing.
    pub failure: bool,
}

/// Banks by how many spare rows they have left (`nvmlRowRemapperHistogramValues_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// All spare rows left.
    pub max: u32,
    /// Most left.
    pub high: u32,
    /// Some left.
    pub partial: u32,
    /// One left.
    pub low: u32,
    /// None left.
    pub none: u32,
}

/// Loss and what would cure it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// Every call on it answers GPU_IS_LOST until a reset or reboot.
    pub lost: bool,
    /// It fell off the bus when the node's state had this sequence number: clients that initialised before see it as
    /// lost, clients that initialise later do not see it. Only a reboot brings it back.
    pub fallen_at: Option<u64>,
    /// The driver asks for a reset.
    pub reset_required: bool,
    /// Resets are refused.
    pub reset_refused: bool,
    /// The InfoROM is corrupt.
    pub inforom_corrupt: bool,
    /// Number of the last XID.
    pub last_xid: Option<u64>,
}

/// `nvmlDeviceGpuRecoveryAction_t`, field 230.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// 0
    None,
    /// 1
    Reset,
    /// 2
    Reboot,
    /// 4
    DrainAndReset,
}

impl Recovery {
    /// The header's number.
    pub fn number(self) -> u32 {
        match self {
            Recovery::None => 0,
            Recovery::Reset => 1,
            Recovery::Reboot => 2,
            Recovery::DrainAndReset => 4,
        }
    }
}

/// Injected reasons for lower clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Throttle {
    /// Hardware thermal slowdown: temperature at the slowdown threshold.
    pub hw_thermal: bool,
    /// Software thermal slowdown.
    pub sw_thermal: bool,
    /// Power brake asserted from outside.
    pub power_brake: bool,
    /// Software power cap, whatever the limit.
    pub power_cap: bool,
}

impl Throttle {
    /// Whether any reason holds.
    pub fn any(&self) -> bool {
        self.hw_thermal || self.sw_thermal || self.power_brake || self.power_cap
    }
}

/// XIDs after which the vendor's catalogue asks for a GPU reset.
const XIDS_NEEDING_RESET: &[u64] = &[46, 62, 64, 95, 109, 119, 120, 136, 140, 143, 155, 156, 158];
/// XID of a GPU that has fallen off the bus.
pub const XID_FALLEN: u64 = 79;
/// XID of an uncorrected memory error.
pub const XID_DBE: u64 = 48;
/// XID of a row-remapping event.
pub const XID_ROW_REMAP: u64 = 63;
/// XID of a failed row remapping.
pub const XID_ROW_REMAP_FAILURE: u64 = 64;

impl Gpu {
    /// Row-remapper banks by spare rows left; absent on boards without a remapper. One remapped row costs a bank one
    /// class: `max` holds the untouched ones.
    pub fn histogram(&self) -> Option<Histogram> {
        let banks = self.board.row_remap_banks?;
        let remapped = self
            .remap
            .correctable
            .saturating_add(self.remap.uncorrectable);
        let used = remapped.min(banks);
        let none = u32::from(self.remap.failure).min(banks - used);
        Some(Histogram {
            max: banks - used - none,
            high: used,
            partial: 0,
            low: 0,
            none,
        })
    }

    /// What the driver recommends.
    pub fn recovery(&self) -> Recovery {
        if self.health.fallen_at.is_some() {
            Recovery::Reboot
        } else if self.health.lost || self.health.reset_required {
            Recovery::Reset
        } else if self.remap.pending > 0 {
            Recovery::DrainAndReset
        } else {
            Recovery::None
        }
    }

    /// Whether a client that initialised when the node's state had the sequence number `since` sees this GPU at all.
    pub fn visible_since(&self, since: u64) -> bool {
        !self.removed && self.health.fallen_at.is_none_or(|fallen| fallen > since)
    }

    /// Whether every call on it answers GPU_IS_LOST.
    pub fn is_lost(&self) -> bool {
        self.health.lost || self.health.fallen_at.is_some()
    }
}

/// Which memory an injected error sits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EccError {
    /// Corrected, device memory.
    Sbe,
    /// Uncorrected, device memory; comes with XID 48.
    Dbe,
    /// Corrected, on-chip memory.
    SramCorrected,
    /// Uncorrected parity, on-chip memory.
    SramParity,
    /// Uncorrected SEC-DED, on-chip memory.
    SramSecded,
}

impl Node {
    /// An XID on a GPU, or on one of its instances: the event for every event set, and what it means for health.
    pub fn raise_xid(
        &mut self,
        gpu: usize,
        xid: u64,
        instance: Option<u32>,
        compute: Option<u32>,
        now_us: u64,
    ) {
        let sequence = self.sequence + 1;
        let Some(state) = self.gpus.get_mut(gpu) else {
            return;
        };
        state.health.last_xid = Some(xid);
        if xid == XID_FALLEN {
            state.health.fallen_at = Some(sequence);
        } else if XIDS_NEEDING_RESET.contains(&xid) {
            state.health.reset_required = true;
        }
        if xid == XID_ROW_REMAP_FAILURE {
            state.remap.failure = true;
        }
        self.events.push(Event {
            gpu,
            instance,
            compute,
            ..Event::new(kind::XID, xid, now_us)
        });
    }

    /// Memory errors on a GPU: counters and events.
    pub fn raise_ecc(&mut self, gpu: usize, error: EccError, count: u64, now_us: u64) {
        let Some(state) = self.gpus.get_mut(gpu) else {
            return;
        };
        for counters in [&mut state.ecc.volatile, &mut state.ecc.aggregate] {
            let counter = match error {
                EccError::Sbe => &mut counters.dram_corrected,
                EccError::Dbe => &mut counters.dram_uncorrected,
                EccError::SramCorrected => &mut counters.sram_corrected,
                EccError::SramParity => &mut counters.sram_parity,
                EccError::SramSecded => &mut counters.sram_secded,
            };
            *counter = counter.saturating_add(count);
        }
        let corrected = matches!(error, EccError::Sbe | EccError::SramCorrected);
        let kind = if corrected {
            kind::SINGLE_BIT_ECC
        } else {
            kind::DOUBLE_BIT_ECC
        };
        self.events.push(Event {
            gpu,
            ..Event::new(kind, 0, now_us)
        });
        if error == EccError::Dbe {
            self.raise_xid(gpu, XID_DBE, None, None, now_us);
        }
    }

    /// Rows that wait for a reset to be remapped, with XID 63.
    pub fn raise_row_remap(&mut self, gpu: usize, rows: u32, now_us: u64) {
        let Some(state) = self.gpus.get_mut(gpu) else {
            return;
        };
        state.remap.pending = state.remap.pending.saturating_add(rows);
        self.raise_xid(gpu, XID_ROW_REMAP, None, None, now_us);
    }
}
