//! The name of a MIG device: `1g.10gb`, `1c.3g.40gb`, `1g.24gb+me.all`, `2g.48gb-me`.
//!
//! A name is what users write in configuration files and what nodes publish. It says nothing about which GPUs offer it: the
//! same name stands for different driver ids on different boards, so [`crate::Board::resolve`] has the last word.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Media and graphics attributes of a profile: what follows the memory size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attributes {
    /// A plain profile.
    #[default]
    None,
    /// `+a,b`: the instance has these extras (`me`, `me.all`, `gfx`). Never empty.
    With(BTreeSet<String>),
    /// `-a,b`: the instance lacks what its plain sibling has (`me`). Never empty.
    Without(BTreeSet<String>),
}

/// A MIG device profile, `[<C>c.]<G>g.<M>gb[+attr,…|-attr,…]`.
///
/// `C` compute slices of a GPU instance with `G` slices and about `M` GB. `C` is left out when it equals `G`: such a device
/// has a GPU instance of its own. Ordered by `G`, then `M`, `C` and attributes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Profile {
    slices: u32,
    memory_gb: u32,
    compute_slices: u32,
    attributes: Attributes,
}

/// Why a text is no profile name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a MIG profile: {problem} (a profile looks like 1g.10gb, 1c.3g.40gb or 1g.10gb+me)"
)]
pub struct ParseProfileError {
    /// The text, cut after 64 characters.
    pub text: String,
    /// What is wrong with it.
    pub problem: ProfileProblem,
}

/// The first thing found wrong in a profile name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileProblem {
    /// Nothing there.
    #[error("it is empty")]
    Empty,
    /// A part does not end with its unit or a part is missing.
    #[error("expected a number followed by {unit:?} as part {part}")]
    Part {
        /// Which dot-separated part, from 1.
        part: usize,
        /// `c`, `g` or `gb`.
        unit: &'static str,
    },
    /// A number has a leading zero, which would give one profile two names.
    #[error("the number before {unit:?} has a leading zero")]
    LeadingZero {
        /// `c`, `g` or `gb`.
        unit: &'static str,
    },
    /// A number is too large for any GPU.
    #[error("the number before {unit:?} is larger than {max}")]
    TooLarge {
        /// `c`, `g` or `gb`.
        unit: &'static str,
        /// The largest number taken.
        max: u32,
    },
    /// `0g` or `0c`.
    #[error("an instance cannot have 0 slices")]
    NoSlices,
    /// More compute slices than the GPU instance has.
    #[error("{compute} compute slices do not fit into a GPU instance with {slices}")]
    ComputeExceedsSlices {
        /// The `C`.
        compute: u32,
        /// The `G`.
        slices: u32,
    },
    /// An attribute is not made of letters, digits and inner dots, or starts with a digit.
    #[error(
        "the attribute {0:?} is not made of letters, digits and inner dots, starting with a letter"
    )]
    Attribute(String),
    /// The same attribute twice.
    #[error("the attribute {0:?} is there twice")]
    Repeated(String),
}

/// Slices are at most 8 today; the driver's arrays end at 15 GPU instances. Three digits leave room and keep sums small.
const MAX_SLICES: u32 = 999;
/// One GPU's memory in GB; leaves room for three more generations.
const MAX_MEMORY_GB: u32 = 99_999;
/// How much of a bad name an error repeats.
const SHOWN: usize = 64;

impl Profile {
    /// The plain profile of a whole GPU instance.
    #[must_use]
    pub fn new(slices: u32, memory_gb: u32) -> Self {
        Self {
            slices,
            memory_gb,
            compute_slices: slices,
            attributes: Attributes::None,
        }
    }

    /// The same profile with other attributes. Empty sets count as [`Attributes::None`].
    #[must_use]
    pub fn with_attributes(mut self, attributes: Attributes) -> Self {
        self.attributes = match attributes {
            Attributes::With(names) | Attributes::Without(names) if names.is_empty() => {
                Attributes::None
            }
            other => other,
        };
        self
    }

    /// The profile of a compute instance with `compute_slices` in a GPU instance of this profile.
    #[must_use]
    pub fn with_compute_slices(mut self, compute_slices: u32) -> Self {
        self.compute_slices = compute_slices;
        self
    }

    /// The `G`: compute slices of the GPU instance.
    #[must_use]
    pub fn slices(&self) -> u32 {
        self.slices
    }

    /// The `C`: compute slices of the device.
    #[must_use]
    pub fn compute_slices(&self) -> u32 {
        self.compute_slices
    }

    /// The `M`: memory of the GPU instance in GB, as names count it (see [`crate::Board::name`]).
    #[must_use]
    pub fn memory_gb(&self) -> u32 {
        self.memory_gb
    }

    /// What follows the memory size.
    #[must_use]
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Whether the device takes all compute slices of its GPU instance.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.compute_slices == self.slices
    }

    /// The profile of the GPU instance that a device of this profile lives in: the same without `C`.
    #[must_use]
    pub fn whole(&self) -> Self {
        self.clone().with_compute_slices(self.slices)
    }

    /// The name inside labels and named configurations, where `+` and `,` are not allowed: both become `.`.
    #[must_use]
    pub fn label_name(&self) -> String {
        self.to_string().replace(['+', ','], ".")
    }

    /// The Kubernetes resource without its domain: `mig-1g.10gb.me`.
    #[must_use]
    pub fn resource_name(&self) -> String {
        format!("mig-{}", self.label_name())
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        if !self.is_whole() {
            text.push_str(&format!("{}c.", self.compute_slices));
        }
        text.push_str(&format!("{}g.{}gb", self.slices, self.memory_gb));
        let (sign, names) = match &self.attributes {
            Attributes::None => return f.pad(&text),
            Attributes::With(names) => ('+', names),
            Attributes::Without(names) => ('-', names),
        };
        text.push(sign);
        for (position, name) in names.iter().enumerate() {
            if position > 0 {
                text.push(',');
            }
            text.push_str(name);
        }
        f.pad(&text)
    }
}

impl FromStr for Profile {
    type Err = ParseProfileError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|problem| ParseProfileError {
            text: text.chars().take(SHOWN).collect(),
            problem,
        })
    }
}

impl TryFrom<String> for Profile {
    type Error = ParseProfileError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Profile> for String {
    fn from(profile: Profile) -> Self {
        profile.to_string()
    }
}

fn parse(text: &str) -> Result<Profile, ProfileProblem> {
    if text.is_empty() {
        return Err(ProfileProblem::Empty);
    }
    let (size, suffix) = text.split_at(text.find(['+', '-']).unwrap_or(text.len()));
    let parts = size.split('.').collect::<Vec<_>>();
    let (compute, slices, memory_gb) = match parts.as_slice() {
        [slices, memory] => (
            None,
            number(slices, "g", 1, MAX_SLICES)?,
            number(memory, "gb", 2, MAX_MEMORY_GB)?,
        ),
        [compute, slices, memory] => (
            Some(number(compute, "c", 1, MAX_SLICES)?),
            number(slices, "g", 2, MAX_SLICES)?,
            number(memory, "gb", 3, MAX_MEMORY_GB)?,
        ),
        [only] => {
            number(only, "g", 1, MAX_SLICES)?;
            return Err(ProfileProblem::Part {
                part: 2,
                unit: "gb",
            });
        }
        _ => {
            return Err(ProfileProblem::Part {
                part: 3,
                unit: "gb",
            });
        }
    };
    let compute_slices = compute.unwrap_or(slices);
    if slices == 0 || compute_slices == 0 {
        return Err(ProfileProblem::NoSlices);
    }
    if compute_slices > slices {
        return Err(ProfileProblem::ComputeExceedsSlices {
            compute: compute_slices,
            slices,
        });
    }
    Ok(Profile {
        slices,
        memory_gb,
        compute_slices,
        attributes: parse_attributes(suffix)?,
    })
}

fn parse_attributes(suffix: &str) -> Result<Attributes, ProfileProblem> {
    let names = |list: &str| list.split(',').try_fold(BTreeSet::new(), attribute);
    if let Some(list) = suffix.strip_prefix('+') {
        names(list).map(Attributes::With)
    } else if let Some(list) = suffix.strip_prefix('-') {
        names(list).map(Attributes::Without)
    } else {
        Ok(Attributes::None)
    }
}

fn number(text: &str, unit: &'static str, part: usize, max: u32) -> Result<u32, ProfileProblem> {
    let digits = text
        .strip_suffix(unit)
        .filter(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
        .ok_or(ProfileProblem::Part { part, unit })?;
    if digits.len() > 1 && digits.starts_with('0') {
        return Err(ProfileProblem::LeadingZero { unit });
    }
    digits
        .parse()
        .ok()
        .filter(|number| *number <= max)
        .ok_or(ProfileProblem::TooLarge { unit, max })
}

fn attribute(mut seen: BTreeSet<String>, name: &str) -> Result<BTreeSet<String>, ProfileProblem> {
    let shown = || name.chars().take(SHOWN).collect();
    let is_valid = name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.ends_with(|last: char| last.is_ascii_alphanumeric())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    if !is_valid {
        return Err(ProfileProblem::Attribute(shown()));
    }
    if !seen.insert(name.to_owned()) {
        return Err(ProfileProblem::Repeated(shown()));
    }
    Ok(seen)
}
