//! The Multi-Process Service: several containers on one GPU at once, each with its part of memory and threads.
//!
//! What NVIDIA splits between its device plugin and its `mps-control-daemon` lies here for both of ours: [`plan()`] says which
//! daemons a node needs (a pure function), and [`ready`] tells the device plugin what a daemon serves.

pub mod paths;
pub mod plan;
pub mod status;

pub use paths::Root;
pub use plan::{GpuFacts, Plan, client_percentage, plan};
pub use status::{NotReady, Served, ready};
