//! One step, carried out on one GPU. The only place that writes to a GPU.

use std::collections::BTreeMap;

use gpu::{Placement, Step};
use nvml::{Activation, Device, Gpu};

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is done, or waits for the reset that follows.
    Done,
    /// A GPU instance came to be.
    Created { placement: Placement, id: u32 },
    /// Somebody holds the GPU; nothing changed but the mode after the next reset.
    InUse,
}

/// Takes a step. `instances` are the ids of the GPU instances there are, by placement.
///
/// # Errors
/// The driver's.
pub(crate) fn take(
    gpu: &Gpu,
    step: &Step,
    instances: &BTreeMap<Placement, u32>,
) -> Result<Answer, nvml::Error> {
    match step.clone() {
        Step::DestroyCompute {
            gpu_instance,
            compute_instance,
        } => done(gpu.run(move |d| d.destroy_compute_instance(gpu_instance, compute_instance))),
        Step::DestroyInstance { gpu_instance } => {
            done(gpu.run(move |d| d.destroy_gpu_instance(gpu_instance)))
        }
        Step::SetMode { enabled } => set_mode(gpu, enabled),
        Step::Reset => done(gpu.reset()),
        Step::CreateInstance {
            profile_id,
            placement,
            ..
        } => {
            let made = gpu.run(move |d| d.create_gpu_instance(profile_id, Some(placement)))?;
            Ok(Answer::Created {
                placement,
                id: made.id,
            })
        }
        Step::CreateCompute {
            parent,
            profile_id,
            placement,
            ..
        } => {
            // Absent only when the GPU changed under us; the driver's words for it.
            let instance = *instances
                .get(&parent)
                .ok_or_else(|| nvml::Error::no_such_instance(gpu.run(|d| Ok(d.gpu_ref())).ok()))?;
            done(gpu.run(move |d| create_compute(d, instance, profile_id, placement)))
        }
    }
}

fn done<T>(result: Result<T, nvml::Error>) -> Result<Answer, nvml::Error> {
    result.map(|_| Answer::Done)
}

fn set_mode(gpu: &Gpu, enabled: bool) -> Result<Answer, nvml::Error> {
    match gpu.run(move |d| d.set_mig_mode(enabled))? {
        // Whether a reset is still to be made shows in the mode, which is read before the reset.
        Activation::Done | Activation::ResetRequired => Ok(Answer::Done),
        Activation::InUse => Ok(Answer::InUse),
        Activation::Other(code) => Err(nvml::Error::not_activated(
            gpu.run(|d| Ok(d.gpu_ref())).ok(),
            code,
        )),
    }
}

/// A plan made before the GPU instance existed may carry a compute profile id by rule: the driver has the last word.
fn create_compute(
    device: &Device<'_>,
    instance: u32,
    planned_id: u32,
    placement: Placement,
) -> Result<(), nvml::Error> {
    let offered = device.compute_profiles_of(instance)?;
    let id = match offered
        .iter()
        .any(|p| p.id == planned_id && p.slices == placement.size)
    {
        true => planned_id,
        false => offered
            .iter()
            .find(|p| p.slices == placement.size)
            .map_or(planned_id, |p| p.id),
    };
    device
        .create_compute_instance(instance, id, Some(placement))
        .map(|_| ())
}
