//! Renders readings as a page in the Prometheus text format 0.0.4.
//!
//! One `HELP` and one `TYPE` line per family, families ascending by field id, entities in the order given. A family
//! without a value is not on the page at all. After dcgm-exporter's families come this exporter's own, which say what is
//! missing from the page and why:
//!
//! | family | labels | value |
//! |---|---|---|
//! | `lathe_exporter_driver_up` | | 1 when the driver answered the last collection, else 0 |
//! | `lathe_exporter_gpu_failed` | `gpu`, `UUID` when known, `call`, `code` | 1 per driver call that failed on a GPU in the last collection |
//! | `lathe_exporter_collect_timestamp_seconds` | | when the values on the page were read, Unix time |
//! | `lathe_exporter_collect_duration_seconds` | | how long reading them took |
//! | `lathe_exporter_pod_resources_up` | | 1 when the kubelet answered the last question which pods hold GPUs, else 0; not there unless it is asked |

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::counters::{Counter, Counters};
use crate::labels::{push_help, push_label};
use crate::value::{Entity, Failure, Value};
use crate::xid;

/// What one collection found.
#[derive(Clone, Debug, PartialEq)]
pub struct Readings {
    /// Whether the driver answered.
    pub driver_up: bool,
    /// GPUs and instances, in order.
    pub entities: Vec<Entity>,
    /// What failed.
    pub failures: Vec<Failure>,
    /// Whether the kubelet tells which pods hold GPUs; `None` when it was not asked.
    pub pods_known: Option<bool>,
    /// When it began.
    pub at: SystemTime,
    /// How long it took.
    pub took: Duration,
}

/// Appends the whole page to `out`.
pub fn render(counters: &Counters, readings: &Readings, out: &mut String) {
    families(counters, &readings.entities, out);
    own(readings, out);
}

/// Appends dcgm-exporter's families.
pub fn families(counters: &Counters, entities: &[Entity], out: &mut String) {
    for (i, counter) in counters.families.iter().enumerate() {
        let mut samples = entities
            .iter()
            .filter_map(|entity| Some((entity.labels.as_str(), (*entity.values.get(i)?)?)))
            .peekable();
        if samples.peek().is_none() {
            continue;
        }
        header(counter, out);
        for (labels, value) in samples {
            sample(&counter.name, labels, value, out);
        }
    }
}

fn header(counter: &Counter, out: &mut String) {
    out.push_str("# HELP ");
    out.push_str(&counter.name);
    out.push(' ');
    push_help(out, &counter.help);
    // Writing to a String cannot fail.
    let _ = write!(out, "\n# TYPE {} {}\n", counter.name, counter.kind.as_str());
}

fn sample(name: &str, labels: &str, value: Value, out: &mut String) {
    out.push_str(name);
    out.push('{');
    out.push_str(labels);
    let _ = match value {
        Value::Int(value) => writeln!(out, "}} {value}"),
        Value::Double(value) => writeln!(out, "}} {value:.6}"),
        Value::Xid(number) => {
            out.push(',');
            push_label(out, "err_code", number);
            out.push(',');
            push_label(out, "err_msg", xid::meaning(number));
            writeln!(out, "}} {number}")
        }
    };
}

fn own(readings: &Readings, out: &mut String) {
    gauge(
        out,
        "lathe_exporter_driver_up",
        "Whether the driver answered the last collection.",
        u8::from(readings.driver_up),
    );
    if !readings.failures.is_empty() {
        let name = "lathe_exporter_gpu_failed";
        own_header(
            out,
            name,
            "Driver calls that failed in the last collection; their values are missing here.",
        );
        for failure in &readings.failures {
            out.push_str(name);
            out.push('{');
            push_label(out, "gpu", failure.gpu);
            if let Some(uuid) = &failure.uuid {
                out.push(',');
                push_label(out, "UUID", uuid);
            }
            out.push(',');
            push_label(out, "call", &failure.call);
            out.push(',');
            push_label(out, "code", &failure.code);
            out.push_str("} 1\n");
        }
    }
    if let Some(known) = readings.pods_known {
        gauge(
            out,
            "lathe_exporter_pod_resources_up",
            "Whether the kubelet answered the last question which pods hold GPUs.",
            u8::from(known),
        );
    }
    let at = readings
        .at
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64();
    gauge(
        out,
        "lathe_exporter_collect_timestamp_seconds",
        "When the values on this page were read.",
        format_args!("{at:.3}"),
    );
    gauge(
        out,
        "lathe_exporter_collect_duration_seconds",
        "How long reading them took.",
        format_args!("{:.6}", readings.took.as_secs_f64()),
    );
}

fn gauge(out: &mut String, name: &str, help: &str, value: impl std::fmt::Display) {
    own_header(out, name, help);
    let _ = writeln!(out, "{name} {value}");
}

fn own_header(out: &mut String, name: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn counters() -> Counters {
        Counters::parse(
            "DCGM_FI_DEV_XID_ERRORS, gauge, Last\\XID.\n\
             DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).\n\
             DCGM_FI_PROF_GR_ENGINE_ACTIVE, gauge, Busy.\n\
             DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Energy.",
            false,
        )
        .unwrap()
    }

    fn entity(labels: &str, values: [Option<Value>; 4]) -> Entity {
        Entity {
            labels: labels.into(),
            ids: Vec::new(),
            values: values.to_vec(),
        }
    }

    #[test]
    fn families_by_id_and_absent_values_absent() {
        let entities = [
            entity(
                "gpu=\"0\"",
                [
                    Some(Value::Int(41)),
                    Some(Value::Int(123_456_789)),
                    None,
                    None,
                ],
            ),
            entity(
                "gpu=\"1\"",
                [Some(Value::Int(0)), None, Some(Value::Xid(79)), None],
            ),
        ];
        let mut page = String::new();
        families(&counters(), &entities, &mut page);
        assert_eq!(
            page,
            r#"# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0"} 41
DCGM_FI_DEV_GPU_TEMP{gpu="1"} 0
# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Energy.
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0"} 123456789
# HELP DCGM_FI_DEV_XID_ERRORS Last\\XID.
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{gpu="1",err_code="79",err_msg="GPU has fallen off the bus"} 79
"#
        );
    }

    #[test]
    fn doubles_have_six_decimals() {
        let mut page = String::new();
        for value in [0.381_123_6, 0.0, 70.5] {
            sample("x", "", Value::Double(value), &mut page);
        }
        assert_eq!(page, "x{} 0.381124\nx{} 0.000000\nx{} 70.500000\n");
    }

    #[test]
    fn the_own_families_say_what_is_missing() {
        let readings = Readings {
            driver_up: true,
            entities: Vec::new(),
            failures: vec![
                Failure {
                    gpu: 3,
                    uuid: Some("GPU-3".to_owned()),
                    call: "nvmlDeviceGetTemperature".to_owned(),
                    code: "GPU_IS_LOST".to_owned(),
                },
                Failure {
                    gpu: 4,
                    uuid: None,
                    call: "a".to_owned(),
                    code: "b".to_owned(),
                },
            ],
            pods_known: Some(true),
            at: UNIX_EPOCH + Duration::from_millis(1_755_600_000_250),
            took: Duration::from_micros(1500),
        };
        let mut page = String::new();
        render(&counters(), &readings, &mut page);
        assert_eq!(
            page,
            r#"# HELP lathe_exporter_driver_up Whether the driver answered the last collection.
# TYPE lathe_exporter_driver_up gauge
lathe_exporter_driver_up 1
# HELP lathe_exporter_gpu_failed Driver calls that failed in the last collection; their values are missing here.
# TYPE lathe_exporter_gpu_failed gauge
lathe_exporter_gpu_failed{gpu="3",UUID="GPU-3",call="nvmlDeviceGetTemperature",code="GPU_IS_LOST"} 1
lathe_exporter_gpu_failed{gpu="4",call="a",code="b"} 1
# HELP lathe_exporter_pod_resources_up Whether the kubelet answered the last question which pods hold GPUs.
# TYPE lathe_exporter_pod_resources_up gauge
lathe_exporter_pod_resources_up 1
# HELP lathe_exporter_collect_timestamp_seconds When the values on this page were read.
# TYPE lathe_exporter_collect_timestamp_seconds gauge
lathe_exporter_collect_timestamp_seconds 1755600000.250
# HELP lathe_exporter_collect_duration_seconds How long reading them took.
# TYPE lathe_exporter_collect_duration_seconds gauge
lathe_exporter_collect_duration_seconds 0.001500
"#
        );
    }
}
