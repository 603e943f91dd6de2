//! What a node has and its resources do not show as configured.

use std::fmt;

use configuration::plugin::ResourceName;
use gpu::labels::Invalid;

/// Something that is not offered as configured; worth an Event, never a reason to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Every GPU is left out by `devices`.
    AllLeftOut {
        /// How many the node has.
        gpus: usize,
    },
    /// Strategy `single` cannot express the layout: nothing is offered.
    Single(Invalid),
    /// A GPU in MIG mode has no MIG devices, so it offers nothing.
    EmptyGpu {
        /// UUID of the GPU.
        gpu: String,
    },
    /// A GPU in MIG mode is offered whole, as strategy `none` wants it: CUDA programs find no device on it.
    WholeInMigMode {
        /// UUID of the GPU.
        gpu: String,
    },
    /// No name for a device: no pattern under `resources` matches, or its profile shares a GPU instance.
    NoName {
        /// UUID of the device.
        device: String,
        /// Product name, or profile of a MIG device.
        what: String,
    },
    /// MPS does not work on MIG devices: they are offered unshared.
    MpsOnMig {
        /// The resource.
        resource: ResourceName,
    },
    /// More shares than the kubelet takes in one list.
    TooManyShares {
        /// The resource.
        resource: ResourceName,
        /// Shares of each device that are offered.
        offered: u32,
        /// Shares of each device that are configured.
        configured: u32,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllLeftOut { gpus } => write!(
                f,
                "nothing is offered: devices.include and devices.exclude leave out every device of the node's GPUs ({gpus})"
            ),
            Self::Single(reason) => write!(
                f,
                "nothing is offered, because MIG strategy single is not possible: {reason}; cut all GPUs alike or use mixed"
            ),
            Self::EmptyGpu { gpu } => write!(
                f,
                "{gpu} is in MIG mode and has no MIG devices: create some or turn MIG off"
            ),
            Self::WholeInMigMode { gpu } => write!(
                f,
                "{gpu} is in MIG mode and offered whole, which CUDA programs cannot use: choose MIG strategy single or mixed, or turn MIG off"
            ),
            Self::NoName { device, what } => write!(
                f,
                "{device} ({what}) is not offered: no pattern under resources gives it a name"
            ),
            Self::MpsOnMig { resource } => {
                write!(
                    f,
                    "{resource} is not shared: MPS does not work on MIG devices"
                )
            }
            Self::TooManyShares {
                resource,
                offered,
                configured,
            } => write!(
                f,
                "{resource} has {offered} shares of each device instead of {configured}: the kubelet takes no longer list"
            ),
        }
    }
}
