//! The domain crate against hand-written boards and obvious reference algorithms.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod boards;
mod driver;
mod named;
mod naming;
mod placement;
mod plan_properties;
mod planning;
mod profile;
mod reference;
