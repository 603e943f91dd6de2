//! MIG on one node: the partition engine, and the controller that runs it for a Kubernetes node.
//!
//! The engine reads the config files of nvidia-mig-parted, plans what has to change on which GPU, and changes exactly that,
//! so that a failure at any point leaves a layout somebody asked for.

pub mod checkpoint;
pub mod config;
pub mod controller;
pub mod engine;
pub mod export;
pub mod generate;
pub mod hooks;
mod listing;
pub mod output;
pub mod select;

pub use configuration::document as strict;
