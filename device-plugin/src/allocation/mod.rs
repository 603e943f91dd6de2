//! Giving devices to a container: which ones would be best ([`prefer()`]), whether those that the kubelet chose can be given
//! ([`check()`]), and what the container gets for them ([`response()`]), as [`Options`] say.
//!
//! These are pure functions of a [`Resource`](crate::resources::Resource) and a request, so that a call from the kubelet
//! reads neither the driver nor a file. Before devices are given, the [`Book`] says whether somebody else has them.
//!
//! # Containers that ask for two resources
//! The kubelet calls once per resource, does not say for which container, and merges the answers: of an environment variable,
//! mount path or annotation that both have, the first wins. So devices of both resources arrive with
//! - `cdi-cri`, `cdi-annotations`: each answer names its own devices, and each resource has its own annotation key;
//! - `volume-mounts`: the variable says the same in both, and each device has its own mount path;
//!
//! but not with `envvar` alone: one value of `NVIDIA_VISIBLE_DEVICES` is dropped, and nothing in an answer can prevent that.
//! [`Options::caution`] says so.
//!
//! # Containers that ask for none
//! No call is made for them, so nothing here can hide GPUs. With `envvar` the container runtime goes by
//! `NVIDIA_VISIBLE_DEVICES` of the image, and images have `all` in it. With CDI a container that asks for nothing gets nothing;
//! with `volume-mounts` that takes the setting of NVIDIA's runtime which ignores the variable in unprivileged containers.

mod book;
mod check;
mod listed;
mod options;
mod prefer;
mod response;

pub use book::{Book, LIST_WAIT};
pub use check::{Refusal, Request, check};
pub use options::{DeviceLists, Imex, Options, OptionsError};
pub use prefer::{InUse, prefer};
pub use response::{CDI_VENDOR, Ready, response};

#[cfg(test)]
mod fixtures;
