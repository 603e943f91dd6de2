//! Which names a board's profiles have, and which of its profiles a name means.
//!
//! Names derive from what the driver reports, never from a product table. A driver that reports another memory size gives
//! other names, so ids, not names, are what layouts store.

use std::collections::BTreeSet;

use crate::profile::{Attributes, Profile};
use crate::{Board, InstanceProfile};

/// How many profiles an [`UnknownProfile`] lists.
const NEAREST: usize = 3;

/// The attribute that the enumeration index stands for (`NVML_GPU_INSTANCE_PROFILE_*` of the NVML 13 header).
fn attributes(index: u32) -> Attributes {
    let one = |name: &str| BTreeSet::from([name.to_owned()]);
    match index {
        // 1_SLICE_REV1, 2_SLICE_REV1: the one instance with the GPU's media extensions.
        0x7 | 0x8 => Attributes::With(one("me")),
        // {1,2,4}_SLICE_GFX, 3_SLICE_GFX.
        0xA..=0xC | 0x11 => Attributes::With(one("gfx")),
        // {1,2}_SLICE_NO_ME.
        0xD | 0xE => Attributes::Without(one("me")),
        // {1,2}_SLICE_ALL_ME.
        0xF | 0x10 => Attributes::With(one("me.all")),
        _ => Attributes::None,
    }
}

/// A profile that a board offers, found by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved<'a> {
    /// The GPU-instance profile.
    pub instance: &'a InstanceProfile,
    /// Compute slices of the device inside.
    pub compute_slices: u32,
}

/// A board has no profile of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this GPU has no profile {profile}{}", hint(.nearest))]
pub struct UnknownProfile {
    /// The name asked for.
    pub profile: Profile,
    /// Profiles it has, nearest first: by slices, then memory, attributes and compute slices.
    pub nearest: Vec<Profile>,
}

fn hint(nearest: &[Profile]) -> String {
    if nearest.is_empty() {
        return String::new();
    }
    let names = nearest.iter().map(Profile::to_string).collect::<Vec<_>>();
    format!("; nearest: {}", names.join(", "))
}

impl Board {
    /// The memory size that names show, in GB: the share of the memory, rounded up to an eighth, of the total in GiB,
    /// rounded up; the product is rounded to the nearest (go-nvlib's rule; `nvidia-smi` prints the same).
    ///
    /// A share just above an eighth counts as that eighth: B300 lists 33.75 GiB for 1g, eight of which are more than its
    /// 269 GB, and calls it `1g.34gb` all the same. Rounding up would give it the name of the profile of twice the memory.
    #[must_use]
    pub fn displayed_memory_gb(&self, memory_mib: u64) -> u32 {
        const EIGHTHS: u128 = 8;
        /// Excess that is let pass: this part of an eighth. B300's is about a 190th; all other known shares have none.
        const PART: u128 = 64;
        const MIB: u128 = 1 << 20;
        const GIB: u128 = 1 << 30;
        let total = u128::from(self.memory_bytes);
        if total == 0 || memory_mib == 0 {
            return 0;
        }
        let parts = u128::from(memory_mib) * MIB * EIGHTHS * PART;
        let eighths = parts.saturating_sub(total).div_ceil(total * PART).max(1);
        let gigabytes = (eighths * total.div_ceil(GIB) + EIGHTHS / 2) / EIGHTHS;
        u32::try_from(gigabytes).unwrap_or(u32::MAX)
    }

    /// The name of a GPU instance of this profile that one compute instance takes whole.
    #[must_use]
    pub fn name(&self, profile: &InstanceProfile) -> Profile {
        Profile::new(profile.slices, self.displayed_memory_gb(profile.memory_mib))
            .with_attributes(attributes(profile.index))
    }

    /// The name of a compute instance with `compute_slices` inside a GPU instance of this profile.
    #[must_use]
    pub fn device_name(&self, profile: &InstanceProfile, compute_slices: u32) -> Profile {
        self.name(profile).with_compute_slices(compute_slices)
    }

    /// All names that this board offers, ascending. Those of compute instances that take only a part of their GPU instance
    /// are among them.
    #[must_use]
    pub fn names(&self) -> BTreeSet<Profile> {
        let devices = self.profiles.iter().flat_map(|profile| {
            let sizes = profile.compute_choices().into_iter();
            sizes.map(|choice| self.device_name(profile, choice.slices))
        });
        devices.collect()
    }

    /// Finds the profile that a name means on this board. Should two profiles have one name, the first one counts.
    pub fn resolve(&self, name: &Profile) -> Result<Resolved<'_>, UnknownProfile> {
        let whole = name.whole();
        let found = self.profiles.iter().find(|profile| {
            let mut choices = profile.compute_choices().into_iter();
            self.name(profile) == whole
                && choices.any(|choice| choice.slices == name.compute_slices())
        });
        found
            .map(|instance| Resolved {
                instance,
                compute_slices: name.compute_slices(),
            })
            .ok_or_else(|| UnknownProfile {
                profile: name.clone(),
                nearest: self.nearest(name),
            })
    }

    /// The names nearest to one that this board lacks. Whoever asked for a whole GPU instance is offered whole ones only.
    fn nearest(&self, name: &Profile) -> Vec<Profile> {
        let mut names = self.names().into_iter().collect::<Vec<_>>();
        names.retain(|candidate| candidate.is_whole() || !name.is_whole());
        names.sort_by_key(|candidate| {
            (
                candidate.slices().abs_diff(name.slices()),
                candidate.memory_gb().abs_diff(name.memory_gb()),
                candidate.attributes() != name.attributes(),
                candidate.compute_slices().abs_diff(name.compute_slices()),
            )
        });
        names.truncate(NEAREST);
        names
    }
}
