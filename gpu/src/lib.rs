//! The domain of Lathe: what a MIG profile, a placement, a layout and a plan are.
//!
//! This crate does no I/O and knows neither Kubernetes, nor an async runtime, nor NVML. Everything in it is a value or a
//! pure function from values to values, so its tests need no driver and run in seconds.

mod board;
pub mod labels;
mod layout;

pub use board::{Board, ComputeProfile, Engines, InstanceProfile, PciId, Placement};
pub use layout::{ComputeInstance, GpuInstance, Layout};
