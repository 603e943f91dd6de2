//! Why a goal cannot be reached on a GPU, in one line for people.

use std::collections::BTreeMap;

use crate::{Placement, Profile, UnknownProfile};

/// A GPU cannot be cut as asked. Nothing has been touched when this is returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    /// The GPU cannot be partitioned.
    #[error("this GPU has no MIG")]
    NoMig,
    /// The driver lists no profiles; old ones do so only while MIG is on.
    #[error("the driver lists no MIG profiles while MIG is off; turn MIG on first")]
    NoProfiles,
    /// A profile that the board lacks.
    #[error(transparent)]
    UnknownProfile(#[from] UnknownProfile),
    /// More of one profile than fit even on an empty GPU.
    #[error("{wanted} × {profile} is too many: this GPU takes at most {max}")]
    TooMany {
        /// The profile.
        profile: Profile,
        /// How many were asked for.
        wanted: u32,
        /// How many an empty GPU takes.
        max: u32,
    },
    /// The profiles do not fit together.
    #[error("these devices do not fit on one GPU: leaving out {} would do", left_out(.missing, .wanted))]
    OverCapacity {
        /// A smallest set of devices to leave out so that the rest fits.
        missing: BTreeMap<Profile, u32>,
        /// Everything asked for.
        wanted: BTreeMap<Profile, u32>,
    },
    /// A layout to be restored is not one of this board.
    #[error("the layout to restore does not suit this GPU: {0}")]
    Layout(LayoutProblem),
}

/// What is wrong with a layout to be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutProblem {
    /// It has instances although MIG is off.
    #[error("it has instances although MIG is off")]
    InstancesWithoutMig,
    /// No such GPU-instance profile.
    #[error("there is no GPU instance profile with id {0}")]
    Profile(u32),
    /// The driver does not offer this place.
    #[error("profile {profile} cannot lie at {placement}")]
    Placement {
        /// Its name on this board.
        profile: Profile,
        /// Where the layout puts it.
        placement: Placement,
    },
    /// Two instances share slices.
    #[error("two GPU instances share slices: {0} and {1}")]
    Overlap(Placement, Placement),
    /// A compute instance has no room in its GPU instance.
    #[error("a compute instance at {placement} has no room in its GPU instance {profile}")]
    Compute {
        /// The GPU instance's name.
        profile: Profile,
        /// Where the layout puts the compute instance.
        placement: Placement,
    },
}

fn left_out(missing: &BTreeMap<Profile, u32>, wanted: &BTreeMap<Profile, u32>) -> String {
    let parts = missing.iter().map(|(profile, count)| {
        let all = wanted.get(profile).copied().unwrap_or(*count);
        format!("{count} of {all} × {profile}")
    });
    parts.collect::<Vec<_>>().join(" and ")
}
