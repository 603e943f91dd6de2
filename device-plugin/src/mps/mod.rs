//! The Multi-Process Service: several containers on one GPU at once, each with its part of memory and threads.
//!
//! What NVIDIA splits between its device plugin and its `mps-control-daemon` lies here for both of ours: [`plan()`] says which
//! daemons a node needs (a pure function), and [`ready`] tells the device plugin what a daemon serves.

mod gpus;
mod leftovers;
mod log;
pub mod machine;
mod metrics;
pub mod paths;
pub mod plan;
mod program;
mod protocol;
mod runner;
mod selinux;
pub mod service;
pub mod shm;
pub mod status;
pub mod supervisor;
pub mod watch;

pub use paths::Root;
pub use plan::{GpuFacts, Plan, client_percentage, plan};
pub use runner::{Place, Report};
pub use status::{NotReady, Served, ready};
pub use supervisor::{State, Supervisor, SupervisorError};
pub use watch::Watch;
