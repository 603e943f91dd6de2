//! What a driver package installs besides the library that works: files that containers are given, as short stand-ins. They stay
//! when the driver is unloaded.

use super::{Entry, Tree};
use crate::admin::LIBRARY_FOLDER;

/// Libraries that carry the driver's version, and the names that link to each.
const LIBRARIES: [(&str, &[&str]); 15] = [
    ("libcuda", &["libcuda.so.1", "libcuda.so"]),
    ("libcudadebugger", &["libcudadebugger.so.1"]),
    ("libnvcuvid", &["libnvcuvid.so.1", "libnvcuvid.so"]),
    ("libnvidia-cfg", &["libnvidia-cfg.so.1"]),
    ("libnvidia-encode", &["libnvidia-encode.so.1"]),
    ("libnvidia-fbc", &["libnvidia-fbc.so.1"]),
    ("libnvidia-opencl", &["libnvidia-opencl.so.1"]),
    (
        "libnvidia-ptxjitcompiler",
        &["libnvidia-ptxjitcompiler.so.1"],
    ),
    ("libnvidia-nvvm", &["libnvidia-nvvm.so.4"]),
    // These two are asked for under the full name only.
    ("libnvidia-gpucomp", &[]),
    ("libnvidia-glcore", &[]),
    (
        "libGLX_nvidia",
        &["libGLX_nvidia.so.0", "libGLX_indirect.so.0"],
    ),
    ("libEGL_nvidia", &["libEGL_nvidia.so.0"]),
    ("libnvidia-allocator", &["libnvidia-allocator.so.1"]),
    ("vdpau/libvdpau_nvidia", &["vdpau/libvdpau_nvidia.so.1"]),
];

const PROGRAMS: [&str; 2] = ["nvidia-debugdump", "nvidia-persistenced"];

const CONFIGURATION: [(&str, &str); 3] = [
    (
        "etc/vulkan/icd.d/nvidia_icd.json",
        "{\"file_format_version\":\"1.0.1\",\"ICD\":{\"library_path\":\"libGLX_nvidia.so.0\",\"api_version\":\"1.4.312\"}}\n",
    ),
    (
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "{\"file_format_version\":\"1.0.0\",\"ICD\":{\"library_path\":\"libEGL_nvidia.so.0\"}}\n",
    ),
    ("usr/share/nvidia/nvoptix.bin", "simulated\n"),
];

pub(super) fn render(version: &str, tree: &mut Tree) {
    let mut insert = |path: String, entry: Entry| {
        tree.insert(path.into(), entry);
    };
    let stand_in = || Entry::File(b"simulated\n".to_vec());
    for (library, links) in LIBRARIES {
        let file = format!("{library}.so.{version}");
        let target = file.rsplit('/').next().unwrap_or(&file);
        for link in links {
            insert(
                format!("{LIBRARY_FOLDER}/{link}"),
                Entry::Link(target.into()),
            );
        }
        insert(format!("{LIBRARY_FOLDER}/{file}"), stand_in());
    }
    // Comes under a version of its own.
    insert(
        format!("{LIBRARY_FOLDER}/libnvidia-egl-gbm.so.1.1.2"),
        stand_in(),
    );
    insert(
        format!("{LIBRARY_FOLDER}/libnvidia-egl-gbm.so.1"),
        Entry::Link("libnvidia-egl-gbm.so.1.1.2".into()),
    );
    insert(
        format!("{LIBRARY_FOLDER}/gbm/nvidia-drm_gbm.so"),
        Entry::Link("../libnvidia-allocator.so.1".into()),
    );
    for firmware in ["gsp_ga10x.bin", "gsp_tu10x.bin"] {
        insert(
            format!("lib/firmware/nvidia/{version}/{firmware}"),
            stand_in(),
        );
    }
    for program in PROGRAMS {
        insert(
            format!("usr/bin/{program}"),
            Entry::Program("#!/bin/sh\necho \"$0: simulated\" >&2\nexit 1\n".into()),
        );
    }
    for (path, content) in CONFIGURATION {
        insert(path.into(), Entry::File(content.into()));
    }
    insert("run/nvidia-persistenced/socket".into(), Entry::Touch(0o666));
}
