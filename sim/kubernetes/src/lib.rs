//! An in-memory Kubernetes API server over HTTP, for tests and the demo.
//!
//! It answers as the real server does, down to `Status` objects, resource versions, warnings, watches, the four patch
//! formats and server-side apply with field ownership, so that clients written with kube-rs and the real kubectl work on
//! it unchanged. What it promises stands in the table of `e2e/tests/api_behaviour`, which a real server is held to as well.
//!
//! It has no controllers, scheduler or kubelet: objects stay as clients write them, except where a write could never
//! finish without one (a namespace that is ending is emptied, a definition is established at once, a deleted pod ends after
//! [`Options::pod_stop_time`]). Of admission it knows that namespaces must be there and not be ending, and the taint of new
//! nodes; objects are checked only as far as clients meet it in practice.
//!
//! It speaks JSON over plain HTTP and is meant for the loopback interface. Bodies in Protobuf are read for the few
//! kinds that kubectl sends in it where no Deployment or Job is involved, and answered with 415 for the rest.

mod answer;
mod api;
mod base64;
mod body;
mod clock;
mod custom;
mod decoding;
mod defaults;
mod discovery;
mod error;
mod events;
mod faults;
mod fields;
mod input;
mod json;
mod patch;
mod protobuf;
mod query;
mod registry;
mod render;
mod resource;
mod review;
mod routes;
mod selector;
mod server;
mod store;
mod strategy;
mod table;
mod typed;
mod validation;
mod verbs;
mod versions;

pub use error::ApiError;
pub use faults::{Action, Fault, Faults};
pub use review::{Authenticate, Authorize, Reviews};
pub use server::{Error, Options, Record, Server};
