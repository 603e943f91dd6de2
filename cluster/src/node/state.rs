//! The part of a Node object that parts act on, and which of two observations of it is the newer.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, ObjectReference, Taint};

/// What is known of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Observed {
    /// The API server has not answered yet.
    #[default]
    NotYet,
    /// The API server says there is no such node.
    Absent,
    /// The node, as it was last seen.
    Present(NodeState),
}

impl Observed {
    /// The node's state, if there is one.
    pub fn state(&self) -> Option<&NodeState> {
        match self {
            Self::Present(state) => Some(state),
            Self::NotYet | Self::Absent => None,
        }
    }
}

/// The part of a Node that parts look at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeState {
    /// The node's name.
    pub name: String,
    /// The object's uid: a node that is deleted and made again has another.
    pub uid: String,
    /// The version this was read at.
    pub resource_version: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Whether the node is cordoned (`spec.unschedulable`).
    pub unschedulable: bool,
}

impl NodeState {
    /// The reference that Events about this node carry.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.name.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }

    /// Whether two observations differ in anything but the version.
    pub(super) fn same_content(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.labels == other.labels
            && self.annotations == other.annotations
            && self.taints == other.taints
            && self.unschedulable == other.unschedulable
    }

    /// Whether `self` was read before `other` of the same object.
    ///
    /// Resource versions are decimal numbers that grow (KEP-5504 made this the contract; every API server has done so).
    /// If one is no number, what arrives later counts as newer.
    pub(super) fn is_older_than(&self, other: &Self) -> bool {
        let versions = (
            self.resource_version.parse::<u64>(),
            other.resource_version.parse::<u64>(),
        );
        match versions {
            (Ok(own), Ok(others)) => self.uid == other.uid && own < others,
            _ => false,
        }
    }
}

impl From<Node> for NodeState {
    fn from(node: Node) -> Self {
        let spec = node.spec.unwrap_or_default();
        Self {
            name: node.metadata.name.unwrap_or_default(),
            uid: node.metadata.uid.unwrap_or_default(),
            resource_version: node.metadata.resource_version.unwrap_or_default(),
            labels: node.metadata.labels.unwrap_or_default(),
            annotations: node.metadata.annotations.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            unschedulable: spec.unschedulable.unwrap_or_default(),
        }
    }
}

/// Takes `new` into `seen` unless it is older; the answer is whether anything a part may look at changed.
pub(super) fn merge(seen: &mut Observed, new: Observed) -> bool {
    if let (Observed::Present(old), Observed::Present(new)) = (&*seen, &new)
        && new.is_older_than(old)
    {
        return false;
    }
    replace(seen, new)
}

/// Takes `new` in place of `seen` although it may carry an older version: a cluster that was restored from a backup
/// counts from an earlier version on.
pub(super) fn replace(seen: &mut Observed, new: Observed) -> bool {
    let changed = match (&*seen, &new) {
        (Observed::Present(old), Observed::Present(new)) => !new.same_content(old),
        (old, new) => old != new,
    };
    *seen = new;
    changed
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;

    use super::*;

    fn at(uid: &str, version: &str, label: &str) -> Observed {
        Observed::Present(NodeState {
            name: "n".to_owned(),
            uid: uid.to_owned(),
            resource_version: version.to_owned(),
            labels: BTreeMap::from([("key".to_owned(), label.to_owned())]),
            ..NodeState::default()
        })
    }

    #[rstest]
    #[case::first(Observed::NotYet, at("u", "5", "a"), true, at("u", "5", "a"))]
    #[case::absent(Observed::NotYet, Observed::Absent, true, Observed::Absent)]
    #[case::still_absent(Observed::Absent, Observed::Absent, false, Observed::Absent)]
    #[case::gone(at("u", "5", "a"), Observed::Absent, true, Observed::Absent)]
    #[case::newer(at("u", "5", "a"), at("u", "6", "b"), true, at("u", "6", "b"))]
    #[case::heartbeat(at("u", "5", "a"), at("u", "6", "a"), false, at("u", "6", "a"))]
    #[case::numbers_not_text(at("u", "9", "a"), at("u", "10", "b"), true, at("u", "10", "b"))]
    #[case::older_than_own_write(at("u", "10", "b"), at("u", "9", "a"), false, at("u", "10", "b"))]
    #[case::made_again(at("u", "10", "b"), at("v", "3", "a"), true, at("v", "3", "a"))]
    #[case::opaque(at("u", "z", "b"), at("u", "y", "a"), true, at("u", "y", "a"))]
    fn what_is_known_never_goes_back(
        #[case] mut seen: Observed,
        #[case] new: Observed,
        #[case] changed: bool,
        #[case] expected: Observed,
    ) {
        assert_eq!(merge(&mut seen, new), changed);
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_restored_cluster_is_believed() {
        let mut seen = at("u", "10", "b");
        assert!(replace(&mut seen, at("u", "4", "a")));
        assert_eq!(seen, at("u", "4", "a"));
        assert!(!replace(&mut seen, at("u", "3", "a")));
        assert_eq!(seen, at("u", "3", "a"));
    }
}
