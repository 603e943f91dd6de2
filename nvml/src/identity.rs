//! What a GPU is, and what drives it.

use std::fmt;

use nvml_wrapper_sys::bindings as sys;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, Optional};
use crate::library::symbol;
use crate::pci_bus::PciDevice;
use crate::plain::{text, version, zeroed};

/// The CUDA version that the driver supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CudaVersion {
    /// For example 13.
    pub major: u32,
    /// For example 0.
    pub minor: u32,
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The versions of the driver's parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// Kernel driver, for example `580.105.08`.
    pub driver: String,
    /// CUDA, where the driver tells.
    pub cuda: Option<CudaVersion>,
    /// NVML, for example `13.580.105.08`.
    pub nvml: Option<String>,
}

impl Versions {
    pub(crate) fn read(context: &Context<'_>) -> Result<Self, Error> {
        let library = context.library;
        let cuda: Option<i32> = context
            .get(symbol!(library, nvmlSystemGetCudaDriverVersion_v2))
            .optional()?;
        Ok(Self {
            driver: context.text::<80>(symbol!(library, nvmlSystemGetDriverVersion))?,
            // Packed as major * 1000 + minor * 10 (header, NVML_CUDA_DRIVER_VERSION_MAJOR).
            cuda: cuda
                .and_then(|v| u32::try_from(v).ok())
                .map(|v| CudaVersion {
                    major: v / 1000,
                    minor: v % 1000 / 10,
                }),
            nvml: context
                .text::<80>(symbol!(library, nvmlSystemGetNVMLVersion))
                .optional()?,
        })
    }
}

/// Where a GPU sits on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pci {
    /// `%08X:%02X:%02X.0`, for example `00000000:53:00.0`.
    pub bus_id: String,
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u32,
    /// Device on the bus.
    pub device: u32,
    /// Vendor and device, own and of the subsystem.
    pub id: gpu::PciId,
    /// NUMA node that the kernel gives the slot, where it gives one.
    pub numa_node: Option<u32>,
}

impl Pci {
    /// The kernel's name of the device: `0000:53:00.0`, the folder under `/sys/bus/pci/devices`.
    #[must_use]
    pub fn sysfs_name(&self) -> String {
        format!("{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }
}

/// `nvmlBrandType_t`. Current drivers say [`Brand::NVIDIA`] for nearly every board.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Brand(pub u32);

impl Brand {
    /// Tesla, from old drivers.
    pub const TESLA: Self = Self(2);
    /// NVIDIA.
    pub const NVIDIA: Self = Self(14);
}

/// `nvmlDeviceArchitecture_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Architecture(pub u32);

impl Architecture {
    /// Turing.
    pub const TURING: Self = Self(6);
    /// Ampere: MIG mode changes take a reset and survive a reboot.
    pub const AMPERE: Self = Self(7);
    /// Ada Lovelace.
    pub const ADA: Self = Self(8);
    /// Hopper.
    pub const HOPPER: Self = Self(9);
    /// Blackwell.
    pub const BLACKWELL: Self = Self(10);
}

/// How a GPU's memory is addressed together with the CPU's (`nvmlDeviceAddressingModeType_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AddressingMode {
    /// Separate.
    None,
    /// Heterogeneous memory management, in software.
    Hmm,
    /// Address translation services, in hardware.
    Ats,
}

impl Device<'_> {
    /// Product name; a MIG device's ends with ` MIG <profile>`.
    ///
    /// # Errors
    /// The call's.
    pub fn name(&self) -> Result<String, Error> {
        let library = self.context.library;
        self.context
            .text_of::<96, _>(symbol!(library, nvmlDeviceGetName), self.handle)
    }

    /// Board serial number.
    ///
    /// # Errors
    /// The call's.
    pub fn serial(&self) -> Result<String, Error> {
        let library = self.context.library;
        self.context
            .text_of::<30, _>(symbol!(library, nvmlDeviceGetSerial), self.handle)
    }

    /// VBIOS version.
    ///
    /// # Errors
    /// The call's.
    pub fn vbios_version(&self) -> Result<String, Error> {
        let library = self.context.library;
        self.context
            .text_of::<32, _>(symbol!(library, nvmlDeviceGetVbiosVersion), self.handle)
    }

    /// The `N` of `/dev/nvidiaN`; it is not the NVML index.
    ///
    /// # Errors
    /// The call's.
    pub fn minor(&self) -> Result<u32, Error> {
        let library = self.context.library;
        self.context
            .get_of(symbol!(library, nvmlDeviceGetMinorNumber), self.handle)
    }

    /// Place and ids on the PCI bus.
    ///
    /// # Errors
    /// The call's.
    pub fn pci(&self) -> Result<Pci, Error> {
        let library = self.context.library;
        let read: sys::nvmlPciInfo_t = self
            .context
            .get_of(symbol!(library, nvmlDeviceGetPciInfo_v3), self.handle)?;
        let mut pci = Pci {
            bus_id: text(&read.busId),
            domain: read.domain,
            bus: read.bus,
            device: read.device,
            id: gpu::PciId {
                device: read.pciDeviceId,
                subsystem: read.pciSubSystemId,
            },
            numa_node: None,
        };
        let file = PciDevice::named(self.context.root, &pci.sysfs_name()).file("numa_node");
        let limit = self.context.limits.read;
        let node = self
            .context
            .bounded(limit, "reading numa_node", || std::fs::read_to_string(file))?;
        // The kernel writes -1 where it knows none.
        pci.numa_node = node.ok().and_then(|text| text.trim().parse().ok());
        Ok(pci)
    }

    /// Brand.
    ///
    /// # Errors
    /// The call's.
    pub fn brand(&self) -> Result<Brand, Error> {
        let library = self.context.library;
        self.context
            .get_of(symbol!(library, nvmlDeviceGetBrand), self.handle)
            .map(Brand)
    }

    /// Architecture.
    ///
    /// # Errors
    /// The call's.
    pub fn architecture(&self) -> Result<Architecture, Error> {
        let library = self.context.library;
        self.context
            .get_of(symbol!(library, nvmlDeviceGetArchitecture), self.handle)
            .map(Architecture)
    }

    /// CUDA compute capability, major and minor.
    ///
    /// # Errors
    /// The call's.
    pub fn compute_capability(&self) -> Result<(u32, u32), Error> {
        let library = self.context.library;
        let (major, minor): (i32, i32) = self.context.get_two(
            symbol!(library, nvmlDeviceGetCudaComputeCapability),
            self.handle,
        )?;
        Ok((major.unsigned_abs(), minor.unsigned_abs()))
    }

    /// How memory is addressed together with the CPU's.
    ///
    /// # Errors
    /// The call's; old drivers do not tell.
    pub fn addressing_mode(&self) -> Result<AddressingMode, Error> {
        let library = self.context.library;
        let request = sys::nvmlDeviceAddressingMode_v1_t {
            version: version::<sys::nvmlDeviceAddressingMode_v1_t>(1),
            ..zeroed()
        };
        let read = self.context.fill(
            symbol!(library, nvmlDeviceGetAddressingMode),
            self.handle,
            request,
        )?;
        Ok(match read.value {
            1 => AddressingMode::Hmm,
            2 => AddressingMode::Ats,
            _ => AddressingMode::None,
        })
    }
}
