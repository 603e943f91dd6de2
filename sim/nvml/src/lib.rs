//! A simulated `libnvidia-ml.so.1` with a simulated node around it.
//!
//! `model` is the node's state and the pure rules of its hardware and driver; `store` keeps the state in one file that
//! every process sharing the node reads; `tree` shows it as `/sys`, `/proc` and `/dev`; `admin` is what people do to a
//! node; `boards` and `presets` are the data nodes are made of; `functions` names what the library exports.

// The C interface, and the only unsafe code of the crate.
#[allow(unsafe_code)]
mod abi;
pub mod admin;
pub mod boards;
pub mod code;
pub mod functions;
pub mod library;
pub mod model;
pub mod presets;
mod reset_files;
pub mod store;
pub mod trace;
mod tree;

pub use code::Code;
pub use store::Store;
