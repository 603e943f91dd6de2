//! Exact layouts of a node's GPUs as a file, in the JSON format of `nvidia-mig-parted checkpoint`.
//!
//! Profiles are given by enumeration index there, not by id. One field is ours: where a compute instance lies, which
//! mig-parted neither writes nor minds.

use std::collections::{BTreeMap, BTreeSet};

use gpu::{
    Board, ComputeInstance, GpuInstance, InstanceProfile, Layout, Placement, compute_placements,
};
use serde::{Deserialize, Serialize};

use crate::strict::{self, DocumentError, Position};

/// A checkpoint document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Checkpoint {
    version: String,
    mig_state: MigState,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct MigState {
    devices: Option<Vec<Device>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Device {
    #[serde(rename = "UUID")]
    uuid: String,
    /// 0 off, 1 on.
    mig_mode: u32,
    /// `null` for none, as Go writes an empty slice.
    gpu_instances: Option<Vec<Instance>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Instance {
    #[serde(rename = "ProfileID")]
    profile_index: u32,
    placement: Span,
    compute_instances: Option<Vec<Compute>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Span {
    start: u32,
    size: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Compute {
    #[serde(rename = "ProfileID")]
    profile_index: u32,
    #[serde(rename = "EngProfileID")]
    engine_profile_index: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    placement: Option<Span>,
}

impl From<Placement> for Span {
    fn from(p: Placement) -> Self {
        Self {
            start: p.start,
            size: p.size,
        }
    }
}

impl From<Span> for Placement {
    fn from(s: Span) -> Self {
        Self {
            start: s.start,
            size: s.size,
        }
    }
}

/// Why a checkpoint does not fit a GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The board has no GPU-instance profile with this enumeration index.
    #[error(
        "{uuid}: the checkpoint has a GPU instance of profile index {index}, which this GPU lacks"
    )]
    UnknownProfile {
        /// GPU UUID.
        uuid: String,
        /// Enumeration index.
        index: u32,
    },
    /// The GPU instance offers no such compute instance, or not that many.
    #[error(
        "{uuid}: the checkpoint's compute instances do not fit into the GPU instance at slice {start}"
    )]
    ComputeDoesNotFit {
        /// GPU UUID.
        uuid: String,
        /// First memory slice of the GPU instance.
        start: u32,
    },
}

impl Checkpoint {
    /// The checkpoint of these GPUs: UUID, abilities and layout of each that can do MIG.
    pub fn of<'a>(gpus: impl Iterator<Item = (&'a str, &'a Board, &'a Layout)>) -> Self {
        let devices = gpus.map(|(uuid, board, layout)| Device {
            uuid: uuid.to_owned(),
            mig_mode: u32::from(layout.mig_enabled),
            gpu_instances: some(layout.instances.iter().map(|i| instance(board, i))),
        });
        Self {
            version: "v1".to_owned(),
            mig_state: MigState {
                devices: some(devices),
            },
        }
    }

    /// Checks a checkpoint document. `file` is what errors name.
    ///
    /// # Errors
    /// [`DocumentError`] with file, line and column.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, DocumentError> {
        let start = Position { line: 1, column: 1 };
        let checkpoint: Self = strict::parse(file, bytes)?;
        if checkpoint.version != "v1" {
            let message = "unknown version: only \"v1\" exists";
            return Err(DocumentError::invalid(file, start, message));
        }
        let mut seen = BTreeSet::new();
        for device in checkpoint.mig_state.devices.iter().flatten() {
            if !seen.insert(&*device.uuid) {
                let message = format!("{} is there twice", device.uuid);
                return Err(DocumentError::invalid(file, start, message));
            }
            let instances = device.gpu_instances.as_ref().map_or(0, Vec::len);
            let wrong = match device.mig_mode {
                0 if instances == 0 => continue,
                0 => "instances although MigMode is 0",
                1 => continue,
                _ => "a MigMode other than 0 or 1",
            };
            let message = format!("{} has {wrong}", device.uuid);
            return Err(DocumentError::invalid(file, start, message));
        }
        Ok(checkpoint)
    }

    /// Whether MIG was on, per GPU.
    pub fn modes(&self) -> BTreeMap<&str, bool> {
        let devices = self.mig_state.devices.iter().flatten();
        devices
            .map(|d| (d.uuid.as_str(), d.mig_mode == 1))
            .collect()
    }

    /// The layout it holds for a GPU, in the terms of the GPU's board; `None` when it does not speak of that GPU.
    ///
    /// # Errors
    /// [`CheckpointError`] when the checkpoint is of another board.
    pub fn layout(&self, uuid: &str, board: &Board) -> Result<Option<Layout>, CheckpointError> {
        let mut devices = self.mig_state.devices.iter().flatten();
        let Some(device) = devices.find(|d| d.uuid == uuid) else {
            return Ok(None);
        };
        let instances = device
            .gpu_instances
            .iter()
            .flatten()
            .map(|i| restored(uuid, board, i));
        Ok(Some(Layout {
            mig_enabled: device.mig_mode == 1,
            instances: instances.collect::<Result<_, _>>()?,
        }))
    }
}

fn some<T>(items: impl Iterator<Item = T>) -> Option<Vec<T>> {
    let items: Vec<T> = items.collect();
    (!items.is_empty()).then_some(items)
}

fn instance(board: &Board, instance: &GpuInstance) -> Instance {
    let profile = board.profiles.iter().find(|p| p.id == instance.profile_id);
    let compute = instance.compute.iter().map(|c| Compute {
        profile_index: profile
            .and_then(|p| p.compute.iter().find(|offered| offered.id == c.profile_id))
            // The driver has numbered ids and indices alike so far.
            .map_or(c.profile_id, |offered| offered.index),
        engine_profile_index: 0,
        placement: Some(c.placement.into()),
    });
    Instance {
        profile_index: profile.map_or(instance.profile_id, |p| p.index),
        placement: instance.placement.into(),
        compute_instances: some(compute),
    }
}

fn restored(
    uuid: &str,
    board: &Board,
    instance: &Instance,
) -> Result<GpuInstance, CheckpointError> {
    let profile = board
        .profiles
        .iter()
        .find(|p| p.index == instance.profile_index)
        .ok_or_else(|| CheckpointError::UnknownProfile {
            uuid: uuid.to_owned(),
            index: instance.profile_index,
        })?;
    let compute = instance.compute_instances.as_deref().unwrap_or_default();
    Ok(GpuInstance {
        // The driver derives it from the placement.
        id: 0,
        profile_id: profile.id,
        placement: instance.placement.into(),
        compute: lay(profile, compute).ok_or_else(|| CheckpointError::ComputeDoesNotFit {
            uuid: uuid.to_owned(),
            start: instance.placement.start,
        })?,
    })
}

/// Gives every compute instance its profile id and, where the file is silent, the first free place; the widest first, which
/// always succeeds where anything does, since widths are aligned to powers of two.
fn lay(profile: &InstanceProfile, compute: &[Compute]) -> Option<Vec<ComputeInstance>> {
    let choices = profile.compute_choices();
    let mut wanted = Vec::with_capacity(compute.len());
    for c in compute {
        let told = profile.compute.iter().find(|p| p.index == c.profile_index);
        let choice = match told {
            Some(told) => choices.iter().find(|choice| choice.id == told.id),
            None => choices.iter().find(|choice| choice.id == c.profile_index),
        }?;
        (c.engine_profile_index == 0).then_some(())?;
        wanted.push((choice.slices, choice.id, c.placement));
    }
    wanted.sort_by_key(|(slices, _, placement)| (placement.is_none(), std::cmp::Reverse(*slices)));
    let mut taken: Vec<Placement> = Vec::new();
    let mut laid = Vec::new();
    for ((slices, profile_id, placement), id) in wanted.into_iter().zip(0..) {
        let free = |p: &Placement| {
            taken
                .iter()
                .all(|t| p.start + p.size <= t.start || t.start + t.size <= p.start)
        };
        let placement = match placement {
            Some(given) => compute_placements(profile.slices, slices)
                .find(|p| *p == Placement::from(given) && free(p)),
            None => compute_placements(profile.slices, slices).find(free),
        }?;
        taken.push(placement);
        laid.push(ComputeInstance {
            id,
            profile_id,
            placement,
        });
    }
    Some(laid)
}
