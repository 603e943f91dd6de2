//! What the tests share: the cluster, namespaces of their own, tools, Lathe installed on a simulated node.

pub(crate) mod cluster;
pub(crate) mod install;
pub(crate) mod namespace;
pub(crate) mod tools;
