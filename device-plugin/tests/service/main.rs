//! The device plugin against a simulated node, kubelet and API server.
//!
//! Expected values are read from the simulated hardware, or follow from the facts of NVIDIA's plugin, not from the code.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod allocation;
mod config;
mod exclusivity;
mod hardware;
mod health;
mod kubelet;
mod mig_manager;
mod mps;
mod random;
mod rig;
mod specs;
mod two_processes;
