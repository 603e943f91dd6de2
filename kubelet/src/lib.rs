//! The kubelet's local APIs, spoken over unix sockets on the node: plugin registration ([`registration`]), the device
//! plugin API ([`device_plugin`]), dynamic resource allocation ([`dra`]) and pod resources ([`pod_resources`],
//! followed over time by [`holdings`]).
//!
//! The crate knows sockets, messages and the kubelet's habits (it deletes sockets when it starts, it forgets plugins when it
//! ends), so that the parts built on it need not. It knows nothing of GPUs, and nothing of the API server.

pub mod api;
mod channel;
pub mod device_plugin;
pub mod dra;
mod error;
mod folder;
pub mod holdings;
mod paths;
pub mod pod_resources;
pub mod registration;
mod socket;

pub use error::Error;
pub use folder::Folder;
pub use paths::Paths;
