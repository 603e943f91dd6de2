//! Readings of GPUs whose MIG layout changes while they are read: they are read again.
//!
//! NVML has no reading of everything at once, so a change in the middle leaves handles that name nothing and lists that mix
//! two layouts. None of that is on a page: a GPU that does not come to rest within [`PAUSES`] is left out of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use nvml::{Device, Driver, Error};

use crate::convert::failure;
use crate::read::GpuReading;
use crate::value::Failure;

/// Between two readings. The steps of a change are milliseconds to a second apart, and what other GPUs have to say waits
/// meanwhile.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(10),
    Duration::from_millis(30),
    Duration::from_millis(90),
    Duration::from_millis(270),
];

/// Reads all GPUs with `read`, and those again that change meanwhile. Failures that are `known` are no reason to.
///
/// # Errors
/// The GPUs cannot be counted.
pub(crate) fn read(
    driver: &Driver,
    known: &[Failure],
    read: impl Fn(&Device<'_>) -> Result<GpuReading, Error> + Send + Sync + 'static,
) -> Result<Vec<Result<GpuReading, Error>>, Error> {
    let read = Arc::new(read);
    let first = Arc::clone(&read);
    let mut gpus = driver.for_each_gpu(move |device| first(device))?;
    for pause in PAUSES {
        let restless = restless(&gpus, known);
        if restless.is_empty() {
            return Ok(gpus);
        }
        std::thread::sleep(pause);
        let (read, wanted) = (Arc::clone(&read), restless.clone());
        let again = driver.for_each_gpu(move |device| {
            let is_wanted = wanted.contains(&device.gpu_ref().index);
            is_wanted.then(|| read(device)).transpose()
        })?;
        for ((index, gpu), again) in (0..).zip(&mut gpus).zip(again) {
            match again {
                Ok(Some(reading)) => *gpu = Ok(reading),
                Err(error) if restless.contains(&index) => *gpu = Err(error),
                Ok(None) | Err(_) => {}
            }
        }
    }
    for (index, gpu) in (0..).zip(&mut gpus) {
        if let Ok(reading) = gpu
            && reading.changed
        {
            *reading = left_out(index, std::mem::take(reading));
        }
    }
    Ok(gpus)
}

/// The GPUs to read again, by index.
fn restless(gpus: &[Result<GpuReading, Error>], known: &[Failure]) -> BTreeSet<u32> {
    let is_new = |failure: &Failure| failure.is_fleeting() && !known.contains(failure);
    (0..)
        .zip(gpus)
        .filter(|(index, gpu)| match gpu {
            Ok(reading) => reading.changed || reading.failures.iter().any(is_new),
            Err(error) => is_new(&failure(*index, error)),
        })
        .map(|(index, _)| index)
        .collect()
}

/// A gap rather than a mixture; what comes next is looked for soon.
fn left_out(index: u32, reading: GpuReading) -> GpuReading {
    GpuReading {
        failures: vec![Failure::changing(index, reading.uuid)],
        half: true,
        changed: true,
        ..GpuReading::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nvml::{Code, GpuRef};
    use rstest::rstest;

    use super::*;

    fn error(code: Code) -> Error {
        Error::Call {
            gpu: Some(GpuRef {
                index: 1,
                uuid: Some("GPU-1".into()),
            }),
            call: "nvmlDeviceGetMemoryInfo",
            code,
        }
    }

    fn failed(code: Code) -> Result<GpuReading, Error> {
        Ok(GpuReading {
            failures: vec![failure(1, &error(code))],
            ..GpuReading::default()
        })
    }

    #[rstest]
    #[case::all_well(Ok(GpuReading::default()), false)]
    #[case::the_list_changed(Ok(GpuReading { changed: true, ..GpuReading::default() }), true)]
    #[case::an_instance_went(failed(Code::NOT_FOUND), true)]
    #[case::its_handle_went(failed(Code::INVALID_ARGUMENT), true)]
    #[case::the_gpus_handle_went(Err(error(Code::INVALID_ARGUMENT)), true)]
    #[case::a_failure_of_another_kind(failed(Code::UNKNOWN), false)]
    #[case::a_lost_gpu(Err(error(Code::GPU_IS_LOST)), false)]
    fn who_is_read_again(#[case] gpu: Result<GpuReading, Error>, #[case] again: bool) {
        let gpus = [Ok(GpuReading::default()), gpu];
        let wanted: BTreeSet<u32> = again.then_some(1).into_iter().collect();
        assert_eq!(restless(&gpus, &[]), wanted);
    }

    #[test]
    fn what_failed_before_does_not_hold_up_every_collection() {
        let known = [failure(1, &error(Code::INVALID_ARGUMENT))];
        let gpus = [Ok(GpuReading::default()), failed(Code::INVALID_ARGUMENT)];
        assert!(restless(&gpus, &known).is_empty());
        let gpus = [
            Ok(GpuReading::default()),
            Err(error(Code::INVALID_ARGUMENT)),
        ];
        assert!(restless(&gpus, &known).is_empty());
    }

    #[test]
    fn a_gpu_that_does_not_come_to_rest_shows_nothing_and_is_looked_at_soon() {
        let reading = GpuReading {
            uuid: Some("GPU-1".to_owned()),
            changed: true,
            ..GpuReading::default()
        };
        let left = left_out(1, reading);
        assert!(left.gpu.is_none() && left.instances.is_empty() && left.half);
        assert_eq!(
            left.failures,
            [Failure::changing(1, Some("GPU-1".to_owned()))]
        );
        assert!(left.failures.iter().all(Failure::is_fleeting));
    }
}
