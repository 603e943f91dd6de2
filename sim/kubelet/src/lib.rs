//! The kubelet as its plugins see it: it takes registrations, follows lists of devices, admits pods, and tells who has what.
//!
//! Only tests use it, and what goes wrong in here is to fail the test that caused it: hence it panics where a program would
//! report. It speaks over real unix sockets, and is killed by being dropped.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
mod device_manager;
mod pod_resources;
mod process;

pub use admission::{Admitted, Pods};
pub use device_manager::{DeviceManager, Devices, Mood, Seen};
pub use pod_resources::PodResources;
pub use process::{Process, bounded, connect};
