//! What the server answers, looked at from outside: through raw HTTP, kube-rs and kubectl. The expected values are
//! those of the Kubernetes API conventions and of the real server, not taken from this one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod apply;
mod concurrency;
mod deletion;
mod discovery;
mod events;
mod faults;
mod http;
mod kube_rs;
mod kubectl;
mod lists;
mod objects;
mod patches;
mod reviews;
mod tables;
mod watches;
