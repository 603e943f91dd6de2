//! Where a driver's installation puts its files, below its root: distributions, container images of the driver, GKE, WSL, NixOS.

/// Folders that hold the libraries, most usual first.
pub const LIBRARY_FOLDERS: [&str; 12] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib64",
    "lib",
    "usr/local/nvidia/lib64",
    "home/kubernetes/bin/nvidia/lib64",
    "usr/lib/wsl/lib",
    "run/opengl-driver/lib",
];

/// Folders that hold the programs, most usual first.
pub const PROGRAM_FOLDERS: [&str; 10] = [
    "usr/bin",
    "usr/sbin",
    "bin",
    "sbin",
    "usr/local/bin",
    "usr/local/nvidia/bin",
    "home/kubernetes/bin/nvidia/bin",
    "opt/bin",
    "usr/lib/wsl/lib",
    "run/current-system/sw/bin",
];
