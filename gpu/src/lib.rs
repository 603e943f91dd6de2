//! The domain of Lathe: what a MIG profile, a placement, a layout and a plan are.
//!
//! This crate does no I/O and knows neither Kubernetes, nor an async runtime, nor NVML. Everything in it is a value or a
//! pure function from values to values, so its tests need no driver and run in seconds.
//!
//! A [`Board`] is what a driver reports of a GPU. It gives [`Profile`]s their names and finds what a name means
//! ([`Board::resolve`]). A GPU is [`Observed`], a [`Goal`] is set, and [`plan`] says what to keep, destroy and create, or
//! that it is [`Impossible`] and why. [`place`] is the geometry under it, [`matches()`] the check afterwards.
//!
//! ```
//! use gpu::{Goal, Impossible, Observed, plan};
//!
//! // A GPU without MIG has no board.
//! let devices = [("1g.10gb".parse()?, 7)].into();
//! let error = plan(None, &Observed::default(), &Goal::new(true, devices));
//! assert_eq!(error, Err(Impossible::NoMig));
//! assert!(plan(None, &Observed::default(), &Goal::Mode(false))?.is_noop());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod allocation;
mod board;
mod compute;
mod demand;
mod device;
mod goal;
mod impossible;
pub mod installation;
mod keep;
pub mod labels;
mod layout;
pub mod ledger;
mod named;
mod naming;
mod placement;
mod plan;
mod planner;
mod profile;
mod topology;
mod xid;

pub use board::{Board, ComputeProfile, Engines, InstanceProfile, PciId, Placement};
pub use compute::{ComputeChoice, compute_placements};
pub use device::{MigAttributes, is_display};
pub use goal::{Client, Goal, Observed};
pub use impossible::{Impossible, LayoutProblem};
pub use layout::{ComputeInstance, GpuInstance, Layout};
pub use named::{NamedSpec, named_configs};
pub use naming::{Resolved, UnknownProfile};
pub use placement::{Placed, Unplaceable, place};
pub use plan::{Created, CreatedCompute, Destroyed, GpuPlan, Step};
pub use planner::{matches, plan, undo};
pub use profile::{Attributes, ParseProfileError, Profile, ProfileProblem};
pub use topology::{Path, PcieRelation, Topology};
pub use xid::xid_meaning;
