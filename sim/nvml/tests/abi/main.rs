//! The built driver library, used as its clients use it: loaded from a simulated node and called through its C interface.
//!
//! Expected values are those of NVIDIA's boards and header, never read back from the simulation.

#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod devices;
mod driver;
mod events;
mod exports;
mod faults;
mod instances;
mod meters;
mod permissions;
mod processes;
mod rules;
mod unloading;
