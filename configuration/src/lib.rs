//! Configuration files of the parts, as text turned into values that cannot be wrong.
//!
//! [`document`] reads any small YAML or JSON file strictly, with the place of each fault. [`plugin`] is the `version: v1`
//! file of the NVIDIA device plugin, which feature discovery reads too. The crate must not know what flags, environment
//! variables or defaults exist: it says what a file says. [`nearest`] tells which name a mistyped one was meant to be.

pub mod document;
pub mod nearest;
pub mod plugin;
mod tree;
