//! The four patch formats: each a pure function from an object and a patch to the patched object.

pub(crate) mod apply;
pub(crate) mod json_patch;
pub(crate) mod merge;
pub(crate) mod strategic;
