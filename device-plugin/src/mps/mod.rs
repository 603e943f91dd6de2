//! The Multi-Process Service: several containers on one GPU at once, each with its part of memory and threads.
//!
//! For the device plugin, [`ready`] tells what the daemon of a resource serves, and [`Watch`] when that may have changed.
//!
//! For `lathe mps-daemon`, [`plan()`] says which daemons a node needs, a state machine (`machine`) what to do about one of
//! them (both are pure), a runner does it, the [`Supervisor`] has a runner for each resource, and the [`service`] lets all of it
//! follow configuration and hardware. The daemons themselves are NVIDIA's program.

mod gpus;
mod leftovers;
mod log;
mod machine;
mod metrics;
pub mod paths;
pub mod plan;
mod program;
mod protocol;
mod runner;
mod running;
mod selinux;
pub mod service;
pub mod shm;
pub mod status;
mod step;
mod supervisor;
mod watch;

pub use paths::Root;
pub use plan::{GpuFacts, Plan, client_percentage, plan};
pub use runner::{Place, Report};
pub use status::{NotReady, Served, ready};
pub use step::Pace;
pub use supervisor::{State, Supervisor, SupervisorError};
pub use watch::Watch;
