//! What is done to one GPU to reach a goal: kept, destroyed, created, in which order, and who stands in the way.
//!
//! A plan is data. It is shown to people, journalled, and its steps are carried out elsewhere.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Client, ComputeInstance, GpuInstance, Placement, Profile};

/// Everything one GPU needs to reach a goal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuPlan {
    /// MIG mode to set; `None` when it is right, or right after the reset alone.
    pub mode: Option<bool>,
    /// Whether a reset must follow before the mode counts. The driver may already have done it inside the mode change: read
    /// the mode again first.
    pub reset: bool,
    /// GPU instances that stay, with the compute instances that stay in them. Processes on those are not disturbed.
    pub kept: Vec<GpuInstance>,
    /// What goes.
    pub destroyed: Vec<Destroyed>,
    /// What comes.
    pub created: Vec<Created>,
    /// Processes on what must be destroyed, or anywhere on the GPU when its mode changes or it is reset.
    pub blockers: Vec<Client>,
}

/// Something to destroy: a GPU instance with all inside, or compute instances in one that stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Destroyed {
    /// The GPU instance's id.
    pub gpu_instance: u32,
    /// Its name; `None` for a profile that the board does not list.
    pub profile: Option<Profile>,
    /// Where it lies.
    pub placement: Placement,
    /// Whether the GPU instance itself goes.
    pub whole: bool,
    /// The compute instances that go.
    pub compute: Vec<ComputeInstance>,
}

/// Something to create: a GPU instance, or compute instances in one that stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Created {
    /// The name of the GPU instance.
    pub profile: Profile,
    /// Its GPU-instance profile id.
    pub profile_id: u32,
    /// Where it lies. Identifies it too, for its id is known only once it exists.
    pub placement: Placement,
    /// Whether the GPU instance itself comes; otherwise it is there already.
    pub whole: bool,
    /// The compute instances that come, in this order.
    pub compute: Vec<CreatedCompute>,
}

/// A compute instance to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CreatedCompute {
    /// The device's name.
    pub profile: Profile,
    /// Compute-instance profile id. Where the driver could not tell before the GPU instance existed, the id that the header
    /// suggests: look it up again by `placement.size` then (see [`crate::ComputeChoice::id`]).
    pub profile_id: u32,
    /// Compute slices inside the GPU instance.
    pub placement: Placement,
}

/// One change of a GPU, as NVML offers it. Any prefix of a plan's steps leaves a layout that a new plan can start from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// Destroy a compute instance.
    DestroyCompute {
        /// The GPU instance's id.
        gpu_instance: u32,
        /// The compute instance's id in it.
        compute_instance: u32,
    },
    /// Destroy a GPU instance that is empty by now.
    DestroyInstance {
        /// Its id.
        gpu_instance: u32,
    },
    /// Set MIG mode.
    SetMode {
        /// On or off.
        enabled: bool,
    },
    /// Reset the GPU, unless the mode has become current without.
    Reset,
    /// Create a GPU instance.
    CreateInstance {
        /// Its name.
        profile: Profile,
        /// GPU-instance profile id.
        profile_id: u32,
        /// Memory slices.
        placement: Placement,
    },
    /// Create a compute instance.
    CreateCompute {
        /// Where its GPU instance lies.
        parent: Placement,
        /// The device's name.
        profile: Profile,
        /// Compute-instance profile id; see [`CreatedCompute::profile_id`].
        profile_id: u32,
        /// Compute slices inside the GPU instance.
        placement: Placement,
    },
}

impl GpuPlan {
    /// Whether nothing has to be done.
    #[must_use]
    pub fn is_noop(&self) -> bool {
        self.mode.is_none() && !self.reset && self.destroyed.is_empty() && self.created.is_empty()
    }

    /// The steps in a safe order: compute instances go before their GPU instance, everything goes before the mode changes,
    /// and room is made before anything is created.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for destroyed in &self.destroyed {
            steps.extend(
                destroyed
                    .compute
                    .iter()
                    .map(|compute| Step::DestroyCompute {
                        gpu_instance: destroyed.gpu_instance,
                        compute_instance: compute.id,
                    }),
            );
        }
        let whole = self.destroyed.iter().filter(|destroyed| destroyed.whole);
        steps.extend(whole.map(|destroyed| Step::DestroyInstance {
            gpu_instance: destroyed.gpu_instance,
        }));
        steps.extend(self.mode.map(|enabled| Step::SetMode { enabled }));
        steps.extend(self.reset.then_some(Step::Reset));
        for created in &self.created {
            if created.whole {
                steps.push(Step::CreateInstance {
                    profile: created.profile.clone(),
                    profile_id: created.profile_id,
                    placement: created.placement,
                });
            }
            steps.extend(created.compute.iter().map(|compute| Step::CreateCompute {
                parent: created.placement,
                profile: compute.profile.clone(),
                profile_id: compute.profile_id,
                placement: compute.placement,
            }));
        }
        steps
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DestroyCompute {
                gpu_instance,
                compute_instance,
            } => {
                write!(
                    f,
                    "destroy compute instance {compute_instance} of GPU instance {gpu_instance}"
                )
            }
            Self::DestroyInstance { gpu_instance } => {
                write!(f, "destroy GPU instance {gpu_instance}")
            }
            Self::SetMode { enabled: true } => f.write_str("turn MIG on"),
            Self::SetMode { enabled: false } => f.write_str("turn MIG off"),
            Self::Reset => f.write_str("reset the GPU"),
            Self::CreateInstance {
                profile, placement, ..
            } => {
                write!(f, "create GPU instance {profile} at {placement}")
            }
            Self::CreateCompute {
                parent,
                profile,
                placement,
                ..
            } => {
                write!(
                    f,
                    "create compute instance {profile} at {placement} of the GPU instance at {parent}"
                )
            }
        }
    }
}
