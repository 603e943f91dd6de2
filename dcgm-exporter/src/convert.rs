//! From the driver's answers to values: units, rounding, and what an answer means for a page.

use nvml::{Error, FieldValue};

use crate::counters::Counters;
use crate::fields::{Clock, Memory, Rows, Scale, Source};
use crate::state::GpmValues;
use crate::value::{Failure, Value};

/// DCGM discards what no silicon survives (`DcgmCacheManager`).
const MAX_CELSIUS: u64 = 200;

/// A temperature, unless it cannot be one.
pub(crate) fn celsius(degrees: impl TryInto<u64>) -> Option<Value> {
    degrees
        .try_into()
        .ok()
        .filter(|&degrees| degrees <= MAX_CELSIUS)
        .map(Value::Int)
}

/// A field value in the family's unit.
pub(crate) fn field_value(answer: FieldValue, scale: Scale) -> Option<Value> {
    match scale {
        // The driver mislabels temperatures: only the low half is one.
        Scale::Celsius => celsius(answer.low_u32()),
        Scale::MilliToWatts => Some(Value::Double(answer.as_f64() / 1000.0)),
        Scale::Count | Scale::PercentToRatio | Scale::MibToBytes => {
            Some(Value::Int(answer.as_u64()))
        }
    }
}

/// What is told of an error.
pub(crate) fn failure(gpu: u32, error: &Error) -> Failure {
    Failure {
        gpu,
        uuid: error
            .gpu()
            .and_then(|gpu| gpu.uuid.as_deref())
            .map(str::to_owned),
        call: error.call().unwrap_or("none").to_owned(),
        code: match error.code() {
            Some(code) => code
                .name()
                .map_or_else(|| code.0.to_string(), str::to_owned),
            None if error.is_hung() => "HUNG".to_owned(),
            None => error.to_string(),
        },
    }
}

/// The GPU instance's profile from a MIG device's name (`… MIG 1c.3g.40gb`): compute slices are not the instance's.
pub(crate) fn instance_profile(name: &str) -> &str {
    let profile = name
        .rsplit_once("MIG ")
        .map_or("", |(_, profile)| profile.trim());
    match profile.split_once('.') {
        Some((compute, rest)) if compute.ends_with('c') => rest,
        _ => profile,
    }
}

pub(crate) fn int(value: Option<u32>) -> Option<Value> {
    value.map(|value| Value::Int(value.into()))
}

pub(crate) fn driver_clock(clock: Clock) -> nvml::Clock {
    match clock {
        Clock::Sm => nvml::Clock::Sm,
        Clock::Memory => nvml::Clock::Memory,
        Clock::Video => nvml::Clock::Video,
    }
}

pub(crate) fn memory_value(memory: nvml::Memory, part: Memory) -> Option<Value> {
    let mib = |bytes: u64| Some(Value::Int(bytes >> 20));
    match part {
        Memory::Total => mib(memory.total),
        Memory::Free => mib(memory.free),
        Memory::Used => mib(memory.used),
        Memory::Reserved => mib(memory.reserved?),
        Memory::UsedShare => {
            let usable = memory
                .total
                .checked_sub(memory.reserved.unwrap_or(0))
                .filter(|&bytes| bytes > 0)?;
            Some(Value::Double(memory.used as f64 / usable as f64))
        }
    }
}

pub(crate) fn rows_value(rows: nvml::RemappedRows, kind: Rows) -> Value {
    Value::Int(match kind {
        Rows::Uncorrectable => rows.uncorrectable.into(),
        Rows::Correctable => rows.correctable.into(),
        Rows::Failure => rows.failure.into(),
        Rows::Pending => rows.pending.into(),
    })
}

/// The value of family `i` among GPM answers, which hold one answer per GPM family in order.
pub(crate) fn gpm_value(
    counters: &Counters,
    answers: Option<&GpmValues>,
    i: usize,
    scale: Scale,
) -> Option<Value> {
    let is_gpm = |source| matches!(source, Source::Gpm { .. });
    let place = counters.families[..i]
        .iter()
        .filter(|counter| is_gpm(counter.field.source))
        .count();
    let value = (*answers?.get(place)?).filter(|value| value.is_finite())?;
    Some(match scale {
        Scale::PercentToRatio => Value::Double(value / 100.0),
        Scale::MibToBytes => Value::Int((value * 1_048_576.0).round() as u64),
        Scale::Count | Scale::Celsius | Scale::MilliToWatts => Value::Double(value),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "1g.10gb")]
    #[case("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", "3g.20gb")]
    #[case("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "1g.10gb+me")]
    #[case("", "")]
    fn profiles_of_instances(#[case] name: &str, #[case] wanted: &str) {
        assert_eq!(instance_profile(name), wanted);
    }

    #[test]
    fn memory_is_told_in_whole_mib() {
        let memory = nvml::Memory {
            total: 100 << 20,
            reserved: Some(20 << 20),
            free: (60 << 20) + 1_048_575,
            used: 20 << 20,
        };
        assert_eq!(memory_value(memory, Memory::Free), Some(Value::Int(60)));
        assert_eq!(memory_value(memory, Memory::Reserved), Some(Value::Int(20)));
        assert_eq!(
            memory_value(memory, Memory::UsedShare),
            Some(Value::Double(0.25))
        );
        let old = nvml::Memory {
            reserved: None,
            ..memory
        };
        assert_eq!(memory_value(old, Memory::Reserved), None);
    }
}
