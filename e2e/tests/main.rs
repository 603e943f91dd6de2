//! Tests on a real Kubernetes cluster.
//!
//! They run when `LATHE_E2E` is set, on the cluster that `KUBECONFIG` names: ours (`cargo xtask cluster`), kind, or any
//! other whose nodes share a folder with this machine. Without it each passes with one line that says so. CONTRIBUTING.md lists
//! the variables.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod chart;
mod cluster_life;
mod device_plugin;
mod main_job;
mod permissions;
mod readme;
mod registration;
mod support;
