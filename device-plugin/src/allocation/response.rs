//! What a container gets for its devices: environment variables, mounts, device nodes and CDI names, those of NVIDIA's plugin.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use configuration::plugin::{DeviceIdStrategy, ResourceName};
use kubelet::device_plugin::{CdiDevice, ContainerAllocateResponse, DeviceSpec, Mount};

use super::Options;
use super::options::Imex;
use crate::mps::Root;
use crate::mps::paths::CONTAINER_ROOT;
use crate::resources::Device;

/// Vendor of the CDI devices that answers name.
pub use cdi::DEVICE_PLUGIN_VENDOR as CDI_VENDOR;

/// Which devices the container runtime is to show.
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// Where NVIDIA's runtime looks for mounts that stand for devices.
const DEVICE_MOUNTS: &str = "/var/run/nvidia-container-devices";

/// What the node has ready for containers. Looked up when the hardware or its CDI specs change, not when a container starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Whether there is IMEX channel 0.
    pub imex_channel0: bool,
    /// Whether there is a CDI spec of class `gdrcopy`.
    pub gdrcopy: bool,
    /// Whether there is a CDI spec of class `gds`.
    pub gds: bool,
    /// Whether there is a CDI spec of class `mofed`.
    pub mofed: bool,
    /// Device nodes that every container needs, by their path in the container: `/dev/nvidiactl` and the like, those that
    /// exist.
    pub control_nodes: Vec<PathBuf>,
    /// Device nodes of each GPU and MIG device by its UUID, those of the GPU and of its capabilities for a MIG device.
    pub device_nodes: BTreeMap<String, Vec<PathBuf>>,
}

/// What a container gets for `devices` of a resource.
pub fn response(
    options: &Options,
    ready: &Ready,
    resource: &ResourceName,
    devices: &[&Device],
) -> ContainerAllocateResponse {
    let mut response = ContainerAllocateResponse::default();
    let ids: Vec<String> = devices
        .iter()
        .map(|device| match options.ids {
            DeviceIdStrategy::Uuid => device.uuid.clone(),
            DeviceIdStrategy::Index => device.index(),
        })
        .collect();
    let imex = options.imex != Imex::No && ready.imex_channel0;
    if options.lists.cdi() {
        cdi(&mut response, options, ready, resource, &ids, imex);
    }
    let shared = devices.iter().any(|device| device.shares.is_some());
    if let Some(root) = options.mps_root.as_ref().filter(|_| shared) {
        mps(&mut response, root, resource);
    }
    let features = [
        (options.gdrcopy, "NVIDIA_GDRCOPY"),
        (options.gds, "NVIDIA_GDS"),
        (options.mofed, "NVIDIA_MOFED"),
    ];
    for (_, name) in features.iter().filter(|(enabled, _)| *enabled) {
        set(&mut response.envs, name, "enabled");
    }
    if options.lists.only_cdi() {
        return response;
    }
    if options.lists.envvar {
        set(&mut response.envs, VISIBLE_DEVICES, &ids.join(","));
        if imex {
            set(&mut response.envs, "NVIDIA_IMEX_CHANNELS", "0");
        }
    }
    if options.lists.volume_mounts {
        set(&mut response.envs, VISIBLE_DEVICES, DEVICE_MOUNTS);
        let channel = imex.then(|| "imex/0".to_owned());
        for id in ids.iter().chain(&channel) {
            response
                .mounts
                .push(mount("/dev/null", format!("{DEVICE_MOUNTS}/{id}")));
        }
    }
    if options.device_specs {
        let own = devices.iter().flat_map(|device| {
            let nodes = ready.device_nodes.get(&device.uuid);
            nodes.map(Vec::as_slice).unwrap_or_default()
        });
        let channel = imex.then(|| PathBuf::from("/dev/nvidia-caps-imex-channels/channel0"));
        let mut given = Vec::<&Path>::new();
        for node in ready.control_nodes.iter().chain(own).chain(&channel) {
            // MIG devices of one GPU, and of one GPU instance, share nodes.
            if !given.contains(&node.as_path()) {
                given.push(node);
                response.devices.push(spec(&options.dev_root, node));
            }
        }
    }
    response
}

fn set(envs: &mut HashMap<String, String>, name: &str, value: &str) {
    envs.insert(name.to_owned(), value.to_owned());
}

fn mount(host: impl Into<String>, container: impl Into<String>) -> Mount {
    Mount {
        host_path: host.into(),
        container_path: container.into(),
        read_only: false,
    }
}

fn spec(dev_root: &Path, node: &Path) -> DeviceSpec {
    let below = node.strip_prefix("/").unwrap_or(node);
    DeviceSpec {
        container_path: node.display().to_string(),
        host_path: dev_root.join(below).display().to_string(),
        permissions: "rw".to_owned(),
    }
}

fn cdi(
    response: &mut ContainerAllocateResponse,
    options: &Options,
    ready: &Ready,
    resource: &ResourceName,
    ids: &[String],
    imex: bool,
) {
    let mut names: Vec<String> = ids
        .iter()
        .map(|id| format!("{CDI_VENDOR}/gpu={id}"))
        .collect();
    if imex {
        names.push(format!("{CDI_VENDOR}/imex-channel=0"));
    }
    let classes = [
        (options.gdrcopy && ready.gdrcopy, "gdrcopy"),
        (options.gds && ready.gds, "gds"),
        (options.mofed && ready.mofed, "mofed"),
    ];
    let classes = classes.iter().filter(|(given, _)| *given);
    names.extend(classes.map(|(_, class)| format!("{CDI_VENDOR}/{class}=all")));
    if options.lists.cdi_annotations {
        let key = annotation_key(&options.annotation_prefix, resource.as_str());
        response.annotations.insert(key, names.join(","));
    }
    if options.lists.cdi_cri {
        let names = names.into_iter();
        response
            .cdi_devices
            .extend(names.map(|name| CdiDevice { name }));
    }
}

/// The key of the annotation with a resource's CDI names. NVIDIA's plugin ends it at random, so that two resources of one
/// container do not meet; here the resource decides, which serves the same and makes equal calls have equal answers. As a
/// number, because a resource's name can be longer than what is left of the 63 characters.
pub(super) fn annotation_key(prefix: &str, resource: &str) -> String {
    // FNV-1a.
    let number = resource
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    format!("{prefix}nvidia-device-plugin_{number:016x}")
}

/// The pipe to the MPS daemon and the shared memory that clients and daemon talk through.
fn mps(response: &mut ContainerAllocateResponse, root: &Path, resource: &ResourceName) {
    let (host, inside) = (Root::new(root), Root::new(CONTAINER_ROOT));
    let text = |path: PathBuf| path.display().to_string();
    let pipe = text(inside.pipe(resource));
    set(&mut response.envs, "CUDA_MPS_PIPE_DIRECTORY", &pipe);
    response.mounts.push(mount(text(host.pipe(resource)), pipe));
    response.mounts.push(mount(text(host.shm()), "/dev/shm"));
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
