//! What the tests share: the cluster, namespaces of their own, tools, pods, Lathe installed on a simulated node.

pub(crate) mod cluster;
pub(crate) mod host;
pub(crate) mod install;
pub(crate) mod namespace;
pub(crate) mod pods;
pub(crate) mod tools;
