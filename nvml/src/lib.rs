//! The only door to the NVIDIA driver: NVML calls go in here, [`gpu`] types and typed errors come out.
//!
//! No other crate names an NVML symbol, and none can tell a real driver from a simulated one: what differs is the library
//! that lies under the node root.
//!
//! * [`Driver`] finds and opens the library; [`Session`] opens it late and again, and lets go of it for others.
//! * [`Gpu::run`] makes a batch of calls on one GPU's own thread; [`Driver::for_each_gpu`] does so on all at once.
//!   No caller waits without a bound: a call that hangs makes its own GPU fail fast ([`Error::Hung`]) and no other.
//! * [`Driver::snapshot`] tells what the node has; a GPU that fails, fails alone.
//! * [`Device`] has the reads and the MIG writes; [`Driver::watch`] delivers events; [`Driver::reset`] resets GPUs.
//! * [`PciDevice`] is what the kernel says of NVIDIA's devices, also without a driver.
//!
//! ```no_run
//! let driver = nvml::Driver::open(&nvml::Options::at("/"))?;
//! for gpu in driver.snapshot()?.gpus {
//!     match gpu {
//!         Ok(info) => println!("{} {}: {:?}", info.index, info.name, info.layout),
//!         Err(error) => eprintln!("{error}"),
//!     }
//! }
//! // One hop to the GPU's thread for both calls.
//! let made = driver.gpu(0).run(|device| {
//!     device.set_mig_mode(true)?;
//!     device.create_gpu_instance(9, Some(gpu::Placement { start: 4, size: 4 }))
//! })?;
//! # Ok::<(), nvml::Error>(())
//! ```
//!
//! # Why the raw bindings
//! The calls go through `nvml-wrapper-sys`, the generated bindings. The safe layer above it, `nvml-wrapper` 0.13, is not
//! usable here: it has none of the GPU- and compute-instance calls, its `possible_placements` always returns an empty
//! list, and codes 23 to 30 (`INSUFFICIENT_RESOURCES` among them) come out unnamed.
//!
//! This crate must not know what the values are used for: no labels, no metric names, no configuration files.

// FFI needs it; every use says why it is sound, and all but a few lie in `context`.
#![allow(unsafe_code)]

mod code;
mod compute_mode;
mod context;
mod device;
mod driver;
mod error;
mod event;
mod fabric;
mod field;
mod gate;
mod give_way;
mod gpm;
mod handle;
mod heap;
mod identity;
mod lane;
mod library;
mod locate;
mod memory;
mod metrics;
mod mig;
mod mig_write;
mod pci_bus;
mod plain;
mod process;
mod reset;
mod session;
mod snapshot;
mod start_pages;
mod topology;
mod watch;

pub use code::Code;
pub use compute_mode::ComputeMode;
pub use device::{Device, MigDevice};
pub use driver::{Driver, Options};
pub use error::{Error, GpuRef, Optional};
pub use event::{Event, EventKind, EventMask};
pub use fabric::{Fabric, FabricState};
pub use field::{ALL_LINKS, Field, FieldValue};
pub use give_way::GiveWay;
pub use gpm::{GpmMetric, GpmSample};
pub use handle::Gpu;
pub use heap::share_heap;
pub use identity::{AddressingMode, Architecture, Brand, CudaVersion, Pci, Versions};
pub use locate::{driver_library, program as driver_program};
pub use memory::Memory;
pub use metrics::{Clock, Power, RemappedRows, RowRemapHistogram, TemperatureLimit, Utilization};
pub use mig::MigMode;
pub use mig_write::Activation;
pub use pci_bus::PciDevice;
pub use process::{Process, ProcessKind};
pub use session::Session;
pub use snapshot::{GpuInfo, Snapshot};
pub use start_pages::unmap_start;
pub use topology::{NvLinkEnd, TopologyReport};
pub use watch::{EventStop, EventStream, EventWatch};
