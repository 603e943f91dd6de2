//! The domain crate against hand-written boards and obvious reference algorithms.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod boards;
mod naming;
mod placement;
mod profile;
mod reference;
