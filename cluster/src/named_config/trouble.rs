//! Why a node does not have the configuration it should have, for people.

use super::{MAX_BYTES, Reason};

/// What is in the way. Nothing here ends the part: each goes away when its cause does, without a restart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// The API server has not said yet how the node is labelled.
    #[error(
        "waiting for the API server to say how node {node} is labelled; if this lasts, check that it can be reached and \
         that this part may list and watch nodes"
    )]
    NodeUnknown {
        /// The node's name.
        node: String,
    },
    /// The API server says that there is no such node.
    #[error("waiting for node {node}, which does not exist; check the name given to this part")]
    NodeAbsent {
        /// The node's name.
        node: String,
    },
    /// The API server has not said yet what is in the ConfigMap.
    #[error("waiting for the API server to show {place}{}", because(.why))]
    SourceUnknown {
        /// The ConfigMap.
        place: String,
        /// What the API server, or the connection to it, had to say against it.
        why: Option<String>,
    },
    /// The folder or ConfigMap is not there or cannot be read.
    #[error("{place} cannot be read: {why}; make it, or correct the name given to this part")]
    SourceUnreadable {
        /// The folder or ConfigMap.
        place: String,
        /// Why not.
        why: String,
    },
    /// The label or the default names what does not exist.
    #[error("{reason} asks for config {name:?}, but {place} {}", has(.available))]
    NoSuchConfig {
        /// The name asked for.
        name: String,
        /// Who asks.
        reason: Reason,
        /// The folder or ConfigMap.
        place: String,
        /// The names that exist.
        available: Vec<String>,
    },
    /// Nothing says which one.
    #[error(
        "label {label} is not set, there is no default config, and no fallback applies; set the label: {place} {}", has(.available)
    )]
    NothingChosen {
        /// The label's key.
        label: String,
        /// The folder or ConfigMap.
        place: String,
        /// The names that exist.
        available: Vec<String>,
    },
    /// The configuration is there, but not readable.
    #[error("config {name:?} of {place} cannot be read: {why}")]
    Unreadable {
        /// Its name.
        name: String,
        /// The folder or ConfigMap.
        place: String,
        /// Why not.
        why: String,
    },
    /// The configuration is too large.
    #[error("config {name:?} of {place} is larger than {MAX_BYTES} bytes; make it smaller")]
    TooLarge {
        /// Its name.
        name: String,
        /// The folder or ConfigMap.
        place: String,
    },
    /// The configuration is no text.
    #[error("config {name:?} of {place} is not text in UTF-8 from byte {at} on; correct it")]
    NotText {
        /// Its name.
        name: String,
        /// The folder or ConfigMap.
        place: String,
        /// Offset of the first byte that is none.
        at: usize,
    },
}

impl Trouble {
    /// Nothing is wrong as far as is known: the answer of the API server is still to come.
    pub fn is_waiting(&self) -> bool {
        matches!(
            self,
            Self::NodeUnknown { .. } | Self::NodeAbsent { .. } | Self::SourceUnknown { .. }
        )
    }
}

fn because(why: &Option<String>) -> String {
    why.as_ref()
        .map_or_else(String::new, |why| format!(": {why}"))
}

/// Names that would fill a screen help nobody.
const SHOWN: usize = 10;

fn has(available: &[String]) -> String {
    let shown = available
        .iter()
        .take(SHOWN)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    match available.len() {
        0 => "has none".to_owned(),
        count if count > SHOWN => format!("has {shown} and {} more", count - SHOWN),
        _ => format!("has {shown}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn asked(available: &[&str]) -> String {
        Trouble::NoSuchConfig {
            name: "b".to_owned(),
            reason: Reason::Label,
            place: "folder /configs".to_owned(),
            available: available.iter().map(|name| (*name).to_owned()).collect(),
        }
        .to_string()
    }

    #[test]
    fn names_to_choose_from_are_told_and_not_too_many() {
        assert_eq!(
            asked(&[]),
            "the node's label asks for config \"b\", but folder /configs has none"
        );
        assert_eq!(
            asked(&["a", "c"]),
            "the node's label asks for config \"b\", but folder /configs has a, c"
        );
        assert!(asked(&["x"; 12]).ends_with("x, x and 2 more"));
    }

    #[test]
    fn the_reason_for_waiting_is_told_when_there_is_one() {
        let waiting = |why: Option<&str>| {
            Trouble::SourceUnknown {
                place: "ConfigMap a/b".to_owned(),
                why: why.map(str::to_owned),
            }
            .to_string()
        };
        assert_eq!(
            waiting(None),
            "waiting for the API server to show ConfigMap a/b"
        );
        assert_eq!(
            waiting(Some("list: forbidden")),
            "waiting for the API server to show ConfigMap a/b: list: forbidden"
        );
    }
}
