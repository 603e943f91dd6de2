//! What a driver installs besides libraries: programs, firmware, configuration, sockets of its daemons.

use std::path::{Path, PathBuf};

use gpu::installation::PROGRAM_FOLDERS;

use super::Placed;
use crate::{Error, Root};

/// Programs that containers use.
const PROGRAMS: [&str; 7] = [
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
];

/// Files in `/etc`, `/usr/local/share` or `/usr/share`.
const CONFIGURATION: [&str; 4] = [
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "nvidia/nvoptix.bin",
];

/// Where they are looked for, in this order.
const CONFIGURATION_FOLDERS: [&str; 3] = ["/etc", "/usr/local/share", "/usr/share"];

/// Files of Vulkan's loader; on GKE they lie in the driver's root itself.
const VULKAN: [&str; 5] = [
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_icd.aarch64.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
];

/// Where those are looked for.
const VULKAN_FOLDERS: [&str; 4] = ["/etc", "/usr/local/share", "/usr/share", "/"];

/// Sockets of the driver's daemons, and the folder of the Multi-Process Service.
const SOCKETS: [&[&str]; 3] = [
    &[
        "/run/nvidia-persistenced/socket",
        "/var/run/nvidia-persistenced/socket",
    ],
    &[
        "/run/nvidia-fabricmanager/socket",
        "/var/run/nvidia-fabricmanager/socket",
    ],
    &["/tmp/nvidia-mps"],
];

/// The first of the paths that exists, where it is.
fn first(root: &Root, paths: impl IntoIterator<Item = PathBuf>) -> Result<Option<Placed>, Error> {
    for at in paths {
        if let Some(file) = root.resolve(&at)? {
            return Ok(Some(Placed { file, at }));
        }
    }
    Ok(None)
}

fn in_folders(root: &Root, folders: &[&str], name: &str) -> Result<Option<Placed>, Error> {
    first(
        root,
        folders
            .iter()
            .map(|folder| Path::new("/").join(folder).join(name)),
    )
}

/// Programs appear in `/usr/bin`, which is in every `PATH`.
pub(super) fn programs(root: &Root) -> Result<Vec<Placed>, Error> {
    let mut found = Vec::new();
    for name in PROGRAMS {
        found.extend(
            in_folders(root, &PROGRAM_FOLDERS, name)?.map(|placed| Placed {
                at: Path::new("/usr/bin").join(name),
                ..placed
            }),
        );
    }
    Ok(found)
}

/// The firmware that the driver loads into its GPUs, `nvidia/<version>/gsp_*.bin`, in the first of the kernel's firmware folders that
/// has it.
pub(super) fn firmware(root: &Root, node: &Root, version: &str) -> Result<Vec<Placed>, Error> {
    let custom = node.read("/sys/module/firmware_class/parameters/path")?;
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let folders = [
        custom.unwrap_or_default().trim().to_owned(),
        format!("/lib/firmware/updates/{release}"),
        "/lib/firmware/updates".into(),
        format!("/lib/firmware/{release}"),
        "/lib/firmware".into(),
    ];
    for folder in folders.iter().filter(|folder| folder.starts_with('/')) {
        let folder = Path::new(folder).join("nvidia").join(version);
        let mut found = Vec::new();
        for name in root.list(&folder)? {
            let wanted =
                name.ends_with(".bin") && (name.starts_with("gsp") || name.starts_with("ucodes"));
            if wanted {
                found.extend(first(root, [folder.join(name)])?);
            }
        }
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

/// Configuration appears where it is, Vulkan's in `/etc`.
pub(super) fn configuration(root: &Root) -> Result<Vec<Placed>, Error> {
    let mut found = Vec::new();
    for name in CONFIGURATION {
        found.extend(in_folders(root, &CONFIGURATION_FOLDERS, name)?);
    }
    for name in VULKAN {
        found.extend(
            in_folders(root, &VULKAN_FOLDERS, name)?.map(|placed| Placed {
                at: Path::new("/etc").join(name),
                ..placed
            }),
        );
    }
    Ok(found)
}

/// Sockets appear where they are.
pub(super) fn sockets(root: &Root) -> Result<Vec<Placed>, Error> {
    let mut found = Vec::new();
    for places in SOCKETS {
        found.extend(first(root, places.iter().map(PathBuf::from))?);
    }
    Ok(found)
}
