//! The crate against the kubelet's side of each API, over real unix sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod authority;
mod device_plugin;
mod dra;
mod holdings;
mod pod_resources;
mod registration;

use sim_kubelet::{Process, bounded, connect};
