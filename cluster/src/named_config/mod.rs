//! Which of several named configurations this node has: a label of the Node chooses one from a folder or a ConfigMap.
//!
//! [`follow`] answers with a channel that always holds the newest [`Selection`]. The rules are those of NVIDIA's
//! config-manager: the label's value names a configuration; without the label it is the default; without a default the first
//! fallback that applies. They differ in what happens when something is wrong: a name that does not exist, a ConfigMap that
//! is gone, a file that cannot be read are told in [`Selection::trouble`], and what was in force stays in force. Another
//! content of the same configuration is a change like another name.
//!
//! Nothing is ever in force by mistake: as long as the API server has not said how the node is labelled, nothing is. So a part
//! that starts while the API server is away waits with what it offers; one that runs already goes on with what it has.
//!
//! What a configuration says is the caller's business: here it is text. A caller that cannot use the text in force keeps, in the
//! same way, what it used before.
//!
//! Needs `list` and `watch` on Nodes (a field selector restricts both to the own one), and for a ConfigMap `list` and `watch`
//! on ConfigMaps, which a Role can restrict to that name.

mod choose;
mod config_map;
mod folder;
mod follow;
mod trouble;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

pub use follow::follow;
pub use trouble::Trouble;

/// The label that NVIDIA's device plugin and feature discovery share.
pub const DEFAULT_LABEL: &str = "nvidia.com/device-plugin.config";

/// The longest configuration that is read, in bytes: what a ConfigMap can hold at all (1 MiB, all keys together).
pub const MAX_BYTES: usize = 1 << 20;

/// How one of the configurations is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Key of the Node's label whose value is a configuration's name. An empty value counts as no label.
    pub label: String,
    /// The configuration of nodes without the label.
    pub default: Option<String>,
    /// What is tried, in this order, when there is neither label nor default.
    pub fallbacks: Vec<Fallback>,
}

impl Default for Rules {
    /// The usual label, no default, no fallbacks.
    fn default() -> Self {
        Self {
            label: DEFAULT_LABEL.to_owned(),
            default: None,
            fallbacks: Vec::new(),
        }
    }
}

/// What to do on a node for which nothing was chosen. The words are those of NVIDIA's config-manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// `named`: the configuration that is called `default`, if there is one.
    Named,
    /// `single`: the only configuration, if there is only one.
    Single,
    /// `empty`: no settings at all.
    Empty,
}

/// A word that is no fallback strategy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no fallback strategy; there are named, single and empty")]
pub struct UnknownFallback(pub String);

impl FromStr for Fallback {
    type Err = UnknownFallback;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "named" => Ok(Self::Named),
            "single" => Ok(Self::Single),
            "empty" => Ok(Self::Empty),
            other => Err(UnknownFallback(other.to_owned())),
        }
    }
}

/// Where the configurations lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Files of a folder, such as a mounted ConfigMap. Folders in it and hidden files are none.
    Folder(PathBuf),
    /// Keys of a ConfigMap, which is watched.
    ConfigMap {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "folder {}", path.display()),
            Self::ConfigMap { namespace, name } => write!(f, "ConfigMap {namespace}/{name}"),
        }
    }
}

/// What the node has, and whether that is what it should have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The configuration in force: the last that was chosen and could be read. `None` until there was one; a part then
    /// offers nothing and is not ready.
    pub in_force: Option<Choice>,
    /// Why that is not what the node should have now; `None` when it is.
    pub trouble: Option<Trouble>,
}

/// A configuration that was chosen and read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its name; `None` for the empty one, which has no file.
    pub name: Option<String>,
    /// What it says.
    pub content: Arc<str>,
    /// Why this one.
    pub reason: Reason,
}

/// Why a configuration was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The Node's label names it.
    Label,
    /// It is the default of nodes without the label.
    Default,
    /// There is neither label nor default, and this fallback applied.
    Fallback(Fallback),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Label => "the node's label",
            Self::Default => "the default",
            Self::Fallback(Fallback::Named) => "the fallback to the one named default",
            Self::Fallback(Fallback::Single) => "the fallback to the only one",
            Self::Fallback(Fallback::Empty) => "the fallback to no settings",
        })
    }
}
