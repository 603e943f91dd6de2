//! What a container needs of a node to use a GPU: device nodes, driver files and their links, as Container Device Interface
//! specs.
//!
//! * [`spec`] is the file format: structs, the rules that container runtimes check, the lowest version of the format that has
//!   what a spec uses. [`Kind`] and [`check_device_name`] are its grammar of names.
//! * [`DriverFiles`] finds what the driver installed below its root; [`mod@driver`] says how a program in a container finds it
//!   without a hook.
//! * [`DeviceFiles`] names the device nodes of GPUs, MIG devices, IMEX channels and of the kernel modules beside the driver.
//! * [`generate()`] makes the specs of a node; [`SpecFolder`] writes them where runtimes look.
//!
//! The crate reads the node's file system and knows no driver call, no kubelet and no API server.
//!
//! ```no_run
//! let roots = cdi::Roots::at("/");
//! let gpus = [cdi::Gpu {
//!     index: 0,
//!     uuid: "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c".into(),
//!     minor: Some(0),
//!     bus_id: "00000000:18:00.0".into(),
//!     mig: Vec::new(),
//! }];
//! let made = cdi::generate(&roots, "570.124.06", &gpus, &cdi::Options::default())?;
//! let folder = cdi::SpecFolder::open("/var/run/cdi")?;
//! folder.replace(cdi::DEVICE_PLUGIN_VENDOR, &made.specs)?;
//! # Ok::<(), cdi::Error>(())
//! ```

pub mod driver;
mod error;
mod folder;
mod generate;
mod hooks;
mod name;
mod nodes;
mod root;
pub mod spec;

pub use driver::DriverFiles;
pub use error::{Error, Skipped};
pub use folder::{Changes, SpecFolder};
pub use generate::{DEVICE_PLUGIN_VENDOR, Generated, Naming, Options, classes, generate};
pub use hooks::Hooks;
pub use name::{Kind, NameError, check_device_name};
pub use nodes::{Capabilities, DeviceFiles, Gpu, Mig, Node};
pub use root::{Root, Roots};
