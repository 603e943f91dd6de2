//! Device nodes: which of them a GPU, a MIG device, an IMEX channel and the modules beside the driver have.
//!
//! A node is named when it exists. Its major and minor numbers are left to the runtime, which reads them from the host's node at
//! the moment it makes the container.

mod capabilities;
mod pci;

use std::path::{Path, PathBuf};

pub use capabilities::Capabilities;

use crate::root::text;
use crate::spec::DeviceNode;
use crate::{Error, Root, Roots, Skipped};

/// A GPU, as the driver tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// NVML index.
    pub index: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// Minor number; where the driver gives none, the kernel's `/proc/driver/nvidia/gpus` is asked.
    pub minor: Option<u32>,
    /// PCI bus id, with a domain of 4 or 8 digits.
    pub bus_id: String,
    /// Its MIG devices.
    pub mig: Vec<Mig>,
}

/// A MIG device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mig {
    /// Index under its GPU.
    pub index: u32,
    /// `MIG-…`.
    pub uuid: String,
    /// GPU-instance id.
    pub gpu_instance: u32,
    /// Compute-instance id.
    pub compute_instance: u32,
}

/// A device node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    /// Its path in a container.
    pub path: PathBuf,
    /// Its path on the host.
    pub host_path: PathBuf,
}

impl From<&Node> for DeviceNode {
    fn from(node: &Node) -> Self {
        Self {
            path: text(&node.path),
            host_path: (node.host_path != node.path).then(|| text(&node.host_path)),
            ..Self::default()
        }
    }
}

/// Nodes of the driver that belong to no GPU.
const CONTROL: [&str; 4] = [
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
];

/// Those of them without which no program can use a GPU.
const NEEDED: [&str; 2] = ["/dev/nvidiactl", "/dev/nvidia-uvm"];

/// The device nodes of a node.
#[derive(Clone, Copy, Debug)]
pub struct DeviceFiles<'a> {
    devices: &'a Root,
    node: &'a Root,
}

impl<'a> DeviceFiles<'a> {
    /// Those of a node with these roots.
    pub fn new(roots: &'a Roots) -> Self {
        Self {
            devices: &roots.devices,
            node: &roots.node,
        }
    }

    /// Nodes that every user of the driver needs, those that there are: `/dev/nvidiactl`, `/dev/nvidia-uvm`,
    /// `/dev/nvidia-uvm-tools`, `/dev/nvidia-modeset`.
    pub fn control(&self) -> Result<Vec<Node>, Error> {
        self.existing(CONTROL.map(str::to_owned))
    }

    /// What is missing among the control nodes and leaves every container without a working GPU.
    pub(crate) fn needed_by_all(&self, control: &[Node]) -> Vec<Skipped> {
        let missing = NEEDED
            .iter()
            .filter(|path| control.iter().all(|node| node.path != Path::new(path)));
        missing
            .map(|path| Skipped::NoNode {
                of: "every GPU".into(),
                path: self.devices.here(path),
            })
            .collect()
    }

    /// `/dev/nvidia<minor>`.
    pub fn gpu(&self, gpu: &Gpu) -> Result<Result<Node, Skipped>, Error> {
        match self.minor(gpu)? {
            None => Ok(Err(Skipped::NoMinor {
                uuid: gpu.uuid.clone(),
            })),
            Some(minor) => self.required(&gpu.uuid, format!("/dev/nvidia{minor}")),
        }
    }

    /// The capability nodes of a MIG device: of its GPU instance and of its compute instance. The GPU's own node it needs besides.
    pub fn mig(
        &self,
        gpu: &Gpu,
        mig: &Mig,
        capabilities: &Capabilities,
    ) -> Result<Result<Vec<Node>, Skipped>, Error> {
        let Some(minor) = self.minor(gpu)? else {
            return Ok(Err(Skipped::NoMinor {
                uuid: gpu.uuid.clone(),
            }));
        };
        let instance = format!("gpu{minor}/gi{}", mig.gpu_instance);
        let mut nodes = Vec::new();
        for capability in [
            format!("{instance}/access"),
            format!("{instance}/ci{}/access", mig.compute_instance),
        ] {
            let Some(minor) = capabilities.minor(&capability) else {
                return Ok(Err(Skipped::NoCapability {
                    uuid: mig.uuid.clone(),
                    capability,
                }));
            };
            match self.required(&mig.uuid, format!("/dev/nvidia-caps/nvidia-cap{minor}"))? {
                Ok(node) => nodes.push(node),
                Err(skipped) => return Ok(Err(skipped)),
            }
        }
        Ok(Ok(nodes))
    }

    /// The kernel's table of capability minors; empty when the driver has no MIG.
    pub fn capabilities(&self) -> Result<Capabilities, Error> {
        Capabilities::read(self.node)
    }

    /// Nodes of a GPU for graphics: `/dev/dri/card<n>` and `/dev/dri/renderD<n>`, where nvidia-drm is loaded.
    pub fn graphics(&self, gpu: &Gpu) -> Result<Vec<Node>, Error> {
        let Some(address) = pci::sysfs(&gpu.bus_id) else {
            return Ok(Vec::new());
        };
        let names = self
            .node
            .list(format!("/sys/bus/pci/devices/{address}/drm"))?;
        let names = names
            .iter()
            .filter(|name| name.starts_with("card") || name.starts_with("renderD"));
        self.existing(names.map(|name| format!("/dev/dri/{name}")))
    }

    /// The links by PCI address to a GPU's graphics nodes: path of the link and what it says.
    pub(crate) fn graphics_links(&self, gpu: &Gpu) -> Result<Vec<(PathBuf, PathBuf)>, Error> {
        let Some(address) = pci::sysfs(&gpu.bus_id) else {
            return Ok(Vec::new());
        };
        let nodes = self.graphics(gpu)?;
        let mut links = Vec::new();
        for suffix in ["card", "render"] {
            let link = PathBuf::from(format!("/dev/dri/by-path/pci-{address}-{suffix}"));
            let leads_to = self.devices.resolve(&link)?;
            let ours = nodes
                .iter()
                .any(|node| Some(&node.path) == leads_to.as_ref());
            if let (true, Ok(target)) = (ours, std::fs::read_link(self.devices.here(&link))) {
                links.push((link, target));
            }
        }
        Ok(links)
    }

    /// `/dev/nvidia-caps-imex-channels/channel<n>`.
    pub fn imex_channel(&self, channel: u32) -> Result<Result<Node, Skipped>, Error> {
        self.required(
            &format!("IMEX channel {channel}"),
            format!("/dev/nvidia-caps-imex-channels/channel{channel}"),
        )
    }

    /// GDRCopy: `/dev/gdrdrv`.
    pub fn gdrcopy(&self) -> Result<Vec<Node>, Error> {
        self.existing(["/dev/gdrdrv".to_owned()])
    }

    /// GPUDirect Storage: `/dev/nvidia-fs*`.
    pub fn gds(&self) -> Result<Vec<Node>, Error> {
        self.matching("/dev", |name| name.starts_with("nvidia-fs"))
    }

    /// Mellanox OFED: `/dev/infiniband/uverbs*` and `/dev/infiniband/rdma_cm`.
    pub fn mofed(&self) -> Result<Vec<Node>, Error> {
        self.matching("/dev/infiniband", |name| {
            name.starts_with("uverbs") || name == "rdma_cm"
        })
    }

    fn minor(&self, gpu: &Gpu) -> Result<Option<u32>, Error> {
        match gpu.minor {
            Some(minor) => Ok(Some(minor)),
            None => pci::minor(self.node, &gpu.bus_id),
        }
    }

    fn node(&self, path: impl Into<PathBuf>) -> Node {
        let path = path.into();
        Node {
            host_path: self.devices.on_host(&path),
            path,
        }
    }

    fn required(&self, of: &str, path: String) -> Result<Result<Node, Skipped>, Error> {
        if self.devices.has(&path)? {
            return Ok(Ok(self.node(path)));
        }
        Ok(Err(Skipped::NoNode {
            of: of.to_owned(),
            path: self.devices.here(path),
        }))
    }

    fn existing(&self, paths: impl IntoIterator<Item = String>) -> Result<Vec<Node>, Error> {
        let mut nodes = Vec::new();
        for path in paths {
            if self.devices.has(&path)? {
                nodes.push(self.node(path));
            }
        }
        Ok(nodes)
    }

    fn matching(&self, folder: &str, wanted: impl Fn(&str) -> bool) -> Result<Vec<Node>, Error> {
        let names = self.devices.list(folder)?;
        let folder = Path::new(folder);
        Ok(names
            .iter()
            .filter(|name| wanted(name))
            .map(|name| self.node(folder.join(name)))
            .collect())
    }
}

#[cfg(test)]
mod tests;
