//! Tests on a real Kubernetes cluster.
//!
//! They run when `LATHE_E2E` is set, on the cluster that `KUBECONFIG` names: ours (`cargo xtask cluster`), kind, or any
//! other whose nodes share a folder with this machine. Without it each passes with one line that says so, except where a
//! test also has a simulated side. CONTRIBUTING.md lists the variables.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

//API mod api_behaviour;
mod chart;
mod main_job;
mod readme;
mod support;
