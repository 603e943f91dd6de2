//! Field values: many numbers of a GPU in one call, each with its own answer.

use nvml_wrapper_sys::bindings as sys;

use crate::Code;
use crate::device::Device;
use crate::error::Error;
use crate::library::symbol;
use crate::plain::zeroed;

/// The scope of NVLink fields that means all links together.
pub const ALL_LINKS: u32 = 0xFFFF_FFFF;

/// A field to read: its id, and its scope, which most fields do not have (0).
///
/// Named are only ids below 251: those from there on were renumbered with driver 580.82.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// `NVML_FI_*`.
    pub id: u32,
    /// Link, power or other scope.
    pub scope: u32,
}

impl Field {
    /// Memory temperature in °C, in the low 32 bits whatever the value's type says.
    pub const MEMORY_TEMPERATURE: Self = Self::new(82);
    /// Energy since driver load in mJ.
    pub const TOTAL_ENERGY: Self = Self::new(83);
    /// How many NVLinks the GPU has.
    pub const NVLINK_COUNT: Self = Self::new(91);
    /// Payload that all NVLinks together have sent, in KiB.
    pub const NVLINK_DATA_TX: Self = Self::scoped(138, ALL_LINKS);
    /// Payload that all NVLinks together have received, in KiB.
    pub const NVLINK_DATA_RX: Self = Self::scoped(139, ALL_LINKS);
    /// Correctable remapped rows.
    pub const REMAPPED_CORRECTABLE: Self = Self::new(142);
    /// Uncorrectable remapped rows.
    pub const REMAPPED_UNCORRECTABLE: Self = Self::new(143);
    /// Whether a row remapping waits for a reset.
    pub const REMAPPED_PENDING: Self = Self::new(144);
    /// Whether a row remapping failed.
    pub const REMAPPED_FAILURE: Self = Self::new(145);
    /// Whether MIG mode changes need no reset (Hopper and later).
    pub const RESETLESS_MIG: Self = Self::new(184);
    /// What would recover the GPU: 0 nothing, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 recover IMEX.
    pub const RECOVERY_ACTION: Self = Self::new(230);

    /// A field without scope.
    #[must_use]
    pub const fn new(id: u32) -> Self {
        Self { id, scope: 0 }
    }

    /// A field with scope.
    #[must_use]
    pub const fn scoped(id: u32, scope: u32) -> Self {
        Self { id, scope }
    }
}

/// A field's value: 64 bits and how the driver says they are to be read (`nvmlValueType_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldValue {
    bits: u64,
    kind: u32,
    /// When the driver sampled it, in µs since the epoch; 0 when it does not say.
    pub timestamp_us: i64,
}

impl FieldValue {
    /// As a whole number; negative and fractional values are cut.
    #[must_use]
    pub fn as_u64(self) -> u64 {
        match self.kind {
            0 => f64::from_bits(self.bits) as u64,
            1 => u64::from(self.low_u32()),
            4 => u64::try_from(self.bits as i64).unwrap_or(0),
            5 => u64::try_from(self.low_u32() as i32).unwrap_or(0),
            6 => u64::from(self.bits as u16),
            // 2 and 3 are unsigned 64-bit; so is the best guess for a type from the future.
            _ => self.bits,
        }
    }

    /// As a floating-point number.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        match self.kind {
            0 => f64::from_bits(self.bits),
            4 => self.bits as i64 as f64,
            5 => f64::from(self.low_u32() as i32),
            _ => self.as_u64() as f64,
        }
    }

    /// The low 32 bits whatever the type says: some fields are mislabelled, memory temperature among them.
    #[must_use]
    pub fn low_u32(self) -> u32 {
        self.bits as u32
    }
}

impl Device<'_> {
    /// Reads fields in one call. Each has its own answer, in the order asked.
    ///
    /// # Errors
    /// Only when the whole call fails.
    pub fn fields(&self, fields: &[Field]) -> Result<Vec<Result<FieldValue, Code>>, Error> {
        let mut values: Vec<sys::nvmlFieldValue_t> = fields
            .iter()
            .map(|field| sys::nvmlFieldValue_t {
                fieldId: field.id,
                scopeId: field.scope,
                ..zeroed()
            })
            .collect();
        let count = i32::try_from(values.len()).unwrap_or(i32::MAX);
        let library = self.context.library;
        let symbol = symbol!(library, nvmlDeviceGetFieldValues);
        // SAFETY: `values` has `count` entries and is valid for the call.
        self.context.call(symbol, |f| unsafe {
            f(self.handle, count, values.as_mut_ptr())
        })?;
        Ok(values.iter().map(answer).collect())
    }

    /// Reads one field.
    ///
    /// # Errors
    /// The call's, or the field's own.
    pub fn field(&self, field: Field) -> Result<FieldValue, Error> {
        let name = "nvmlDeviceGetFieldValues";
        match self.fields(&[field])?.first() {
            Some(Ok(value)) => Ok(*value),
            Some(Err(code)) => Err(self.context.error(name, *code)),
            None => Err(self.context.error(name, Code::NO_DATA)),
        }
    }
}

fn answer(value: &sys::nvmlFieldValue_t) -> Result<FieldValue, Code> {
    match Code(value.nvmlReturn) {
        Code::SUCCESS => Ok(FieldValue {
            // SAFETY: all eight bytes of the union are initialised: we zeroed it, and the driver only overwrites.
            bits: unsafe { value.value.ullVal },
            kind: value.valueType,
            timestamp_us: value.timestamp,
        }),
        code => Err(code),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0, 42.9f64.to_bits(), 42, 42.9)]
    #[case(1, 0xFFFF_FFFF, 0xFFFF_FFFF, 4_294_967_295.0)]
    #[case(3, 1 << 40, 1 << 40, 1_099_511_627_776.0)]
    #[case(4, (-5i64) as u64, 0, -5.0)]
    #[case(5, 0xFFFF_FFFE, 0, -2.0)]
    #[case(6, 0x1_0007, 7, 7.0)]
    fn values_are_read_as_their_type_says(
        #[case] kind: u32,
        #[case] bits: u64,
        #[case] whole: u64,
        #[case] float: f64,
    ) {
        let value = FieldValue {
            bits,
            kind,
            timestamp_us: 0,
        };
        assert_eq!(value.as_u64(), whole);
        assert!((value.as_f64() - float).abs() < 1e-9);
    }
}
