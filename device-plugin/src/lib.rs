//! GPUs, MIG devices and shares of them as resources of the kubelet: what NVIDIA's device plugin publishes, under the same
//! names and ids.
//!
//! [`resources()`] turns a node's GPUs and the configuration into resources. It is a pure function: where GPUs come from and
//! how the kubelet learns of resources is not its business. [`health`] says what an event means for them.

pub mod hardware;
pub mod health;
pub mod allocation;
mod id;
pub mod mps;
pub mod resources;

pub use id::DeviceId;
pub use resources::resources;
