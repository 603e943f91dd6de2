//! GPUs, MIG devices and shares of them as resources of the kubelet: what NVIDIA's device plugin publishes, under the same
//! names and ids.
//!
//! [`service`] is the part at work. What it decides, it has from pure functions: [`resources()`] turns a node's GPUs and the
//! configuration into resources, [`health`] says which devices are unhealthy and what heals them, [`allocation`] what a container
//! is given. [`hardware`] follows the driver, [`mps`] runs the daemons of the Multi-Process Service.

pub mod allocation;
pub mod hardware;
pub mod health;
mod id;
pub mod mps;
pub mod resources;
pub mod service;

pub use id::DeviceId;
pub use resources::resources;
