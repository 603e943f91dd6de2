//! What every part of Lathe needs of the Kubernetes API, and nothing more: a client with bounds ([`client`]), the part's
//! own Node watched and patched ([`node`]), Events that never hold the caller up ([`events`]), and the small HTTP server
//! behind `/metrics` and the probes ([`serve`]).
//!
//! The crate knows nothing of GPUs, labels or partitions: which label means what is the business of the part that owns it.

pub mod client;
mod error;
pub mod events;
pub mod node;
mod request;
pub mod serve;

pub use client::client;
pub use error::Error;
