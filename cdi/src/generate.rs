//! The specs of a node: which devices there are, what they are called, what a container gets with each.

use std::path::PathBuf;

use crate::hooks::{Hooks, LinkInContainer};
use crate::root::text;
use crate::spec::{ContainerEdits, Device, DeviceNode, Mount, Spec};
use crate::{
    Capabilities, DeviceFiles, DriverFiles, Error, Gpu, Kind, Mig, Node, Roots, Skipped,
    check_device_name,
};

/// The vendor in the names that NVIDIA's device plugin gives.
pub const DEVICE_PLUGIN_VENDOR: &str = "k8s.device-plugin.nvidia.com";

/// The classes of devices, one file each.
pub mod classes {
    /// GPUs and MIG devices.
    pub const GPU: &str = "gpu";
    /// IMEX channels.
    pub const IMEX_CHANNEL: &str = "imex-channel";
    /// GDRCopy.
    pub const GDRCOPY: &str = "gdrcopy";
    /// GPUDirect Storage.
    pub const GDS: &str = "gds";
    /// Mellanox OFED.
    pub const MOFED: &str = "mofed";
    /// All of them.
    pub const ALL: [&str; 5] = [GPU, IMEX_CHANNEL, GDRCOPY, GDS, MOFED];
}

/// What GPUs and MIG devices are called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Naming {
    /// `GPU-…` and `MIG-…`.
    #[default]
    Uuid,
    /// `0`, and `0:1` for a MIG device.
    Index,
}

/// What the user chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Vendor in the names of devices.
    pub vendor: String,
    /// What GPUs and MIG devices are called.
    pub naming: Naming,
    /// NVIDIA's hook program, a path of the node; used where it is there.
    pub hook_program: Option<PathBuf>,
    /// Its hooks that must not be used; `all` is all.
    pub disabled_hooks: Vec<String>,
    /// IMEX channels to offer.
    pub imex_channels: Vec<u32>,
    /// Whether GDRCopy is offered.
    pub gdrcopy: bool,
    /// Whether GPUDirect Storage is offered.
    pub gds: bool,
    /// Whether Mellanox OFED is offered.
    pub mofed: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            vendor: DEVICE_PLUGIN_VENDOR.into(),
            naming: Naming::default(),
            hook_program: None,
            disabled_hooks: Vec::new(),
            imex_channels: Vec::new(),
            gdrcopy: false,
            gds: false,
            mofed: false,
        }
    }
}

/// Specs, by class, and what they lack. A class without devices has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generated {
    /// The specs.
    pub specs: Vec<Spec>,
    /// What is left out.
    pub skipped: Vec<Skipped>,
}

impl Generated {
    /// The spec of a class.
    pub fn class(&self, class: &str) -> Option<&Spec> {
        self.specs.iter().find(|spec| spec.kind().class() == class)
    }

    /// The qualified name of a device, if a spec has it.
    pub fn device(&self, class: &str, name: &str) -> Option<String> {
        let spec = self.class(class)?;
        let known = spec.devices().iter().any(|device| device.name == name);
        known.then(|| spec.kind().device(name))
    }
}

/// The specs of a node with these GPUs and a driver of this version.
pub fn generate(
    roots: &Roots,
    driver_version: &str,
    gpus: &[Gpu],
    options: &Options,
) -> Result<Generated, Error> {
    let mut made = Made {
        files: DeviceFiles::new(roots),
        options,
        done: Generated::default(),
    };
    let hooks = made.hooks(roots)?;
    made.gpus(roots, driver_version, gpus, hooks.as_ref())?;
    made.channels()?;
    if options.gdrcopy {
        let edits = nodes_only(&made.files.gdrcopy()?);
        made.single(classes::GDRCOPY, edits)?;
    }
    if options.gds {
        let edits = gds(roots, &made.files)?;
        made.single(classes::GDS, edits)?;
    }
    if options.mofed {
        let edits = nodes_only(&made.files.mofed()?);
        made.single(classes::MOFED, edits)?;
    }
    Ok(made.done)
}

struct Made<'a> {
    files: DeviceFiles<'a>,
    options: &'a Options,
    done: Generated,
}

impl Made<'_> {
    fn add(
        &mut self,
        class: &str,
        devices: Vec<Device>,
        edits: ContainerEdits,
    ) -> Result<(), Error> {
        if !devices.is_empty() {
            let kind = Kind::new(&self.options.vendor, class)?;
            self.done.specs.push(Spec::new(kind, devices, edits)?);
        }
        Ok(())
    }

    /// A class whose one device is all there is.
    fn single(&mut self, class: &str, edits: ContainerEdits) -> Result<(), Error> {
        let device = Device {
            name: "all".into(),
            container_edits: edits,
            ..Device::default()
        };
        let devices = [device]
            .into_iter()
            .filter(|device| !device.container_edits.is_empty())
            .collect();
        self.add(class, devices, ContainerEdits::default())
    }

    fn hooks(&mut self, roots: &Roots) -> Result<Option<Hooks>, Error> {
        let Some(program) = &self.options.hook_program else {
            return Ok(None);
        };
        let disabled = self.options.disabled_hooks.iter().cloned();
        let found = Hooks::find(&roots.node, program, disabled)?;
        Ok(self.keep(found))
    }

    /// What there is; what there is not is noted.
    fn keep<T>(&mut self, found: Result<T, Skipped>) -> Option<T> {
        found.map_err(|skipped| self.note(skipped)).ok()
    }

    /// A GPU without a node would be told of once per MIG device.
    fn note(&mut self, skipped: Skipped) {
        if !self.done.skipped.contains(&skipped) {
            self.done.skipped.push(skipped);
        }
    }

    fn gpus(
        &mut self,
        roots: &Roots,
        version: &str,
        gpus: &[Gpu],
        hooks: Option<&Hooks>,
    ) -> Result<(), Error> {
        let capabilities = if gpus.iter().any(|gpu| !gpu.mig.is_empty()) {
            self.files.capabilities()?
        } else {
            Capabilities::default()
        };
        let mut devices = Vec::new();
        for gpu in gpus {
            self.gpu(gpu, &capabilities, hooks, &mut devices)?;
        }
        if devices.is_empty() {
            return Ok(());
        }
        let mut edits = DriverFiles::discover(&roots.driver, &roots.node, version)?.edits(hooks);
        let control = self.files.control()?;
        for skipped in self.files.needed_by_all(&control) {
            self.note(skipped);
        }
        edits.device_nodes = device_nodes(&control);
        self.add(classes::GPU, devices, edits)
    }

    /// A GPU and its MIG devices. A whole GPU that is cut into MIG devices comes with the capabilities of all of them: without, its
    /// holder could use none.
    fn gpu(
        &mut self,
        gpu: &Gpu,
        capabilities: &Capabilities,
        hooks: Option<&Hooks>,
        devices: &mut Vec<Device>,
    ) -> Result<(), Error> {
        let found = self.files.gpu(gpu)?;
        let Some(own) = self.keep(found) else {
            return Ok(());
        };
        let graphics = self.files.graphics(gpu)?;
        let mut whole = vec![own.clone()];
        whole.extend(graphics);
        let mut parts = Vec::new();
        for mig in &gpu.mig {
            let found = self.files.mig(gpu, mig, capabilities)?;
            let Some(nodes) = self.keep(found) else {
                continue;
            };
            for node in &nodes {
                // Compute instances of one GPU instance share its capability.
                if !whole.contains(node) {
                    whole.push(node.clone());
                }
            }
            let nodes: Vec<Node> = [own.clone()].into_iter().chain(nodes).collect();
            parts.push((&mig.uuid, self.mig_name(gpu, mig), nodes_only(&nodes)));
        }
        let mut edits = nodes_only(&whole);
        if let Some(hooks) = hooks {
            let links: Vec<LinkInContainer> = self
                .files
                .graphics_links(gpu)?
                .into_iter()
                .map(|(at, target)| LinkInContainer { at, target })
                .collect();
            edits.hooks.extend(hooks.symlinks(&links));
        }
        let name = match self.options.naming {
            Naming::Uuid => gpu.uuid.clone(),
            Naming::Index => gpu.index.to_string(),
        };
        for (uuid, name, container_edits) in [(&gpu.uuid, name, edits)].into_iter().chain(parts) {
            let checked = if devices.iter().any(|device| device.name == name) {
                Err(Skipped::Taken {
                    uuid: uuid.clone(),
                    name: name.clone(),
                })
            } else {
                check_device_name(&name).map_err(Skipped::Name)
            };
            if self.keep(checked).is_some() {
                devices.push(Device {
                    name,
                    container_edits,
                    ..Device::default()
                });
            }
        }
        Ok(())
    }

    fn mig_name(&self, gpu: &Gpu, mig: &Mig) -> String {
        match self.options.naming {
            Naming::Uuid => mig.uuid.clone(),
            Naming::Index => format!("{}:{}", gpu.index, mig.index),
        }
    }

    fn channels(&mut self) -> Result<(), Error> {
        let mut devices = Vec::new();
        let options = self.options;
        for channel in &options.imex_channels {
            let found = self.files.imex_channel(*channel)?;
            if let Some(node) = self.keep(found) {
                devices.push(Device {
                    name: channel.to_string(),
                    container_edits: nodes_only(&[node]),
                    ..Device::default()
                });
            }
        }
        self.add(classes::IMEX_CHANNEL, devices, ContainerEdits::default())
    }
}

fn device_nodes(nodes: &[Node]) -> Vec<DeviceNode> {
    nodes.iter().map(DeviceNode::from).collect()
}

fn nodes_only(nodes: &[Node]) -> ContainerEdits {
    ContainerEdits {
        device_nodes: device_nodes(nodes),
        ..ContainerEdits::default()
    }
}

/// Its nodes and, if there are any, udev's database and cuFile's configuration, by which it finds disks.
fn gds(roots: &Roots, files: &DeviceFiles<'_>) -> Result<ContainerEdits, Error> {
    let mut edits = nodes_only(&files.gds()?);
    if edits.is_empty() {
        return Ok(edits);
    }
    for path in ["/etc/cufile.json", "/run/udev"] {
        if let Some(found) = roots.driver.resolve(path)? {
            edits.mounts.push(Mount {
                host_path: text(&roots.driver.on_host(found)),
                container_path: path.into(),
                options: crate::driver::READ_ONLY
                    .iter()
                    .map(|option| (*option).to_owned())
                    .collect(),
                kind: None,
            });
        }
    }
    Ok(edits)
}

#[cfg(test)]
mod tests;
