//! What every part of Lathe needs of the Kubernetes API, and nothing more: a client with bounds ([`client`]), the part's
//! own Node watched and patched ([`node`]), the configuration that the Node's label chooses ([`named_config`]), files that
//! may change while they are in use ([`watched`]), Events that never hold the caller up ([`events`]), and the small HTTP
//! server behind `/metrics` and the probes ([`serve`]).
//!
//! The crate knows nothing of GPUs, labels or partitions: which label means what is the business of the part that owns it.

pub mod client;
mod error;
pub mod events;
mod follow;
pub mod named_config;
pub mod node;
mod request;
pub mod serve;
pub mod watched;

pub use client::client;
pub use error::Error;
