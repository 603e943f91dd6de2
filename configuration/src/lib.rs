//! Configuration files of the parts, as text turned into values that cannot be wrong.
//!
//! [`document`] reads any small YAML or JSON file strictly, with the place of each fault.

pub mod document;
