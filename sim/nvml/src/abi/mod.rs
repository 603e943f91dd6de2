//! The C interface: every function of the NVML header, exported.
//!
//! A function is a line of a table (`export`), its call goes one way (`dispatch`) and sees the node through `call`, its
//! pointers are checked types (`pointer`), its handles are numbers (`handle`), and its answer comes from the model. The
//! rules of the hardware are not here.

mod argument;
mod call;
mod clocks;
mod compute_instance;
mod dispatch;
mod drain;
mod ecc;
mod error_text;
mod events;
mod export;
mod fabric;
mod fields;
mod gpm;
mod gpu_instance;
mod handle;
mod identity;
mod lifecycle;
mod lookup;
mod memory;
mod mig_mode;
mod modes;
mod nvlink;
mod pci;
mod pointer;
mod power;
mod processes;
mod session;
mod structs;
mod system;
mod thermal;
mod topology;
mod unmodelled;
mod utilization;
mod waiting;
